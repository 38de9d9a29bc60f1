//! Reading `extensions_config.json` as a whole (BEHAVIOURS D, K); `server.rs` reads one server of it.

use std::path::Path;

use serde_json::Value;

use super::environment::reference;
use super::extensions::{Definition, Text};
use super::locate::locate;
use super::place::{Mistake, Place, refusal};
use super::schema::{SLIP, hint};
use super::server::{Reader, Unusable};
use super::{ConfigError, Environment, Extensions, Interceptor, ServerConfig, Transport, UserAuth, interceptor};

impl Extensions {
    /// Reads the text of a file; `path` is for messages. An error tells everything that is wrong, where it stands, and no
    /// value.
    pub fn parse(text: &str, path: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        Self::read(text, path, Some(environment))
    }

    /// Reads a text in which `$NAME` stands for itself.
    pub(super) fn parse_literal(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::read(text, path, None)
    }

    fn read(text: &str, path: &Path, environment: Option<&Environment>) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = text.trim_start_matches('\u{feff}');
        let document: Value = serde_json::from_str(text).map_err(|error| {
            let place = Place { line: error.line(), column: error.column() };
            let what = format!("not usable as JSON: {}", kind(&error));
            refusal(&[Mistake::new(&file, Some(place), what)], text)
        })?;
        let mut loaded = Self { path: Some(path.to_owned()), ..Self::default() };
        let Value::Object(root) = &document else {
            return Err(ConfigError(format!("{file} is no JSON object")));
        };
        let mut wrong = Vec::new();
        for (key, value) in root {
            match key.as_str() {
                "mcpServers" => loaded.servers(value, environment, &file, &mut wrong),
                "mcpInterceptors" => loaded.interceptors(value, environment, &mut wrong, &file),
                // Other programs' parts of the file (83).
                "skills" | "middlewares" => {}
                other => {
                    let hint = hint(other, ["mcpServers", "mcpInterceptors"], SLIP);
                    loaded
                        .warnings
                        .push(format!("{file}: {other} is not one of this program's keys and is ignored{hint}"));
                }
            }
        }
        if !wrong.is_empty() {
            let place = |what: String| Mistake::new(&file, locate(text, &what), what);
            return Err(refusal(&wrong.into_iter().map(place).collect::<Vec<_>>(), text));
        }
        loaded.document = Definition(document);
        loaded.text = Text(text.into());
        Ok(loaded)
    }

    /// Takes the servers; what is wrong goes to `wrong`, each beginning with the path of what it is about.
    fn servers(&mut self, value: &Value, environment: Option<&Environment>, file: &str, wrong: &mut Vec<String>) {
        let servers = match value {
            Value::Null => return,
            Value::Object(servers) => servers,
            _ => return wrong.push("mcpServers is no object".to_owned()),
        };
        for (name, raw) in servers {
            let at = format!("mcpServers.{name}");
            let mut unset = Vec::new();
            let expanded = expand(raw, &at, environment, &mut unset);
            let Value::Object(members) = &expanded else {
                wrong.push(format!("{at} is no object"));
                continue;
            };
            let reader = Reader { file, at: &at, members };
            let mut server = match reader.server(name, &mut self.warnings) {
                Ok(server) => server,
                Err(Unusable::Load(what)) => {
                    // What is missing may well be why.
                    let why: String = unset.iter().flat_map(|unset| ["; ", unset]).collect();
                    wrong.push(format!("{what}{why}"));
                    continue;
                }
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
    }

    fn interceptors(&mut self, value: &Value, environment: Option<&Environment>, wrong: &mut Vec<String>, file: &str) {
        let raw = match value {
            Value::Null => &[],
            Value::Array(entries) => &entries[..],
            entry => std::slice::from_ref(entry),
        };
        for (index, raw) in raw.iter().enumerate() {
            let entry = expand(raw, "mcpInterceptors", environment, &mut self.warnings);
            let read = match interceptor::read(&entry) {
                Ok(read) => read,
                Err(what) => {
                    wrong.push(format!("mcpInterceptors[{index}]{what}"));
                    continue;
                }
            };
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
                wrong.push(format!("mcpInterceptors[{index}].name {name:?} is used before"));
                continue;
            }
            self.interceptors.push(read);
        }
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

#[cfg(test)]
#[path = "servers_tests.rs"]
mod tests;
