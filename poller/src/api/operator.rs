//! What operators see: all users' tasks, workers, events, figures; and what runs here.

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use mcp_taskd_core::service::Access;
use mcp_taskd_core::store::TaskFilter;

use super::problem::Problem;
use super::query::{Params, cut};
use super::thread::{TaskId, json, wait_for, with_link};
use super::{Api, OperatorCaller};
use crate::auth::Identity;
use crate::metrics::COUNT_CAP;
use crate::view;

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
    Ok(with_link(json(StatusCode::OK, &items), next))
}

/// `GET /api/tasks/{task_id}`.
pub async fn task(
    State(api): State<Api>,
    _: OperatorCaller,
    TaskId(id): TaskId,
    params: Params,
) -> Result<Response, Problem> {
    let task = wait_for(&api, &Access::default(), &id, params.wait()?).await?;
    Ok(json(StatusCode::OK, &view::operator_detail(&task, &api.daemon.policy)))
}

/// `POST /api/tasks/{task_id}/poll-now`.
pub async fn poll_now(State(api): State<Api>, _: OperatorCaller, TaskId(id): TaskId) -> Result<Response, Problem> {
    let task = api.daemon.tasks.poll_now(&Access::default(), &id).await?;
    Ok(json(StatusCode::OK, &view::operator_detail(&task, &api.daemon.policy)))
}

/// `GET /api/workers`.
pub async fn workers(State(api): State<Api>, _: OperatorCaller) -> Result<Response, Problem> {
    let workers = api.daemon.registry.workers().await?;
    Ok(json(StatusCode::OK, &workers.rows.iter().map(view::worker).collect::<Vec<_>>()))
}

/// `GET /api/events`: after a sequence, oldest first.
pub async fn events(State(api): State<Api>, _: OperatorCaller, params: Params) -> Result<Response, Problem> {
    let after = match params.get("after") {
        None => 0,
        Some(text) => text.parse().map_err(|_| Problem::invalid("after must be an event's sequence"))?,
    };
    let filter = narrowed(&params, TaskFilter::default());
    let events = api.daemon.queries.list_events(after, &filter, params.limit()?).await?;
    Ok(json(StatusCode::OK, &events.iter().map(view::event).collect::<Vec<_>>()))
}

/// `GET /api/stats`.
pub async fn stats(State(api): State<Api>, _: OperatorCaller) -> Result<Response, Problem> {
    let stats = api.daemon.queries.stats(api.daemon.now_ms(), api.daemon.policy.degraded_after, COUNT_CAP).await?;
    Ok(json(StatusCode::OK, &view::stats(&stats)))
}

/// `GET /api/features` (35).
pub async fn features(State(api): State<Api>, _: Identity) -> Response {
    json(
        StatusCode::OK,
        &serde_json::json!({
            "mcp_tasks": { "enabled": api.daemon.health.polls() },
            "version": env!("CARGO_PKG_VERSION"),
            "mcp_protocol_versions": crate::gateway::protocol_versions(),
            "store": api.daemon.queries.backend(),
        }),
    )
}
