//! MCP servers as the daemon calls them: a small trait, one transport a file behind it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;

/// On whose behalf a call is made; sessions of a stdio server belong to one (102).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    /// The user.
    pub user_id: Box<str>,
    /// The user's thread.
    pub thread_id: Box<str>,
}

/// A `tools/call`.
#[derive(Debug, Clone)]
pub struct ToolCall<'a> {
    /// The tool's raw name.
    pub tool: &'a str,
    /// The arguments: the text of a JSON object.
    pub arguments: &'a RawValue,
    /// Members for the request's `_meta`.
    pub meta: &'a [(&'a str, &'a str)],
    /// On whose behalf.
    pub scope: &'a Scope,
    /// The call's own deadline, apart from bringing a session up; none where `None`.
    pub deadline: Option<Duration>,
}

/// How a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallErrorKind {
    /// No connection or session came about; the call was not sent.
    Connect,
    /// No answer within the deadline.
    Timeout,
    /// The connection broke, or the server answered with an HTTP error.
    Transport,
    /// 401 or 403.
    Auth,
    /// The answer is no MCP answer, or larger than the cap.
    Protocol,
    /// A JSON-RPC error.
    Rpc,
}

/// A failed call. The message carries no credential that was sent (148).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// How.
    pub kind: CallErrorKind,
    /// What to show.
    pub message: String,
    /// The server's `Retry-After`, unclamped.
    pub retry_after: Option<Duration>,
    /// Whether the server may have executed the call: false only where it certainly has not.
    pub maybe_executed: bool,
}

/// One configured server.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// Calls a tool; the answer is the raw `CallToolResult`, `isError` or not.
    async fn call_tool(&self, call: ToolCall<'_>) -> Result<Box<RawValue>, CallError>;

    /// Every tool, raw, following cursors; brings a session up if need be, within `session_init_timeout`.
    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError>;

    /// Ends sessions and child processes.
    async fn close(&self);
}

/// A server shared by the parts of a process.
pub type SharedUpstream = Arc<dyn Upstream>;
