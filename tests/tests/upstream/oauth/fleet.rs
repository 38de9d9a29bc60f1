//! Replicas that need a new token at the same moment (BEHAVIOURS 112, 116).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use mcp_taskd_core::store::TokenChains;
use mcp_taskd_core::store::sql::SqlStore;
use mcp_taskd_core::upstream::SharedUpstream;
use mcp_taskd_tests::{postgres, wait};

use super::setup::{KEY, Party, echo, kept_in};

const REPLICAS: usize = 3;
const CALLS: usize = 1_000;

/// Replicas of one chain, each with a store and a memory of its own.
async fn replicas(party: &Party, database: &postgres::TestDatabase) -> Vec<SharedUpstream> {
    let oauth = party.authority.chain("the-seed");
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        let store = SqlStore::connect_postgres(database.url(), 4).await.unwrap();
        store.migrate().await.unwrap();
        let rows: Arc<dyn TokenChains> = Arc::new(store);
        replicas.push(party.replica(&oauth, Some(kept_in(&rows, &[KEY]))));
    }
    replicas
}

async fn all_call(replicas: &[SharedUpstream]) {
    let calls = (0..CALLS).map(|at| {
        let upstream = Arc::clone(&replicas[at % REPLICAS]);
        tokio::spawn(async move { echo(&upstream).await })
    });
    for answered in join_all(calls).await {
        answered.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_calls_at_a_tokens_end_on_three_replicas_ask_for_one_token_116() {
    let (party, database) = (Party::new().await, postgres::database().await);
    let replicas = replicas(&party, &database).await;
    party.authority.state.lifetime.store(62, Relaxed);
    all_call(&replicas).await;
    assert_eq!(party.asked(), 1, "the first token");
    let granted = Instant::now();
    party.authority.state.lifetime.store(3_600, Relaxed);
    wait::until("the token is due", || async { granted.elapsed() > Duration::from_millis(2_100) }).await;
    all_call(&replicas).await;
    assert_eq!((party.asked(), party.reuses()), (2, 0));
    assert_eq!(party.calls(), 2 * CALLS as u64);
    assert_eq!(party.authority.state.refusals.load(Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_refused_on_three_replicas_at_once_is_replaced_by_one_116() {
    let (party, database) = (Party::new().await, postgres::database().await);
    let replicas = replicas(&party, &database).await;
    all_call(&replicas).await;
    for round in 2..5 {
        party.authority.state.revoke_access();
        all_call(&replicas).await;
        assert_eq!((party.asked(), party.reuses()), (round, 0));
    }
    assert_eq!(party.calls(), 4 * CALLS as u64, "each ran once");
}
