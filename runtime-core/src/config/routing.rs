//! When a model should prefer a tool: a server's `routing`, and what a tool of it overrides (BEHAVIOURS 80, 128).

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

/// Whether hints are given for a tool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RoutingMode {
    /// None.
    #[default]
    Off,
    /// The tool should be preferred for what its keywords say.
    Prefer,
}

/// The routing of one tool, overrides applied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Routing {
    /// Whether there are hints.
    pub mode: RoutingMode,
    /// 0–100; the higher, the earlier.
    pub priority: u8,
    /// When to prefer the tool, in the operator's words.
    pub keywords: Vec<String>,
}

/// A `routing` object: only what it sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Given {
    mode: Option<RoutingMode>,
    priority: Option<u8>,
    keywords: Option<Vec<String>>,
}

/// A server's `routing` and those of its `tools`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoutingTable {
    server: Given,
    tools: BTreeMap<String, Given>,
}

impl RoutingTable {
    /// The routing of the tool with this raw name: the server's, with the fields replaced that the tool sets.
    pub fn of(&self, raw_name: &str) -> Routing {
        let server = self.server.clone();
        let tool = self.tools.get(raw_name).cloned().unwrap_or_default();
        Routing {
            mode: tool.mode.or(server.mode).unwrap_or_default(),
            priority: tool.priority.or(server.priority).unwrap_or_default(),
            keywords: tool.keywords.or(server.keywords).unwrap_or_default(),
        }
    }

    /// Reads a server's members; an error names the key and what it must be.
    pub(super) fn read(members: &Map<String, Value>) -> Result<Self, (String, String)> {
        let server = given(members, "routing")?;
        let mut tools = BTreeMap::new();
        match members.get("tools") {
            None | Some(Value::Null) => {}
            Some(Value::Object(entries)) => {
                for (name, tool) in entries {
                    let at = format!("tools.{name}");
                    let Value::Object(tool) = tool else { return Err((at, "must be an object".to_owned())) };
                    let given = given(tool, "routing").map_err(|(key, what)| (format!("{at}.{key}"), what))?;
                    tools.insert(name.clone(), given);
                }
            }
            Some(_) => return Err(("tools".to_owned(), "must be an object".to_owned())),
        }
        Ok(Self { server, tools })
    }
}

fn given(members: &Map<String, Value>, key: &str) -> Result<Given, (String, String)> {
    let wrong = |at: &str, what: &str| Err((format!("{key}{at}"), what.to_owned()));
    let routing = match members.get(key) {
        None | Some(Value::Null) => return Ok(Given::default()),
        Some(Value::Object(routing)) => routing,
        Some(_) => return wrong("", "must be an object"),
    };
    let mut given = Given::default();
    for (name, value) in routing.iter().filter(|(_, value)| !value.is_null()) {
        match name.as_str() {
            "mode" => {
                given.mode = match value.as_str() {
                    Some("off") => Some(RoutingMode::Off),
                    Some("prefer") => Some(RoutingMode::Prefer),
                    _ => return wrong(".mode", "must be off or prefer"),
                }
            }
            "priority" => {
                // A reference to a variable makes a text of a number.
                let number = value.as_f64().or_else(|| value.as_str().and_then(|text| text.trim().parse().ok()));
                let Some(number) = number.filter(|number: &f64| number.is_finite() && number.fract() == 0.0) else {
                    return wrong(".priority", "must be an integer");
                };
                given.priority = Some(number.clamp(0.0, 100.0) as u8);
            }
            "keywords" => {
                let words = value.as_array().and_then(|words| {
                    words.iter().map(|word| word.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
                });
                let Some(words) = words else { return wrong(".keywords", "must be a list of texts") };
                given.keywords = Some(words);
            }
            other => {
                return wrong("", &format!("has the unknown key {other}; known are mode, priority, keywords"));
            }
        }
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(server: &Value) -> Result<RoutingTable, (String, String)> {
        RoutingTable::read(server.as_object().unwrap())
    }

    #[test]
    fn a_tool_overrides_only_what_it_sets_128() {
        let routes = read(&json!({
            "routing": {"mode": "prefer", "priority": 50, "keywords": ["orders"]},
            "tools": {"query": {"routing": {"priority": 900}, "odd": 1}, "quiet": {"routing": {"mode": "off"}}, "bare": {}},
        }))
        .unwrap();
        let orders = vec!["orders".to_owned()];
        let routing = |mode, priority| Routing { mode, priority, keywords: orders.clone() };
        assert_eq!(routes.of("query"), routing(RoutingMode::Prefer, 100), "clamped");
        assert_eq!(routes.of("quiet"), routing(RoutingMode::Off, 50));
        assert_eq!(routes.of("bare"), routing(RoutingMode::Prefer, 50));
        assert_eq!(routes.of("other"), routing(RoutingMode::Prefer, 50));
        assert_eq!(read(&json!({})).unwrap().of("x"), Routing::default());
        let off = read(&json!({"tools": {"q": {"routing": {"priority": -3, "keywords": []}}}})).unwrap();
        assert_eq!(off.of("q"), Routing::default(), "off is inherited");
    }

    #[test]
    fn an_unknown_key_or_a_wrong_value_is_named_80() {
        for (server, at, what) in [
            (json!({"routing": {"weight": 1}}), "routing", "weight"),
            (json!({"routing": []}), "routing", "object"),
            (json!({"routing": {"mode": "must"}}), "routing.mode", "prefer"),
            (json!({"routing": {"priority": 1.5}}), "routing.priority", "integer"),
            (json!({"routing": {"keywords": "a"}}), "routing.keywords", "list"),
            (json!({"tools": {"q": {"routing": {"weight": 1}}}}), "tools.q.routing", "weight"),
            (json!({"tools": {"q": 1}}), "tools.q", "object"),
            (json!({"tools": []}), "tools", "object"),
        ] {
            let (key, why) = read(&server).unwrap_err();
            assert!(key == at && why.contains(what), "{server}: {key} {why}");
        }
    }
}
