//! What an agent with the Rust SDK sees of the daemon's tools: exactly what servers say, deferred where they should be, and
//! told when they change.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::post;
use mcp_taskd_tests::daemon::ApiError;
use mcp_taskd_tests::fake::{Era, FakeOptions, FakeServer};
use mcp_taskd_tests::wait::until;
use rmcp::model::{CallToolRequestParams, CallToolResult, ClientConfig, JsonObject};
use rmcp::service::{NotificationContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientHandler, RoleClient, ServiceExt as _};
use serde_json::{Value, json};

use crate::{fake, site};

/// A client that counts what it is told.
#[derive(Clone, Default)]
struct Listener(Arc<AtomicUsize>);

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::default()
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Agent {
    client: RunningService<RoleClient, Listener>,
    told: Arc<AtomicUsize>,
}

impl Agent {
    async fn connect(url: &str) -> Self {
        let listener = Listener::default();
        let told = Arc::clone(&listener.0);
        let transport = StreamableHttpClientTransport::from_uri(format!("{url}/mcp"));
        Self { client: listener.serve(transport).await.expect("a session"), told }
    }

    async fn names(&self) -> Vec<String> {
        let tools = self.client.list_all_tools().await.expect("a list");
        tools.into_iter().map(|tool| tool.name.into_owned()).collect()
    }

    async fn call(&self, tool: &'static str, arguments: Value) -> CallToolResult {
        let arguments: JsonObject = serde_json::from_value(arguments).unwrap();
        self.client.call_tool(CallToolRequestParams::new(tool).with_arguments(arguments)).await.expect("an answer")
    }

    fn told(&self) -> usize {
        self.told.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn deferred_tools_are_searched_listed_and_called_and_denied_ones_are_not_129_130() {
    let fake = fake().await;
    let routing =
        json!({"routing": {"mode": "prefer", "priority": 7}, "tools": {"echo": {"routing": {"keywords": ["parrot"]}}}});
    let site = site().server_with("s", &fake.url, false, routing).set("tool_search.enabled", true);
    let site = site.set("tool_search.auto_promote_top_k", 2).set("guardrails.enabled", true);
    let site = site.set("guardrails.provider.config.denied_tools", json!(["s_submit_report"]));
    let mut daemon = site.daemon("a");
    daemon.start().await;
    let (agent, other) = (Agent::connect(&daemon.api.url).await, Agent::connect(&daemon.api.url).await);
    let instructions = agent.client.peer_info().unwrap().instructions.clone().unwrap();
    assert!(instructions.contains("parrot") && instructions.contains("select:s_echo"), "{instructions}");
    let names = agent.names().await;
    assert!(names.contains(&"tool_search".to_owned()) && !names.contains(&"s_echo".to_owned()), "{names:?}");
    let refused = agent.call("s_echo", json!({})).await;
    assert_eq!(refused.is_error, Some(true));
    let denied = agent.call("tool_search", json!({"query": "select:s_submit_report"})).await;
    assert_eq!(denied.structured_content, Some(json!({"tools": []})), "what guardrails withhold is not found (130)");
    let submit = daemon.api.submit("s", &json!({}), None).await;
    assert!(matches!(submit, Err(ApiError::Refused(404, _))), "nor submitted to by its task's name: {submit:?}");
    assert!(fake.state.journal().is_empty(), "nothing of that reached the server");

    let found = agent.call("tool_search", json!({"query": "says what was said"})).await;
    assert_eq!(found.structured_content.unwrap()["tools"][0]["name"], "s_echo");
    until("the agent is told", async || agent.told() > 0).await;
    assert!(agent.names().await.contains(&"s_echo".to_owned()));
    assert!(!other.names().await.contains(&"s_echo".to_owned()), "another session is another list");
    assert_eq!(other.told(), 0);
    let echoed = agent.call("s_echo", json!({"a": 1})).await;
    assert_eq!(echoed.structured_content, Some(json!({"a": 1})));

    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list",
        "params": {"_meta": {"mcp-taskd/user-message": "Teach the PARROT a confidential-word"}}});
    let listed = post_mcp(&daemon.api.url, &message).await;
    assert!(listed.contains(r#""name":"s_echo""#), "{listed}");
    agent.client.cancel().await.unwrap();
    other.client.cancel().await.unwrap();
    daemon.stop().await;
    assert!(!daemon.log().contains("confidential-word"), "nothing of a user's message is logged");
}

#[tokio::test]
async fn an_agent_that_waits_is_told_when_a_server_is_back() {
    let good = fake().await;
    let bad = FakeServer::start(FakeOptions { era: Era::Stateless, ..FakeOptions::default() }).await;
    bad.state.faults.everywhere.store(true, Ordering::Relaxed);
    bad.state.faults.status.store(500, Ordering::Relaxed);
    let site = site().server("good", &good.url).server("bad", &bad.url);
    let mut daemon = site.daemon("a");
    daemon.start().await;
    let agent = Agent::connect(&daemon.api.url).await;
    assert!(!agent.names().await.contains(&"bad_echo".to_owned()));
    bad.state.faults.status.store(0, Ordering::Relaxed);
    until("the agent is told", async || agent.told() > 0).await;
    assert!(agent.names().await.contains(&"bad_echo".to_owned()));
    // A session's name is as good after a restart as before.
    daemon.kill9().await;
    daemon.start().await;
    until("the agent goes on", async || agent.client.list_all_tools().await.is_ok()).await;
    daemon.stop().await;
}

/// Tool definitions as a server may write them: odd numbers, escapes, orders of keys, members of its own.
const RAW: &str = concat!(
    r#"{"z-first":1.50,"name":"odd","title":"T\u00eftle \/ \ud83d\ude00","inputSchema":{"type":"object","properties":"#,
    r#"{"b":{"default":1e3,"minimum":-0.0},"a":{"const":123456789012345678901234567890.10}},"$defs":{}},"icons":"#,
    r#"[{"src":"data:,x","sizes":["any"]}],"annotations":{"readOnlyHint":true,"x":null},"_meta":{"k\u0065y":[1.0,2]}}"#
);

#[tokio::test]
async fn definitions_reach_the_agent_byte_for_byte_but_for_their_name_100() {
    let answer = async |body: String| {
        let request: Value = serde_json::from_str(&body).unwrap();
        let result = match request["method"].as_str() {
            Some("initialize") => {
                r#"{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"r","version":"1"}}"#
                    .to_owned()
            }
            Some("tools/list") => format!(r#"{{"tools":[{RAW}]}}"#),
            _ => return (http::StatusCode::ACCEPTED, [("content-type", "application/json")], String::new()),
        };
        let text = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, request["id"]);
        (http::StatusCode::OK, [("content-type", "application/json")], text)
    };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move { axum::serve(listener, Router::new().route("/mcp", post(answer))).await });
    let site = site().server_with("r", &url, false, json!({"task_toolsets": []}));
    let mut daemon = site.daemon("a");
    daemon.start().await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
    let listed = post_mcp(&daemon.api.url, &list).await;
    assert!(listed.contains(&RAW.replace(r#""name":"odd""#, r#""name":"r_odd""#)), "{listed}");
    daemon.stop().await;
    serving.abort();
}

/// A request without a session; the answer's text.
pub(crate) async fn post_mcp(url: &str, message: &Value) -> String {
    let request = reqwest::Client::new().post(format!("{url}/mcp")).json(message);
    let request = request.header("accept", "application/json, text/event-stream");
    request.send().await.unwrap().text().await.unwrap()
}
