//! Reading one server of `extensions_config.json` (BEHAVIOURS D, K, 121).

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Map, Value};

use super::extensions::DEFAULT_INIT_TIMEOUT;
use super::schema::{SLIP, hint};
use super::{ContextHeaders, CredentialSource, OAuth, ServerConfig, Transport, UserAuth, oauth, routing, transport};
use crate::task::Toolset;
use crate::task::limits::{SERVER_NAME_MAX_CHARS, TASK_NAME_MAX_CHARS};

/// Keys of a server that this program reads.
pub(super) const SERVER_KEYS: [&str; 20] = [
    "enabled",
    "type",
    "transport",
    "command",
    "args",
    "env",
    "cwd",
    "url",
    "headers",
    "description",
    "oauth",
    "user_auth",
    "headers_from_context",
    "routing",
    "tools",
    "tool_name_prefix",
    "session_init_timeout",
    "tool_call_timeout",
    "max_concurrent_calls",
    "task_toolsets",
];

/// Why a server is not taken.
pub(super) enum Unusable {
    /// The file cannot be loaded: what is wrong, beginning with its path.
    Load(String),
    /// Only this server is left out (79).
    Skip(String),
}

impl From<String> for Unusable {
    fn from(what: String) -> Self {
        Self::Load(what)
    }
}

/// Reads one server's members.
pub(super) struct Reader<'a> {
    pub(super) file: &'a str,
    pub(super) at: &'a str,
    pub(super) members: &'a Map<String, Value>,
}

