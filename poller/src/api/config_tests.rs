//! The configuration over REST, on a file (BEHAVIOURS L, 97).

use std::path::PathBuf;

use axum::response::Response;
use http::Method;
use mcp_taskd_core::config::Source;
use serde_json::{Value, json};

use super::tests::{Client, body, problem};
use super::*;
use crate::auth::{Identity, Scopes};
use crate::stub::{Stub, daemon, live};

const CONFIG: &str = "/api/mcp/config";

struct Site {
    client: Client,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

/// An API on a file with these servers.
fn site(servers: &Value) -> Site {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("extensions_config.json");
    let document = json!({"skills": {"a": {"enabled": true}}, "mcpServers": servers, "middlewares": []});
    std::fs::write(&file, document.to_string()).unwrap();
    let source = Source { explicit: Some(file.clone()), ..Source::default() };
    let (mut daemon, stub) = daemon(Stub::default());
    daemon.live = live(source);
    Site { client: Client::on(daemon, stub), file, _folder: folder }
}

impl Site {
    async fn send(&self, method: Method, path: &str, sent: Value) -> Response {
        self.client.send(method, path, &[], &sent.to_string()).await
    }

    fn document(&self) -> Value {
        serde_json::from_str(&std::fs::read_to_string(&self.file).unwrap()).unwrap()
    }
}

fn servers() -> Value {
    json!({"github": {"command": "npx", "args": ["pkg"], "env": {"TOKEN": "$GITHUB_TOKEN"}}})
}

#[tokio::test]
async fn secrets_are_shown_masked_and_kept_when_sent_back_84_86() {
    let site = site(&servers());
    let before = site.document();
    let shown = body(site.client.get(CONFIG).await).await;
    assert_eq!(shown, json!({"mcp_servers": {"github": {"command": "npx", "args": ["pkg"], "env": {"TOKEN": "***"}}}}));
    assert_eq!(body(site.client.get("/api/mcp/servers").await).await, shown, "the older name");
    for path in [CONFIG, "/api/mcp/servers"] {
        let response = site.send(Method::PUT, path, shown.clone()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(body(response).await, shown);
        assert_eq!(site.document(), before);
    }
}

#[tokio::test]
async fn servers_are_replaced_put_switched_and_removed_86_89_90() {
    let site = site(&servers());
    let more = json!({"command": "uvx", "args": ["other"]});
    let put = json!({"server_name": "more", "server": more});
    assert_eq!(site.send(Method::PUT, "/api/mcp/config/server", put).await.status(), 200);
    assert_eq!(site.document()["mcpServers"]["more"], more);
    let off = json!({"server_name": "more", "enabled": false});
    let shown = body(site.send(Method::PATCH, CONFIG, off).await).await;
    assert_eq!(shown["mcp_servers"]["more"]["enabled"], false);
    let nobody = json!({"server_name": "nobody", "enabled": true});
    problem(site.send(Method::PATCH, CONFIG, nobody).await, 404, "not_found").await;
    assert_eq!(site.send(Method::DELETE, "/api/mcp/config/server/more", json!({})).await.status(), 200);
    assert_eq!(site.document()["mcpServers"], servers());
    problem(site.send(Method::DELETE, "/api/mcp/config/server/more", json!({})).await, 404, "not_found").await;
    let bare = json!({"only": {"command": "npx"}});
    assert_eq!(site.send(Method::PUT, "/api/mcp/servers", bare.clone()).await.status(), 200);
    assert_eq!(site.document(), json!({"skills": {"a": {"enabled": true}}, "mcpServers": bare, "middlewares": []}));
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_its_key_and_nothing_is_written_86_88_91() {
    let site = site(&servers());
    let before = site.document();
    let put = |server: Value| json!({"server_name": "s", "server": server});
    for (server, named) in [
        (json!({"command": "npx", "env": {"K": "***"}}), "mcp_servers.s.env.K"),
        (json!({"command": "npx", "env": {" ": "x"}}), "mcp_servers.s.env"),
        (json!({"command": "bash", "args": ["-c", "hunter2"]}), "mcp_servers.s.command"),
        (json!({"command": "npx", "args": ["--call", "hunter2"]}), "--call"),
        (json!({"type": "http", "url": "http://h", "user_auth": {"on_missing": "hunter2"}}), "mcpServers.s.user_auth"),
        (json!("npx"), "mcp_servers.s must be an object"),
    ] {
        let response = site.send(Method::PUT, "/api/mcp/config/server", put(server)).await;
        let refused = problem(response, 400, "invalid_configuration").await;
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.contains(named) && !detail.contains("hunter2"), "{detail}");
    }
    for (method, path, sent, named) in [
        (Method::PUT, CONFIG, json!({}), "mcp_servers is missing"),
        (Method::PUT, CONFIG, json!({"mcp_servers": []}), "mcp_servers"),
        (Method::PUT, CONFIG, json!({"mcp_servers": {}, "skills": {}}), "skills"),
        (Method::PATCH, CONFIG, json!({"server_name": "github"}), "enabled"),
        (Method::PATCH, CONFIG, json!({"server_name": 1, "enabled": true}), "server_name"),
        (Method::PUT, "/api/mcp/config/server", json!({"server_name": "s"}), "server"),
        (Method::POST, "/api/mcp/cache/reset", json!({"scope": "world"}), "scope"),
    ] {
        let refused = problem(site.send(method, path, sent).await, 422, "invalid_request").await;
        assert!(refused["detail"].as_str().unwrap().contains(named), "{refused}");
    }
    problem(site.client.send(Method::PUT, CONFIG, &[], "{").await, 422, "invalid_request").await;
    assert_eq!(site.document(), before);
}

#[tokio::test]
async fn what_running_tasks_depend_on_is_refused_with_the_way_out_33() {
    let tasks = |url: &str| {
        json!({"s": {"type": "http", "url": url, "task_toolsets": [
            {"name": "r", "submit_tool": "a", "status_tool": "b", "cancel_tool": "c"}]}})
    };
    let site = site(&tasks("http://127.0.0.1:9/mcp"));
    let change = json!({"mcp_servers": tasks("http://127.0.0.1:10/mcp")});
    let refused = problem(site.send(Method::PUT, CONFIG, change.clone()).await, 409, "restart_required").await;
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("mcpServers.s") && detail.contains("restart"), "{detail}");
    assert_eq!(site.document()["mcpServers"], tasks("http://127.0.0.1:9/mcp"));
    assert_eq!(site.send(Method::PUT, "/api/mcp/config?after_restart=true", change).await.status(), 200);
    let report = body(site.client.get("/readyz?verbose").await).await;
    let check = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "configuration").unwrap();
    assert!(check["status"] == "warning" && check["detail"].as_str().unwrap().contains("restart"), "{check}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_write_that_fails_says_so_without_saying_where_93() {
    let site = site(&servers());
    // A folder in the lock's place: no mode keeps a privileged user out.
    std::fs::create_dir(site.file.with_file_name(".extensions_config.json.lock")).unwrap();
    let off = json!({"server_name": "github", "enabled": false});
    let failed = problem(site.send(Method::PATCH, CONFIG, off).await, 500, "configuration_not_written").await;
    let folder = site.file.parent().unwrap().to_str().unwrap();
    assert!(!failed.to_string().contains(folder) && !failed.to_string().contains("lock"), "{failed}");
}

#[tokio::test]
async fn a_broken_file_is_left_alone_and_said_to_be_one() {
    let site = site(&servers());
    std::fs::write(&site.file, "{").unwrap();
    problem(site.client.get(CONFIG).await, 409, "configuration_unreadable").await;
    let off = json!({"server_name": "github", "enabled": false});
    problem(site.send(Method::PATCH, CONFIG, off).await, 409, "configuration_unreadable").await;
    assert_eq!(std::fs::read_to_string(&site.file).unwrap(), "{");
}

#[tokio::test]
async fn a_reset_says_how_far_it_reached_97() {
    let site = site(&json!({}));
    for sent in ["", "{}", r#"{"scope":"process"}"#, r#"{"scope":"shared_config"}"#] {
        let response = site.client.post("/api/mcp/cache/reset", sent).await;
        assert_eq!(response.status(), 200);
        let answer = body(response).await;
        // Nobody shares the stub's store.
        assert_eq!((&answer["success"], &answer["scope"]), (&json!(true), &json!("process")));
        assert!(answer["message"].is_string());
    }
}

#[tokio::test]
async fn only_administrators_may_look_or_change_84() {
    let (method, uri) = (Method::GET, CONFIG);
    let request = http::Request::builder().method(method).uri(uri).body(()).unwrap();
    let (mut parts, ()) = request.into_parts();
    let scopes = Scopes { tasks: true, operator: true, admin: false };
    parts.extensions.insert(Identity { user_id: "ada".into(), scopes, act_as: false });
    let (daemon, _) = daemon(Stub::default());
    assert!(daemon.authenticator.is_open());
    let api = Api { daemon, streams: Arc::new(Semaphore::new(1)) };
    let refused = AdminCaller::from_request_parts(&mut parts, &api).await.err().unwrap();
    assert_eq!((refused.status.as_u16(), refused.code), (403, "missing_scope"));
    // What a page of another site sends is refused before.
    let site = site(&servers());
    let foreign = [("origin", "https://evil.example")];
    let off = json!({"server_name": "github", "enabled": false}).to_string();
    let response = site.client.send(Method::PATCH, CONFIG, &foreign, &off).await;
    problem(response, 403, "origin_not_allowed").await;
}

#[tokio::test]
async fn a_body_that_is_missing_does_not_take_all_servers_away_88() {
    let site = site(&json!({"s": {"command": "npx"}}));
    for path in [CONFIG, "/api/mcp/servers"] {
        problem(site.client.send(Method::PUT, path, &[], "").await, 422, "invalid_request").await;
        problem(site.client.send(Method::PUT, path, &[], " ").await, 422, "invalid_request").await;
    }
    assert!(site.document()["mcpServers"].get("s").is_some());
    assert_eq!(site.client.post("/api/mcp/cache/reset", "").await.status(), 200, "here nothing is a default");
}
