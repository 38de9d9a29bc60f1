//! One call about one task, and what follows from its answer.

use std::sync::Arc;
use std::time::Duration;

use super::Context;
use crate::contract::{CancelReading, Created, Handle, Refusal, StatusReading};
use crate::driver::{NoRoute, SubmitCall, SubmitFailure, scope_of};
use crate::store::{NewHandle, Recorded, WorkerId};
use crate::task::schedule::{Chance, MAX_WAIT_MS};
use crate::task::{Change, Decision, Failure, FailureKind, Status, Tracked};
use crate::upstream::Scope;

/// Why an intent that must not be repeated ends.
const UNRECORDED: &str = "The process that submitted the task ended before the server's answer was recorded";
/// Why an intent ends that could not be repeated for so long.
const TOO_OLD: &str =
    "The submit could not be repeated before the task was older than mcp_tasks.max_task_age_seconds allows";

/// What a due task needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    /// Its status.
    Poll,
    /// Its cancel.
    Cancel,
    /// A last cancel, because it is too old.
    Expire,
    /// A second submit, because its first one died with its process.
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
    /// The call that `task` needs now; none where its submit died with its process and must not be repeated.
    pub(super) fn of(task: &Tracked, context: &Context) -> Option<Self> {
        let repeatable = task.binding.toolset.idempotent_submit && task.cancel_requested_at.is_none();
        match task.status {
            Status::Submitting => repeatable.then_some(Self::Resolve),
            _ if task.expired(context.now(), &context.policy) => Some(Self::Expire),
            _ if task.cancel_requested_at.is_some() => Some(Self::Cancel),
            _ => Some(Self::Poll),
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
        // A call that was never made is no last cancel: the task waits for one, though not for ever (133).
        let given_up = policy.expires_at(task.created_at).is_some_and(|at| now >= at.saturating_add(MAX_WAIT_MS));
        let held = matches!(
            failure.kind,
            FailureKind::Breaker | FailureKind::Unroutable | FailureKind::Intercepted | FailureKind::Denied
        );
        let called = given_up || !held;
        let mut change = match self {
            Self::Cancel => task.on_cancel_error(failure, now, policy, chance),
            Self::Expire if called => task.on_expired(now),
            Self::Expire => held_back(context, task, failure),
            Self::Resolve if task.expired(now, policy) => task.on_submit_unknown(TOO_OLD, now),
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

/// The end of an intent that must not be repeated: nobody is asked.
pub(super) fn unrepeatable(context: &Context, task: &Tracked) -> Change {
    task.on_submit_unknown(UNRECORDED, context.now())
}

/// An error of a task that is too old already. Its age bounds no wait any more, or it would be tried without a pause.
pub(super) fn held_back(context: &Context, task: &Tracked, failure: &Failure) -> Change {
    let (now, policy, chance) = (context.now(), &context.policy, chance());
    let (errors, mut change) = if task.cancel_requested_at.is_some() {
        (task.cancel_attempt_count, task.on_cancel_error(failure, now, policy, chance))
    } else {
        (task.consecutive_poll_error_count, task.on_error(failure, now, policy, chance))
    };
    change.next_due_at = policy.after_error(now, errors, failure.retry_after, chance);
    change
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
    match context.driver.cancel(&task.id, &task.binding, &scope_of(task), remote_id).await {
        CancelReading::Ended(snapshot) => decided(task.on_cancel_answer(*snapshot, context.now())),
        CancelReading::Taken(_) if expiring => decided(task.on_expired(context.now())),
        CancelReading::Taken(snapshot) => {
            decided(task.on_cancel_taken(&snapshot, context.now(), &context.policy, chance()))
        }
        CancelReading::Failure(failure) => {
            (if expiring { Job::Expire } else { Job::Cancel }).done(context, task, failure)
        }
    }
}

/// Resolves an intent whose process died between the insert and the record (DESIGN, Submit without orphans).
async fn resolve(context: &Context, task: &Tracked, worker: &WorkerId) -> Done {
    let unknown = |why: &str| decided(task.on_submit_unknown(why, context.now()));
    match context.routes.drive(&task.binding, &task.user_id) {
        Ok(_) => {}
        Err(NoRoute::Gone(why)) => return unknown(&why),
        Err(NoRoute::Elsewhere(why)) => {
            return Job::Resolve.done(context, task, Failure::new(FailureKind::Unroutable, why));
        }
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
    if record.cancel_requested_at.is_some() {
        // Asked for while it was held, which bumps no epoch.
        return unknown(UNRECORDED);
    }
    let arguments = record.arguments.and_then(|text| serde_json::value::RawValue::from_string(text).ok());
    let Some(arguments) = arguments else {
        return unknown("The arguments of the unfinished submit were not kept, so it cannot be repeated");
    };
    let started = context.now();
    let scope = scope_of(task);
    let call = SubmitCall {
        binding: &task.binding,
        scope: &scope,
        arguments: &arguments,
        task_id: &task.id,
        again: true,
        // A submit that took any kept no arguments, and is not repeated.
        headers: &[],
    };
    match context.driver.submit(call).await {
        Ok(Created::Ended(snapshot)) => decided(task.on_submit_ended(*snapshot, context.now())),
        Ok(Created::Task(Handle { remote_id, hint, ttl })) => {
            let handle = NewHandle {
                worker: Arc::clone(worker),
                id: Arc::clone(&task.id),
                epoch: task.lease_epoch,
                remote_task_id: remote_id,
                next_due_at: context.policy.first_poll(started, hint, ttl),
                keep: context.options.polls,
                at: context.now(),
            };
            record_handle(context, task, &handle).await
        }
        Err(SubmitFailure::Refused(Refusal { message, orphan })) => {
            if let Some(orphan) = orphan {
                cancel_orphan(context, task, &scope, &orphan).await;
            }
            unknown(&format!("The repeated submit was refused: {message}"))
        }
        Err(SubmitFailure::NotSent(why) | SubmitFailure::Unknown(why)) => {
            Job::Resolve.done(context, task, Failure::new(FailureKind::Transport, why))
        }
    }
}

/// Cancels a handle that came with a refusal (152), unless somebody tracks it. This row never will: it is owned here.
async fn cancel_orphan(context: &Context, task: &Tracked, scope: &Scope, remote_id: &str) {
    match context.store.is_tracked(&task.binding.server_name, remote_id).await {
        Ok(true) => {}
        Ok(false) => match context.driver.cancel(&task.id, &task.binding, scope, remote_id).await {
            CancelReading::Ended(_) | CancelReading::Taken(_) => {
                tracing::warn!(task.id = %task.id, "a refused handle was cancelled");
            }
            CancelReading::Failure(failure) => {
                tracing::error!(task.id = %task.id, error = %failure.message, "an orphan may run on the server");
            }
        },
        Err(error) => tracing::error!(task.id = %task.id, %error, "an orphan is left alone: who tracks it is unknown"),
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
                tokio::time::sleep(Duration::from_millis(300 + fastrand::u64(..400))).await;
            }
            Err(error) => {
                tracing::error!(task.id = %task.id, %error, "a resolved submit cannot be recorded");
                let failure = Failure::new(FailureKind::Internal, "the resolved submit cannot be recorded");
                return Job::Resolve.done(context, task, failure);
            }
        }
    }
}
