//! Names that would make the file unloadable, or a request impossible (BEHAVIOURS 88, 120, 121).

use std::collections::HashSet;

use serde_json::{Map, Value};

/// Refuses blank names; the error names the place.
pub(super) fn check(server: &Map<String, Value>) -> Result<(), String> {
    for key in ["env", "headers"] {
        names(server.get(key), key)?;
    }
    if let Some(Value::Object(auth)) = server.get("user_auth") {
        if auth.get("header").is_some_and(is_blank) {
            return Err("user_auth.header must not be blank".to_owned());
        }
        names(auth.get("users"), "user_auth.users")?;
    }
    if let Some(Value::Object(context)) = server.get("headers_from_context") {
        names(context.get("headers"), "headers_from_context.headers")?;
        let mut spellings = HashSet::new();
        for (name, secret) in context.get("headers").and_then(Value::as_object).into_iter().flatten() {
            if is_blank(secret) {
                return Err(format!("headers_from_context.headers.{name} must name a secret"));
            }
            if !spellings.insert(name.to_ascii_lowercase()) {
                return Err(format!("headers_from_context.headers has {name} in two spellings"));
            }
        }
    }
    Ok(())
}

fn names(value: Option<&Value>, at: &str) -> Result<(), String> {
    match value {
        Some(Value::Object(members)) if members.keys().any(|name| name.trim().is_empty()) => {
            Err(format!("{at} has a blank name"))
        }
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(_) => Err(format!("{at} must be an object")),
    }
}

fn is_blank(value: &Value) -> bool {
    value.as_str().is_none_or(|text| text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn blank_names_and_double_headers_are_named_88() {
        for (server, named) in [
            (json!({"headers": {" ": "x"}}), "headers has a blank name"),
            (json!({"headers": []}), "headers must be an object"),
            (json!({"env": {"": "x"}}), "env"),
            (json!({"user_auth": {"header": ""}}), "user_auth.header"),
            (json!({"user_auth": {"users": {"": "x"}}}), "user_auth.users"),
            (json!({"headers_from_context": {"headers": {"": "k"}}}), "headers_from_context.headers has"),
            (json!({"headers_from_context": {"headers": {"X": " "}}}), "headers.X"),
            (json!({"headers_from_context": {"headers": {"X-A": "k", "x-a": "l"}}}), "two spellings"),
        ] {
            let error = check(server.as_object().unwrap()).unwrap_err();
            assert!(error.contains(named), "{server}: {error}");
        }
        let good = json!({"headers": {"A": ""}, "user_auth": {"header": "A", "users": {}}, "headers_from_context": {}});
        assert_eq!(check(good.as_object().unwrap()), Ok(()));
    }
}
