//! Calls: who gets the next slot, and what came of it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::{Actor, Running};
use crate::clock::Millis;
use crate::task::{Decision, Failure, FailureKind};
use crate::worker::Context;
use crate::worker::breaker::Verdict;
use crate::worker::held::Phase;
use crate::worker::job::{Done, Effect, Job};
use crate::worker::lanes::Slot;
use crate::worker::message::Message;

impl Actor {
    pub(super) fn dispatch(&mut self) {
        if !self.may_call() {
            return;
        }
        let now = self.context.now();
        while let Some(id) = self.held.pop_due(now) {
            let Some(held) = self.held.get_mut(&id) else { continue };
            let slot = if held.task.cancel_requested_at.is_some() { Slot::Cancel } else { Slot::Poll };
            held.phase = Phase::Queued(slot);
            let due = held.task.next_due_at;
            self.lanes.push(&held.task.binding.server_name, slot, due, id);
        }
        for slot in [Slot::Cancel, Slot::Poll] {
            while let Some((server, id)) = self.lanes.take(slot) {
                if !self.start(&server, &id, slot, now) {
                    self.lanes.finish(&server, slot);
                }
            }
        }
    }

    /// Starts the call that a due task needs; whether one runs now.
    pub(super) fn start(&mut self, server: &str, id: &Arc<str>, slot: Slot, now: Millis) -> bool {
        let Some(worker) = self.worker.as_ref().map(|worker| Arc::clone(&worker.id)) else { return false };
        let Some(held) = self.held.get_mut(id) else { return false };
        let task = Arc::clone(&held.task);
        let kind = Job::of(&task, &self.context);
        let breaker = self.lanes.breaker(server).filter(|_| kind.calls());
        let verdict = breaker.map_or(Verdict::Call, |breaker| breaker.ask(self.context.boot()));
        if let Verdict::Hold(why) = verdict {
            let failure = Failure::new(FailureKind::Breaker, why);
            self.count_failure(server, kind, &failure);
            let change = kind.failed(&self.context, &task, &failure);
            self.write(id, change);
            return false;
        }
        if kind == Job::Poll {
            self.context.metrics.poll_lateness.observe(now.saturating_sub(task.next_due_at).max(0) as f64 / 1_000.0);
        }
        self.context.metrics.polls_in_flight.with_label_values(&[server]).inc();
        self.serial += 1;
        let job = self.serial;
        held.phase = Phase::Running(job);
        let server: Box<str> = server.into();
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
        let running = Running { task: Arc::clone(id), server, slot, kind, abort };
        self.running.insert(job, running);
        true
    }

    pub(super) fn finished(&mut self, job: u64, done: Done, took: Duration) {
        // A job that was aborted may still have sent its end.
        let Some(running) = self.running.remove(&job) else { return };
        let server = &*running.server;
        self.lanes.finish(server, running.slot);
        self.context.metrics.poll_duration.with_label_values(&[server]).observe(took.as_secs_f64());
        let boot = self.context.boot();
        if let Some(breaker) = self.lanes.breaker(server).filter(|_| running.kind.calls()) {
            match &done.failure {
                Some(failure) => breaker.failed(failure, boot),
                None => breaker.succeeded(),
            }
        }
        if let Some(failure) = &done.failure {
            self.count_failure(server, running.kind, failure);
        } else if running.kind == Job::Poll {
            self.context.metrics.polls.with_label_values(&[server, outcome(&done.effect)]).inc();
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
                self.context.metrics.rows_written.with_label_values(&["submit"]).inc();
                let _ = self.context.changes.send(Arc::clone(&id));
                if kept {
                    self.hold(*task);
                } else {
                    self.want_claim = true;
                }
            }
            Effect::Decided(Decision::Unchanged { next_due_at }) => {
                let now = self.context.now();
                if let Some(held) = self.held.get_mut(&id) {
                    Arc::make_mut(&mut held.task).unchanged(next_due_at, now);
                    held.dirty = true;
                }
                if self.drain.is_some() || self.is_far(next_due_at) {
                    self.release(&id);
                } else {
                    self.held.wait(&id);
                }
            }
            Effect::Decided(Decision::Write(change)) => self.write(&id, *change),
        }
    }

    pub(super) fn count_failure(&self, server: &str, kind: Job, failure: &Failure) {
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
        self.context.metrics.polls_in_flight.with_label_values(&[&self.server]).dec();
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
