//! When two definitions of a server are the same configuration, however they are spelt (BEHAVIOURS 33, 34, 95).

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::{Extensions, ServerConfig};

/// What only agents see: it may change under a running task (33).
const FOR_AGENTS: [&str; 4] = ["description", "routing", "tools", "tool_name_prefix"];

impl ServerConfig {
    /// A digest of the whole definition: another one means another configuration (95). Neither the order of keys nor a
    /// default that is written out counts.
    pub fn digest(&self) -> String {
        digest(&Value::Object(canonical(self.definition.expose(), &[])))
    }

    /// A digest of what a running task depends on: the definition less what only agents see (33).
    pub fn task_digest(&self) -> String {
        digest(&Value::Object(canonical(self.definition.expose(), &FOR_AGENTS)))
    }
}

impl Extensions {
    /// A digest of `mcpInterceptors`, of which one alone may stand without a list (127).
    pub fn interceptors_digest(&self) -> String {
        digest(&match self.document.expose().get("mcpInterceptors") {
            None | Some(Value::Null) => Value::Array(Vec::new()),
            Some(list @ Value::Array(_)) => list.clone(),
            Some(entry) => Value::Array(vec![entry.clone()]),
        })
    }
}

/// The definition with every spelling that means the same made the same. Only enabled servers are compared, so that
/// `enabled` says nothing.
fn canonical(definition: &Value, without: &[&str]) -> Map<String, Value> {
    let mut members = definition.as_object().cloned().unwrap_or_default();
    let kind = [members.remove("type"), members.remove("transport")].into_iter().flatten().find(|kind| !kind.is_null());
    members.retain(|key, value| key != "enabled" && !without.contains(&key.as_str()) && !is_default(key, value));
    if let Some(kind) = kind.filter(|kind| kind != "stdio") {
        members.insert("type".to_owned(), kind);
    }
    members
}

fn is_default(key: &str, value: &Value) -> bool {
    match key {
        // Null is no limit here, which is not the default (81).
        "session_init_timeout" => value.as_f64() == Some(60.0),
        "args" | "task_toolsets" => value.is_null() || value.as_array().is_some_and(Vec::is_empty),
        "env" | "headers" | "tools" => value.is_null() || value.as_object().is_some_and(Map::is_empty),
        "description" | "cwd" => value.is_null() || value == "",
        "tool_name_prefix" => value.is_null() || value == true,
        _ => value.is_null(),
    }
}

/// The digest of a document, whatever the order of its keys.
fn digest(document: &Value) -> String {
    let mut document = document.clone();
    document.sort_all_objects();
    hex(&Sha256::digest(document.to_string()))
}

/// Bytes as text.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::super::Environment;
    use super::*;

    fn server(definition: &Value) -> ServerConfig {
        let document = json!({"mcpServers": {"s": definition}}).to_string();
        let mut loaded = Extensions::parse(&document, Path::new("e.json"), &Environment::default()).unwrap();
        loaded.servers.swap_remove("s").unwrap()
    }

    #[test]
    fn digests_tell_what_changed_33_95() {
        let a = server(&json!({"command": "x", "args": ["1"], "description": "d"}));
        let reordered = server(&json!({"description": "d", "args": ["1"], "command": "x"}));
        let described = server(&json!({"command": "x", "args": ["1"], "description": "other", "routing": {}}));
        let moved = server(&json!({"command": "x", "args": ["2"], "description": "d"}));
        assert_eq!(a.digest(), reordered.digest());
        assert_ne!(a.digest(), described.digest());
        assert_eq!(a.task_digest(), described.task_digest());
        assert_ne!(a.task_digest(), moved.task_digest());
    }

    #[test]
    fn a_default_that_is_written_out_is_no_change_34() {
        let short = server(&json!({"command": "x"}));
        let long = server(&json!({"enabled": true, "type": "stdio", "command": "x", "args": [], "env": {}, "cwd": "",
            "session_init_timeout": 60.0, "tool_call_timeout": null, "tool_name_prefix": true, "task_toolsets": []}));
        assert_eq!(short.digest(), long.digest());
        let alias = server(&json!({"transport": "http", "url": "http://h"}));
        assert_eq!(alias.digest(), server(&json!({"type": "http", "url": "http://h"})).digest());
        assert_ne!(alias.digest(), server(&json!({"type": "sse", "url": "http://h"})).digest());
        assert_ne!(short.digest(), server(&json!({"command": "x", "session_init_timeout": null})).digest(), "81");
    }
}
