//! The REST API, the probes and the metrics page (INTERFACE, REST).

pub mod body;
pub mod problem;
pub mod query;

mod admit;
mod config;
mod events;
mod keys;
mod openapi;
mod operator;
mod personal;
mod probe;
mod replay;
mod request;
mod resource;
mod thread;
mod tools;

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::middleware;
use http::request::Parts;
use tokio::sync::Semaphore;

use crate::auth::{Identity, Scope};
use crate::daemon::Daemon;
use openapi::Routes;
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
    let open = openapi::routes(Routes::default()).with(resource::routes);
    let open = if probes { probe::routes(open) } else { open };
    let routes = identified(Routes::default())
        .router()
        .with_state(api.clone())
        .merge(gateway)
        .route_layer(middleware::from_fn_with_state(api.clone(), admit::admit))
        .merge(open.router().with_state(api.clone()));
    finish(routes, api)
}

/// The document of everything that is served here but the gateway.
fn document() -> serde_json::Value {
    identified(Routes::default()).with(openapi::routes).with(resource::routes).with(probe::routes).document()
}

/// The routes whose callers are known.
fn identified(routes: Routes) -> Routes {
    let rooms = [
        thread::routes,
        operator::routes,
        replay::routes,
        tools::routes,
        config::routes,
        personal::routes,
        keys::routes,
    ];
    rooms.into_iter().fold(routes, Routes::with)
}

/// Probes and metrics alone.
pub fn admin(daemon: Daemon) -> Router {
    let api = Api { daemon, streams: Arc::new(Semaphore::new(0)) };
    finish(probe::routes(Routes::default()).router().with_state(api.clone()), api)
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
mod isolation;
#[cfg(test)]
mod personal_tests;
#[cfg(test)]
mod tests;
