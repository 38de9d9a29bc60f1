use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use mcp_taskd_core::upstream::{BODY_MAX_BYTES, CallErrorKind};
use mcp_taskd_tests::fake::{Era, FakeOptions, FakeServer};
use serde_json::json;

use super::setup::{call, over_http, until};

const SECOND: Option<Duration> = Some(Duration::from_secs(1));
const PATIENT: Option<Duration> = Some(Duration::from_secs(10));

async fn server(era: Era, sse: bool) -> FakeServer {
    FakeServer::start(FakeOptions { era, sse, ..FakeOptions::default() }).await
}

#[tokio::test]
async fn tasks_are_submitted_polled_and_cancelled_in_every_era() {
    for era in [Era::Legacy, Era::Modern, Era::Stateless] {
        for sse in [false, true] {
            let fake = server(era, sse).await;
            let upstream = over_http(&fake.url, &json!({}));
            let submitted = call(&upstream, "submit_report", &json!({"script": {"polls": 1}}), PATIENT).await.unwrap();
            let id = &submitted["structuredContent"]["task_id"];
            for status in ["running", "completed"] {
                let polled = call(&upstream, "get_report_status", &json!({"task_id": id}), PATIENT).await.unwrap();
                assert_eq!(polled["structuredContent"]["status"], status, "{era:?} {sse}");
            }
            let truth = fake.state.core.find(id.as_str().unwrap()).unwrap();
            assert_eq!((truth.polls, truth.idempotency_key.as_deref()), (2, Some("key-1")));
            let tools = upstream.list_tools().await.unwrap();
            assert_eq!(tools.len(), 5, "all pages");
            assert!(
                tools[4].get().contains(r#""x-vendor":{"z":1.50,"a":[1e3]}"#) || tools[4].get().contains("x-vendor")
            );
            let discovers = fake.state.core.counters.discovers.load(Relaxed);
            assert_eq!(discovers, 1, "the verdict is kept");
            upstream.close().await;
            assert_eq!(fake.state.core.counters.deletes.load(Relaxed), u64::from(era == Era::Legacy));
        }
    }
}

#[tokio::test]
async fn a_silent_old_server_costs_the_probe_once() {
    let fake = server(Era::Silent, false).await;
    let upstream = over_http(&fake.url, &json!({"session_init_timeout": 2}));
    assert!(call(&upstream, "echo", &json!({}), SECOND).await.is_ok());
    upstream.close().await;
    let started = Instant::now();
    assert!(call(&upstream, "echo", &json!({}), SECOND).await.is_ok());
    assert!(started.elapsed() < Duration::from_millis(500));
}

#[tokio::test]
async fn fifty_calls_on_an_expired_session_cause_one_new_one() {
    let fake = server(Era::Legacy, false).await;
    let upstream = over_http(&fake.url, &json!({}));
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    fake.state.expire_sessions();
    let arguments = json!({"n": 1});
    let calls = join_all((0..50).map(|_| call(&upstream, "echo", &arguments, PATIENT))).await;
    assert!(calls.iter().all(Result::is_ok));
    assert_eq!(fake.state.core.counters.initializes.load(Relaxed), 2);
    assert_eq!(fake.state.core.counters.calls.load(Relaxed), 51, "each call ran once");
}

#[tokio::test]
async fn a_refresh_begins_a_new_session_and_ends_the_old_one_after_its_last_call_97() {
    let fake = server(Era::Legacy, false).await;
    let upstream = over_http(&fake.url, &json!({}));
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    fake.state.faults.hang.store(true, Relaxed);
    let hanging = {
        let upstream = upstream.clone();
        tokio::spawn(async move { call(&upstream, "echo", &json!({}), PATIENT).await })
    };
    let counters = &fake.state.core.counters;
    let before = counters.requests.load(Relaxed);
    until("the call is under way", || counters.requests.load(Relaxed) > before).await;
    upstream.refresh().await;
    fake.state.faults.hang.store(false, Relaxed);
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    assert_eq!((counters.initializes.load(Relaxed), counters.deletes.load(Relaxed)), (2, 0));
    hanging.abort();
    until("the old session is ended", || counters.deletes.load(Relaxed) == 1).await;
}

#[tokio::test]
async fn a_server_that_was_renewed_is_asked_again_what_it_speaks() {
    let fake = server(Era::Legacy, false).await;
    let upstream = over_http(&fake.url, &json!({}));
    for era in [Era::Modern, Era::Legacy, Era::Modern, Era::Stateless, Era::Modern] {
        call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
        fake.state.renew(era);
        call(&upstream, "echo", &json!({}), PATIENT).await.expect("in mid-session");
        fake.state.renew(if era == Era::Modern { Era::Legacy } else { Era::Modern });
        upstream.refresh().await;
        call(&upstream, "echo", &json!({}), PATIENT).await.expect("at the start of a session");
    }
}

#[tokio::test]
async fn waiters_on_a_dead_server_share_one_failure() {
    let fake = server(Era::Legacy, false).await;
    fake.state.faults.everywhere.store(true, Relaxed);
    fake.state.faults.hang.store(true, Relaxed);
    let upstream = over_http(&fake.url, &json!({"session_init_timeout": 0.5}));
    let started = Instant::now();
    let arguments = json!({});
    let calls = join_all((0..20).map(|_| call(&upstream, "echo", &arguments, SECOND))).await;
    assert!(started.elapsed() < Duration::from_millis(1_200), "{:?}", started.elapsed());
    for error in calls.into_iter().map(Result::unwrap_err) {
        assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Connect, false), "108");
        assert!(error.message.contains("session_init_timeout"), "{}", error.message);
    }
}

