//! An intent that this process owns, and what its row is as a task.

use std::sync::Arc;

use http::{HeaderName, HeaderValue};

use crate::service::Submit;
use crate::store::WorkerId;
use crate::task::{Binding, Outcome, TaskRecord, Tracked};
use crate::upstream::Scope;
use crate::worker::OpenIntent;

/// An intent that this process owns.
pub(super) struct Intent {
    pub(super) id: Arc<str>,
    pub(super) worker: WorkerId,
    pub(super) epoch: i64,
    pub(super) created_at: i64,
    pub(super) binding: Arc<Binding>,
    pub(super) scope: Scope,
    pub(super) submit: Submit,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// Until it is dropped, a drain waits and reconciling leaves the row alone.
    pub(super) _open: OpenIntent,
}

impl Intent {
    /// Its row as a held task, for decisions about it.
    pub(super) fn tracked(&self) -> Tracked {
        let binding = Arc::clone(&self.binding);
        Tracked {
            lease_epoch: self.epoch,
            created_at: self.created_at,
            ..Tracked::new(&self.id, &self.scope.user_id, &self.scope.thread_id, binding)
        }
    }

    /// The row as it is once the handle is recorded; reading it again would say the same.
    pub(super) fn recorded(&self, task: &Tracked, at: i64) -> TaskRecord {
        TaskRecord {
            tracked: task.clone(),
            run_id: self.submit.run_id.clone(),
            tool_call_id: self.submit.tool_call_id.clone(),
            outcome: Outcome::default(),
            last_poll_error: None,
            last_cancel_error: None,
            lease_owner: None,
            idempotency_key: self.submit.idempotency_key.clone(),
            body_hash: None,
            arguments: None,
            updated_at: at,
            completed_at: None,
        }
    }
}
