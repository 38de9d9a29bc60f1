//! The durable state: what is asked of a store, and two answers: SQL (SQLite, PostgreSQL) and memory (for tests).
//!
//! Rules every store keeps (one behaviour suite runs on all three):
//! - every write to a task row is guarded by owner and epoch, and bumps the epoch; a refused write is a value, not an error;
//! - a terminal status never changes; events are written in the transaction of their transition, for changed rows only;
//! - leases are judged by the store's clock; a dead worker stays dead, and its row stays until no task names it.

mod bounds;
mod deliveries;
mod error;
mod keys;
pub mod memory;
mod model;
mod shared;
pub mod sql;
mod tokens;
mod wakeup;

pub use deliveries::{
    Backlog, Deliveries, Delivery, DeliveryOrder, DeliveryState, EnrolTimes, Enrolment, Mending, Settlement,
};
pub use error::{StoreError, StoreErrorKind};
pub use keys::{ApiKeyRecord, ApiKeys};
pub use model::{
    Applied, CancelRequest, ClaimOrder, Corrected, EventRecord, FAR_AHEAD_MS, Heartbeat, Inserted, NewHandle,
    NewIntent, Owned, Page, Quarantined, Recorded, RowState, StoreStats, TaskFilter, TaskWrite, WorkerId, WorkerInfo,
    WorkerRecord, Workers,
};
pub use shared::SharedState;
pub use tokens::{ChainKey, ChainRow, SealedTokens, TokenChains};
pub use wakeup::{News, Wakeup, Wakeups};

use std::sync::Arc;

use async_trait::async_trait;

use crate::clock::Millis;
use crate::task::{TaskRecord, Tracked};

/// The result of every call to a store.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Everything the daemon asks of its store.
pub trait Store: Registry + Leases + Intents + Queries + Wakeups {}

impl<T: Registry + Leases + Intents + Queries + Wakeups> Store for T {}

/// A store shared by the parts of a process.
pub type SharedStore = Arc<dyn Store>;

/// The register of workers: one row an incarnation, one small update a heartbeat.
#[async_trait]
pub trait Registry: Send + Sync {
    /// Inserts a fresh, live worker row; returns the store's time.
    async fn register(&self, worker: &WorkerInfo) -> Result<Millis>;

    /// Renews the lease of a live worker: `lease_expires_at` = the store's time + its own `lease_ms`.
    ///
    /// Never inserts; a worker that is dead or unknown is refused.
    async fn heartbeat(&self, worker: &WorkerId, held: i64) -> Result<Heartbeat>;

    /// Every worker row, with the store's time.
    async fn workers(&self) -> Result<Workers>;

    /// Marks `target` dead if it still shows `heartbeat_count` (none: whatever it shows), and `marker` is live.
    ///
    /// Dead is absorbing. Returns whether the row changed. A worker marks itself with `marker == target`.
    async fn mark_dead(&self, marker: &WorkerId, target: &WorkerId, heartbeat_count: Option<i64>) -> Result<bool>;

    /// Frees at most `limit` rows owned by dead workers: no owner, epoch + 1, and due at
    /// max(stored, `now` + a random part of `spread_ms`). Returns how many.
    async fn free_dead(&self, now: Millis, limit: u32, spread_ms: i64) -> Result<u64>;

    /// Brings back what is dated further ahead of the store's clock than anything can be, because a clock had jumped: at most
    /// `limit` unowned, active rows due later than [`FAR_AHEAD_MS`] become due within `spread_ms`, epoch + 1, and the leases
    /// of live workers that end later than that end one lease from now (FAILURES 6). Returns the ids of both.
    async fn correct_far(&self, limit: u32, spread_ms: i64) -> Result<Corrected>;

    /// Deletes dead workers that no task row names, and frees what they had of deliveries. Returns how many.
    async fn delete_dead(&self) -> Result<u64>;

    /// Deletes at most `limit` tasks that ended before `ended_before`, oldest first, with their events and
    /// deliveries. Returns how many.
    async fn prune(&self, ended_before: Millis, limit: u32) -> Result<u64>;
}

