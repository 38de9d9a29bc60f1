//! The methods of the extension of 2026-07-28 (SEP-2663): `tasks/get`, `tasks/update`, `tasks/cancel`.

use std::time::Duration;

use mcp_taskd_core::service::{Access, ServiceError};
use mcp_taskd_core::task::{Status, TaskRecord};
use rmcp::model::{GetTaskResult, InputResponses};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};

use super::input::{self, Answers};
use super::shape::{self, Terms};
use super::{Gateway, access, refusal};
use crate::gateway::exact;
use crate::view::raw;

/// The methods that there are.
pub const METHODS: [&str; 3] = ["tasks/get", "tasks/update", "tasks/cancel"];

/// How long an answer waits to be seen in the task, so that a client that looks at once is not asked again.
const UPDATE_PATIENCE: Duration = Duration::from_secs(2);

/// The requests that a client answers, by what this request declares.
pub fn answers(context: &RequestContext<RoleServer>) -> Answers {
    context.client_capabilities().as_ref().map(Answers::of).unwrap_or_default()
}

/// `tasks/get`.
pub async fn get(
    gateway: &Gateway,
    id: &str,
    context: &RequestContext<RoleServer>,
) -> Result<GetTaskResult, ErrorData> {
    let access = access(gateway.caller(context, &context.meta)?);
    let task = gateway.daemon.tasks.get(&access, id, Duration::ZERO).await.map_err(|error| refusal(&error))?;
    Ok(exact::task_result(&raw(&shape::detailed(&task, &Terms::of(&gateway.daemon), answers(context)))))
}

/// `tasks/update`: responses to what is not outstanding are ignored, as the specification has it.
pub async fn update(
    gateway: &Gateway,
    id: &str,
    responses: &InputResponses,
    context: &RequestContext<RoleServer>,
) -> Result<(), ErrorData> {
    let access = access(gateway.caller(context, &context.meta)?);
    let tasks = &gateway.daemon.tasks;
    let task = tasks.get(&access, id, Duration::ZERO).await.map_err(|error| refusal(&error))?;
    let Some(question) = task.outcome.input_required.as_ref().filter(|_| task.status == Status::InputRequired) else {
        return Ok(());
    };
    let answered = !responses.is_empty();
    let responses = responses.iter().map(|(name, response)| (name.as_str(), response));
    let input = input::input(question, responses).map_err(|error| ErrorData::invalid_params(error, None))?;
    if let Some(input) = input {
        tasks.input(&access, id, &input).await.map_err(|error| match error {
            ServiceError::Refused(text) => {
                ErrorData::invalid_params(format!("the server did not take the input: {text}"), None)
            }
            error => refusal(&error),
        })?;
    } else if !answered {
        return Ok(());
    }
    // Whatever becomes of this look, the responses are taken; one that declines would be asked for again at once.
    let _ = tokio::time::timeout(UPDATE_PATIENCE, changed(gateway, &access, &task)).await;
    Ok(())
}

/// Waits until a task is another than this.
async fn changed(gateway: &Gateway, access: &Access, before: &TaskRecord) {
    let mut wait = Duration::ZERO;
    while let Ok(task) = gateway.daemon.tasks.get(access, &before.id, wait).await
        && (task.status, &task.digest) == (before.status, &before.digest)
    {
        wait = UPDATE_PATIENCE;
    }
}

/// `tasks/cancel`: an acknowledgement, also of a task that has ended; its status tells what became of it.
pub async fn cancel(gateway: &Gateway, id: &str, context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
    let access = access(gateway.caller(context, &context.meta)?);
    gateway.daemon.tasks.cancel(&access, id).await.map(|_| ()).map_err(|error| refusal(&error))
}
