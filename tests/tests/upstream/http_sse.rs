//! The legacy HTTP+SSE transport: one stream, answers matched by id (BEHAVIOURS 108, 109).

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use mcp_taskd_core::upstream::{BODY_MAX_BYTES, CallErrorKind, SharedUpstream};
use mcp_taskd_tests::daemon::{Site, has_ended};
use mcp_taskd_tests::fake::{Endpoint, Era, FakeOptions, FakeServer, FakeSse};
use mcp_taskd_tests::wait;
use serde_json::{Value, json};

use super::setup::{call, over_http, until};

const PATIENT: Option<Duration> = Some(Duration::from_secs(20));
const SHORT: Option<Duration> = Some(Duration::from_millis(200));

fn upstream(url: &str, more: &Value) -> SharedUpstream {
    let mut definition = json!({"type": "sse"});
    definition.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    over_http(url, &definition)
}

async fn connected() -> (FakeSse, SharedUpstream) {
    let fake = FakeSse::start(FakeOptions::default()).await;
    let upstream = upstream(&fake.url, &json!({}));
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    (fake, upstream)
}

#[tokio::test]
async fn tasks_are_submitted_polled_and_cancelled_on_one_stream_107() {
    let (fake, upstream) = connected().await;
    let submitted = call(&upstream, "submit_report", &json!({"script": {"polls": 1}}), PATIENT).await.unwrap();
    let id = &submitted["structuredContent"]["task_id"];
    for status in ["running", "completed"] {
        let polled = call(&upstream, "get_report_status", &json!({"task_id": id}), PATIENT).await.unwrap();
        assert_eq!(polled["structuredContent"]["status"], status);
    }
    let truth = fake.state.core.find(id.as_str().unwrap()).unwrap();
    assert_eq!((truth.polls, truth.idempotency_key.as_deref()), (2, Some("key-1")));
    let tools = upstream.list_tools().await.unwrap();
    assert_eq!(tools.len(), 5, "all pages");
    assert!(tools[4].get().starts_with(r#"{"zeta":1,"name":"echo""#), "{}", tools[4].get());
    let error = call(&upstream, "no_such_tool", &json!({}), PATIENT).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Rpc, false));
    assert_eq!((fake.state.streams.load(Relaxed), fake.state.core.counters.initializes.load(Relaxed)), (1, 1));
    upstream.close().await;
    until("the stream is closed", || fake.state.open_streams() == 0).await;
}

#[tokio::test]
async fn concurrent_calls_share_a_stream_and_each_gets_its_own_answer() {
    let fake = FakeSse::start(FakeOptions::default()).await;
    fake.state.faults.drip.store(true, Relaxed);
    let upstream = upstream(&fake.url, &json!({}));
    let arguments: Vec<_> = (0..100).map(|n| json!({"n": n})).collect();
    let calls = join_all(arguments.iter().map(|arguments| call(&upstream, "echo", arguments, PATIENT))).await;
    for (arguments, answer) in arguments.iter().zip(calls) {
        assert_eq!(&answer.unwrap()["structuredContent"], arguments);
    }
    assert_eq!(fake.state.streams.load(Relaxed), 1, "concurrent first calls share one session");
}

#[tokio::test]
async fn an_endpoint_elsewhere_gets_no_credentials() {
    let other = FakeSse::start(FakeOptions::default()).await;
    let fake = FakeSse::start(FakeOptions::default()).await;
    let elsewhere = other.url.replace("/sse", "/messages?session=session-0");
    *fake.state.faults.endpoint.lock().unwrap() = Endpoint::Text(elsewhere);
    let upstream = upstream(&fake.url, &json!({"headers": {"authorization": "Bearer hunter2"}}));
    let error = call(&upstream, "echo", &json!({}), PATIENT).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Connect, false));
    assert!(error.message.contains("another origin"), "{}", error.message);
    assert!(other.state.credentials.lock().unwrap().is_empty());
    until("the stream is closed", || fake.state.open_streams() == 0).await;
}

#[tokio::test]
async fn a_stream_without_an_endpoint_ends_with_the_start_up_limit_108() {
    let fake = FakeSse::start(FakeOptions::default()).await;
    *fake.state.faults.endpoint.lock().unwrap() = Endpoint::Missing;
    let upstream = upstream(&fake.url, &json!({"session_init_timeout": 0.5}));
    let started = Instant::now();
    let arguments = json!({});
    let calls = join_all((0..20).map(|_| call(&upstream, "echo", &arguments, PATIENT))).await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    for error in calls.into_iter().map(Result::unwrap_err) {
        assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Connect, false));
        assert!(error.message.contains("session_init_timeout"), "{}", error.message);
    }
    assert_eq!(fake.state.streams.load(Relaxed), 1, "one attempt for all");
    until("the stream is closed", || fake.state.open_streams() == 0).await;
}

