//! API keys, on every store.

use mcp_taskd_core::store::memory::MemoryStore;
use mcp_taskd_core::store::{ApiKeyRecord, ApiKeys, Page, StoreErrorKind};

use crate::bench::{Bench, T0};

const MINUTE: i64 = 60_000;

fn key(id: &str, created_at: i64) -> ApiKeyRecord {
    ApiKeyRecord {
        id: id.into(),
        user_id: "ada".into(),
        scopes: "tasks act-as".into(),
        secret_hash: "0f".repeat(32),
        created_at,
        expires_at: (id == "b").then_some(T0 + MINUTE),
        last_used_at: None,
        revoked_at: None,
    }
}

async fn ids(store: &impl ApiKeys, limit: u32, after: Option<(i64, &str)>) -> Vec<String> {
    let page = Page { limit, after: after.map(|(at, id)| (at, id.to_owned())) };
    store.list_keys(&page).await.unwrap().into_iter().map(|key| key.id).collect()
}

async fn keys_are_kept_found_revoked_and_touched(store: &impl ApiKeys) {
    for (id, at) in [("a", T0), ("b", T0 + 1), ("c", T0 + 1)] {
        store.insert_key(&key(id, at)).await.unwrap();
    }
    assert_eq!(store.insert_key(&key("a", T0)).await.unwrap_err().kind, StoreErrorKind::Data, "an id is given once");
    let long = ApiKeyRecord { user_id: "u".repeat(256), ..key("d", T0) };
    assert_eq!(store.insert_key(&long).await.unwrap_err().kind, StoreErrorKind::Data);
    let zero = ApiKeyRecord { user_id: "a\0".into(), ..key("d", T0) };
    assert_eq!(store.insert_key(&zero).await.unwrap_err().kind, StoreErrorKind::Data);

    assert_eq!(store.find_key("b").await.unwrap(), Some(key("b", T0 + 1)));
    for nobody in ["d", "", "A", "a\0"] {
        assert_eq!(store.find_key(nobody).await.unwrap(), None, "{nobody:?}");
        assert_eq!(store.revoke_key(nobody, T0).await.unwrap(), None, "{nobody:?}");
    }
    assert_eq!(ids(store, 10, None).await, ["c", "b", "a"]);
    assert_eq!(ids(store, 2, None).await, ["c", "b"]);
    assert_eq!(ids(store, 2, Some((T0 + 1, "b"))).await, ["a"]);

    let revoked = store.revoke_key("a", T0 + 5).await.unwrap().unwrap();
    assert_eq!(revoked.revoked_at, Some(T0 + 5));
    let again = store.revoke_key("a", T0 + 9).await.unwrap().unwrap();
    assert_eq!(again.revoked_at, Some(T0 + 5), "the first revocation counts");
    assert_eq!(store.find_key("c").await.unwrap().unwrap().revoked_at, None);

    let used = async |at| {
        store.touch_key("c", at, MINUTE).await.unwrap();
        store.find_key("c").await.unwrap().unwrap().last_used_at
    };
    assert_eq!(used(T0).await, Some(T0));
    assert_eq!(used(T0 + MINUTE - 1).await, Some(T0), "less than a minute later there is no write");
    assert_eq!(used(T0 + MINUTE).await, Some(T0 + MINUTE));
    assert_eq!(used(T0).await, Some(T0 + MINUTE), "a replica whose clock is behind does not turn it back");
    store.touch_key("nobody", T0, MINUTE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn api_keys_are_kept_on_every_store() {
    keys_are_kept_found_revoked_and_touched(&MemoryStore::new(std::sync::Arc::new(mcp_taskd_core::clock::SystemClock)))
        .await;
    for bench in [Bench::sqlite().await, Bench::postgres().await] {
        keys_are_kept_found_revoked_and_touched(bench.sql()).await;
    }
}
