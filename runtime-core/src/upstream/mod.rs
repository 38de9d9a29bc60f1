//! MCP servers as the daemon calls them: a small trait, one transport a file behind it.

mod flight;
mod http;
mod jsonrpc;
mod list;
#[doc(hidden)]
pub mod parse;
mod scrub;
mod sse;
mod stdio;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use indexmap::IndexMap;
use serde_json::value::RawValue;

use crate::config::{ConfigError, Extensions, Transport};

pub use http::BODY_MAX_BYTES;

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

impl CallError {
    /// An error of this kind, without further knowledge of the server.
    pub fn new(kind: CallErrorKind, message: String) -> Self {
        let maybe_executed = !matches!(kind, CallErrorKind::Connect | CallErrorKind::Auth);
        Self { kind, message, retry_after: None, maybe_executed }
    }

    fn timeout(what: &str, limit: Duration) -> Self {
        Self::new(CallErrorKind::Timeout, format!("{what} was not answered within {limit:?}"))
    }

    /// The same as a failure to bring a session up: whatever it was, the call was not sent.
    fn before_call(mut self) -> Self {
        if self.kind != CallErrorKind::Auth {
            self.kind = CallErrorKind::Connect;
        }
        self.maybe_executed = false;
        self
    }
}

/// One configured server.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// Calls a tool; the answer is the raw `CallToolResult`, `isError` or not.
    async fn call_tool(&self, call: ToolCall<'_>) -> Result<Box<RawValue>, CallError>;

    /// Every tool, raw, following cursors; brings a session up if need be, within `session_init_timeout`.
    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError>;

    /// `text` without the credentials that are sent to this server (148): for what it said in its answers.
    fn scrub(&self, text: &str) -> String {
        text.to_owned()
    }

    /// Lets pooled sessions go as soon as they are idle, so that the next call starts afresh (97).
    async fn refresh(&self) {}

    /// Ends sessions and child processes.
    async fn close(&self);
}

/// A server shared by the parts of a process.
pub type SharedUpstream = Arc<dyn Upstream>;

/// What transports need to know beside a server's own configuration.
#[derive(Debug, Clone)]
pub struct Options {
    /// `server.state_dir`: workspaces of child processes lie below it (156).
    pub state_dir: PathBuf,
    /// Most stdio sessions at a time, of all servers together (29).
    pub max_stdio_sessions: usize,
}

impl Options {
    /// The daemon's own bounds.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self { state_dir: state_dir.into(), max_stdio_sessions: 256 }
    }
}

/// The enabled servers, in the file's order.
#[derive(Clone, Default)]
pub struct Upstreams(IndexMap<String, SharedUpstream>);

impl Upstreams {
    /// The server with this name.
    pub fn find(&self, server: &str) -> Option<&SharedUpstream> {
        self.0.get(server)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &SharedUpstream)> {
        self.0.iter().map(|(name, upstream)| (name.as_str(), upstream))
    }

    /// Ends all sessions and child processes, at the same time.
    pub async fn close(&self) {
        futures_util::future::join_all(self.0.values().map(|upstream| upstream.close())).await;
    }
}

impl FromIterator<(String, SharedUpstream)> for Upstreams {
    fn from_iter<I: IntoIterator<Item = (String, SharedUpstream)>>(servers: I) -> Self {
        Self(servers.into_iter().collect())
    }
}

impl std::fmt::Debug for Upstreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Makes the enabled servers of `extensions` callable; connects to none of them yet.
pub fn build(extensions: &Extensions, options: &Options) -> Result<Upstreams, ConfigError> {
    let clients = http::Clients::new()?;
    let pool = Arc::new(stdio::Pool::new(options.max_stdio_sessions));
    extensions
        .servers
        .values()
        .filter(|server| server.enabled)
        .map(|server| {
            let refused = |what: &str| ConfigError(format!("mcpServers.{}.{what}", server.name));
            let upstream: SharedUpstream = match &server.transport {
                Transport::Http { url, headers } => Arc::new(http::HttpUpstream::new(server, url, headers, &clients)?),
                Transport::Stdio { .. } => Arc::new(
                    stdio::StdioUpstream::new(server, options, &pool).ok_or_else(|| refused("type is not stdio"))?,
                ),
                Transport::Sse { .. } => return Err(refused("type: sse is not supported by this version (use http)")),
            };
            Ok((server.name.clone(), upstream))
        })
        .collect()
}
