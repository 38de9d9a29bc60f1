//! Writes that wait for the writer: a queue for each server, served in turn, so that one server's flood of changes does not
//! hold up another's (DESIGN, invariant 7).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::store::{TaskWrite, WorkerId};
use crate::task::{Binding, Change};

/// What counts as one more write: a batch is bounded in bytes as well as in rows.
const UNIT_BYTES: usize = 16 << 10;

/// A write and who it belongs to.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) worker: WorkerId,
    /// The number under which the task waits for it.
    pub(super) ticket: u64,
    /// The task's server.
    pub(super) binding: Arc<Binding>,
    pub(super) write: TaskWrite,
}

impl Order {
    /// How much of a batch it takes: one, and one more for every 16 KiB of payload.
    pub(super) fn weight(&self) -> usize {
        1 + payload_bytes(&self.write.change) / UNIT_BYTES
    }
}

fn payload_bytes(change: &Change) -> usize {
    let Some((outcome, _)) = &change.outcome else { return 0 };
    let json = [&outcome.result, &outcome.result_artifact, &outcome.input_required];
    let texts = [&outcome.result_preview, &outcome.error];
    let json = json.into_iter().flatten().map(|json| json.as_str().len()).sum::<usize>();
    json + texts.into_iter().flatten().map(String::len).sum::<usize>()
}

/// The queues. A server without waiting writes has none.
#[derive(Debug, Default)]
pub(super) struct Queue {
    by_server: HashMap<Box<str>, VecDeque<Order>>,
    /// The servers that have one, in the order of their turns.
    turns: VecDeque<Box<str>>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub(super) fn push(&mut self, order: Order) {
        let server: Box<str> = order.binding.server_name.as_str().into();
        let waiting = self.by_server.entry(server.clone()).or_default();
        if waiting.is_empty() {
            self.turns.push_back(server);
        }
        waiting.push_back(order);
    }

    /// The next batch: one of each server in turn, up to `weight` in all, and one at least.
    pub(super) fn take(&mut self, weight: usize) -> Vec<Order> {
        let (mut batch, mut taken) = (Vec::new(), 0);
        while taken < weight
            && let Some(server) = self.turns.pop_front()
        {
            let Some(waiting) = self.by_server.get_mut(&server) else { continue };
            if let Some(order) = waiting.pop_front() {
                taken += order.weight();
                batch.push(order);
            }
            if waiting.is_empty() {
                self.by_server.remove(&server);
            } else {
                self.turns.push_back(server);
            }
        }
        batch
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::task::schedule::Chance;
    use crate::task::{Failure, FailureKind, Json, Outcome, Policy, Snapshot, Status, Toolset, Tracked};

    pub(in crate::worker) fn order(server: &str, n: u64) -> Order {
        let toolset = Toolset::new("report", "submit", "status", "cancel");
        let binding = Arc::new(Binding { server_name: server.into(), driver: "tools".into(), toolset });
        let task = Tracked {
            remote_task_id: Some("r".into()),
            status: Status::Working,
            ..Tracked::new(&format!("{server}{n}"), "u", "t", Arc::clone(&binding))
        };
        let failure = Failure::new(FailureKind::Timeout, "no answer");
        let change = task.on_error(&failure, 0, &Policy::default(), Chance::NONE);
        let write = TaskWrite { id: Arc::clone(&task.id), epoch: 1, change };
        Order { worker: "w".into(), ticket: n, binding, write }
    }

    fn ids(batch: &[Order]) -> Vec<&str> {
        batch.iter().map(|order| &*order.write.id).collect()
    }

    #[test]
    fn a_flood_of_one_servers_writes_leaves_the_others_their_turns_29() {
        let mut queue = Queue::default();
        (0..1_000).for_each(|n| queue.push(order("flood", n)));
        (0..2).for_each(|n| queue.push(order("calm", n)));
        assert_eq!(ids(&queue.take(4)), ["flood0", "calm0", "flood1", "calm1"]);
        assert_eq!(ids(&queue.take(2)), ["flood2", "flood3"]);
        assert_eq!(queue.take(10_000).len(), 996);
        assert!(queue.is_empty() && queue.by_server.is_empty());
    }

    #[test]
    fn a_batch_is_bounded_in_bytes_too_28() {
        let mut queue = Queue::default();
        for n in 0..4 {
            let mut order = order("s", n);
            let failure = Snapshot::failure("c", "no").outcome;
            let result = Json::from_stored(format!("\"{}\"", "x".repeat(10 * UNIT_BYTES)));
            order.write.change.outcome = Some((Outcome { result: Some(result), ..failure }, String::new()));
            queue.push(order);
        }
        assert_eq!(queue.take(12).len(), 2);
        assert_eq!(queue.take(1).len(), 1, "one at least");
    }
}
