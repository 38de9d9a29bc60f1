//! Ordinary submit, status and cancel tools (BEHAVIOURS A).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::{Driver, NoRoute, Route, Routes, SubmitCall, SubmitFailure};
use crate::contract::{CancelReading, StatusReading, ToolAnswer, read_cancel, read_status, read_submit};
use crate::task::transition::code;
use crate::task::{Binding, Failure, FailureKind, Limits, Snapshot, Tracked};
use crate::upstream::{About, CallError, CallErrorKind, Method, Purpose, Scope, ToolCall};

/// The `_meta` member that carries a submit's idempotency key.
const IDEMPOTENCY_KEY: &str = "mcp-taskd/idempotency-key";

/// Speaks the contract of ordinary tools.
#[derive(Debug)]
pub struct ToolsDriver {
    routes: Arc<Routes>,
    limits: Limits,
}

#[derive(Serialize)]
struct TaskIdArgument<'a> {
    task_id: &'a str,
}

#[derive(Serialize)]
struct InputArguments<'a> {
    task_id: &'a str,
    input: &'a RawValue,
}

impl ToolsDriver {
    /// A driver over `routes`.
    pub fn new(routes: Arc<Routes>, limits: Limits) -> Self {
        Self { routes, limits }
    }

    /// Calls a tool about a task and reads what its answer means. Texts of the server's are scrubbed of the credentials
    /// that were sent to it (148).
    async fn ask(&self, task: &Tracked, purpose: Purpose, tool: &str, arguments: &impl Serialize) -> StatusReading {
        let remote_id = task.remote_task_id.as_deref().unwrap_or_default();
        let route = match self.routes.drive(&task.binding, &task.user_id) {
            Ok(route) => route,
            Err(NoRoute::Gone(why)) => return StatusReading::Snapshot(Box::new(gone(&why))),
            Err(NoRoute::Elsewhere(why)) => return StatusReading::Failure(Failure::new(FailureKind::Unroutable, why)),
        };
        let about = About { task_id: &task.id, purpose };
        let mut reading = match call(&route, about, &scope_of(task), tool, arguments).await {
            Ok(answer) => read_status(&answer, tool, remote_id, &self.limits),
            Err(failure) => StatusReading::Failure(failure),
        };
        match &mut reading {
            StatusReading::Failure(failure) => scrub(&route, &mut failure.message),
            StatusReading::Snapshot(snapshot) => scrub_snapshot(&route, snapshot),
        }
        reading
    }
}

async fn call(
    route: &Route,
    about: About<'_>,
    scope: &Scope,
    tool: &str,
    arguments: &impl Serialize,
) -> Result<ToolAnswer, Failure> {
    let arguments = to_raw_value(arguments).map_err(|error| internal(&error))?;
    let (task, deadline) = (Some(about), Some(route.call_deadline));
    let arguments = &arguments;
    let call = ToolCall { method: Method::Call, tool, arguments, meta: &[], headers: &[], scope, task, deadline };
    let result = route.upstream.call_tool(call).await.map_err(failure)?;
    read(&result, tool)
}

fn scrub(route: &Route, text: &mut String) {
    *text = route.upstream.scrub(text);
}

fn scrub_snapshot(route: &Route, snapshot: &mut Snapshot) {
    if let Some(error) = &mut snapshot.outcome.error {
        scrub(route, error);
    }
}

#[async_trait]
impl Driver for ToolsDriver {
    async fn submit(&self, call: SubmitCall<'_>) -> Result<String, SubmitFailure> {
        let route = self.routes.drive(call.binding, &call.scope.user_id).map_err(|no_route| match no_route {
            NoRoute::Elsewhere(why) | NoRoute::Gone(why) => SubmitFailure::NotSent(why),
        })?;
        let tool = call.binding.toolset.submit_tool.as_str();
        let meta = [(IDEMPOTENCY_KEY, call.task_id)];
        let purpose = if call.again { Purpose::Resubmit } else { Purpose::Submit };
        let request = ToolCall {
            method: Method::Call,
            tool,
            arguments: call.arguments,
            meta: &meta,
            headers: call.headers,
            scope: call.scope,
            task: Some(About { task_id: call.task_id, purpose }),
            deadline: Some(route.submit_deadline),
        };
        let result = route.upstream.call_tool(request).await.map_err(|error| {
            // A JSON-RPC error is an answer: the server looked at the call and did not run it.
            if error.maybe_executed && error.kind != CallErrorKind::Rpc {
                SubmitFailure::Unknown(error.message)
            } else {
                SubmitFailure::NotSent(error.message)
            }
        })?;
        let answer = read(&result, tool).map_err(|failure| SubmitFailure::Unknown(failure.message))?;
        read_submit(&answer, tool).map_err(|mut refusal| {
            scrub(&route, &mut refusal.message);
            SubmitFailure::Refused(refusal)
        })
    }

