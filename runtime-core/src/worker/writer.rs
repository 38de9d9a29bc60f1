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
use super::queue::{Order, Queue};
use crate::store::{Applied, RowState, StoreErrorKind, TaskWrite, WorkerId};
use crate::task::Status;

/// The most writes in one statement, payloads counted in ([`Order::weight`]).
const BATCH: usize = 500;
/// Between two attempts while the store is away, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

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
    let mut writer = Writer { context, messages, most: BATCH };
    let mut queue = Queue::default();
    while let Some(order) = orders.recv().await {
        queue.push(order);
        while !queue.is_empty() {
            while let Ok(order) = orders.try_recv() {
                queue.push(order);
            }
            let mut batch = queue.take(BATCH);
            while let Some(worker) = batch.first().map(|order| Arc::clone(&order.worker)) {
                let (next, later) = part(batch, &worker);
                batch = later;
                writer.write(&worker, next).await;
            }
        }
    }
}

/// What may be written at once, and what comes after it. A batch is one worker's, since orders of a former incarnation may
/// still be in the queue; and it writes a task once: one that was let go of and taken again while its write waited has two.
fn part(orders: Vec<Order>, worker: &WorkerId) -> (Vec<Order>, Vec<Order>) {
    let mut tasks = HashSet::new();
    orders.into_iter().partition(|order| order.worker == *worker && tasks.insert(Arc::clone(&order.write.id)))
}

struct Writer {
    context: Arc<Context>,
    messages: mpsc::UnboundedSender<Message>,
    /// How many writes the store is given at once: halved where that is too much, doubled where it is not (FAILURES 24).
    most: usize,
}

impl Writer {
    async fn write(&mut self, worker: &WorkerId, orders: Vec<Order>) {
        let results = self.apply(worker, &orders).await;
        for (order, result) in orders.into_iter().zip(results) {
            if let Written::Done(_) = result {
                let change = &order.write.change;
                self.context.metrics.rows_written.with_label_values(&[change.kind.as_str()]).inc();
                self.context.metrics.emitted(&change.events);
            }
            // The actor is gone only when the process is about to end.
            let _ = self.messages.send(Message::Written { order: Box::new(order), result });
        }
    }

    /// Applies `orders`, however long it takes to learn what became of each.
    async fn apply(&mut self, worker: &WorkerId, orders: &[Order]) -> Vec<Written> {
        let context = Arc::clone(&self.context);
        let mut results = vec![None; orders.len()];
        let mut open: Vec<usize> = (0..orders.len()).collect();
        let mut pause = RETRY.0;
        let mut uncertain = false;
        while !open.is_empty() {
            let attempt: Vec<TaskWrite> =
                open.iter().take(self.most).map(|index| orders[*index].write.clone()).collect();
            match context.store.apply(worker, &attempt).await {
                Ok(applied) => {
                    for (index, applied) in open.iter().zip(applied) {
                        results[*index] = match applied {
                            Applied::Done { epoch } => Some(Written::Done(epoch)),
                            // After an unknown outcome it may be this very write, come late, that changed the row.
                            Applied::Stale => (!uncertain).then_some(Written::Stale),
                        };
                    }
                    let unclear = open.iter().take(attempt.len()).any(|index| results[*index].is_none());
                    open.retain(|index| results[*index].is_none());
                    self.most = self.most.saturating_mul(2).min(BATCH);
                    pause = RETRY.0;
                    if unclear {
                        settle(&context, worker, orders, &mut open, &mut results, &mut pause).await;
                    }
                }
                Err(error) if error.is_transient() => {
                    tracing::warn!(%error, writes = attempt.len(), "a write is tried again");
                    self.most = attempt.len().div_ceil(2);
                    pause_for(&mut pause).await;
                    if error.kind == StoreErrorKind::Unknown {
                        uncertain = true;
                        settle(&context, worker, orders, &mut open, &mut results, &mut pause).await;
                    }
                }
                // One bad row must not fail the others (FAILURES 34): one by one.
                Err(_) if open.len() > 1 => {
                    for index in open.drain(..) {
                        let one = Box::pin(self.apply(worker, std::slice::from_ref(&orders[index]))).await;
                        results[index] = one.first().copied();
                    }
                }
                Err(error) => {
                    let id = open.first().map(|index| Arc::clone(&orders[*index].write.id)).unwrap_or_default();
                    tracing::error!(task.id = %id, %error, "the store refuses a write");
                    open.drain(..).for_each(|index| results[index] = Some(Written::Refused));
                }
            }
        }
        results.into_iter().map(|result| result.unwrap_or(Written::Refused)).collect()
    }
}

/// After an unknown outcome: reads the rows and settles those writes that are known to have taken effect or to be stale;
/// the others stay open and are repeated as they are.
async fn settle(
    context: &Context,
    worker: &WorkerId,
    orders: &[Order],
    open: &mut Vec<usize>,
    results: &mut [Option<Written>],
    pause: &mut Duration,
) {
    let ids: Vec<Arc<str>> = open.iter().map(|index| Arc::clone(&orders[*index].write.id)).collect();
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
        let write = &orders[*index].write;
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
    use crate::worker::queue::tests::order as order_of;

    fn order(worker: &str, ticket: u64, id: &str) -> Order {
        let mut order = order_of("s", ticket);
        (order.worker, order.write.id) = (worker.into(), id.into());
        order
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
