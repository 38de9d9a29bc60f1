//! A session with known secrets in every place and a server that says them back: afterwards they are nowhere (invariant 9,
//! rules 84, 123, 141 and 148).

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt as _;
use mcp_taskd_tests::daemon::{Api, Daemon, Site, has_ended, id_of};
use mcp_taskd_tests::gate::{Answer, Gate};
use mcp_taskd_tests::hostile::{Hostile, MODES};
use mcp_taskd_tests::issuer::Issuer;
use mcp_taskd_tests::postgres;
use mcp_taskd_tests::wait::until;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{Connection as _, Row as _};

use crate::site;

/// In every secret of the test but the API key.
const MARK: &str = "hunter2";
const ENVIRONMENT: [(&str, &str); 3] =
    [("HEADER_KEY", "hunter2-env-header"), ("CHILD_KEY", "hunter2-child-env"), ("CHILD_ARGUMENT", "hunter2-child-arg")];
/// Everything of our own crates, and what libraries say where somebody looks for trouble.
const LOG: &str = "info,mcp_taskd=trace,mcp_taskd_core=trace,hyper=debug,reqwest=debug,sqlx=debug,rmcp=info";

/// What was found, and where: each answer, file and line that a secret could be in.
#[derive(Default)]
struct Found(Vec<(String, String)>);

impl Found {
    fn add(&mut self, place: &str, text: impl Into<String>) {
        self.0.push((place.to_owned(), text.into()));
    }

    /// Panics where a secret is in what was found.
    fn has_no(&self, secrets: &[&str]) {
        let mut leaks = String::new();
        for (place, text) in &self.0 {
            for (secret, at) in secrets.iter().filter_map(|secret| text.find(secret).map(|at| (secret, at))) {
                let context: String =
                    text[..at].chars().rev().take(200).collect::<Vec<_>>().into_iter().rev().collect();
                let _ = writeln!(leaks, "{secret:?} in {place}: …{context}⟪{secret}⟫");
            }
        }
        assert!(leaks.is_empty(), "{leaks}");
    }
}

/// A site with secrets wherever there may be one.
fn secretive(hostile: &Hostile, gate: &Gate) -> Site {
    let url = hostile.url.replace("http://", "http://user:hunter2-url-password@") + "?api_key=hunter2-url-key";
    let headers = json!({
        "Authorization": "Bearer hunter2-static-header",
        "X-Api-Key": "$HEADER_KEY",
    });
    let child = json!({
        "type": "stdio",
        "url": null,
        "command": "sh",
        "args": ["-c", format!("echo \"my key is $CHILD_KEY, my argument $0\" >&2; exec {} --stdio", env!("CARGO_BIN_EXE_fake-mcp")), "$CHILD_ARGUMENT"],
        "env": {"CHILD_KEY": "$CHILD_KEY", "OTHER_TOKEN": "hunter2-literal-env"},
    });
    let gate_url = gate.url.replace("http://", "http://gate:hunter2-gate-password@");
    let from_context = json!({"headers": {"X-Caller": "tenant"}, "on_missing": "passthrough"});
    let of_users = json!({"header": "X-User-Token", "users": {"ada": "hunter2-of-ada"}, "on_missing": "passthrough"});
    let tokens = |end: &str, more: Value| {
        let mut oauth = json!({
            "token_url": format!("{}/{end}", hostile.tokens),
            "client_id": "id",
            "client_secret": "hunter2-client-secret",
            "extra_token_params": {"assertion": "hunter2-assertion"},
        });
        oauth.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"task_toolsets": [], "user_auth": of_users, "oauth": oauth})
    };
    let refresh = json!({"grant_type": "refresh_token", "refresh_token": "hunter2-refresh-token"});
    site()
        .server_with("hostile", &url, false, json!({"headers": headers, "headers_from_context": from_context}))
        .server_with("granted", &hostile.url, false, tokens("granted", refresh.clone()))
        .server_with("client", &hostile.url, false, tokens("granted", json!({"grant_type": "client_credentials"})))
        .server_with("refused", &hostile.url, false, tokens("refused", refresh))
        .server_with("child", "", false, child)
        .interceptor(json!({"name": "gate", "url": gate_url}))
        .set(
            "webhooks",
            json!([{"url": gate_url + "?key=hunter2-hook-parameter", "secret": ["hunter2-hook", "hunter2-older-hook"]}]),
        )
}

