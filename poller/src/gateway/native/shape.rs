//! A task's row as the JSON of either generation of MCP Tasks; pure.

use mcp_taskd_core::task::transition::code;
use mcp_taskd_core::task::{Json, Policy, Status, TaskRecord, Toolset};
use rmcp::model::ErrorCode;
use serde::Serialize;
use serde_json::value::RawValue;

use super::Generation;
use super::input::{self, Answers};
use crate::daemon::Daemon;
use crate::gateway::outcome::Text;
use crate::view::{public_error, raw, rfc3339};

/// What a server that cannot make the work's result itself ends a task with; no tool answered then.
const FAULTS: [&str; 5] = [
    code::CONTRACT_VIOLATION,
    code::TASK_EXPIRED,
    code::SUBMIT_OUTCOME_UNKNOWN,
    code::TASK_NOT_FOUND,
    code::CONNECTION_GONE,
];

/// What holds for every task.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    policy: Policy,
    /// How long an ended task is kept, in milliseconds; for ever without it.
    retention_ms: Option<i64>,
}

impl Terms {
    /// Those of a daemon.
    pub fn of(daemon: &Daemon) -> Self {
        Self { policy: daemon.policy, retention_ms: daemon.retention_ms }
    }

    /// From `createdAt` on. A task that has not ended is kept, however long it takes.
    fn ttl_ms(&self, task: &TaskRecord) -> Option<i64> {
        let kept_until = task.completed_at?.saturating_add(self.retention_ms?);
        Some(kept_until.saturating_sub(task.created_at))
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Times {
    #[serde(rename_all = "camelCase")]
    Core { ttl: Option<i64>, poll_interval: i64 },
    #[serde(rename_all = "camelCase")]
    Extension { ttl_ms: Option<i64>, poll_interval_ms: i64 },
}

/// A task of either generation.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "the protocol names it so")]
pub struct Task<'a> {
    task_id: &'a str,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_message: Option<String>,
    created_at: String,
    last_updated_at: String,
    #[serde(flatten)]
    times: Times,
}

/// A task without what it waits for or came to.
pub fn task<'a>(task: &'a TaskRecord, terms: &Terms, generation: Generation) -> Task<'a> {
    let (ttl_ms, poll_interval_ms) = (terms.ttl_ms(task), terms.policy.poll_interval_ms);
    Task {
        task_id: &task.id,
        status: status(task, generation),
        status_message: public_error(status_message(task, terms).as_deref()),
        created_at: rfc3339(task.created_at),
        last_updated_at: rfc3339(task.updated_at),
        times: match generation {
            Generation::Core => Times::Core { ttl: ttl_ms, poll_interval: poll_interval_ms },
            Generation::Extension => Times::Extension { ttl_ms, poll_interval_ms },
        },
    }
}

/// The JSON-RPC error that the task ended with in place of an answer by its server's tool: the server's own where it speaks
/// MCP Tasks itself, else one of ours.
fn fault(task: &TaskRecord) -> Option<i32> {
    let code = task.outcome.error_code.as_deref().filter(|_| task.status == Status::Failed)?;
    if FAULTS.contains(&code) {
        return Some(ErrorCode::INTERNAL_ERROR.0);
    }
    code.parse().ok().filter(|_| task.binding.driver == Toolset::NATIVE)
}

/// Whether the tool's answer is an error.
fn is_tool_error(task: &TaskRecord) -> bool {
    task.status != Status::Completed || task.outcome.error_code.as_deref() == Some(code::TOOL_ERROR)
}

/// The protocol's word for a task's status.
pub fn status(task: &TaskRecord, generation: Generation) -> &'static str {
    match task.status {
        Status::Submitting | Status::Submitted | Status::Working => "working",
        Status::InputRequired => "input_required",
        Status::Completed if generation == Generation::Core && is_tool_error(task) => "failed",
        Status::Completed => "completed",
        // Work that its server calls failed has an answer, with `isError`; the extension keeps `failed` for JSON-RPC errors.
        Status::Failed if generation == Generation::Extension && fault(task).is_none() => "completed",
        Status::Failed => "failed",
        Status::Cancelled => "cancelled",
    }
}

fn status_message(task: &TaskRecord, terms: &Terms) -> Option<String> {
    match task.status {
        Status::Cancelled => Some(task.outcome.error.clone().unwrap_or_else(|| "The task was cancelled.".to_owned())),
        Status::Failed | Status::Completed => task.outcome.error.clone(),
        _ if task.cancel_requested_at.is_some() => Some(match &task.last_cancel_error {
            Some(error) => format!("The cancel is requested; the server did not take it yet: {error}"),
            None => "The cancel is requested; the server has not confirmed it yet.".to_owned(),
        }),
        Status::InputRequired => task.outcome.input_required.as_ref().and_then(input::message),
        _ if task.degraded(&terms.policy) => {
            let error = task.last_poll_error.as_deref().unwrap_or("no answer");
            Some(format!("The server cannot be asked about the task at present: {error}"))
        }
        _ => None,
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Created<'a> {
    result_type: &'static str,
    #[serde(flatten)]
    task: Task<'a>,
}

#[derive(Serialize)]
struct CoreCreated<'a> {
    task: Task<'a>,
    #[serde(rename = "_meta")]
    meta: Immediate<'a>,
}

