//! Every key of `config.yaml`: one table that files, environment, flags, ranges, suggestions and the schema share.

use serde_json::{Map, Value, json};

/// What a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `true` or `false`.
    Bool,
    /// An integer within bounds, both included.
    Integer(i64, i64),
    /// Text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// `ADDRESS:PORT`.
    Address,
    /// Text that is never shown; the key has a `…_file` twin.
    Secret,
    /// A list of texts.
    Names,
    /// A list of subscribers; [`super::webhooks`] reads them.
    Webhooks,
}

/// A key, by its dotted path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    pub(super) path: &'static str,
    pub(super) kind: Kind,
    pub(super) nullable: bool,
}

const fn key(path: &'static str, kind: Kind) -> Key {
    Key { path, kind, nullable: false }
}

const fn optional(path: &'static str, kind: Kind) -> Key {
    Key { path, kind, nullable: true }
}

/// Ranges are those of BEHAVIOURS 30 and INTERFACE.
pub(super) const KEYS: &[Key] = &[
    key("server.state_dir", Kind::Text),
    key("server.listen", Kind::Address),
    optional("server.admin_listen", Kind::Address),
    key("server.shutdown_grace_seconds", Kind::Integer(0, 3_600)),
    key("database.backend", Kind::Choice(&["memory", "sqlite", "postgres"])),
    optional("database.sqlite_dir", Kind::Text),
    optional("database.postgres_url", Kind::Secret),
    key("database.max_connections", Kind::Integer(2, 1_000)),
    key("mcp_tasks.enabled", Kind::Bool),
    key("mcp_tasks.poll_interval_seconds", Kind::Integer(1, 300)),
    key("mcp_tasks.lease_seconds", Kind::Integer(5, 3_600)),
    key("mcp_tasks.max_concurrent_polls", Kind::Integer(1, 4_096)),
    key("mcp_tasks.max_held", Kind::Integer(1, 1_000_000)),
    key("mcp_tasks.max_poll_backoff_seconds", Kind::Integer(1, 3_600)),
    key("mcp_tasks.input_required_poll_interval_seconds", Kind::Integer(5, 3_600)),
    key("mcp_tasks.tracking_degraded_after_errors", Kind::Integer(1, 100)),
    key("mcp_tasks.max_result_bytes", Kind::Integer(1_024, 10_485_760)),
    key("mcp_tasks.result_preview_max_chars", Kind::Integer(64, 100_000)),
    optional("mcp_tasks.max_task_age_seconds", Kind::Integer(1, 315_360_000)),
    optional("mcp_tasks.retention_days", Kind::Integer(1, 36_500)),
    key("tool_search.enabled", Kind::Bool),
    key("tool_search.auto_promote_top_k", Kind::Integer(1, 5)),
    key("guardrails.enabled", Kind::Bool),
    key("guardrails.provider.use", Kind::Text),
    key("guardrails.provider.config.denied_tools", Kind::Names),
    optional("guardrails.provider.config.allowed_tools", Kind::Names),
    key("gateway.builtin_tools", Kind::Bool),
    key("gateway.on_missing_tool", Kind::Choice(&["fail_all", "hide_server"])),
    key("auth.mode", Kind::Choice(&["none", "api_key", "jwt"])),
    optional("auth.jwt.issuer", Kind::Text),
    optional("auth.jwt.audience", Kind::Text),
    optional("auth.jwt.jwks_url", Kind::Text),
    key("auth.jwt.user_claim", Kind::Text),
    key("auth.jwt.scopes_claim", Kind::Text),
    optional("auth.resource", Kind::Text),
    key("auth.max_requests_per_second", Kind::Integer(1, 100_000)),
    key("deployment.multi_instance", Kind::Bool),
    key("webhooks", Kind::Webhooks),
];

