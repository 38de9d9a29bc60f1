//! Faults planted on purpose, one at a time: a simulation that does not find them proves nothing.
//!
//! Each replaces one of the store's statements by a careless one. Without a plant they are the memory store's own.

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::clock::Millis;
use mcp_taskd_core::store::{
    Applied, CancelRequest, Intents, Leases, Owned, Registry, Result, StoreError, StoreErrorKind, TaskWrite, WorkerId,
};
use mcp_taskd_core::task::{Status, TaskRecord};

use super::universe::Universe;

/// A mistake that the design guards against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// Writes go through whoever owns the row, at whatever version.
    NoEpochGuard,
    /// A cancel request neither frees the row nor bumps its version.
    NoCancelFence,
    /// What a worker owns is never compared with what it holds.
    NoReconcile,
    /// After an unknown outcome the same change is written again over whatever is there.
    BlindRetry,
    /// Rows of dead workers are read, and overwritten a moment later.
    RescueByReadThenWrite,
    /// The count of errors is not written.
    BackoffNotPersisted,
    /// Rows are taken from workers that are late but not marked dead.
    TakeoverBeforeMarkDead,
    /// Events are written a moment after their transition.
    EventOutsideTransaction,
}

impl Plant {
    /// Every one.
    pub const ALL: [Self; 8] = [
        Self::NoEpochGuard,
        Self::NoCancelFence,
        Self::NoReconcile,
        Self::BlindRetry,
        Self::RescueByReadThenWrite,
        Self::BackoffNotPersisted,
        Self::TakeoverBeforeMarkDead,
        Self::EventOutsideTransaction,
    ];

    /// Its name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoEpochGuard => "no-epoch-guard",
            Self::NoCancelFence => "no-cancel-fence",
            Self::NoReconcile => "no-reconcile",
            Self::BlindRetry => "blind-retry",
            Self::RescueByReadThenWrite => "rescue-by-read-then-write",
            Self::BackoffNotPersisted => "backoff-not-persisted",
            Self::TakeoverBeforeMarkDead => "takeover-before-mark-dead",
            Self::EventOutsideTransaction => "event-outside-transaction",
        }
    }
}

impl std::str::FromStr for Plant {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let known = || Self::ALL.map(Self::as_str).join(", ");
        Self::ALL.into_iter().find(|plant| plant.as_str() == name).ok_or_else(|| format!("plants are: {}", known()))
    }
}

pub(super) async fn apply(universe: &Arc<Universe>, worker: &WorkerId, writes: &[TaskWrite]) -> Result<Vec<Applied>> {
    match universe.plant {
        Some(Plant::NoEpochGuard) => {
            let mut writes = writes.to_vec();
            universe.memory.tamper(|tables| {
                for write in &mut writes {
                    let Some(row) = tables.tasks.get_mut(&write.id).filter(|row| !row.status.is_terminal()) else {
                        continue;
                    };
                    row.lease_owner = Some(worker.to_string());
                    write.epoch = row.lease_epoch;
                }
            });
            universe.memory.apply(worker, &writes).await
        }
        Some(Plant::BackoffNotPersisted) => {
            let mut writes = writes.to_vec();
            writes.iter_mut().for_each(|write| write.change.consecutive_poll_error_count = 0);
            universe.memory.apply(worker, &writes).await
        }
        Some(Plant::EventOutsideTransaction) => {
            let mut silent = writes.to_vec();
            silent.iter_mut().for_each(|write| write.change.events.clear());
            let applied = universe.memory.apply(worker, &silent).await?;
            let (later, writes, done) = (Arc::clone(universe), writes.to_vec(), applied.clone());
            tokio::spawn(async move {
                later.some(20).await;
                later.memory.tamper(|tables| {
                    for (write, _) in writes.iter().zip(done).filter(|(_, done)| matches!(done, Applied::Done { .. })) {
                        write.change.events.iter().for_each(|event| tables.emit(&write.id, *event, write.change.at));
                    }
                });
            });
            Ok(applied)
        }
        _ => universe.memory.apply(worker, writes).await,
    }
}

pub(super) fn retries_blindly(universe: &Universe, error: &StoreError) -> bool {
    universe.plant == Some(Plant::BlindRetry) && error.kind == StoreErrorKind::Unknown
}

/// Takes the rows' present versions for the writes' guards.
pub(super) fn refresh(universe: &Universe, writes: &mut [TaskWrite]) {
    universe.memory.look(|tables| {
        for write in writes {
            if let Some(row) = tables.tasks.get(&write.id) {
                write.epoch = row.lease_epoch;
            }
        }
    });
}

pub(super) async fn owned(universe: &Universe, worker: &WorkerId) -> Result<Vec<Owned>> {
    if universe.plant == Some(Plant::NoReconcile) {
        return Err(StoreError::new(StoreErrorKind::Unavailable, "owned", "planted"));
    }
    universe.memory.owned(worker).await
}

pub(super) async fn request_cancel(
    universe: &Universe,
    request: &CancelRequest,
    now: Millis,
) -> Result<Option<TaskRecord>> {
    let before = universe.memory.look(|tables| tables.tasks.get(request.id.as_str()).cloned());
    let answer = universe.memory.request_cancel(request, now).await?;
    if universe.plant == Some(Plant::NoCancelFence)
        && let Some(before) = before.filter(|row| row.cancel_requested_at.is_none() && row.status != Status::Submitting)
    {
        universe.memory.tamper(|tables| {
            let Some(row) = tables.tasks.get_mut(request.id.as_str()) else { return };
            row.lease_owner.clone_from(&before.lease_owner);
            row.tracked.lease_epoch = before.lease_epoch;
        });
    }
    Ok(answer)
}

pub(super) async fn free_dead(universe: &Universe, now: Millis, limit: u32, spread_ms: i64) -> Result<u64> {
    match universe.plant {
        Some(Plant::TakeoverBeforeMarkDead) => {
            let workers = universe.memory.workers().await?;
            let late = |row: &TaskRecord| {
                let owner = workers.rows.iter().find(|worker| row.lease_owner.as_deref() == Some(&worker.info.id));
                owner.is_some_and(|owner| !owner.live || owner.lease_expires_at < workers.now_ms)
            };
            Ok(overwrite(universe, freed(universe, late, now)))
        }
        Some(Plant::RescueByReadThenWrite) => {
            let workers = universe.memory.workers().await?;
            let dead = |row: &TaskRecord| {
                let owner = workers.rows.iter().find(|worker| row.lease_owner.as_deref() == Some(&worker.info.id));
                owner.is_some_and(|owner| !owner.live)
            };
            let rows = freed(universe, dead, now);
            tokio::time::sleep(Duration::from_millis(universe.below(300))).await;
            Ok(overwrite(universe, rows))
        }
        _ => universe.memory.free_dead(now, limit, spread_ms).await,
    }
}

/// The rows that `wanted` picks, as a careless takeover would leave them.
fn freed(universe: &Universe, wanted: impl Fn(&TaskRecord) -> bool, now: Millis) -> Vec<TaskRecord> {
    let mut rows: Vec<_> =
        universe.memory.look(|tables| tables.tasks.values().filter(|row| wanted(row)).cloned().collect());
    for row in &mut rows {
        row.lease_owner = None;
        row.tracked.lease_epoch += 1;
        row.tracked.next_due_at = row.next_due_at.max(now);
    }
    rows
}

fn overwrite(universe: &Universe, rows: Vec<TaskRecord>) -> u64 {
    let count = rows.len() as u64;
    universe.memory.tamper(|tables| tables.tasks.extend(rows.into_iter().map(|row| (Arc::clone(&row.id), row))));
    count
}
