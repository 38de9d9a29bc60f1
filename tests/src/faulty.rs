//! A store in front of another that loses answers, executes late, or is away: what a network does to commits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use mcp_taskd_core::clock::Millis;
use mcp_taskd_core::store::{
    Applied, CancelRequest, ClaimOrder, EventRecord, Heartbeat, Inserted, Intents, Leases, NewHandle, NewIntent, Owned,
    Page, Queries, Recorded, Registry, Result, RowState, SharedStore, StoreError, StoreErrorKind, StoreStats,
    TaskFilter, TaskWrite, WorkerId, WorkerInfo, Workers,
};
use mcp_taskd_core::task::{TaskRecord, Tracked};

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is not executed, and the caller knows.
    Away,
    /// It is executed, and the answer is lost.
    AnswerLost,
    /// It is not executed, and the caller cannot know.
    StatementLost,
    /// The caller is told at once that nobody knows; it is executed this much later.
    Late(Duration),
    /// It is executed at once, and the answer takes this long.
    Slow(Duration),
    /// It is not executed: the store refuses the values.
    Refused,
}

/// The store with its faults.
pub struct Faulty {
    inner: SharedStore,
    faults: Mutex<HashMap<&'static str, Vec<Fault>>>,
    calls: Mutex<HashMap<&'static str, usize>>,
    largest: AtomicUsize,
    ahead_ms: AtomicI64,
}

impl Faulty {
    /// A store that behaves until told otherwise.
    pub fn new(inner: SharedStore) -> Arc<Self> {
        Arc::new(Self {
            inner,
            faults: Mutex::default(),
            calls: Mutex::default(),
            largest: AtomicUsize::new(usize::MAX),
            ahead_ms: AtomicI64::new(0),
        })
    }

    /// Larger batches of writes meet the store's time-out.
    pub fn at_most(&self, writes: usize) {
        self.largest.store(writes, Ordering::SeqCst);
    }

    /// The store's clock, as heartbeats tell it, is ahead by this much.
    pub fn ahead(&self, by: Duration) {
        self.ahead_ms.store(i64::try_from(by.as_millis()).expect("a clock's reach"), Ordering::SeqCst);
    }

    /// The next calls of `operation` meet these faults, in this order.
    pub fn next(&self, operation: &'static str, faults: impl IntoIterator<Item = Fault>) {
        self.faults.lock().unwrap().entry(operation).or_default().extend(faults);
    }

    /// How often `operation` was called.
    pub fn calls(&self, operation: &'static str) -> usize {
        self.calls.lock().unwrap().get(operation).copied().unwrap_or_default()
    }

    async fn meet<T, F>(&self, operation: &'static str, call: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        *self.calls.lock().unwrap().entry(operation).or_default() += 1;
        let fault = {
            let mut faults = self.faults.lock().unwrap();
            faults.get_mut(operation).filter(|faults| !faults.is_empty()).map(|faults| faults.remove(0))
        };
        let unknown = || Err(StoreError::new(StoreErrorKind::Unknown, operation, "the connection was lost"));
        match fault {
            None => call.await,
            Some(Fault::Away) => Err(StoreError::new(StoreErrorKind::Unavailable, operation, "the store is away")),
            Some(Fault::AnswerLost) => {
                call.await?;
                unknown()
            }
            Some(Fault::StatementLost) => unknown(),
            Some(Fault::Slow(by)) => {
                let answer = call.await;
                tokio::time::sleep(by).await;
                answer
            }
            Some(Fault::Refused) => Err(StoreError::new(StoreErrorKind::Data, operation, "a value is refused")),
            Some(Fault::Late(after)) => {
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    // Whatever comes of it, nobody is there to be told.
                    let _ = call.await;
                });
                unknown()
            }
        }
    }
}

#[async_trait]
impl Registry for Faulty {
    async fn register(&self, worker: &WorkerInfo) -> Result<Millis> {
        let (inner, worker) = (Arc::clone(&self.inner), worker.clone());
        self.meet("register", async move { inner.register(&worker).await }).await
    }

    async fn heartbeat(&self, worker: &WorkerId, held: i64) -> Result<Heartbeat> {
        let (inner, worker) = (Arc::clone(&self.inner), Arc::clone(worker));
        let answer = self.meet("heartbeat", async move { inner.heartbeat(&worker, held).await }).await?;
        let ahead_ms = self.ahead_ms.load(Ordering::SeqCst);
        Ok(match answer {
            Heartbeat::Renewed { now_ms } => Heartbeat::Renewed { now_ms: now_ms + ahead_ms },
            Heartbeat::Refused => Heartbeat::Refused,
        })
    }

    async fn workers(&self) -> Result<Workers> {
        self.inner.workers().await
    }

