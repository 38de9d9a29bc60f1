//! No token: whose trouble it is, what is said, and how often it is tried (BEHAVIOURS 111, 114, 117, 121, 148; invariants 7–9).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::join_all;
use mcp_taskd_core::upstream::{CallErrorKind, Metrics, Options, build};
use mcp_taskd_tests::fake::{FakeAuthority, FakeOptions, FakeServer};
use mcp_taskd_tests::wait;
use prometheus::{Encoder as _, Registry, TextEncoder};
use serde_json::json;

use super::setup::{Party, echo};
use crate::setup::{extensions, over_http};

#[tokio::test]
async fn a_failing_token_endpoint_fails_its_own_server_alone_and_is_not_hammered_114() {
    let (one, other) = (Party::new().await, Party::new().await);
    one.authority.state.faults.status.store(503, Relaxed);
    let (failing, healthy) =
        (one.replica(&one.authority.client(), None), other.replica(&other.authority.client(), None));
    let errors = join_all((0..200).map(|_| echo(&failing))).await;
    for error in errors {
        let error = error.unwrap_err();
        assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Auth, false), "{error}");
        assert!(error.message.contains("OAuth") && error.message.contains("\"s\""), "{error}");
        assert!(error.message.contains("503"), "{error}");
    }
    assert!(failing.list_tools().await.is_err());
    assert!(one.asked() <= 2, "{} requests for 201 calls", one.asked());
    assert_eq!(one.authority.state.seen().len(), 0, "nothing is sent without a token");
    assert!(echo(&healthy).await.is_ok());

    one.authority.state.faults.status.store(0, Relaxed);
    wait::until("it recovers by itself", || async { echo(&failing).await.is_ok() }).await;
}

#[tokio::test]
async fn the_token_endpoints_retry_after_is_heeded() {
    let party = Party::new().await;
    party.authority.state.faults.status.store(429, Relaxed);
    party.authority.state.faults.retry_after.store(3_600, Relaxed);
    let upstream = party.replica(&party.authority.client(), None);
    assert!(echo(&upstream).await.is_err());
    party.authority.state.faults.status.store(0, Relaxed);
    // Longer than the pause without it.
    let began = std::time::Instant::now();
    wait::until("three seconds have passed", || async {
        assert!(echo(&upstream).await.is_err());
        began.elapsed() > std::time::Duration::from_secs(3)
    })
    .await;
    assert_eq!(party.asked(), 1);
}

#[tokio::test]
async fn a_token_that_is_still_good_is_used_while_no_other_can_be_had() {
    let party = Party::new().await;
    // Always due, since it ends within refresh_skew_seconds; good for a while nevertheless.
    party.authority.state.lifetime.store(50, Relaxed);
    let upstream = party.replica(&party.authority.client(), None);
    echo(&upstream).await.unwrap();
    party.authority.state.faults.status.store(500, Relaxed);
    for _ in 0..5 {
        echo(&upstream).await.unwrap();
    }
    assert!(party.asked() > 1, "others were asked for");
}

#[tokio::test]
async fn a_server_that_refuses_every_token_does_not_cost_one_for_each_call() {
    let (tokens, other) = (FakeAuthority::start().await, FakeAuthority::start().await);
    let guarded = FakeOptions { authority: Some(Arc::clone(&other.state)), ..FakeOptions::default() };
    let server = FakeServer::start(guarded).await;
    let upstream = over_http(&server.url, &json!({"oauth": tokens.client()}));
    for _ in 0..20 {
        let error = echo(&upstream).await.unwrap_err();
        assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Auth, false));
        assert!(error.message.contains("401"), "{error}");
        // It repeats the credential that was sent.
        assert!(error.message.contains("is not valid") && !error.message.contains("access-"), "148: {error}");
    }
    assert_eq!(tokens.state.count(), 2);
}

#[tokio::test]
async fn no_error_shows_a_credential_148() {
    let party = Party::new().await;
    party.authority.state.faults.echo.store(true, Relaxed);
    let mut oauth = party.authority.client();
    oauth["client_secret"] = json!("hunter2-of-client");
    oauth["extra_token_params"] = json!({"assertion": "hunter2-assertion"});
    let error = echo(&party.replica(&oauth, None)).await.unwrap_err();
    assert!(error.message.contains("invalid_client") && error.message.contains("client_secret"), "{error}");
    assert!(!error.message.contains("hunter2"), "{error}");

    let chain =
        json!({"token_url": party.authority.url, "grant_type": "refresh_token", "refresh_token": "hunter2-seed"});
    let error = echo(&party.replica(&chain, None)).await.unwrap_err();
    for said in ["invalid_grant", "mcpServers.s.oauth.refresh_token", "set a new"] {
        assert!(error.message.contains(said), "116: {error}");
    }
    assert!(!error.message.contains("hunter2"), "{error}");
}

#[tokio::test]
async fn tokens_that_were_rotated_away_are_scrubbed_from_what_a_server_says_148() {
    let party = Party::new().await;
    let upstream = party.replica(&party.authority.chain("the-seed"), None);
    for _ in 0..3 {
        echo(&upstream).await.unwrap();
        party.authority.state.revoke_access();
    }
    let tokens = party.authority.state.tokens();
    assert!(tokens.len() > 3);
    let said = upstream.scrub(&format!("I got {}", tokens.join(" and ")));
    assert!(!said.contains("access-") && !said.contains("refresh-") && !said.contains("seed"), "{said}");
}

#[tokio::test]
async fn an_answer_without_a_usable_token_is_refused_before_anything_is_sent_117_121() {
    let party = Party::new().await;
    let upstream = party.replica(&party.authority.client(), None);
    let answer = json!({"access_token": "hunter2\r\nX-Evil: 1"}).to_string();
    *party.authority.state.faults.answer.lock().unwrap() = Some(answer);
    let error = echo(&upstream).await.unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Auth);
    assert!(error.message.contains("cannot be sent") && !error.message.contains("hunter2"), "{error}");
    assert_eq!(party.authority.state.seen().len(), 0);
}

#[tokio::test]
async fn refreshes_are_counted_by_server_and_outcome() {
    let party = Party::new().await;
    let (registry, extensions) = (Registry::new(), extensions(&party.definition(&party.authority.client())));
    let metrics = Some(Metrics::register(&registry, &extensions).unwrap());
    let upstreams = build(&extensions, &Options { metrics, ..Options::new("unused") }).unwrap();
    let upstream = upstreams.find("s").unwrap();
    let shows = || {
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    };
    let line = |outcome: &str, count: u32| {
        format!("mcp_taskd_oauth_refreshes_total{{outcome=\"{outcome}\",server=\"s\"}} {count}\n")
    };
    for outcome in ["ok", "adopted", "unreachable", "refused", "invalid_grant", "unusable", "store"] {
        assert!(shows().contains(&line(outcome, 0)), "{outcome} is there from the start: {}", shows());
    }
    party.authority.state.faults.status.store(500, Relaxed);
    assert!(echo(upstream).await.is_err());
    assert!(shows().contains(&line("unreachable", 1)), "{}", shows());
    party.authority.state.faults.status.store(0, Relaxed);
    wait::until("it recovers", || async { echo(upstream).await.is_ok() }).await;
    let shown = shows();
    assert!(shown.contains(&line("ok", 1)), "{shown}");
    let ends = shown.lines().find_map(|line| {
        line.strip_prefix("mcp_taskd_oauth_token_expiry_timestamp_seconds{server=\"s\"} ")?.parse::<f64>().ok()
    });
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    assert!(ends.is_some_and(|ends| (ends - now - 3_600.0).abs() < 60.0), "{shown}");
}
