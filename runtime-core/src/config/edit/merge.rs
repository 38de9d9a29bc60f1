//! A server as sent, completed from the one that is stored (BEHAVIOURS 86, 87).

use serde_json::{Map, Value};

use super::super::oauth::KEYS as OAUTH;
use super::super::redact::MASK;
use super::mask::{OAUTH_SECRETS, masked};
use super::restore::{self, restored};

/// What a server always says of itself: left out, it is the default.
const CORE: [&str; 10] =
    ["enabled", "type", "transport", "command", "args", "env", "url", "headers", "oauth", "description"];
/// What stays where it is left out or null: a client that does not know it must not remove it.
const KEPT: [&str; 4] = ["routing", "tools", "user_auth", "headers_from_context"];

/// The definition to store; an error names the key.
pub(super) fn server(sent: &Map<String, Value>, stored: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let shown = masked(&Value::Object(stored.clone()));
    let shown = |key: &str| shown.get(key).cloned().unwrap_or_default();
    let mut merged = Map::new();
    // The stored order first, so that an edit is a small difference.
    for key in stored.keys().chain(sent.keys().filter(|key| !stored.contains_key(*key))) {
        let old = stored.get(key);
        let value = match (key.as_str(), sent.get(key)) {
            (name, None) if CORE.contains(&name) => None,
            (_, None) => old.cloned(),
            (name, Some(Value::Null)) if KEPT.contains(&name) => old.cloned(),
            ("oauth", Some(Value::Object(new))) => Some(oauth(new, old.and_then(Value::as_object), &shown(key))?),
            ("user_auth", Some(Value::Object(new))) => {
                Some(user_auth(new, old.and_then(Value::as_object), &shown(key))?)
            }
            // Words for people and models; stars mean stars there.
            ("description" | "routing", Some(new)) => Some(new.clone()),
            (_, Some(new)) => Some(restored(new, &shown(key), old.unwrap_or(&Value::Null), key)?),
        };
        if let Some(value) = value {
            merged.insert(key.clone(), value);
        }
    }
    Ok(merged)
}

/// Its secrets are kept where null, left out or masked, and cleared where empty.
fn oauth(sent: &Map<String, Value>, stored: Option<&Map<String, Value>>, shown: &Value) -> Result<Value, String> {
    let none = Map::new();
    let stored = stored.unwrap_or(&none);
    let mut merged = Map::new();
    for key in stored.keys().chain(sent.keys().filter(|key| !stored.contains_key(*key))) {
        let old = stored.get(key);
        let at = format!("oauth.{key}");
        let value = if OAUTH_SECRETS.contains(&key.as_str()) {
            match sent.get(key) {
                None | Some(Value::Null) => old.cloned(),
                Some(Value::String(text)) if text == MASK => {
                    Some(old.filter(|old| !old.is_null()).cloned().ok_or_else(|| restore::unknown(&at))?)
                }
                Some(Value::String(text)) if text.is_empty() => None,
                Some(new) => Some(new.clone()),
            }
        } else {
            match sent.get(key) {
                // Other keys than those that are known (110) stay where they are left out.
                None if OAUTH.contains(&key.as_str()) => None,
                None => old.cloned(),
                Some(new) => Some(restored(new, &shown[key.as_str()], old.unwrap_or(&Value::Null), &at)?),
            }
        };
        if let Some(value) = value {
            merged.insert(key.clone(), value);
        }
    }
    Ok(Value::Object(merged))
}

/// Merged member by member, but for `users`, which replaces: users can be removed (87).
fn user_auth(sent: &Map<String, Value>, stored: Option<&Map<String, Value>>, shown: &Value) -> Result<Value, String> {
    let mut merged = stored.cloned().unwrap_or_default();
    for (key, new) in sent {
        let old = stored.and_then(|stored| stored.get(key)).unwrap_or(&Value::Null);
        let value = restored(new, &shown[key.as_str()], old, &format!("user_auth.{key}"))?;
        merged.insert(key.clone(), value);
    }
    Ok(Value::Object(merged))
}
