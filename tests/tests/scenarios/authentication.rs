//! Daemons that know their callers by API keys and by tokens.

use std::time::Duration;

use futures_util::StreamExt as _;
use mcp_taskd_tests::daemon::{ApiError, Site, id_of};
use mcp_taskd_tests::hostile::Hostile;
use mcp_taskd_tests::issuer::{AUDIENCE, Issuer};
use mcp_taskd_tests::wait::until;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{fake, site};

/// Makes a key on the store, as whoever owns it does.
async fn create(site: &Site, user: &str, scopes: &str) -> String {
    let key = site.run(&["keys", "create", "--user", user, "--scopes", scopes]).await.success();
    key.trim().to_owned()
}

fn refused(answer: Result<Value, ApiError>) -> (u16, String) {
    match answer {
        Err(ApiError::Refused(status, problem)) => (status, problem["code"].as_str().unwrap_or_default().to_owned()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_made_on_the_store_used_by_callers_and_taken_back_on_every_replica() {
    let fake = fake().await;
    let site = site().set("auth.mode", "api_key").server("reports", &fake.url);
    // Before there ever was a daemon.
    let (ada, eve, root) = (
        create(&site, "ada", "tasks").await,
        create(&site, "eve", "tasks,operator").await,
        create(&site, "root", "admin").await,
    );
    let (mut first, mut second) = (site.daemon_in("first", "state"), site.daemon_in("second", "state"));
    tokio::join!(first.start(), second.start());
    assert_eq!(
        refused(first.api.request(Method::GET, "/api/tasks", None, None).await),
        (401, "unauthenticated".into())
    );
    let task = first.api.keyed(&ada).submit("reports", &json!({"end": "never"}), None).await.unwrap();
    let path = format!("/api/threads/default/mcp-tasks/{}", id_of(&task));
    let get = async |api: &mcp_taskd_tests::daemon::Api, key: &str| {
        api.keyed(key).request(Method::GET, &path, None, None).await
    };
    assert!(get(&second.api, &ada).await.is_ok());
    assert_eq!(refused(get(&second.api, &eve).await), (404, "not_found".into()));
    assert_eq!(refused(get(&second.api, &root).await), (403, "missing_scope".into()));
    assert_eq!(second.api.keyed(&eve).tasks().await.unwrap()[0]["user_id"], "ada");

    // A stream that is open when its key is taken back ends, too.
    let stream = second.api.keyed(&ada).plain(Method::GET, "/api/threads/default/mcp-tasks/events");
    let mut stream = stream.timeout(Duration::from_secs(60)).send().await.unwrap().bytes_stream();
    assert!(stream.next().await.unwrap().is_ok());
    let listed = site.run(&["keys", "list", "--output", "json"]).await.success();
    assert!(!listed.contains(&ada) && !listed.contains("mtk_"), "{listed}");
    let keys: Vec<Value> = serde_json::from_str(&listed).unwrap();
    let key = keys.iter().find(|key| key["user_id"] == "ada").unwrap();
    assert_eq!((&key["status"], &key["scopes"]), (&json!("active"), &json!(["tasks"])));
    until("the use is noted", || async {
        let listed = site.run(&["keys", "list", "--output", "json"]).await.success();
        let keys: Vec<Value> = serde_json::from_str(&listed).unwrap();
        keys.iter().any(|key| key["user_id"] == "ada" && key["last_used_at"].is_string())
    })
    .await;

    // Over the API of one daemon, by an administrator.
    let mut revoke = site.command(&["keys", "revoke", &ada, "--url", &first.api.url]);
    revoke.env("MCP_TASKD_API_KEY", &root);
    let revoked = Instant::now();
    assert!(revoke.output().await.unwrap().status.success());
    for daemon in [&first, &second] {
        until("it is refused", || async { matches!(get(&daemon.api, &ada).await, Err(ApiError::Refused(401, _))) })
            .await;
    }
    while stream.next().await.is_some_and(|chunk| chunk.is_ok()) {}
    // What is promised is ten seconds; the rest is for a machine that has other things to do.
    assert!(revoked.elapsed() < Duration::from_secs(25), "{:?}", revoked.elapsed());
    assert!(second.api.count("auth_failures_total", &[("scheme", "api_key"), ("reason", "revoked")]).await > 0);

    let mut made = site.command(&["keys", "create", "--user", "bob", "--scopes", "tasks", "--url", &first.api.url]);
    let output = made.env("MCP_TASKD_API_KEY", &root).output().await.unwrap();
    let bob = String::from_utf8(output.stdout).unwrap();
    assert!(first.api.keyed(bob.trim()).newest().await.is_err(), "no operator");
    assert!(second.api.keyed(bob.trim()).submit("reports", &json!({}), None).await.is_ok());
    assert!(!first.log().contains("mtk_") && !second.log().contains("mtk_"));
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_client_is_told_how_to_come_in_rfc_9728() {
    let site = site().set("auth.mode", "api_key").set("auth.resource", "https://tasks.example/mcp");
    let key = create(&site, "ada", "admin").await;
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    for method in [Method::POST, Method::GET, Method::DELETE] {
        for (api, status, error) in
            [(daemon.api.clone(), 401, None), (daemon.api.keyed(&key), 403, Some("insufficient_scope"))]
        {
            let answer = api.plain(method.clone(), "/mcp").json(&ping).send().await.unwrap();
            assert_eq!(answer.status(), status, "{method}");
            let challenge = answer.headers()["www-authenticate"].to_str().unwrap().to_owned();
            assert!(challenge.starts_with("Bearer ") && challenge.contains("scope=\"tasks\""), "{challenge}");
            assert!(error.is_none_or(|error| challenge.contains(error)), "{challenge}");
            let place = "resource_metadata=\"https://tasks.example/.well-known/oauth-protected-resource/mcp\"";
            assert!(challenge.contains(place), "{challenge}");
        }
    }
    for path in ["/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"] {
        let document = daemon.api.request(Method::GET, path, None, None).await.unwrap();
        assert_eq!(document["resource"], "https://tasks.example/mcp");
    }
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_callers_come_in_with_is_never_sent_on() {
    let server = Hostile::start().await;
    let site = site().set("auth.mode", "api_key").server("reports", &server.url);
    let key = create(&site, "ada", "tasks,operator").await;
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    let api = daemon.api.keyed(&key);
    let body = json!({"server": "reports", "task": "report", "arguments": {"mode": "failed"}});
    let headers = [("x-forwarded-for", "10.9.9.9"), ("cookie", "session=sesame-1"), ("x-api-key", "sesame-2")];
    let with = |mut request: reqwest::RequestBuilder| {
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request
    };
    let submit = api.plain(Method::POST, "/api/threads/default/mcp-tasks").json(&body);
    assert_eq!(with(submit).send().await.unwrap().status(), 201);
    let call = |name: &str| json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": {"mode": "failed"}}});
    for name in ["reports_echo", "reports_submit_report"] {
        let request = api.plain(Method::POST, "/mcp").header("accept", "application/json, text/event-stream");
        let answer = with(request).json(&call(name)).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{name}");
    }
    until("both tasks are polled", || async {
        api.tasks().await.unwrap().iter().filter(|task| task["status"] == "failed").count() == 2
    })
    .await;
    let heard = server.heard();
    assert!(heard.contains("get_report_status") && heard.contains("\"echo\""));
    for inbound in [&*key, "sesame-1", "sesame-2", "10.9.9.9"] {
        assert!(!heard.contains(inbound), "{inbound} was sent on");
    }
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_would_let_nobody_in_or_anybody_is_78_and_names_the_key() {
    for (site, key) in [
        (site().set("auth.mode", "jwt"), "auth.jwt.issuer"),
        (
            site().set(
                "auth",
                json!({"mode": "jwt", "jwt": {
                "issuer": "https://id.example", "audience": "a", "jwks_url": "http://id.example/jwks"}}),
            ),
            "auth.jwt.jwks_url",
        ),
        (site().set("auth.mode", "api_key").set("database.backend", "memory"), "auth.mode"),
        (site().set("server.listen", "0.0.0.0:0"), "auth.mode"),
        (site().set("auth.jwt", json!({"isuer": "x"})), "issuer"),
    ] {
        let output = site.run(&["check-config"]).await;
        assert_eq!(output.code, Some(78), "{}", output.stderr);
        assert!(output.stderr.contains(key), "{key}: {}", output.stderr);
    }
    for wrong in [&["--scopes", "root"][..], &["--scopes", "tasks", "--expires", "soon"], &[]] {
        let arguments = [&["keys", "create", "--user", "ada"], wrong].concat();
        assert_eq!(site().run(&arguments).await.code, Some(64), "{wrong:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_taken_once_there_are_keys_and_kept_on_being_while_the_issuer_is_away() {
    let (fake, issuer) = (fake().await, Issuer::start().await);
    issuer.set_away(true);
    let site = site().set("auth", issuer.auth()).server("reports", &fake.url);
    let mut daemon = site.daemon("taskd");
    daemon.spawn();
    let ada = issuer.token("ada", "openid tasks");
    until("it is started, and unready", || async {
        let report = daemon.api.plain(Method::GET, "/readyz?verbose").send().await;
        let Ok(report) = report else { return false };
        report.status() == 503 && report.text().await.unwrap().contains("auth.jwt.jwks_url")
    })
    .await;
    assert_eq!(refused(daemon.api.keyed(&ada).request(Method::GET, "/api/features", None, None).await).0, 503);
    issuer.set_away(false);
    until("it is ready", || daemon.api.is_ready()).await;
    let task = daemon.api.keyed(&ada).submit("reports", &json!({"polls": 0}), None).await.unwrap();
    let path = format!("/api/threads/default/mcp-tasks/{}", id_of(&task));
    let get = async |token: &str| daemon.api.keyed(token).request(Method::GET, &path, None, None).await;
    assert!(get(&ada).await.is_ok());
    assert_eq!(refused(get(&issuer.token("eve", "tasks")).await).0, 404);
    assert_eq!(refused(get(&issuer.token("ada", "openid")).await), (403, "missing_scope".into()));
    assert_eq!(refused(get(&format!("{ada}x")).await), (401, "unauthenticated".into()));
    issuer.set_away(true);
    assert!(get(&ada).await.is_ok() && daemon.api.is_ready().await);
    let document = daemon.api.request(Method::GET, "/.well-known/oauth-protected-resource", None, None).await.unwrap();
    assert_eq!(document["resource"], AUDIENCE);
    assert_eq!(document["authorization_servers"], json!(["https://id.example"]));
    assert!(!daemon.log().contains(&ada));
    daemon.stop().await;
}
