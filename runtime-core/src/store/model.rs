//! What goes into a store and comes out of it.

use std::sync::Arc;

use crate::clock::Millis;
use crate::task::{Binding, Change, Status, TaskRecord, Tracked};

/// A worker incarnation's id: fresh at each start.
pub type WorkerId = Arc<str>;

/// What a worker says of itself when it registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Host and random part, unique for each start (56).
    pub id: WorkerId,
    /// The machine's name.
    pub host: String,
    /// The process id.
    pub pid: i64,
    /// `all`, `gateway` or `worker`.
    pub role: String,
    /// This program's version.
    pub version: String,
    /// How long its lease lasts from each heartbeat.
    pub lease_ms: i64,
    /// Whether it polls tasks.
    pub polls: bool,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heartbeat {
    /// The lease is renewed.
    Renewed {
        /// The store's time.
        now_ms: Millis,
    },
    /// The worker is dead or unknown: it owns nothing any more.
    Refused,
}

/// A worker's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRecord {
    /// What it said of itself.
    pub info: WorkerInfo,
    /// Whether it is live; dead is absorbing.
    pub live: bool,
    /// Counts heartbeats, so that an observer can tell whether one happened.
    pub heartbeat_count: i64,
    /// When its lease ends, by the store's clock.
    pub lease_expires_at: Millis,
    /// When it registered.
    pub started_at: Millis,
    /// How many tasks it held at its last heartbeat.
    pub held: i64,
}

/// All workers, as of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workers {
    /// The store's time.
    pub now_ms: Millis,
    /// The rows.
    pub rows: Vec<WorkerRecord>,
}

/// What is due, or leased, longer than this from now is so by the mistake of a clock: a due time is 24 hours away at most
/// (BEHAVIOURS 13), and the rest is for jitter and for clocks that are corrected by an hour.
pub const FAR_AHEAD_MS: Millis = 25 * 3_600_000;

/// What a clock that had jumped left behind, and what has been corrected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Corrected {
    /// The tasks that were due absurdly late.
    pub tasks: Vec<String>,
    /// The workers whose lease ended absurdly late.
    pub workers: Vec<String>,
}

/// What a worker may claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimOrder {
    /// For whom.
    pub worker: WorkerId,
    /// Tasks whose cancel was requested, or the others; the two never mix.
    pub cancels: bool,
    /// Servers it has, and room for.
    pub servers: Vec<String>,
    /// Every server it has: rows of those not listed above are left alone, however long they wait.
    pub known: Vec<String>,
    /// The drivers it has: what another driver made is as good as of a server it does not have.
    pub drivers: Vec<String>,
    /// Rows due up to this time.
    pub due_before: Millis,
    /// Also rows of servers in neither list, and of other drivers, if due before this time: overdue by a lease, so that nothing stays
    /// invisible. `None` for the listed servers alone, which costs the same however much waits of others.
    pub any_server_due_before: Option<Millis>,
    /// How many at most.
    pub limit: u32,
}

/// A row that names a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// The task.
    pub id: Arc<str>,
    /// Its version.
    pub epoch: i64,
    /// Its status; `None` for one this binary does not know.
    pub status: Option<Status>,
}

/// A guarded write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskWrite {
    /// The task.
    pub id: Arc<str>,
    /// The version it must still have.
    pub epoch: i64,
    /// The new values.
    pub change: Change,
}

/// What became of a guarded write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// The row has this epoch now.
    Done {
        /// The new version.
        epoch: i64,
    },
    /// The row is not as it was: owned by another, changed, ended or gone. Nothing was written.
    Stale,
}

/// The guard columns of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowState {
    /// The task.
    pub id: Arc<str>,
    /// Who owns it.
    pub owner: Option<WorkerId>,
    /// Its version.
    pub epoch: i64,
    /// Its status; `None` for one this binary does not know.
    pub status: Option<Status>,
    /// The server's id, once recorded.
    pub remote_task_id: Option<String>,
}

