//! What an answer, an error, a cancel or age does to a task: `(tracked, event, now, policy) → Decision`.
//!
//! The store only compares and sets what is decided here.

use std::time::Duration;

use super::limits::{ERROR_MAX_CHARS, clip};
use super::schedule::{Chance, within_ttl};
use super::{EventKind, Outcome, Policy, Snapshot, Status, Tracked, fingerprint};
use crate::clock::Millis;

/// Error codes of our own.
pub mod code {
    /// The server broke the task contract (8–15).
    pub const CONTRACT_VIOLATION: &str = "contract_violation";
    /// The task got older than `max_task_age_seconds` (133).
    pub const TASK_EXPIRED: &str = "task_expired";
    /// Nobody can know whether the submit reached the server (145).
    pub const SUBMIT_OUTCOME_UNKNOWN: &str = "submit_outcome_unknown";
    /// The server does not know the task any more (11).
    pub const TASK_NOT_FOUND: &str = "task_not_found";
    /// The tool of a native task reported an error (`isError`): the task is completed, as the protocol has it.
    pub const TOOL_ERROR: &str = "tool_error";
    /// The personal connection that the task is on was changed, switched off or deleted (50).
    pub const CONNECTION_GONE: &str = "connection_gone";
}

/// How a call failed; the label of `polls_total` and `poll_retries_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The tool answered `isError` (16).
    ToolError,
    /// No answer within the deadline.
    Timeout,
    /// The connection failed or the server answered with an error (22).
    Transport,
    /// 401 or 403.
    Auth,
    /// A JSON-RPC error, or no MCP answer at all (146).
    Protocol,
    /// The breaker held the call back (159).
    Breaker,
    /// The server or driver is not configured here (48, 50).
    Unroutable,
    /// Handling the answer went wrong here (49).
    Internal,
    /// An interceptor refused the call, or could not be asked (139).
    Intercepted,
    /// There was no credential to make the call with (118, 119).
    Denied,
}

impl FailureKind {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::ToolError,
        Self::Timeout,
        Self::Transport,
        Self::Auth,
        Self::Protocol,
        Self::Breaker,
        Self::Unroutable,
        Self::Internal,
        Self::Intercepted,
        Self::Denied,
    ];

    /// The metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ToolError => "tool_error",
            Self::Timeout => "timeout",
            Self::Transport => "transport",
            Self::Auth | Self::Denied => "auth",
            Self::Protocol => "protocol",
            Self::Breaker => "breaker",
            Self::Unroutable => "unroutable",
            Self::Internal => "internal",
            Self::Intercepted => "intercepted",
        }
    }
}

/// A call that told nothing about the task: it is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong.
    pub kind: FailureKind,
    /// What to show; bounded when stored.
    pub message: String,
    /// The server's `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure without `Retry-After`.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None }
    }
}

/// Why a row is written; the label of `rows_written_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// An answer or an error of a poll.
    Poll,
    /// An answer or an error of a cancel.
    Cancel,
    /// The task goes back to the store.
    Release,
    /// Counters of unchanged polls, written lazily.
    Touch,
    /// An unfinished intent, or a task too old, is ended.
    Close,
}

impl ChangeKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Poll, Self::Cancel, Self::Release, Self::Touch, Self::Close];

    /// The metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Cancel => "cancel",
            Self::Release => "release",
            Self::Touch => "touch",
            Self::Close => "close",
        }
    }
}

/// The new values of a task's row. Columns that are not here do not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Why.
    pub kind: ChangeKind,
    /// The status.
    pub status: Status,
    /// The payloads and their digest, where they change.
    pub outcome: Option<(Outcome, String)>,
    /// When it is due.
    pub next_due_at: Millis,
    /// Polls so far.
    pub poll_attempt_count: i64,
    /// Errors since the last applied answer.
    pub consecutive_poll_error_count: i64,
    /// When it was last polled.
    pub last_polled_at: Option<Millis>,
    /// The last poll error or warning, where that changes.
    pub last_poll_error: Option<Option<String>>,
    /// Cancels tried so far.
    pub cancel_attempt_count: i64,
    /// The last cancel error, where that changes.
    pub last_cancel_error: Option<Option<String>>,
    /// The fingerprint of the last event of note.
    pub event_fingerprint: Option<String>,
    /// When it ended.
    pub completed_at: Option<Millis>,
    /// Whether the worker lets go of it; a terminal change always does.
    pub release: bool,
    /// Events to emit in the same transaction.
    pub events: Vec<EventKind>,
    /// When this was decided; becomes `updated_at` if a column that the user sees changes.
    pub at: Millis,
}

