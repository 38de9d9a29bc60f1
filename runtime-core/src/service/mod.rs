//! What callers can do: submit, cancel, query (INTERFACE; BEHAVIOURS E, H, J).

use std::time::Duration;

use serde_json::value::RawValue;

use crate::store::{Page, TaskFilter};
use crate::task::TaskRecord;

/// Whose tasks a caller may touch; absent parts are not narrowed (operators).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Only this user's.
    pub user_id: Option<String>,
    /// Only in this thread.
    pub thread_id: Option<String>,
}

/// A submit.
#[derive(Debug, Clone)]
pub struct Submit {
    /// The owner.
    pub user_id: String,
    /// The owner's thread.
    pub thread_id: String,
    /// The configured server.
    pub server: String,
    /// The toolset's name.
    pub task: String,
    /// The text of a JSON object.
    pub arguments: Box<RawValue>,
    /// The caller's run.
    pub run_id: Option<String>,
    /// The caller's tool call.
    pub tool_call_id: Option<String>,
    /// The caller's idempotency key.
    pub idempotency_key: Option<String>,
}

/// An accepted submit.
#[derive(Debug, Clone, PartialEq)]
pub struct Submitted {
    /// The task, as it now is.
    pub task: TaskRecord,
    /// Whether an earlier submit with the same key made it.
    pub replayed: bool,
}

/// Why something could not be done. Texts are safe to show to the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// No such task for this caller, or no such server or toolset (404).
    #[error("{0}")]
    NotFound(String),
    /// The remote id is another task's, or the task's state does not allow it (409).
    #[error("{0}")]
    Conflict(String),
    /// The request is not usable (422).
    #[error("{0}")]
    Invalid(String),
    /// The server refused, or answered wrongly; no task stays (502).
    #[error("{0}")]
    Refused(String),
    /// Nobody can know whether the server took the submit; the task says so (504).
    #[error("{message}")]
    OutcomeUnknown {
        /// The local id.
        task_id: String,
        /// What happened.
        message: String,
    },
    /// The process is shutting down (503).
    #[error("the daemon is shutting down")]
    Draining,
    /// The store does not answer (503).
    #[error("the store is not available")]
    Unavailable,
    /// Something went wrong here; the log says what (500).
    #[error("internal error")]
    Internal,
}

/// What became of a cancel by an agent, who may not know the id (63).
#[derive(Debug, Clone, PartialEq)]
pub struct AgentCancel {
    /// The task that was meant, where exactly one was.
    pub task: Option<TaskRecord>,
    /// What to tell the agent.
    pub message: String,
}

/// The façade over store and worker.
#[derive(Debug)]
pub struct Service {}

impl Service {
    /// Submits; returns once the remote handle is durable. Runs to its end even if the caller goes away.
    pub async fn submit(&self, _submit: Submit) -> Result<Submitted, ServiceError> {
        unimplemented!()
    }

    /// Requests a cancel; never calls the server itself. Repeating it changes nothing (57–59).
    pub async fn cancel(&self, _access: &Access, _id: &str) -> Result<TaskRecord, ServiceError> {
        unimplemented!()
    }

    /// Requests the cancel of the one task that `id` or `name` means (63).
    pub async fn cancel_for_agent(
        &self,
        _access: &Access,
        _id: Option<&str>,
        _name: Option<&str>,
    ) -> Result<AgentCancel, ServiceError> {
        unimplemented!()
    }

    /// One task. With `wait`, answers at the next change of status, input, result or degradation, or after `wait`;
    /// a terminal task answers at once.
    pub async fn get(&self, _access: &Access, _id: &str, _wait: Duration) -> Result<TaskRecord, ServiceError> {
        unimplemented!()
    }

    /// Tasks, newest first. `filter.user_id` and `filter.thread_id` are set from the caller by the caller.
    pub async fn list(&self, _filter: &TaskFilter, _page: &Page) -> Result<Vec<TaskRecord>, ServiceError> {
        unimplemented!()
    }

    /// Makes a task due at once, whoever holds it.
    pub async fn poll_now(&self, _access: &Access, _id: &str) -> Result<TaskRecord, ServiceError> {
        unimplemented!()
    }

    /// Answers `input_required` through the toolset's input tool: `input` is any JSON.
    pub async fn input(&self, _access: &Access, _id: &str, _input: &RawValue) -> Result<TaskRecord, ServiceError> {
        unimplemented!()
    }
}