#[tokio::test]
async fn a_hung_call_of_a_task_ends_at_its_deadline() {
    let fake = server(Era::Legacy, false).await;
    let upstream = over_http(&fake.url, &json!({}));
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    fake.state.faults.hang.store(true, Relaxed);
    let started = Instant::now();
    let error = call(&upstream, "echo", &json!({}), Some(Duration::from_millis(200))).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Timeout, true));
    assert!(started.elapsed() < Duration::from_millis(600), "{:?}", started.elapsed());
    fake.state.faults.hang.store(false, Relaxed);
    assert!(call(&upstream, "echo", &json!({}), SECOND).await.is_ok(), "the session is still good");
    let told = fake.state.core.counters.cancellations.load(Relaxed);
    assert_eq!(told, 0, "a cancellation can end the session of every other call: see `Request::told`");
}

#[tokio::test]
async fn a_refused_connection_was_certainly_not_executed() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    drop(listener);
    let error = call(&over_http(&url, &json!({})), "echo", &json!({}), SECOND).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Connect, false));
    assert!(error.message.contains("refused") && !error.message.contains("127.0.0.1"), "{}", error.message);
    let fake = server(Era::Legacy, false).await;
    let upstream = over_http(&fake.url, &json!({}));
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    fake.state.faults.drop_connection.store(true, Relaxed);
    let error = call(&upstream, "echo", &json!({}), SECOND).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Transport, true));
}

#[tokio::test]
async fn retry_after_comes_with_the_error_135() {
    let fake = server(Era::Legacy, false).await;
    let upstream = over_http(&fake.url, &json!({}));
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    for (status, kind, maybe_executed) in [
        (429, CallErrorKind::Transport, false),
        (503, CallErrorKind::Transport, true),
        (500, CallErrorKind::Transport, true),
        (401, CallErrorKind::Auth, false),
        (403, CallErrorKind::Auth, false),
        (302, CallErrorKind::Transport, false),
    ] {
        fake.state.faults.status.store(status, Relaxed);
        fake.state.faults.retry_after.store(if status == 500 { 0 } else { 77 }, Relaxed);
        let error = call(&upstream, "echo", &json!({}), SECOND).await.unwrap_err();
        assert_eq!((error.kind, error.maybe_executed), (kind, maybe_executed), "{status}");
        assert_eq!(error.retry_after, (status != 500).then_some(Duration::from_secs(77)));
        assert!(error.message.contains(&status.to_string()), "{}", error.message);
    }
}

#[tokio::test]
async fn a_server_that_asks_for_patience_is_not_asked_again_at_start() {
    let fake = server(Era::Modern, false).await;
    fake.state.faults.everywhere.store(true, Relaxed);
    fake.state.faults.status.store(503, Relaxed);
    fake.state.faults.retry_after.store(9, Relaxed);
    let error = call(&over_http(&fake.url, &json!({})), "echo", &json!({}), SECOND).await.unwrap_err();
    assert_eq!((error.kind, error.retry_after), (CallErrorKind::Connect, SECOND.map(|second| second * 9)));
    assert_eq!(fake.state.core.counters.requests.load(Relaxed), 1);
}

#[tokio::test]
async fn credentials_never_come_back_in_errors_148() {
    let fake = server(Era::Legacy, false).await;
    let upstream = over_http(&fake.url, &json!({"headers": {"authorization": "Bearer hunter2-token"}}));
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    fake.state.faults.status.store(500, Relaxed);
    fake.state.faults.echo_credentials.store(true, Relaxed);
    let error = call(&upstream, "echo", &json!({}), SECOND).await.unwrap_err();
    assert!(error.message.contains("***") && !error.message.contains("hunter2"), "{}", error.message);
    assert_eq!(upstream.scrub("your hunter2-token is bad"), "your *** is bad");
    let upstream = over_http(&fake.url.replace("http://", "http://user:hunter2@"), &json!({}));
    let error = call(&upstream, "echo", &json!({}), SECOND).await.unwrap_err();
    assert!(!error.message.contains("hunter2") && !error.message.contains("Basic"), "{}", error.message);
}

