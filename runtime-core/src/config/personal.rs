//! A user's own connections: what their file holds, under which names they run, and what a user may point at (BEHAVIOURS T).

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{ConfigError, Extensions, ServerConfig, Settings, check};
use crate::task::personal_name;

/// Most connections of one user.
pub(super) const MAX_SERVERS: usize = 64;
/// Names that are remembered of connections there have been.
const MAX_ISSUED: usize = 1_000;
/// The most that a user's own connection may take over a start or a call: what hangs takes up a slot.
const LONGEST: Duration = Duration::from_secs(60);

/// The connections of one user. They may hold secrets.
#[derive(Clone, Serialize, Deserialize)]
pub struct Connections {
    /// Whose they are; the file's place tells only a hash.
    pub(super) user: String,
    /// As they were saved. `$NAME` means nothing here: the daemon's environment is not the user's.
    #[serde(rename = "mcpServers")]
    pub(super) servers: Map<String, Value>,
    /// Those that an administrator saved, who may point anywhere.
    #[serde(default)]
    pub(super) trusted: BTreeSet<String>,
    /// The names under which connections have run, the latest at the end. One of them that is no more was changed, switched off
    /// or deleted; any other is of a file that this process does not have.
    #[serde(default)]
    pub(super) issued: Vec<String>,
}

/// An enabled connection as it runs.
#[derive(Debug, Clone)]
pub struct Connection {
    /// The server, under the name that it runs under.
    pub config: ServerConfig,
    /// Whether it may point anywhere.
    pub trusted: bool,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").field("servers", &self.servers.len()).finish_non_exhaustive()
    }
}

impl Connections {
    /// A user without any.
    pub fn none_of(user: &str) -> Self {
        Self { user: user.to_owned(), servers: Map::new(), trusted: BTreeSet::new(), issued: Vec::new() }
    }

    /// Reads what [`Connections::text`] wrote.
    pub(super) fn read(text: &str) -> Result<Self, &'static str> {
        serde_json::from_str(text).map_err(|_| "it does not hold a user's connections")
    }

    pub(super) fn text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Whose they are.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The names under which they run, each with its own.
    pub fn runtime_names(&self) -> impl Iterator<Item = (&str, String)> {
        self.servers.iter().map(|(name, server)| (name.as_str(), runtime_name(&self.user, name, server)))
    }

    /// Whether a connection of this name has run and does no more: it was changed, switched off or deleted (50).
    pub fn is_gone(&self, runtime: &str) -> bool {
        self.issued.iter().any(|issued| issued == runtime)
            && !self.runtime_names().any(|(name, known)| known == runtime && is_enabled(&self.servers[name]))
    }

    /// The enabled ones as they run, and why the others of them do not.
    pub fn enabled(&self, settings: &Settings) -> (Vec<Connection>, Vec<String>) {
        let (mut connections, mut problems) = (Vec::new(), Vec::new());
        for (name, server) in self.servers.iter().filter(|(_, server)| is_enabled(server)) {
            match self.connection(name, server, settings) {
                Ok(connection) => connections.push(connection),
                Err(why) => problems.push(format!("connection {name:?}: {why}")),
            }
        }
        (connections, problems)
    }

    pub(super) fn connection(&self, name: &str, server: &Value, settings: &Settings) -> Result<Connection, String> {
        let trusted = self.trusted.contains(name);
        if !trusted {
            restricted(server)?;
        }
        let runtime = runtime_name(&self.user, name, server);
        let plain = |error: ConfigError| error.0.replace(&format!("mcpServers.{runtime}"), name);
        let document = json!({"mcpServers": {&runtime: server}}).to_string();
        let mut extensions = Extensions::parse_literal(&document, Path::new("personal")).map_err(plain)?;
        check(settings, &extensions).map_err(plain)?;
        let warning = extensions.warnings.pop().unwrap_or_default();
        let mut config = extensions.servers.swap_remove(&runtime).ok_or_else(|| plain(ConfigError(warning)))?;
        config.tool_name_prefix = true;
        if !trusted {
            let bounded = |limit: Option<Duration>| limit.map_or(LONGEST, |limit| limit.min(LONGEST));
            config.session_init_timeout = Some(bounded(config.session_init_timeout));
            config.tool_call_timeout = config.tool_call_timeout.map(|limit| limit.min(LONGEST));
        }
        Ok(Connection { config, trusted })
    }

    /// Remembers the names under which connections run now.
    pub(super) fn issue(&mut self) {
        let names: Vec<String> = self.runtime_names().map(|(_, runtime)| runtime).collect();
        self.issued.retain(|issued| !names.contains(issued));
        self.issued.extend(names);
        let surplus = self.issued.len().saturating_sub(MAX_ISSUED);
        self.issued.drain(..surplus);
    }
}

fn is_enabled(server: &Value) -> bool {
    server["enabled"] != Value::Bool(false)
}

/// `personal_` and the beginning of a SHA-256 over `[user, name, definition]`, whatever the order of the definition's keys
/// (125). Switched off and on again, a connection is the same.
fn runtime_name(user: &str, name: &str, definition: &Value) -> String {
    let mut definition = definition.clone();
    if let Value::Object(members) = &mut definition {
        members.shift_remove("enabled");
    }
    definition.sort_all_objects();
    personal_name(&Sha256::digest(json!([user, name, definition]).to_string()))
}

/// Why somebody who is no administrator must not have such a connection (126). The address itself is judged when connecting.
pub(super) fn restricted(server: &Value) -> Result<(), String> {
    let kind = ["type", "transport"].iter().find_map(|key| server.get(*key).filter(|kind| !kind.is_null()));
    if !matches!(kind.and_then(Value::as_str), Some("http" | "sse")) {
        return Err("only connections of type http and sse may be made by a user".to_owned());
    }
    if server.get("oauth").is_some_and(|oauth| !oauth.is_null()) {
        return Err("oauth is for administrators".to_owned());
    }
    Ok(())
}
