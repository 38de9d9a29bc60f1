//! The shape of `extensions_config.json`: servers and their toolsets (BEHAVIOURS D, K).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use indexmap::IndexMap;
use secrecy::SecretString;
use serde_json::Value;

use super::source::Signature;
use super::{ContextHeaders, Interceptor, OAuth, RoutingConfig, UserAuth};
use crate::task::Toolset;

/// [`ServerConfig::session_init_timeout`] where the file says nothing (81).
pub(super) const DEFAULT_INIT_TIMEOUT: Duration = Duration::from_mins(1);

/// The servers of `extensions_config.json`, in the file's order.
#[derive(Debug, Clone, Default)]
pub struct Extensions {
    /// Where it was read from; none where no file was found.
    pub path: Option<PathBuf>,
    /// What tells the file that was read from another; none where no file was.
    pub signature: Option<Signature>,
    /// `mcpServers`.
    pub servers: IndexMap<String, ServerConfig>,
    /// `mcpInterceptors`.
    pub interceptors: Vec<Interceptor>,
    /// What was odd but usable, for the log: unknown keys, ignored sections, unset variables.
    pub warnings: Vec<String>,
    /// The whole file as it stands, references unexpanded.
    pub document: Definition,
    /// The file's text.
    pub(super) text: Text,
}

/// A file's text, kept for the places of what turns out to be wrong in it. It may hold secrets, so that `Debug` does not show it.
#[derive(Clone, Default)]
pub(super) struct Text(pub(super) Box<str>);

impl Text {
    /// The text itself, secrets and all.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Text(…)")
    }
}

/// JSON as the file has it. It may hold secrets, so that it is never shown by `Debug`; see [`Definition::masked`].
#[derive(Clone, Default, PartialEq)]
pub struct Definition(pub(super) Value);

impl Definition {
    /// The JSON itself, secrets and all.
    pub fn expose(&self) -> &Value {
        &self.0
    }
}

impl std::fmt::Debug for Definition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Definition(…)")
    }
}

/// A source of credentials beside static headers, where it is switched on (110, 118, 120).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialSource {
    /// `oauth`.
    OAuth,
    /// `user_auth`.
    UserAuth,
    /// `headers_from_context`.
    HeadersFromContext,
}

impl CredentialSource {
    /// Its key in the server's definition.
    pub fn key(self) -> &'static str {
        match self {
            Self::OAuth => "oauth",
            Self::UserAuth => "user_auth",
            Self::HeadersFromContext => "headers_from_context",
        }
    }
}

/// How a server is reached.
#[derive(Clone)]
pub enum Transport {
    /// A child process.
    Stdio {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Variables on top of the inherited environment.
        env: BTreeMap<String, SecretString>,
        /// Its working directory, where configured and not empty (82).
        cwd: Option<PathBuf>,
    },
    /// Streamable HTTP.
    Http {
        /// The endpoint.
        url: String,
        /// Static headers.
        headers: Vec<(String, SecretString)>,
    },
    /// HTTP+SSE, as up to protocol 2024-11-05.
    Sse {
        /// The event stream.
        url: String,
        /// Static headers.
        headers: Vec<(String, SecretString)>,
    },
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Arguments and addresses may hold credentials as well as what is declared as such.
        match self {
            Self::Stdio { command, .. } => f.debug_struct("Stdio").field("command", command).finish_non_exhaustive(),
            Self::Http { .. } => f.debug_struct("Http").finish_non_exhaustive(),
            Self::Sse { .. } => f.debug_struct("Sse").finish_non_exhaustive(),
        }
    }
}

/// One server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Its name, the key in `mcpServers`.
    pub name: String,
    /// Whether it is used.
    pub enabled: bool,
    /// How it is reached.
    pub transport: Transport,
    /// For people.
    pub description: String,
    /// Whether tools are shown as `<server>_<tool>` (100).
    pub tool_name_prefix: bool,
    /// Bring-up deadline, 60 s by default; none where `null` (81).
    pub session_init_timeout: Option<Duration>,
    /// Deadline of each task call and each stdio call, where set (81, 109).
    pub tool_call_timeout: Option<Duration>,
    /// Calls at a time; the daemon chooses where absent (INTERFACE).
    pub max_concurrent_calls: Option<u32>,
    /// Its task toolsets.
    pub toolsets: Vec<Toolset>,
    /// The further sources of credentials that are switched on.
    pub credentials: Vec<CredentialSource>,
    /// `oauth`, where it is switched on and has an effect: not on stdio.
    pub oauth: Option<OAuth>,
    /// Each user's own credential, where it is switched on and there are HTTP headers (118).
    pub user_auth: Option<UserAuth>,
    /// Headers from a request's secrets, likewise (120).
    pub headers_from_context: Option<ContextHeaders>,
    /// When its tools should be preferred (128).
    pub routing: RoutingConfig,
    /// Its definition, references expanded.
    pub definition: Definition,
}

impl ServerConfig {
    /// An enabled server with defaults for everything but its name and how it is reached.
    pub fn new(name: &str, transport: Transport) -> Self {
        Self {
            name: name.to_owned(),
            enabled: true,
            transport,
            description: String::new(),
            tool_name_prefix: true,
            session_init_timeout: Some(DEFAULT_INIT_TIMEOUT),
            tool_call_timeout: None,
            max_concurrent_calls: None,
            toolsets: Vec::new(),
            credentials: Vec::new(),
            oauth: None,
            user_auth: None,
            headers_from_context: None,
            routing: RoutingConfig::default(),
            definition: Definition::default(),
        }
    }

    /// Whether agents can start background tasks on it.
    pub fn has_toolsets(&self) -> bool {
        self.enabled && !self.toolsets.is_empty()
    }
}
