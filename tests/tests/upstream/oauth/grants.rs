//! Where the token goes, when it is asked for, and by whom (BEHAVIOURS 110–115, 122).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::join_all;
use http::{HeaderValue, header};
use mcp_taskd_core::upstream::{CallErrorKind, Factory, Method, Options, ToolCall};
use mcp_taskd_tests::fake::{Era, FakeAuthority, FakeOptions, FakeServer, FakeSse};
use mcp_taskd_tests::wait;
use serde_json::json;
use serde_json::value::RawValue;

use super::setup::{PATIENT, Party, echo};
use crate::setup::{call, extensions, over_http, scope, until};

#[tokio::test]
async fn every_request_to_the_server_carries_the_token_on_both_transports_110_115() {
    for era in [Some(Era::Legacy), Some(Era::Modern), None] {
        let authority = FakeAuthority::start().await;
        let guarded = Some(Arc::clone(&authority.state));
        let options = FakeOptions { era: era.unwrap_or_default(), authority: guarded, ..FakeOptions::default() };
        let (http, sse) = (FakeServer::start(options.clone()).await, FakeSse::start(options).await);
        // A static credential gives way (122).
        let mut more = json!({"oauth": authority.client(), "headers": {"authorization": "Bearer static"}});
        more["type"] = json!(if era.is_some() { "http" } else { "sse" });
        let upstream = over_http(if era.is_some() { &http.url } else { &sse.url }, &more);
        let _changes = upstream.changes();
        assert_eq!(upstream.list_tools().await.unwrap().len(), 5);
        call(&upstream, "submit_report", &json!({"script": {"polls": 1}}), PATIENT).await.unwrap();
        upstream.close().await;
        let seen = authority.state.seen();
        assert!(seen.len() > 4, "{seen:?}");
        assert!(seen.iter().all(|(_, value)| value.starts_with("Bearer access-1-")), "{era:?}: {seen:?}");
        assert_eq!((authority.state.count(), authority.state.refusals.load(Relaxed)), (1, 0));
        if era == Some(Era::Legacy) {
            assert!(seen.iter().any(|(method, _)| method == "DELETE"), "{seen:?}");
        }
        let form = &authority.state.forms()[0];
        assert_eq!((form["grant_type"].as_str(), form["client_id"].as_str()), ("client_credentials", "id"));
    }
}

#[tokio::test]
async fn however_many_calls_wait_the_token_is_asked_for_once_and_whoever_goes_away_costs_nothing_112() {
    let party = Party::new().await;
    party.authority.state.faults.hold.store(true, Relaxed);
    let upstream = party.replica(&party.authority.client(), None);
    let first = tokio::spawn({
        let upstream = upstream.clone();
        async move { echo(&upstream).await }
    });
    until("the token is asked for", || party.asked() == 1).await;
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let upstream = upstream.clone();
            tokio::spawn(async move { echo(&upstream).await })
        })
        .collect();
    // The one whose need began it goes away, and some that wait.
    first.abort();
    waiting.iter().take(10).for_each(tokio::task::JoinHandle::abort);
    assert!(first.await.unwrap_err().is_cancelled());
    party.authority.state.release();
    let answered = join_all(waiting).await;
    let answered: Vec<_> = answered.into_iter().filter_map(Result::ok).collect();
    assert!(answered.len() >= 40 && answered.iter().all(Result::is_ok), "{answered:?}");
    assert_eq!(party.asked(), 1);
    assert!(echo(&upstream).await.is_ok());
    assert_eq!(party.asked(), 1);
}

#[tokio::test]
async fn a_token_is_renewed_before_it_ends_112() {
    let party = Party::new().await;
    party.authority.state.lifetime.store(64, Relaxed);
    let upstream = party.replica(&party.authority.client(), None);
    echo(&upstream).await.unwrap();
    echo(&upstream).await.unwrap();
    assert_eq!(party.asked(), 1, "more than refresh_skew_seconds are left");
    wait::until("another token is asked for", || async {
        echo(&upstream).await.unwrap();
        party.asked() > 1
    })
    .await;
    assert_eq!(party.asked(), 2);
    assert_eq!(party.authority.state.refusals.load(Relaxed), 0, "long before the server refuses it");
}

#[tokio::test]
async fn a_token_that_the_server_refuses_is_replaced_once_and_the_refused_requests_are_sent_again() {
    let party = Party::new().await;
    let upstream = party.replica(&party.authority.client(), None);
    echo(&upstream).await.unwrap();
    party.authority.state.revoke_access();
    let answered = join_all((0..30).map(|_| echo(&upstream))).await;
    assert!(answered.iter().all(Result::is_ok), "{answered:?}");
    assert_eq!((party.asked(), party.calls()), (2, 31), "one token, and each call ran once");
    // A submit too: what is refused with 401 was not looked at. And a handshake.
    party.authority.state.revoke_access();
    upstream.refresh().await;
    call(&upstream, "submit_report", &json!({}), PATIENT).await.unwrap();
    assert_eq!((party.asked(), party.calls()), (3, 32));
    party.authority.state.revoke_access();
    assert!(upstream.list_tools().await.is_ok());
    assert_eq!(party.asked(), 4);
}

