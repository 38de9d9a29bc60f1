//! What is refused at start.

use std::path::Path;

use serde_json::{Value, json};

use super::super::{AuthMode, Environment, GuardrailProvider};
use super::*;

fn extensions(document: &Value) -> Extensions {
    Extensions::parse(&document.to_string(), Path::new("e.json"), &Environment::default()).unwrap()
}

fn server(change: &Value) -> Extensions {
    let mut server = json!({"type": "http", "url": "http://h/mcp"});
    server.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    extensions(&json!({"mcpServers": {"s": server}}))
}

fn tasks() -> Extensions {
    server(&json!({"task_toolsets": [{"name": "r", "submit_tool": "a", "status_tool": "b", "cancel_tool": "c"}]}))
}

fn refused(settings: &Settings, extensions: &Extensions) -> String {
    check(settings, extensions).unwrap_err().0
}

#[test]
fn toolsets_need_the_runtime_and_a_lasting_store_31() {
    let mut settings = Settings::default();
    assert!(check(&settings, &tasks()).is_ok());
    settings.database.backend = Backend::Memory;
    let error = refused(&settings, &tasks());
    assert!(error.contains("sqlite") && error.contains("postgres"), "{error}");
    assert!(check(&settings, &server(&json!({}))).is_ok(), "without toolsets memory is fine");
    let mut settings = Settings::default();
    settings.mcp_tasks.enabled = false;
    assert!(refused(&settings, &tasks()).contains("mcp_tasks.enabled=true"));
    let mut disabled = tasks();
    disabled.servers["s"].enabled = false;
    assert!(check(&settings, &disabled).is_ok());
}

#[test]
fn what_is_not_implemented_is_refused_by_name() {
    let none = Extensions::default();
    let with = |change: &dyn Fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        refused(&settings, &none)
    };
    assert!(with(&|settings| settings.auth.mode = AuthMode::Jwt).contains("auth.jwt.issuer"), "it would let nobody in");
    let settings = Settings::default();
    for key in ["user_auth", "headers_from_context"] {
        assert!(check(&settings, &server(&json!({key: {"enabled": false}}))).is_ok());
        assert!(check(&settings, &server(&json!({key: {}, "enabled": false}))).is_ok(), "on a disabled server");
        let stdio = extensions(&json!({"mcpServers": {"s": {"command": "x", key: {"enabled": true}}}}));
        assert!(check(&settings, &stdio).is_ok() && stdio.warnings[0].contains(key), "118, 120");
    }
    assert!(check(&settings, &server(&json!({"type": "sse"}))).is_ok());
    assert!(check(&settings, &extensions(&json!({"mcpInterceptors": ["a:b"]}))).is_ok(), "139");
}

#[test]
fn the_allow_list_has_two_names_140() {
    let with = |kind: &str| {
        let mut settings = Settings::default();
        settings.guardrails.provider = GuardrailProvider { kind: kind.into(), ..GuardrailProvider::default() };
        check(&settings, &Extensions::default())
    };
    assert!(with("allowlist").is_ok());
    assert!(with("deerflow.guardrails.builtin:AllowlistProvider").is_ok());
    let error = with("my.company:Provider").unwrap_err().0;
    assert!(error.contains("guardrails.provider.use") && error.contains("allowlist"), "{error}");
}

#[test]
fn instances_that_share_a_chain_of_tokens_need_a_shared_key_116() {
    let oauth = |grant: &str| {
        server(&json!({"oauth": {"token_url": "https://a/t", "grant_type": grant, "client_id": "i",
            "client_secret": "s", "refresh_token": "hunter2"}}))
    };
    let mut settings = Settings::default();
    assert!(check(&settings, &oauth("refresh_token")).is_ok(), "one instance keeps a key of its own");
    settings.deployment.multi_instance = true;
    let error = refused(&settings, &oauth("refresh_token"));
    for named in ["deployment.multi_instance", "mcpServers.s.oauth", "MCP_TASKD_CREDENTIALS_KEY"] {
        assert!(error.contains(named) && !error.contains("hunter2"), "{error}");
    }
    assert!(check(&settings, &oauth("client_credentials")).is_ok(), "each asks for its own");
    let mut disabled = oauth("refresh_token");
    disabled.servers["s"].enabled = false;
    assert!(check(&settings, &disabled).is_ok());
    settings.credentials_keys = vec!["key".into()];
    assert!(check(&settings, &oauth("refresh_token")).is_ok());
}

#[test]
fn everything_that_is_wrong_is_told_at_once_and_where_it_stands() {
    let toolset = r#"[{"name": "r", "submit_tool": "a", "status_tool": "b", "cancel_tool": "c"}]"#;
    let text = format!(
        "{{\"mcpServers\": {{\n  \"s\": {{\"url\": \"http://h/mcp?key=hunter2\", \"type\": \"http\",\n    \"task_toolsets\": {toolset}}},\n  \
         \"me\": {{\"type\": \"http\",\n    \"url\": \"http://localhost:8787/mcp\"}}}}}}"
    );
    let extensions = Extensions::parse(&text, Path::new("e.json"), &Environment::default()).unwrap();
    let mut settings = Settings::default();
    settings.mcp_tasks.enabled = false;
    settings.database.backend = Backend::Memory;
    settings.auth.mode = AuthMode::Jwt;
    settings.guardrails.provider.kind = "my.company:Provider".into();
    let error = refused(&settings, &extensions);
    for said in [
        "e.json, line 3, column 5: mcpServers.s.task_toolsets need mcp_tasks.enabled=true\n    3 |     \"task_toolsets\": ",
        "e.json, line 3, column 5: mcpServers.s.task_toolsets need database.backend",
        "e.json, line 5, column 5: mcpServers.me.url is this daemon's own gateway (server.listen 127.0.0.1:8787)",
        "\nauth.jwt.issuer is needed",
        "\nauth.jwt.audience is needed",
        "\nauth.jwt.jwks_url is needed",
        "\nguardrails.provider.use: my.company:Provider",
    ] {
        assert!(error.contains(said), "{said}\nis not in\n{error}");
    }
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn a_server_entry_that_leads_back_to_this_daemon_is_refused_by_name() {
    let mut settings = Settings::default();
    settings.auth.resource = Some("https://tasks.example/mcp".into());
    let entry = |kind: &str, url: &str, enabled: bool| {
        extensions(&json!({"mcpServers": {"me": {"type": kind, "url": url, "enabled": enabled}}}))
    };
    for (kind, url) in [
        ("http", "http://127.0.0.1:8787/mcp"),
        ("sse", "http://localhost:8787/mcp"),
        ("http", "https://tasks.example:443/mcp/"),
    ] {
        assert!(refused(&settings, &entry(kind, url, true)).contains("mcpServers.me.url is this daemon's own gateway"));
        assert!(check(&settings, &entry(kind, url, false)).is_ok(), "switched off it asks nobody");
    }
    for other in ["http://127.0.0.1:9000/mcp", "https://tasks.example/other", "http://tasks.example/mcp"] {
        assert!(check(&settings, &entry("http", other, true)).is_ok(), "{other}");
    }
}
