//! A daemon that loses its database while the others keep theirs (FAILURES 31).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use mcp_taskd_tests::daemon::{Daemon, Site, id_of};
use mcp_taskd_tests::fake::FakeServer;
use mcp_taskd_tests::postgres::{self, TestDatabase};
use mcp_taskd_tests::proxy::{Network, Proxy};
use mcp_taskd_tests::wait::{PATIENCE, until, until_within};
use serde_json::json;

use crate::{LEASE, audit, fake, polls_of, signed, site};

const TASKS: usize = 40;
/// From the end of a lease to a call that is on its way already, on a busy machine.
const SLACK: Duration = Duration::from_secs(2);

/// Two daemons on one database, the first behind a network of its own.
struct Pair {
    first: Daemon,
    second: Daemon,
    network: Proxy,
    _site: Site,
    _database: TestDatabase,
}

async fn pair(fake: &FakeServer) -> Pair {
    let database = postgres::database().await;
    let network = Proxy::start(database.url()).await;
    let site = site()
        .postgres(database.url())
        .server_with("s", &fake.url, false, signed())
        .set("mcp_tasks.max_concurrent_polls", 64);
    site.migrate().await;
    let url = format!("database.postgres_url={}", network.url());
    let mut first = site.daemon("first").with(&["--set", &url]);
    let mut second = site.daemon("second");
    tokio::join!(first.start(), second.start());
    let script = json!({"end": "never", "poll_after_seconds": 0.3});
    first.api.submit_many("s", &script, TASKS).await;
    until("both hold some of the tasks", || async {
        first.api.count("leases_held", &[]).await >= 8 && second.api.count("leases_held", &[]).await >= 8
    })
    .await;
    Pair { first, second, network, _site: site, _database: database }
}

impl Pair {
    /// The first stops within its lease, the second takes over, and nobody polls beside another.
    async fn the_second_takes_over(&self, fake: &FakeServer, cut: Instant) {
        until_within("all are polled by the second", LEASE * 2 + SLACK * 3, || async {
            let journal = fake.state.journal();
            let since = cut + LEASE;
            let own = journal.iter().filter(|called| called.at >= since && called.caller == Some(self.second.life()));
            own.filter_map(|called| called.task_id.as_ref()).collect::<HashSet<_>>().len() == TASKS
        })
        .await;
        assert!(!self.first.api.is_ready().await, "a daemon without its database is not ready");
        let late = polls_of(fake, &self.first.life(), cut + LEASE + SLACK);
        assert_eq!(late, 0, "polls of a daemon that has lost its database for a lease");
    }

    /// Both poll, and what is cancelled ends once.
    async fn all_is_well(mut self, fake: &FakeServer) {
        let back = Instant::now();
        until_within("the first is ready again", PATIENCE, || self.first.api.is_ready()).await;
        until_within("the first polls again", PATIENCE, || async { polls_of(fake, &self.first.life(), back) > 0 })
            .await;
        for task in self.second.api.tasks().await.unwrap() {
            self.first.api.cancel(&id_of(&task)).await.unwrap();
        }
        until("all end", || audit::all_ended(&self.second.api, TASKS)).await;
        audit::ended_once(&self.second.api).await;
        self.first.stop().await;
        self.second.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_cut_from_its_database_stops_within_its_lease_and_comes_back_31() {
    let fake = fake().await;
    let pair = pair(&fake).await;
    let cut = Instant::now();
    pair.network.set(Network::Reset);
    pair.the_second_takes_over(&fake, cut).await;
    pair.network.set(Network::Up);
    pair.all_is_well(&fake).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_whose_network_falls_silent_stops_within_its_lease_and_comes_back_31() {
    let fake = fake().await;
    let pair = pair(&fake).await;
    let cut = Instant::now();
    pair.network.set(Network::Silent);
    pair.the_second_takes_over(&fake, cut).await;
    pair.network.set(Network::Up);
    pair.all_is_well(&fake).await;
}

/// Half open: whatever is sent on such a connection is never answered, nor refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_whose_connections_are_half_open_after_an_outage_connects_anew_7_31() {
    let fake = fake().await;
    let pair = pair(&fake).await;
    let cut = Instant::now();
    // First nothing gets through at all, for longer than the lease; then new connections do, and the old ones never again.
    pair.network.set(Network::Silent);
    pair.the_second_takes_over(&fake, cut).await;
    pair.network.freeze();
    pair.network.set(Network::Up);
    pair.all_is_well(&fake).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_half_open_while_the_network_is_up_are_replaced_7_18() {
    let fake = fake().await;
    let pair = pair(&fake).await;
    pair.network.freeze();
    let frozen = Instant::now();
    until_within("it is ready for good", PATIENCE, || async {
        frozen.elapsed() > LEASE && pair.first.api.is_ready().await
    })
    .await;
    // What is written from now on is written: it does not wait for a connection that nobody answers.
    let ids = pair.first.api.submit_many("s", &json!({"run_ms": 500, "poll_after_seconds": 0.3}), TASKS).await;
    until_within("each ends, whoever holds it", PATIENCE, || async {
        let tasks = pair.second.api.tasks().await.unwrap();
        tasks.iter().filter(|task| ids.contains(&id_of(task))).all(|task| task["status"] == "completed")
    })
    .await;
    pair.all_is_well(&fake).await;
}
