//! What an administrator's change makes of the document.

use serde_json::json;

use super::*;

fn document() -> Value {
    json!({
        "$schema": "x",
        "skills": {"a": {"enabled": true}},
        "mcpServers": {
            "github": {
                "command": "npx",
                "args": ["-y", "pkg", "--api-key", "k1", "--token=k2"],
                "env": {"GITHUB_TOKEN": "$GITHUB_TOKEN", "EMPTY": ""},
                "routing": {"mode": "prefer"},
                "tools": {"q": {}},
                "cwd": "/w",
                "api_key": "extra-secret",
            },
            "api": {
                "transport": "http",
                "url": "https://u:p@h.example/mcp?api_key=k3&x=1",
                "headers": {"Authorization": "Bearer k4", "X": "$X"},
                "oauth": {"token_url": "https://t", "client_id": "id", "client_secret": "$SECRET", "refresh_token": "r",
                    "odd": 1, "scope": "s"},
                "user_auth": {"enabled": true, "header": "Authorization", "users": {"ada": "$ADA", "bob": "Bearer b"},
                    "api_token": "t"},
                "headers_from_context": {"headers": {"X-Tenant": "tenant_token"}, "secret_note": "n"},
            },
        },
        "mcpInterceptors": ["a:b"],
        "middlewares": [1],
    })
}

fn policy() -> LaunchPolicy {
    LaunchPolicy::of(&Environment::default())
}

fn apply(change: &Change) -> Result<Value, String> {
    super::apply(&document(), change, &policy()).map_err(|refused| refused.to_string())
}

/// The document after `name` was sent as it is shown, changed by `edit`.
fn put_shown(name: &str, edit: impl FnOnce(&mut Value)) -> Result<Value, String> {
    let mut server = shown(&document())[name].clone();
    edit(&mut server);
    apply(&Change::Put { name: name.into(), server }).map(|next| next["mcpServers"][name].clone())
}

#[test]
fn what_is_shown_comes_from_the_file_and_has_no_secret_84_85_141() {
    let shown = Value::Object(shown(&document()));
    assert_eq!(
        shown,
        json!({
            "github": {
                "command": "npx",
                "args": ["-y", "pkg", "--api-key", "***", "--token=***"],
                "env": {"GITHUB_TOKEN": "***", "EMPTY": "***"},
                "routing": {"mode": "prefer"},
                "tools": {"q": {}},
                "cwd": "/w",
                "api_key": "***",
            },
            "api": {
                "transport": "http",
                "url": "https://***@h.example/mcp?api_key=***&x=1",
                "headers": {"Authorization": "***", "X": "***"},
                "oauth": {"token_url": "https://t", "client_id": "id", "client_secret": null, "refresh_token": null,
                    "odd": 1, "scope": "s"},
                "user_auth": {"enabled": true, "header": "Authorization", "users": {"ada": "***", "bob": "***"},
                    "api_token": "***"},
                "headers_from_context": {"headers": {"X-Tenant": "tenant_token"}, "secret_note": "***"},
            },
        })
    );
}

#[test]
fn what_is_shown_and_sent_back_changes_nothing_83_86() {
    let next = apply(&Change::ReplaceAll(shown(&document()))).unwrap();
    assert_eq!(next.to_string(), document().to_string(), "not even the order of keys");
}

#[test]
fn all_replaces_the_set_and_leaves_the_rest_of_the_file_86() {
    let servers = json!({"new": {"command": "uvx", "args": ["pkg"]}});
    let next = apply(&Change::ReplaceAll(servers.as_object().unwrap().clone())).unwrap();
    assert_eq!(next["mcpServers"], servers);
    assert_eq!(
        next.as_object().unwrap().keys().collect::<Vec<_>>(),
        document().as_object().unwrap().keys().collect::<Vec<_>>()
    );
}

