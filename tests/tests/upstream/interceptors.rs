//! Interceptors before every call (BEHAVIOURS 106, 121, 127, 139).

use std::path::Path;
use std::time::Duration;

use mcp_taskd_core::upstream::{CallErrorKind, Options, SharedUpstream, build};
use mcp_taskd_tests::fake::{Era, FakeOptions, FakeServer};
use mcp_taskd_tests::gate::{Answer, Gate};
use serde_json::{Value, json};

use super::setup::{call, read};

const PATIENT: Option<Duration> = Some(Duration::from_secs(10));

/// The server `s` behind interceptors.
fn intercepted(server: &Value, interceptors: &Value, state_dir: &Path) -> SharedUpstream {
    let extensions = read(&json!({"mcpServers": {"s": server}, "mcpInterceptors": interceptors}));
    build(&extensions, &Options::new(state_dir)).unwrap().find("s").unwrap().clone()
}

fn over_http(fake: &FakeServer, interceptors: &Value) -> SharedUpstream {
    let server = json!({"type": "http", "url": fake.url, "headers": {"X-Api-Key": "static-key", "X-Kept": "kept"}});
    intercepted(&server, interceptors, Path::new("unused"))
}

async fn server(era: Era) -> FakeServer {
    FakeServer::start(FakeOptions { era, journal: true, ..FakeOptions::default() }).await
}

#[tokio::test]
async fn an_endpoint_adds_http_headers_over_the_servers_own_in_every_era_106_122_139() {
    for era in [Era::Legacy, Era::Modern, Era::Stateless] {
        let fake = server(era).await;
        let gate = Gate::start(Answer::Json(json!({"headers": {"x-api-key": "of-ada", "X-Tenant": "acme"}}))).await;
        let upstream = over_http(&fake, &json!(["old.module:build", {"name": "gate", "url": gate.url}]));
        call(&upstream, "echo", &json!({"secret": 1}), PATIENT).await.unwrap();
        let sent = &fake.state.journal()[0].headers;
        let value = |name: &str| sent[name].to_str().unwrap();
        assert_eq!((value("x-api-key"), value("x-tenant"), value("x-kept")), ("of-ada", "acme", "kept"), "{era:?}");
        assert_eq!(sent.get_all("x-api-key").iter().count(), 1, "one copy on the wire");
        let asked = json!({"server": "s", "tool": "echo", "user_id": "ada", "thread_id": "t"});
        assert_eq!(gate.asked(), [asked], "arguments only when asked for; discovery and hand-shakes not at all");
    }
}

#[tokio::test]
async fn a_child_process_gets_headers_in_the_calls_meta_106() {
    for era in ["legacy", "modern"] {
        let state = tempfile::tempdir().unwrap();
        let gate = Gate::start(Answer::Json(json!({"headers": {"Authorization": "Bearer of-ada"}}))).await;
        let server = json!({"command": env!("CARGO_BIN_EXE_fake-mcp"), "args": ["--stdio", "--era", era]});
        let interceptors = json!({"name": "gate", "url": gate.url, "arguments": true});
        let upstream = intercepted(&server, &interceptors, state.path());
        let place = call(&upstream, "where", &json!({"a": 1}), PATIENT).await.unwrap();
        assert_eq!(place["structuredContent"]["headers"], json!({"authorization": "Bearer of-ada"}), "{era}");
        assert_eq!(gate.asked()[0]["arguments"], json!({"a": 1}));
        upstream.close().await;
    }
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_asked_denies_or_is_skipped_139() {
    let fake = server(Era::Legacy).await;
    let big = json!({"headers": {"x": "v".repeat(70_000)}});
    let answers = [Answer::Status(500), Answer::Hang, Answer::Json(json!({"deny": true})), Answer::Json(big)];
    for answer in answers {
        let gate = Gate::start(answer.clone()).await;
        let entry =
            |on_error: &str| json!([{"name": "gate", "url": gate.url, "timeout_seconds": 0.3, "on_error": on_error}]);
        let error = call(&over_http(&fake, &entry("deny")), "echo", &json!({}), PATIENT).await.unwrap_err();
        assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Intercepted, false), "{answer:?}: {error}");
        assert!(error.message.contains("gate"), "{error}");
        call(&over_http(&fake, &entry("skip")), "echo", &json!({}), PATIENT).await.unwrap();
    }
    assert_eq!(fake.state.journal().len(), 4, "only the skipped ones went on");
}

#[tokio::test]
async fn what_an_endpoint_added_is_not_shown_when_the_server_repeats_it_148() {
    let fake = server(Era::Legacy).await;
    let gate = Gate::start(Answer::Json(json!({"headers": {"Authorization": "Bearer hunter2-of-ada"}}))).await;
    let upstream = over_http(&fake, &json!({"name": "gate", "url": gate.url}));
    fake.state.faults.status.store(500, std::sync::atomic::Ordering::Relaxed);
    fake.state.faults.echo_credentials.store(true, std::sync::atomic::Ordering::Relaxed);
    let error = call(&upstream, "echo", &json!({}), PATIENT).await.unwrap_err();
    assert!(error.message.contains("***") && !error.message.contains("hunter2"), "{error}");
    assert!(!upstream.scrub("you sent hunter2-of-ada").contains("hunter2"));
}
