//! Entries of `mcpInterceptors` (BEHAVIOURS 127, 139).

use std::time::Duration;

use serde_json::{Map, Value};

use super::schema::hint;

/// Where `timeout_seconds` is not set.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// The most that `timeout_seconds` takes.
const MAX_TIMEOUT_SECONDS: f64 = 60.0;
const NAME_MAX_CHARS: usize = 128;
const KEYS: [&str; 5] = ["name", "url", "timeout_seconds", "on_error", "arguments"];

/// An entry of `mcpInterceptors` (139).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interceptor {
    /// A Python import path of the reference's; it cannot run here and is warned about.
    Python(String),
    /// A named HTTP endpoint.
    Http(HttpInterceptor),
}

/// An HTTP endpoint that is asked before each tool call.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpInterceptor {
    /// Its name, for messages.
    pub name: String,
    /// Where it is; it may hold credentials.
    pub url: String,
    /// How long it may take, above 0 and at most 60 s.
    pub timeout: Duration,
    /// What happens to the call where it cannot be asked.
    pub on_error: OnError,
    /// Whether it sees the call's arguments.
    pub arguments: bool,
}

impl std::fmt::Debug for HttpInterceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpInterceptor").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What happens to a call whose interceptor failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnError {
    /// It is refused.
    #[default]
    Deny,
    /// It goes on without the interceptor.
    Skip,
}

/// Reads one entry. What is wrong is told by key, never by value.
pub(super) fn read(entry: &Value) -> Result<Interceptor, String> {
    match entry {
        Value::String(path) => Ok(Interceptor::Python(path.clone())),
        Value::Object(members) => http(members).map(Interceptor::Http),
        _ => Err(" is neither text nor object".to_owned()),
    }
}

fn http(members: &Map<String, Value>) -> Result<HttpInterceptor, String> {
    if let Some(key) = members.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!(" has the unknown key {key}{}", hint(key, KEYS, usize::MAX)));
    }
    let get = |key: &str| members.get(key).filter(|value| !value.is_null());
    let name = get("name").and_then(Value::as_str).map(str::trim).unwrap_or_default();
    if name.is_empty() || name.chars().count() > NAME_MAX_CHARS || name.chars().any(char::is_control) {
        return Err(format!(".name must be a text of 1 to {NAME_MAX_CHARS} characters"));
    }
    let url = get("url").and_then(Value::as_str).map(str::trim).unwrap_or_default();
    match url.parse::<http::Uri>() {
        Ok(uri) if matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some() => {}
        _ => return Err(".url must be an http or https URL".to_owned()),
    }
    let timeout = match get("timeout_seconds") {
        None => DEFAULT_TIMEOUT,
        Some(value) => value
            .as_f64()
            .or_else(|| value.as_str()?.trim().parse().ok())
            .filter(|seconds| *seconds > 0.0 && *seconds <= MAX_TIMEOUT_SECONDS)
            .map(Duration::from_secs_f64)
            .ok_or_else(|| format!(".timeout_seconds must be a number above 0 and at most {MAX_TIMEOUT_SECONDS}"))?,
    };
    let on_error = match get("on_error").map(Value::as_str) {
        None | Some(Some("deny")) => OnError::Deny,
        Some(Some("skip")) => OnError::Skip,
        Some(_) => return Err(".on_error must be deny or skip".to_owned()),
    };
    let arguments = match get("arguments") {
        None => false,
        Some(Value::Bool(value)) => *value,
        Some(_) => return Err(".arguments must be true or false".to_owned()),
    };
    Ok(HttpInterceptor { name: name.to_owned(), url: url.to_owned(), timeout, on_error, arguments })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_endpoint_has_a_name_a_url_a_time_limit_and_a_rule_for_errors_139() {
        let Interceptor::Http(read_in) = read(&json!({"name": "gate", "url": "http://h/x"})).unwrap() else {
            panic!("not an endpoint")
        };
        assert_eq!((read_in.timeout, read_in.on_error, read_in.arguments), (DEFAULT_TIMEOUT, OnError::Deny, false));
        let Interceptor::Http(read_in) = read(&json!({
            "name": "gate", "url": "https://u:p@h/x", "timeout_seconds": "0.5", "on_error": "skip", "arguments": true
        }))
        .unwrap() else {
            panic!("not an endpoint")
        };
        assert_eq!((read_in.timeout, read_in.on_error), (Duration::from_millis(500), OnError::Skip));
        assert!(read_in.arguments && !format!("{read_in:?}").contains("u:p"));
        assert_eq!(read(&json!("a.b:c")), Ok(Interceptor::Python("a.b:c".into())));
    }

    #[test]
    fn what_is_wrong_with_an_endpoint_is_told_by_key_139() {
        for (change, told) in [
            (json!({"name": " "}), ".name"),
            (json!({"url": "ftp://secret"}), ".url"),
            (json!({"url": null}), ".url"),
            (json!({"timeout_seconds": 0}), ".timeout_seconds"),
            (json!({"timeout_seconds": 61}), ".timeout_seconds"),
            (json!({"on_error": "allow"}), ".on_error"),
            (json!({"arguments": "yes"}), ".arguments"),
            (json!({"on_eror": "deny"}), "did you mean on_error"),
        ] {
            let mut entry = json!({"name": "gate", "url": "http://h"});
            entry.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            let error = read(&entry).unwrap_err();
            assert!(error.contains(told) && !error.contains("secret"), "{error}");
        }
        assert!(read(&json!(7)).is_err());
    }
}