#[tokio::test]
async fn the_start_up_limit_does_not_bound_calls_108() {
    let fake = FakeSse::start(FakeOptions::default()).await;
    let upstream = upstream(&fake.url, &json!({"session_init_timeout": 3}));
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    fake.state.faults.mute.store(true, Relaxed);
    let limit = Duration::from_millis(3_500);
    let started = Instant::now();
    let error = call(&upstream, "echo", &json!({}), Some(limit)).await.unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Timeout);
    assert!(started.elapsed() >= limit, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_stream_that_breaks_in_a_call_fails_that_call_and_the_next_one_reconnects() {
    let (fake, upstream) = connected().await;
    fake.state.faults.drop_on_call.store(true, Relaxed);
    let error = call(&upstream, "submit_report", &json!({}), PATIENT).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Transport, true), "{}", error.message);
    assert_eq!(fake.state.core.truths().len(), 1, "it ran, and was not sent again");
    fake.state.faults.drop_on_call.store(false, Relaxed);
    assert!(call(&upstream, "echo", &json!({}), PATIENT).await.is_ok());
    assert_eq!(fake.state.streams.load(Relaxed), 2);
}

#[tokio::test]
async fn all_calls_under_way_hear_of_a_broken_stream_at_once() {
    let (fake, upstream) = connected().await;
    fake.state.faults.mute.store(true, Relaxed);
    let arguments = json!({});
    let calls = join_all((0..20).map(|_| call(&upstream, "echo", &arguments, Some(Duration::from_secs(60)))));
    let breaking = async {
        until("all calls are under way", || fake.state.core.counters.calls.load(Relaxed) == 21).await;
        fake.state.faults.mute.store(false, Relaxed);
        fake.state.drop_streams();
    };
    let (calls, ()) = tokio::join!(calls, breaking);
    assert!(calls.into_iter().all(|call| call.unwrap_err().kind == CallErrorKind::Transport));
    let calls = join_all((0..20).map(|_| call(&upstream, "echo", &arguments, PATIENT))).await;
    assert!(calls.iter().all(Result::is_ok));
    assert_eq!(fake.state.streams.load(Relaxed), 2, "one new session for all");
}

#[tokio::test]
async fn no_poll_is_lost_to_a_stream_that_ended_between_polls() {
    let (fake, upstream) = connected().await;
    for round in 1..=3 {
        // Whether the client has seen it or not.
        fake.state.drop_streams();
        call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
        assert_eq!(fake.state.streams.load(Relaxed), 1 + round);
    }
}

#[tokio::test]
async fn a_session_that_the_server_forgot_is_replaced_and_the_call_sent_again() {
    let (fake, upstream) = connected().await;
    fake.state.forget_sessions();
    let arguments = json!({});
    let calls = join_all((0..10).map(|_| call(&upstream, "echo", &arguments, PATIENT))).await;
    assert!(calls.iter().all(Result::is_ok), "{calls:?}");
    assert_eq!(fake.state.core.counters.calls.load(Relaxed), 11, "each call ran once");
    assert_eq!(fake.state.streams.load(Relaxed), 2);
    until("the old stream is closed", || fake.state.open_streams() == 1).await;
}

#[tokio::test]
async fn a_silent_stream_is_not_waited_on_twice() {
    let (fake, upstream) = connected().await;
    fake.state.faults.mute.store(true, Relaxed);
    let error = call(&upstream, "echo", &json!({}), SHORT).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Timeout, true));
    fake.state.faults.mute.store(false, Relaxed);
    assert!(call(&upstream, "echo", &json!({}), PATIENT).await.is_ok());
    assert_eq!(fake.state.streams.load(Relaxed), 2);
    until("the old stream is closed", || fake.state.open_streams() == 1).await;
}

#[tokio::test]
async fn refused_messages_say_what_a_caller_can_do_135() {
    let (fake, upstream) = connected().await;
    for (status, kind, maybe_executed) in [
        (429, CallErrorKind::Transport, false),
        (503, CallErrorKind::Transport, true),
        (401, CallErrorKind::Auth, false),
        (403, CallErrorKind::Auth, false),
        (307, CallErrorKind::Transport, false),
    ] {
        fake.state.faults.post_status.store(status, Relaxed);
        fake.state.faults.retry_after.store(77, Relaxed);
        let error = call(&upstream, "echo", &json!({}), PATIENT).await.unwrap_err();
        assert_eq!((error.kind, error.maybe_executed), (kind, maybe_executed), "{status}");
        assert_eq!(error.retry_after, Some(Duration::from_secs(77)));
        assert!(error.message.contains(&status.to_string()), "{}", error.message);
    }
    assert_eq!(fake.state.core.counters.calls.load(Relaxed), 1, "none was executed");
    assert_eq!(fake.state.streams.load(Relaxed), 1, "the session is still good");
}

