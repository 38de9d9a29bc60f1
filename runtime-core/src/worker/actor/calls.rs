//! Calls: who gets the next slot, and what came of it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::{Actor, Running};
use crate::clock::Millis;
use crate::task::{Change, Decision, Failure, FailureKind, server_label};
use crate::worker::Context;
use crate::worker::held::Phase;
use crate::worker::job::{Done, Effect, Job, unrepeatable};
use crate::worker::lanes::{Slot, Turn};
use crate::worker::message::Message;

impl Actor {
    pub(super) fn dispatch(&mut self) {
        if !self.may_call() {
            return;
        }
        let now = self.context.now();
        while let Some(id) = self.held.pop_due(now) {
            let Some(held) = self.held.get_mut(&id) else { continue };
            if Job::of(&held.task, &self.context).is_none() {
                let change = unrepeatable(&self.context, &held.task);
                self.write(&id, change);
                continue;
            }
            let slot = if held.task.cancel_requested_at.is_some() { Slot::Cancel } else { Slot::Poll };
            held.phase = Phase::Queued(slot);
            let due = held.task.next_due_at;
            self.lanes.push(&held.task.binding.server_name, slot, due, id);
        }
        let boot = self.context.boot();
        for slot in [Slot::Cancel, Slot::Poll] {
            while let Some(turn) = self.lanes.take(slot, boot) {
                if let Err(turn) = self.start(turn, slot, now) {
                    self.lanes.finish(&turn.lane, slot);
                    if turn.probe {
                        self.lanes.breaker(&turn.lane).abandoned();
                    }
                }
            }
        }
        while let Some((id, why)) = self.lanes.take_held_back(boot) {
            self.hold_back(&id, why);
        }
    }

    /// A skipped due time counts as one error of the task, with its backoff (159).
    fn hold_back(&mut self, id: &Arc<str>, why: String) {
        let Some(task) = self.held.get(id).map(|held| Arc::clone(&held.task)) else { return };
        let Some(kind) = Job::of(&task, &self.context) else { return };
        let failure = Failure::new(FailureKind::Breaker, why);
        self.count_failure(&task.binding.server_name, kind, &failure);
        let change = kind.failed(&self.context, &task, &failure);
        self.observe_backoff(&task.binding.server_name, &failure, &change);
        self.write(id, change);
    }

    /// Starts the call that a due task needs; the turn comes back where there is nothing to start.
    fn start(&mut self, turn: Turn, slot: Slot, now: Millis) -> Result<(), Turn> {
        let Some(worker) = self.worker.as_ref().map(|worker| Arc::clone(&worker.id)) else { return Err(turn) };
        let Some(held) = self.held.get_mut(&turn.id) else { return Err(turn) };
        let task = Arc::clone(&held.task);
        let Some(kind) = Job::of(&task, &self.context) else { return Err(turn) };
        let Turn { lane: server, id, probe } = turn;
        if kind == Job::Poll {
            self.context.metrics.poll_lateness.observe(now.saturating_sub(task.next_due_at).max(0) as f64 / 1_000.0);
        }
        self.context.metrics.polls_in_flight.with_label_values(&[server_label(&server)]).inc();
        self.serial += 1;
        let job = self.serial;
        held.phase = Phase::Running(job);
        let (context, messages) = (Arc::clone(&self.context), self.messages.clone());
        let flight = Flight { context: Arc::clone(&context), server: server.clone() };
        let abort = self.context.tasks.spawn(async move {
            let _flight = flight;
            let started = Instant::now();
            let done = AssertUnwindSafe(kind.run(&context, &task, &worker)).catch_unwind().await.unwrap_or_else(|_| {
                tracing::error!(task.id = %task.id, "handling the task panicked");
                kind.done(&context, &task, Failure::new(FailureKind::Internal, "handling the task went wrong here"))
            });
            // Before the actor changes its copy: a task that nobody else looks at is changed in place.
            drop(task);
            let _ = messages.send(Message::Finished { job, done: Box::new(done), took: started.elapsed() });
        });
        let running = Running { task: id, server, slot, kind, probe, abort };
        self.running.insert(job, running);
        Ok(())
    }