async fn key(site: &Site, scopes: &str) -> String {
    let mut command = site.command(&["keys", "create", "--user", "ada", "--scopes", scopes]);
    let output = command.envs(ENVIRONMENT).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Everything that a caller may ask, with the credential in the right and in wrong places.
async fn session(api: &Api, key: &str, found: &mut Found) {
    let mut ids = Vec::new();
    for mode in MODES {
        let body = json!({
            "server": "hostile", "task": "report", "arguments": {"mode": mode},
            "config": {"context": {"secrets": {"tenant": "hunter2-context"}}},
        });
        let answer = api.plain(Method::POST, "/api/threads/default/mcp-tasks").json(&body).send().await.unwrap();
        let text = answer.text().await.unwrap();
        let task: Value = serde_json::from_str(&text).unwrap();
        found.add(&format!("the answer to a submit ({mode})"), text);
        if mode != "refused" {
            ids.push((mode, id_of(&task)));
        }
    }
    ids.push(("child", id_of(&api.submit("child", &json!({"polls": 0}), None).await.unwrap())));
    for (mode, id) in &ids {
        until(&format!("{mode} shows an error or ends"), || async {
            let task = api.task(id).await.unwrap();
            has_ended(&task) || task["last_poll_error"].is_string()
        })
        .await;
    }
    // Cancels whose answers are as hostile.
    for (_, id) in &ids[..2] {
        api.cancel(id).await.unwrap();
        until("its cancel fails", || async { api.task(id).await.unwrap()["last_cancel_error"].is_string() }).await;
    }
    for (mode, id) in &ids {
        for path in [format!("/api/tasks/{id}"), format!("/api/threads/default/mcp-tasks/{id}")] {
            found.add(&format!("{path} ({mode})"), text(api, &path).await);
        }
    }
    let shown = [
        "/api/tasks",
        "/api/events",
        "/api/workers",
        "/api/stats",
        "/api/features",
        "/api/mcp/tools",
        "/api/mcp/config",
        "/api/mcp/servers",
        "/api/keys",
        "/metrics",
        "/readyz?verbose",
        "/api/threads/default/mcp-tasks",
    ];
    for path in shown {
        found.add(path, text(api, path).await);
    }
    let events = api.plain(Method::GET, "/api/threads/default/mcp-tasks/events").send().await.unwrap();
    let mut events = events.bytes_stream();
    let mut streamed = String::new();
    while let Ok(Some(Ok(chunk))) = tokio::time::timeout(Duration::from_secs(2), events.next()).await {
        streamed.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(streamed.contains("event: failed"), "{streamed}");
    found.add("the event stream", streamed);
    for (name, arguments) in [
        ("hostile_echo", json!({})),
        ("hostile_submit_report", json!({"mode": "refused"})),
        ("list_background_tasks", json!({})),
        ("get_background_task", json!({"task_id": ids[0].1})),
        ("child_echo", json!({})),
        ("granted_echo", json!({})),
        ("client_echo", json!({})),
        ("refused_echo", json!({})),
    ] {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}});
        let request = api.plain(Method::POST, "/mcp").header("accept", "application/json, text/event-stream");
        found.add(&format!("the answer of {name}"), request.json(&call).send().await.unwrap().text().await.unwrap());
    }
    // Wrong requests are not repeated to whoever sent them, nor logged.
    let put = json!({"server_name": "more", "server": {"type": "http", "url": "http://h/mcp", "headers": {"X-Key": "hunter2\u{e9}"}}});
    let launched = json!({"server_name": "more", "server": {"command": "npx", "args": ["--call", "hunter2-in-args"]}});
    for (method, path, body) in [
        (Method::PUT, "/api/mcp/config/server", put.to_string()),
        (Method::PUT, "/api/mcp/config/server", launched.to_string()),
        (Method::PUT, "/api/mcp/config", format!("{{\"mcp_servers\": \"hunter2\", {key}")),
        (
            Method::POST,
            "/api/keys",
            json!({"user_id": "ada", "scopes": ["tasks"], "expires_in_seconds": "hunter2"}).to_string(),
        ),
        (
            Method::POST,
            "/api/threads/default/mcp-tasks",
            r#"{"server": "s", "task": "t", "metadata": {"auth_token": "hunter2"}}"#.into(),
        ),
        (Method::GET, &*format!("/api/tasks?limit={key}&token={key}"), String::new()),
        (Method::POST, &*format!("/mcp?token={key}"), format!("{{\"jsonrpc\": \"{key}")),
    ] {
        let request = api.plain(method.clone(), path).header("content-type", "application/json").body(body);
        let answer = request.send().await.unwrap();
        assert!(answer.status().is_client_error(), "{method} {path}: {}", answer.status());
        found.add(&format!("the refusal of {method} {}", path.replace(key, "KEY")), answer.text().await.unwrap());
    }
    // An id is told to whoever asked for it, and to nobody else.
    assert_eq!(api.plain(Method::GET, &format!("/api/tasks/{key}")).send().await.unwrap().status(), 404);
    for wrong in [format!("Basic {key}"), format!("Bearer {key}0"), "Bearer hunter2-token".into()] {
        let open = Api::new(&api.url);
        let answer = open.plain(Method::GET, "/api/tasks").header("authorization", wrong).send().await.unwrap();
        assert_eq!(answer.status(), 401);
        found.add("a refused credential", format!("{:?} {}", answer.headers().clone(), answer.text().await.unwrap()));
    }
}

