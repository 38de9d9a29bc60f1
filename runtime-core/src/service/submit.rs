//! Submit without orphans (DESIGN; BEHAVIOURS 40–43, 145, 152, 155).
//!
//! The intent is durable before the server is asked; what became of the call is recorded by a guarded write; a remote task
//! is cancelled as compensation only once its intent is known to be closed without it.

mod body;
mod ended;
mod intent;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use tokio::sync::oneshot;
use tokio::time::Instant;

use body::{hash, validate};
use intent::Intent;

use super::{Access, Service, ServiceError, Submit, Submitted, unavailable};
use crate::contract::{CancelReading, Created, Handle, Refusal};
use crate::driver::{SubmitCall, SubmitFailure, intent_deadline};
use crate::store::{
    Applied, Inserted, NewHandle, NewIntent, Recorded, StoreError, StoreErrorKind, TaskWrite, WorkerId,
};
use crate::task::limits::KEPT_ARGUMENTS_MAX_BYTES;
use crate::task::{Binding, Status, TaskRecord, Tracked, server_label};
use crate::upstream::Scope;

/// How long the record of a handle is tried again while the store is away. After that the intent is left to be resolved
/// like that of a dead process.
const RECORD_PATIENCE: Duration = Duration::from_secs(600);
/// How long a write that closes an intent is tried again.
const CLOSE_PATIENCE: Duration = Duration::from_secs(60);
/// Attempts at cancelling a remote task that nobody tracks.
const COMPENSATIONS: u32 = 3;

