//! The methods of 2025-11-25 (SEP-1686): `tasks/get`, `tasks/result`, `tasks/list`, `tasks/cancel`.

use std::time::Duration;

use mcp_taskd_core::service::{Access, ServiceError};
use mcp_taskd_core::store::{Page, TaskFilter};
use mcp_taskd_core::task::{Status, TaskRecord};
use rmcp::model::{CustomNotification, MetaObject, ServerNotification};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::listen::RETRY_AFTER;
use super::shape::{self, Terms};
use super::{Gateway, Generation, access, refusal, task_id};
use crate::api::query::{cursor, cut, parse_cursor};
use crate::daemon::Daemon;
use crate::view::raw;

/// The methods that there are.
pub const METHODS: [&str; 4] = ["tasks/get", "tasks/result", "tasks/list", "tasks/cancel"];
/// Where `task` of a call is on its way through rmcp.
pub const TASK_META: &str = "mcp-taskd/task";

/// How long one wait for a change is.
const WAIT: Duration = Duration::from_mins(1);
/// How long `tasks/cancel` waits for the server to confirm.
const CANCEL_PATIENCE: Duration = Duration::from_secs(10);
/// Tasks on a page of the list.
const PAGE: u32 = 50;

/// Whether a call asks for a task.
pub fn asked(meta: &MetaObject) -> Result<bool, ErrorData> {
    let Some(task) = meta.get(TASK_META) else { return Ok(false) };
    // A lifetime that is asked for is not promised: `ttl` says what the task's is.
    let ttl = task.get("ttl").unwrap_or(&Value::Null);
    if task.is_object() && (ttl.is_null() || ttl.as_f64().is_some_and(|ttl| ttl >= 0.0)) {
        return Ok(true);
    }
    Err(ErrorData::invalid_params("task must be an object whose ttl, where it has one, is in milliseconds", None))
}

/// Answers a request.
pub async fn answer(
    gateway: &Gateway,
    method: &str,
    params: Option<&Value>,
    context: &RequestContext<RoleServer>,
) -> Result<Box<RawValue>, ErrorData> {
    let daemon = &gateway.daemon;
    let access = access(gateway.caller(context, &context.meta)?);
    if method == "tasks/list" {
        return list(daemon, access, params).await;
    }
    let id = task_id(params)?;
    match method {
        "tasks/result" => result(gateway, &access, id, context).await,
        "tasks/cancel" => cancel(daemon, &access, id).await,
        _ => Ok(shown(daemon, &find(daemon, &access, id).await?)),
    }
}

fn shown(daemon: &Daemon, task: &TaskRecord) -> Box<RawValue> {
    raw(&shape::task(task, &Terms::of(daemon), Generation::Core))
}

async fn find(daemon: &Daemon, access: &Access, id: &str) -> Result<TaskRecord, ErrorData> {
    daemon.tasks.get(access, id, Duration::ZERO).await.map_err(|error| refusal(&error))
}

/// Waits for the end of a task, however long it takes. The client is told of each change meanwhile: that makes the answer a
/// stream, which is kept alive and ends with the client.
async fn result(
    gateway: &Gateway,
    access: &Access,
    id: &str,
    context: &RequestContext<RoleServer>,
) -> Result<Box<RawValue>, ErrorData> {
    let daemon = &gateway.daemon;
    let mut task = find(daemon, access, id).await?;
    let mut told = None;
    let waits = !task.status.is_terminal();
    let _leave = match waits.then(|| gateway.waiter()) {
        Some(None) => return Err(ErrorData::internal_error("too many requests wait for tasks; ask again later", None)),
        leave => leave,
    };
    while !task.status.is_terminal() {
        let news = (task.status, task.updated_at);
        if told.replace(news) != Some(news) {
            let params = serde_json::to_value(shape::task(&task, &Terms::of(daemon), Generation::Core)).ok();
            let status = CustomNotification::new("notifications/tasks/status", params);
            // A client that is gone is noticed below.
            let _ = context.peer.send_notification(ServerNotification::CustomNotification(status)).await;
        }
        task = tokio::select! {
            biased;
            () = context.ct.cancelled() => return Err(ErrorData::internal_error("the request was cancelled", None)),
            () = daemon.shutdown.soft().cancelled() => {
                return Err(ErrorData::internal_error("the daemon is shutting down; ask again", None));
            }
            seen = next_change(daemon, access, id) => seen?,
        };
    }
    shape::ended(&task)
}

/// The task at its next change, or after a while. A store that is away for a moment ends no wait of hours.
async fn next_change(daemon: &Daemon, access: &Access, id: &str) -> Result<TaskRecord, ErrorData> {
    loop {
        match daemon.tasks.get(access, id, WAIT).await {
            Ok(task) => return Ok(task),
            Err(error @ ServiceError::NotFound(_)) => return Err(refusal(&error)),
            Err(_) => tokio::time::sleep(RETRY_AFTER).await,
        }
    }
}

/// Asks for the cancel, and waits a little for it: the answer should be the cancelled task. A server that needs longer has it
/// told as it is, still working.
async fn cancel(daemon: &Daemon, access: &Access, id: &str) -> Result<Box<RawValue>, ErrorData> {
    let mut task = find(daemon, access, id).await?;
    if !task.status.is_terminal() {
        task = daemon.tasks.cancel(access, id).await.map_err(|error| refusal(&error))?;
        let deadline = Instant::now() + CANCEL_PATIENCE;
        while !task.status.is_terminal() && Instant::now() < deadline {
            let wait = deadline.saturating_duration_since(Instant::now());
            task = tokio::select! {
                biased;
                () = daemon.shutdown.soft().cancelled() => break,
                task = daemon.tasks.get(access, id, wait) => task.map_err(|error| refusal(&error))?,
            };
        }
        if !task.status.is_terminal() || task.status == Status::Cancelled {
            return Ok(shown(daemon, &task));
        }
    }
    let status = shape::status(&task, Generation::Core);
    Err(ErrorData::invalid_params(format!("Cannot cancel task: already in terminal status '{status}'"), None))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed<'a> {
    tasks: Vec<shape::Task<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

async fn list(daemon: &Daemon, access: Access, params: Option<&Value>) -> Result<Box<RawValue>, ErrorData> {
    let after = match params.and_then(|params| params.get("cursor")) {
        None | Some(Value::Null) => None,
        Some(cursor) => Some(
            cursor
                .as_str()
                .and_then(parse_cursor)
                .ok_or_else(|| ErrorData::invalid_params("cursor is not one of tasks/list", None))?,
        ),
    };
    let filter = TaskFilter { user_id: access.user_id, thread_id: access.thread_id, ..TaskFilter::default() };
    // One more than is shown tells whether there is another page.
    let page = Page { limit: PAGE + 1, after };
    let mut tasks = daemon.tasks.list(&filter, &page).await.map_err(|error| refusal(&error))?;
    let more = cut(&mut tasks, &page);
    let next_cursor = tasks.last().filter(|_| more).map(|last| cursor(last.created_at, &last.id));
    let terms = Terms::of(daemon);
    let tasks = tasks.iter().map(|task| shape::task(task, &terms, Generation::Core)).collect();
    Ok(raw(&Listed { tasks, next_cursor }))
}
