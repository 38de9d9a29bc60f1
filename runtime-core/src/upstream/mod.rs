//! MCP servers as the daemon calls them: a small trait, one transport a file behind it.

mod caller;
mod changes;
mod connections;
mod flight;
mod http;
mod http_sse;
pub mod interceptor;
mod jsonrpc;
mod list;
mod metrics;
pub mod oauth;
mod opening;
#[doc(hidden)]
pub mod parse;
mod pending;
mod scrub;
mod sse;
mod stdio;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderName, HeaderValue};
use async_trait::async_trait;
use indexmap::IndexMap;
use secrecy::SecretString;
use serde_json::value::RawValue;
use tokio::sync::watch;

pub use crate::config::Secrets;
use crate::config::{ConfigError, Extensions, Interceptor as Configured, ServerConfig, Transport};

use caller::{Credential, PerCaller};
pub use connections::{Connected, Connections, NotConnected};
pub use http::{BODY_MAX_BYTES, Reach};
use interceptor::{Chain, Endpoint, Interceptor, Interceptors};
pub use metrics::Metrics;
use opening::Opening;
use scrub::Scrubber;

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
    /// Headers for this call alone: HTTP headers in place of the server's own of that name, or `headers` in `_meta` of a
    /// call to a child process (106). They win over those of interceptors.
    pub headers: &'a [(HeaderName, HeaderValue)],
    /// On whose behalf.
    pub scope: &'a Scope,
    /// The call's own deadline, apart from bringing a session up: every call of a task has one. The transport's own rule
    /// where `None`.
    pub deadline: Option<Duration>,
}

