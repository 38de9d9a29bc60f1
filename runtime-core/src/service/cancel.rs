//! Cancel requests, input, and polls on demand: writes that free a row, so that whoever claims it next carries them out.

use serde_json::value::RawValue;

use super::{Access, AgentCancel, Service, ServiceError, not_found, unavailable};
use crate::driver::InputFailure;
use crate::store::{CancelRequest, Page, TaskFilter};
use crate::task::{Status, TaskRecord};

/// How many names a refusal lists (63).
const NAMES: usize = 5;

impl Service {
    /// Requests a cancel; never calls the server itself. Repeating it changes nothing (57–59).
    pub async fn cancel(&self, access: &Access, id: &str) -> Result<TaskRecord, ServiceError> {
        let request =
            CancelRequest { id: id.to_owned(), user_id: access.user_id.clone(), thread_id: access.thread_id.clone() };
        let before = self.find(access, id).await?;
        let now = self.worker.context().now();
        let task = self.store.request_cancel(&request, now).await.map_err(|error| unavailable(&error))?;
        let Some(task) = task else {
            self.metrics.cancel_requests.with_label_values(&["not_found"]).inc();
            return Err(not_found(id));
        };
        let first = before.cancel_requested_at.is_none() && task.cancel_requested_at.is_some();
        self.metrics.cancel_requests.with_label_values(&[if first { "recorded" } else { "repeated" }]).inc();
        if first {
            let (server, worker) = (&*task.binding.server_name, self.worker.id());
            tracing::info!(task.id = %task.id, server, worker = worker.as_deref(), "cancel requested");
        }
        self.freed(&task);
        Ok(task)
    }

    /// Requests the cancel of the one active task that `id` or `name` means, or of the only one there is (63).
    pub async fn cancel_for_agent(
        &self,
        access: &Access,
        id: Option<&str>,
        name: Option<&str>,
    ) -> Result<AgentCancel, ServiceError> {
        if let Some(id) = id {
            return match self.cancel(access, id).await {
                Ok(task) => Ok(told(task)),
                Err(ServiceError::NotFound(message)) => Ok(AgentCancel { task: None, message }),
                Err(error) => Err(error),
            };
        }
        let filter = TaskFilter {
            user_id: access.user_id.clone(),
            thread_id: access.thread_id.clone(),
            active_only: true,
            named: name.map(str::to_owned),
            ..TaskFilter::default()
        };
        let page = Page { limit: NAMES as u32 + 1, after: None };
        let found = self.store.list_tasks(&filter, &page).await.map_err(|error| unavailable(&error))?;
        match &found[..] {
            [] => Ok(AgentCancel { task: None, message: "No active background task matches.".to_owned() }),
            [task] => self.cancel(access, &task.id).await.map(told),
            several => {
                let listed: Vec<String> = several
                    .iter()
                    .take(NAMES)
                    .map(|task| format!("{} ({})", task.binding.toolset.name, task.id))
                    .collect();
                let message = format!("Several background tasks match; give a task_id. {}", listed.join(", "));
                Ok(AgentCancel { task: None, message })
            }
        }
    }

    /// Makes a task due at once, whoever holds it.
    pub async fn poll_now(&self, access: &Access, id: &str) -> Result<TaskRecord, ServiceError> {
        let task = self.find(access, id).await?;
        if task.status.is_terminal() || task.status == Status::Submitting {
            return Err(ServiceError::Conflict(format!("the task is {}", task.status)));
        }
        self.make_due(id).await
    }

    async fn make_due(&self, id: &str) -> Result<TaskRecord, ServiceError> {
        let now = self.worker.context().now();
        let task = self.store.make_due(id, now).await.map_err(|error| unavailable(&error))?;
        let task = task.ok_or_else(|| not_found(id))?;
        self.freed(&task);
        Ok(task)
    }

    /// Answers `input_required` in the way that the task's driver has; the task is due at once, and its next poll shows what the
    /// server made of it.
    pub async fn input(&self, access: &Access, id: &str, input: &RawValue) -> Result<TaskRecord, ServiceError> {
        let task = self.find(access, id).await?;
        if task.status != Status::InputRequired || task.cancel_requested_at.is_some() {
            return Err(ServiceError::Conflict("the task does not wait for input".to_owned()));
        }
        match self.driver.input(&task.tracked, input).await {
            Ok(()) => self.make_due(id).await,
            Err(InputFailure::NotTaken(why)) => Err(ServiceError::Conflict(why)),
            Err(InputFailure::Invalid(what)) => Err(ServiceError::Invalid(what)),
            Err(InputFailure::Failed(why)) => Err(ServiceError::Refused(why)),
        }
    }

    /// Tells the workers and those who wait that a write of ours has freed a row.
    fn freed(&self, task: &TaskRecord) {
        // A repeated request may find the row owned again, and then nothing held is older than what owns it.
        if !task.status.is_terminal() && task.status != Status::Submitting && task.lease_owner.is_none() {
            self.worker.forget(&task.id, task.lease_epoch);
            self.worker.wake();
        }
        self.worker.announce(&task.id);
    }
}

fn told(task: TaskRecord) -> AgentCancel {
    let name = &task.binding.toolset.name;
    let message = match task.status {
        Status::Cancelled => format!("Task {name} ({}) is cancelled.", task.id),
        status if status.is_terminal() => format!("Task {name} ({}) had already ended: {status}.", task.id),
        _ => format!("The cancel of task {name} ({}) is requested; its status will tell what became of it.", task.id),
    };
    AgentCancel { task: Some(task), message }
}
