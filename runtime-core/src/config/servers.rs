//! Reading `extensions_config.json` (BEHAVIOURS D, K, 121).

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use super::environment::reference;
use super::extensions::{DEFAULT_INIT_TIMEOUT, Definition};
use super::{
    ConfigError, ContextHeaders, CredentialSource, Environment, Extensions, Interceptor, OAuth, ServerConfig,
    Transport, UserAuth, interceptor, oauth, routing, transport,
};
use crate::task::Toolset;
use crate::task::limits::{SERVER_NAME_MAX_CHARS, TASK_NAME_MAX_CHARS};

/// Keys of a server that this program reads.
const SERVER_KEYS: [&str; 20] = [
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

impl Extensions {
    /// Reads the text of a file; `path` is for messages.
    pub fn parse(text: &str, path: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        Self::read(text, path, Some(environment))
    }

    /// Reads a text in which `$NAME` stands for itself.
    pub(super) fn parse_literal(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::read(text, path, None)
    }

    fn read(text: &str, path: &Path, environment: Option<&Environment>) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let document: Value = serde_json::from_str(text.trim_start_matches('\u{feff}')).map_err(|error| {
            ConfigError(format!(
                "{file}, line {}, column {}: not usable as JSON: {}",
                error.line(),
                error.column(),
                kind(&error)
            ))
        })?;
        let mut loaded = Self { path: Some(path.to_owned()), ..Self::default() };
        let Value::Object(root) = &document else {
            return Err(ConfigError(format!("{file} is no JSON object")));
        };
        for (key, value) in root {
            match key.as_str() {
                "mcpServers" => loaded.servers(value, environment, &file)?,
                "mcpInterceptors" => loaded.interceptors(value, environment, &file)?,
                // Other programs' parts of the file (83).
                "skills" | "middlewares" => {}
                other => {
                    loaded.warnings.push(format!("{file}: {other} is not one of this program's keys and is ignored"));
                }
            }
        }
        loaded.document = Definition(document);
        Ok(loaded)
    }

    fn servers(&mut self, value: &Value, environment: Option<&Environment>, file: &str) -> Result<(), ConfigError> {
        let servers = match value {
            Value::Null => return Ok(()),
            Value::Object(servers) => servers,
            _ => return Err(ConfigError(format!("{file}: mcpServers is no object"))),
        };
        for (name, raw) in servers {
            let at = format!("mcpServers.{name}");
            let mut unset = Vec::new();
            let expanded = expand(raw, &at, environment, &mut unset);
            let Value::Object(members) = &expanded else {
                return Err(ConfigError(format!("{file}: {at} is no object")));
            };
            let reader = Reader { file, at: &at, members };
            let mut server = match reader.server(name, &mut self.warnings) {
                Ok(server) => server,
                Err(Unusable::Load(error)) if unset.is_empty() => return Err(error),
                // What is missing may well be why.
                Err(Unusable::Load(error)) => return Err(ConfigError(format!("{}; {}", error.0, unset.join("; ")))),
                Err(Unusable::Skip(why)) => {
                    self.warnings.extend(unset.iter().map(|warning| format!("{file}: {warning}")));
                    self.warnings.push(format!("{file}: {at} is skipped: {why}"));
                    continue;
                }
            };
            server.definition = Definition(expanded);
            if server.enabled {
                if matches!(server.transport, Transport::Stdio { .. }) {
                    self.warnings.extend(server.credentials.iter().map(|source| {
                        format!("{file}: {at}.{} has no effect on a stdio server and is ignored", source.key())
                    }));
                } else if server.tool_call_timeout.is_some() {
                    // Ordinary tools have the transport's own limit (109).
                    self.warnings.push(format!(
                        "{file}: {at}.tool_call_timeout bounds the calls of task_toolsets only on a server that is not \
                         stdio; its other tools ignore it"
                    ));
                }
                self.warnings.extend(unset.iter().map(|warning| format!("{file}: {warning}")));
                self.warnings.extend(about_credentials(&server).map(|warning| format!("{file}: {at}.{warning}")));
            }
            self.servers.insert(name.clone(), server);
        }
        Ok(())
    }

    fn interceptors(
        &mut self,
        value: &Value,
        environment: Option<&Environment>,
        file: &str,
    ) -> Result<(), ConfigError> {
        let raw = match value {
            Value::Null => &[],
            Value::Array(entries) => &entries[..],
            entry => std::slice::from_ref(entry),
        };
        for (index, raw) in raw.iter().enumerate() {
            let entry = expand(raw, "mcpInterceptors", environment, &mut self.warnings);
            let read = interceptor::read(&entry)
                .map_err(|what| ConfigError(format!("{file}: mcpInterceptors[{index}]{what}")))?;
            if matches!(read, Interceptor::Python(_)) {
                // As the file has it: a variable's value is not shown.
                let named = raw.as_str().unwrap_or_default();
                self.warnings.push(format!(
                    "{file}: mcpInterceptors: {named} is a Python interceptor, which cannot run here and is ignored"
                ));
            }
            if let Interceptor::Http(read) = &read
                && self
                    .interceptors
                    .iter()
                    .any(|known| matches!(known, Interceptor::Http(known) if known.name == read.name))
            {
                let name = &read.name;
                return Err(ConfigError(format!("{file}: mcpInterceptors[{index}].name {name:?} is used before")));
            }
            self.interceptors.push(read);
        }
        Ok(())
    }
}

