//! Deferred tools, routing hints and guardrails, through HTTP.

use std::sync::Arc;

use mcp_taskd_core::catalog::{Guardrail, Routing};
use mcp_taskd_core::config::{GuardrailSettings, RoutingMode};
use serde_json::json;

use super::tests::{Agent, ODD, stub, value};
use super::*;

const OWN: [&str; 3] = ["list_background_tasks", "get_background_task", "cancel_background_task"];

/// The usual tools; `web_search` is preferred for orders, `reports_start` less so.
fn routed() -> crate::stub::Stub {
    let mut stub = stub();
    for (at, priority) in [(0, 10), (1, 90)] {
        let routing =
            Routing { mode: RoutingMode::Prefer, priority, keywords: vec!["Orders".into(), "<sales>".into()] };
        stub.tools[at] = Arc::new(Tool { routing, ..(*stub.tools[at]).clone() });
    }
    stub
}

fn deferring(modern: bool) -> Agent {
    Agent::with(modern, routed(), |daemon| daemon.tool_search = Some(1))
}

fn guardrail(denied: &[&str], allowed: Option<&[&str]>) -> Arc<Guardrail> {
    let mut settings = GuardrailSettings { enabled: true, ..GuardrailSettings::default() };
    settings.provider.config.denied_tools = denied.iter().map(ToString::to_string).collect();
    settings.provider.config.allowed_tools = allowed.map(|names| names.iter().map(ToString::to_string).collect());
    Arc::new(Guardrail::new(&settings))
}

