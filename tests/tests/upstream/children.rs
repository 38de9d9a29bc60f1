//! What becomes of a server's processes when the daemon ends.

use std::collections::BTreeSet;
use std::time::Duration;

use mcp_taskd_tests::daemon::{Daemon, Site};
use mcp_taskd_tests::family::{are_gone, descendants};
use mcp_taskd_tests::wait::until_within;
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// Longer than the daemon gives processes to end, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon with a task on a stdio server that `script` starts, and that server's processes.
async fn serving(script: &str) -> (Site, Daemon, BTreeSet<u32>) {
    let fake = env!("CARGO_BIN_EXE_fake-mcp");
    let more = json!({"type": "stdio", "command": "sh", "args": ["-c", script, "sh", fake, "--stdio"]});
    let site = Site::new(env!("CARGO_BIN_EXE_taskd-under-test")).server_with("reports", "", false, more);
    let mut daemon = site.daemon("one");
    daemon.start().await;
    daemon.api.submit("reports", &json!({"end": "never"}), None).await.unwrap();
    let pid = daemon.pid();
    // The guard, the shell and the server.
    until_within("the server runs", PATIENCE, async || descendants(pid).len() >= 3).await;
    let family = descendants(pid);
    (site, daemon, family)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_stops_leaves_no_process_of_its_servers_behind() {
    // A server with a helper that nobody told to end.
    let (_site, mut daemon, family) = serving("sleep 600 </dev/null >/dev/null 2>&1 & \"$@\"").await;
    let guard = guard_among(&family);
    daemon.stop().await;
    assert!(are_gone(&family.difference(&guard).copied().collect()), "{family:?}");
    until_within("the guard ends with the daemon", PATIENCE, async || are_gone(&guard)).await;
}

/// The process that ends the others when the daemon is killed.
fn guard_among(family: &BTreeSet<u32>) -> BTreeSet<u32> {
    let is_guard = |pid: &&u32| {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.contains("guard-processes")
    };
    let guard: BTreeSet<u32> = family.iter().filter(is_guard).copied().collect();
    assert_eq!(guard.len(), 1, "{family:?}");
    guard
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_daemon_leaves_no_process_of_its_servers_behind_whatever_they_ignore() {
    // Neither the end of its input nor a request to end moves this one, and it has helpers.
    let stubborn = "trap '' TERM; sleep 600 </dev/null & (trap '' TERM; while :; do sleep 1; done) & \"$@\"; wait";
    let (_site, mut daemon, family) = serving(stubborn).await;
    daemon.kill9().await;
    until_within("its servers are gone", PATIENCE, async || are_gone(&family)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_was_ended_itself_is_replaced_and_told_of_every_process() {
    let (_site, mut daemon, first) = serving("trap '' TERM; \"$@\"; sleep 600").await;
    let guard = guard_among(&first).into_iter().next().expect("one");
    kill_process(Pid::from_raw(guard.cast_signed()).expect("a process"), Signal::KILL).expect("it runs");
    // Another thread has another process.
    let submit = json!({"server": "reports", "task": "report", "arguments": {"script": {"end": "never"}}});
    daemon.api.request(Method::POST, "/api/threads/other/mcp-tasks", Some(&submit), None).await.unwrap();
    let family = descendants(daemon.pid());
    guard_among(&family);
    assert!(family.len() > first.len(), "{first:?} and then {family:?}");
    daemon.kill9().await;
    let all = family.union(&first).copied().collect();
    until_within("all of them are gone", PATIENCE, async || are_gone(&all)).await;
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
