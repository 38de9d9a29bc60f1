//! `kill -9` and a restart with the same state directory. Kills at any moment are the chaos tests'.

use std::time::Duration;

use mcp_taskd_tests::daemon::Site;
use mcp_taskd_tests::fake::FakeServer;
use mcp_taskd_tests::postgres;
use mcp_taskd_tests::wait::{PATIENCE, until_within};
use serde_json::json;

use crate::{fake, site};

/// The lock of a state directory proves its predecessor dead; nobody waits for a lease of two minutes.
async fn restart_polls_at_once(site: Site, fake: &FakeServer) {
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    daemon.api.submit_many("s", &json!({"end": "never"}), 20).await;
    let polls = || fake.state.core.truths().into_iter().map(|truth| truth.polls).collect::<Vec<_>>();
    until_within("every task is polled", PATIENCE, || async { polls().iter().all(|polls| *polls > 0) }).await;

    daemon.kill9().await;
    let before = polls();
    let ready = daemon.start().await;
    let again = || async { polls().iter().zip(&before).all(|(now, before)| now > before) };
    // A tick, a random part of one interval and the poll itself; twice that for a slow machine.
    let took = until_within("every task is polled again", Duration::from_secs(5), again).await;
    eprintln!("ready after {ready:?}, every task polled again {took:?} later");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_the_same_state_directory_polls_at_once_on_sqlite() {
    let fake = fake().await;
    let site = site().server("s", &fake.url).set("mcp_tasks.lease_seconds", 120);
    restart_polls_at_once(site, &fake).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_the_same_state_directory_polls_at_once_on_postgres() {
    let database = postgres::database().await;
    let fake = fake().await;
    let site = site().postgres(database.url()).server("s", &fake.url).set("mcp_tasks.lease_seconds", 120);
    site.migrate().await;
    restart_polls_at_once(site, &fake).await;
}
