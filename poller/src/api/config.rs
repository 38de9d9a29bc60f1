//! The servers' configuration, for administrators (BEHAVIOURS L), and the reset of the tool cache (97).

use axum::extract::{FromRequest, Path, Request, State};
use axum::response::Response;
use http::StatusCode;
use mcp_taskd_core::catalog::ResetScope;
use mcp_taskd_core::config::edit::{Change, EditError, Refused};
use serde_json::{Map, Value, json};

use super::problem::Problem;
use super::query::Params;
use super::thread::json as answer;
use super::{AdminCaller, Api, body};

/// A JSON object, its members in the order they were sent in.
pub struct Document(Map<String, Value>);

impl<S: Sync> FromRequest<S> for Document {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let bytes = body::read(request).await?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self(Map::new()));
        }
        serde_json::from_slice(&bytes).map(Self).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            Problem::invalid(format!("the body must be a JSON object; it is not at line {line}, column {column}"))
        })
    }
}

impl Document {
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

    fn name(&mut self) -> Result<String, Problem> {
        match self.take("server_name")? {
            Value::String(name) => Ok(name),
            _ => Err(Problem::invalid("server_name must be a string")),
        }
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
    mut body: Document,
) -> Result<Response, Problem> {
    body.only(&["server_name", "enabled"])?;
    let Value::Bool(enabled) = body.take("enabled")? else {
        return Err(Problem::invalid("enabled must be true or false"));
    };
    let name = body.name()?;
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
pub async fn reset(State(api): State<Api>, admin: AdminCaller, mut body: Document) -> Result<Response, Problem> {
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
    Ok(answer(StatusCode::OK, &json!({"success": true, "scope": reached.as_str(), "message": message})))
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
