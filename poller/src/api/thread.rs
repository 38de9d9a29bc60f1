//! A thread's tasks, for their user.

use std::time::Duration;

use axum::extract::{FromRequestParts, Path, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use mcp_taskd_core::service::{Access, ServiceError, Submit};
use mcp_taskd_core::task::TaskRecord;
use serde::Serialize;
use serde_json::json;

use super::body::{Body, InputDocument, SubmitDocument, idempotency_key};
use super::openapi::{Operation, Param, Routes, operation};
use super::problem::Problem;
use super::query::{Params, cut, encode, list_params, wait_param};
use super::{Api, events};
use crate::auth::{Identity, Scope, USER_HEADER, is_valid_id};
use crate::view;

/// The routes of this room.
pub fn routes(routes: Routes) -> Routes {
    const TASKS: &str = "/api/threads/{thread_id}/mcp-tasks";
    const TASK: &str = "/api/threads/{thread_id}/mcp-tasks/{task_id}";
    routes
        .get(
            TASKS,
            list,
            described("listTasks", "A thread's tasks, newest first")
                .takes(list_params())
                .answers::<Vec<view::Item<'static>>>(200, "A page of tasks.")
                .with_header(200, "Link", "The next page, where there is one (`rel=\"next\"`)."),
        )
        .post(
            TASKS,
            submit,
            described("submitTask", "Starts a task")
                .about("Answers once the server's handle is durable, and tells of the outcome otherwise.")
                .takes([Param::header(
                    "Idempotency-Key",
                    "Makes the submit repeatable: the same key with the same body gives the same task.",
                    json!({ "type": "string", "minLength": 1, "maxLength": 255 }),
                )])
                .body::<SubmitDocument>()
                .answers::<view::Detail<'static>>(201, "The task.")
                .with_header(201, "Location", "The task's path.")
                .answers::<view::Detail<'static>>(200, "The task of an earlier submit with this key.")
                .with_header(200, "Location", "The task's path.")
                .problem(400, &["invalid_request"])
                .problem(404, &["not_found"])
                .problem(409, &["conflict"])
                .problem(413, &["payload_too_large"])
                .problem(422, &["credential_in_metadata"])
                .problem(502, &["submit_refused"])
                .problem(503, &["draining"])
                .problem(504, &["submit_outcome_unknown"]),
        )
        .get(
            "/api/threads/{thread_id}/mcp-tasks/events",
            events::thread,
            described("followEvents", "A thread's events as they happen")
                .about("Server-sent events; each has the event's JSON as its data and its sequence as its id.")
                .takes([Param::header(
                    "Last-Event-ID",
                    "Resumes behind this event.",
                    json!({ "type": "integer", "minimum": 0 }),
                )])
                .answers_text(200, "The events, without an end.", "text/event-stream")
                .problem(503, &["too_many_streams"]),
        )
        .get(
            TASK,
            get,
            described("getTask", "A task")
                .takes([wait_param()])
                .answers::<view::Detail<'static>>(200, "The task.")
                .problem(404, &["not_found"]),
        )
        .post(
            "/api/threads/{thread_id}/mcp-tasks/{task_id}/cancel",
            cancel,
            described("cancelTask", "Requests the cancel of a task")
                .about("Repeating it changes nothing; the task ends as the server's answer to the cancel says.")
                .answers::<view::Detail<'static>>(200, "The task.")
                .problem(404, &["not_found"]),
        )
        .post(
            "/api/threads/{thread_id}/mcp-tasks/{task_id}/input",
            input,
            described("answerTask", "Answers a task that requires input")
                .body::<InputDocument>()
                .answers::<view::Detail<'static>>(200, "The task.")
                .problem(400, &["invalid_request"])
                .problem(404, &["not_found"])
                .problem(409, &["conflict"])
                .problem(413, &["payload_too_large"])
                .problem(502, &["submit_refused"])
                .problem(503, &["draining"]),
        )
}

fn described(id: &'static str, summary: &'static str) -> Operation {
    operation(id, "tasks", summary).takes([Param::header(
        USER_HEADER,
        "Whose tasks are meant; the key's or token's user where there is one.",
        json!({ "type": "string", "minLength": 1, "maxLength": 255 }),
    )])
}

/// The caller's thread, from the path.
pub struct Thread {
    access: Access,
    user_id: String,
    id: String,
}

impl FromRequestParts<Api> for Thread {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let caller = Identity::from_request_parts(parts, api).await?;
        caller.require(Scope::Tasks)?;
        let Path(path) = Path::<Vec<(String, String)>>::from_request_parts(parts, api)
            .await
            .map_err(|_| Problem::invalid("the path must be percent-encoded UTF-8"))?;
        let thread_id = path.into_iter().find(|(name, _)| name == "thread_id").map(|(_, value)| value);
        let thread_id = thread_id
            .filter(|id| is_valid_id(id))
            .ok_or_else(|| Problem::invalid("the thread id must be 1 to 255 characters without control characters"))?;
        let access = Access { user_id: Some(caller.user_id.clone()), thread_id: Some(thread_id.clone()) };
        Ok(Self { access, user_id: caller.user_id, id: thread_id })
    }
}