/// What is wrong, without quoting the file: the text near an error may be a secret.
fn kind(error: &serde_json::Error) -> &'static str {
    match error.classify() {
        serde_json::error::Category::Eof => "it ends too early",
        _ => "syntax error",
    }
}

/// `$NAME` as the variable's value, at any depth (77); as it stands where there is no environment.
fn expand(value: &Value, at: &str, environment: Option<&Environment>, unset: &mut Vec<String>) -> Value {
    let Some(variables) = environment else { return value.clone() };
    match value {
        Value::String(text) => match reference(text) {
            Some(name) => variables.get(name).map_or_else(
                || {
                    unset.push(format!("{at}: environment variable {name} is not set; using an empty string"));
                    Value::String(String::new())
                },
                Into::into,
            ),
            None => value.clone(),
        },
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(index, item)| expand(item, &format!("{at}[{index}]"), environment, unset))
            .collect(),
        Value::Object(members) => Value::Object(
            members
                .iter()
                .map(|(key, value)| (key.clone(), expand(value, &format!("{at}.{key}"), environment, unset)))
                .collect(),
        ),
        _ => value.clone(),
    }
}

/// What may surprise about a server's credentials, each beginning with its key.
fn about_credentials(server: &ServerConfig) -> impl Iterator<Item = String> {
    let unusable = server.user_auth.iter().flat_map(UserAuth::unusable).map(|user| {
        format!("user_auth.users.{user} has a value that cannot be sent (not shown); calls for that user are refused")
    });
    let partly = server.headers_from_context.is_some() && !server.toolsets.is_empty();
    let partly = partly.then(|| {
        "headers_from_context is for submits and ordinary calls: status and cancel calls of task_toolsets come when the \
         request is over, and go without these headers"
            .to_owned()
    });
    unusable.chain(partly).collect::<Vec<_>>().into_iter()
}

/// Why a server is not taken.
enum Unusable {
    /// The file cannot be loaded.
    Load(ConfigError),
    /// Only this server is left out (79).
    Skip(String),
}

impl From<ConfigError> for Unusable {
    fn from(error: ConfigError) -> Self {
        Self::Load(error)
    }
}

/// Reads one server's members.
struct Reader<'a> {
    file: &'a str,
    at: &'a str,
    members: &'a Map<String, Value>,
}

