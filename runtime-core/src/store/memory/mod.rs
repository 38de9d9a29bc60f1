//! A store in memory, for tests and simulation: one lock, no I/O, and the same answer to the same calls.

mod deliveries;
mod intents;
mod keys;
mod leases;
mod queries;
mod registry;
mod shared;
mod tokens;
mod wakeups;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::wakeup::Channel;
use super::{ApiKeyRecord, ChainKey, Delivery, EventRecord, WorkerId, WorkerRecord};
use crate::clock::{Clock, Millis};
use crate::task::{EventKind, Status, TaskRecord};

/// A store that forgets everything when it is dropped.
///
/// Its time is the clock's it was given; what it draws by lot comes from a fixed seed.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    state: Mutex<Tables>,
    wakeups: Channel,
}

/// What the store holds, as [`MemoryStore::look`] and [`MemoryStore::tamper`] show it.
#[derive(Debug)]
pub struct Tables {
    /// Every task, by its id.
    pub tasks: BTreeMap<Arc<str>, TaskRecord>,
    /// Every worker, by its id.
    pub workers: BTreeMap<WorkerId, WorkerRecord>,
    /// Every event, in order.
    pub events: Vec<EventRecord>,
    /// The sequence of the newest event there has been.
    emitted: i64,
    /// Every delivery, by task and sink.
    deliveries: BTreeMap<(Arc<str>, String), Delivery>,
    /// Up to where events were taken note of, by sink.
    sinks: BTreeMap<String, i64>,
    generations: BTreeMap<String, i64>,
    chains: BTreeMap<ChainKey, tokens::Chain>,
    keys: BTreeMap<String, ApiKeyRecord>,
    lots: fastrand::Rng,
}

impl MemoryStore {
    /// An empty store whose time is `clock`'s.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let state = Tables {
            tasks: BTreeMap::new(),
            workers: BTreeMap::new(),
            events: Vec::new(),
            emitted: 0,
            deliveries: BTreeMap::new(),
            sinks: BTreeMap::new(),
            generations: BTreeMap::new(),
            chains: BTreeMap::new(),
            keys: BTreeMap::new(),
            lots: fastrand::Rng::with_seed(0),
        };
        Self { clock, state: Mutex::new(state), wakeups: Channel::default() }
    }

    /// Shows everything at once, as no statement can: for those who check that the invariants hold.
    pub fn look<T>(&self, read: impl FnOnce(&Tables) -> T) -> T {
        read(&self.state())
    }

    /// Changes rows past every guard: for tests that plant a fault and expect it to be found.
    pub fn tamper<T>(&self, change: impl FnOnce(&mut Tables) -> T) -> T {
        change(&mut self.state())
    }

    fn now_ms(&self) -> Millis {
        self.clock.now_ms()
    }

    fn state(&self) -> MutexGuard<'_, Tables> {
        // No call panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn is_live(&self, worker: &str) -> bool {
        self.workers.get(worker).is_some_and(|worker| worker.live)
    }

    /// Writes an event of a task, as its row is now.
    pub fn emit(&mut self, id: &str, kind: EventKind, at: Millis) {
        let Some(task) = self.tasks.get(id) else { return };
        self.emitted += 1;
        let event = EventRecord {
            sequence: self.emitted,
            task_id: id.to_owned(),
            user_id: task.user_id.to_string(),
            thread_id: task.thread_id.to_string(),
            kind: kind.as_str().to_owned(),
            status: task.status.as_str().to_owned(),
            created_at: at,
        };
        self.events.push(event);
    }
}

/// An intent whose remote id nobody has recorded.
fn is_open_intent(task: &TaskRecord) -> bool {
    task.status == Status::Submitting && task.remote_task_id.is_none()
}

/// Gives a row back: no owner, next version.
fn free(task: &mut TaskRecord) {
    task.lease_owner = None;
    task.tracked.lease_epoch += 1;
}

/// Whether user and thread, where given, own the task.
fn belongs_to(task: &TaskRecord, user_id: Option<&str>, thread_id: Option<&str>) -> bool {
    user_id.is_none_or(|user| *task.user_id == *user) && thread_id.is_none_or(|thread| *task.thread_id == *thread)
}