async fn text(api: &Api, path: &str) -> String {
    api.plain(Method::GET, path).send().await.unwrap().text().await.unwrap()
}

/// What commands print, that look at the same configuration.
async fn commands(site: &Site, found: &mut Found) {
    for arguments in [
        &["config", "show"][..],
        &["check-config", "--connect"],
        &["keys", "list"],
        &["keys", "list", "--output", "json"],
        &["tasks", "list", "--output", "jsonl"],
        &["events", "list", "--output", "jsonl"],
        &["workers", "list"],
    ] {
        let output = site.command(arguments).envs(ENVIRONMENT).env("MCP_TASKD_LOG", LOG).output().await.unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        found.add(&format!("{arguments:?}"), format!("{}{}", text(&output.stdout), text(&output.stderr)));
    }
}

/// Every file below a folder but the configuration itself, byte for byte: databases with their logs, state, the daemons' logs.
fn files(folder: &Path, found: &mut Found) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            files(&path, found);
        } else if !name.starts_with("config.yaml") && !name.starts_with("extensions_config.json") {
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()).into_owned();
            found.add(&path.display().to_string(), text);
        }
    }
}

/// Every row of every table.
async fn rows(url: &str, found: &mut Found) {
    let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
    let tables = "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public'";
    let tables = sqlx::query(tables).fetch_all(&mut connection).await.unwrap();
    assert!(tables.len() > 3);
    for table in tables {
        let table: String = table.get(0);
        let all = sqlx::AssertSqlSafe(format!("SELECT row_to_json(t)::text FROM {table} t"));
        for row in sqlx::query(all).fetch_all(&mut connection).await.unwrap() {
            found.add(&format!("table {table}"), row.get::<String, _>(0));
        }
    }
}

async fn runs(site: &Site, key: &str, url: Option<&str>, hostile: &Hostile, gate: &Gate) {
    let mut daemon: Daemon = site.daemon("taskd").env("MCP_TASKD_LOG", LOG);
    for (name, value) in ENVIRONMENT {
        daemon = daemon.env(name, value);
    }
    daemon.start().await;
    let mut found = Found::default();
    session(&daemon.api.keyed(key), key, &mut found).await;
    commands(site, &mut found).await;
    files(site.path(), &mut found);
    if let Some(url) = url {
        rows(url, &mut found).await;
    }
    daemon.stop().await;
    found.add("the log", daemon.log());
    files(site.path(), &mut found);
    // The secrets were in use, and the log is as detailed as was asked for.
    let heard = hostile.heard();
    let sent = ["static-header", "env-header", "url-key", "from-the-gate", "context", "of-ada", "client-secret"];
    let tokens = ["assertion", "refresh-token", "access-token", "rotated-token"];
    for sent in sent.into_iter().chain(tokens).map(|what| format!("{MARK}-{what}")) {
        assert!(heard.contains(&sent), "{sent} was not sent");
    }
    assert!(!gate.asked().is_empty() && daemon.log().contains("\"DEBUG\""));
    found.has_no(&[MARK, key, &key[20..80]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_hostile_session_with_an_api_key_no_secret_is_anywhere_on_sqlite_148() {
    let hostile = Hostile::start().await;
    let gate = Gate::start(Answer::Json(json!({"headers": {"X-Tenant": "hunter2-from-the-gate"}}))).await;
    let site = secretive(&hostile, &gate).set("auth.mode", "api_key");
    let key = key(&site, "tasks,operator,admin").await;
    runs(&site, &key, None, &hostile, &gate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_hostile_session_with_a_token_no_secret_is_anywhere_on_postgres_148() {
    let (hostile, database) = (Hostile::start().await, postgres::database().await);
    let gate = Gate::start(Answer::Json(json!({"headers": {"X-Tenant": "hunter2-from-the-gate"}}))).await;
    // Nobody asks for it on this machine; it is configured all the same.
    let url = match database.url().split_once('@') {
        Some((user, rest)) => {
            let user = user.trim_start_matches("postgresql://").trim_start_matches("postgres://");
            format!("postgres://{}:hunter2-database@{rest}", user.split(':').next().unwrap_or_default())
        }
        None => database.url().replace("://", "://postgres:hunter2-database@"),
    };
    let issuer = Issuer::start().await;
    let site = secretive(&hostile, &gate).postgres(&url).set("auth", issuer.auth());
    site.migrate().await;
    let token = issuer.token("ada", "tasks operator admin");
    runs(&site, &token, Some(database.url()), &hostile, &gate).await;
}
