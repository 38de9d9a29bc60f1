//! What every route needs, and what it says to those who have it.

use http::StatusCode;

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Anybody.
    Nothing,
    /// Anybody with a credential that counts.
    Credential,
    /// The scope of this name.
    Scope(&'static str),
}

/// A route.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub method: &'static str,
    /// The template.
    pub path: &'static str,
    pub needs: Needs,
    pub body: &'static str,
    /// What somebody who may is answered, about a task of its own where the route is about one.
    pub good: StatusCode,
}

const fn row(method: &'static str, path: &'static str, needs: Needs, body: &'static str, good: u16) -> Row {
    let Ok(good) = StatusCode::from_u16(good) else { panic!("no status") };
    Row { method, path, needs, body, good }
}

const NOTHING: Needs = Needs::Nothing;
const CREDENTIAL: Needs = Needs::Credential;
const TASKS: Needs = Needs::Scope("tasks");
const OPERATOR: Needs = Needs::Scope("operator");
const ADMIN: Needs = Needs::Scope("admin");

const SUBMIT: &str = r#"{"server": "reports", "task": "report"}"#;
const SERVER: &str =
    r#"{"server_name": "s", "server": {"type": "http", "url": "http://127.0.0.1:9/mcp", "enabled": false}}"#;

/// Every route. The test fails where the router has one that is not here.
pub const ROWS: &[Row] = &[
    row("GET", "/api/threads/{thread_id}/mcp-tasks", TASKS, "", 200),
    row("POST", "/api/threads/{thread_id}/mcp-tasks", TASKS, SUBMIT, 404),
    row("GET", "/api/threads/{thread_id}/mcp-tasks/events", TASKS, "", 200),
    row("GET", "/api/threads/{thread_id}/mcp-tasks/{task_id}", TASKS, "", 200),
    row("POST", "/api/threads/{thread_id}/mcp-tasks/{task_id}/cancel", TASKS, "", 200),
    row("POST", "/api/threads/{thread_id}/mcp-tasks/{task_id}/input", TASKS, r#"{"input": 1}"#, 409),
    row("GET", "/api/tasks", OPERATOR, "", 200),
    row("GET", "/api/tasks/{task_id}", OPERATOR, "", 200),
    row("POST", "/api/tasks/{task_id}/poll-now", OPERATOR, "", 200),
    row("GET", "/api/workers", OPERATOR, "", 200),
    row("GET", "/api/events", OPERATOR, "", 200),
    row("POST", "/api/events/replay", OPERATOR, r#"{"sink": "none"}"#, 404),
    row("GET", "/api/stats", OPERATOR, "", 200),
    row("GET", "/api/features", CREDENTIAL, "", 200),
    row("GET", "/api/mcp/tools", TASKS, "", 200),
    row("GET", "/api/mcp/config", ADMIN, "", 200),
    row("PUT", "/api/mcp/config", ADMIN, r#"{"mcp_servers": 1}"#, 422),
    row("PATCH", "/api/mcp/config", ADMIN, r#"{"server_name": "none", "enabled": false}"#, 404),
    row("PUT", "/api/mcp/config/server", ADMIN, SERVER, 200),
    row("DELETE", "/api/mcp/config/server/{server_name}", ADMIN, "", 404),
    row("GET", "/api/mcp/servers", ADMIN, "", 200),
    row("PUT", "/api/mcp/servers", ADMIN, r#"{"mcp_servers": 1}"#, 422),
    row("POST", "/api/mcp/cache/reset", ADMIN, "{}", 200),
    row("GET", "/api/mcp/personal/config", TASKS, "", 200),
    row("PATCH", "/api/mcp/personal/config", TASKS, r#"{"server_name": "none", "enabled": false}"#, 404),
    row("PUT", "/api/mcp/personal/config/server", TASKS, r#"{"server_name": 1, "server": {}}"#, 422),
    row("POST", "/api/mcp/personal/config/servers", TASKS, r#"{"server_name": 1, "server": {}}"#, 422),
    row("DELETE", "/api/mcp/personal/config/servers/{server_name}", TASKS, "", 404),
    row("GET", "/api/keys", ADMIN, "", 200),
    row("POST", "/api/keys", ADMIN, r#"{"user_id": "bob", "scopes": ["tasks"]}"#, 201),
    row("DELETE", "/api/keys/{key_id}", ADMIN, "", 404),
    row("GET", "/mcp", TASKS, "", 200),
    row("POST", "/mcp", TASKS, r#"{"jsonrpc": "2.0", "id": 1, "method": "ping"}"#, 200),
    row("DELETE", "/mcp", TASKS, "", 405),
    row("GET", "/.well-known/oauth-protected-resource", NOTHING, "", 200),
    row("GET", "/.well-known/oauth-protected-resource/{*resource}", NOTHING, "", 200),
    row("GET", "/openapi.json", NOTHING, "", 200),
    row("GET", "/docs", NOTHING, "", 200),
    row("GET", "/docs/viewer.js", NOTHING, "", 200),
    row("GET", "/docs/viewer.css", NOTHING, "", 200),
    row("GET", "/livez", NOTHING, "", 200),
    row("GET", "/readyz", NOTHING, "", 200),
    row("GET", "/startupz", NOTHING, "", 200),
    row("GET", "/metrics", NOTHING, "", 200),
];
