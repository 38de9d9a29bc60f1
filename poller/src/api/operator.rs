//! What operators see: all users' tasks, workers, events, figures; and what runs here.

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use mcp_taskd_core::service::Access;
use mcp_taskd_core::store::TaskFilter;
use mcp_taskd_core::task::TaskRecord;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::openapi::{Param, Routes, operation};
use super::problem::Problem;
use super::query::{Params, cut, list_params, wait_param};
use super::thread::{TaskId, json as answer, wait_for, with_link};
use super::{Api, OperatorCaller};
use crate::auth::Identity;
use crate::metrics::COUNT_CAP;
use crate::view;

/// The routes of this room.
pub fn routes(routes: Routes) -> Routes {
    let narrow = || {
        [
            Param::query("user_id", "Only this user's.", json!({ "type": "string" })),
            Param::query("thread_id", "Only in this thread.", json!({ "type": "string" })),
        ]
    };
    let described = |id, summary| operation(id, "operator", summary);
    let after = json!({ "type": "integer", "format": "int64", "default": 0 });
    let limit = json!({ "type": "integer", "minimum": 1, "maximum": 100, "default": 50 });
    routes
        .get(
            "/api/tasks",
            tasks,
            described("listAllTasks", "All users' tasks, newest first")
                .takes(list_params())
                .takes(narrow())
                .answers::<Vec<view::Operator<'static, view::Item<'static>>>>(200, "A page of tasks.")
                .with_header(200, "Link", "The next page, where there is one (`rel=\"next\"`)."),
        )
        .get(
            "/api/tasks/{task_id}",
            task,
            described("getAnyTask", "A task of any user")
                .takes([wait_param()])
                .answers::<view::Operator<'static, view::Detail<'static>>>(200, "The task.")
                .problem(404, &["not_found"]),
        )
        .post(
            "/api/tasks/{task_id}/poll-now",
            poll_now,
            described("pollTask", "Makes a task due at once")
                .answers::<view::Operator<'static, view::Detail<'static>>>(200, "The task.")
                .problem(404, &["not_found"])
                .problem(409, &["conflict"]),
        )
        .get(
            "/api/workers",
            workers,
            described("listWorkers", "Every worker that the store knows")
                .answers::<Vec<view::Worker<'static>>>(200, "The workers."),
        )
        .get(
            "/api/events",
            events,
            described("listEvents", "Events, oldest first")
                .takes([
                    Param::query("after", "Only events after this sequence.", after),
                    Param::query("limit", "How many at most.", limit),
                ])
                .takes(narrow())
                .answers::<Vec<view::Event<'static>>>(200, "The events."),
        )
        .get(
            "/api/stats",
            stats,
            described("getStats", "Figures of the whole store, each count up to a bound")
                .answers::<view::Stats>(200, "The figures."),
        )
        .get(
            "/api/features",
            features,
            operation("getFeatures", "information", "What runs here").answers::<Features>(200, "What runs here."),
        )
}

/// What runs here.
#[derive(Serialize, JsonSchema)]
struct Features {
    mcp_tasks: Enabled,
    version: &'static str,
    mcp_protocol_versions: Vec<&'static str>,
    /// `memory`, `sqlite` or `postgres`.
    store: &'static str,
}

/// Whether something is on.
#[derive(Serialize, JsonSchema)]
struct Enabled {
    enabled: bool,
}

fn narrowed(params: &Params, filter: TaskFilter) -> TaskFilter {
    TaskFilter {
        user_id: params.get("user_id").map(str::to_owned),
        thread_id: params.get("thread_id").map(str::to_owned),
        ..filter
    }
}

/// `GET /api/tasks`: `user_id` and `thread_id` narrow.
pub async fn tasks(State(api): State<Api>, _: OperatorCaller, params: Params, uri: Uri) -> Result<Response, Problem> {
    let filter = narrowed(&params, params.filter()?);
    let page = params.page()?;
    let mut tasks = api.daemon.tasks.list(&filter, &page).await?;
    let more = cut(&mut tasks, &page);
    let items: Vec<_> = tasks.iter().map(|task| view::operator_item(task, &api.daemon.policy)).collect();
    let next = tasks.last().filter(|_| more).and_then(|last| params.next_link(&uri, last));
    Ok(with_link(answer(StatusCode::OK, &items), next))
}

/// `GET /api/tasks/{task_id}`.
pub async fn task(
    State(api): State<Api>,
    _: OperatorCaller,
    TaskId(id): TaskId,
    params: Params,
) -> Result<Response, Problem> {
    let task = wait_for(&api, &Access::default(), &id, params.wait()?).await?;
    Ok(detail(&api, &task).await)
}

/// `POST /api/tasks/{task_id}/poll-now`.
pub async fn poll_now(State(api): State<Api>, _: OperatorCaller, TaskId(id): TaskId) -> Result<Response, Problem> {
    let task = api.daemon.tasks.poll_now(&Access::default(), &id).await?;
    Ok(detail(&api, &task).await)
}

/// A task's detail.
async fn detail(api: &Api, task: &TaskRecord) -> Response {
    let notification = api.daemon.notification(&task.id).await;
    answer(StatusCode::OK, &view::operator_detail(task, &api.daemon.policy, &notification))
}

/// `GET /api/workers`.
pub async fn workers(State(api): State<Api>, _: OperatorCaller) -> Result<Response, Problem> {
    let workers = api.daemon.registry.workers().await?;
    Ok(answer(StatusCode::OK, &workers.rows.iter().map(view::worker).collect::<Vec<_>>()))
}

/// `GET /api/events`: after a sequence, oldest first.
pub async fn events(State(api): State<Api>, _: OperatorCaller, params: Params) -> Result<Response, Problem> {
    let after = match params.get("after") {
        None => 0,
        Some(text) => text.parse().map_err(|_| Problem::invalid("after must be an event's sequence"))?,
    };
    let filter = narrowed(&params, TaskFilter::default());
    let events = api.daemon.queries.list_events(after, &filter, params.limit()?).await?;
    Ok(answer(StatusCode::OK, &events.iter().map(view::event).collect::<Vec<_>>()))
}

/// `GET /api/stats`.
pub async fn stats(State(api): State<Api>, _: OperatorCaller) -> Result<Response, Problem> {
    let stats = api.daemon.queries.stats(api.daemon.now_ms(), api.daemon.policy.degraded_after, COUNT_CAP).await?;
    Ok(answer(StatusCode::OK, &view::stats(&stats)))
}

/// `GET /api/features` (35).
pub async fn features(State(api): State<Api>, _: Identity) -> Response {
    let features = Features {
        mcp_tasks: Enabled { enabled: api.daemon.health.polls() },
        version: env!("CARGO_PKG_VERSION"),
        mcp_protocol_versions: crate::gateway::protocol_versions(),
        store: api.daemon.queries.backend(),
    };
    answer(StatusCode::OK, &features)
}
