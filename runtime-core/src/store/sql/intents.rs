//! Submits and cancel requests.

use async_trait::async_trait;

use super::engine::{Lane, SqlRow, Value};
use super::rows::{Cells, TaskRows};
use super::statements::Sql;
use super::{SqlStore, input};
use crate::clock::Millis;
use crate::store::{
    CancelRequest, Inserted, Intents, NewHandle, NewIntent, Queries as _, Recorded, Result, StoreErrorKind, TaskWrite,
    WorkerId, bounds,
};
use crate::task::{Status, TaskRecord};

/// How often an insert meets a key whose row is gone when it is looked for.
const INSERT_ATTEMPTS: u32 = 3;

#[async_trait]
impl Intents for SqlStore {
    async fn insert_intent(&self, intent: &NewIntent) -> Result<Inserted> {
        bounds::check_intent(intent)?;
        let (binding, toolset) = (&intent.binding, &intent.binding.toolset);
        let values: [Value<'_>; 19] = [
            (&intent.id).into(),
            (&intent.worker).into(),
            (&intent.user_id).into(),
            (&intent.thread_id).into(),
            intent.run_id.as_deref().into(),
            intent.tool_call_id.as_deref().into(),
            (&binding.server_name).into(),
            (&binding.driver).into(),
            (&toolset.name).into(),
            (&toolset.submit_tool).into(),
            (&toolset.status_tool).into(),
            (&toolset.cancel_tool).into(),
            toolset.idempotent_submit.into(),
            toolset.input_tool.as_deref().into(),
            intent.idempotency_key.as_deref().into(),
            intent.body_hash.as_deref().into(),
            intent.arguments.as_deref().into(),
            intent.next_due_at.into(),
            intent.created_at.into(),
        ];
        for _ in 0..INSERT_ATTEMPTS {
            if let Some(row) = self.engine.fetch_one(Lane::Write, Sql::InsertIntent, &values).await? {
                return Ok(Inserted::New { epoch: Cells::new(&row, "mcp_tasks", "id").int("lease_epoch")? });
            }
            // Nothing was inserted: the key is taken, or the worker is not live.
            let Some(key) = intent.idempotency_key.as_deref() else { return Ok(Inserted::NotLive) };
            let scope = [(&intent.user_id).into(), (&intent.thread_id).into(), key.into()];
            if let Some(row) = self.engine.fetch_one(Lane::Write, Sql::FindByKey, &scope).await? {
                return Ok(Inserted::Existing(Box::new(TaskRows::default().record(&row)?)));
            }
        }
        Ok(Inserted::NotLive)
    }

    async fn record_submitted(&self, handle: &NewHandle) -> Result<Recorded> {
        bounds::check_handle(handle)?;
        let values: [Value<'_>; 7] = [
            (&handle.worker).into(),
            (&handle.id).into(),
            handle.epoch.into(),
            (&handle.remote_task_id).into(),
            handle.next_due_at.into(),
            handle.at.into(),
            handle.keep.into(),
        ];
        let follow = |rows: &[SqlRow]| {
            let event = || input::event(&handle.id, Status::Submitted.as_str(), handle.at);
            Ok((!rows.is_empty()).then(event))
        };
        let rows = self.engine.fetch_following(Lane::Write, Sql::RecordSubmitted, &values, Some(&follow)).await;
        match rows {
            Ok(rows) => {
                let Some(row) = rows.first() else { return Ok(Recorded::Stale) };
                let task = Box::new(TaskRows::default().tracked(row)?);
                let kept = Cells::new(row, "mcp_tasks", "id").find_text("lease_owner")?.is_some();
                Ok(Recorded::Done { task, kept })
            }
            Err(error) if error.kind == StoreErrorKind::Data && names_remote_index(&error.message) => {
                Ok(Recorded::Duplicate)
            }
            Err(error) => Err(error),
        }
    }

    async fn discard_intent(&self, worker: &WorkerId, id: &str, epoch: i64) -> Result<bool> {
        let values = [worker.into(), id.into(), epoch.into()];
        Ok(self.engine.fetch_one(Lane::Write, Sql::DiscardIntent, &values).await?.is_some())
    }

    async fn close_freed_intent(&self, write: &TaskWrite) -> Result<bool> {
        Ok(!self.write(None, std::slice::from_ref(write), true).await?.is_empty())
    }

    async fn is_tracked(&self, server_name: &str, remote_task_id: &str) -> Result<bool> {
        if bounds::unstorable([Some(server_name), Some(remote_task_id)]) {
            return Ok(false);
        }
        // Asked before a cancel by compensation, so by the writer's connections: a stale answer would cancel a tracked task.
        let values = [server_name.into(), remote_task_id.into()];
        Ok(self.engine.fetch_one(Lane::Write, Sql::IsTracked, &values).await?.is_some())
    }

    async fn request_cancel(&self, request: &CancelRequest, now: Millis) -> Result<Option<TaskRecord>> {
        let (user, thread) = (request.user_id.as_deref(), request.thread_id.as_deref());
        if bounds::unstorable([Some(request.id.as_str()), user, thread]) {
            return Ok(None);
        }
        let values = [(&request.id).into(), user.into(), thread.into(), now.into()];
        match self.engine.fetch_one(Lane::Write, Sql::RequestCancel, &values).await? {
            Some(row) => Ok(Some(TaskRows::default().record(&row)?)),
            None => self.find_task(&request.id, user, thread).await,
        }
    }

    async fn make_due(&self, id: &str, now: Millis) -> Result<Option<TaskRecord>> {
        if bounds::unstorable([Some(id)]) {
            return Ok(None);
        }
        match self.engine.fetch_one(Lane::Write, Sql::MakeDue, &[id.into(), now.into()]).await? {
            Some(row) => Ok(Some(TaskRows::default().record(&row)?)),
            None => self.find_task(id, None, None).await,
        }
    }
}

/// PostgreSQL names the index, SQLite its columns.
fn names_remote_index(message: &str) -> bool {
    message.contains("mcp_tasks_remote") || message.contains("mcp_tasks.remote_task_id")
}
