//! A task's row, whole and as a worker holds it.

use std::sync::Arc;

use super::{Outcome, Status};
use crate::clock::Millis;

/// A configured group of tools that makes one kind of task (BEHAVIOURS D). Names are the server's raw ones.
///
/// Where the server's tasks are MCP's own, all of them but the submit tool are absent: their names are empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Toolset {
    /// The task's name, ≤ 255 characters.
    pub name: String,
    /// Starts the work.
    pub submit_tool: String,
    /// Tells how it stands.
    pub status_tool: String,
    /// Ends it.
    pub cancel_tool: String,
    /// Takes an answer to `input_required`, where there is one.
    pub input_tool: Option<String>,
    /// Whether the submit tool may be called again with the same idempotency key.
    pub idempotent_submit: bool,
}

impl Toolset {
    /// A toolset that takes no input, and whose submits are not repeated.
    pub fn new(name: &str, submit_tool: &str, status_tool: &str, cancel_tool: &str) -> Self {
        Self {
            name: name.to_owned(),
            submit_tool: submit_tool.to_owned(),
            status_tool: status_tool.to_owned(),
            cancel_tool: cancel_tool.to_owned(),
            input_tool: None,
            idempotent_submit: false,
        }
    }

    /// The driver of ordinary tools.
    pub const TOOLS: &'static str = "tools";
    /// The driver of MCP's own tasks.
    pub const NATIVE: &'static str = "native";

    /// How the server is spoken to about its tasks.
    pub fn driver(&self) -> &'static str {
        if self.status_tool.is_empty() { Self::NATIVE } else { Self::TOOLS }
    }

    /// The tools that only the daemon calls.
    pub fn hidden_tools(&self) -> impl Iterator<Item = &str> {
        let own = [self.status_tool.as_str(), self.cancel_tool.as_str()].into_iter().filter(|tool| !tool.is_empty());
        own.chain(self.input_tool.as_deref())
    }

    /// All of its tools.
    pub fn tools(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.submit_tool.as_str()).chain(self.hidden_tools())
    }
}

/// Which server, driver and tools a task belongs to; shared between the tasks that have it in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Binding {
    /// The configured name of the server, ≤ 128 characters.
    pub server_name: String,
    /// How the server is spoken to about tasks: [`Toolset::TOOLS`] or [`Toolset::NATIVE`].
    pub driver: String,
    /// The toolset as it was when the task was submitted.
    pub toolset: Toolset,
}

/// A task's row without payloads: what a worker needs to poll it and to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracked {
    /// The local id, `mcp-task-…`, ≤ 64 characters.
    pub id: Arc<str>,
    /// The owner.
    pub user_id: Box<str>,
    /// The owner's thread.
    pub thread_id: Box<str>,
    /// Server and tools.
    pub binding: Arc<Binding>,
    /// The server's id of the task; absent while `submitting`.
    pub remote_task_id: Option<Box<str>>,
    /// The stored status.
    pub status: Status,
    /// [`super::Snapshot::digest`] of what is stored; absent before the first answer.
    pub digest: Option<Box<str>>,
    /// [`super::fingerprint`] of the last event of note.
    pub event_fingerprint: Option<Box<str>>,
    /// When it is due.
    pub next_due_at: Millis,
    /// Polls so far.
    pub poll_attempt_count: i64,
    /// Errors since the last applied answer.
    pub consecutive_poll_error_count: i64,
    /// When it was last polled.
    pub last_polled_at: Option<Millis>,
    /// When its cancel was asked for.
    pub cancel_requested_at: Option<Millis>,
    /// Cancels tried so far.
    pub cancel_attempt_count: i64,
    /// The row's version; every write is guarded by it and bumps it.
    pub lease_epoch: i64,
    /// When it was created.
    pub created_at: Millis,
}

impl Tracked {
    /// A task that nothing has happened to: `submitting`, at epoch 1, created and due at the epoch's beginning.
    pub fn new(id: &str, user_id: &str, thread_id: &str, binding: Arc<Binding>) -> Self {
        Self {
            id: id.into(),
            user_id: user_id.into(),
            thread_id: thread_id.into(),
            binding,
            remote_task_id: None,
            status: Status::Submitting,
            digest: None,
            event_fingerprint: None,
            next_due_at: 0,
            poll_attempt_count: 0,
            consecutive_poll_error_count: 0,
            last_polled_at: None,
            cancel_requested_at: None,
            cancel_attempt_count: 0,
            lease_epoch: 1,
            created_at: 0,
        }
    }

    /// Whether tracking counts as degraded (47).
    pub fn degraded(&self, policy: &super::Policy) -> bool {
        self.consecutive_poll_error_count >= policy.degraded_after
    }
}

/// A task's whole row, as queries return it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRecord {
    /// The part a worker holds.
    pub tracked: Tracked,
    /// The caller's run, where it named one.
    pub run_id: Option<String>,
    /// The caller's tool call, where it named one.
    pub tool_call_id: Option<String>,
    /// The payloads.
    pub outcome: Outcome,
    /// The last poll error or warning.
    pub last_poll_error: Option<String>,
    /// The last cancel error.
    pub last_cancel_error: Option<String>,
    /// The worker that holds it.
    pub lease_owner: Option<String>,
    /// The key under which it was submitted.
    pub idempotency_key: Option<String>,
    /// The hash of the body submitted under that key.
    pub body_hash: Option<String>,
    /// The arguments, kept for an idempotent resubmit until the remote id is recorded.
    pub arguments: Option<String>,
    /// When a column that the user sees last changed.
    pub updated_at: Millis,
    /// When it ended.
    pub completed_at: Option<Millis>,
}

impl std::ops::Deref for TaskRecord {
    type Target = Tracked;

    fn deref(&self) -> &Tracked {
        &self.tracked
    }
}
