//! A task's line to its server: what all drivers need to ask about it.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{NoRoute, Route, Routes, SubmitCall, SubmitFailure};
use crate::contract::{CancelReading, StatusReading};
use crate::task::transition::code;
use crate::task::{Binding, Failure, FailureKind, Json, Snapshot, Tracked};
use crate::upstream::{About, CallError, CallErrorKind, Method, Purpose, Scope, ToolCall};

/// The `_meta` member that carries a submit's idempotency key.
const IDEMPOTENCY_KEY: &str = "mcp-taskd/idempotency-key";

/// The way to the server of one task, for requests of one purpose on behalf of its owner.
pub(super) struct Line<'a> {
    route: Cow<'a, Route>,
    about: About<'a>,
    scope: Cow<'a, Scope>,
}

/// Arguments of a request that has none.
pub(super) fn no_arguments() -> &'static RawValue {
    const NONE: &str = "{}";
    serde_json::from_str(NONE).unwrap_or(RawValue::NULL)
}

impl<'a> Line<'a> {
    /// The line for asking about `task`.
    pub(super) fn about(routes: &'a Routes, task: &'a Tracked, purpose: Purpose) -> Result<Self, NoRoute> {
        let route = routes.drive(&task.binding, &task.user_id)?;
        Ok(Self { route, about: About { task_id: &task.id, purpose }, scope: Cow::Owned(super::scope_of(task)) })
    }

    /// The line for cancelling what the task `task_id` is, or was to be, on its server.
    pub(super) fn cancelling(
        routes: &'a Routes,
        task_id: &'a str,
        binding: &Binding,
        scope: &'a Scope,
    ) -> Result<Self, NoRoute> {
        let route = routes.drive(binding, &scope.user_id)?;
        Ok(Self { route, about: About { task_id, purpose: Purpose::Cancel }, scope: Cow::Borrowed(scope) })
    }

    /// The line for a submit.
    pub(super) fn submitting(routes: &'a Routes, call: &SubmitCall<'a>) -> Result<Self, SubmitFailure> {
        let route = routes.drive(call.binding, &call.scope.user_id).map_err(|no_route| match no_route {
            NoRoute::Elsewhere(why) | NoRoute::Gone(why) => SubmitFailure::NotSent(why),
        })?;
        let purpose = if call.again { Purpose::Resubmit } else { Purpose::Submit };
        Ok(Self { route, about: About { task_id: call.task_id, purpose }, scope: Cow::Borrowed(call.scope) })
    }

    /// A request within the deadline of a call about a task.
    pub(super) async fn ask(
        &self,
        method: Method<'_>,
        tool: &str,
        arguments: &RawValue,
    ) -> Result<Box<RawValue>, CallError> {
        self.route.upstream.call_tool(self.call(method, tool, arguments)).await
    }

    /// The call that starts the work.
    pub(super) async fn submit(
        &self,
        method: Method<'_>,
        call: &SubmitCall<'_>,
    ) -> Result<Box<RawValue>, SubmitFailure> {
        let meta = [(IDEMPOTENCY_KEY, call.task_id)];
        let request = self.call(method, &call.binding.toolset.submit_tool, call.arguments);
        let request = ToolCall { meta: &meta, headers: call.headers, ..request };
        self.route.upstream.call_tool(request).await.map_err(|error| {
            // A JSON-RPC error is an answer: the server looked at the call and did not run it.
            if error.maybe_executed && error.kind != CallErrorKind::Rpc {
                SubmitFailure::Unknown(error.message)
            } else {
                SubmitFailure::NotSent(error.message)
            }
        })
    }

    fn call<'b>(&'b self, method: Method<'b>, tool: &'b str, arguments: &'b RawValue) -> ToolCall<'b> {
        let is_submit = matches!(self.about.purpose, Purpose::Submit | Purpose::Resubmit);
        let deadline = if is_submit { self.route.submit_deadline } else { self.route.call_deadline };
        ToolCall {
            method,
            tool,
            arguments,
            meta: &[],
            headers: &[],
            scope: &self.scope,
            task: Some(self.about),
            deadline: Some(deadline),
        }
    }

    /// A text of the server's without the credentials that were sent to it (148).
    pub(super) fn scrub(&self, text: &mut String) {
        *text = self.route.upstream.scrub(text);
    }

    /// The same of what a status answer means.
    pub(super) fn scrubbed(&self, mut reading: StatusReading) -> StatusReading {
        match &mut reading {
            StatusReading::Failure(failure) => self.scrub(&mut failure.message),
            StatusReading::Snapshot(snapshot) => self.scrub_snapshot(snapshot),
        }
        reading
    }

    /// The same of what a cancel's answer means.
    pub(super) fn scrubbed_cancel(&self, mut reading: CancelReading) -> CancelReading {
        match &mut reading {
            CancelReading::Failure(failure) => self.scrub(&mut failure.message),
            CancelReading::Ended(snapshot) | CancelReading::Taken(snapshot) => self.scrub_snapshot(snapshot),
        }
        reading
    }

    /// The same of a snapshot: its error, and a result that is an error's text.
    pub(super) fn scrub_snapshot(&self, snapshot: &mut Snapshot) {
        let outcome = &mut snapshot.outcome;
        if let Some(error) = &mut outcome.error {
            self.scrub(error);
        }
        if outcome.error_code.as_deref() == Some(code::TOOL_ERROR) {
            if let Some(result) = &mut outcome.result
                && let Ok(scrubbed) = Json::parse(&self.route.upstream.scrub(result.as_str()))
            {
                *result = scrubbed;
            }
            if let Some(preview) = &mut outcome.result_preview {
                self.scrub(preview);
            }
        }
    }
}

impl NoRoute {
    /// What it means for a poll: the end of a task whose connection is no more, since nobody can ask about it again (50).
    pub(super) fn status(self) -> StatusReading {
        match self {
            Self::Gone(why) => StatusReading::Snapshot(Box::new(gone(&why))),
            Self::Elsewhere(why) => StatusReading::Failure(Failure::new(FailureKind::Unroutable, why)),
        }
    }

    /// What it means for a cancel.
    pub(super) fn cancel(self) -> CancelReading {
        match self {
            Self::Gone(why) => CancelReading::Ended(Box::new(gone(&why))),
            Self::Elsewhere(why) => CancelReading::Failure(Failure::new(FailureKind::Unroutable, why)),
        }
    }
}

fn gone(why: &str) -> Snapshot {
    Snapshot::failure(code::CONNECTION_GONE, why)
}

/// What a failed call says of the server.
pub(super) fn failure(error: CallError) -> Failure {
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
