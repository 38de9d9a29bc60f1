//! What a service manager is told, as systemd would hear it.

use std::time::Duration;

use mcp_taskd_tests::daemon::{Api, free_port};
use mcp_taskd_tests::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixDatagram;

use crate::{fake, site};

/// All that was said on the socket so far.
fn hear(socket: &UnixDatagram, heard: &mut Vec<String>) {
    let mut message = [0; 4_096];
    while let Ok(size) = socket.try_recv(&mut message) {
        heard.extend(String::from_utf8_lossy(&message[..size]).lines().map(ToOwned::to_owned));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_manager_hears_ready_status_watchdog_and_stopping() {
    let fake = fake().await;
    let site = site().server("s", &fake.url);
    let socket = UnixDatagram::bind(site.path().join("notify")).unwrap();
    let port = free_port();
    let mut command = site.command(&["serve", "--set", &format!("server.listen=127.0.0.1:{port}")]);
    command.env("NOTIFY_SOCKET", site.path().join("notify")).env("WATCHDOG_USEC", "200000");
    let mut daemon = command.stderr(std::process::Stdio::null()).spawn().unwrap();

    let mut heard = Vec::new();
    until("it is ready", || {
        hear(&socket, &mut heard);
        let ready = heard.contains(&"READY=1".to_owned());
        async move { ready }
    })
    .await;
    assert!(Api::new(&format!("http://127.0.0.1:{port}")).is_ready().await, "ready means that it can be asked");

    // A server that hangs is no reason for a restart.
    fake.state.faults.hang.store(true, std::sync::atomic::Ordering::Relaxed);
    until("it says again and again that it is alive, and how it stands", || {
        hear(&socket, &mut heard);
        let alive = heard.iter().filter(|line| *line == "WATCHDOG=1").count() >= 5;
        let status = heard.iter().any(|line| line.starts_with("STATUS=0 active tasks; 0 due and waiting; 1 worker"));
        async move { alive && status }
    })
    .await;

    assert!(!heard.contains(&"STOPPING=1".to_owned()));
    let pid = Pid::from_raw(daemon.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(30), daemon.wait()).await.unwrap().unwrap();
    assert!(ended.success());
    hear(&socket, &mut heard);
    assert!(heard.contains(&"STOPPING=1".to_owned()), "{heard:?}");
}
