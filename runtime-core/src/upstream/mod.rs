//! MCP servers as the daemon calls them: a small trait, one transport a file behind it.

mod caller;
mod changes;
mod connections;
mod factory;
mod flight;
mod http;
mod http_sse;
pub mod interceptor;
mod jsonrpc;
mod list;
mod metrics;
pub mod oauth;
mod offers;
mod opening;
mod pace;
#[doc(hidden)]
pub mod parse;
mod pending;
mod request;
mod scrub;
mod sse;
mod stdio;

use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderName, HeaderValue};
use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio::sync::watch;

pub use crate::config::Secrets;
pub use connections::{Connected, Connections, NotConnected};
pub use factory::{Factory, Layer, Options, Upstreams, build};
pub use http::{BODY_MAX_BYTES, Reach, cause, retry_after};
pub use metrics::Metrics;
pub use stdio::guard;

/// On whose behalf a call is made; sessions of a stdio server belong to one (102).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    /// The user.
    pub user_id: Box<str>,
    /// The user's thread.
    pub thread_id: Box<str>,
}

/// A call of a tool, or a request about a task that such a call has made.
#[derive(Debug, Clone)]
pub struct ToolCall<'a> {
    /// Which request it is.
    pub method: Method<'a>,
    /// The tool's raw name; in a request about a task, that of the tool which made it.
    pub tool: &'a str,
    /// The text of a JSON object: the tool's arguments, or the responses of [`Method::Update`]. Other requests about a task
    /// have none.
    pub arguments: &'a RawValue,
    /// Members for the request's `_meta`.
    pub meta: &'a [(&'a str, &'a str)],
    /// Headers for this call alone: HTTP headers in place of the server's own of that name, or `headers` in `_meta` of a
    /// call to a child process (106). They win over those of interceptors.
    pub headers: &'a [(HeaderName, HeaderValue)],
    /// On whose behalf.
    pub scope: &'a Scope,
    /// The task that it is about; none of an ordinary call.
    pub task: Option<About<'a>>,
    /// The call's own deadline, apart from bringing a session up: every call of a task has one. The transport's own rule
    /// where `None`.
    pub deadline: Option<Duration>,
}

impl ToolCall<'_> {
    fn of_task(&self) -> bool {
        self.deadline.is_some()
    }
}

/// Which request a call is. Texts are the server's ids of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method<'a> {
    /// `tools/call`, answered by the tool's result.
    Call,
    /// `tools/call` that may be answered by an MCP task: the server is told that this client knows them.
    CallForTask,
    /// `tasks/get`.
    Get(&'a str),
    /// `tasks/result`, which exists up to 2025-11-25 and waits for the task's end.
    Result(&'a str),
    /// `tasks/cancel`.
    Cancel(&'a str),
    /// `tasks/update`, which exists from 2026-07-28 on.
    Update(&'a str),
}

impl<'a> Method<'a> {
    /// Its name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Call | Self::CallForTask => "tools/call",
            Self::Get(_) => "tasks/get",
            Self::Result(_) => "tasks/result",
            Self::Cancel(_) => "tasks/cancel",
            Self::Update(_) => "tasks/update",
        }
    }

    /// The task that it is about, where it calls no tool.
    pub const fn task_id(self) -> Option<&'a str> {
        match self {
            Self::Call | Self::CallForTask => None,
            Self::Get(id) | Self::Result(id) | Self::Cancel(id) | Self::Update(id) => Some(id),
        }
    }
}

/// What a call has to do with a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About<'a> {
    /// The daemon's id of the task.
    pub task_id: &'a str,
    /// What the call is for.
    pub purpose: Purpose,
}

/// What a call about a task is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Starts it.
    Submit,
    /// Starts it once more, because nobody knows what became of the first call.
    Resubmit,
    /// Asks how it stands.
    Status,
    /// Cancels it.
    Cancel,
    /// Answers what it asked.
    Input,
}

impl Purpose {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Resubmit => "resubmit",
            Self::Status => "status",
            Self::Cancel => "cancel",
            Self::Input => "input",
        }
    }
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
    /// There is no credential to make the call with (118); it was not sent.
    Denied,
    /// The answer is no MCP answer, or larger than the cap.
    Protocol,
    /// A JSON-RPC error.
    Rpc,
    /// An interceptor refused the call, or could not be asked; the call was not sent (139).
    Intercepted,
}

impl CallErrorKind {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Transport => "transport",
            Self::Auth => "auth",
            Self::Denied => "denied",
            Self::Protocol => "protocol",
            Self::Rpc => "rpc",
            Self::Intercepted => "intercepted",
        }
    }
}

/// A failed call. The message carries no credential that was sent (148).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// How.
    pub kind: CallErrorKind,
    /// What to show.
    pub message: String,
    /// The code of a JSON-RPC error.
    pub rpc_code: Option<i64>,
    /// The server's `Retry-After`, unclamped.
    pub retry_after: Option<Duration>,
    /// Whether the server may have executed the call: false only where it certainly has not.
    pub maybe_executed: bool,
}

impl CallError {
    /// An error of this kind, without further knowledge of the server.
    pub fn new(kind: CallErrorKind, message: String) -> Self {
        use CallErrorKind::{Auth, Connect, Denied, Intercepted};

        let maybe_executed = !matches!(kind, Connect | Auth | Denied | Intercepted);
        Self { kind, message, rpc_code: None, retry_after: None, maybe_executed }
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
    /// Makes a call; the answer is the raw result: of a tool's call a `CallToolResult`, `isError` or not.
    async fn call_tool(&self, call: ToolCall<'_>) -> Result<Box<RawValue>, CallError>;

    /// Every tool, raw, following cursors; brings a session up if need be, within `session_init_timeout`.
    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError>;

    /// The headers that a call carries for the secrets of its request; none where the server takes none from there (120).
    /// An error says why the call must not be sent: it names keys, and never a value.
    fn context_headers(&self, _secrets: &Secrets) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
        Ok(Vec::new())
    }

    /// `text` without the credentials that are sent to this server (148): for what it said in its answers.
    fn scrub(&self, text: &str) -> String {
        text.to_owned()
    }

    /// How often the server has said that its tools changed (`notifications/tools/list_changed`); a hint to list them
    /// again, and no more: notices are merged, may be missed where a connection breaks, and a server may send any number of
    /// them, so that whoever follows must bound how often it lists. A server that cannot say so gives a receiver without a
    /// sender, whose `changed` fails at once.
    ///
    /// A server over Streamable HTTP is listened to only while somebody holds a receiver.
    fn changes(&self) -> watch::Receiver<u64> {
        watch::Sender::new(0).subscribe()
    }

    /// Lets pooled sessions go as soon as they are idle, so that the next call starts afresh (97).
    async fn refresh(&self) {}

    /// Ends sessions and child processes.
    async fn close(&self);
}

/// A server shared by the parts of a process.
pub type SharedUpstream = Arc<dyn Upstream>;
