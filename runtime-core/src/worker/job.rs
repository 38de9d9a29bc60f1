//! One call about one task, and what follows from its answer.

use std::sync::Arc;
use std::time::Duration;

use super::Context;
use crate::contract::{CancelReading, StatusReading};
use crate::driver::{SubmitCall, SubmitFailure, scope_of};
use crate::store::{NewHandle, Recorded, WorkerId};
use crate::task::schedule::Chance;
use crate::task::{Change, Decision, Failure, FailureKind, Status, Tracked};

/// What a due task needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    /// Its status.
    Poll,
    /// Its cancel.
    Cancel,
    /// A last cancel, because it is too old.
    Expire,
    /// An end or a second submit, because its first one died with its process.
    Resolve,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Effect {
    /// A decision about the held task.
    Decided(Decision),
    /// The row was written already; this is it, and whether it is still held.
    Recorded(Box<Tracked>, bool),
    /// The row is another's.
    Lost,
}

/// A finished job.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) effect: Effect,
    /// The failure, if it was one: it feeds the breaker.
    pub(super) failure: Option<Failure>,
}

impl Job {
    /// What `task` needs at `now`.
    pub(super) fn of(task: &Tracked, context: &Context) -> Self {
        let now = context.now();
        match task.status {
            Status::Submitting => Self::Resolve,
            _ if task.cancel_requested_at.is_some() && task.expired(now, &context.policy) => Self::Expire,
            _ if task.cancel_requested_at.is_some() => Self::Cancel,
            _ if task.expired(now, &context.policy) => Self::Expire,
            _ => Self::Poll,
        }
    }

    /// Runs to the end; a panic inside counts as a failure of this task alone (49).
    pub(super) async fn run(self, context: &Context, task: &Tracked, worker: &WorkerId) -> Done {
        match self {
            Self::Poll => poll(context, task).await,
            // Boxed, so that a poll's future has no room for these.
            Self::Cancel => Box::pin(cancel(context, task, false)).await,
            Self::Expire => Box::pin(cancel(context, task, true)).await,
            Self::Resolve => Box::pin(resolve(context, task, worker)).await,
        }
    }

    /// What a failure of this job does to the task.
    pub(super) fn failed(self, context: &Context, task: &Tracked, failure: &Failure) -> Change {
        let (now, policy, chance) = (context.now(), &context.policy, chance());
        let mut change = match self {
            Self::Cancel => task.on_cancel_error(failure, now, policy, chance),
            Self::Expire => task.on_expired(now),
            Self::Poll | Self::Resolve => task.on_error(failure, now, policy, chance),
        };
        // A task that cannot be polled here must stay open to a worker that can (48).
        change.release |= failure.kind == FailureKind::Unroutable;
        change
    }

    /// A finished job that failed.
    pub(super) fn done(self, context: &Context, task: &Tracked, failure: Failure) -> Done {
        let change = self.failed(context, task, &failure);
        Done { effect: Effect::Decided(Decision::Write(Box::new(change))), failure: Some(failure) }
    }
}

pub(super) fn chance() -> Chance {
    Chance::new(fastrand::f64())
}

fn decided(change: Change) -> Done {
    Done { effect: Effect::Decided(Decision::Write(Box::new(change))), failure: None }
}

async fn poll(context: &Context, task: &Tracked) -> Done {
    match context.driver.status(task).await {
        StatusReading::Snapshot(snapshot) => {
            let decision = task.on_answer(*snapshot, context.now(), &context.policy, chance());
            Done { effect: Effect::Decided(decision), failure: None }
        }
        StatusReading::Failure(failure) => Job::Poll.done(context, task, failure),
    }
}

async fn cancel(context: &Context, task: &Tracked, expiring: bool) -> Done {
    let remote_id = task.remote_task_id.as_deref().unwrap_or_default();
    match context.driver.cancel(&task.binding, &scope_of(task), remote_id).await {
        CancelReading::Ended(snapshot) => decided(task.on_cancel_answer(*snapshot, context.now())),
        CancelReading::Failure(failure) => {
            (if expiring { Job::Expire } else { Job::Cancel }).done(context, task, failure)
        }
    }
}

/// Resolves an intent whose process died between the insert and the record (DESIGN, Submit without orphans).
async fn resolve(context: &Context, task: &Tracked, worker: &WorkerId) -> Done {
    let unknown = |why: &str| decided(task.on_submit_unknown(why, context.now()));
    if task.cancel_requested_at.is_some() || !task.binding.toolset.idempotent_submit {
        return unknown("The process that submitted the task ended before the server's answer was recorded");
    }
    let record = match context.store.find_task(&task.id, None, None).await {
        Ok(record) => record,
        Err(error) => {
            tracing::warn!(task.id = %task.id, %error, "an unfinished submit cannot be read");
            let failure = Failure::new(FailureKind::Internal, "the unfinished submit cannot be read");
            return Job::Resolve.done(context, task, failure);
        }
    };
    let Some(record) = record.filter(|record| record.lease_owner.as_deref() == Some(worker)) else {
        return Done { effect: Effect::Lost, failure: None };
    };
    let arguments = record.arguments.and_then(|text| serde_json::value::RawValue::from_string(text).ok());
    let Some(arguments) = arguments else {
        return unknown("The arguments of the unfinished submit were not kept, so it cannot be repeated");
    };
    let started = context.now();
    let scope = scope_of(task);
    let key = record.idempotency_key.as_deref().unwrap_or(&task.id);
    let call = SubmitCall { binding: &task.binding, scope: &scope, arguments: &arguments, idempotency_key: key };
    match context.driver.submit(call).await {
        Ok(remote_task_id) => {
            let handle = NewHandle {
                worker: Arc::clone(worker),
                id: Arc::clone(&task.id),
                epoch: task.lease_epoch,
                remote_task_id,
                next_due_at: started + context.policy.poll_interval_ms,
                keep: true,
                at: context.now(),
            };
            record_handle(context, task, &handle).await
        }
        Err(SubmitFailure::Refused(refusal)) => unknown(&format!("The repeated submit was refused: {refusal}")),
        Err(SubmitFailure::NotSent(why) | SubmitFailure::Unknown(why)) => {
            Job::Resolve.done(context, task, Failure::new(FailureKind::Transport, why))
        }
    }
}

async fn record_handle(context: &Context, task: &Tracked, handle: &NewHandle) -> Done {
    loop {
        match context.store.record_submitted(handle).await {
            Ok(Recorded::Done { task, kept }) => {
                return Done { effect: Effect::Recorded(task, kept), failure: None };
            }
            Ok(Recorded::Stale) => return Done { effect: Effect::Lost, failure: None },
            Ok(Recorded::Duplicate) => {
                let why = "The repeated submit returned a task that is tracked already";
                return decided(task.on_submit_unknown(why, context.now()));
            }
            // The same statement again is safe: its guard lets it through once, and a late first attempt leaves it stale,
            // after which reconciling finds the row as it is.
            Err(error) if error.is_transient() => {
                tracing::warn!(task.id = %task.id, %error, "recording a resolved submit is tried again");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(error) => {
                tracing::error!(task.id = %task.id, %error, "a resolved submit cannot be recorded");
                let failure = Failure::new(FailureKind::Internal, "the resolved submit cannot be recorded");
                return Job::Resolve.done(context, task, failure);
            }
        }
    }
}
