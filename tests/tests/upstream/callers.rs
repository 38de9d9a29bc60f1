//! Callers' credentials on both transports, beside those of the server itself (BEHAVIOURS 107, 118, 122).

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use mcp_taskd_tests::fake::{Era, FakeAuthority, FakeOptions, FakeServer, FakeSse};
use serde_json::{Value, json};

use super::setup::{call_as, over_http, scope};

const PATIENT: Option<std::time::Duration> = Some(std::time::Duration::from_secs(20));

fn users() -> Value {
    json!({"users": {"ada": "Bearer of-ada", "bob": "Bearer of-bob"}, "on_missing": "passthrough"})
}

#[tokio::test]
async fn a_users_credential_takes_the_place_of_the_servers_own_and_of_its_token_122() {
    for era in [Era::Legacy, Era::Modern, Era::Stateless] {
        let authority = FakeAuthority::start().await;
        let fake = FakeServer::start(FakeOptions { era, journal: true, ..FakeOptions::default() }).await;
        let more = json!({"headers": {"AUTHORIZATION": "Bearer static", "X-Kept": "kept"},
            "oauth": authority.client(), "user_auth": users()});
        let upstream = over_http(&fake.url, &more);
        for user in ["ada", "eve", "bob"] {
            call_as(&upstream, &scope(user), "echo", &json!({}), PATIENT).await.unwrap();
        }
        let sent = |name: &str| -> Vec<String> {
            let values =
                fake.state.journal().into_iter().map(|called| called.headers[name].to_str().unwrap().to_owned());
            values.collect()
        };
        let authorized = sent("authorization");
        assert_eq!((authorized[0].as_str(), authorized[2].as_str()), ("Bearer of-ada", "Bearer of-bob"), "{era:?}");
        assert!(authorized[1].starts_with("Bearer access-"), "{era:?}: {authorized:?}");
        assert_eq!(sent("x-kept"), ["kept"; 3]);
        assert_eq!(authority.state.count(), 1, "nobody asks for a token that is not sent");
        upstream.close().await;
    }
}

#[tokio::test]
async fn each_user_has_an_event_stream_of_their_own_over_http_sse_107() {
    let fake = FakeSse::start(FakeOptions::default()).await;
    let upstream = over_http(&fake.url, &json!({"type": "sse", "user_auth": users()}));
    for user in ["ada", "bob", "ada", "bob"] {
        call_as(&upstream, &scope(user), "echo", &json!({}), PATIENT).await.unwrap();
    }
    let authorized: HashSet<String> = fake.state.credentials.lock().unwrap().iter().cloned().collect();
    assert_eq!(authorized, HashSet::from(["Bearer of-ada".to_owned(), "Bearer of-bob".to_owned()]));
    assert_eq!(fake.state.streams.load(Ordering::Relaxed), 2);
    upstream.close().await;
}