    async fn mark_dead(&self, marker: &WorkerId, target: &WorkerId, heartbeat_count: Option<i64>) -> Result<bool> {
        self.inner.mark_dead(marker, target, heartbeat_count).await
    }

    async fn free_dead(&self, now: Millis, limit: u32, spread_ms: i64) -> Result<u64> {
        let inner = Arc::clone(&self.inner);
        self.meet("free_dead", async move { inner.free_dead(now, limit, spread_ms).await }).await
    }

    async fn delete_dead(&self) -> Result<u64> {
        self.inner.delete_dead().await
    }

    async fn prune(&self, ended_before: Millis, limit: u32) -> Result<u64> {
        self.inner.prune(ended_before, limit).await
    }
}

#[async_trait]
impl Leases for Faulty {
    async fn claim(&self, order: &ClaimOrder) -> Result<Vec<Tracked>> {
        let (inner, order) = (Arc::clone(&self.inner), order.clone());
        let operation = if order.cancels { "claim_cancels" } else { "claim" };
        self.meet(operation, async move { inner.claim(&order).await }).await
    }

    async fn owned(&self, worker: &WorkerId) -> Result<Vec<Owned>> {
        let (inner, worker) = (Arc::clone(&self.inner), Arc::clone(worker));
        self.meet("owned", async move { inner.owned(&worker).await }).await
    }

    async fn load_owned(&self, worker: &WorkerId, ids: &[Arc<str>]) -> Result<Vec<Tracked>> {
        self.inner.load_owned(worker, ids).await
    }

    async fn apply(&self, worker: &WorkerId, writes: &[TaskWrite]) -> Result<Vec<Applied>> {
        if writes.len() > self.largest.load(Ordering::SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "apply", "statement timeout"));
        }
        let (inner, worker, writes) = (Arc::clone(&self.inner), Arc::clone(worker), writes.to_vec());
        self.meet("apply", async move { inner.apply(&worker, &writes).await }).await
    }

    async fn inspect(&self, ids: &[Arc<str>]) -> Result<Vec<RowState>> {
        let (inner, ids) = (Arc::clone(&self.inner), ids.to_vec());
        self.meet("inspect", async move { inner.inspect(&ids).await }).await
    }
}

#[async_trait]
impl Intents for Faulty {
    async fn insert_intent(&self, intent: &NewIntent) -> Result<Inserted> {
        let (inner, intent) = (Arc::clone(&self.inner), intent.clone());
        self.meet("insert_intent", async move { inner.insert_intent(&intent).await }).await
    }

    async fn record_submitted(&self, handle: &NewHandle) -> Result<Recorded> {
        let (inner, handle) = (Arc::clone(&self.inner), handle.clone());
        self.meet("record_submitted", async move { inner.record_submitted(&handle).await }).await
    }

    async fn discard_intent(&self, worker: &WorkerId, id: &str, epoch: i64) -> Result<bool> {
        let (inner, worker, id) = (Arc::clone(&self.inner), Arc::clone(worker), id.to_owned());
        self.meet("discard_intent", async move { inner.discard_intent(&worker, &id, epoch).await }).await
    }

    async fn close_freed_intent(&self, write: &TaskWrite) -> Result<bool> {
        self.inner.close_freed_intent(write).await
    }

    async fn is_tracked(&self, server_name: &str, remote_task_id: &str) -> Result<bool> {
        self.inner.is_tracked(server_name, remote_task_id).await
    }

    async fn request_cancel(&self, request: &CancelRequest, now: Millis) -> Result<Option<TaskRecord>> {
        self.inner.request_cancel(request, now).await
    }

    async fn make_due(&self, id: &str, now: Millis) -> Result<Option<TaskRecord>> {
        self.inner.make_due(id, now).await
    }
}

#[async_trait]
impl Queries for Faulty {
    async fn find_task(&self, id: &str, user_id: Option<&str>, thread_id: Option<&str>) -> Result<Option<TaskRecord>> {
        self.inner.find_task(id, user_id, thread_id).await
    }

    async fn list_tasks(&self, filter: &TaskFilter, page: &Page) -> Result<Vec<TaskRecord>> {
        self.inner.list_tasks(filter, page).await
    }

    async fn list_events(&self, after: i64, filter: &TaskFilter, limit: u32) -> Result<Vec<EventRecord>> {
        self.inner.list_events(after, filter, limit).await
    }

    async fn stats(&self, now: Millis, degraded_after: i64, cap: i64) -> Result<StoreStats> {
        self.inner.stats(now, degraded_after, cap).await
    }

    async fn ping(&self) -> Result<()> {
        self.inner.ping().await
    }

    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    async fn schema_version(&self) -> Result<(i64, Option<i64>)> {
        self.inner.schema_version().await
    }
}