#[tokio::test]
async fn over_an_event_stream_too_a_refused_token_is_replaced_115() {
    let authority = FakeAuthority::start().await;
    let options = FakeOptions { authority: Some(Arc::clone(&authority.state)), ..FakeOptions::default() };
    let server = FakeSse::start(options).await;
    let upstream = over_http(&server.url, &json!({"type": "sse", "oauth": authority.client()}));
    echo(&upstream).await.unwrap();
    authority.state.revoke_access();
    let answered = join_all((0..10).map(|_| echo(&upstream))).await;
    assert!(answered.iter().all(Result::is_ok), "{answered:?}");
    // The stream itself is refused as well when it is opened anew.
    authority.state.revoke_access();
    server.state.drop_streams();
    until("a call works", || server.state.open_streams() == 0).await;
    echo(&upstream).await.unwrap();
    assert_eq!(authority.state.count(), 3);
    assert_eq!(server.state.core.counters.calls.load(Relaxed), 12, "each ran once");
}

#[tokio::test]
async fn a_token_that_is_always_due_is_asked_for_once_a_call_112() {
    let party = Party::new().await;
    party.authority.state.lifetime.store(50, Relaxed);
    let upstream = party.replica(&party.authority.client(), None);
    for calls in 1..=3 {
        echo(&upstream).await.unwrap();
        assert_eq!(party.asked(), calls, "bringing the session up and the call itself take what the call waited for");
    }
}

#[tokio::test]
async fn a_calls_own_credential_wins_and_its_refusal_renews_nothing_122() {
    let party = Party::new().await;
    let upstream = party.replica(&party.authority.client(), None);
    echo(&upstream).await.unwrap();
    let arguments = RawValue::from_string("{}".to_owned()).unwrap();
    let headers = [(header::AUTHORIZATION, HeaderValue::from_static("Bearer of-ada"))];
    let scope = scope("ada");
    let call = ToolCall {
        method: Method::Call,
        tool: "echo",
        arguments: &arguments,
        meta: &[],
        headers: &headers,
        scope: &scope,
        task: None,
        deadline: PATIENT,
    };
    let error = upstream.call_tool(call).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Auth, false));
    let seen = party.authority.state.seen();
    assert_eq!(seen.iter().filter(|(_, value)| value == "Bearer of-ada").count(), 1, "{seen:?}");
    assert_eq!(party.asked(), 1);
}

#[tokio::test]
async fn tokens_survive_resets_and_edits_of_everything_but_what_they_are_asked_for_with_115() {
    let party = Party::new().await;
    let factory = Factory::new(&Options::new("unused")).unwrap();
    let open = |change: serde_json::Value| {
        let mut servers = party.definition(&party.authority.client());
        let server = servers["s"].as_object_mut().unwrap();
        for (key, value) in change.as_object().unwrap() {
            match key.strip_prefix("oauth.") {
                Some(key) => server["oauth"][key] = value.clone(),
                None => drop(server.insert(key.clone(), value.clone())),
            }
        }
        let extensions = extensions(&servers);
        factory.open(&extensions.servers["s"], &extensions).unwrap()
    };
    let upstream = open(json!({}));
    echo(&upstream).await.unwrap();
    upstream.refresh().await;
    echo(&upstream).await.unwrap();
    echo(&open(json!({"headers": {"X-Tenant": "acme"}, "session_init_timeout": 7}))).await.unwrap();
    echo(&open(json!({"oauth.refresh_skew_seconds": 5, "oauth.vendor": 1}))).await.unwrap();
    assert_eq!(party.asked(), 1);
    echo(&open(json!({"oauth.extra_token_params": {"resource": "r"}}))).await.unwrap();
    assert_eq!(party.asked(), 2, "the token was asked for in another way");
    echo(&open(json!({"oauth.scope": "read"}))).await.unwrap();
    assert_eq!(party.asked(), 3);
}

#[tokio::test]
async fn a_rotated_refresh_token_takes_the_place_of_the_configured_one_113() {
    let party = Party::new().await;
    let upstream = party.replica(&party.authority.chain("the-seed"), None);
    for round in 1..4 {
        echo(&upstream).await.unwrap();
        assert_eq!(party.asked(), round);
        party.authority.state.revoke_access();
    }
    let forms = party.authority.state.forms();
    let sent: Vec<_> = forms.iter().map(|form| form["refresh_token"].as_str()).collect();
    assert!(
        sent[0] == "the-seed" && sent[1].starts_with("refresh-1-") && sent[2].starts_with("refresh-2-"),
        "{sent:?}"
    );
    assert_eq!(party.reuses(), 0);
    // Where the answer brings no other, the one there is stays.
    party.authority.state.keeps_tokens.store(true, Relaxed);
    for _ in 0..2 {
        echo(&upstream).await.unwrap();
        party.authority.state.revoke_access();
    }
    let forms = party.authority.state.forms();
    assert_eq!(forms[3]["refresh_token"], forms[4]["refresh_token"]);
}