/// What a path leads to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Found {
    /// A key.
    Key(&'static Key),
    /// The `…_file` twin of a secret key.
    Twin(&'static Key),
    /// A mapping of further keys.
    Section,
}

/// What `path` leads to, if to anything.
pub(super) fn find(path: &str) -> Option<Found> {
    let twin = path.strip_suffix("_file");
    for key in KEYS {
        if key.path == path {
            return Some(Found::Key(key));
        }
        if key.kind == Kind::Secret && twin == Some(key.path) {
            return Some(Found::Twin(key));
        }
        if key.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')) {
            return Some(Found::Section);
        }
    }
    None
}

/// The names one level below `section`; the sections themselves for an empty one.
pub(super) fn names_in(section: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut add = |name: String| {
        if !names.contains(&name) {
            names.push(name);
        }
    };
    for key in KEYS {
        let rest = if section.is_empty() {
            Some(key.path)
        } else {
            key.path.strip_prefix(section).and_then(|rest| rest.strip_prefix('.'))
        };
        if let Some(rest) = rest {
            let name = rest.split('.').next().unwrap_or(rest).to_owned();
            if key.kind == Kind::Secret && !rest.contains('.') {
                add(format!("{name}_file"));
            }
            add(name);
        }
    }
    names
}

/// The name nearest to `given`, with its distance in edits.
fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<(&'a str, usize)> {
    let given = given.to_lowercase();
    names
        .into_iter()
        .map(|name| (name, strsim::damerau_levenshtein(&given, name)))
        .min_by_key(|(_, distance)| *distance)
}

/// A slip of the pen: what is farther from a known name than this may be somebody else's.
pub(super) const SLIP: usize = 2;

/// `; did you mean …?` for a name that is not known, where one is within so many edits; to be put behind what is wrong.
pub(super) fn hint<'a>(given: &str, names: impl IntoIterator<Item = &'a str>, within: usize) -> String {
    let nearest = nearest(given, names).filter(|(_, distance)| *distance <= within);
    nearest.map(|(name, _)| format!("; did you mean {name}?")).unwrap_or_default()
}

/// The JSON Schema of `config.yaml` (`config schema`).
pub fn json_schema() -> Value {
    let mut root = section_schema();
    for key in KEYS {
        let mut parts: Vec<&str> = key.path.split('.').collect();
        let name = parts.pop().unwrap_or_default();
        let mut at = &mut root;
        for part in parts {
            at = at["properties"]
                .as_object_mut()
                .expect("a section has properties")
                .entry(part)
                .or_insert_with(section_schema);
        }
        at["properties"][name] = value_schema(key);
        if key.kind == Kind::Secret {
            at["properties"][format!("{name}_file")] = json!({"type": "string"});
        }
    }
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!("mcp-taskd config.yaml");
    // A shared file may hold another program's sections.
    root["additionalProperties"] = json!(true);
    root
}

fn section_schema() -> Value {
    json!({"type": "object", "properties": {}, "additionalProperties": false})
}

fn value_schema(key: &Key) -> Value {
    let (kind, more) = match key.kind {
        Kind::Bool => ("boolean", json!({})),
        Kind::Integer(min, max) => ("integer", json!({"minimum": min, "maximum": max})),
        Kind::Text | Kind::Address | Kind::Secret => ("string", json!({})),
        Kind::Choice(words) => ("string", json!({"enum": words})),
        Kind::Names => ("array", json!({"items": {"type": "string"}})),
        Kind::Webhooks => ("array", json!({"items": super::webhooks::json_schema()})),
    };
    let mut schema = Map::new();
    schema.insert("type".into(), if key.nullable { json!([kind, "null"]) } else { json!(kind) });
    if let Value::Object(more) = more {
        schema.extend(more);
    }
    Value::Object(schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_knows_ranges_and_twins() {
        let schema = json_schema();
        let lease = &schema["properties"]["mcp_tasks"]["properties"]["lease_seconds"];
        assert_eq!((&lease["minimum"], &lease["maximum"]), (&json!(5), &json!(3_600)));
        assert!(schema["properties"]["database"]["properties"].get("postgres_url_file").is_some());
        let allowed = &schema["properties"]["guardrails"]["properties"]["provider"]["properties"]["config"];
        assert_eq!(allowed["properties"]["allowed_tools"]["type"], json!(["array", "null"]));
    }
}
