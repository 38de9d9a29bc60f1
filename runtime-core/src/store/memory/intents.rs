//! Submits and cancel requests.

use async_trait::async_trait;

use super::{MemoryStore, Tables, free, is_open_intent};
use crate::clock::Millis;
use crate::store::{
    Applied, CancelRequest, Inserted, Intents, NewHandle, NewIntent, Recorded, Result, StoreError, StoreErrorKind,
    TaskWrite, WorkerId, bounds,
};
use crate::task::{EventKind, Outcome, Status, TaskRecord, Tracked};

#[async_trait]
impl Intents for MemoryStore {
    async fn insert_intent(&self, intent: &NewIntent) -> Result<Inserted> {
        bounds::check_intent(intent)?;
        let mut state = self.state();
        if let Some(known) = state.with_key(intent) {
            return Ok(Inserted::Existing(Box::new(known.clone())));
        }
        if !state.is_live(&intent.worker) {
            return Ok(Inserted::NotLive);
        }
        if state.tasks.contains_key(&intent.id) {
            return Err(StoreError::new(StoreErrorKind::Data, "insert_intent", "the id is taken"));
        }
        state.tasks.insert(intent.id.clone(), record(intent));
        Ok(Inserted::New { epoch: 1 })
    }

    async fn record_submitted(&self, handle: &NewHandle) -> Result<Recorded> {
        bounds::check_handle(handle)?;
        let mut state = self.state();
        let Some(task) =
            state.tasks.get(&handle.id).filter(|task| owns_open_intent(task, &handle.worker, handle.epoch))
        else {
            return Ok(Recorded::Stale);
        };
        let taken = |other: &TaskRecord| {
            other.user_id == task.user_id
                && other.binding.server_name == task.binding.server_name
                && other.remote_task_id.as_deref() == Some(&handle.remote_task_id)
        };
        if state.tasks.values().any(taken) {
            return Ok(Recorded::Duplicate);
        }
        let Some(task) = state.tasks.get_mut(&handle.id) else { return Ok(Recorded::Stale) };
        let cancelled = task.cancel_requested_at.is_some();
        let kept = handle.keep && !cancelled;
        task.tracked.remote_task_id = Some(handle.remote_task_id.as_str().into());
        task.tracked.status = Status::Submitted;
        task.tracked.lease_epoch += 1;
        task.tracked.next_due_at = if cancelled { handle.at } else { handle.next_due_at };
        task.arguments = None;
        task.updated_at = handle.at;
        if !kept {
            task.lease_owner = None;
        }
        let tracked = Box::new(task.tracked.clone());
        state.emit(&handle.id, EventKind::Status(Status::Submitted), handle.at);
        Ok(Recorded::Done { task: tracked, kept })
    }

    async fn discard_intent(&self, worker: &WorkerId, id: &str, epoch: i64) -> Result<bool> {
        let mut state = self.state();
        let found = state.tasks.get(id).is_some_and(|task| owns_open_intent(task, worker, epoch));
        if found {
            state.tasks.remove(id);
        }
        Ok(found)
    }

    async fn close_freed_intent(&self, write: &TaskWrite) -> Result<bool> {
        bounds::check_write("apply", write)?;
        Ok(self.state().close_freed(write) != Applied::Stale)
    }

    async fn is_tracked(&self, server_name: &str, remote_task_id: &str) -> Result<bool> {
        let state = self.state();
        let tracks = |task: &TaskRecord| {
            task.binding.server_name == server_name && task.remote_task_id.as_deref() == Some(remote_task_id)
        };
        Ok(state.tasks.values().any(tracks))
    }

    async fn request_cancel(&self, request: &CancelRequest, now: Millis) -> Result<Option<TaskRecord>> {
        let mut state = self.state();
        let Some(task) = state.tasks.get_mut(request.id.as_str()) else { return Ok(None) };
        if !super::belongs_to(task, request.user_id.as_deref(), request.thread_id.as_deref()) {
            return Ok(None);
        }
        if task.cancel_requested_at.is_none() && !task.status.is_terminal() {
            task.tracked.cancel_requested_at = Some(now);
            task.updated_at = now;
            if task.status != Status::Submitting {
                free(task);
                task.tracked.next_due_at = now;
            }
        }
        Ok(Some(task.clone()))
    }

    async fn make_due(&self, id: &str, now: Millis) -> Result<Option<TaskRecord>> {
        let mut state = self.state();
        let Some(task) = state.tasks.get_mut(id) else { return Ok(None) };
        if task.remote_task_id.is_some() && !task.status.is_terminal() {
            free(task);
            task.tracked.next_due_at = now;
        }
        Ok(Some(task.clone()))
    }
}

impl Tables {
    fn with_key(&self, intent: &NewIntent) -> Option<&TaskRecord> {
        intent.idempotency_key.as_ref()?;
        self.tasks.values().find(|task| {
            *task.user_id == *intent.user_id
                && *task.thread_id == *intent.thread_id
                && task.idempotency_key == intent.idempotency_key
        })
    }
}

fn owns_open_intent(task: &TaskRecord, worker: &str, epoch: i64) -> bool {
    task.lease_owner.as_deref() == Some(worker) && task.lease_epoch == epoch && is_open_intent(task)
}

fn record(intent: &NewIntent) -> TaskRecord {
    TaskRecord {
        tracked: Tracked {
            next_due_at: intent.next_due_at,
            created_at: intent.created_at,
            ..Tracked::new(&intent.id, &intent.user_id, &intent.thread_id, intent.binding.clone())
        },
        run_id: intent.run_id.clone(),
        tool_call_id: intent.tool_call_id.clone(),
        outcome: Outcome::default(),
        last_poll_error: None,
        last_cancel_error: None,
        lease_owner: Some(intent.worker.to_string()),
        idempotency_key: intent.idempotency_key.clone(),
        body_hash: intent.body_hash.clone(),
        arguments: intent.arguments.clone(),
        updated_at: intent.created_at,
        completed_at: None,
    }
}
