//! Guarded writes in batches: whatever gathers while one batch is written is the next one (DESIGN, Apply).
//!
//! The writer never gives a write up while its outcome is unknown: it re-reads the row, and repeats the same write until
//! the store has said what became of it. A task has at most one write outstanding.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::Context;
use super::message::Message;
use crate::store::{Applied, RowState, StoreErrorKind, TaskWrite, WorkerId};
use crate::task::Status;

/// The most writes in one statement.
const BATCH: usize = 500;
/// Between two attempts while the store is away, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// A write and who it belongs to.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) worker: WorkerId,
    /// The number under which the task waits for it.
    pub(super) ticket: u64,
    pub(super) write: TaskWrite,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// The row has this epoch now.
    Done(i64),
    /// The row is not as it was; nothing was written.
    Stale,
    /// The store refuses the values.
    Refused,
}

/// Writes until the sending side is gone.
pub(super) async fn run(
    context: Arc<Context>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    messages: mpsc::UnboundedSender<Message>,
) {
    let mut batch = Vec::with_capacity(BATCH);
    while orders.recv_many(&mut batch, BATCH).await > 0 {
        while let Some(worker) = batch.first().map(|order: &Order| Arc::clone(&order.worker)) {
            let (next, later) = part(std::mem::take(&mut batch), &worker);
            batch = later;
            write(&context, &worker, next, &messages).await;
        }
    }
}

/// What may be written at once, and what comes after it. A batch is one worker's, since orders of a former incarnation may
/// still be in the queue; and it writes a task once: one that was let go of and taken again while its write waited has two.
fn part(orders: Vec<Order>, worker: &WorkerId) -> (Vec<Order>, Vec<Order>) {
    let mut tasks = HashSet::new();
    orders.into_iter().partition(|order| order.worker == *worker && tasks.insert(Arc::clone(&order.write.id)))
}

async fn write(context: &Context, worker: &WorkerId, orders: Vec<Order>, messages: &mpsc::UnboundedSender<Message>) {
    let (tickets, writes): (Vec<_>, Vec<_>) = orders.into_iter().map(|order| (order.ticket, order.write)).unzip();
    let results = apply(context, worker, &writes).await;
    for ((ticket, write), result) in tickets.into_iter().zip(writes).zip(results) {
        if let Written::Done(_) = result {
            context.metrics.rows_written.with_label_values(&[write.change.kind.as_str()]).inc();
        }
        // The actor is gone only when the process is about to end.
        let _ = messages.send(Message::Written { ticket, write: Box::new(write), result });
    }
}

/// Applies `writes`, however long it takes to learn what became of each.
async fn apply(context: &Context, worker: &WorkerId, writes: &[TaskWrite]) -> Vec<Written> {
    let mut results = vec![None; writes.len()];
    let mut open: Vec<usize> = (0..writes.len()).collect();
    let mut pause = RETRY.0;
    let mut uncertain = false;
    let mut most = open.len();
    while !open.is_empty() {
        let attempt: Vec<TaskWrite> = open.iter().take(most).map(|index| writes[*index].clone()).collect();
        match context.store.apply(worker, &attempt).await {
            Ok(applied) => {
                for (index, applied) in open.iter().zip(applied) {
                    results[*index] = match applied {
                        Applied::Done { epoch } => Some(Written::Done(epoch)),
                        // After an unknown outcome it may be this very write, come late, that changed the row.
                        Applied::Stale => (!uncertain).then_some(Written::Stale),
                    };
                }
                let unclear = open.iter().take(most).any(|index| results[*index].is_none());
                open.retain(|index| results[*index].is_none());
                (most, pause) = (most.saturating_mul(2), RETRY.0);
                if unclear {
                    settle(context, worker, writes, &mut open, &mut results, &mut pause).await;
                }
            }
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, writes = open.len(), "a write is tried again");
                // What is too much for a slow store at once is less the next time (FAILURES 24).
                most = most.div_ceil(2);
                pause_for(&mut pause).await;
                if error.kind == StoreErrorKind::Unknown {
                    uncertain = true;
                    settle(context, worker, writes, &mut open, &mut results, &mut pause).await;
                }
            }
            // One bad row must not fail the others (FAILURES 34): one by one.
            Err(_) if open.len() > 1 => {
                for index in open.drain(..) {
                    let one = Box::pin(apply(context, worker, std::slice::from_ref(&writes[index]))).await;
                    results[index] = one.first().copied();
                }
            }
            Err(error) => {
                let id = open.first().map(|index| Arc::clone(&writes[*index].id)).unwrap_or_default();
                tracing::error!(task.id = %id, %error, "the store refuses a write");
                open.drain(..).for_each(|index| results[index] = Some(Written::Refused));
            }
        }
    }
    results.into_iter().map(|result| result.unwrap_or(Written::Refused)).collect()
}

