//! The servers' configuration, for administrators (BEHAVIOURS L), and the reset of the tool cache (97).

use axum::extract::{FromRequest, Path, Request, State};
use axum::response::Response;
use http::StatusCode;
use mcp_taskd_core::catalog::ResetScope;
use mcp_taskd_core::config::edit::{Change, EditError, Refused};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::openapi::{Param, Routes, operation};
use super::problem::Problem;
use super::query::Params;
use super::thread::json as answer;
use super::{AdminCaller, Api, body};

/// The routes of this room.
pub fn routes(routes: Routes) -> Routes {
    let described = |id, summary| operation(id, "admin", summary).answers::<Shown>(200, "The servers, secrets masked.");
    let changes = |id, summary| {
        let after_restart = "Writes also what takes effect only after a restart.";
        described(id, summary)
            .about("Secrets that are sent as `***` stay as they are.")
            .takes([Param::query("after_restart", after_restart, json!({ "type": "boolean" }))])
            .problem(400, &["invalid_configuration", "invalid_request"])
            .problem(409, &["restart_required", "configuration_unreadable"])
            .problem(413, &["payload_too_large"])
            .problem(500, &["configuration_not_written"])
    };
    let shows = |id, summary| described(id, summary).problem(409, &["configuration_unreadable"]);
    routes
        .get("/api/mcp/config", show, shows("getServers", "The MCP servers' configuration"))
        .put("/api/mcp/config", replace, changes("replaceServers", "Replaces all servers").body::<Shown>())
        .patch(
            "/api/mcp/config",
            switch,
            changes("switchServer", "Switches a server on or off").body::<Switch>().problem(404, &["not_found"]),
        )
        .put("/api/mcp/config/server", put, changes("putServer", "Adds or replaces a server").body::<Put>())
        .delete(
            "/api/mcp/config/server/{server_name}",
            remove,
            changes("removeServer", "Removes a server").problem(404, &["not_found"]),
        )
        .get("/api/mcp/servers", show, shows("getServersByOlderName", "The same as `/api/mcp/config`"))
        .put(
            "/api/mcp/servers",
            replace_servers,
            changes("replaceServersByOlderName", "The same as `/api/mcp/config`").body::<Map<String, Value>>(),
        )
        .post(
            "/api/mcp/cache/reset",
            reset,
            operation("resetCache", "admin", "Has every server asked for its tools again")
                .optional_body::<Reset>()
                .answers::<WasReset>(200, "It is reset.")
                .problem(400, &["invalid_request"])
                .problem(413, &["payload_too_large"]),
        )
}

/// Servers by name, as in `extensions_config.json`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Servers", deny_unknown_fields)]
struct Shown {
    mcp_servers: Map<String, Value>,
}

/// A switch of a server.
#[derive(JsonSchema)]
#[schemars(rename = "SwitchServer", deny_unknown_fields)]
#[expect(dead_code, reason = "its fields are read by the schema")]
pub(super) struct Switch {
    server_name: String,
    enabled: bool,
}

/// A server and its definition.
#[derive(JsonSchema)]
#[schemars(rename = "PutServer", deny_unknown_fields)]
#[expect(dead_code, reason = "its fields are read by the schema")]
pub(super) struct Put {
    server_name: String,
    server: Map<String, Value>,
}

/// How far a reset goes.
#[derive(JsonSchema)]
#[schemars(rename = "ResetCache", deny_unknown_fields)]
#[expect(dead_code, reason = "its fields are read by the schema")]
struct Reset {
    /// `shared_config` for every process on the store, `process` for this one.
    #[schemars(extend("enum" = ["shared_config", "process", null]))]
    scope: Option<String>,
}

/// How far a reset went.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CacheReset")]
struct WasReset {
    success: bool,
    scope: &'static str,
    message: &'static str,
}

/// A JSON object, its members in the order they were sent in. A body that is not there is none: it must not mean "no servers".
pub struct Document(Map<String, Value>);

impl<S: Sync> FromRequest<S> for Document {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        Self::parse(&body::read(request).await?)
    }
}

/// A JSON object, an empty one where there is no body.
pub struct OptionalDocument(Document);

impl<S: Sync> FromRequest<S> for OptionalDocument {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let bytes = body::read(request).await?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self(Document(Map::new())));
        }
        Document::parse(&bytes).map(Self)
    }
}

impl Document {
    fn parse(bytes: &[u8]) -> Result<Self, Problem> {
        serde_json::from_slice(bytes).map(Self).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            Problem::invalid(format!("the body must be a JSON object; it is not at line {line}, column {column}"))
        })
    }

    /// The fields there are, and no others.
    pub(super) fn only(&self, fields: &[&str]) -> Result<(), Problem> {
        match self.0.keys().find(|key| !fields.contains(&key.as_str())) {
            None => Ok(()),
            Some(unknown) => Err(Problem::invalid(format!(
                "{unknown:?} is not a field here; there {} {}",
                if fields.len() == 1 { "is" } else { "are" },
                fields.join(", ")
            ))),
        }
    }

    pub(super) fn take(&mut self, field: &str) -> Result<Value, Problem> {
        self.0.shift_remove(field).ok_or_else(|| Problem::invalid(format!("{field} is missing")))
    }

    pub(super) fn name(&mut self) -> Result<String, Problem> {
        match self.take("server_name")? {
            Value::String(name) => Ok(name),
            _ => Err(Problem::invalid("server_name must be a string")),
        }
    }

    /// A server to switch on or off.
    pub(super) fn switch(mut self) -> Result<(String, bool), Problem> {
        self.only(&["server_name", "enabled"])?;
        let Value::Bool(enabled) = self.take("enabled")? else {
            return Err(Problem::invalid("enabled must be true or false"));
        };
        Ok((self.name()?, enabled))
    }
}

