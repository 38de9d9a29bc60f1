//! Which way a call takes, and how many ways there are.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::config::{Environment, Extensions};
use crate::upstream::{Method, Scope};

type Seen = Arc<Mutex<Vec<String>>>;

/// A way that notes what comes along it, and when it is closed.
struct Fake {
    credential: String,
    seen: Seen,
}

#[async_trait]
impl Upstream for Fake {
    async fn call_tool(&self, _: ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        self.seen.lock().unwrap().push(self.credential.clone());
        Ok(RawValue::from_string("{}".into()).unwrap())
    }

    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        self.seen.lock().unwrap().push(format!("list {}", self.credential));
        Ok(Vec::new())
    }

    fn scrub(&self, text: &str) -> String {
        if self.credential.is_empty() { text.to_owned() } else { text.replace(&self.credential, "***") }
    }

    async fn close(&self) {
        self.seen.lock().unwrap().push(format!("closed {}", self.credential));
    }
}

fn server(more: &Value) -> (SharedUpstream, Seen) {
    let mut definition = json!({"type": "http", "url": "http://h/mcp"});
    definition.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let document = json!({"mcpServers": {"s": definition}}).to_string();
    let extensions = Extensions::parse(&document, "e.json".as_ref(), &Environment::default()).unwrap();
    let seen = Seen::default();
    let noting = Arc::clone(&seen);
    let open: Open = Box::new(move |credential| {
        let shown = credential.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap()));
        Ok(Arc::new(Fake { credential: shown.collect::<Vec<_>>().join(" "), seen: Arc::clone(&noting) }))
    });
    (PerCaller::wrap(&extensions.servers["s"], open).unwrap(), seen)
}

async fn call(server: &SharedUpstream, user: &str, headers: &Credential) -> Result<(), CallError> {
    let scope = Scope { user_id: user.into(), thread_id: "t".into() };
    let arguments = RawValue::from_string("{}".into()).unwrap();
    let (meta, scope, task, deadline) = (&[], &scope, None, None);
    let call =
        ToolCall { method: Method::Call, tool: "echo", arguments: &arguments, meta, headers, scope, task, deadline };
    server.call_tool(call).await.map(drop)
}

fn header(name: &'static str, value: &str) -> (HeaderName, HeaderValue) {
    (HeaderName::from_static(name), value.parse().unwrap())
}

fn seen(seen: &Seen) -> Vec<String> {
    std::mem::take(&mut seen.lock().unwrap())
}

#[tokio::test]
async fn each_user_has_a_way_of_their_own_and_discovery_the_servers_107_118() {
    let (server, noted) = server(&json!({"user_auth": {"users": {"ada": "a", "bob": "b"}}}));
    server.list_tools().await.unwrap();
    for user in ["ada", "bob", "ada"] {
        call(&server, user, &[]).await.unwrap();
    }
    assert_eq!(seen(&noted), ["list ", "authorization=a", "authorization=b", "authorization=a"]);
    let error = call(&server, "eve", &[]).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Denied, false));
    assert!(error.message.contains("\"s\"") && error.message.contains("eve"), "{error}");
    assert!(seen(&noted).is_empty(), "no other credential");
    assert_eq!(server.scrub("authorization=b and authorization=a"), "*** and ***", "148");
    server.close().await;
    let mut closed = seen(&noted);
    closed.sort();
    assert_eq!(closed, ["closed ", "closed authorization=a", "closed authorization=b"]);
}

#[tokio::test]
async fn what_came_with_the_request_wins_over_the_users_own_122() {
    let (server, noted) = server(&json!({
        "user_auth": {"users": {"ada": "a"}, "on_missing": "passthrough"},
        "headers_from_context": {"headers": {"Authorization": "token", "X-Tenant": "tenant"}}
    }));
    let secrets: Secrets =
        [("token", "t"), ("tenant", "acme")].map(|(k, v)| (k.to_owned(), v.to_owned())).into_iter().collect();
    let headers = server.context_headers(&secrets).unwrap();
    call(&server, "ada", &headers).await.unwrap();
    call(&server, "eve", &headers).await.unwrap();
    call(&server, "ada", &[]).await.unwrap();
    call(&server, "eve", &[]).await.unwrap();
    let both = "authorization=t x-tenant=acme";
    assert_eq!(seen(&noted), [both, both, "authorization=a", ""]);
    let error = server.context_headers(&Secrets::default()).unwrap_err();
    assert!(error.contains("\"s\"") && error.ends_with("tenant, token"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn ways_are_bounded_and_closed_when_idle_107() {
    let (server, noted) = server(&json!({"headers_from_context": {"headers": {"X-Tenant": "tenant"}}}));
    for tenant in 0..300 {
        call(&server, "ada", &[header("x-tenant", &format!("{tenant}"))]).await.unwrap();
    }
    tokio::task::yield_now().await;
    let closed = seen(&noted).into_iter().filter(|seen| seen.starts_with("closed")).count();
    assert_eq!(closed, 300 - 256);
    tokio::time::sleep(Duration::from_mins(4)).await;
    call(&server, "ada", &[header("x-tenant", "299")]).await.unwrap();
    seen(&noted);
    tokio::time::sleep(Duration::from_mins(2)).await;
    let closed = seen(&noted);
    assert_eq!(closed.len(), 255, "but for the one in use");
    assert!(!closed.contains(&"closed x-tenant=299".to_owned()));
}

#[test]
fn a_server_without_callers_credentials_is_as_it_was() {
    let (server, _) = server(&json!({"user_auth": {"enabled": false, "users": {}}}));
    assert!(server.context_headers(&Secrets::default()).unwrap().is_empty());
}