/// What to do about a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing new: poll again at this time, and write nothing.
    Unchanged {
        /// When it is due.
        next_due_at: Millis,
    },
    /// Write this.
    Write(Box<Change>),
}

impl Tracked {
    /// A change that keeps everything as held.
    fn change(&self, kind: ChangeKind, now: Millis) -> Change {
        Change {
            kind,
            status: self.status,
            outcome: None,
            next_due_at: self.next_due_at,
            poll_attempt_count: self.poll_attempt_count,
            consecutive_poll_error_count: self.consecutive_poll_error_count,
            last_polled_at: self.last_polled_at,
            last_poll_error: None,
            cancel_attempt_count: self.cancel_attempt_count,
            last_cancel_error: None,
            event_fingerprint: self.event_fingerprint.as_deref().map(str::to_owned),
            completed_at: None,
            release: false,
            events: Vec::new(),
            at: now,
        }
    }

    /// Gives the task back to the store, due when it is due.
    pub fn on_release(&self, now: Millis) -> Change {
        Change { release: true, ..self.change(ChangeKind::Release, now) }
    }

    /// Writes the counters of unchanged polls.
    pub fn on_touch(&self, now: Millis) -> Change {
        self.change(ChangeKind::Touch, now)
    }

    /// A status answer that came in at `now` (8–18, 45, 47).
    pub fn on_answer(&self, snapshot: Snapshot, now: Millis, policy: &Policy, chance: Chance) -> Decision {
        let next_due_at = self.after_answer(&snapshot, now, policy, chance);
        let digest = snapshot.digest();
        if self.consecutive_poll_error_count == 0 && self.digest.as_deref() == Some(digest.as_str()) {
            return Decision::Unchanged { next_due_at };
        }
        let mut change = self.change(ChangeKind::Poll, now);
        change.next_due_at = next_due_at;
        change.poll_attempt_count += 1;
        change.consecutive_poll_error_count = 0;
        change.last_polled_at = Some(now);
        change.last_poll_error = Some(snapshot.warning.as_deref().map(|text| clip(text, ERROR_MAX_CHARS)));
        if self.degraded(policy) {
            change.events.push(EventKind::TrackingRecovered);
        }
        self.take(&mut change, snapshot, digest);
        Decision::Write(Box::new(change))
    }

    /// A poll that told nothing, at `now` (16, 22, 46, 47).
    pub fn on_error(&self, failure: &Failure, now: Millis, policy: &Policy, chance: Chance) -> Change {
        let errors = self.consecutive_poll_error_count;
        let due = policy.after_error(now, errors, failure.retry_after, chance);
        let mut change = self.change(ChangeKind::Poll, now);
        change.next_due_at = self.not_past_expiry(due, policy);
        change.poll_attempt_count += 1;
        change.consecutive_poll_error_count = errors.saturating_add(1);
        change.last_polled_at = Some(now);
        change.last_poll_error = Some(Some(clip(&failure.message, ERROR_MAX_CHARS)));
        if !self.degraded(policy) && change.consecutive_poll_error_count >= policy.degraded_after {
            change.events.push(EventKind::TrackingDegraded);
            let digest = self.digest.as_deref().unwrap_or_default();
            change.event_fingerprint =
                Some(fingerprint(&self.id, &self.binding.toolset.name, self.status, digest, true));
        }
        change
    }

    /// A cancel's answer: the terminal state that the server reports, whichever it is (19).
    pub fn on_cancel_answer(&self, snapshot: Snapshot, now: Millis) -> Change {
        let mut change = self.change(ChangeKind::Cancel, now);
        change.cancel_attempt_count += 1;
        change.last_cancel_error = Some(None);
        let digest = snapshot.digest();
        self.take(&mut change, snapshot, digest);
        change
    }

    /// A cancel that told nothing: it is tried again, without limit (20, 60).
    pub fn on_cancel_error(&self, failure: &Failure, now: Millis, policy: &Policy, chance: Chance) -> Change {
        let due = policy.after_error(now, self.cancel_attempt_count, failure.retry_after, chance);
        let mut change = self.change(ChangeKind::Cancel, now);
        change.next_due_at = self.not_past_expiry(due, policy);
        change.cancel_attempt_count += 1;
        change.last_cancel_error = Some(Some(clip(&failure.message, ERROR_MAX_CHARS)));
        change
    }