impl Reader<'_> {
    fn error(&self, key: &str, what: &str) -> ConfigError {
        ConfigError(format!("{}: {}.{key} {what}", self.file, self.at))
    }

    /// A member that is there and not null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.members.get(key).filter(|value| !value.is_null())
    }

    fn server(&self, name: &str, warnings: &mut Vec<String>) -> Result<ServerConfig, Unusable> {
        for key in self.members.keys().filter(|key| !SERVER_KEYS.contains(&key.as_str())) {
            warnings.push(format!("{}: {}.{key} is not a known key; it is kept and has no effect", self.file, self.at));
        }
        let enabled = self.flag("enabled")?.unwrap_or(true);
        let toolsets = self.toolsets(name)?;
        let routing =
            routing::read(self.members).map_err(|what| ConfigError(format!("{}: {}.{what}", self.file, self.at)))?;
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
                let error = format!("{}: {} has task_toolsets, but {why}", self.file, self.at);
                return Unusable::Load(ConfigError(error));
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

    fn flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(self.error(key, "must be true or false")),
        }
    }

    fn calls(&self) -> Result<Option<u32>, ConfigError> {
        let Some(value) = self.get("max_concurrent_calls") else { return Ok(None) };
        match value.as_u64() {
            Some(calls @ 1..=4_096) => Ok(Some(calls as u32)),
            _ => Err(self.error("max_concurrent_calls", "must be an integer from 1 to 4096")),
        }
    }

    /// A positive, finite number of seconds; null is none (81).
    fn timeout(&self, key: &str) -> Result<Option<Duration>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        // A reference to a variable makes a text of a number.
        let seconds = value.as_f64().or_else(|| value.as_str().and_then(|text| text.trim().parse().ok()));
        seconds
            .filter(|seconds| *seconds > 0.0)
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .map(Some)
            .ok_or_else(|| self.error(key, "must be a finite number of seconds above 0, or null"))
    }

    fn credentials(&self) -> Result<Vec<CredentialSource>, ConfigError> {
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
    ) -> Result<Option<T>, ConfigError> {
        let Some(Value::Object(members)) = self.get(key) else { return Ok(None) };
        let wrong = |what: String| ConfigError(format!("{}: {}.{key}{what}", self.file, self.at));
        read(members).map(Some).map_err(wrong)
    }

    fn oauth(&self, warnings: &mut Vec<String>) -> Result<OAuth, oauth::Wrong> {
        let none = Map::new();
        let members = self.get("oauth").and_then(Value::as_object).unwrap_or(&none);
        warnings.extend(oauth::unknown(members).map(|key| {
            format!("{}: {}.oauth.{key} is not a known key; it is kept and has no effect", self.file, self.at)
        }));
        oauth::read(members)
    }

    fn toolsets(&self, server: &str) -> Result<Vec<Toolset>, ConfigError> {
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
            let roles = [&toolset.submit_tool, &toolset.status_tool, &toolset.cancel_tool];
            for tool in roles.into_iter().chain(&toolset.input_tool) {
                // One tool in two roles could not be told apart by its answers (37).
                if !tools.insert(tool.clone()) {
                    return Err(self.error("task_toolsets", &format!("uses the tool {tool} twice")));
                }
            }
            toolsets.push(toolset);
        }
        Ok(toolsets)
    }

    fn toolset(&self, entry: &Value, at: &str) -> Result<Toolset, ConfigError> {
        const KEYS: [&str; 6] =
            ["name", "submit_tool", "status_tool", "cancel_tool", "input_tool", "idempotent_submit"];
        let Value::Object(members) = entry else { return Err(self.error(at, "must be an object")) };
        for key in members.keys() {
            if !KEYS.contains(&key.as_str()) {
                let hint = super::schema::nearest(key, KEYS).map(|(name, _)| name).unwrap_or_default();
                return Err(self.error(at, &format!("has the unknown key {key}; did you mean {hint}?")));
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
        Ok(Toolset {
            name,
            submit_tool: text("submit_tool")?,
            status_tool: text("status_tool")?,
            cancel_tool: text("cancel_tool")?,
            input_tool: members
                .get("input_tool")
                .filter(|value| !value.is_null())
                .map(|_| text("input_tool"))
                .transpose()?,
            idempotent_submit: match members.get("idempotent_submit") {
                None | Some(Value::Null) => false,
                Some(Value::Bool(value)) => *value,
                Some(_) => return Err(self.error(&format!("{at}.idempotent_submit"), "must be true or false")),
            },
        })
    }
}

#[cfg(test)]
#[path = "servers_tests.rs"]
mod tests;
