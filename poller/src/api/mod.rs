//! The REST API, the probes and the metrics page (INTERFACE, REST).

pub mod problem;

mod admit;
mod body;
mod config;
mod events;
mod keys;
mod operator;
mod personal;
mod probe;
mod query;
mod request;
mod resource;
mod thread;
mod tools;

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::middleware;
use axum::routing::{delete, get, post, put};
use http::request::Parts;
use tokio::sync::Semaphore;

use crate::auth::{Identity, Scope};
use crate::daemon::Daemon;
use problem::Problem;

/// Event streams at a time; each asks the store about once a second.
const MAX_STREAMS: usize = 256;

/// What handlers share.
#[derive(Debug, Clone)]
pub struct Api {
    daemon: Daemon,
    streams: Arc<Semaphore>,
}

/// The API with the gateway's routes in it; probes and metrics too, unless they have an address of their own.
pub fn public(daemon: Daemon, gateway: Router, probes: bool) -> Router {
    let api = Api { daemon, streams: Arc::new(Semaphore::new(MAX_STREAMS)) };
    let routes = Router::new()
        .route("/api/threads/{thread_id}/mcp-tasks", get(thread::list).post(thread::submit))
        .route("/api/threads/{thread_id}/mcp-tasks/events", get(events::thread))
        .route("/api/threads/{thread_id}/mcp-tasks/{task_id}", get(thread::get))
        .route("/api/threads/{thread_id}/mcp-tasks/{task_id}/cancel", post(thread::cancel))
        .route("/api/threads/{thread_id}/mcp-tasks/{task_id}/input", post(thread::input))
        .route("/api/tasks", get(operator::tasks))
        .route("/api/tasks/{task_id}", get(operator::task))
        .route("/api/tasks/{task_id}/poll-now", post(operator::poll_now))
        .route("/api/workers", get(operator::workers))
        .route("/api/events", get(operator::events))
        .route("/api/stats", get(operator::stats))
        .route("/api/features", get(operator::features))
        .route("/api/mcp/tools", get(tools::tools))
        .route("/api/mcp/config", get(config::show).put(config::replace).patch(config::switch))
        .route("/api/mcp/config/server", put(config::put))
        .route("/api/mcp/config/server/{server_name}", delete(config::remove))
        .route("/api/mcp/servers", get(config::show).put(config::replace_servers))
        .route("/api/mcp/cache/reset", post(config::reset))
        .route("/api/mcp/personal/config", get(personal::show).patch(personal::switch))
        .route("/api/mcp/personal/config/server", put(personal::put))
        .route("/api/mcp/personal/config/servers", post(personal::add))
        .route("/api/mcp/personal/config/servers/{server_name}", delete(personal::remove))
        .route("/api/keys", get(keys::list).post(keys::create))
        .route("/api/keys/{key_id}", delete(keys::revoke))
        .with_state(api.clone())
        .merge(gateway)
        .route_layer(middleware::from_fn_with_state(api.clone(), admit::admit))
        .merge(resource::routes(api.clone()));
    let routes = if probes { routes.merge(probe::routes(api.clone())) } else { routes };
    finish(routes, api)
}

/// Probes and metrics alone.
pub fn admin(daemon: Daemon) -> Router {
    let api = Api { daemon, streams: Arc::new(Semaphore::new(0)) };
    finish(probe::routes(api.clone()), api)
}

fn finish(routes: Router, api: Api) -> Router {
    routes.fallback(problem::fallback).layer(middleware::from_fn_with_state(api, request::observe))
}

impl FromRequestParts<Api> for Identity {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(Problem::internal)
    }
}

/// A caller who may see all users' tasks.
struct OperatorCaller;

impl FromRequestParts<Api> for OperatorCaller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        Identity::from_request_parts(parts, api).await?.require(Scope::Operator)?;
        Ok(Self)
    }
}

/// A caller who may change the configuration.
struct AdminCaller(Identity);

impl FromRequestParts<Api> for AdminCaller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let identity = Identity::from_request_parts(parts, api).await?;
        identity.require(Scope::Admin)?;
        Ok(Self(identity))
    }
}

#[cfg(test)]
mod config_tests;
#[cfg(test)]
mod personal_tests;
#[cfg(test)]
mod isolation;
#[cfg(test)]
mod tests;
