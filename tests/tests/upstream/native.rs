//! Requests about MCP's own tasks, on every transport and in both generations.

use std::time::Duration;

use http::HeaderMap;
use mcp_taskd_core::upstream::{CallError, CallErrorKind, Method, SharedUpstream, ToolCall};
use mcp_taskd_tests::fake::{Era, FakeOptions, FakeServer, FakeSse, NATIVE_TOOL, native_tools};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::setup::{over_http, scope};
use super::stdio::{Server, definition};

fn options(era: Era) -> FakeOptions {
    FakeOptions { era, tools: Some(native_tools()), journal: true, ..FakeOptions::default() }
}

async fn ask(upstream: &SharedUpstream, method: Method<'_>, arguments: &Value) -> Result<Value, CallError> {
    let arguments = RawValue::from_string(arguments.to_string()).unwrap();
    let call = ToolCall {
        method,
        tool: NATIVE_TOOL,
        arguments: &arguments,
        meta: &[],
        headers: &[],
        scope: &scope("ada"),
        task: None,
        deadline: Some(Duration::from_secs(10)),
    };
    let answer = upstream.call_tool(call).await?;
    Ok(serde_json::from_str(answer.get()).expect("JSON"))
}

/// From the call to the result; the task's id.
async fn to_the_end(upstream: &SharedUpstream, era: Era) -> String {
    let created = ask(upstream, Method::CallForTask, &json!({"script": {"polls": 1}})).await.unwrap();
    let task = if era == Era::Modern { &created } else { &created["task"] };
    let id = task["taskId"].as_str().unwrap_or_else(|| panic!("{era:?}: {created}"));
    for status in ["working", "completed"] {
        let seen = ask(upstream, Method::Get(id), &json!({})).await.unwrap();
        assert_eq!((&seen["taskId"], &seen["status"]), (&json!(id), &json!(status)), "{era:?}");
    }
    let result = ask(upstream, Method::Result(id), &json!({})).await;
    let update = ask(upstream, Method::Update(id), &json!({"quarter": {}})).await;
    if era == Era::Modern {
        assert_eq!(result.unwrap_err().rpc_code, Some(-32_601), "the new generation has no tasks/result");
        update.unwrap();
    } else {
        assert!(result.unwrap()["structuredContent"]["report"].is_string());
        assert_eq!(update.unwrap_err().rpc_code, Some(-32_601), "the old one has no tasks/update");
    }
    let unknown = ask(upstream, Method::Get("nobody's"), &json!({})).await.unwrap_err();
    assert_eq!((unknown.kind, unknown.rpc_code), (CallErrorKind::Rpc, Some(-32_602)), "{era:?}");
    id.to_owned()
}

#[tokio::test]
async fn native_tasks_travel_over_http_and_are_routed_by_their_id() {
    for era in [Era::Modern, Era::Legacy, Era::Stateless] {
        for sse in [false, true] {
            let fake = FakeServer::start(FakeOptions { sse, ..options(era) }).await;
            let upstream = over_http(&fake.url, &json!({}));
            let id = to_the_end(&upstream, era).await;
            let journal = fake.state.journal();
            let called = |tool: &str| &journal.iter().find(|called| called.tool == tool).unwrap().headers;
            let header =
                |headers: &HeaderMap, name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
            let modern = (era == Era::Modern).then_some(id);
            assert_eq!(header(called("tasks/get"), "mcp-name"), modern, "SEP-2663: intermediaries route by it");
            let method = header(called("tasks/get"), "mcp-method");
            assert_eq!(method, modern.map(|_| "tasks/get".to_owned()));
            upstream.close().await;
        }
    }
}

#[tokio::test]
async fn native_tasks_travel_over_http_and_sse_and_to_children() {
    let fake = FakeSse::start(options(Era::Legacy)).await;
    let upstream = over_http(&fake.url, &json!({"type": "sse"}));
    to_the_end(&upstream, Era::Legacy).await;
    upstream.close().await;
    let tools = native_tools().to_string();
    for (name, era) in [("modern", Era::Modern), ("legacy", Era::Legacy)] {
        let server = Server::new(&definition(&["--era", name, "--tools", &tools]), 4);
        to_the_end(server.upstream(), era).await;
        server.upstreams.close().await;
    }
}

#[tokio::test]
async fn a_server_with_sessions_that_offers_no_tasks_is_not_called_for_one() {
    let plain = FakeOptions { journal: true, ..FakeOptions::default() };
    let (http, sse) = (FakeServer::start(plain.clone()).await, FakeSse::start(plain).await);
    let child = Server::new(&definition(&["--era", "legacy"]), 4);
    let over_sse = over_http(&sse.url, &json!({"type": "sse"}));
    for upstream in [&over_http(&http.url, &json!({})), &over_sse, child.upstream()] {
        for method in [Method::CallForTask, Method::Get("r-1")] {
            let refused = ask(upstream, method, &json!({})).await.unwrap_err();
            assert_eq!((refused.kind, refused.maybe_executed), (CallErrorKind::Protocol, false), "{refused}");
            assert!(refused.message.contains("capabilities.tasks.requests.tools.call"), "{refused}");
        }
        upstream.close().await;
    }
    assert!(http.state.journal().is_empty(), "nothing was sent");
}