#[test]
fn masks_keep_and_values_replace_86() {
    let server = put_shown("github", |server| {
        server["env"]["NEW"] = json!("v");
        server["args"][3] = json!("k9");
        server["api_key"] = json!("other");
    })
    .unwrap();
    assert_eq!(server["env"], json!({"GITHUB_TOKEN": "$GITHUB_TOKEN", "EMPTY": "", "NEW": "v"}), "placeholders stay");
    assert_eq!(server["args"], json!(["-y", "pkg", "--api-key", "k9", "--token=k2"]));
    assert_eq!(server["api_key"], "other");
    let server =
        put_shown("github", |server| server["args"] = json!(["pkg", "--token=***", "--api-key", "***"])).unwrap();
    assert_eq!(server["args"], json!(["pkg", "--token=k2", "--api-key", "k1"]), "reordered");
    let server = put_shown("api", |server| server["url"] = json!("https://***@h.example/mcp?x=2&api_key=***")).unwrap();
    assert_eq!(server["url"], "https://u:p@h.example/mcp?x=2&api_key=k3");
}

#[test]
fn a_mask_where_nothing_is_stored_is_refused_by_its_key_86() {
    for (edit, named) in [
        (json!({"headers": {"New": "***"}}), "mcp_servers.api.headers.New"),
        (json!({"oauth": {"client_secret": "***", "new_token": "***"}}), "mcp_servers.api.oauth.new_token"),
        (json!({"user_auth": {"users": {"eve": "***"}}}), "mcp_servers.api.user_auth.users.eve"),
        (json!({"url": "https://h/?token=***"}), "mcp_servers.api.url"),
        (json!({"new_key": "***"}), "mcp_servers.api.new_key"),
    ] {
        let error = put_shown("api", |server| {
            server.as_object_mut().unwrap().extend(edit.as_object().unwrap().clone());
        })
        .unwrap_err();
        assert!(error.starts_with(&format!("{named}:")), "{error}");
    }
    let error = put_shown("github", |server| server["args"] = json!(["pkg", "--user", "***"])).unwrap_err();
    assert!(error.contains("args[2]"), "a mask does not pick up another secret: {error}");
    let server = json!({"command": "npx", "env": {"K": "***"}});
    let error = apply(&Change::Put { name: "fresh".into(), server }).unwrap_err();
    assert!(error.contains("mcp_servers.fresh.env.K"), "{error}");
    let described = json!({"command": "npx", "description": "rated ***", "routing": {"keywords": ["***"]}});
    assert!(apply(&Change::Put { name: "fresh".into(), server: described }).is_ok(), "words are words");
}

#[test]
fn oauth_secrets_are_kept_by_null_cleared_by_nothing_and_set_by_a_value_86() {
    let oauth =
        |edit: &dyn Fn(&mut Value)| put_shown("api", |server| edit(&mut server["oauth"])).unwrap()["oauth"].clone();
    assert_eq!(oauth(&|_| {})["client_secret"], "$SECRET");
    assert!(oauth(&|oauth| oauth["client_secret"] = json!("")).get("client_secret").is_none());
    assert_eq!(oauth(&|oauth| oauth["refresh_token"] = json!("r2"))["refresh_token"], "r2");
    assert_eq!(oauth(&|oauth| oauth["refresh_token"] = json!("***"))["refresh_token"], "r");
    let short = oauth(&|oauth| *oauth = json!({"token_url": "https://t2"}));
    assert_eq!(short, json!({"token_url": "https://t2", "client_secret": "$SECRET", "refresh_token": "r", "odd": 1}));
    assert!(put_shown("api", |server| server["oauth"] = json!(null)).unwrap()["oauth"].is_null());
}

#[test]
fn what_a_client_does_not_know_stays_86() {
    let server =
        apply(&Change::Put { name: "github".into(), server: json!({"command": "npx", "args": ["other"]}) }).unwrap();
    assert_eq!(
        server["mcpServers"]["github"],
        json!({"command": "npx", "args": ["other"], "routing": {"mode": "prefer"}, "tools": {"q": {}}, "cwd": "/w",
            "api_key": "extra-secret"})
    );
    let server = put_shown("github", |server| {
        server["routing"] = json!(null);
        server["tools"] = json!({});
        server["cwd"] = json!(null);
    })
    .unwrap();
    assert_eq!(
        (&server["routing"], &server["tools"], &server["cwd"]),
        (&json!({"mode": "prefer"}), &json!({}), &json!(null))
    );
}