#[tokio::test]
async fn deferred_tools_are_known_by_name_and_listed_once_they_were_searched_129() {
    for modern in [false, true] {
        let agent = deferring(modern);
        let names = agent.names(json!({})).await;
        assert_eq!(names, [&OWN[..], &["tool_search"]].concat());
        let listed = agent.ask("tools/list", json!({})).await;
        assert!(listed.contains("reports_start, web_search, web_broken"), "{listed}");
        let refused = value(&agent.call("web_search", json!({ "q": 1 })).await);
        let text = refused["result"]["content"][0]["text"].as_str().unwrap();
        assert!(refused["result"]["isError"] == true && text.contains("select:web_search"), "{refused}");
        assert_eq!(agent.names(json!({})).await, names, "a refused call promotes nothing");

        let found = agent.call("tool_search", json!({ "query": "select:web_search" })).await;
        assert!(found.contains(&format!(r#""structuredContent":{{"tools":[{ODD}]}}"#)), "{found}");
        assert_eq!(agent.names(json!({})).await, [&["web_search"], &OWN[..], &["tool_search"]].concat());
        let called = agent.call("web_search", json!({ "q": 1 })).await;
        assert!(called.contains(r#""structuredContent":{"q":1}"#), "{called}");
        let nothing = value(&agent.call("tool_search", json!({ "query": "weather" })).await);
        assert_eq!(nothing["result"]["structuredContent"], json!({ "tools": [] }));
        assert_eq!(nothing["result"]["isError"], false);
        for wrong in [json!({}), json!({ "query": 1 }), json!({ "query": "x", "more": 1 })] {
            assert_eq!(value(&agent.call("tool_search", wrong).await)["result"]["isError"], true);
        }
    }
}

#[tokio::test]
async fn promotions_are_one_sessions_and_end_with_it_129() {
    let mut agent = deferring(false);
    agent.session = Some("s1");
    agent.call("tool_search", json!({ "query": "select:web_search" })).await;
    assert!(agent.names(json!({})).await.contains(&"web_search".to_owned()));
    agent.session = Some("s2");
    assert!(!agent.names(json!({})).await.contains(&"web_search".to_owned()));
    agent.session = None;
    assert!(!agent.names(json!({})).await.contains(&"web_search".to_owned()), "the thread's is another");
    agent.session = Some("s1");
    let ended = agent.request("DELETE").body(axum::body::Body::empty()).unwrap();
    let ended = tower::ServiceExt::oneshot(agent.routes.clone(), ended).await.unwrap();
    assert_eq!(ended.status(), 405, "a name cannot be ended");
    assert!(!agent.names(json!({})).await.contains(&"web_search".to_owned()));
}

#[tokio::test]
async fn the_users_message_promotes_the_best_matches_and_adds_to_what_was_searched_129() {
    for modern in [false, true] {
        let agent = deferring(modern);
        agent.call("tool_search", json!({ "query": "select:web_broken" })).await;
        let said = |text: &str| json!({ "_meta": { "mcp-taskd/user-message": text } });
        let names = agent.names(said("Nothing of interest")).await;
        assert!(!names.contains(&"web_search".to_owned()));
        let names = agent.names(said("How many ORDERS are open?")).await;
        assert_eq!(names[..2], ["web_search", "web_broken"], "one by its priority, beside the searched one");
        assert!(!names.contains(&"reports_start".to_owned()), "only auto_promote_top_k of them");
        let agent = deferring(modern);
        let mut call = said("orders, please");
        call["name"] = "web_search".into();
        call["arguments"] = json!({ "q": 2 });
        let called = agent.ask("tools/call", call).await;
        assert!(called.contains(r#""structuredContent":{"q":2}"#), "{called}");
    }
}

#[tokio::test]
async fn routing_hints_are_in_the_greeting_and_say_how_to_load_a_deferred_tool_128() {
    let greeting = |deferred: Option<u32>| async move {
        let legacy = Agent::with(false, routed(), |daemon| daemon.tool_search = deferred);
        let initialize = json!({ "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" } });
        let legacy = value(&legacy.ask("initialize", initialize).await)["result"]["instructions"].clone();
        let modern = Agent::with(true, routed(), |daemon| daemon.tool_search = deferred);
        let modern = value(&modern.ask("server/discover", json!({})).await)["result"]["instructions"].clone();
        assert_eq!(legacy, modern);
        legacy.as_str().unwrap().to_owned()
    };
    let plain = greeting(None).await;
    let hints = plain.split_once("<mcp_routing_hints>").unwrap().1;
    let (first, second) = (hints.find("web_search").unwrap(), hints.find("reports_start").unwrap());
    assert!(first < second && hints.contains("&lt;sales&gt;") && !plain.contains("tool_search"), "{plain}");
    let deferred = greeting(Some(3)).await;
    assert!(deferred.contains("with tool_search") && deferred.contains("select:web_search"), "{deferred}");
}

#[tokio::test]
async fn the_daemons_own_tools_are_denied_by_name_like_any_other_130() {
    for modern in [false, true] {
        let denied = guardrail(&["cancel_background_task"], None);
        let agent = Agent::with(modern, stub(), |daemon| daemon.guardrail = denied);
        let names = agent.names(json!({})).await;
        assert!(names.contains(&OWN[1].to_owned()) && !names.contains(&OWN[2].to_owned()), "{names:?}");
        let answer = value(&agent.call("cancel_background_task", json!({})).await);
        assert!(answer["error"]["message"].as_str().unwrap().contains("unknown tool"), "{answer}");
        let submitted = agent.call("reports_start", json!({})).await;
        assert!(!submitted.contains("cancel_background_task"), "nobody is sent to a tool that is not there");
        let none =
            Agent::with(modern, crate::stub::Stub::default(), |daemon| daemon.guardrail = guardrail(&[], Some(&[])));
        assert!(none.names(json!({})).await.is_empty(), "an empty allow list denies all");
    }
}

#[tokio::test]
async fn nothing_is_deferred_behind_a_search_that_is_not_there_130() {
    let agent = Agent::with(false, stub(), |daemon| {
        daemon.tool_search = Some(3);
        daemon.guardrail = guardrail(&["tool_search"], None);
    });
    let names = agent.names(json!({})).await;
    assert!(names.contains(&"web_search".to_owned()) && !names.contains(&"tool_search".to_owned()), "{names:?}");
    let answer = value(&agent.call("tool_search", json!({ "query": "web" })).await);
    assert!(answer["error"]["message"].as_str().unwrap().contains("unknown tool"), "{answer}");
    let empty = Agent::with(false, crate::stub::Stub::default(), |daemon| daemon.tool_search = Some(3));
    assert_eq!(empty.names(json!({})).await, OWN, "without tools there is nothing to search");
}

#[tokio::test]
async fn a_withheld_toolset_cannot_be_submitted_to_by_its_tasks_name_130() {
    let agent = Agent::with(false, crate::stub::Stub { withheld: vec!["report".into()], ..stub() }, |_| {});
    let answer = value(&agent.call("reports_start", json!({})).await);
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    let body = json!({ "server": "reports", "task": "report", "arguments": {} }).to_string();
    let request =
        ::http::Request::builder().method("POST").uri("/api/threads/t1/mcp-tasks").header("host", "localhost");
    let request = request.header("content-type", "application/json").body(axum::body::Body::from(body)).unwrap();
    let response = tower::ServiceExt::oneshot(agent.routes.clone(), request).await.unwrap();
    assert_eq!(response.status(), 404);
    let text = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
    assert!(std::str::from_utf8(&text).unwrap().contains("guardrails"));
    assert!(agent.stub.submits.lock().unwrap().is_empty());
}
