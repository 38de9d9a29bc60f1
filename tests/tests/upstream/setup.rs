//! What the tests of this binary share.

use std::path::Path;
use std::time::Duration;

use mcp_taskd_core::config::{Environment, Extensions};
use mcp_taskd_core::upstream::{CallError, Method, Options, Scope, SharedUpstream, ToolCall, Upstreams, build};
use mcp_taskd_tests::wait;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The extensions that `servers` describes.
pub(crate) fn extensions(servers: &Value) -> Extensions {
    read(&json!({"mcpServers": servers}))
}

/// The extensions that a whole document describes.
pub(crate) fn read(document: &Value) -> Extensions {
    let (text, path) = (document.to_string(), Path::new("extensions_config.json"));
    Extensions::parse(&text, path, &Environment::default()).expect("usable")
}

/// Upstreams of `servers`, with workspaces below `state_dir`.
pub(crate) fn upstreams_in(servers: &Value, state_dir: &Path, max_stdio_sessions: usize) -> Upstreams {
    let options = Options { max_stdio_sessions, ..Options::new(state_dir) };
    build(&extensions(servers), &options).expect("buildable")
}

/// One server over HTTP, its definition extended by `more`.
pub(crate) fn over_http(url: &str, more: &Value) -> SharedUpstream {
    let mut server = json!({"type": "http", "url": url, "session_init_timeout": 5});
    server.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    let upstreams = upstreams_in(&json!({"s": server}), Path::new("unused"), 256);
    upstreams.find("s").expect("it is there").clone()
}

/// A user's scope.
pub(crate) fn scope(user: &str) -> Scope {
    Scope { user_id: user.into(), thread_id: "t".into() }
}

/// Calls a tool as `ada`; the answer as JSON.
pub(crate) async fn call(
    upstream: &SharedUpstream,
    tool: &str,
    arguments: &Value,
    deadline: Option<Duration>,
) -> Result<Value, CallError> {
    call_as(upstream, &scope("ada"), tool, arguments, deadline).await
}

/// Calls a tool on behalf of `scope`.
pub(crate) async fn call_as(
    upstream: &SharedUpstream,
    scope: &Scope,
    tool: &str,
    arguments: &Value,
    deadline: Option<Duration>,
) -> Result<Value, CallError> {
    let arguments = RawValue::from_string(arguments.to_string()).expect("JSON");
    let meta = [("mcp-taskd/idempotency-key", "key-1")];
    let call = ToolCall {
        method: Method::Call,
        tool,
        arguments: &arguments,
        meta: &meta,
        headers: &[],
        scope,
        task: None,
        deadline,
    };
    let answer = upstream.call_tool(call).await?;
    Ok(serde_json::from_str(answer.get()).expect("JSON"))
}

/// Waits until `condition`, which asks nobody, holds.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    wait::until(what, || std::future::ready(condition())).await;
}
