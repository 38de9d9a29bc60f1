//! Generations that a fleet shares (BEHAVIOURS 97).

use mcp_taskd_core::store::SharedState;
use mcp_taskd_core::store::memory::MemoryStore;

use crate::bench::Bench;

async fn each_name_has_its_own_and_it_grows(store: &impl SharedState) {
    assert_eq!(store.generation("a").await.unwrap(), 0);
    assert_eq!(store.next_generation("a").await.unwrap(), 1);
    assert_eq!(store.next_generation("b").await.unwrap(), 1);
    let (one, other) = tokio::join!(store.next_generation("a"), store.next_generation("a"));
    let mut grown = [one.unwrap(), other.unwrap()];
    grown.sort_unstable();
    assert_eq!(grown, [2, 3], "none is given twice");
    assert_eq!((store.generation("a").await.unwrap(), store.generation("b").await.unwrap()), (3, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn generations_grow_by_name_on_every_store_97() {
    each_name_has_its_own_and_it_grows(&MemoryStore::new(std::sync::Arc::new(mcp_taskd_core::clock::SystemClock)))
        .await;
    for bench in [Bench::sqlite().await, Bench::postgres().await] {
        each_name_has_its_own_and_it_grows(bench.sql()).await;
    }
}
