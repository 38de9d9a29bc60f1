//! Chains of OAuth tokens that a fleet continues together (BEHAVIOURS 116).

use std::sync::Arc;

use mcp_taskd_core::clock::SystemClock;
use mcp_taskd_core::store::memory::MemoryStore;
use mcp_taskd_core::store::{ChainKey, SealedTokens, TokenChains};
use mcp_taskd_tests::wait;

use crate::bench::Bench;

const LEASE: i64 = 60_000;

fn key(server: &str) -> ChainKey {
    ChainKey { server_name: server.to_owned(), fingerprint: "f".to_owned() }
}

fn tokens<'a>(holder: &'a str, version: i64, sealed: &'a str) -> SealedTokens<'a> {
    SealedTokens { holder, version, sealed, remaining_ms: 3_600_000 }
}

async fn one_at_a_time_may_refresh(store: &dyn TokenChains) {
    let key = key("lease");
    assert_eq!(store.find_chain(&key).await.unwrap(), None);
    let claims = ["a", "b", "c", "d"].map(|holder| store.claim_refresh(&key, holder, LEASE));
    let claims = futures_util::future::join_all(claims).await;
    let granted: Vec<_> = claims.into_iter().filter_map(Result::unwrap).collect();
    assert_eq!(granted.len(), 1);
    assert_eq!((granted[0].version, &granted[0].sealed, granted[0].interrupted), (0, &None, false));

    let other = ChainKey { fingerprint: "g".to_owned(), ..key.clone() };
    assert!(store.claim_refresh(&other, "x", LEASE).await.unwrap().is_some(), "another chain is another right");
    assert!(store.renew_refresh(&other, "x", LEASE).await.unwrap());
    assert!(!store.renew_refresh(&other, "y", LEASE).await.unwrap(), "it is not theirs");
    store.release_refresh(&other, "y", true).await.unwrap();
    assert!(store.claim_refresh(&other, "y", LEASE).await.unwrap().is_none(), "nor theirs to give back");
    assert!(store.claim_refresh(&other, "x", LEASE).await.unwrap().is_some(), "its holder may ask again");
    store.release_refresh(&other, "x", false).await.unwrap();
    let row = store.claim_refresh(&other, "y", LEASE).await.unwrap().unwrap();
    assert!(!row.interrupted, "it was given back in order");
    store.release_refresh(&other, "y", true).await.unwrap();
    assert!(store.find_chain(&other).await.unwrap().unwrap().interrupted, "an answer is lost");
}

async fn a_lease_ends_by_itself_and_tells_that_its_holder_vanished(store: &dyn TokenChains) {
    let key = key("vanished");
    assert!(store.claim_refresh(&key, "a", 300).await.unwrap().is_some());
    assert!(store.claim_refresh(&key, "b", LEASE).await.unwrap().is_none());
    wait::until("the lease is over", || async { store.claim_refresh(&key, "b", LEASE).await.unwrap().is_some() }).await;
    assert!(store.find_chain(&key).await.unwrap().unwrap().interrupted);
    assert!(!store.renew_refresh(&key, "a", LEASE).await.unwrap(), "it is another's now");
    assert!(store.save_chain(&key, tokens("b", 1, "sealed")).await.unwrap());
    assert!(!store.find_chain(&key).await.unwrap().unwrap().interrupted, "new tokens make up for it");
}

async fn tokens_are_saved_by_version_whoever_holds_the_lease(store: &dyn TokenChains) {
    let key = key("save");
    assert!(store.claim_refresh(&key, "a", LEASE).await.unwrap().is_some());
    assert!(store.save_chain(&key, tokens("a", 1, "one")).await.unwrap());
    let row = store.claim_refresh(&key, "b", LEASE).await.unwrap().expect("saving gives the right back");
    assert_eq!((row.version, row.sealed.as_deref()), (1, Some("one")));
    assert!((3_590_000..=3_600_000).contains(&row.remaining_ms), "{}", row.remaining_ms);

    assert!(store.save_chain(&key, tokens("a", 1, "one")).await.unwrap(), "the same again is the same");
    assert!(!store.save_chain(&key, tokens("c", 1, "other")).await.unwrap(), "another's of this version is kept");
    // One that lost its lease still has tokens that nobody else has.
    assert!(store.save_chain(&key, tokens("a", 2, "two")).await.unwrap());
    assert!(store.claim_refresh(&key, "c", LEASE).await.unwrap().is_none(), "the lease is b's as before");
    assert!(!store.save_chain(&key, tokens("b", 2, "late")).await.unwrap());
    assert!(!store.save_chain(&key, tokens("b", 1, "older")).await.unwrap());
    assert_eq!(store.find_chain(&key).await.unwrap().unwrap().sealed.as_deref(), Some("two"));

    let ended = SealedTokens { remaining_ms: -5, ..tokens("a", 3, "three") };
    assert!(store.save_chain(&key, ended).await.unwrap());
    assert!(store.find_chain(&key).await.unwrap().unwrap().remaining_ms < 0);
    let unknown = ChainKey { server_name: "unknown".to_owned(), ..key };
    assert!(store.save_chain(&unknown, tokens("a", 7, "seven")).await.unwrap(), "a deleted row is made anew");
}

async fn chains_of_servers_that_are_gone_are_deleted(store: &dyn TokenChains) {
    for server in ["kept", "gone"] {
        assert!(store.save_chain(&key(server), tokens("a", 1, "sealed")).await.unwrap());
    }
    store.retain_chains(&["kept".to_owned(), "new".to_owned()]).await.unwrap();
    assert!(store.find_chain(&key("kept")).await.unwrap().is_some());
    assert!(store.find_chain(&key("gone")).await.unwrap().is_none());
    assert_eq!(store.retain_chains(&[]).await.unwrap(), 1);
}

async fn all_of_it(store: &dyn TokenChains) {
    one_at_a_time_may_refresh(store).await;
    a_lease_ends_by_itself_and_tells_that_its_holder_vanished(store).await;
    tokens_are_saved_by_version_whoever_holds_the_lease(store).await;
    chains_of_servers_that_are_gone_are_deleted(store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chains_are_continued_by_one_at_a_time_on_every_store_116() {
    all_of_it(&MemoryStore::new(Arc::new(SystemClock))).await;
    let benches = [Some(Bench::sqlite().await), Some(Bench::postgres().await), Bench::pooled().await];
    for bench in benches.into_iter().flatten() {
        all_of_it(bench.sql()).await;
    }
}
