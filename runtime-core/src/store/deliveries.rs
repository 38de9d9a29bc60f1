//! Deliveries of events to sinks: one for each task and sink, which is about the newest event that the sink is to hear of
//! (BEHAVIOURS 64–70).

use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;

use super::{EventRecord, Result, WorkerId};
use crate::clock::Millis;

/// How a delivery stands, its lease aside (70).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryState {
    /// Nothing of this version has failed so far.
    Pending,
    /// An attempt failed, and another one follows.
    Retry,
    /// The sink has it.
    Delivered,
    /// Given up; a newer event, or a replay, begins anew.
    DeadLetter,
}

impl DeliveryState {
    /// Every state there is.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Retry, Self::Delivered, Self::DeadLetter];

    /// The name used in `event_deliveries.state`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Retry => "retry",
            Self::Delivered => "delivered",
            Self::DeadLetter => "dead_letter",
        }
    }

    /// Whether no attempt follows.
    pub const fn has_ended(self) -> bool {
        matches!(self, Self::Delivered | Self::DeadLetter)
    }
}

/// A delivery's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The task.
    pub task_id: Arc<str>,
    /// Who is told, at most 64 characters.
    pub sink: String,
    /// The newest event that it is about: its version (65).
    pub sequence: i64,
    /// What happened (153).
    pub kind: String,
    /// The status the task took.
    pub status: String,
    /// When it happened.
    pub event_at: Millis,
    /// How it stands.
    pub state: DeliveryState,
    /// Attempts at this version that have ended.
    pub attempt_count: i64,
    /// Those of them that count against the budget (68).
    pub failure_count: i64,
    /// What the last one that failed met, at most 4,000 characters.
    pub last_error: Option<String>,
    /// When it is due.
    pub next_due_at: Millis,
    /// Which worker delivers it now.
    pub lease_owner: Option<WorkerId>,
    /// Guards every write of its owner.
    pub lease_epoch: i64,
    /// When the row last changed, its lease aside.
    pub updated_at: Millis,
    /// When it was delivered or given up.
    pub ended_at: Option<Millis>,
}

/// An event that a sink is to hear of; serialised, it is the input of a SQL statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Enrolment {
    /// The task.
    pub task_id: String,
    /// Its newest such event.
    pub sequence: i64,
    /// What happened.
    pub kind: String,
    /// The status the task took.
    pub status: String,
    /// When it happened.
    pub event_at: Millis,
}

impl From<&EventRecord> for Enrolment {
    fn from(event: &EventRecord) -> Self {
        Self {
            task_id: event.task_id.clone(),
            sequence: event.sequence,
            kind: event.kind.clone(),
            status: event.status.clone(),
            event_at: event.created_at,
        }
    }
}

/// When enrolled events are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnrolTimes {
    /// Now: where nothing is under way.
    pub at: Millis,
    /// At the latest, where an earlier version waits for another attempt: a sink that fails is not asked at once.
    pub soon: Millis,
}

/// What a worker may claim for a sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryOrder {
    /// For whom.
    pub worker: WorkerId,
    /// To whom.
    pub sink: String,
    /// Rows due up to this time.
    pub due_before: Millis,
    /// How many at most.
    pub limit: u32,
}

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The task.
    pub task_id: Arc<str>,
    /// The sink.
    pub sink: String,
    /// The lease under which it was made.
    pub epoch: i64,
    /// The version that was sent.
    pub sequence: i64,
    /// How it stands now, unless there is a newer version: that one is pending, with a fresh budget (65, 68).
    pub state: DeliveryState,
    /// Attempts at this version, with this one.
    pub attempt_count: i64,
    /// Those that count.
    pub failure_count: i64,
    /// What it met, at most 4,000 characters.
    pub error: Option<String>,
    /// When the next attempt is due, of this version or of a newer one.
    pub next_due_at: Millis,
    /// Now.
    pub at: Millis,
}

/// What a worker does not have under way although a row says so, and what a clock that had jumped left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mending {
    /// The worker.
    pub worker: WorkerId,
    /// The sink.
    pub sink: String,
    /// The tasks whose delivery it has under way.
    pub keep: Vec<Arc<str>>,
    /// Now.
    pub at: Millis,
}

/// What waits for a sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// The sink.
    pub sink: String,
    /// Deliveries that have not ended, up to a bound.
    pub pending: i64,
    /// When the event of the one that waits longest happened.
    pub oldest_at: Option<Millis>,
}

/// The deliveries of a fleet. A port of its own: who has no sinks asks nothing of it, and no worker knows of it.
///
/// Deliveries follow from the events, which are written in their transition's transaction; enrolling an event again is
/// nothing. A delivery's lease is its worker's, like a task's: claimed by a live worker only, guarded by owner and epoch, and
/// freed with the row of a worker that is dead.
#[async_trait]
pub trait Deliveries: Send + Sync {
    /// Up to where events have been taken note of for a sink; one that is new begins behind the newest event.
    async fn open_sink(&self, sink: &str) -> Result<i64>;

    /// Events between two places in their order, both excluded, in that order, with gaps where others are not committed (yet).
    async fn events_between(&self, after: i64, before: i64, limit: u32) -> Result<Vec<EventRecord>>;

    /// Takes note of `events` (each task once) for a sink, and then that it has read up to `position`. A row that knows of an
    /// event as new is left alone; one under way keeps its lease; others are pending, with a fresh budget. Events of tasks that
    /// are gone are passed over. Returns how many rows changed.
    async fn enrol(&self, sink: &str, events: &[Enrolment], times: EnrolTimes, position: i64) -> Result<u64>;

    /// Takes note of `events` again: what was delivered or given up is pending, with a fresh budget. Returns how many
    /// deliveries that makes.
    async fn replay(&self, sink: &str, events: &[Enrolment], times: EnrolTimes) -> Result<u64>;

    /// Takes deliveries that nobody has for a live worker, oldest due first.
    async fn claim_deliveries(&self, order: &DeliveryOrder) -> Result<Vec<Delivery>>;

    /// Writes what became of an attempt where owner and epoch match, and gives the delivery back. Returns how it then stands;
    /// `None` where it is not the worker's any more, and nothing was written.
    async fn settle_delivery(&self, worker: &WorkerId, settlement: &Settlement) -> Result<Option<DeliveryState>>;

    /// Frees the worker's deliveries to a sink that it does not have under way, such as those whose claim was answered too
    /// late, and brings back what is due absurdly late. Returns how many.
    async fn mend_deliveries(&self, mending: &Mending) -> Result<u64>;

    /// A task's deliveries, by sink.
    async fn deliveries_of(&self, task_id: &str) -> Result<Vec<Delivery>>;

    /// What waits for each of `sinks`, each count up to `cap`.
    async fn backlog(&self, sinks: &[String], cap: i64) -> Result<Vec<Backlog>>;
}
