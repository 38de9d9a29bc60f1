//! Word from servers that their tools have changed.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mcp_taskd_core::upstream::SharedUpstream;
use mcp_taskd_tests::fake::{Era, FakeOptions, FakeServer};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use super::setup::{call, call_as, over_http, scope, until};
use super::stdio::{Server, definition};

const PATIENT: Option<Duration> = Some(Duration::from_secs(20));
const LIST_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

async fn server(era: Era) -> (FakeServer, SharedUpstream) {
    let fake = FakeServer::start(FakeOptions { era, ..FakeOptions::default() }).await;
    let upstream = over_http(&fake.url, &json!({}));
    (fake, upstream)
}

async fn changed(changes: &mut watch::Receiver<u64>) {
    timeout(Duration::from_secs(20), changes.changed()).await.expect("in time").expect("it can still change");
}

#[tokio::test]
async fn changed_tools_are_heard_of_in_both_eras_and_across_broken_streams() {
    for era in [Era::Legacy, Era::Modern] {
        let (fake, upstream) = server(era).await;
        let mut changes = upstream.changes();
        call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
        until("it listens", || fake.state.listening() == 1).await;
        fake.state.say(LIST_CHANGED);
        changed(&mut changes).await;
        fake.state.say(r#"{"jsonrpc":"2.0","method":"notifications/message"}"#);
        fake.state.say(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
        until("the ping is answered", || fake.state.core.counters.pongs.load(Relaxed) == 1).await;
        assert!(!changes.has_changed().unwrap(), "{era:?}");
        // What was said while nobody listened was missed.
        fake.state.drop_listeners();
        changed(&mut changes).await;
        until("it listens again", || fake.state.listening() == 1).await;
        upstream.close().await;
        until("the stream is closed with the session", || fake.state.listening() == 0).await;
    }
}

#[tokio::test]
async fn no_stream_is_held_open_unless_somebody_wants_to_know() {
    let (fake, upstream) = server(Era::Legacy).await;
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    assert_eq!(fake.state.listening(), 0);
    let first = upstream.changes();
    let _second = upstream.changes();
    drop(first);
    until("it listens", || fake.state.listening() == 1).await;
}

#[tokio::test]
async fn a_new_session_is_listened_to_as_well() {
    let (fake, upstream) = server(Era::Legacy).await;
    let mut changes = upstream.changes();
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    until("it listens", || fake.state.listening() == 1).await;
    fake.state.expire_sessions();
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    let listens = &fake.state.core.counters.listens;
    until("only the new session listens", || listens.load(Relaxed) == 2 && fake.state.listening() == 1).await;
    changes.mark_unchanged();
    fake.state.say(LIST_CHANGED);
    changed(&mut changes).await;
}

#[tokio::test]
async fn a_server_without_such_a_stream_is_asked_once() {
    let (fake, upstream) = server(Era::Stateless).await;
    let _changes = upstream.changes();
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    assert_eq!(fake.state.listening(), 0);
}

#[tokio::test]
async fn a_notice_beside_an_answer_counts_too() {
    let options = FakeOptions { era: Era::Stateless, sse: true, ..FakeOptions::default() };
    let fake = FakeServer::start(options).await;
    let upstream = over_http(&fake.url, &json!({}));
    let mut changes = upstream.changes();
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    assert!(!changes.has_changed().unwrap());
    fake.state.faults.change.store(true, Relaxed);
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    assert_eq!(*changes.borrow_and_update(), 1);
}

#[tokio::test]
async fn arguments_that_a_schema_wants_in_headers_are_sent_there_too() {
    let tools = json!([{"name": "echo", "inputSchema": {"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
    }}}]);
    let options = FakeOptions { era: Era::Modern, tools: Some(tools), ..FakeOptions::default() };
    let fake = FakeServer::start(options).await;
    let upstream = over_http(&fake.url, &json!({}));
    for round in 0..3 {
        let arguments = json!({"region": "west", "n": round});
        let answer = call(&upstream, "echo", &arguments, PATIENT).await.unwrap();
        assert_eq!(answer["structuredContent"], arguments);
    }
    let counters = &fake.state.core.counters;
    assert_eq!((counters.mismatches.load(Relaxed), counters.lists.load(Relaxed)), (1, 1), "learned once, kept");
    assert_eq!(counters.discovers.load(Relaxed), 1, "the protocol was never in doubt");
    upstream.list_tools().await.unwrap();
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    assert_eq!(counters.mismatches.load(Relaxed), 1, "an argument that is not there has no header");
}

#[tokio::test]
async fn a_modern_child_is_asked_to_tell_and_asked_again_when_it_stops() {
    let server = Server::new(&definition(&["--era", "modern"]), 8);
    let upstream = server.upstream();
    let mut changes = upstream.changes();
    // Each process is asked, whoever it works for.
    for user in ["ada", "bob"] {
        call_as(upstream, &scope(user), "change", &json!({}), PATIENT).await.unwrap();
        changed(&mut changes).await;
    }
    for how in ["graceful", "abrupt"] {
        call(upstream, "end", &json!({"how": how}), PATIENT).await.unwrap();
        // What was said while nobody listened was missed.
        changed(&mut changes).await;
        call(upstream, "change", &json!({}), PATIENT).await.unwrap();
        changed(&mut changes).await;
    }
    assert!(!changes.has_changed().unwrap());
    server.upstreams.close().await;
}
