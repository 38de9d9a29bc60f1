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

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_is_told_and_a_configuration_that_cannot_be_used_changes_nothing_33() {
    let fake = fake().await;
    let site = site().set("mcp_tasks.lease_seconds", 60).server("s", &fake.url);
    let socket = UnixDatagram::bind(site.path().join("notify")).unwrap();
    let port = free_port();
    let mut command = site.command(&["serve", "--set", &format!("server.listen=127.0.0.1:{port}")]);
    command.env("NOTIFY_SOCKET", site.path().join("notify"));
    let mut daemon = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    let api = Api::new(&format!("http://127.0.0.1:{port}"));
    until("it is ready", || api.is_ready()).await;
    let pid = Pid::from_raw(daemon.id().unwrap().cast_signed()).unwrap();
    let config = site.path().join("config.yaml");
    let good = std::fs::read_to_string(&config).unwrap();

    let reload = async |text: &str| {
        std::fs::write(&config, text).unwrap();
        hear(&socket, &mut Vec::new());
        kill_process(pid, Signal::HUP).unwrap();
        let mut heard = Vec::new();
        until("the reload is over", || {
            hear(&socket, &mut heard);
            let begun = heard.iter().position(|line| line == "RELOADING=1");
            let over = begun.is_some_and(|at| heard[at..].contains(&"READY=1".to_owned()));
            async move { over }
        })
        .await;
        assert!(heard.iter().any(|line| line.starts_with("MONOTONIC_USEC=")), "{heard:?}");
        let unused = heard.iter().any(|line| line.starts_with("STATUS=") && line.contains("not in effect"));
        (api.count("config_last_reload_successful", &[]).await, unused)
    };
    assert_eq!(reload(&good).await, (1, false));
    assert_eq!(reload("mcp_tasks: { lease_secnds: 30 }\n").await, (0, true), "a misspelt key");
    assert_eq!(reload(&good.replace("60", "30")).await, (0, true), "what is read at the start only");
    let report = api.request(reqwest::Method::GET, "/readyz?verbose", None, None).await.unwrap();
    assert!(report.to_string().contains("a restart is needed for mcp_tasks.lease_seconds"), "{report}");
    assert_eq!(reload(&good).await, (1, false));

    kill_process(pid, Signal::TERM).unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(30), daemon.wait()).await.unwrap().unwrap().success());
}
