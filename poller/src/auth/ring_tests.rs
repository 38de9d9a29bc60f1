//! Keys that were verified, on paused time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;
use mcp_taskd_core::clock::{ManualClock, Millis};
use mcp_taskd_core::store::memory::MemoryStore;
use mcp_taskd_core::store::{Page, Result as StoreResult, StoreError, StoreErrorKind};

use super::*;
use crate::auth::{NewKey, issue};

const NOW: i64 = 1_800_000_000_000;

/// A register that counts its reads and may be away.
struct Counting {
    inner: MemoryStore,
    reads: AtomicUsize,
    away: AtomicBool,
}

#[async_trait]
impl ApiKeys for Counting {
    async fn insert_key(&self, key: &ApiKeyRecord) -> StoreResult<()> {
        self.inner.insert_key(key).await
    }

    async fn find_key(&self, id: &str) -> StoreResult<Option<ApiKeyRecord>> {
        self.reads.fetch_add(1, Relaxed);
        if self.away.load(Relaxed) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "find_key", "away"));
        }
        self.inner.find_key(id).await
    }

    async fn list_keys(&self, page: &Page) -> StoreResult<Vec<ApiKeyRecord>> {
        self.inner.list_keys(page).await
    }

    async fn revoke_key(&self, id: &str, at: Millis) -> StoreResult<Option<ApiKeyRecord>> {
        self.inner.revoke_key(id, at).await
    }

    async fn touch_key(&self, id: &str, at: Millis, every_ms: i64) -> StoreResult<()> {
        self.inner.touch_key(id, at, every_ms).await
    }
}

struct Bench {
    store: Arc<Counting>,
    clock: Arc<ManualClock>,
    ring: Ring,
}

impl Bench {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::at(NOW));
        let inner = MemoryStore::new(Arc::<ManualClock>::clone(&clock));
        let store = Arc::new(Counting { inner, reads: AtomicUsize::new(0), away: AtomicBool::new(false) });
        let ring = Ring::new(Arc::<Counting>::clone(&store), Arc::<ManualClock>::clone(&clock));
        Self { store, clock, ring }
    }

    async fn key(&self, expires_in_seconds: Option<u64>) -> ApiKey {
        let order = NewKey { user_id: "ada".into(), scopes: vec!["tasks".into()], expires_in_seconds };
        issue(&*self.store, &order, NOW).await.unwrap().0
    }

    async fn verify(&self, key: &ApiKey) -> Result<Verified, Denied> {
        self.ring.verify(key.expose()).await
    }

    fn reads(&self) -> usize {
        self.store.reads.load(Relaxed)
    }
}

fn refused(reason: Reason) -> Result<Verified, Denied> {
    Err(Denied::Unauthenticated(reason))
}

#[tokio::test(start_paused = true)]
async fn a_key_is_its_users_and_costs_a_read_every_few_seconds() {
    let bench = Bench::new();
    let key = bench.key(None).await;
    for _ in 0..100 {
        let verified = bench.verify(&key).await.unwrap();
        assert_eq!((&*verified.identity.user_id, &*verified.subject), ("ada", key.id()));
        assert!(verified.identity.scopes.tasks && !verified.identity.scopes.admin && !verified.identity.act_as);
    }
    assert_eq!(bench.reads(), 1);
    tokio::time::advance(FRESH).await;
    for _ in 0..100 {
        bench.verify(&key).await.unwrap();
    }
    assert_eq!(bench.reads(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_secret_and_an_id_that_nobody_has_get_the_same_answer() {
    let bench = Bench::new();
    let key = bench.key(None).await;
    let stranger = ApiKey::generate().unwrap();
    assert_eq!(bench.verify(&stranger).await, refused(Reason::Unknown));
    // The id of one key with the secret of another, and the checksum that belongs to that.
    let mixed = ApiKey::forged(key.id(), &stranger);
    assert_eq!(bench.verify(&mixed).await, refused(Reason::Unknown));
    assert_eq!(bench.ring.verify("mtk_nonsense").await, refused(Reason::Malformed));
    assert!(bench.verify(&key).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_revocation_counts_within_what_is_promised_and_an_expiry_at_once() {
    let bench = Bench::new();
    let (key, brief) = (bench.key(None).await, bench.key(Some(60)).await);
    bench.verify(&key).await.unwrap();
    bench.store.revoke_key(key.id(), NOW).await.unwrap();
    let started = Instant::now();
    while bench.verify(&key).await.is_ok() {
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    assert_eq!(bench.verify(&key).await, refused(Reason::Revoked));
    assert!(started.elapsed() <= FRESH && FRESH < STALE && STALE + Duration::from_secs(2) <= Duration::from_secs(10));

    bench.verify(&brief).await.unwrap();
    bench.clock.advance(Duration::from_mins(1));
    assert_eq!(bench.verify(&brief).await, refused(Reason::Expired));
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_what_is_known_counts_for_a_moment_and_then_nothing() {
    let bench = Bench::new();
    let (key, other) = (bench.key(None).await, bench.key(None).await);
    bench.verify(&key).await.unwrap();
    bench.store.away.store(true, Relaxed);
    assert_eq!(bench.verify(&other).await, Err(Denied::Unavailable), "never seen here");
    tokio::time::advance(FRESH + Duration::from_secs(1)).await;
    assert!(bench.verify(&key).await.is_ok());
    tokio::time::advance(STALE).await;
    assert_eq!(bench.verify(&key).await, Err(Denied::Unavailable));
    bench.store.away.store(false, Relaxed);
    assert!(bench.verify(&key).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_use_is_noted_about_once_a_minute() {
    let bench = Bench::new();
    let key = bench.key(None).await;
    let noted = async || {
        tokio::task::yield_now().await;
        bench.store.find_key(key.id()).await.unwrap().unwrap().last_used_at
    };
    bench.verify(&key).await.unwrap();
    assert_eq!(noted().await, Some(NOW));
    bench.clock.advance(Duration::from_millis(59_999));
    bench.verify(&key).await.unwrap();
    assert_eq!(noted().await, Some(NOW));
    bench.clock.advance(Duration::from_millis(1));
    bench.verify(&key).await.unwrap();
    assert_eq!(noted().await, Some(NOW + TOUCH_MS));
}

#[tokio::test(start_paused = true)]
async fn what_is_remembered_is_bounded() {
    let bench = Bench::new();
    let record = bench.store.find_key(bench.key(None).await.id()).await.unwrap().unwrap();
    for at in 0..MAX_KEYS + 10 {
        bench.ring.remember(&at.to_string(), Some(&record), Instant::now());
    }
    assert_eq!(bench.ring.entries().len(), MAX_KEYS);
}
