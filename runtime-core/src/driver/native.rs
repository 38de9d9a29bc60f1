//! MCP's own tasks, of both generations (SEP-2663 and SEP-1686). Which of them a server speaks its transport knows, and the
//! shape of its answers tells; here the two differ in `tasks/result` and `tasks/update`, of which each has one.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::value::RawValue;

use super::line::{Line, failure, no_arguments};
use super::{Driver, InputFailure, Routes, SubmitCall, SubmitFailure};
use crate::contract::{
    CancelReading, Created, NotCreated, StatusReading, TaskReading, failed_with, not_found, read_created, read_result,
    read_task,
};
use crate::task::transition::code;
use crate::task::{Binding, Failure, FailureKind, Limits, Snapshot, Status, Tracked};
use crate::upstream::{CallError, Method, Purpose, Scope};

/// JSON-RPC's code for parameters that mean nothing: of a request about a task it is the task that the server does not know.
const INVALID_PARAMS: i64 = -32_602;
/// JSON-RPC's code for a method that does not exist.
const METHOD_NOT_FOUND: i64 = -32_601;

/// Speaks `tasks/*`.
#[derive(Debug)]
pub(super) struct NativeDriver {
    routes: Arc<Routes>,
    limits: Limits,
}

impl NativeDriver {
    pub(super) fn new(routes: Arc<Routes>, limits: Limits) -> Self {
        Self { routes, limits }
    }

    /// `tasks/get`, and what `tasks/result` has to add.
    async fn get(&self, line: &Line<'_>, tool: &str, remote_id: &str) -> StatusReading {
        match line.ask(Method::Get(remote_id), tool, no_arguments()).await {
            Ok(answer) => match read_task(&answer, remote_id, &self.limits) {
                TaskReading::Read(reading) => reading,
                TaskReading::Fetch(ended) => self.fetch(line, tool, remote_id, *ended).await,
            },
            Err(error) if error.rpc_code == Some(INVALID_PARAMS) => {
                StatusReading::Snapshot(Box::new(not_found(said(&error))))
            }
            Err(error) => StatusReading::Failure(failure(error)),
        }
    }

    /// `tasks/result` of a task that has ended, so that it answers at once.
    async fn fetch(&self, line: &Line<'_>, tool: &str, remote_id: &str, ended: Snapshot) -> StatusReading {
        let method = Method::Result(remote_id);
        match line.ask(method, tool, no_arguments()).await {
            Ok(answer) => read_result(ended, &answer, &self.limits),
            Err(error) => match (ended.status, error.rpc_code) {
                // It answers as the tool's call would have: this is what the task failed with.
                (Status::Failed, Some(code)) => {
                    StatusReading::Snapshot(Box::new(failed_with(ended, Some(code), said(&error))))
                }
                (_, Some(INVALID_PARAMS)) => StatusReading::Snapshot(Box::new(not_found(said(&error)))),
                (_, Some(METHOD_NOT_FOUND)) => {
                    let why = "tasks/get broke the task contract: a completed task has no result";
                    StatusReading::Snapshot(Box::new(Snapshot::failure(code::CONTRACT_VIOLATION, why)))
                }
                _ => StatusReading::Failure(failure(error)),
            },
        }
    }
}

/// The server's own words of a JSON-RPC error.
fn said(error: &CallError) -> &str {
    let head = error.rpc_code.map(|code| format!("JSON-RPC error {code}: ")).unwrap_or_default();
    error.message.strip_prefix(&head).unwrap_or(&error.message)
}

#[async_trait]
impl Driver for NativeDriver {
    async fn submit(&self, call: SubmitCall<'_>) -> Result<Created, SubmitFailure> {
        let line = Line::submitting(&self.routes, &call)?;
        let result = line.submit(Method::CallForTask, &call).await?;
        let created = read_created(&result, &call.binding.toolset.submit_tool, &self.limits);
        let mut created = created.map_err(|not_created| match not_created {
            NotCreated::Refused(mut refusal) => {
                line.scrub(&mut refusal.message);
                SubmitFailure::Refused(refusal)
            }
            NotCreated::Unreadable(why) => SubmitFailure::Unknown(why),
        })?;
        if let Created::Ended(snapshot) = &mut created {
            line.scrub_snapshot(snapshot);
        }
        Ok(created)
    }

    async fn status(&self, task: &Tracked) -> StatusReading {
        let line = match Line::about(&self.routes, task, Purpose::Status) {
            Ok(line) => line,
            Err(no_route) => return no_route.status(),
        };
        let remote_id = task.remote_task_id.as_deref().unwrap_or_default();
        line.scrubbed(self.get(&line, &task.binding.toolset.submit_tool, remote_id).await)
    }

    /// `tasks/cancel`, and then `tasks/get` for what became of the task: the cancel's own answer is an acknowledgement in one
    /// generation and the task in the other, and a refusal says no more than that the task may have ended.
    async fn cancel(&self, task_id: &str, binding: &Binding, scope: &Scope, remote_id: &str) -> CancelReading {
        let line = match Line::cancelling(&self.routes, task_id, binding, scope) {
            Ok(line) => line,
            Err(no_route) => return no_route.cancel(),
        };
        let tool = binding.toolset.submit_tool.as_str();
        let refused = match line.ask(Method::Cancel(remote_id), tool, no_arguments()).await {
            Ok(_) => None,
            Err(error) if error.rpc_code.is_some() => Some(error),
            Err(error) => return line.scrubbed_cancel(CancelReading::Failure(failure(error))),
        };
        line.scrubbed_cancel(match (self.get(&line, tool, remote_id).await, refused) {
            (StatusReading::Failure(failure), _) => CancelReading::Failure(failure),
            // A broken answer says nothing about the cancel.
            (StatusReading::Snapshot(snapshot), _)
                if snapshot.outcome.error_code.as_deref() == Some(code::CONTRACT_VIOLATION) =>
            {
                let why = snapshot.outcome.error.unwrap_or_default();
                CancelReading::Failure(Failure::new(FailureKind::Protocol, why))
            }
            (StatusReading::Snapshot(snapshot), _) if snapshot.status.is_terminal() => CancelReading::Ended(snapshot),
            (StatusReading::Snapshot(_), Some(error)) => CancelReading::Failure(failure(error)),
            (StatusReading::Snapshot(snapshot), None) => CancelReading::Taken(snapshot),
        })
    }

    /// `tasks/update`: `input` is its `inputResponses`, an object with the keys of what the task asks.
    async fn input(&self, task: &Tracked, input: &RawValue) -> Result<(), InputFailure> {
        if !input.get().trim_start().starts_with('{') {
            let what = "input must be an object: a response for each key of input_required";
            return Err(InputFailure::Invalid(what.to_owned()));
        }
        let line = Line::about(&self.routes, task, Purpose::Input).map_err(|no_route| match no_route {
            super::NoRoute::Gone(why) | super::NoRoute::Elsewhere(why) => InputFailure::Failed(why),
        })?;
        let remote_id = task.remote_task_id.as_deref().unwrap_or_default();
        match line.ask(Method::Update(remote_id), &task.binding.toolset.submit_tool, input).await {
            Ok(_) => Ok(()),
            Err(error) if error.rpc_code == Some(METHOD_NOT_FOUND) => {
                let why = "the server takes no input in this way: its version of MCP Tasks has no tasks/update";
                Err(InputFailure::NotTaken(why.to_owned()))
            }
            Err(mut error) => {
                line.scrub(&mut error.message);
                Err(InputFailure::Failed(error.message))
            }
        }
    }
}