/// A submit, before the server is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewIntent {
    /// The local id.
    pub id: Arc<str>,
    /// The submitting process, which must be live.
    pub worker: WorkerId,
    /// The owner.
    pub user_id: String,
    /// The owner's thread.
    pub thread_id: String,
    /// The caller's run.
    pub run_id: Option<String>,
    /// The caller's tool call.
    pub tool_call_id: Option<String>,
    /// Server and tools.
    pub binding: Arc<Binding>,
    /// The caller's idempotency key.
    pub idempotency_key: Option<String>,
    /// The hash of the body, where there is a key.
    pub body_hash: Option<String>,
    /// The arguments, for an idempotent resubmit.
    pub arguments: Option<String>,
    /// When a resolver may look at it, once a takeover has freed it.
    pub next_due_at: Millis,
    /// Now.
    pub created_at: Millis,
}

/// What became of inserting an intent.
#[derive(Debug, Clone, PartialEq)]
pub enum Inserted {
    /// It is durable, at this epoch.
    New {
        /// The row's version.
        epoch: i64,
    },
    /// The key was used before; this is its row. The caller compares `body_hash`.
    Existing(Box<TaskRecord>),
    /// The worker's row is not live: nothing was inserted.
    NotLive,
}

/// A remote id to record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewHandle {
    /// The worker that owns the intent.
    pub worker: WorkerId,
    /// The task.
    pub id: Arc<str>,
    /// The intent's version.
    pub epoch: i64,
    /// The server's id of the task.
    pub remote_task_id: String,
    /// When its first poll is due.
    pub next_due_at: Millis,
    /// Whether the worker will poll it itself.
    pub keep: bool,
    /// Now.
    pub at: Millis,
}

/// What became of recording a remote id.
#[derive(Debug, Clone, PartialEq)]
pub enum Recorded {
    /// It is recorded; the row is this now.
    Done {
        /// The row.
        task: Box<Tracked>,
        /// Whether the worker owns it still.
        kept: bool,
    },
    /// The same user has another task with this remote id (41).
    Duplicate,
    /// The intent is not the worker's any more, or has ended, or is gone. Nothing was written.
    Stale,
}

/// A cancel request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelRequest {
    /// The task.
    pub id: String,
    /// Its user, where the caller is bound to one.
    pub user_id: Option<String>,
    /// Its thread, where the caller is bound to one.
    pub thread_id: Option<String>,
}

/// Which tasks or events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskFilter {
    /// Of this user.
    pub user_id: Option<String>,
    /// In this thread.
    pub thread_id: Option<String>,
    /// In this status.
    pub status: Option<Status>,
    /// Not ended.
    pub active_only: bool,
    /// Whose id or task name is this, without regard to case for the name.
    pub named: Option<String>,
}

/// A page of a list that is ordered newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// How many at most.
    pub limit: u32,
    /// After this (`created_at`, id).
    pub after: Option<(Millis, String)>,
}

/// An event's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// Its place in the order of events.
    pub sequence: i64,
    /// The task.
    pub task_id: String,
    /// Its user.
    pub user_id: String,
    /// Its thread.
    pub thread_id: String,
    /// What happened (153).
    pub kind: String,
    /// The status the task took.
    pub status: String,
    /// When.
    pub created_at: Millis,
}

/// Figures for metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Tasks by status.
    pub tasks: Vec<(String, i64)>,
    /// Tasks with degraded tracking, by server.
    pub degraded: Vec<(String, i64)>,
    /// Tasks that are due and unowned.
    pub due: i64,
    /// When the one that waits longest was due.
    pub oldest_due_at: Option<Millis>,
    /// Live workers.
    pub workers_live: i64,
    /// Live workers that poll.
    pub workers_polling: i64,
    /// Tasks that have not ended.
    pub active: i64,
    /// Rows that were given back because they cannot be decoded, up to 100.
    pub quarantined: Vec<Quarantined>,
    /// How much the store takes on disk: SQLite's file, or PostgreSQL's tables and indexes of tasks and events.
    pub size_bytes: i64,
    /// How much of that SQLite has left of deleted rows, and takes first for new ones; 0 on PostgreSQL, which does not tell.
    pub free_bytes: i64,
    /// How large SQLite's write-ahead log is, which a reader that stays open lets grow (FAILURES 16); 0 where there is none.
    pub log_bytes: i64,
}

/// A row that cannot be decoded, and that no worker looks at again before long (FAILURES 27).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// The task.
    pub task_id: String,
    /// The column of `mcp_tasks` that is wrong.
    pub column: String,
    /// What is wrong with it.
    pub reason: String,
}
