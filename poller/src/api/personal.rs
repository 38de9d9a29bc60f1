//! A user's own connections, for that user (BEHAVIOURS T).

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use mcp_taskd_core::catalog::Shown;
use mcp_taskd_core::config::edit::{Change, EditError, PersonalChange};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Api;
use super::config::{self, Document};
use super::openapi::{Routes, operation};
use super::problem::Problem;
use super::thread::json as answer;
use crate::auth::{Identity, Scope};

/// The routes of this room.
pub fn routes(routes: Routes) -> Routes {
    let described = |id, summary, status| {
        operation(id, "connections", summary)
            .answers::<Connected>(status, "The caller's connections, secrets masked.")
            .problem(409, &["configuration_unreadable"])
    };
    let changes = |id, summary, status| {
        described(id, summary, status)
            .about("Secrets that are sent as `***` stay as they are.")
            .problem(400, &["invalid_configuration", "invalid_request"])
            .problem(403, &["not_for_users"])
            .problem(413, &["payload_too_large"])
            .problem(500, &["configuration_not_written"])
    };
    routes
        .get("/api/mcp/personal/config", show, described("getConnections", "The caller's own connections", 200))
        .patch(
            "/api/mcp/personal/config",
            switch,
            changes("switchConnection", "Switches a connection on or off", 200)
                .body::<config::Switch>()
                .problem(404, &["not_found"]),
        )
        .put(
            "/api/mcp/personal/config/server",
            put,
            changes("putConnection", "Adds or replaces a connection", 200).body::<config::Put>(),
        )
        .post(
            "/api/mcp/personal/config/servers",
            add,
            changes("addConnection", "Adds a connection of a name that is not taken", 201)
                .body::<config::Put>()
                .problem(409, &["already_exists"]),
        )
        .delete(
            "/api/mcp/personal/config/servers/{server_name}",
            remove,
            changes("removeConnection", "Removes a connection", 200).problem(404, &["not_found"]),
        )
}

/// A user's connections by name, and the names under which their tools and tasks are seen.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Connections")]
struct Connected {
    mcp_servers: Map<String, Value>,
    runtime_names: Map<String, Value>,
}

/// A caller who has connections, and whether they may point anywhere.
pub struct Owner {
    user_id: String,
    admin: bool,
}

impl FromRequestParts<Api> for Owner {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        let caller = Identity::from_request_parts(parts, api).await?;
        caller.require(Scope::Tasks)?;
        Ok(Self { admin: caller.require(Scope::Admin).is_ok(), user_id: caller.user_id })
    }
}

/// `GET /api/mcp/personal/config`.
pub async fn show(State(api): State<Api>, owner: Owner) -> Result<Response, Problem> {
    let connections = api.daemon.personal.shown(&owner.user_id).await.map_err(plain)?;
    Ok(shown(StatusCode::OK, &connections))
}

/// `POST /api/mcp/personal/config/servers`: a connection of a name that is not taken.
pub async fn add(State(api): State<Api>, owner: Owner, body: Document) -> Result<Response, Problem> {
    let (name, server) = named_server(body)?;
    edit(&api, &owner, PersonalChange::Add { name, server }, StatusCode::CREATED).await
}

/// `PUT /api/mcp/personal/config/server`: a connection, new or not.
pub async fn put(State(api): State<Api>, owner: Owner, body: Document) -> Result<Response, Problem> {
    let (name, server) = named_server(body)?;
    edit(&api, &owner, PersonalChange::Edit(Change::Put { name, server }), StatusCode::OK).await
}

/// `PATCH /api/mcp/personal/config`: a connection switched on or off.
pub async fn switch(State(api): State<Api>, owner: Owner, body: Document) -> Result<Response, Problem> {
    let (name, enabled) = body.switch()?;
    edit(&api, &owner, PersonalChange::Edit(Change::Enable { name, enabled }), StatusCode::OK).await
}

/// `DELETE /api/mcp/personal/config/servers/{server_name}`.
pub async fn remove(
    State(api): State<Api>,
    owner: Owner,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let Path(name) = name.map_err(|_| Problem::invalid("the server's name in the path cannot be read"))?;
    edit(&api, &owner, PersonalChange::Edit(Change::Remove { name }), StatusCode::OK).await
}

fn named_server(mut body: Document) -> Result<(String, Value), Problem> {
    body.only(&["server_name", "server"])?;
    let server = body.take("server")?;
    Ok((body.name()?, server))
}

async fn edit(api: &Api, owner: &Owner, change: PersonalChange, status: StatusCode) -> Result<Response, Problem> {
    let connections = api.daemon.personal.edit(&owner.user_id, change, owner.admin).await.map_err(plain)?;
    tracing::info!(user = owner.user_id, "a user's connections are changed");
    Ok(shown(status, &connections))
}

/// The problem, without the path of a file of which the user knows nothing.
fn plain(error: EditError) -> Problem {
    if let EditError::Unreadable(error) = &error {
        tracing::error!(%error, "a user's connections cannot be read");
        let why = "your connections cannot be read here; the daemon's log says why";
        return Problem::new(StatusCode::CONFLICT, "configuration_unreadable", why);
    }
    error.into()
}

fn shown(status: StatusCode, connections: &Shown) -> Response {
    answer(status, &json!({"mcp_servers": connections.servers, "runtime_names": connections.runtime_names}))
}
