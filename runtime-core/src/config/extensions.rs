//! The shape of `extensions_config.json`: servers and their toolsets (BEHAVIOURS D, K).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use indexmap::IndexMap;
use secrecy::SecretString;

use crate::task::Toolset;

/// The servers of `extensions_config.json`, in the file's order.
#[derive(Debug, Clone, Default)]
pub struct Extensions {
    /// Where it was read from; none where no file was found.
    pub path: Option<PathBuf>,
    /// `mcpServers`.
    pub servers: IndexMap<String, ServerConfig>,
    /// What was odd but usable, for the log: unknown keys, ignored sections, unset variables.
    pub warnings: Vec<String>,
}

/// How a server is reached.
#[derive(Debug, Clone)]
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
}

impl ServerConfig {
    /// Whether agents can start background tasks on it.
    pub fn has_toolsets(&self) -> bool {
        self.enabled && !self.toolsets.is_empty()
    }
}