/// Claims and the writes of an owner.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Takes unowned, active rows for a live worker, oldest due first, then by id, at most `order.limit`.
    ///
    /// Nothing is taken by a worker whose row is not live, checked in the same transaction.
    async fn claim(&self, order: &ClaimOrder) -> Result<Vec<Tracked>>;

    /// (id, epoch, status) of every row that names `worker`.
    async fn owned(&self, worker: &WorkerId) -> Result<Vec<Owned>>;

    /// Those of `ids` that `worker` owns, as they are now.
    async fn load_owned(&self, worker: &WorkerId, ids: &[Arc<str>]) -> Result<Vec<Tracked>>;

    /// Applies `writes` (each id once) in id order, each only where id, owner and epoch match and the status is not
    /// terminal; epoch + 1; events of changed rows in the same transaction. The answers are in the order given.
    ///
    /// A data error refuses the whole batch with [`StoreErrorKind::Data`]; the caller splits it.
    async fn apply(&self, worker: &WorkerId, writes: &[TaskWrite]) -> Result<Vec<Applied>>;

    /// The guard columns of rows, to learn what a write of unknown outcome did.
    async fn inspect(&self, ids: &[Arc<str>]) -> Result<Vec<RowState>>;
}

/// Submits and cancel requests: writes by processes that need not own the row.
#[async_trait]
pub trait Intents: Send + Sync {
    /// Inserts a row in `submitting`, owned by a live worker, or finds the one with the same idempotency key
    /// (scope: user and thread).
    async fn insert_intent(&self, intent: &NewIntent) -> Result<Inserted>;

    /// Records the remote id of an intent that the worker still owns at the given epoch: status `submitted`, event
    /// `submitted`, kept arguments cleared, epoch + 1. With `keep` the worker goes on owning the row, unless a cancel was
    /// requested meanwhile: then the row is freed, due at `at` as a cancel.
    async fn record_submitted(&self, handle: &NewHandle) -> Result<Recorded>;

    /// Deletes an intent that `worker` still owns at `epoch`; its key is free again. Returns whether it did.
    async fn discard_intent(&self, worker: &WorkerId, id: &str, epoch: i64) -> Result<bool>;

    /// Ends an intent that nobody owns and that still has no remote id, at `epoch`, with `write`. Returns whether it did.
    async fn close_freed_intent(&self, write: &TaskWrite) -> Result<bool>;

    /// Whether any row, of any user, carries this remote id.
    async fn is_tracked(&self, server_name: &str, remote_task_id: &str) -> Result<bool>;

    /// Records a cancel request on a task that is not terminal: timestamp of the first request kept; the first one also
    /// bumps the epoch, frees the row and makes it due at `now`, except in `submitting`, where it only sets the request.
    ///
    /// Returns the row as it then is; `None` where the user and thread (where given) have no such task.
    async fn request_cancel(&self, request: &CancelRequest, now: Millis) -> Result<Option<TaskRecord>>;

    /// Frees an active row with a remote id, epoch + 1, due at `now`. Returns the row as it then is.
    async fn make_due(&self, id: &str, now: Millis) -> Result<Option<TaskRecord>>;
}

/// Reads, bounded.
#[async_trait]
pub trait Queries: Send + Sync {
    /// One task, where user and thread (where given) own it.
    async fn find_task(&self, id: &str, user_id: Option<&str>, thread_id: Option<&str>) -> Result<Option<TaskRecord>>;

    /// Tasks, newest first.
    async fn list_tasks(&self, filter: &TaskFilter, page: &Page) -> Result<Vec<TaskRecord>>;

    /// Events after `after`, oldest first, at most `limit`.
    async fn list_events(&self, after: i64, filter: &TaskFilter, limit: u32) -> Result<Vec<EventRecord>>;

    /// Figures for metrics, each count bounded by `cap`.
    async fn stats(&self, now: Millis, degraded_after: i64, cap: i64) -> Result<StoreStats>;

    /// Whether wake-ups of other processes arrive here; `None` where nobody listens, or where there is nothing to hear.
    fn hears_others(&self) -> Option<bool> {
        None
    }

    /// Whether the store answers; used by readiness.
    async fn ping(&self) -> Result<()>;

    /// The backend's name: `memory`, `sqlite` or `postgres`.
    fn backend(&self) -> &'static str;

    /// The newest migration known to this binary, and the newest applied one.
    async fn schema_version(&self) -> Result<(i64, Option<i64>)>;
}
