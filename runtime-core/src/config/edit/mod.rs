//! Changing `mcpServers` in the extensions file as an administrator asks (BEHAVIOURS L): from the raw document to the next
//! one, purely; [`Editor`] reads, checks and
//! writes.
//!
//! Everything here works on the file as it is written, never on what its references expand to: what is shown is masked from
//! it, and what is kept is kept as it stood there.

mod editor;
mod file;
mod launch;
mod mask;
mod merge;
mod names;
mod personal;
mod restore;

use serde_json::{Map, Value};

use super::environment::Environment;

pub use editor::{EditError, Editor};
pub use file::FileError;
pub use launch::LaunchPolicy;
pub use personal::{PersonalChange, Seal, Stamp, UserFiles};

/// What an administrator asks for.
#[derive(Clone)]
pub enum Change {
    /// These servers instead of all there are.
    ReplaceAll(Map<String, Value>),
    /// This server, whether it is there or not.
    Put {
        /// Its name.
        name: String,
        /// Its definition.
        server: Value,
    },
    /// One server switched on or off.
    Enable {
        /// Its name.
        name: String,
        /// On or off.
        enabled: bool,
    },
    /// One server less.
    Remove {
        /// Its name.
        name: String,
    },
}

/// Why a change is refused. No text quotes a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no server of this name.
    #[error("there is no server {0:?}")]
    NotFound(String),
    /// There is a server of this name already.
    #[error("a server {0:?} exists already")]
    Exists(String),
    /// Only an administrator may do that; the text names the key.
    #[error("{0}")]
    Forbidden(String),
    /// The change cannot be made; the text names the key.
    #[error("{0}")]
    Invalid(String),
}

/// The servers of a document as they may be shown, in its order (84, 85, 141).
fn shown(document: &Value) -> Map<String, Value> {
    let servers = servers(document);
    servers.into_iter().map(|(name, server)| (name, mask::masked(&server))).collect()
}

/// The document after `change`. Everything but `mcpServers` stays as it is, in its order (83, 86).
fn apply(document: &Value, change: &Change, policy: &LaunchPolicy) -> Result<Value, Refused> {
    let stored = servers(document);
    let next = match change {
        Change::ReplaceAll(sent) => {
            let merged = sent
                .iter()
                .map(|(name, server)| put(name, server, stored.get(name), policy).map(|server| (name.clone(), server)));
            merged.collect::<Result<Map<_, _>, _>>()?
        }
        Change::Put { name, server } => {
            let server = put(name, server, stored.get(name), policy)?;
            let mut next = stored;
            next.insert(name.clone(), server);
            next
        }
        Change::Enable { name, enabled } => {
            let mut next = stored;
            let server = next.get_mut(name).ok_or_else(|| Refused::NotFound(name.clone()))?;
            let members =
                server.as_object_mut().ok_or_else(|| Refused::Invalid(format!("{} is no object", at(name))))?;
            if *enabled {
                policy.check(members).map_err(|what| Refused::Invalid(format!("{}.{what}", at(name))))?;
            }
            members.insert("enabled".to_owned(), (*enabled).into());
            next
        }
        Change::Remove { name } => {
            let mut next = stored;
            next.shift_remove(name).ok_or_else(|| Refused::NotFound(name.clone()))?;
            next
        }
    };
    let mut root = document.as_object().cloned().unwrap_or_default();
    root.insert("mcpServers".to_owned(), Value::Object(next));
    Ok(Value::Object(root))
}

/// The names of the servers that differ between two documents, or are new in `next`.
fn changed(before: &Value, next: &Value) -> Vec<String> {
    let before = servers(before);
    let differs = |(name, server): (String, Value)| (before.get(&name) != Some(&server)).then_some(name);
    servers(next).into_iter().filter_map(differs).collect()
}

/// The variable whose names are further commands that may be started (91, 142).
pub(super) fn allowed_commands(environment: &Environment) -> Option<&str> {
    environment.twin("MCP_STDIO_COMMAND_ALLOWLIST").map(|(_, names)| names)
}

fn servers(document: &Value) -> Map<String, Value> {
    document.get("mcpServers").and_then(Value::as_object).cloned().unwrap_or_default()
}

fn at(name: &str) -> String {
    format!("mcp_servers.{name}")
}

/// One server as sent, what it leaves out or masks taken from the one that is stored.
fn put(name: &str, sent: &Value, stored: Option<&Value>, policy: &LaunchPolicy) -> Result<Value, Refused> {
    if name.trim().is_empty() {
        return Err(Refused::Invalid("mcp_servers: a server's name must not be blank".to_owned()));
    }
    let in_server = |what: String| Refused::Invalid(format!("{}.{what}", at(name)));
    let Value::Object(sent) = sent else { return Err(Refused::Invalid(format!("{} must be an object", at(name)))) };
    let stored = stored.and_then(Value::as_object);
    let merged = merge::server(sent, stored.unwrap_or(&Map::new())).map_err(in_server)?;
    names::check(&merged).map_err(in_server)?;
    // What was there before and only stays there is the operator's own; what starts something new is not.
    let is_on = |members: &Map<String, Value>| members.get("enabled") != Some(&Value::Bool(false));
    let starts_as_before =
        stored.is_some_and(|stored| launch::same(stored, &merged) && (is_on(stored) || !is_on(&merged)));
    if !starts_as_before {
        policy.check(&merged).map_err(in_server)?;
    }
    Ok(Value::Object(merged))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
