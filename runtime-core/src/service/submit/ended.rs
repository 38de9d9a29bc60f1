//! A submit that was answered by the work's end: there is no remote task, and the intent's row keeps the result.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Intent, RECORD_PATIENCE, backoff};
use crate::service::{Service, ServiceError, Submitted};
use crate::store::{Applied, TaskWrite};
use crate::task::transition::code;
use crate::task::{Snapshot, Tracked, server_label};

impl Service {
    /// Ends the intent with `snapshot`; tried again for as long as nobody else has ended it.
    pub(super) async fn end(&self, intent: &Intent, snapshot: Snapshot) -> Result<Submitted, ServiceError> {
        let ending = |task: &Tracked| {
            let change = task.on_submit_ended(snapshot.clone(), self.worker.context().now());
            TaskWrite { id: Arc::clone(&task.id), epoch: task.lease_epoch, change }
        };
        let unknown = |message: &str| ServiceError::OutcomeUnknown {
            task_id: intent.id.to_string(),
            message: message.to_owned(),
        };
        let write = ending(&intent.tracked());
        let deadline = Instant::now() + RECORD_PATIENCE;
        let mut pause = Duration::from_millis(50);
        loop {
            match self.store.apply(&intent.worker, std::slice::from_ref(&write)).await {
                Ok(applied) => {
                    if matches!(applied[..], [Applied::Done { .. }]) {
                        self.ended(intent, &write);
                    }
                }
                Err(error) if error.is_transient() => {
                    tracing::warn!(task.id = %intent.id, %error, "recording the work's end is tried again");
                }
                Err(error) => {
                    tracing::error!(task.id = %intent.id, %error, "the work's end cannot be recorded");
                    let message = "The server has done the work, but its answer could not be recorded";
                    self.close_unknown(intent, message).await;
                    return Err(unknown(message));
                }
            }
            // The row tells what has become of it: by this write, by an earlier attempt unseen, or by another worker.
            match self.store.find_task(&intent.id, None, None).await {
                Ok(Some(task)) if task.outcome.error_code.as_deref() == Some(code::SUBMIT_OUTCOME_UNKNOWN) => {
                    return Err(unknown("the submit was given up by another worker before it was answered"));
                }
                // A resolver may have repeated the submit, and have been given a task.
                Ok(Some(task)) if task.status.is_terminal() || task.remote_task_id.is_some() => {
                    return Ok(Submitted { task, replayed: false });
                }
                Ok(None) => return Err(unknown("the submit is not on record any more")),
                Ok(Some(task)) if task.lease_owner.is_none() => {
                    let write = ending(&task.tracked);
                    match self.store.close_freed_intent(&write).await {
                        Ok(true) => self.ended(intent, &write),
                        Ok(false) => {}
                        Err(error) => tracing::warn!(task.id = %intent.id, %error, "an intent cannot be closed yet"),
                    }
                }
                Ok(Some(_)) => {}
                Err(error) => tracing::warn!(task.id = %intent.id, %error, "an intent cannot be read yet"),
            }
            if Instant::now() >= deadline {
                return Err(unknown("The server has done the work, but its answer could not be recorded in time"));
            }
            backoff(&mut pause).await;
        }
    }

    /// Tells of the write that has ended the intent.
    pub(super) fn ended(&self, intent: &Intent, write: &TaskWrite) {
        self.metrics.rows_written.with_label_values(&[write.change.kind.as_str()]).inc();
        self.metrics.emitted(&write.change.events);
        self.metrics.finished(server_label(&intent.binding.server_name), &intent.tracked(), &write.change);
        self.worker.announce(&intent.id);
    }
}
