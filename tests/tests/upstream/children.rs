//! What becomes of a server's processes when the daemon ends.

use std::collections::HashSet;
use std::time::Duration;

use mcp_taskd_tests::daemon::{Daemon, Site};
use mcp_taskd_tests::wait::until_within;
use serde_json::json;

/// Longer than the daemon gives processes to end, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Processes by id, with their parents; those that only wait to be collected have ended.
fn processes() -> Vec<(u32, u32)> {
    let stat = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let running = !matches!(fields.next()?, "Z" | "X");
        running.then_some((pid, fields.next()?.parse().ok()?))
    };
    let entries = std::fs::read_dir("/proc").expect("a list of processes").flatten();
    entries.filter_map(|entry| stat(entry.file_name().to_str()?.parse().ok()?)).collect()
}

fn descendants(of: u32) -> HashSet<u32> {
    let all = processes();
    let mut found = HashSet::from([of]);
    loop {
        let more: Vec<_> = all.iter().filter(|(pid, parent)| found.contains(parent) && !found.contains(pid)).collect();
        if more.is_empty() {
            break;
        }
        found.extend(more.into_iter().map(|(pid, _)| *pid));
    }
    found.remove(&of);
    found
}

fn are_gone(family: &HashSet<u32>) -> bool {
    processes().iter().all(|(pid, _)| !family.contains(pid))
}

/// A daemon with a task on a stdio server that `script` starts, and that server's processes.
async fn serving(script: &str) -> (Site, Daemon, HashSet<u32>) {
    let fake = env!("CARGO_BIN_EXE_fake-mcp");
    let more = json!({"type": "stdio", "command": "sh", "args": ["-c", script, "sh", fake, "--stdio"]});
    let site = Site::new(env!("CARGO_BIN_EXE_taskd-under-test")).server_with("reports", "", false, more);
    let mut daemon = site.daemon("one");
    daemon.start().await;
    daemon.api.submit("reports", &json!({"end": "never"}), None).await.unwrap();
    let pid = daemon.pid();
    // The shell and the server.
    until_within("the server runs", PATIENCE, async || descendants(pid).len() >= 2).await;
    let family = descendants(pid);
    (site, daemon, family)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_stops_leaves_no_process_of_its_servers_behind() {
    // A server with a helper that nobody told to end.
    let (_site, mut daemon, family) = serving("sleep 600 </dev/null >/dev/null 2>&1 & \"$@\"").await;
    daemon.stop().await;
    assert!(are_gone(&family), "{family:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_heed_the_end_of_their_input_do_not_outlive_a_killed_daemon() {
    let (_site, mut daemon, family) = serving("\"$@\"; true").await;
    daemon.kill9().await;
    until_within("its servers ended", PATIENCE, async || are_gone(&family)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_told_twice_to_stop_kills_what_does_not_end() {
    let (_site, mut daemon, family) = serving("trap '' TERM; \"$@\"; sleep 600").await;
    daemon.sigterm();
    daemon.sigterm();
    daemon.wait().await;
    until_within("its servers are gone", PATIENCE, async || are_gone(&family)).await;
}
