//! Who gets which header, and what is refused.

use serde_json::json;

use super::*;

/// What no header can have, each with the word that must not be shown.
const ILLEGAL: [&str; 9] = [
    "hunter2é",
    "hunter2\n",
    "hunter2\r",
    "hun\0hunter2",
    "hunter2\u{b}x",
    "hunter2\u{c}x",
    " hunter2",
    "hunter2 ",
    "\thunter2",
];

fn members(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap()
}

fn user_auth(value: &Value) -> Result<UserAuth, String> {
    UserAuth::read(members(value))
}

fn context(value: &Value) -> Result<ContextHeaders, String> {
    ContextHeaders::read(members(value))
}

fn secrets(pairs: &[(&str, &str)]) -> Secrets {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn shown(headers: &[(HeaderName, HeaderValue)]) -> Vec<(&str, &str)> {
    headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect()
}

#[test]
fn a_user_has_a_header_or_is_denied_or_passed_through_118() {
    let denying = json!({"users": {"ada": "Bearer a", "empty": ""}, "note": "kept"});
    let auth = user_auth(&denying).unwrap();
    let (name, value) = auth.header_for("ada").unwrap().unwrap();
    assert_eq!((name.as_str(), value.to_str().unwrap()), ("authorization", "Bearer a"));
    assert!(value.is_sensitive());
    for user in ["empty", "bob"] {
        assert!(auth.header_for(user).unwrap_err().contains(user));
    }
    let passing = json!({"header": "X-Key", "users": {"ada": "k"}, "on_missing": "passthrough"});
    let auth = user_auth(&passing).unwrap();
    assert_eq!(auth.header_for("ada").unwrap().unwrap().0, "x-key");
    assert_eq!(auth.header_for("bob"), Ok(None));
}

#[test]
fn what_is_wrong_with_user_auth_is_told_by_key_118() {
    for (value, told) in [
        (json!({"header": " "}), ".header"),
        (json!({"header": 7}), ".header"),
        (json!({"header": "a b"}), ".header"),
        (json!({"header": "Mcp-Session-Id"}), ".header"),
        (json!({"header": "Content-Length"}), ".header"),
        (json!({"users": []}), ".users"),
        (json!({"users": {" ": "hunter2"}}), ".users"),
        (json!({"users": {"ada": {"hunter2": 1}}}), ".users.ada"),
        (json!({"on_missing": "hunter2"}), ".on_missing"),
        (json!({"on_missing": 1}), ".on_missing"),
    ] {
        let error = user_auth(&value).unwrap_err();
        assert!(error.starts_with(told) && !error.contains("hunter2"), "{value}: {error}");
    }
    assert!(user_auth(&json!({"header": null, "users": null, "on_missing": null})).is_ok());
}

#[test]
fn a_value_that_cannot_be_sent_is_denied_whatever_on_missing_says_121() {
    for value in ILLEGAL {
        for on_missing in ["deny", "passthrough"] {
            let auth = user_auth(&json!({"users": {"ada": value}, "on_missing": on_missing})).unwrap();
            let error = auth.header_for("ada").unwrap_err();
            assert!(error.contains("user_auth.users.ada") && !error.contains("hunter2"), "{error}");
            assert_eq!(auth.unusable().collect::<Vec<_>>(), ["ada"]);
            let context = context(&json!({"headers": {"X-Key": "tenant_key"}, "on_missing": on_missing})).unwrap();
            let error = context.resolve(&secrets(&[("tenant_key", value)])).unwrap_err();
            assert!(error.contains("tenant_key") && !error.contains("hunter2"), "{error}");
        }
    }
}

#[test]
fn missing_context_secrets_are_listed_in_order_or_passed_over_120() {
    let headers = json!({"X-C": "c", "X-A": "a", "X-B": "b", "X-A2": "a"});
    let denying = context(&json!({"headers": headers})).unwrap();
    let error = denying.resolve(&secrets(&[("c", ""), ("other", "x")])).unwrap_err();
    assert!(error.ends_with(": a, b, c"), "{error}");
    let resolved = denying.resolve(&secrets(&[("a", "1"), ("b", "2"), ("c", "3")])).unwrap();
    assert_eq!(shown(&resolved), [("x-c", "3"), ("x-a", "1"), ("x-b", "2"), ("x-a2", "1")]);
    assert!(resolved.iter().all(|(_, value)| value.is_sensitive()));
    let passing = context(&json!({"headers": headers, "on_missing": "passthrough"})).unwrap();
    assert_eq!(shown(&passing.resolve(&secrets(&[("b", "2")])).unwrap()), [("x-b", "2")]);
    assert!(passing.resolve(&Secrets::default()).unwrap().is_empty());
}

#[test]
fn what_is_wrong_with_context_headers_is_told_by_key_120() {
    for (value, told) in [
        (json!({"headers": []}), ".headers"),
        (json!({"headers": {" ": "k"}}), ".headers"),
        (json!({"headers": {"X-A": " "}}), ".headers.x-a"),
        (json!({"headers": {"X-A": null}}), ".headers.x-a"),
        (json!({"headers": {"X-A": "k", "x-a": "l"}}), ".headers has x-a in two spellings"),
        (json!({"headers": {"Host": "k"}}), ".headers: \"Host\""),
        (json!({"headers": {"X-A": "k"}, "on_missing": "skip"}), ".on_missing"),
    ] {
        let error = context(&value).unwrap_err();
        assert!(error.starts_with(told), "{value}: {error}");
    }
}

#[test]
fn secrets_are_not_shown_121() {
    let all = secrets(&[("key", "hunter2")]);
    assert_eq!(format!("{all:?}"), "Secrets(1)");
    let auth = user_auth(&json!({"users": {"ada": "hunter2"}})).unwrap();
    assert!(!format!("{auth:?}").contains("hunter2"));
}