impl Thread {
    /// What may be seen.
    pub fn access(&self) -> &Access {
        &self.access
    }
}

/// The task's id, from the path.
pub struct TaskId(pub String);

impl FromRequestParts<Api> for TaskId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let Path(path) = Path::<Vec<(String, String)>>::from_request_parts(parts, api)
            .await
            .map_err(|_| Problem::invalid("the path must be percent-encoded UTF-8"))?;
        let id = path.into_iter().find(|(name, _)| name == "task_id").map(|(_, value)| value);
        // What cannot be an id is the id of no task.
        id.filter(|id| is_valid_id(id)).map(Self).ok_or_else(|| ServiceError::NotFound("no such task".into()).into())
    }
}

/// `GET …/mcp-tasks`.
pub async fn list(State(api): State<Api>, thread: Thread, params: Params, uri: Uri) -> Result<Response, Problem> {
    let mut filter = params.filter()?;
    filter.user_id.clone_from(&thread.access.user_id);
    filter.thread_id.clone_from(&thread.access.thread_id);
    let page = params.page()?;
    let mut tasks = api.daemon.tasks.list(&filter, &page).await?;
    let more = cut(&mut tasks, &page);
    let items: Vec<_> = tasks.iter().map(|task| view::item(task, &api.daemon.policy)).collect();
    let next = tasks.last().filter(|_| more).and_then(|last| params.next_link(&uri, last));
    Ok(with_link(json(StatusCode::OK, &items), next))
}

/// `POST …/mcp-tasks`.
pub async fn submit(
    State(api): State<Api>,
    thread: Thread,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let idempotency_key = idempotency_key(&headers)?;
    let body = body.submit()?;
    let submitted = api
        .daemon
        .submit(Submit {
            user_id: thread.user_id,
            thread_id: thread.id.clone(),
            server: body.server,
            task: body.task,
            arguments: body.arguments,
            run_id: body.run_id,
            tool_call_id: body.tool_call_id,
            idempotency_key,
            secrets: body.secrets,
        })
        .await?;
    let status = if submitted.replayed { StatusCode::OK } else { StatusCode::CREATED };
    let mut response = detail(&api, status, &submitted.task).await;
    let location = format!("/api/threads/{}/mcp-tasks/{}", encode(&thread.id), submitted.task.id);
    if let Ok(location) = HeaderValue::try_from(location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// `GET …/mcp-tasks/{task_id}`.
pub async fn get(
    State(api): State<Api>,
    thread: Thread,
    TaskId(id): TaskId,
    params: Params,
) -> Result<Response, Problem> {
    let task = wait_for(&api, &thread.access, &id, params.wait()?).await?;
    Ok(detail(&api, StatusCode::OK, &task).await)
}

/// `POST …/mcp-tasks/{task_id}/cancel`.
pub async fn cancel(State(api): State<Api>, thread: Thread, TaskId(id): TaskId) -> Result<Response, Problem> {
    let task = api.daemon.tasks.cancel(&thread.access, &id).await?;
    Ok(detail(&api, StatusCode::OK, &task).await)
}

/// `POST …/mcp-tasks/{task_id}/input`.
pub async fn input(
    State(api): State<Api>,
    thread: Thread,
    TaskId(id): TaskId,
    body: Body,
) -> Result<Response, Problem> {
    let task = api.daemon.tasks.input(&thread.access, &id, &body.input()?).await?;
    Ok(detail(&api, StatusCode::OK, &task).await)
}

/// The task at its next change, after `wait`, or when the daemon drains: a waiting client must not hold a shutdown up.
pub async fn wait_for(api: &Api, access: &Access, id: &str, wait: Duration) -> Result<TaskRecord, Problem> {
    if !wait.is_zero() {
        tokio::select! {
            task = api.daemon.tasks.get(access, id, wait) => return Ok(task?),
            () = api.daemon.shutdown.soft().cancelled() => {}
        }
    }
    Ok(api.daemon.tasks.get(access, id, Duration::ZERO).await?)
}

/// A task's detail.
async fn detail(api: &Api, status: StatusCode, task: &TaskRecord) -> Response {
    let notification = api.daemon.notification(&task.id).await;
    json(status, &view::detail(task, &api.daemon.policy, &notification))
}

/// A JSON response, exact (raw documents stay as they are).
pub fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let body = view::raw(value).get().to_owned();
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// Adds a `Link`.
pub fn with_link(mut response: Response, link: Option<HeaderValue>) -> Response {
    if let Some(link) = link {
        response.headers_mut().insert(header::LINK, link);
    }
    response
}
