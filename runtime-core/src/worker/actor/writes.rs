//! Writes: what is decided goes to the writer, and comes back.

use std::sync::Arc;

use super::Actor;
use crate::clock::Millis;
use crate::store::TaskWrite;
use crate::task::transition::code;
use crate::task::{Change, ChangeKind, Failure, FailureKind, Status, Tracked, server_label};
use crate::worker::held::Phase;
use crate::worker::job::{Job, held_back};
use crate::worker::queue::Order;
use crate::worker::writer::Written;

/// Counters of unchanged polls written a tick, at least; a thirty-second of all held tasks where that is more.
const TOUCHES: usize = 100;

impl Actor {
    /// What is due later than twice the claim's reach goes back, so that a 24-hour hint costs nothing.
    pub(super) fn is_far(&self, due: Millis) -> bool {
        due.saturating_sub(self.context.now()) > 2 * self.horizon()
    }

    /// Gives a change to the writer, or parks it while the lease is uncertain.
    pub(super) fn write(&mut self, id: &Arc<str>, mut change: Change) {
        // A cancel that was taken beyond the room makes room for the next one at its first error.
        let crowded_out = change.kind == ChangeKind::Cancel && self.held.len() > self.context.options.max_held;
        change.release |= crowded_out || self.drain.is_some() || self.is_far(change.next_due_at);
        let fenced = self.fenced();
        let Some(worker) = self.worker.as_ref().map(|worker| Arc::clone(&worker.id)) else { return };
        self.held.stop_timer(id);
        let Some(held) = self.held.get_mut(id) else { return };
        if fenced {
            held.phase = Phase::Parked(Box::new(change));
            return;
        }
        self.serial += 1;
        held.phase = Phase::Writing(self.serial);
        let binding = Arc::clone(&held.task.binding);
        let write = TaskWrite { id: Arc::clone(id), epoch: held.task.lease_epoch, change };
        let order = Order { worker, ticket: self.serial, binding, write };
        self.lanes.sent(&order.binding.server_name, order.weight());
        // The writer lives as long as this end of its queue.
        let _ = self.orders.send(order);
    }

    /// Gives a task back, due when it is due.
    pub(super) fn release(&mut self, id: &Arc<str>) {
        let now = self.context.now();
        if let Some(change) = self.held.get(id).map(|held| held.task.on_release(now)) {
            self.write(id, change);
        }
    }

    pub(super) fn written(&mut self, order: Order, result: Written) {
        self.lanes.written(&order.binding.server_name, order.weight());
        let Order { ticket, binding, write: TaskWrite { id, change, .. }, .. } = order;
        let current = self.held.get(&id).is_some_and(|held| matches!(held.phase, Phase::Writing(t) if t == ticket));
        if matches!(result, Written::Done(_)) && change.kind != ChangeKind::Touch {
            self.context.announce(&id);
        }
        if !current {
            return;
        }
        match result {
            Written::Stale => {
                if change.kind == ChangeKind::Poll {
                    let server = server_label(self.lanes.of(&binding.server_name));
                    self.context.metrics.polls.with_label_values(&[server, "stale"]).inc();
                }
                self.lose(&id, "stale");
            }
            Written::Done(_) if change.release => {
                if !change.status.is_terminal() && !self.is_far(change.next_due_at) {
                    self.context.announce_due();
                }
                if let Some(held) = self.held.remove(&id) {
                    if change.status.is_terminal() {
                        self.ended(&held.task, &change);
                    } else if change.status != held.task.status {
                        self.tell(&held.task, &change, "task changed");
                    }
                }
            }
            Written::Done(epoch) => {
                if let Some(held) = self.held.get(&id).filter(|held| held.task.status != change.status) {
                    self.tell(&held.task, &change, "task changed");
                }
                self.held.applied(&id, &change, epoch);
                if self.drain.is_some() { self.release(&id) } else { self.held.wait(&id) }
            }
            Written::Refused => self.refused(&id, &change),
        }
    }

    /// The store takes everything but these values: the task is told so, and polled on.
    pub(super) fn refused(&mut self, id: &Arc<str>, change: &Change) {
        let failure = Failure::new(FailureKind::Internal, "the store refused the server's answer");
        let Some(task) = self.held.get(id).map(|held| held.task.clone()) else { return };
        if task.status == Status::Submitting && ends_as_the_server_says(change) {
            // The work is done, and the call that would tell of it again would do it again.
            let why = "the server has done the work, but its answer could not be recorded";
            return self.write(id, task.on_submit_unknown(why, self.context.now()));
        }
        // An end of our own making has nothing of the server's in it: what is refused then is anything.
        let job =
            Job::of(&task, &self.context).filter(|_| change.outcome.is_some() && change.kind != ChangeKind::Close);
        if let Some(job) = job {
            let retry = job.failed(&self.context, &task, &failure);
            return self.write(id, retry);
        }
        // Not even that: hold it back in memory, so that nothing retries in a tight loop.
        let retry = held_back(&self.context, &task, &failure);
        let latest = self.context.now() + self.horizon();
        if let Some(held) = self.held.get_mut(id) {
            let task = Arc::make_mut(&mut held.task);
            task.next_due_at = retry.next_due_at.min(latest);
            task.consecutive_poll_error_count = retry.consecutive_poll_error_count;
            task.cancel_attempt_count = retry.cancel_attempt_count;
        }
        self.held.wait(id);
    }

    pub(super) fn ended(&self, task: &Tracked, change: &Change) {
        self.context.metrics.finished(server_label(self.lanes.of(&task.binding.server_name)), task, change);
        self.tell(task, change, "task ended");
    }

    /// One line for each change of a task's status; a poll that finds nothing new has none.
    fn tell(&self, task: &Tracked, change: &Change, what: &'static str) {
        let worker = self.worker.as_ref().map_or("", |worker| &*worker.id);
        let (server, status) = (&*task.binding.server_name, change.status.as_str());
        let error_code = change.outcome.as_ref().and_then(|(outcome, _)| outcome.error_code.as_deref());
        tracing::info!(task.id = %task.id, server, worker, status, error_code, "{what}");
    }

    /// Writes the counters of unchanged polls that are a lease old; a part of them at a time, so that they make no burst.
    pub(super) fn touch(&mut self) {
        if !self.may_call() {
            return;
        }
        let before = self.context.boot().saturating_sub(self.context.options.lease);
        let now = self.context.now();
        for id in self.held.unwritten(before, TOUCHES.max(self.held.len() / 32)) {
            if let Some(change) = self.held.get(&id).map(|held| held.task.on_touch(now)) {
                self.write(&id, change);
            }
        }
    }
}

/// Whether a write closes an intent with what its server answered, rather than with an end of our own making.
fn ends_as_the_server_says(change: &Change) -> bool {
    let code = change.outcome.as_ref().map(|(outcome, _)| outcome.error_code.as_deref());
    change.kind == ChangeKind::Close && code.is_some_and(|code| code != Some(code::SUBMIT_OUTCOME_UNKNOWN))
}