    /// A cancel that the server has taken, of a task that has not ended yet: it is asked on at the pace of polls.
    pub fn on_cancel_taken(&self, snapshot: &Snapshot, now: Millis, policy: &Policy, chance: Chance) -> Change {
        let mut change = self.change(ChangeKind::Cancel, now);
        change.next_due_at = self.after_answer(snapshot, now, policy, chance);
        change.cancel_attempt_count += 1;
        change.last_cancel_error = Some(None);
        change
    }

    /// The end of a task that is too old, once its last cancel brought no terminal answer (133).
    pub fn on_expired(&self, now: Millis) -> Change {
        let snapshot =
            Snapshot::failure(code::TASK_EXPIRED, "The task was older than mcp_tasks.max_task_age_seconds allows");
        let digest = snapshot.digest();
        let mut change = self.change(ChangeKind::Close, now);
        self.take(&mut change, snapshot, digest);
        change
    }

    /// The end of an intent whose submit was answered by the work's end: there is no remote task.
    pub fn on_submit_ended(&self, snapshot: Snapshot, now: Millis) -> Change {
        let digest = snapshot.digest();
        let mut change = self.change(ChangeKind::Close, now);
        self.take(&mut change, snapshot, digest);
        change
    }

    /// The end of an intent whose outcome nobody can know (145).
    pub fn on_submit_unknown(&self, why: &str, now: Millis) -> Change {
        self.on_submit_ended(Snapshot::failure(code::SUBMIT_OUTCOME_UNKNOWN, why), now)
    }

    /// Whether the task is too old at `now` (133).
    pub fn expired(&self, now: Millis, policy: &Policy) -> bool {
        policy.expires_at(self.created_at).is_some_and(|at| now >= at)
    }

    /// When to ask again after an answer: before the server may have dropped the task, and when it is too old.
    fn after_answer(&self, snapshot: &Snapshot, now: Millis, policy: &Policy, chance: Chance) -> Millis {
        let due = policy.after_answer(now, snapshot.status, snapshot.hint, chance);
        let due = snapshot.ttl.map_or(due, |ttl| within_ttl(due, now, self.created_at, ttl));
        self.not_past_expiry(due, policy)
    }

    /// A task is looked at when it expires even if its next poll is later.
    fn not_past_expiry(&self, due: Millis, policy: &Policy) -> Millis {
        policy.expires_at(self.created_at).map_or(due, |at| due.min(at))
    }

    /// Puts an answer's status and payloads into `change`, with the events that follow.
    fn take(&self, change: &mut Change, snapshot: Snapshot, digest: String) {
        change.status = snapshot.status;
        let asks_anew = snapshot.status == Status::InputRequired && self.digest.as_deref() != Some(digest.as_str());
        if snapshot.status != self.status || asks_anew {
            let of_note = snapshot.status.is_terminal() || snapshot.status == Status::InputRequired;
            // A warning about a bad hint is for operators; it is no news of the task.
            let told = Snapshot { warning: None, ..snapshot.clone() }.digest();
            let news = fingerprint(&self.id, &self.binding.toolset.name, snapshot.status, &told, false);
            if !of_note || self.event_fingerprint.as_deref() != Some(news.as_str()) {
                change.events.push(EventKind::Status(snapshot.status));
            }
            if of_note {
                change.event_fingerprint = Some(news);
            }
        }
        if snapshot.status.is_terminal() {
            change.completed_at = Some(change.at);
            change.release = true;
            // What has ended is not tracked any more, and so not badly either.
            change.consecutive_poll_error_count = 0;
        }
        change.outcome = Some((snapshot.outcome, digest));
    }

    /// Brings the held copy to what was written, under its new epoch.
    pub fn applied(&mut self, change: &Change, epoch: i64) {
        self.status = change.status;
        if let Some((_, digest)) = &change.outcome {
            self.digest = Some(digest.as_str().into());
        }
        self.event_fingerprint = change.event_fingerprint.as_deref().map(Into::into);
        self.next_due_at = change.next_due_at;
        self.poll_attempt_count = change.poll_attempt_count;
        self.consecutive_poll_error_count = change.consecutive_poll_error_count;
        self.last_polled_at = change.last_polled_at;
        self.cancel_attempt_count = change.cancel_attempt_count;
        self.lease_epoch = epoch;
    }

    /// Counts a poll that found nothing new.
    pub fn unchanged(&mut self, next_due_at: Millis, now: Millis) {
        self.next_due_at = next_due_at;
        self.poll_attempt_count += 1;
        self.last_polled_at = Some(now);
    }
}

#[cfg(test)]
#[path = "transition_tests.rs"]
mod tests;