#[test]
fn user_auth_merges_member_by_member_and_its_users_are_replaced_87() {
    let auth = |sent: Value| put_shown("api", |server| server["user_auth"] = sent).unwrap()["user_auth"].clone();
    let off = auth(json!({"enabled": false}));
    assert_eq!(
        (&off["enabled"], &off["users"]["ada"], &off["api_token"]),
        (&json!(false), &json!("$ADA"), &json!("t"))
    );
    assert_eq!(auth(json!({"users": {"ada": "***", "eve": "e"}}))["users"], json!({"ada": "$ADA", "eve": "e"}));
    assert_eq!(auth(json!(null)), document()["mcpServers"]["api"]["user_auth"]);
    let context = put_shown("api", |server| {
        server["headers_from_context"] = json!({"headers": {"Y": "k"}, "secret_note": "***"});
    });
    assert_eq!(context.unwrap()["headers_from_context"], json!({"headers": {"Y": "k"}, "secret_note": "n"}));
}

#[test]
fn names_must_not_be_blank_88() {
    let put = |name: &str, server: Value| apply(&Change::Put { name: name.into(), server }).unwrap_err();
    assert!(put(" ", json!({"command": "npx"})).contains("name"));
    assert!(put("s", json!({"command": "npx", "env": {"": "x"}})).contains("mcp_servers.s.env"));
    assert!(put("s", json!([])).contains("mcp_servers.s must be an object"));
}

#[test]
fn one_server_is_switched_and_the_rest_stays_89() {
    let enable = |name: &str, enabled| Change::Enable { name: name.into(), enabled };
    let next = apply(&enable("github", false)).unwrap();
    assert_eq!(next["mcpServers"]["github"]["enabled"], false);
    let mut expected = document();
    expected["mcpServers"]["github"]["enabled"] = json!(false);
    assert_eq!(next, expected);
    assert_eq!(apply(&enable("nobody", true)).unwrap_err(), r#"there is no server "nobody""#);
}

#[test]
fn the_launch_policy_judges_what_starts_something_new_89_91() {
    let before = json!({"mcpServers": {"own": {"command": "/opt/own", "enabled": false, "env": {"A": "b"}}}});
    let edit = |before: &Value, change: &Change| {
        super::apply(before, change, &policy()).map_err(|refused| refused.to_string())
    };
    let switch = |enabled| Change::Enable { name: "own".into(), enabled };
    assert!(edit(&before, &switch(true)).unwrap_err().contains("mcp_servers.own.command"));
    assert!(edit(&before, &switch(false)).is_ok(), "switching off needs no leave");
    let put = |server: Value| Change::Put { name: "own".into(), server };
    assert!(edit(&before, &put(json!({"command": "/opt/own", "env": {"A": "***"}}))).is_err(), "switched on");
    let mut on = before.clone();
    on["mcpServers"]["own"]["enabled"] = json!(true);
    let described = json!({"command": "/opt/own", "env": {"A": "***"}, "description": "d"});
    assert!(edit(&on, &put(described)).is_ok(), "what ran before still runs");
    assert!(edit(&on, &put(json!({"command": "/opt/own", "args": ["x"], "env": {"A": "***"}}))).is_err());
}

#[test]
fn a_server_is_removed_by_its_name_90() {
    let next = apply(&Change::Remove { name: "github".into() }).unwrap();
    assert_eq!(next["mcpServers"].as_object().unwrap().keys().collect::<Vec<_>>(), ["api"]);
    assert!(apply(&Change::Remove { name: "nobody".into() }).is_err());
    assert_eq!(changed(&document(), &next), Vec::<String>::new());
    let put = apply(&Change::Put { name: "new".into(), server: json!({"command": "npx"}) }).unwrap();
    assert_eq!(changed(&document(), &put), ["new"]);
}