#[tokio::test]
async fn a_refused_stream_is_a_failure_to_connect() {
    let fake = FakeSse::start(FakeOptions::default()).await;
    let upstream = upstream(&fake.url, &json!({}));
    for (status, kind) in [
        (401, CallErrorKind::Auth),
        (403, CallErrorKind::Auth),
        (302, CallErrorKind::Connect),
        (503, CallErrorKind::Connect),
    ] {
        fake.state.faults.stream_status.store(status, Relaxed);
        fake.state.faults.retry_after.store(9, Relaxed);
        let error = call(&upstream, "echo", &json!({}), PATIENT).await.unwrap_err();
        assert_eq!((error.kind, error.maybe_executed), (kind, false), "{status}");
        assert_eq!(error.retry_after, Some(Duration::from_secs(9)));
    }
    // A server of the newer transport has no such stream.
    let newer = FakeServer::start(FakeOptions { era: Era::Stateless, ..FakeOptions::default() }).await;
    let error = call(&over_http(&newer.url, &json!({"type": "sse"})), "echo", &json!({}), PATIENT).await.unwrap_err();
    assert!(error.message.contains("405") && error.message.contains("type http"), "{}", error.message);
}

#[tokio::test]
async fn answers_that_come_twice_or_early_do_no_harm() {
    let (fake, upstream) = connected().await;
    fake.state.faults.twice.store(true, Relaxed);
    fake.state.faults.late_acknowledgement_ms.store(60_000, Relaxed);
    for n in 0..3 {
        let answer = call(&upstream, "echo", &json!({"n": n}), PATIENT).await.unwrap();
        assert_eq!(answer["structuredContent"], json!({"n": n}), "before its request was acknowledged");
    }
    assert_eq!(fake.state.streams.load(Relaxed), 1);
}

#[tokio::test]
async fn an_event_beyond_the_cap_ends_the_stream_while_it_comes_28() {
    let (fake, upstream) = connected().await;
    fake.state.faults.endless_event.store(true, Relaxed);
    let error = call(&upstream, "echo", &json!({}), PATIENT).await.unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Protocol);
    assert!(error.message.contains(&BODY_MAX_BYTES.to_string()), "{}", error.message);
    until("the stream is closed", || fake.state.open_streams() == 0).await;
    fake.state.faults.endless_event.store(false, Relaxed);
    assert!(call(&upstream, "echo", &json!({}), PATIENT).await.is_ok());
}

#[tokio::test]
async fn what_a_server_says_of_its_own_accord_is_answered_or_counted() {
    let (fake, upstream) = connected().await;
    let mut changes = upstream.changes();
    fake.state.say(r#"{"jsonrpc":"2.0","id":"p1","method":"ping"}"#);
    fake.state.say("no JSON at all");
    fake.state.say(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#);
    fake.state.say(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
    tokio::time::timeout(Duration::from_secs(20), changes.changed()).await.unwrap().unwrap();
    assert_eq!(*changes.borrow_and_update(), 1);
    until("an answer to the ping", || fake.state.core.counters.pongs.load(Relaxed) == 1).await;
}

#[tokio::test]
async fn static_headers_go_with_the_stream_and_every_message_and_never_come_back_148() {
    let fake = FakeSse::start(FakeOptions::default()).await;
    let upstream = upstream(&fake.url, &json!({"headers": {"authorization": "Bearer hunter2-token"}}));
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    until("four requests", || fake.state.credentials.lock().unwrap().len() == 4).await;
    assert!(fake.state.credentials.lock().unwrap().iter().all(|value| value == "Bearer hunter2-token"));
    assert_eq!(upstream.scrub("your hunter2-token is bad"), "your *** is bad");
}

#[tokio::test]
async fn a_refresh_waits_for_calls_under_way_97() {
    let (fake, upstream) = connected().await;
    fake.state.faults.mute.store(true, Relaxed);
    let hanging = {
        let upstream = upstream.clone();
        tokio::spawn(async move { call(&upstream, "echo", &json!({}), PATIENT).await })
    };
    until("the call is under way", || fake.state.core.counters.calls.load(Relaxed) == 2).await;
    upstream.refresh().await;
    fake.state.faults.mute.store(false, Relaxed);
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    assert_eq!((fake.state.streams.load(Relaxed), fake.state.open_streams()), (2, 2));
    // The id of the third request of the first session.
    fake.state.say(r#"{"jsonrpc":"2.0","id":3,"result":{"late":true}}"#);
    assert_eq!(hanging.await.unwrap().unwrap()["late"], true);
    until("the old stream is closed", || fake.state.open_streams() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_polls_to_the_end_through_broken_streams() {
    let fake = FakeSse::start(FakeOptions::default()).await;
    let site = Site::new(env!("CARGO_BIN_EXE_taskd-under-test"));
    let site = site.server_with("reports", &fake.url, false, json!({"type": "sse"}));
    let mut daemon = site.daemon("one");
    daemon.start().await;
    let ids = daemon.api.submit_many("reports", &json!({"polls": 3}), 10).await;
    for polls in 1..=2 {
        let polled = || fake.state.core.truths().iter().all(|truth| truth.polls >= polls);
        wait::until("all were polled", async || polled()).await;
        fake.state.drop_streams();
    }
    for id in &ids {
        wait::until("it ended", async || daemon.api.task(id).await.is_ok_and(|task| has_ended(&task))).await;
        assert_eq!(daemon.api.task(id).await.unwrap()["status"], "completed");
    }
    daemon.stop().await;
    until("the stream is closed", || fake.state.open_streams() == 0).await;
}
