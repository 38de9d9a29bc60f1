//! A server's definition as administrators see it (BEHAVIOURS 84, 85, 141).

use serde_json::{Map, Value};

use super::super::redact::{self, MASK};

/// The secrets of `oauth` that are shown as null, and kept where null comes back (86).
pub(super) const OAUTH_SECRETS: [&str; 2] = ["client_secret", "refresh_token"];
/// What `headers_from_context` may hold: names of secrets, which are none.
const CONTEXT_KEYS: [&str; 3] = ["enabled", "headers", "on_missing"];

/// The definition with everything masked that is or could be a secret.
pub(super) fn masked(server: &Value) -> Value {
    let mut masked = server.clone();
    redact::mask(&mut masked);
    let Value::Object(members) = &mut masked else { return masked };
    for key in ["env", "headers"] {
        if let Some(Value::Object(values)) = members.get_mut(key) {
            values.iter_mut().for_each(|(_, value)| *value = MASK.into());
        }
    }
    if let Some(Value::Object(oauth)) = members.get_mut("oauth") {
        for (_, value) in oauth.iter_mut().filter(|(key, _)| OAUTH_SECRETS.contains(&key.as_str())) {
            *value = Value::Null;
        }
    }
    if let Some(Value::Object(context)) = members.get_mut("headers_from_context") {
        mask_extras(context);
    }
    masked
}

fn mask_extras(context: &mut Map<String, Value>) {
    let extras = context.iter_mut().filter(|(key, _)| !CONTEXT_KEYS.contains(&key.as_str()));
    for (key, value) in extras {
        // As a member of an object, since names count.
        let mut alone = Value::Object(Map::from_iter([(key.clone(), value.take())]));
        redact::mask(&mut alone);
        *value = alone[key.as_str()].take();
    }
}
