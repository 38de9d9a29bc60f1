//! Ordinary submit, status and cancel tools (BEHAVIOURS A).

use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::line::{Line, failure};
use super::{Driver, InputFailure, Routes, SubmitCall, SubmitFailure};
use crate::contract::{
    CancelReading, Created, Handle, StatusReading, ToolAnswer, read_cancel, read_status, read_submit,
};
use crate::task::transition::code;
use crate::task::{Binding, Failure, FailureKind, Limits, Tracked};
use crate::upstream::{Method, Purpose, Scope};

/// Speaks the contract of ordinary tools.
#[derive(Debug)]
pub(super) struct ToolsDriver {
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
    pub(super) fn new(routes: Arc<Routes>, limits: Limits) -> Self {
        Self { routes, limits }
    }

    /// Calls a tool about a task and reads what its answer means.
    async fn ask(&self, task: &Tracked, purpose: Purpose, tool: &str, arguments: &impl Serialize) -> StatusReading {
        let line = match Line::about(&self.routes, task, purpose) {
            Ok(line) => line,
            Err(no_route) => return no_route.status(),
        };
        let remote_id = task.remote_task_id.as_deref().unwrap_or_default();
        line.scrubbed(match call(&line, tool, arguments).await {
            Ok(answer) => read_status(&answer, tool, remote_id, &self.limits),
            Err(failure) => StatusReading::Failure(failure),
        })
    }
}

async fn call(line: &Line<'_>, tool: &str, arguments: &impl Serialize) -> Result<ToolAnswer, Failure> {
    let arguments = to_raw_value(arguments).map_err(|error| Failure::new(FailureKind::Internal, error.to_string()))?;
    let result = line.ask(Method::Call, tool, &arguments).await.map_err(failure)?;
    read(&result, tool)
}

#[async_trait]
impl Driver for ToolsDriver {
    async fn submit(&self, call: SubmitCall<'_>) -> Result<Created, SubmitFailure> {
        let line = Line::submitting(&self.routes, &call)?;
        let tool = call.binding.toolset.submit_tool.as_str();
        let result = line.submit(Method::Call, &call).await?;
        let answer = read(&result, tool).map_err(|failure| SubmitFailure::Unknown(failure.message))?;
        match read_submit(&answer, tool) {
            Ok(remote_id) => Ok(Created::Task(Handle::new(remote_id))),
            Err(mut refusal) => {
                line.scrub(&mut refusal.message);
                Err(SubmitFailure::Refused(refusal))
            }
        }
    }

    async fn status(&self, task: &Tracked) -> StatusReading {
        let remote_id = task.remote_task_id.as_deref().unwrap_or_default();
        let arguments = TaskIdArgument { task_id: remote_id };
        self.ask(task, Purpose::Status, &task.binding.toolset.status_tool, &arguments).await
    }

    async fn cancel(&self, task_id: &str, binding: &Binding, scope: &Scope, remote_id: &str) -> CancelReading {
        let tool = binding.toolset.cancel_tool.as_str();
        let line = match Line::cancelling(&self.routes, task_id, binding, scope) {
            Ok(line) => line,
            Err(no_route) => return no_route.cancel(),
        };
        line.scrubbed_cancel(match call(&line, tool, &TaskIdArgument { task_id: remote_id }).await {
            Ok(answer) => read_cancel(&answer, tool, remote_id, &self.limits),
            Err(failure) => CancelReading::Failure(failure),
        })
    }

    async fn input(&self, task: &Tracked, input: &RawValue) -> Result<(), InputFailure> {
        let Some(tool) = task.binding.toolset.input_tool.as_deref() else {
            return Err(InputFailure::NotTaken("the task's toolset names no input_tool".to_owned()));
        };
        let task_id = task.remote_task_id.as_deref().unwrap_or_default();
        match self.ask(task, Purpose::Input, tool, &InputArguments { task_id, input }).await {
            StatusReading::Snapshot(snapshot)
                if snapshot.outcome.error_code.as_deref() == Some(code::CONTRACT_VIOLATION) =>
            {
                Err(InputFailure::Failed(snapshot.outcome.error.unwrap_or_default()))
            }
            StatusReading::Snapshot(_) => Ok(()),
            StatusReading::Failure(failure) => Err(InputFailure::Failed(failure.message)),
        }
    }
}

fn read(result: &RawValue, tool: &str) -> Result<ToolAnswer, Failure> {
    ToolAnswer::read(result)
        .map_err(|_| Failure::new(FailureKind::Protocol, format!("the answer of {tool} is no tool result")))
}
