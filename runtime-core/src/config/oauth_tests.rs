//! How `oauth` is read.

use std::path::Path;

use serde_json::json;

use super::super::{Environment, Extensions};
use super::*;

fn oauth(change: &Value) -> Result<OAuth, Wrong> {
    let mut members = json!({"token_url": "https://auth.example/token", "client_id": "id", "client_secret": "secret"});
    members.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    read(members.as_object().unwrap())
}

fn load(server: &Value) -> Result<Extensions, String> {
    let document = json!({"mcpServers": {"s": server, "other": {"command": "x"}}}).to_string();
    Extensions::parse(&document, Path::new("e.json"), &Environment::default()).map_err(|error| error.0)
}

#[test]
fn every_key_is_read_and_has_the_reference_s_default_110_112() {
    let short = oauth(&json!({})).unwrap();
    assert!(matches!(short.grant, Grant::ClientCredentials));
    let words = [&short.token_field, &short.token_type_field, &short.expires_in_field, &short.default_token_type];
    assert_eq!(words, ["access_token", "token_type", "expires_in", "Bearer"]);
    assert_eq!((short.refresh_skew, &short.scope, &short.audience), (Duration::from_secs(60), &None, &None));
    let full = oauth(&json!({
        "enabled": true, "grant_type": "refresh_token", "refresh_token": "seed", "scope": "a b", "audience": "aud",
        "token_field": "tok", "token_type_field": "kind", "expires_in_field": "ttl", "default_token_type": "MAC",
        "refresh_skew_seconds": "30", "extra_token_params": {"resource": "r"},
    }));
    let full = full.unwrap();
    assert!(matches!(&full.grant, Grant::RefreshToken(seed) if seed.expose_secret() == "seed"));
    let words = [&full.token_field, &full.token_type_field, &full.expires_in_field, &full.default_token_type];
    assert_eq!(words, ["tok", "kind", "ttl", "MAC"]);
    assert_eq!((full.scope.as_deref(), full.audience.as_deref()), (Some("a b"), Some("aud")));
    assert_eq!((full.refresh_skew, full.extra_token_params.len()), (Duration::from_secs(30), 1));
    assert!(!format!("{full:?}").contains("seed"));
}

#[test]
fn what_nobody_could_mean_ends_the_load_and_names_the_key_110() {
    for (key, value) in [
        ("grant_type", json!("password")),
        ("grant_type", json!(1)),
        ("client_id", json!(5)),
        ("client_secret", json!({"a": "hunter2"})),
        ("refresh_skew_seconds", json!(-1)),
        ("refresh_skew_seconds", json!("soon")),
        ("refresh_skew_seconds", json!(1e9)),
        ("extra_token_params", json!(["hunter2"])),
        ("extra_token_params", json!({"a": 1})),
        ("token_field", json!(false)),
    ] {
        let mut oauth = json!({"token_url": "https://a/t", "client_id": "i", "client_secret": "hunter2"});
        oauth[key] = value;
        let error = load(&json!({"type": "http", "url": "http://h/mcp", "oauth": oauth})).unwrap_err();
        assert!(error.contains(&format!("mcpServers.s.oauth.{key} must be")), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn missing_credentials_are_found_before_any_request_and_leave_out_only_their_server_79_111() {
    let complete = json!({"token_url": "https://a/t", "client_id": "i", "client_secret": "s"});
    let refresh = json!({"token_url": "https://a/t", "grant_type": "refresh_token", "refresh_token": "r"});
    for (base, key, value) in [
        (&complete, "token_url", json!("")),
        (&complete, "token_url", json!("ftp://a/hunter2")),
        (&complete, "client_id", json!(null)),
        (&complete, "client_secret", json!("")),
        (&refresh, "refresh_token", json!("$UNSET")),
    ] {
        let mut oauth = base.clone();
        oauth[key] = value;
        let server = json!({"type": "http", "url": "http://h/mcp", "oauth": oauth});
        let loaded = load(&server).unwrap();
        assert!(!loaded.servers.contains_key("s") && loaded.servers.contains_key("other"));
        let warning = loaded.warnings.iter().find(|warning| warning.contains("mcpServers.s is skipped")).unwrap();
        assert!(warning.contains(&format!("mcpServers.s.oauth.{key}")) && !warning.contains("hunter2"), "{warning}");
        let mut tasks = server;
        tasks["task_toolsets"] = json!([{"name": "r", "submit_tool": "a", "status_tool": "b", "cancel_tool": "c"}]);
        let error = load(&tasks).unwrap_err();
        assert!(error.contains(&format!("mcpServers.s.oauth.{key}")), "32: {error}");
    }
}

#[test]
fn further_keys_are_kept_and_warned_about_and_stdio_ignores_all_of_it_80_110() {
    let oauth = json!({"token_url": "https://a/t", "client_id": "i", "client_secret": "s", "vendor": 1});
    let loaded = load(&json!({"type": "sse", "url": "http://h/sse", "oauth": oauth})).unwrap();
    assert!(loaded.servers["s"].oauth.is_some());
    assert!(loaded.warnings[0].contains("mcpServers.s.oauth.vendor"), "{:?}", loaded.warnings);
    assert_eq!(loaded.servers["s"].definition.expose()["oauth"]["vendor"], 1);
    let loaded = load(&json!({"command": "x", "oauth": {"enabled": true}})).unwrap();
    assert!(loaded.servers["s"].oauth.is_none() && loaded.warnings[0].contains("mcpServers.s.oauth"));
    let off = load(&json!({"type": "http", "url": "http://h/mcp", "oauth": {"enabled": false}})).unwrap();
    assert!(off.servers["s"].oauth.is_none());
}

#[test]
fn the_fingerprint_tells_what_a_chain_continues_116() {
    let base = json!({"grant_type": "refresh_token", "refresh_token": "seed"});
    let with = |change: Value| {
        let mut all = base.clone();
        all.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        oauth(&all).unwrap()
    };
    let one = with(json!({}));
    for same in [json!({"client_secret": "other"}), json!({"extra_token_params": {"resource": "r"}})] {
        assert_eq!(one.fingerprint(), with(same).fingerprint());
    }
    for other in [
        json!({"token_url": "https://auth.example/other"}),
        json!({"client_id": "other"}),
        json!({"refresh_token": "other"}),
        json!({"scope": "a"}),
        json!({"audience": "a"}),
        json!({"grant_type": "client_credentials"}),
    ] {
        assert_ne!(one.fingerprint(), with(other.clone()).fingerprint(), "{other}");
    }
    assert_ne!(with(json!({"scope": "a"})).fingerprint(), with(json!({"audience": "a"})).fingerprint());
    for other in [json!({"extra_token_params": {"resource": "r"}}), json!({"token_field": "t"})] {
        assert_ne!(one.request_digest(), with(other).request_digest());
    }
    let (ab, ba) = (json!({"a": "1", "b": "2"}), json!({"b": "2", "a": "1"}));
    let (ab, ba) = (with(json!({"extra_token_params": ab})), with(json!({"extra_token_params": ba})));
    assert_eq!(ab.request_digest(), ba.request_digest(), "in whatever order");
}
