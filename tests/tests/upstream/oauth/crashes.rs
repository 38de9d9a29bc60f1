//! Processes that die with a refresh under way (BEHAVIOURS 112, 116).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mcp_taskd_core::store::TokenChains;
use mcp_taskd_core::store::sql::SqlStore;
use mcp_taskd_core::upstream::SharedUpstream;
use mcp_taskd_tests::postgres::{self, TestDatabase};
use mcp_taskd_tests::wait;
use serde_json::Value;

use super::setup::{KEY, Party, echo, kept_in};
use crate::setup::until;

/// A connection of one process.
async fn rows(database: &TestDatabase) -> Arc<dyn TokenChains> {
    Arc::new(SqlStore::connect_postgres(database.url(), 4).await.expect("connects"))
}

async fn database() -> TestDatabase {
    let database = postgres::database().await;
    SqlStore::connect_postgres(database.url(), 2).await.unwrap().migrate().await.unwrap();
    database
}

/// A replica whose leases last two seconds.
fn replica(party: &Party, oauth: &Value, rows: &Arc<dyn TokenChains>) -> SharedUpstream {
    let chains = kept_in(rows, &[KEY]);
    chains.lease_ms.store(2_000, Relaxed);
    party.replica(oauth, Some(chains))
}

/// A process that is killed once the authority has granted it a token, before the answer arrives: everything in it ends,
/// whatever it is about.
async fn is_killed_before_its_answer(party: &Party, oauth: &Value, database: &TestDatabase) {
    party.authority.state.faults.hold_answer.store(true, Relaxed);
    let before = party.asked();
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let store = process.spawn({
        let url = database.url().to_owned();
        async move { SqlStore::connect_postgres(&url, 2).await.expect("connects") }
    });
    let rows: Arc<dyn TokenChains> = Arc::new(store.await.unwrap());
    let upstream = replica(party, oauth, &rows);
    process.spawn(async move { echo(&upstream).await });
    until("a token is granted", || party.asked() > before).await;
    process.shutdown_background();
    party.authority.state.release();
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_request_and_store_the_chain_survives_where_the_old_token_still_works_116() {
    let (party, database) = (Party::new().await, database().await);
    party.authority.state.keeps_tokens.store(true, Relaxed);
    let oauth = party.authority.chain("the-seed");
    is_killed_before_its_answer(&party, &oauth, &database).await;
    let next = replica(&party, &oauth, &rows(&database).await);
    echo(&next).await.unwrap();
    assert_eq!(party.asked(), 2, "once the lease of the dead one is over");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_request_and_store_a_chain_that_cannot_survive_is_reported_116() {
    let (party, database) = (Party::new().await, database().await);
    let oauth = party.authority.chain("the-seed");
    is_killed_before_its_answer(&party, &oauth, &database).await;
    let next = replica(&party, &oauth, &rows(&database).await);
    for _ in 0..2 {
        let error = echo(&next).await.unwrap_err();
        for said in ["\"s\"", "invalid_grant", "mcpServers.s.oauth.refresh_token", "an earlier refresh was lost"] {
            assert!(error.message.contains(said), "{error}");
        }
    }
    // A new seed is all it takes.
    let renewed = party.authority.chain("a-new-seed");
    echo(&replica(&party, &renewed, &rows(&database).await)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_the_store_a_chain_goes_on_116() {
    let (party, database) = (Party::new().await, database().await);
    let oauth = party.authority.chain("the-seed");
    echo(&replica(&party, &oauth, &rows(&database).await)).await.unwrap();
    party.authority.state.revoke_access();
    echo(&replica(&party, &oauth, &rows(&database).await)).await.unwrap();
    assert_eq!((party.asked(), party.reuses()), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_refresh_keeps_its_lease_and_peers_wait_for_it_116() {
    let (party, database) = (Party::new().await, database().await);
    let oauth = party.authority.chain("the-seed");
    party.authority.state.faults.hold.store(true, Relaxed);
    let (one, other) = (rows(&database).await, rows(&database).await);
    let calls = [replica(&party, &oauth, &one), replica(&party, &oauth, &other)]
        .map(|upstream| tokio::spawn(async move { echo(&upstream).await }));
    let began = std::time::Instant::now();
    wait::until("two leases would be over", || async { began.elapsed() > Duration::from_secs(5) }).await;
    assert_eq!(party.asked(), 1, "only one of them asks");
    party.authority.state.release();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(party.asked(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_the_answer_and_stores_it_116() {
    use mcp_taskd_core::upstream::{Factory, Options};

    let (party, database) = (Party::new().await, database().await);
    let oauth = party.authority.chain("the-seed");
    party.authority.state.faults.hold_answer.store(true, Relaxed);
    let chains = kept_in(&rows(&database).await, &[KEY]);
    let factory = Factory::new(&Options { chains: Some(chains), ..Options::new("unused") }).unwrap();
    let extensions = crate::setup::extensions(&party.definition(&oauth));
    let upstream = factory.open(&extensions.servers["s"], &extensions).unwrap();
    let call = tokio::spawn(async move { echo(&upstream).await });
    until("a token is granted", || party.asked() == 1).await;
    call.abort();
    let settling = tokio::spawn(async move { factory.settle().await });
    party.authority.state.release();
    settling.await.unwrap();
    echo(&replica(&party, &oauth, &rows(&database).await)).await.unwrap();
    assert_eq!((party.asked(), party.reuses()), (1, 0), "what was under way is there for the next");
}
