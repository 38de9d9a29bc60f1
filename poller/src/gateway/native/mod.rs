//! Native MCP Tasks: the daemon's tasks as a client sees them that declares MCP Tasks itself.
//!
//! There are two generations. In 2025-11-25 tasks are in the core of the protocol, and the client asks for one by `task` in a
//! call; from 2026-07-28 on they are an extension that a client declares in every request, and the server decides. Everybody
//! else meets the same tasks as ordinary tools. Nothing is kept here: every answer is made of the task's row, for the caller of
//! that one request, so that any replica gives it, also after a restart.

mod fold;
mod input;
mod legacy;
mod listen;
mod listing;
mod modern;
mod shape;

pub use fold::{Fold, fold, unfolded};
pub use listing::definition;
pub use modern::{cancel, get, update};

use mcp_taskd_core::service::{Access, ServiceError};
use mcp_taskd_core::task::TaskRecord;
use rmcp::model::{
    ClientCapabilities, CustomRequest, CustomResult, ErrorCode, InitializeResult, MetaObject, ProtocolVersion,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::caller::Caller;
use super::outcome::{self, Outcome};
use super::{Gateway, exact};
use crate::daemon::Daemon;

/// What the server declares of tasks to a client of 2025-11-25.
const CORE_CAPABILITY: &str = r#"{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}"#;

/// How a request speaks of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// SEP-1686, part of 2025-11-25.
    Core,
    /// SEP-2663, the extension `io.modelcontextprotocol/tasks` of 2026-07-28 and later.
    Extension,
}

impl Generation {
    /// The generation of a request's protocol; none before 2025-11-25.
    pub fn of(context: &RequestContext<RoleServer>) -> Option<Self> {
        let version = context.protocol_version()?;
        if version.as_str() >= ProtocolVersion::V_2026_07_28.as_str() {
            return Some(Self::Extension);
        }
        (version == ProtocolVersion::V_2025_11_25).then_some(Self::Core)
    }

    /// The same for a call, where its client wants a task for an answer.
    pub fn wanted(context: &RequestContext<RoleServer>, meta: &MetaObject) -> Result<Option<Self>, ErrorData> {
        Ok(match Self::of(context) {
            Some(Self::Extension) if declares(context) => Some(Self::Extension),
            Some(Self::Core) => legacy::asked(meta)?.then_some(Self::Core),
            _ => None,
        })
    }
}

/// Whether the request declares the extension; what an earlier one declared does not count.
fn declares(context: &RequestContext<RoleServer>) -> bool {
    context.client_capabilities().is_some_and(|capabilities| capabilities.supports_tasks())
}

fn undeclared() -> ErrorData {
    ErrorData::missing_required_client_capability(ClientCapabilities::builder().enable_tasks().build())
}

/// The answer to a call whose submit is durable, for a client that wants a task.
pub fn created(daemon: &Daemon, task: &TaskRecord, generation: Generation, builtin_tools: bool) -> Outcome {
    let message = outcome::told(task, builtin_tools);
    Outcome::Raw(shape::created(task, &shape::Terms::of(daemon), generation, &message))
}

/// Lets a tool be called that answers at once, unless a task was asked for. The extension leaves the choice to the server.
pub fn runs_at_once(name: &str, wanted: Option<Generation>) -> Result<(), ErrorData> {
    if wanted != Some(Generation::Core) {
        return Ok(());
    }
    let text = format!("the tool {name} does not run as a task");
    Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, text, None))
}

/// A submit that was refused. A client of 2025-11-25 that asked for a task expects one or an error, and no result of the tool.
pub fn refused(outcome: Outcome, wanted: Option<Generation>) -> Result<Outcome, ErrorData> {
    match outcome {
        Outcome::Error(text) if wanted == Some(Generation::Core) => Err(ErrorData::internal_error(text, None)),
        outcome => Ok(outcome),
    }
}

/// A greeting that declares tasks as 2025-11-25 has them; rmcp's capabilities have no such member.
pub fn greeting(answer: InitializeResult) -> InitializeResult {
    let capabilities = with(&crate::view::raw(&answer.capabilities), "tasks", CORE_CAPABILITY);
    match capabilities {
        Some(capabilities) => exact::greeting(answer, &capabilities),
        None => answer,
    }
}

/// Answers the requests that rmcp has no types for; `None` for those that are none of ours.
pub async fn custom(
    gateway: &Gateway,
    request: &CustomRequest,
    context: &RequestContext<RoleServer>,
) -> Option<Result<CustomResult, ErrorData>> {
    let generation = Generation::of(context);
    let method = fold::unfolded(&request.method);
    let answer = match (generation, method) {
        (Some(Generation::Core), method) if legacy::METHODS.contains(&method) => {
            legacy::answer(gateway, method, request.params.as_ref(), context).await
        }
        (Some(Generation::Extension), fold::LISTEN) => listen::listen(gateway, request.params.as_ref(), context).await,
        // rmcp could not read their params.
        (Some(Generation::Extension), method) if modern::METHODS.contains(&method) => {
            let needs = if method == "tasks/update" { "a taskId and inputResponses" } else { "a taskId" };
            let error = ErrorData::invalid_params(format!("{method} needs {needs}"), None);
            Err(if declares(context) { error } else { undeclared() })
        }
        _ if method != request.method => {
            Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("method not found: {method}"), None))
        }
        _ => return None,
    };
    Some(answer.map(|raw| exact::custom_result(&raw)))
}

/// Whose tasks a caller may see and touch: its own in its thread, as everywhere.
fn access(caller: Caller) -> Access {
    Access { user_id: Some(caller.user_id), thread_id: Some(caller.thread_id) }
}

/// The member `taskId` of a request's params.
fn task_id(params: Option<&Value>) -> Result<&str, ErrorData> {
    let id = params.and_then(|params| params.get("taskId")).and_then(Value::as_str);
    id.ok_or_else(|| ErrorData::invalid_params("a taskId is missing", None))
}

/// What a request about a task is told of an error. Another's task is one that does not exist, and so is one that expired.
fn refusal(error: &ServiceError) -> ErrorData {
    match error {
        ServiceError::NotFound(_) => ErrorData::invalid_params("Task not found", None),
        ServiceError::Conflict(text) | ServiceError::Invalid(text) => ErrorData::invalid_params(text.clone(), None),
        error => {
            ErrorData::internal_error(crate::view::public_error(Some(&error.to_string())).unwrap_or_default(), None)
        }
    }
}

/// JSON with one more member, or another value of it.
fn with(object: &RawValue, name: &str, value: &str) -> Option<Box<RawValue>> {
    let mut members: exact::Members = serde_json::from_str(object.get()).ok()?;
    members.insert(name.to_owned(), RawValue::from_string(value.to_owned()).ok()?);
    Some(crate::view::raw(&members))
}