impl ToolCall<'_> {
    fn of_task(&self) -> bool {
        self.deadline.is_some()
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
        use CallErrorKind::{Auth, Connect, Denied, Intercepted};

        let maybe_executed = !matches!(kind, Connect | Auth | Denied | Intercepted);
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

/// What transports need to know beside a server's own configuration.
#[derive(Debug, Clone)]
pub struct Options {
    /// `server.state_dir`: workspaces of child processes lie below it (156).
    pub state_dir: PathBuf,
    /// Most stdio sessions at a time, of all servers together (29).
    pub max_stdio_sessions: usize,
    /// Where sessions are counted, if anywhere.
    pub metrics: Option<Metrics>,
    /// Interceptors of the program's own; they see a call after those of `mcpInterceptors`.
    pub interceptors: Interceptors,
    /// Where chains of OAuth refresh tokens are kept; without it they live in the process alone (116).
    pub chains: Option<Arc<dyn oauth::ChainStore>>,
}

impl Options {
    /// The daemon's own bounds, and no metrics.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        let interceptors = Interceptors::default();
        Self { state_dir: state_dir.into(), max_stdio_sessions: 256, metrics: None, interceptors, chains: None }
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

/// Makes servers callable: what all of them share.
#[derive(Clone)]
pub struct Factory {
    clients: http::Clients,
    reach: Reach,
    pool: Arc<stdio::Pool>,
    tokens: Arc<oauth::Sources>,
    options: Options,
}

impl std::fmt::Debug for Factory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Factory").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Factory {
    /// Connects to nothing.
    pub fn new(options: &Options) -> Result<Self, ConfigError> {
        Ok(Self {
            clients: http::Clients::new()?,
            reach: Reach::Anywhere,
            pool: Arc::new(stdio::Pool::new(options.max_stdio_sessions)),
            tokens: Arc::new(oauth::Sources::new(
                options.chains.clone(),
                options.metrics.as_ref().map(|metrics| metrics.oauth.clone()),
            )),
            options: options.clone(),
        })
    }

    /// The same for what users connect to: without the program's own interceptors, which may add what is the deployment's.
    #[must_use]
    pub fn for_users(&self) -> Self {
        Self { options: Options { interceptors: Interceptors::default(), ..self.options.clone() }, ..self.clone() }
    }

    /// The same for servers within `reach`.
    #[must_use]
    pub fn within(&self, reach: Reach) -> Self {
        Self { reach, ..self.clone() }
    }

    /// Makes a server of `extensions` callable, behind instances of its own of the interceptors there and those of the
    /// program (127); connects to it with its first call.
    pub fn open(&self, server: &ServerConfig, extensions: &Extensions) -> Result<SharedUpstream, ConfigError> {
        let mut interceptors: Vec<Arc<dyn Interceptor>> = Vec::new();
        for configured in &extensions.interceptors {
            if let Configured::Http(config) = configured {
                interceptors.push(Arc::new(Endpoint::new(config, &self.clients)?));
            }
        }
        interceptors.extend(self.options.interceptors.of(&server.name));
        let (factory, config, known) = (self.clone(), server.clone(), Arc::default());
        let open = move |credential: &Credential| {
            let transport = factory.transport(&config, credential, &known)?;
            Ok(Chain::wrap(&config.name, transport, interceptors.clone()))
        };
        PerCaller::wrap(server, Box::new(open))
    }

    /// A way to the server with `credential` in place of its own headers; what is `known` of it is shared among its ways.
    fn transport(
        &self,
        server: &ServerConfig,
        credential: &Credential,
        known: &Arc<http::Known>,
    ) -> Result<SharedUpstream, ConfigError> {
        let metrics = self.options.metrics.as_ref().map(|all| all.of(&server.name, &server.transport));
        let opening =
            |scrubber| Opening { limit: server.session_init_timeout, scrubber, metrics: metrics.unwrap_or_default() };
        Ok(match &server.transport {
            Transport::Http { url, headers } => {
                let (target, scrubber) = self.target(server, url, headers, credential)?;
                Arc::new(http::HttpUpstream::new(&server.name, target, opening(scrubber), known))
            }
            Transport::Sse { url, headers } => {
                let (target, scrubber) = self.target(server, url, headers, credential)?;
                Arc::new(http_sse::HttpSseUpstream::new(&server.name, target, opening(scrubber)))
            }
            Transport::Stdio { command, args, env, cwd } => {
                let launch = stdio::Launch::new(&server.name, command, args, env, cwd.as_deref(), &self.options);
                let opening = opening(launch.scrubber());
                Arc::new(stdio::StdioUpstream::new(launch, opening, server.tool_call_timeout, &self.pool))
            }
        })
    }

    /// Where a way to a server leads, and what it sends there: the server's tokens where it has OAuth, and `credential` over
    /// all of it (122).
    fn target(
        &self,
        server: &ServerConfig,
        url: &str,
        headers: &[(String, SecretString)],
        credential: &Credential,
    ) -> Result<(http::Target, Scrubber), ConfigError> {
        let (mut target, mut scrubber) = http::Target::new(&server.name, url, headers, (&self.clients, self.reach))?;
        if let Some(config) = &server.oauth {
            let tokens = self.tokens.open(&server.name, config, &self.clients)?;
            scrubber = scrubber.with(tokens.scrubber());
            target = target.with_tokens(tokens);
        }
        let (target, own) = target.with_credential(credential);
        Ok((target, scrubber.with(&own)))
    }

    /// Forgets the stored OAuth tokens of all servers but these, as far as that can be done now (116).
    pub async fn retain_tokens(&self, servers: &[String]) {
        self.tokens.retain(servers).await;
    }

    /// Waits for refreshes of OAuth tokens that are under way, and stores what they bring: an answer that is not stored may be
    /// the end of a chain.
    pub async fn settle(&self) {
        self.tokens.settle().await;
    }

    /// The enabled servers of `extensions`.
    pub fn open_all(&self, extensions: &Extensions) -> Result<Upstreams, ConfigError> {
        let enabled = extensions.servers.values().filter(|server| server.enabled);
        enabled.map(|server| Ok((server.name.clone(), self.open(server, extensions)?))).collect()
    }
}

/// Makes the enabled servers of `extensions` callable; connects to none of them yet.
pub fn build(extensions: &Extensions, options: &Options) -> Result<Upstreams, ConfigError> {
    Factory::new(options)?.open_all(extensions)
}
