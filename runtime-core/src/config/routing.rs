//! Routing metadata: when a server's tools should be preferred (BEHAVIOURS 80, 128).

use std::collections::HashMap;

use serde_json::{Map, Value};

/// The highest priority; what is outside 0 to this is clamped.
const MAX_PRIORITY: f64 = 100.0;
const KEYS: [&str; 3] = ["mode", "priority", "keywords"];

/// `routing.mode`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RoutingMode {
    /// No hint.
    #[default]
    Off,
    /// A hint that the tool should be preferred for what its keywords describe.
    Prefer,
}

impl RoutingMode {
    /// The word in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Prefer => "prefer",
        }
    }
}

/// The members of one `routing` block that are there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoutingFields {
    /// `mode`.
    pub mode: Option<RoutingMode>,
    /// `priority`, 0 to 100.
    pub priority: Option<u8>,
    /// `keywords`, without blank ones.
    pub keywords: Option<Vec<String>>,
}

/// A server's `routing`, and those of its `tools` by raw name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoutingConfig {
    /// For all of the server's tools.
    pub server: RoutingFields,
    /// What single tools say instead.
    pub tools: HashMap<String, RoutingFields>,
}

/// Reads both from a server's definition; an error begins with the key that is wrong.
pub(super) fn read(server: &Map<String, Value>) -> Result<RoutingConfig, String> {
    let mut tools = HashMap::new();
    match server.get("tools") {
        None | Some(Value::Null) => {}
        Some(Value::Object(entries)) => {
            for (tool, entry) in entries {
                let at = format!("tools.{tool}");
                match entry {
                    Value::Null => {}
                    Value::Object(members) => {
                        tools.insert(tool.clone(), fields(members.get("routing"), &format!("{at}.routing"))?);
                    }
                    _ => return Err(format!("{at} must be an object")),
                }
            }
        }
        Some(_) => return Err("tools must be an object".to_owned()),
    }
    Ok(RoutingConfig { server: fields(server.get("routing"), "routing")?, tools })
}

/// One block; it takes no unknown keys (80).
fn fields(block: Option<&Value>, at: &str) -> Result<RoutingFields, String> {
    let members = match block {
        None | Some(Value::Null) => return Ok(RoutingFields::default()),
        Some(Value::Object(members)) => members,
        Some(_) => return Err(format!("{at} must be an object")),
    };
    if let Some(key) = members.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!("{at} has the unknown key {key}; known are {}", KEYS.join(", ")));
    }
    let get = |key: &str| members.get(key).filter(|value| !value.is_null());
    let mode = match get("mode").map(Value::as_str) {
        None => None,
        Some(Some("off")) => Some(RoutingMode::Off),
        Some(Some("prefer")) => Some(RoutingMode::Prefer),
        Some(_) => return Err(format!("{at}.mode must be off or prefer")),
    };
    let priority = match get("priority") {
        None => None,
        // A reference to a variable makes a text of a number.
        Some(value) => Some(
            value
                .as_f64()
                .or_else(|| value.as_str()?.trim().parse().ok())
                .filter(|priority| !priority.is_nan())
                .map(|priority| priority.clamp(0.0, MAX_PRIORITY).round() as u8)
                .ok_or_else(|| format!("{at}.priority must be a number"))?,
        ),
    };
    let keywords = match get("keywords") {
        None => None,
        Some(Value::Array(items)) => {
            let texts: Option<Vec<_>> = items.iter().map(Value::as_str).collect();
            let texts = texts.ok_or_else(|| format!("{at}.keywords must be a list of texts"))?;
            let texts = texts.into_iter().map(str::trim).filter(|text| !text.is_empty());
            Some(texts.map(ToOwned::to_owned).collect())
        }
        Some(_) => return Err(format!("{at}.keywords must be a list of texts")),
    };
    Ok(RoutingFields { mode, priority, keywords })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(server: &Value) -> Result<RoutingConfig, String> {
        read(server.as_object().unwrap())
    }

    #[test]
    fn priorities_are_clamped_and_blank_keywords_left_out_128() {
        for (given, read_in) in
            [(json!(-5), 0), (json!(50), 50), (json!(1e9), 100), (json!("70"), 70), (json!(12.6), 13)]
        {
            let routing = of(&json!({"routing": {"priority": given}})).unwrap();
            assert_eq!(routing.server.priority, Some(read_in), "{given}");
        }
        let routing = of(&json!({"routing": {"mode": "prefer", "keywords": [" SQL ", "", "  "]}})).unwrap();
        assert_eq!(routing.server.keywords, Some(vec!["SQL".to_owned()]));
        assert_eq!(routing.server.mode, Some(RoutingMode::Prefer));
        assert_eq!(of(&json!({"routing": null, "tools": {"x": null}})).unwrap(), RoutingConfig::default());
    }

    #[test]
    fn what_is_wrong_is_told_by_key_80_128() {
        for (server, told) in [
            (json!({"routing": {"mode": "on"}}), "routing.mode"),
            (json!({"routing": {"mod": "off"}}), "unknown key mod"),
            (json!({"routing": []}), "routing must be"),
            (json!({"routing": {"priority": "high"}}), "routing.priority"),
            (json!({"routing": {"keywords": "sql"}}), "routing.keywords"),
            (json!({"tools": {"q": {"routing": {"keywords": [1]}}}}), "tools.q.routing.keywords"),
            (json!({"tools": {"q": []}}), "tools.q must be"),
        ] {
            let error = of(&server).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
        assert!(of(&json!({"tools": {"q": {"other": 1}}})).is_ok(), "other keys of a tool are kept (80)");
    }
}
