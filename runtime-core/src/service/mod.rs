//! What callers can do: submit, cancel, query (INTERFACE; BEHAVIOURS E, H, J).

mod cancel;
mod query;
mod submit;

use std::sync::Arc;

use serde_json::value::RawValue;

use crate::driver::{Driver, Routes};
use crate::store::{SharedStore, StoreError};
use crate::task::TaskRecord;
use crate::upstream::Secrets;
use crate::worker::{Metrics, Worker};

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
    /// Secrets of this one request, for a server that takes headers from there (120). They are nowhere kept: a submit that
    /// carried some is not repeated after a crash.
    pub secrets: Secrets,
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

/// The façade over store and worker; cheap to clone.
#[derive(Clone)]
pub struct Service {
    worker: Worker,
    store: SharedStore,
    driver: Arc<dyn Driver>,
    routes: Arc<Routes>,
    metrics: Metrics,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("routes", &self.routes).finish_non_exhaustive()
    }
}

impl Service {
    /// A façade over a running worker.
    pub fn new(worker: Worker) -> Self {
        let context = Arc::clone(worker.context());
        Self {
            store: Arc::clone(&context.store),
            driver: Arc::clone(&context.driver),
            routes: Arc::clone(&context.routes),
            metrics: context.metrics.clone(),
            worker,
        }
    }

    /// The worker behind it.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The store behind it, for reads.
    pub fn store(&self) -> &SharedStore {
        &self.store
    }
}

/// What a caller is told of a store's error; its text goes to the log only.
fn unavailable(error: &StoreError) -> ServiceError {
    if error.is_transient() {
        tracing::warn!(%error, "the store does not answer");
        ServiceError::Unavailable
    } else {
        tracing::error!(%error, "the store refuses a request");
        ServiceError::Internal
    }
}

fn not_found(id: &str) -> ServiceError {
    ServiceError::NotFound(format!("task {id:?} not found"))
}