#[derive(Serialize)]
struct Immediate<'a> {
    #[serde(rename = "io.modelcontextprotocol/model-immediate-response")]
    response: &'a str,
}

/// The `CreateTaskResult`; `message` is what a model may be told meanwhile.
pub fn created(record: &TaskRecord, terms: &Terms, generation: Generation, message: &str) -> Box<RawValue> {
    let task = task(record, terms, generation);
    match generation {
        Generation::Core => raw(&CoreCreated { task, meta: Immediate { response: message } }),
        Generation::Extension => raw(&Created { result_type: "task", task }),
    }
}

#[derive(Serialize)]
struct RpcError<'a> {
    code: i32,
    message: String,
    data: ErrorData<'a>,
}

#[derive(Serialize)]
struct ErrorData<'a> {
    error_code: &'a str,
}

/// The extension's `DetailedTask`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Detailed<'a> {
    #[serde(flatten)]
    task: Task<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_requests: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<RpcError<'a>>,
}

/// The whole task, to a client that gives these answers.
pub fn detailed<'a>(record: &'a TaskRecord, terms: &Terms, answers: Answers) -> Detailed<'a> {
    let task = task(record, terms, Generation::Extension);
    let question = record.outcome.input_required.as_ref().filter(|_| task.status == "input_required");
    Detailed {
        input_requests: question.map(|question| input::requests(question, answers)),
        result: (task.status == "completed").then(|| result(record, false)),
        error: fault(record).map(|code| RpcError {
            code,
            message: error_text(record),
            data: ErrorData { error_code: record.outcome.error_code.as_deref().unwrap_or_default() },
        }),
        task,
    }
}

/// The result of an ended task for `tasks/result`: a tool's, or the error in its place.
pub fn ended(record: &TaskRecord) -> Result<Box<RawValue>, rmcp::ErrorData> {
    if let Some(code) = fault(record) {
        let data = serde_json::json!({ "error_code": record.outcome.error_code });
        return Err(rmcp::ErrorData::new(ErrorCode(code), error_text(record), Some(data)));
    }
    Ok(result(record, true))
}

fn error_text(record: &TaskRecord) -> String {
    public_error(record.outcome.error.as_deref()).unwrap_or_else(|| "the task failed".to_owned())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolResult<'a> {
    content: [Text<'a>; 1],
    structured_content: &'a RawValue,
    is_error: bool,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<RelatedTask<'a>>,
}

#[derive(Serialize)]
struct RelatedTask<'a> {
    #[serde(rename = "io.modelcontextprotocol/related-task")]
    related: TaskId<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TaskId<'a> {
    task_id: &'a str,
}

/// What the submit tool's `outputSchema` asks for, and the payloads under the names that `get_background_task` has for them.
#[derive(Serialize)]
struct Structured<'a> {
    task_id: &'a str,
    task_name: &'a str,
    status: Status,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_preview: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    result_truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_artifact: Option<&'a Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<&'a str>,
}

/// The `CallToolResult` that an ended task came to.
fn result(record: &TaskRecord, related: bool) -> Box<RawValue> {
    let (name, outcome) = (&record.binding.toolset.name, &record.outcome);
    let message = match record.status {
        Status::Completed if is_tool_error(record) => {
            format!("The background task {name:?} ended with an error: {}", error_text(record))
        }
        Status::Completed => format!("The background task {name:?} is completed."),
        Status::Failed => format!("The background task {name:?} failed: {}", error_text(record)),
        status => format!("The background task {name:?} is {status}."),
    };
    let structured = raw(&Structured {
        task_id: &record.id,
        task_name: name,
        status: record.status,
        message: &message,
        result: outcome.result.as_ref(),
        result_preview: outcome.result_preview.as_deref(),
        result_truncated: outcome.result_truncated,
        result_artifact: outcome.result_artifact.as_ref(),
        error_code: outcome.error_code.as_deref(),
    });
    let is_error = is_tool_error(record);
    let text = if is_error && outcome.result.is_none() { &message } else { structured.get() };
    let meta = related.then(|| RelatedTask { related: TaskId { task_id: &record.id } });
    raw(&ToolResult { content: [Text::new(text)], structured_content: &structured, is_error, meta })
}

#[cfg(test)]
#[path = "shape_tests.rs"]
mod tests;