/// After an unknown outcome: reads the rows and settles those writes that are known to have taken effect or to be stale;
/// the others stay open and are repeated as they are.
async fn settle(
    context: &Context,
    worker: &WorkerId,
    writes: &[TaskWrite],
    open: &mut Vec<usize>,
    results: &mut [Option<Written>],
    pause: &mut Duration,
) {
    let ids: Vec<Arc<str>> = open.iter().map(|index| Arc::clone(&writes[*index].id)).collect();
    let rows = loop {
        match context.store.inspect(&ids).await {
            Ok(rows) => break rows,
            Err(error) => {
                tracing::warn!(%error, "rows of a write of unknown outcome cannot be read yet");
                pause_for(pause).await;
            }
        }
    };
    open.retain(|index| {
        let write = &writes[*index];
        let row = rows.iter().find(|row| row.id == write.id);
        results[*index] = outcome(write, worker, row);
        results[*index].is_none()
    });
}

/// What a row says about a write that was sent with its guard: taken effect, overtaken, or (`None`) not executed.
fn outcome(write: &TaskWrite, worker: &WorkerId, row: Option<&RowState>) -> Option<Written> {
    let Some(row) = row else { return Some(Written::Stale) };
    let owned = row.owner.as_ref() == Some(worker);
    if row.epoch == write.epoch {
        return if owned { None } else { Some(Written::Stale) };
    }
    // Exactly one write happened since. It was this one if it left the row as this one leaves it: still owned, or, where
    // this one lets go, in the status it sets; a cancel or a takeover frees the row without ending it.
    let ended = row.status.is_none_or(Status::is_terminal);
    let ours = row.epoch == write.epoch + 1
        && if write.change.status.is_terminal() { ended && row.status == Some(write.change.status) } else { owned };
    Some(if ours { Written::Done(row.epoch) } else { Written::Stale })
}

async fn pause_for(pause: &mut Duration) {
    tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
    *pause = (*pause * 2).min(RETRY.1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Change, ChangeKind};

    fn order(worker: &str, ticket: u64, id: &str) -> Order {
        let change = Change {
            kind: ChangeKind::Poll,
            status: Status::Working,
            outcome: None,
            next_due_at: 0,
            poll_attempt_count: 0,
            consecutive_poll_error_count: 0,
            last_polled_at: None,
            last_poll_error: None,
            cancel_attempt_count: 0,
            last_cancel_error: None,
            event_fingerprint: None,
            completed_at: None,
            release: false,
            events: Vec::new(),
            at: 0,
        };
        Order { worker: worker.into(), ticket, write: TaskWrite { id: id.into(), epoch: 1, change } }
    }

    #[test]
    fn a_batch_is_one_workers_and_writes_each_task_once_in_the_order_of_its_writes_3() {
        let orders = [("w", 1, "a"), ("w", 2, "b"), ("w", 3, "a"), ("old", 4, "c"), ("w", 5, "d"), ("w", 6, "a")];
        let orders = orders.map(|(worker, ticket, id)| order(worker, ticket, id)).into();
        let tickets = |orders: &[Order]| orders.iter().map(|order| order.ticket).collect::<Vec<_>>();
        let (now, later) = part(orders, &"w".into());
        assert_eq!((tickets(&now), tickets(&later)), (vec![1, 2, 5], vec![3, 4, 6]));
        let (now, later) = part(later, &"w".into());
        assert_eq!((tickets(&now), tickets(&later)), (vec![3], vec![4, 6]));
    }
}
