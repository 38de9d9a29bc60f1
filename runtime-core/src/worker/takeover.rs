//! The one recovery path: mark dead → free → delete (DESIGN, Takeover). Any worker does it, at every tick.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Context;
use super::incarnation::Predecessors;
use super::message::Message;
use super::observer::Observer;
use crate::store::{Corrected, StoreError, WorkerId, WorkerRecord};

/// Rows freed by one statement.
const CHUNK: u32 = 1_000;
/// Ended tasks deleted by one statement.
const PRUNED: u32 = 500;
/// Between two looks for ended tasks to delete.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// Tasks that are due absurdly late and corrected by one statement.
const CORRECTED: u32 = 500;
/// Between two looks for such.
const CORRECT_EVERY: Duration = Duration::from_secs(10);
/// Between two sweeps of the state directory.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// The other workers, as last seen.
#[derive(Debug, Clone, Default)]
pub(super) struct Fleet {
    /// Live workers that poll, with this one.
    pub(super) polling: usize,
    /// What the others last published that they hold.
    pub(super) held_by_others: i64,
    /// The others' heartbeats, to tell whether they have published since.
    pub(super) heartbeats: HashMap<WorkerId, i64>,
}

/// Looks after the fleet until the process ends.
pub(super) async fn run(context: Arc<Context>, messages: mpsc::UnboundedSender<Message>) {
    let mut observer = Observer::default();
    let predecessors = Predecessors::new(&context.options.state_dir);
    let mut next_prune = Instant::now();
    let mut next_sweep = Instant::now();
    let mut next_correction = Instant::now();
    loop {
        if Instant::now() >= next_correction {
            let full = correct(&context).await;
            next_correction = Instant::now() + if full { Duration::ZERO } else { CORRECT_EVERY };
        }
        if let Some(retention) = context.options.retention.filter(|_| Instant::now() >= next_prune) {
            // A full chunk means that there is more; a short rest keeps the deletes from crowding the writes.
            let full = prune(&context, retention).await;
            next_prune = Instant::now() + if full { Duration::ZERO } else { PRUNE_EVERY };
        }
        let mut more = false;
        if let Some(own) = context.worker() {
            match look_after(&context, &own, &mut observer, &predecessors).await {
                Ok((fleet, freed, workers)) => {
                    more = freed >= u64::from(CHUNK);
                    if Instant::now() >= next_sweep {
                        next_sweep = Instant::now() + SWEEP_EVERY;
                        predecessors.sweep(&workers);
                    }
                    let _ = messages.send(Message::Fleet(fleet));
                    if freed > 0 {
                        let _ = messages.send(Message::Wake);
                        context.announce_due();
                    }
                }
                Err(error) => tracing::warn!(%error, "the other workers cannot be looked after"),
            }
        }
        if !more {
            // Phases differ from replica to replica (FAILURES 9).
            tokio::time::sleep(Duration::from_millis(700 + fastrand::u64(..300))).await;
        }
    }
}

async fn look_after(
    context: &Context,
    own: &WorkerId,
    observer: &mut Observer,
    predecessors: &Predecessors,
) -> Result<(Fleet, u64, Vec<WorkerRecord>), StoreError> {
    let workers = context.store.workers().await?;
    let mut dead = observer.expired(&workers, own, context.boot(), context.renewed());
    for row in workers.rows.iter().filter(|row| row.live && row.info.id != *own) {
        if !dead.iter().any(|(id, _)| *id == row.info.id) && predecessors.has_ended(&row.info.id) {
            tracing::info!(worker = %row.info.id, "a predecessor on this machine has ended");
            dead.push((row.info.id.clone(), row.heartbeat_count));
        }
    }
    for (id, heartbeat_count) in &dead {
        if context.store.mark_dead(own, id, Some(*heartbeat_count)).await? {
            context.metrics.leases_expired.inc();
            tracing::warn!(worker = %id, "worker marked dead; its tasks are taken over");
        }
    }
    let mut freed = 0;
    if !dead.is_empty() || workers.rows.iter().any(|row| !row.live) {
        // A chunk at a time: it is claimed, and the others looked at again, while the next one is freed.
        freed = free_chunk(context).await?;
        if freed < u64::from(CHUNK) {
            context.store.delete_dead().await?;
            workers.rows.iter().filter(|row| !row.live).for_each(|row| predecessors.forget(&row.info.id));
        }
    }
    let others = || workers.rows.iter().filter(|row| row.live && row.info.polls && row.info.id != *own);
    let fleet = Fleet {
        polling: others().count() + usize::from(context.options.polls),
        held_by_others: others().map(|row| row.held).sum(),
        heartbeats: others().map(|row| (row.info.id.clone(), row.heartbeat_count)).collect(),
    };
    Ok((fleet, freed, workers.rows))
}

/// Deletes a chunk of tasks that ended long ago, with their events; whether there may be more.
async fn prune(context: &Context, retention: Duration) -> bool {
    let ended_before = context.now().saturating_sub(i64::try_from(retention.as_millis()).unwrap_or(i64::MAX));
    match context.store.prune(ended_before, PRUNED).await {
        Ok(pruned) => {
            context.metrics.rows_written.with_label_values(&["prune"]).inc_by(pruned);
            pruned >= u64::from(PRUNED)
        }
        Err(error) => {
            tracing::warn!(%error, "ended tasks cannot be pruned");
            false
        }
    }
}

/// Brings back a chunk of what is dated absurdly far ahead (FAILURES 6); whether there may be more.
async fn correct(context: &Context) -> bool {
    match context.store.correct_far(CORRECTED, context.policy.poll_interval_ms).await {
        Ok(Corrected { tasks, workers }) => {
            if let Some(one) = tasks.first() {
                tracing::warn!(
                    tasks = tasks.len(),
                    task.id = one,
                    "tasks were due later than can be; they are due now"
                );
                context.announce_due();
            }
            for worker in workers {
                tracing::warn!(worker, "a worker's lease ended later than can be; it ends a lease from now");
            }
            tasks.len() >= CORRECTED as usize
        }
        Err(error) => {
            tracing::warn!(%error, "what is due absurdly late cannot be looked for");
            false
        }
    }
}

async fn free_chunk(context: &Context) -> Result<u64, StoreError> {
    context.store.free_dead(context.now(), CHUNK, context.policy.poll_interval_ms).await
}

/// Frees the rows of every dead worker, in chunks.
pub(super) async fn free_all(context: &Context) -> Result<u64, StoreError> {
    let mut freed = 0;
    loop {
        let chunk = free_chunk(context).await?;
        freed += chunk;
        if chunk < u64::from(CHUNK) {
            return Ok(freed);
        }
    }
}
