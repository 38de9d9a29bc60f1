//! Users' own connections over REST (BEHAVIOURS 124, 126).

use axum::extract::{FromRequest as _, Request, State};
use axum::response::Response;
use http::Method;
use serde_json::{Value, json};

use super::config::Document;
use super::tests::{Client, body, problem};
use super::*;
use crate::auth::Scopes;
use crate::stub::{Stub, daemon, personal as connections};

const CONFIG: &str = "/api/mcp/personal/config";
const SERVERS: &str = "/api/mcp/personal/config/servers";
const SERVER: &str = "/api/mcp/personal/config/server";

struct Site {
    client: Client,
    _folder: tempfile::TempDir,
}

fn site() -> Site {
    let folder = tempfile::tempdir().unwrap();
    let (mut daemon, stub) = daemon(Stub::default());
    daemon.personal = connections(folder.path());
    Site { client: Client::on(daemon, stub), _folder: folder }
}

impl Site {
    async fn send(&self, user: &str, method: Method, path: &str, sent: &Value) -> Response {
        self.client.send(method, path, &[("x-user-id", user)], &sent.to_string()).await
    }

    async fn shown(&self, user: &str) -> Value {
        body(self.client.send(Method::GET, CONFIG, &[("x-user-id", user)], "").await).await
    }
}

fn mine(url: &str) -> Value {
    let server = json!({"type": "http", "url": url, "headers": {"Authorization": "Bearer hunter2"}});
    json!({"server_name": "mine", "server": server})
}

#[tokio::test]
async fn a_user_makes_changes_and_removes_own_connections_and_sees_no_others_124() {
    let site = site();
    let empty = json!({"mcp_servers": {}, "runtime_names": {}});
    assert_eq!(site.shown("ada").await, empty);
    let made = site.send("ada", Method::POST, SERVERS, &mine("https://h.example/mcp")).await;
    assert_eq!(made.status(), 201);
    let shown = body(made).await;
    assert_eq!(shown["mcp_servers"]["mine"]["headers"], json!({"Authorization": "***"}));
    let runtime = shown["runtime_names"]["mine"].as_str().unwrap().to_owned();
    assert!(mcp_taskd_core::task::is_personal(&runtime), "{runtime}");
    assert_eq!(site.shown("ada").await, shown);
    assert_eq!(site.shown("bob").await, empty);

    let again = site.send("ada", Method::POST, SERVERS, &mine("https://h.example/mcp")).await;
    problem(again, 409, "already_exists").await;
    assert_eq!(site.send("bob", Method::POST, SERVERS, &mine("https://h.example/mcp")).await.status(), 201);
    let mut edited = mine("https://h.example/other");
    edited["server"]["headers"]["Authorization"] = json!("***");
    let edited = body(site.send("ada", Method::PUT, SERVER, &edited).await).await;
    assert_ne!(edited["runtime_names"]["mine"], runtime.as_str(), "125");
    let off = json!({"server_name": "mine", "enabled": false});
    let switched = body(site.send("ada", Method::PATCH, CONFIG, &off).await).await;
    assert_eq!(switched["mcp_servers"]["mine"]["enabled"], false);
    let unknown = json!({"server_name": "none", "enabled": false});
    problem(site.send("ada", Method::PATCH, CONFIG, &unknown).await, 404, "not_found").await;
    let path = format!("{SERVERS}/mine");
    assert_eq!(body(site.send("ada", Method::DELETE, &path, &json!({})).await).await, empty);
    problem(site.send("ada", Method::DELETE, &path, &json!({})).await, 404, "not_found").await;
    assert_eq!(site.shown("bob").await["mcp_servers"].as_object().unwrap().len(), 1, "his is his");
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_its_key_and_shows_no_secret_88_124() {
    let site = site();
    for (server, named) in [
        (json!({"type": "http", "url": "ftp://hunter2"}), "url"),
        (json!({"type": "http", "url": "https://h/", "headers": {" ": "hunter2"}}), "headers"),
        (json!({"type": "http", "url": "https://h/", "user_auth": {"on_missing": "hunter2"}}), "user_auth.on_missing"),
        (json!({"command": "bash", "args": ["hunter2"]}), "command"),
        (json!("hunter2"), "must be an object"),
    ] {
        let sent = json!({"server_name": "mine", "server": server});
        let refused = problem(site.send("ada", Method::PUT, SERVER, &sent).await, 400, "invalid_configuration").await;
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.contains(named) && !detail.contains("hunter2"), "{detail}");
    }
    let odd = json!({"server_name": "mine", "server": {}, "users": 1});
    problem(site.send("ada", Method::PUT, SERVER, &odd).await, 422, "invalid_request").await;
    assert_eq!(site.shown("ada").await["mcp_servers"], json!({}));
}

#[tokio::test]
async fn a_caller_without_the_admin_scope_may_not_point_inwards_126() {
    let folder = tempfile::tempdir().unwrap();
    let (mut daemon, _) = daemon(Stub::default());
    daemon.personal = connections(folder.path());
    let api = Api { daemon, streams: Arc::new(Semaphore::new(1)) };
    let put = async |admin: bool, server: Value| {
        let (mut parts, ()) = http::Request::builder().uri(SERVER).body(()).unwrap().into_parts();
        let scopes = Scopes { tasks: true, operator: false, admin };
        parts.extensions.insert(Identity { user_id: "ada".into(), scopes, act_as: false });
        let owner = personal::Owner::from_request_parts(&mut parts, &api).await.unwrap();
        let sent = json!({"server_name": "mine", "server": server}).to_string();
        let document = Document::from_request(Request::new(sent.into()), &()).await.unwrap();
        personal::put(State(api.clone()), owner, document).await
    };
    for server in [
        json!({"command": "npx", "args": ["hunter2"]}),
        json!({"type": "http", "url": "https://h.example/", "oauth": {"token_url": "https://hunter2"}}),
        json!({"type": "http", "url": "http://127.0.0.1:9/hunter2"}),
        json!({"type": "sse", "url": "http://[::ffff:169.254.169.254]/hunter2"}),
    ] {
        let refused = put(false, server).await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.code), (403, "not_for_users"), "{}", refused.detail);
        assert!(!refused.detail.contains("hunter2"), "{}", refused.detail);
    }
    assert!(put(false, json!({"type": "http", "url": "https://h.example/"})).await.is_ok());
    assert!(put(true, json!({"type": "http", "url": "http://127.0.0.1:9/"})).await.is_ok());
}