impl Service {
    /// Submits; returns once the remote handle is durable. Runs to its end even if the caller goes away.
    ///
    /// A repeated idempotency key waits for the first call and returns its task.
    pub async fn submit(&self, submit: Submit) -> Result<Submitted, ServiceError> {
        validate(&submit)?;
        let route = self.routes.route(&submit.server, &submit.user_id).map_err(|_| {
            ServiceError::NotFound(format!("no server {:?} with task toolsets is configured", submit.server))
        })?;
        let toolset = route.toolsets.iter().find(|toolset| toolset.name == submit.task).ok_or_else(|| {
            ServiceError::NotFound(format!("server {:?} has no task toolset {:?}", submit.server, submit.task))
        })?;
        // Before anything is written: a request that cannot be sent leaves no trace (120).
        let headers = route.upstream.context_headers(&submit.secrets).map_err(ServiceError::Invalid)?;
        let patience = intent_deadline(&route);
        let binding = Arc::new(Binding {
            server_name: submit.server.clone(),
            driver: toolset.driver().to_owned(),
            toolset: toolset.clone(),
        });
        let deadline = Instant::now() + patience;
        loop {
            match self.open(&submit, &headers, &binding).await? {
                Opened::New(intent) => {
                    let service = self.clone();
                    // In a task of its own, so that the caller's disconnect cuts nothing off.
                    let (reply, answer) = oneshot::channel();
                    self.worker.context().tasks.spawn(async move {
                        // The caller may have gone away.
                        let _ = reply.send(service.run(*intent).await);
                    });
                    return answer.await.unwrap_or_else(|_| {
                        tracing::error!("a submit panicked");
                        Err(ServiceError::Internal)
                    });
                }
                Opened::Replay(task) => return Ok(Submitted { task: *task, replayed: true }),
                // The first call was refused and its key is free again, or it still runs.
                Opened::Running(id) => {
                    if Instant::now() >= deadline {
                        let message = "an earlier submit with this Idempotency-Key has not ended".to_owned();
                        return Err(ServiceError::OutcomeUnknown { task_id: id, message });
                    }
                    let access = Access { user_id: Some(submit.user_id.clone()), thread_id: None };
                    match self.get(&access, &id, Duration::from_secs(5)).await {
                        Ok(_) | Err(ServiceError::NotFound(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }

    /// Makes the intent durable, or finds the task of an earlier submit with the same key.
    async fn open(
        &self,
        submit: &Submit,
        headers: &[(HeaderName, HeaderValue)],
        binding: &Arc<Binding>,
    ) -> Result<Opened, ServiceError> {
        let id: Arc<str> = format!("mcp-task-{}", self.worker.context().ids.fresh()).into();
        // Before the look at the drain, so that a drain that begins in between waits for this submit.
        let open = self.worker.open_intent(Arc::clone(&id));
        if self.worker.is_draining() {
            return Err(ServiceError::Draining);
        }
        let worker = self.worker.id().ok_or(ServiceError::Unavailable)?;
        let now = self.worker.context().now();
        // Without the request's secrets it could only be repeated as another request, by nobody.
        let keep_arguments = binding.toolset.idempotent_submit && headers.is_empty();
        if keep_arguments && submit.arguments.get().len() > KEPT_ARGUMENTS_MAX_BYTES {
            return Err(ServiceError::Invalid(format!("arguments are larger than {KEPT_ARGUMENTS_MAX_BYTES} bytes")));
        }
        let body_hash = submit.idempotency_key.as_ref().map(|_| hash(submit)).transpose()?;
        let intent = NewIntent {
            id: Arc::clone(&id),
            worker: Arc::clone(&worker),
            user_id: submit.user_id.clone(),
            thread_id: submit.thread_id.clone(),
            run_id: submit.run_id.clone(),
            tool_call_id: submit.tool_call_id.clone(),
            binding: Arc::clone(binding),
            idempotency_key: submit.idempotency_key.clone(),
            body_hash: body_hash.clone(),
            arguments: keep_arguments.then(|| submit.arguments.get().to_owned()),
            // Owned, it is not looked at; freed by a takeover, its process is dead and it is due at once.
            next_due_at: now,
            created_at: now,
        };
        let inserted = match self.store.insert_intent(&intent).await {
            Ok(inserted) => inserted,
            Err(error) => {
                if error.kind == StoreErrorKind::Unknown {
                    self.withdraw(&worker, &id).await;
                }
                drop(open);
                // The row may be there all the same, or come late.
                self.worker.reconcile();
                return Err(unavailable(&error));
            }
        };
        match inserted {
            Inserted::New { epoch } => {
                self.metrics.rows_written.with_label_values(&["submit"]).inc();
                let scope =
                    Scope { user_id: submit.user_id.as_str().into(), thread_id: submit.thread_id.as_str().into() };
                let (submit, headers, binding) = (submit.clone(), headers.to_vec(), Arc::clone(binding));
                let created_at = now;
                Ok(Opened::New(Box::new(Intent {
                    id,
                    worker,
                    epoch,
                    created_at,
                    binding,
                    scope,
                    submit,
                    headers,
                    _open: open,
                })))
            }
            Inserted::Existing(task) if task.body_hash != body_hash => {
                Err(ServiceError::Invalid("this Idempotency-Key was used before with another request".to_owned()))
            }
            Inserted::Existing(task) if task.status == Status::Submitting => Ok(Opened::Running(task.id.to_string())),
            Inserted::Existing(task) => Ok(Opened::Replay(task)),
            Inserted::NotLive => Err(ServiceError::Unavailable),
        }
    }

    /// Deletes an intent that may have been inserted unseen: the server was not called, so it need not stand in the way of
    /// a repeat under the same key. Where that fails, reconciling finds it.
    async fn withdraw(&self, worker: &WorkerId, id: &Arc<str>) {
        let Ok(rows) = self.store.inspect(&[Arc::clone(id)]).await else { return };
        for row in rows.iter().filter(|row| row.status == Some(Status::Submitting)) {
            let _ = self.store.discard_intent(worker, id, row.epoch).await;
        }
    }

    /// From the durable intent to its end.
    async fn run(&self, intent: Intent) -> Result<Submitted, ServiceError> {
        let started = self.worker.context().now();
        let call = SubmitCall {
            binding: &intent.binding,
            scope: &intent.scope,
            arguments: &intent.submit.arguments,
            // The row's id, not the caller's key: two users may use the same one, and after a refusal the same caller may.
            task_id: &intent.id,
            again: false,
            headers: &intent.headers,
        };
        let result = match self.driver.submit(call).await {
            Ok(Created::Task(handle)) => self.record(&intent, handle, started).await,
            Ok(Created::Ended(snapshot)) => self.end(&intent, *snapshot).await,
            Err(SubmitFailure::Refused(Refusal { message, orphan })) => {
                let closed = self.discard(&intent).await;
                if let Some(remote_id) = orphan {
                    if closed {
                        self.compensate(&intent, &remote_id).await;
                    } else {
                        tracing::error!(task.id = %intent.id, "an orphan is left alone: its intent may still be recorded");
                    }
                }
                Err(ServiceError::Refused(message))
            }
            Err(SubmitFailure::NotSent(message)) => {
                self.discard(&intent).await;
                Err(ServiceError::Refused(message))
            }
            Err(SubmitFailure::Unknown(why)) => {
                let message = format!("Nobody can know whether the server accepted the submit: {why}");
                self.close_unknown(&intent, &message).await;
                Err(ServiceError::OutcomeUnknown { task_id: intent.id.to_string(), message })
            }
        };
        let outcome = match &result {
            Ok(_) => "submitted",
            Err(ServiceError::OutcomeUnknown { .. }) => "unknown",
            Err(_) => "refused",
        };
        let server = &*intent.binding.server_name;
        self.metrics.tasks_submitted.with_label_values(&[server_label(server), outcome]).inc();
        tracing::info!(task.id = %intent.id, server, worker = %intent.worker, outcome, "submit ended");
        result
    }

    /// Records the remote id, for as long as the intent is owned (41, 42).
    async fn record(&self, intent: &Intent, created: Handle, started: i64) -> Result<Submitted, ServiceError> {
        let context = self.worker.context();
        let Handle { remote_id, hint, ttl } = created;
        let mut handle = NewHandle {
            worker: Arc::clone(&intent.worker),
            id: Arc::clone(&intent.id),
            epoch: intent.epoch,
            remote_task_id: remote_id.clone(),
            next_due_at: context.policy.first_poll(started, hint, ttl),
            keep: false,
            at: started,
        };
        let deadline = Instant::now() + RECORD_PATIENCE;
        let mut pause = Duration::from_millis(50);
        loop {
            handle.keep = context.options.polls && !self.worker.is_draining();
            handle.at = context.now();
            match self.store.record_submitted(&handle).await {
                Ok(Recorded::Done { task, kept }) => {
                    self.metrics.recorded();
                    self.worker.announce(&intent.id);
                    let record = intent.recorded(&task, handle.at);
                    if kept {
                        self.worker.adopt(Arc::clone(&intent.worker), *task);
                    } else {
                        self.worker.wake();
                    }
                    return Ok(Submitted { task: record, replayed: false });
                }
                Ok(Recorded::Duplicate) => {
                    // The living task of that id is tracked: it is not cancelled.
                    self.discard(intent).await;
                    let message = "the server returned the id of a task that is tracked already".to_owned();
                    return Err(ServiceError::Conflict(message));
                }
                Ok(Recorded::Stale) => return self.after_stale(intent, &remote_id).await,
                Err(error) if error.is_transient() && Instant::now() < deadline => {
                    tracing::warn!(task.id = %intent.id, %error, "recording the remote id is tried again");
                    backoff(&mut pause).await;
                }
                Err(error) => {
                    tracing::error!(task.id = %intent.id, %error, "the remote id cannot be recorded");
                    // The row stays: were it deleted and this process to die now, nothing would tell of the remote task.
                    let message = "The server accepted the submit, but its task could not be recorded".to_owned();
                    if self.close_unknown(intent, &message).await {
                        self.compensate(intent, &remote_id).await;
                    }
                    return Err(ServiceError::OutcomeUnknown { task_id: intent.id.to_string(), message });
                }
            }
        }
    }

    /// The intent is not ours any more, or our own first attempt went through unseen: the row tells.
    async fn after_stale(&self, intent: &Intent, remote_id: &str) -> Result<Submitted, ServiceError> {
        let deadline = Instant::now() + RECORD_PATIENCE;
        let mut pause = Duration::from_millis(50);
        let unknown = |message: &str| ServiceError::OutcomeUnknown {
            task_id: intent.id.to_string(),
            message: message.to_owned(),
        };
        while Instant::now() < deadline {
            match self.store.find_task(&intent.id, None, None).await {
                Ok(Some(task)) if task.remote_task_id.as_deref() == Some(remote_id) => {
                    // Recorded unseen; where this worker owns it, it does not hold it yet.
                    self.worker.reconcile();
                    return Ok(Submitted { task, replayed: false });
                }
                // A resolver repeated the submit and the server gave it another id: that one is the task.
                Ok(Some(task)) if task.remote_task_id.is_some() => {
                    self.compensate(intent, remote_id).await;
                    return Ok(Submitted { task, replayed: false });
                }
                Ok(Some(task)) if task.status.is_terminal() => {
                    self.compensate(intent, remote_id).await;
                    return Err(unknown("the submit was given up by another worker before it was answered"));
                }
                Ok(None) => {
                    self.compensate(intent, remote_id).await;
                    return Err(unknown("the submit is not on record any more"));
                }
                Ok(Some(task)) if task.lease_owner.is_none() => {
                    let why = "The process that submitted the task lost its lease before the answer was recorded";
                    let write = self.unknown_write(&task.tracked, why);
                    match self.store.close_freed_intent(&write).await {
                        Ok(true) => {
                            self.ended(intent, &write);
                            self.compensate(intent, remote_id).await;
                            return Err(unknown(why));
                        }
                        Ok(false) => {}
                        Err(error) => tracing::warn!(task.id = %intent.id, %error, "an intent cannot be closed yet"),
                    }
                }
                Ok(Some(_)) => {}
                Err(error) => tracing::warn!(task.id = %intent.id, %error, "an intent cannot be read yet"),
            }
            backoff(&mut pause).await;
        }
        Err(unknown("another worker is still resolving the submit"))
    }

    /// Deletes the intent, so that no task stays and its key is free (2, 145). Returns whether it is closed for certain,
    /// with no remote id.
    async fn discard(&self, intent: &Intent) -> bool {
        let attempt = || self.store.discard_intent(&intent.worker, &intent.id, intent.epoch);
        let gone = persist(&intent.id, attempt).await;
        self.closed(intent, gone).await
    }

    /// Ends the intent as `submit_outcome_unknown`, visible to its user (145). Returns whether it is closed for certain, with
    /// no remote id.
    async fn close_unknown(&self, intent: &Intent, why: &str) -> bool {
        let write = self.unknown_write(&intent.tracked(), why);
        let applied = persist(&intent.id, || self.store.apply(&intent.worker, std::slice::from_ref(&write))).await;
        let done = applied.map(|applied| matches!(applied[..], [Applied::Done { .. }]));
        match done {
            Some(true) => self.ended(intent, &write),
            Some(false) => {}
            None => tracing::error!(task.id = %intent.id, "an intent could not be closed; it is resolved later"),
        }
        self.closed(intent, done).await
    }

    /// What a write that closes an intent has come to; `None` where that was never learned.
    async fn closed(&self, intent: &Intent, done: Option<bool>) -> bool {
        self.worker.announce(&intent.id);
        match done {
            // A first attempt may have gone through unseen, or another worker may have ended it: the row tells.
            Some(false) => match self.store.find_task(&intent.id, None, None).await {
                Ok(row) => row.is_none_or(|row| row.status.is_terminal() && row.remote_task_id.is_none()),
                Err(_) => false,
            },
            done => done.unwrap_or(false),
        }
    }

    fn unknown_write(&self, task: &Tracked, why: &str) -> TaskWrite {
        let change = task.on_submit_unknown(why, self.worker.context().now());
        TaskWrite { id: Arc::clone(&task.id), epoch: task.lease_epoch, change }
    }

    /// Cancels a remote task that nobody tracks; never one that somebody does.
    async fn compensate(&self, intent: &Intent, remote_id: &str) {
        match persist(&intent.id, || self.store.is_tracked(&intent.binding.server_name, remote_id)).await {
            Some(false) => {}
            Some(true) => return,
            None => {
                tracing::error!(task.id = %intent.id, "an orphan is left alone: whether it is tracked is unknown");
                return;
            }
        }
        let mut pause = Duration::from_millis(200);
        for _ in 0..COMPENSATIONS {
            match self.driver.cancel(&intent.id, &intent.binding, &intent.scope, remote_id).await {
                CancelReading::Ended(_) | CancelReading::Taken(_) => {
                    tracing::warn!(task.id = %intent.id, "a remote task that could not be tracked was cancelled");
                    return;
                }
                CancelReading::Failure(failure) => {
                    tracing::warn!(task.id = %intent.id, error = %failure.message, "cancelling an orphan failed");
                    backoff(&mut pause).await;
                }
            }
        }
        tracing::error!(task.id = %intent.id, server = %intent.binding.server_name, "an orphan may run on the server");
    }
}

enum Opened {
    New(Box<Intent>),
    Replay(Box<TaskRecord>),
    Running(String),
}

/// Tries a guarded write, or a read, until the store has answered, or patience ends.
async fn persist<T, F>(id: &Arc<str>, mut attempt: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let deadline = Instant::now() + CLOSE_PATIENCE;
    let mut pause = Duration::from_millis(50);
    loop {
        match attempt().await {
            Ok(done) => return Some(done),
            Err(error) if error.is_transient() && Instant::now() < deadline => {
                tracing::warn!(task.id = %id, %error, "closing an intent is tried again");
                backoff(&mut pause).await;
            }
            Err(error) => {
                tracing::error!(task.id = %id, %error, "an intent cannot be closed");
                return None;
            }
        }
    }
}

async fn backoff(pause: &mut Duration) {
    tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
    *pause = (*pause * 2).min(Duration::from_secs(2));
}