    pub(super) fn finished(&mut self, job: u64, done: Done, took: Duration) {
        // A job that was aborted may still have sent its end.
        let Some(running) = self.running.remove(&job) else { return };
        let server = &*running.server;
        self.lanes.finish(server, running.slot);
        self.context.metrics.poll_duration.with_label_values(&[server_label(server)]).observe(took.as_secs_f64());
        let boot = self.context.boot();
        let breaker = self.lanes.breaker(server);
        let closed = breaker.is_closed();
        breaker.ended(running.probe, done.failure.as_ref(), boot.saturating_sub(took), boot);
        // Once an outage, not once a call.
        match (closed, breaker.is_closed()) {
            (true, false) => {
                tracing::warn!(server, reason = breaker.reason(), "the server does not answer as it should");
            }
            (false, true) => tracing::info!(server, "the server answers again"),
            _ => {}
        }
        if let Some(failure) = &done.failure {
            self.count_failure(server, running.kind, failure);
            if let Effect::Decided(Decision::Write(change)) = &done.effect {
                self.observe_backoff(server, failure, change);
            }
        } else if running.kind == Job::Poll {
            self.context.metrics.polls.with_label_values(&[server_label(server), outcome(&done.effect)]).inc();
        }
        let current =
            self.held.get(&running.task).is_some_and(|held| matches!(held.phase, Phase::Running(j) if j == job));
        if !current {
            return;
        }
        let id = running.task;
        match done.effect {
            Effect::Lost => {
                // Or it is ours still, under an epoch that an unseen write of our own has given it.
                self.want_reconcile = true;
                self.lose(&id, "stale");
            }
            Effect::Recorded(task, kept) => {
                self.held.remove(&id);
                self.context.metrics.recorded();
                let _ = self.context.changes.send(Arc::clone(&id));
                if kept {
                    self.hold(*task);
                } else {
                    self.want_claim = true;
                }
            }
            Effect::Decided(Decision::Unchanged { next_due_at }) => {
                self.held.unchanged(&id, next_due_at, self.context.now(), boot);
                if self.drain.is_some() || self.is_far(next_due_at) {
                    self.release(&id);
                } else {
                    self.held.wait(&id);
                }
            }
            Effect::Decided(Decision::Write(change)) => self.write(&id, *change),
        }
    }

    fn observe_backoff(&self, server: &str, failure: &Failure, change: &Change) {
        let labels = [server_label(self.lanes.of(server)), failure.kind.as_str()];
        let wait = change.next_due_at.saturating_sub(change.at).max(0);
        self.context.metrics.poll_backoff.with_label_values(&labels).observe(wait as f64 / 1_000.0);
    }

    fn count_failure(&self, server: &str, kind: Job, failure: &Failure) {
        let server = server_label(self.lanes.of(server));
        if kind == Job::Poll {
            self.context.metrics.polls.with_label_values(&[server, failure.kind.as_str()]).inc();
        }
        self.context.metrics.poll_retries.with_label_values(&[server, failure.kind.as_str()]).inc();
    }
}

/// Counts a call as in flight until it ends, however it does.
struct Flight {
    context: Arc<Context>,
    server: Box<str>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.context.metrics.polls_in_flight.with_label_values(&[server_label(&self.server)]).dec();
    }
}

/// The label of a poll that brought an answer.
fn outcome(effect: &Effect) -> &'static str {
    match effect {
        Effect::Decided(Decision::Unchanged { .. }) => "unchanged",
        Effect::Decided(Decision::Write(change)) if !change.status.is_terminal() => "changed",
        Effect::Decided(Decision::Write(change)) => {
            let code = change.outcome.as_ref().and_then(|(outcome, _)| outcome.error_code.as_deref());
            if code == Some(crate::task::transition::code::TASK_NOT_FOUND) { "not_found" } else { "terminal" }
        }
        Effect::Recorded(..) | Effect::Lost => "changed",
    }
}