#[tokio::test]
async fn what_is_no_answer_is_a_protocol_error() {
    for sse in [false, true] {
        let fake = server(Era::Legacy, sse).await;
        let upstream = over_http(&fake.url, &json!({}));
        call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
        fake.state.faults.wrong_id.store(true, Relaxed);
        let error = call(&upstream, "echo", &json!({}), SECOND).await.unwrap_err();
        assert_eq!(error.kind, CallErrorKind::Protocol, "{}", error.message);
        fake.state.faults.garbage.store(true, Relaxed);
        let error = call(&upstream, "echo", &json!({}), SECOND).await.unwrap_err();
        assert_eq!(error.kind, CallErrorKind::Protocol, "146");
    }
    let fake = server(Era::Legacy, false).await;
    let upstream = over_http(&fake.url, &json!({}));
    let error = call(&upstream, "no_such_tool", &json!({}), SECOND).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Rpc, false));
    assert!(error.message.contains("no_such_tool"));
}

#[tokio::test]
async fn an_answer_beyond_the_cap_is_cut_off_while_it_streams() {
    let fake = server(Era::Legacy, false).await;
    let upstream = over_http(&fake.url, &json!({}));
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    fake.state.faults.huge_bytes.store(1 << 40, Relaxed);
    let error = call(&upstream, "echo", &json!({}), PATIENT).await.unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Protocol);
    assert!(error.message.contains(&BODY_MAX_BYTES.to_string()), "{}", error.message);
}

#[tokio::test]
async fn a_large_answer_within_the_cap_is_read() {
    let fake = server(Era::Stateless, true).await;
    let upstream = over_http(&fake.url, &json!({}));
    let submitted = call(&upstream, "submit_report", &json!({"script": {"result_bytes": 5_000_000}}), PATIENT).await;
    let id = submitted.unwrap()["structuredContent"]["task_id"].clone();
    let polled = call(&upstream, "get_report_status", &json!({"task_id": id}), PATIENT).await.unwrap();
    assert_eq!(polled["structuredContent"]["result"].as_str().unwrap().len(), 5_000_000 - 2);
}

#[tokio::test]
async fn connections_are_reused() {
    for (era, sse) in [(Era::Modern, false), (Era::Legacy, true)] {
        let fake = server(era, sse).await;
        let upstream = over_http(&fake.url, &json!({}));
        let arguments = json!({});
        for _ in 0..25 {
            let calls = join_all((0..8).map(|_| call(&upstream, "echo", &arguments, PATIENT))).await;
            assert!(calls.iter().all(Result::is_ok));
        }
        let connections = fake.state.core.counters.connections.load(Relaxed);
        assert!(connections <= 24, "{era:?}: {connections} connections for 200 calls, 8 at a time");
    }
}

#[tokio::test]
async fn a_servers_ping_in_the_stream_is_answered() {
    let fake = server(Era::Legacy, true).await;
    fake.state.faults.ping.store(true, Relaxed);
    let upstream = over_http(&fake.url, &json!({}));
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    until("an answer to the ping", || fake.state.core.counters.pongs.load(Relaxed) >= 1).await;
}

#[tokio::test]
async fn an_agent_that_goes_away_cancels_its_call_and_harms_nobody() {
    let fake = server(Era::Legacy, false).await;
    let upstream = over_http(&fake.url, &json!({}));
    call(&upstream, "echo", &json!({}), PATIENT).await.unwrap();
    fake.state.faults.latency_ms.store(300, Relaxed);
    let other = upstream.clone();
    let gone = tokio::spawn(async move { call(&other, "echo", &json!({}), None).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    gone.abort();
    assert!(call(&upstream, "echo", &json!({}), PATIENT).await.is_ok());
    until("a cancellation", || fake.state.core.counters.cancellations.load(Relaxed) == 1).await;
}

/// Not a measurement, a tripwire: an accidental session or connection a call is an order of magnitude slower.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polls_are_cheap() {
    let fake = server(Era::Legacy, false).await;
    let upstream = over_http(&fake.url, &json!({}));
    let submitted = call(&upstream, "submit_report", &json!({"script": {"end": "never"}}), PATIENT).await.unwrap();
    let arguments = json!({"task_id": submitted["structuredContent"]["task_id"]});
    let started = Instant::now();
    for _ in 0..20 {
        let polls = join_all((0..50).map(|_| call(&upstream, "get_report_status", &arguments, PATIENT))).await;
        assert!(polls.iter().all(Result::is_ok));
    }
    eprintln!("1000 polls in {:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(fake.state.core.counters.initializes.load(Relaxed), 1);
}