/// `GET /api/mcp/config`, and `GET /api/mcp/servers`, which is the older name.
pub async fn show(State(api): State<Api>, _: AdminCaller) -> Result<Response, Problem> {
    Ok(shown(&api.daemon.live.shown().await?))
}

/// `PUT /api/mcp/config`: these servers instead of all there are.
pub async fn replace(
    State(api): State<Api>,
    admin: AdminCaller,
    params: Params,
    mut body: Document,
) -> Result<Response, Problem> {
    let field = if body.0.contains_key("mcpServers") { "mcpServers" } else { "mcp_servers" };
    body.only(&[field])?;
    let Value::Object(servers) = body.take(field)? else {
        return Err(Problem::invalid(format!("{field} must be an object of servers")));
    };
    edit(&api, &admin, &params, Change::ReplaceAll(servers)).await
}

/// `PUT /api/mcp/servers`: the older name, which takes the servers also without the member around them.
pub async fn replace_servers(
    api: State<Api>,
    admin: AdminCaller,
    params: Params,
    mut body: Document,
) -> Result<Response, Problem> {
    if !body.0.contains_key("mcpServers") && !body.0.contains_key("mcp_servers") {
        body = Document(Map::from_iter([("mcp_servers".to_owned(), Value::Object(body.0))]));
    }
    replace(api, admin, params, body).await
}

/// `PATCH /api/mcp/config`: one server switched on or off (89).
pub async fn switch(
    State(api): State<Api>,
    admin: AdminCaller,
    params: Params,
    body: Document,
) -> Result<Response, Problem> {
    let (name, enabled) = body.switch()?;
    edit(&api, &admin, &params, Change::Enable { name, enabled }).await
}

/// `PUT /api/mcp/config/server`: one server, new or not (90).
pub async fn put(
    State(api): State<Api>,
    admin: AdminCaller,
    params: Params,
    mut body: Document,
) -> Result<Response, Problem> {
    body.only(&["server_name", "server"])?;
    let server = body.take("server")?;
    let name = body.name()?;
    edit(&api, &admin, &params, Change::Put { name, server }).await
}

/// `DELETE /api/mcp/config/server/{server_name}` (90).
pub async fn remove(
    State(api): State<Api>,
    admin: AdminCaller,
    params: Params,
    name: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Result<Response, Problem> {
    let Path(name) = name.map_err(|_| Problem::invalid("the server's name in the path cannot be read"))?;
    edit(&api, &admin, &params, Change::Remove { name }).await
}

/// `POST /api/mcp/cache/reset`: every server is asked for its tools again (97).
pub async fn reset(
    State(api): State<Api>,
    admin: AdminCaller,
    OptionalDocument(mut body): OptionalDocument,
) -> Result<Response, Problem> {
    body.only(&["scope"])?;
    let scope = match body.take("scope").unwrap_or(Value::Null) {
        Value::Null => ResetScope::SharedConfig,
        Value::String(word) if word == ResetScope::SharedConfig.as_str() => ResetScope::SharedConfig,
        Value::String(word) if word == ResetScope::Process.as_str() => ResetScope::Process,
        _ => return Err(Problem::invalid("scope must be shared_config or process")),
    };
    let reached = api.daemon.live.reset(scope).await?;
    tracing::info!(user = admin.0.user_id, scope = reached.as_str(), "the tool cache is reset");
    let message = match reached {
        ResetScope::SharedConfig => "every process on this store asks its servers for their tools again",
        ResetScope::Process => "this process asks its servers for their tools again",
    };
    Ok(answer(StatusCode::OK, &WasReset { success: true, scope: reached.as_str(), message }))
}

async fn edit(api: &Api, admin: &AdminCaller, params: &Params, change: Change) -> Result<Response, Problem> {
    let after_restart = params.flag("after_restart")?;
    let (what, name) = match &change {
        Change::ReplaceAll(_) => ("replace", None),
        Change::Put { name, .. } => ("put", Some(name.clone())),
        Change::Enable { name, enabled } => (if *enabled { "enable" } else { "disable" }, Some(name.clone())),
        Change::Remove { name } => ("remove", Some(name.clone())),
    };
    let servers = api.daemon.live.edit(change, after_restart).await?;
    tracing::info!(user = admin.0.user_id, change = what, server = name, "the extensions file is changed");
    Ok(shown(&servers))
}

fn shown(servers: &Map<String, Value>) -> Response {
    answer(StatusCode::OK, &json!({ "mcp_servers": servers }))
}

impl From<EditError> for Problem {
    fn from(error: EditError) -> Self {
        let said = error.to_string();
        match error {
            EditError::Refused(Refused::NotFound(_)) => Self::new(StatusCode::NOT_FOUND, "not_found", said),
            EditError::Refused(Refused::Exists(_)) => Self::new(StatusCode::CONFLICT, "already_exists", said),
            EditError::Refused(Refused::Forbidden(_)) => Self::new(StatusCode::FORBIDDEN, "not_for_users", said),
            EditError::Refused(Refused::Invalid(_)) => {
                Self::new(StatusCode::BAD_REQUEST, "invalid_configuration", said)
            }
            EditError::Restart(_) => Self::new(
                StatusCode::CONFLICT,
                "restart_required",
                format!("{said}; nothing was written (?after_restart=true writes it for the next start)"),
            ),
            EditError::Unreadable(_) => Self::new(StatusCode::CONFLICT, "configuration_unreadable", said),
            EditError::NotWritten(_) => {
                // It names paths: for the log, not for clients (93).
                tracing::error!(error = said, "the extensions file cannot be written");
                let why = "the configuration could not be written; the daemon's log says why";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "configuration_not_written", why)
            }
        }
    }
}