impl Reader<'_> {
    fn error(&self, key: &str, what: &str) -> String {
        format!("{}.{key} {what}", self.at)
    }

    /// A member that is there and not null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.members.get(key).filter(|value| !value.is_null())
    }

    /// The server, and what may surprise about it.
    pub(super) fn server(&self, name: &str, warnings: &mut Vec<String>) -> Result<ServerConfig, Unusable> {
        for key in self.members.keys().filter(|key| !SERVER_KEYS.contains(&key.as_str())) {
            let hint = hint(key, SERVER_KEYS, SLIP);
            let at = format!("{}: {}.{key}", self.file, self.at);
            warnings.push(format!("{at} is not a known key; it is kept and has no effect{hint}"));
        }
        let enabled = self.flag("enabled")?.unwrap_or(true);
        let toolsets = self.toolsets(name)?;
        let routing = routing::read(self.members).map_err(|what| format!("{}.{what}", self.at))?;
        let max_concurrent_calls = self.calls()?;
        let session_init_timeout = match self.members.get("session_init_timeout") {
            None => Some(DEFAULT_INIT_TIMEOUT),
            Some(_) => self.timeout("session_init_timeout")?,
        };
        let tool_call_timeout = self.timeout("tool_call_timeout")?;
        let tool_name_prefix = self.flag("tool_name_prefix")?.unwrap_or(true);
        let credentials = self.credentials()?;
        let user_auth = self.read("user_auth", UserAuth::read)?;
        let headers_from_context = self.read("headers_from_context", ContextHeaders::read)?;
        let unusable = |why: String| {
            if enabled && !toolsets.is_empty() {
                // A server with tasks must not vanish silently (32).
                return Unusable::Load(format!("{} has task_toolsets, but {why}", self.at));
            }
            Unusable::Skip(why)
        };
        let transport = transport::read(self.members).map_err(unusable)?;
        let has_oauth = credentials.contains(&CredentialSource::OAuth) && !matches!(transport, Transport::Stdio { .. });
        let oauth = if has_oauth {
            Some(self.oauth(warnings).map_err(|wrong| match wrong {
                oauth::Wrong::Key(key, what) => self.error(&key, what).into(),
                oauth::Wrong::Needed(key, why) => unusable(format!("{}.{key} {why}", self.at)),
            })?)
        } else {
            None
        };
        let mut server = ServerConfig::new(name, transport);
        server.enabled = enabled;
        server.description = self.get("description").and_then(Value::as_str).map(ToOwned::to_owned).unwrap_or_default();
        server.tool_name_prefix = tool_name_prefix;
        server.session_init_timeout = session_init_timeout;
        server.tool_call_timeout = tool_call_timeout;
        server.max_concurrent_calls = max_concurrent_calls;
        server.toolsets = toolsets;
        // A child process has no HTTP headers (118, 120).
        if !matches!(server.transport, Transport::Stdio { .. }) {
            let is_on = |source| credentials.contains(&source);
            server.user_auth = user_auth.filter(|_| is_on(CredentialSource::UserAuth));
            server.headers_from_context = headers_from_context.filter(|_| is_on(CredentialSource::HeadersFromContext));
        }
        server.credentials = credentials;
        server.oauth = oauth;
        server.routing = routing;
        Ok(server)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(self.error(key, "must be true or false")),
        }
    }

    fn calls(&self) -> Result<Option<u32>, String> {
        let Some(value) = self.get("max_concurrent_calls") else { return Ok(None) };
        match value.as_u64() {
            Some(calls @ 1..=4_096) => Ok(Some(calls as u32)),
            _ => Err(self.error("max_concurrent_calls", "must be an integer from 1 to 4096")),
        }
    }

    /// A positive, finite number of seconds; null is none (81).
    fn timeout(&self, key: &str) -> Result<Option<Duration>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        // A reference to a variable makes a text of a number.
        let seconds = value.as_f64().or_else(|| value.as_str().and_then(|text| text.trim().parse().ok()));
        seconds
            .filter(|seconds| *seconds > 0.0)
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .map(Some)
            .ok_or_else(|| self.error(key, "must be a finite number of seconds above 0, or null"))
    }

    fn credentials(&self) -> Result<Vec<CredentialSource>, String> {
        let all = [CredentialSource::OAuth, CredentialSource::UserAuth, CredentialSource::HeadersFromContext];
        let mut on = Vec::new();
        for source in all {
            match self.get(source.key()) {
                None => {}
                Some(Value::Object(members)) => match members.get("enabled") {
                    None | Some(Value::Null | Value::Bool(true)) => on.push(source),
                    Some(Value::Bool(false)) => {}
                    Some(_) => return Err(self.error(source.key(), "must have enabled true or false")),
                },
                Some(_) => return Err(self.error(source.key(), "must be an object")),
            }
        }
        Ok(on)
    }

    /// A member that is an object, as `read` has it.
    fn read<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Map<String, Value>) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let Some(Value::Object(members)) = self.get(key) else { return Ok(None) };
        read(members).map(Some).map_err(|what| format!("{}.{key}{what}", self.at))
    }

    fn oauth(&self, warnings: &mut Vec<String>) -> Result<OAuth, oauth::Wrong> {
        let none = Map::new();
        let members = self.get("oauth").and_then(Value::as_object).unwrap_or(&none);
        warnings.extend(oauth::unknown(members).map(|key| {
            format!("{}: {}.oauth.{key} is not a known key; it is kept and has no effect", self.file, self.at)
        }));
        oauth::read(members)
    }

    fn toolsets(&self, server: &str) -> Result<Vec<Toolset>, String> {
        let entries = match self.get("task_toolsets") {
            None => return Ok(Vec::new()),
            Some(Value::Array(entries)) => entries,
            Some(_) => return Err(self.error("task_toolsets", "must be a list")),
        };
        let length = server.chars().count();
        if !entries.is_empty() && (server.trim().is_empty() || length > SERVER_NAME_MAX_CHARS) {
            let what = format!("needs a server name of 1 to {SERVER_NAME_MAX_CHARS} characters that is not blank");
            return Err(self.error("task_toolsets", &what));
        }
        let mut toolsets = Vec::new();
        let (mut names, mut tools) = (HashSet::new(), HashSet::new());
        for (index, entry) in entries.iter().enumerate() {
            let toolset = self.toolset(entry, &format!("task_toolsets[{index}]"))?;
            if !names.insert(toolset.name.clone()) {
                return Err(self.error("task_toolsets", &format!("has two entries named {}", toolset.name)));
            }
            for tool in toolset.tools() {
                // One tool in two roles could not be told apart by its answers (37).
                if !tools.insert(tool.to_owned()) {
                    return Err(self.error("task_toolsets", &format!("uses the tool {tool} twice")));
                }
            }
            toolsets.push(toolset);
        }
        Ok(toolsets)
    }

    fn toolset(&self, entry: &Value, at: &str) -> Result<Toolset, String> {
        const KEYS: [&str; 7] =
            ["name", "submit_tool", "driver", "status_tool", "cancel_tool", "input_tool", "idempotent_submit"];
        let Value::Object(members) = entry else { return Err(self.error(at, "must be an object")) };
        for key in members.keys() {
            if !KEYS.contains(&key.as_str()) {
                let hint = hint(key, KEYS, usize::MAX);
                return Err(self.error(at, &format!("has the unknown key {key}{hint}")));
            }
        }
        let text = |key: &str| match members.get(key) {
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(text.clone()),
            _ => Err(self.error(&format!("{at}.{key}"), "must be a text that is not blank")),
        };
        let name = text("name")?;
        if name.chars().count() > TASK_NAME_MAX_CHARS {
            let what = format!("must have at most {TASK_NAME_MAX_CHARS} characters");
            return Err(self.error(&format!("{at}.name"), &what));
        }
        let has = |key: &&str| members.get(*key).is_some_and(|value| !value.is_null());
        let native = match members.get("driver") {
            None | Some(Value::Null) => false,
            Some(Value::String(driver)) if driver == Toolset::TOOLS => false,
            Some(Value::String(driver)) if driver == Toolset::NATIVE => true,
            Some(_) => {
                let what = format!("must be {:?} or {:?}", Toolset::TOOLS, Toolset::NATIVE);
                return Err(self.error(&format!("{at}.driver"), &what));
            }
        };
        if let Some(key) = ["status_tool", "cancel_tool", "input_tool"].iter().find(|key| native && has(key)) {
            let what = format!("has no place beside driver {:?}: MCP Tasks have methods for that", Toolset::NATIVE);
            return Err(self.error(&format!("{at}.{key}"), &what));
        }
        let unless_native = |key: &str| if native { Ok(String::new()) } else { text(key) };
        Ok(Toolset {
            name,
            submit_tool: text("submit_tool")?,
            status_tool: unless_native("status_tool")?,
            cancel_tool: unless_native("cancel_tool")?,
            input_tool: has(&"input_tool").then(|| text("input_tool")).transpose()?,
            idempotent_submit: match members.get("idempotent_submit") {
                None | Some(Value::Null) => false,
                Some(Value::Bool(value)) => *value,
                Some(_) => return Err(self.error(&format!("{at}.idempotent_submit"), "must be true or false")),
            },
        })
    }
}