    async fn status(&self, task: &Tracked) -> StatusReading {
        let remote_id = task.remote_task_id.as_deref().unwrap_or_default();
        let arguments = TaskIdArgument { task_id: remote_id };
        self.ask(task, Purpose::Status, &task.binding.toolset.status_tool, &arguments).await
    }

    async fn cancel(&self, task_id: &str, binding: &Binding, scope: &Scope, remote_id: &str) -> CancelReading {
        let tool = binding.toolset.cancel_tool.as_str();
        let route = match self.routes.drive(binding, &scope.user_id) {
            Ok(route) => route,
            Err(NoRoute::Gone(why)) => return CancelReading::Ended(Box::new(gone(&why))),
            Err(NoRoute::Elsewhere(why)) => return CancelReading::Failure(Failure::new(FailureKind::Unroutable, why)),
        };
        let about = About { task_id, purpose: Purpose::Cancel };
        let mut reading = match call(&route, about, scope, tool, &TaskIdArgument { task_id: remote_id }).await {
            Ok(answer) => read_cancel(&answer, tool, remote_id, &self.limits),
            Err(failure) => CancelReading::Failure(failure),
        };
        match &mut reading {
            CancelReading::Failure(failure) => scrub(&route, &mut failure.message),
            CancelReading::Ended(snapshot) => scrub_snapshot(&route, snapshot),
        }
        reading
    }

    async fn input(&self, task: &Tracked, tool: &str, input: &RawValue) -> StatusReading {
        let remote_id = task.remote_task_id.as_deref().unwrap_or_default();
        self.ask(task, Purpose::Input, tool, &InputArguments { task_id: remote_id, input }).await
    }
}

/// On whose behalf a task is asked about: its owner's.
pub(crate) fn scope_of(task: &Tracked) -> Scope {
    Scope { user_id: task.user_id.clone(), thread_id: task.thread_id.clone() }
}

fn read(result: &RawValue, tool: &str) -> Result<ToolAnswer, Failure> {
    ToolAnswer::read(result)
        .map_err(|_| Failure::new(FailureKind::Protocol, format!("the answer of {tool} is no tool result")))
}

/// The end of a task whose connection is no more: nobody can ask about it again (50).
fn gone(why: &str) -> Snapshot {
    Snapshot::failure(code::CONNECTION_GONE, why)
}

fn internal(error: &serde_json::Error) -> Failure {
    Failure::new(FailureKind::Internal, error.to_string())
}

fn failure(error: CallError) -> Failure {
    let kind = match error.kind {
        CallErrorKind::Connect | CallErrorKind::Transport => FailureKind::Transport,
        CallErrorKind::Timeout => FailureKind::Timeout,
        CallErrorKind::Auth => FailureKind::Auth,
        CallErrorKind::Denied => FailureKind::Denied,
        CallErrorKind::Intercepted => FailureKind::Intercepted,
        // A JSON-RPC error is an answer: it says nothing of the task, and the server is alive.
        CallErrorKind::Protocol | CallErrorKind::Rpc => FailureKind::Protocol,
    };
    Failure { kind, message: error.message, retry_after: error.retry_after }
}

/// How long a submit may take before its intent counts as abandoned: the call, bring-up, and time to record.
pub(crate) fn intent_deadline(route: &Route) -> Duration {
    route.submit_deadline + Duration::from_secs(90)
}
