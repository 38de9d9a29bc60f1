//! The MCP surface, through HTTP.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use mcp_taskd_core::catalog::{Routing, Tool};
use mcp_taskd_core::task::{Json, Status};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tower::ServiceExt as _;

use super::*;
use crate::api;
use crate::stub::{Stub, daemon, json as raw};
use crate::view::tests::task;

pub(super) const ODD: &str =
    r#"{"name":"web_search","x-vendor":{"z":1,"a":1.10},"inputSchema":{"type":"object","z":1,"a":2}}"#;

pub(super) fn stub() -> Stub {
    let record = task("mcp-task-1");
    let tool = |name: &str, raw_name: &str, definition: &str, submits: bool| {
        Arc::new(Tool {
            name: name.into(),
            server: "reports".into(),
            raw_name: raw_name.into(),
            definition: raw(definition),
            toolset: submits.then(|| Arc::new(record.binding.toolset.clone())),
            routing: Routing::default(),
        })
    };
    let tools = vec![
        tool("reports_start", "start_report", r#"{"name":"reports_start","inputSchema":{"type":"object"}}"#, true),
        tool("web_search", "search", ODD, false),
        tool("web_broken", "broken", r#"{"name":"web_broken","inputSchema":{"type":"object"}}"#, false),
    ];
    let mut done = task("mcp-task-1");
    done.tracked.status = Status::Completed;
    done.outcome.result = Some(Json::parse(r#"{"n":12345678901234567890.10}"#).unwrap());
    Stub { tools, tasks: vec![done], ..Stub::default() }
}

pub(super) struct Agent {
    pub(super) routes: axum::Router,
    pub(super) stub: Arc<Stub>,
    pub(super) daemon: Daemon,
    /// The protocol that it speaks.
    pub(super) version: &'static str,
    /// What it declares in each request of 2026-07-28.
    pub(super) capabilities: Value,
    /// The MCP session that requests name.
    pub(super) session: Option<&'static str>,
}

impl Agent {
    pub(super) fn new(modern: bool) -> Self {
        Self::with(modern, stub(), |_| {})
    }

    /// An agent of a daemon in front of `stub`, changed before it serves.
    pub(super) fn with(modern: bool, stub: Stub, change: impl FnOnce(&mut Daemon)) -> Self {
        let (mut daemon, stub) = daemon(stub);
        change(&mut daemon);
        let gateway = routes(Gateway::new(daemon.clone()), &daemon.shutdown);
        let version = if modern { "2026-07-28" } else { "2025-06-18" };
        let routes = api::public(daemon.clone(), gateway, true);
        Self { routes, stub, daemon, version, capabilities: json!({}), session: None }
    }

    /// A request without a body.
    pub(super) fn request(&self, method: &str) -> ::http::request::Builder {
        let request = ::http::Request::builder().method(method).uri("/mcp").header("host", "localhost:8787");
        let request = request.header("accept", "application/json, text/event-stream").header("x-user-id", "ada");
        match self.session {
            Some(session) => request.header("mcp-session-id", session),
            None => request.header("x-thread-id", "t1"),
        }
    }

    /// The text of the answer to a request, in either era.
    pub(super) async fn ask(&self, method: &str, params: Value) -> String {
        let response = self.send(method, params).await;
        String::from_utf8(to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap()
    }

    /// The answer to a request, in either era.
    pub(super) async fn send(&self, method: &str, mut params: Value) -> axum::response::Response {
        let mut request = self.request("POST").header("content-type", "application/json");
        if self.version == "2026-07-28" {
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
            params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({ "name": "test", "version": "1" });
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
            request = request.header("mcp-protocol-version", "2026-07-28").header("mcp-method", method);
            if let Some(name) = params["name"].as_str().or(params["taskId"].as_str()) {
                request = request.header("mcp-name", name);
            }
        } else {
            request = request.header("mcp-protocol-version", self.version);
        }
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        self.routes.clone().oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap()
    }

    /// The names that are listed.
    pub(super) async fn names(&self, params: Value) -> Vec<String> {
        let listed = value(&self.ask("tools/list", params).await);
        let tools = listed["result"]["tools"].as_array().unwrap_or_else(|| panic!("{listed}"));
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }

    pub(super) async fn call(&self, name: &str, arguments: Value) -> String {
        self.ask("tools/call", json!({ "name": name, "arguments": arguments })).await
    }
}

pub(super) fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test]
async fn definitions_are_listed_untouched_in_both_eras() {
    for modern in [false, true] {
        let text = Agent::new(modern).ask("tools/list", json!({})).await;
        assert!(text.contains(ODD), "{text}");
        let listed = value(&text);
        let names: Vec<_> =
            listed["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "reports_start",
                "web_search",
                "web_broken",
                "list_background_tasks",
                "get_background_task",
                "cancel_background_task"
            ]
        );
        assert_eq!(listed["result"]["resultType"].as_str(), modern.then_some("complete"), "{text}");
        assert_eq!(listed["result"].get("ttlMs").is_some(), modern);
        assert!(!text.contains("mcp-taskd/exact"));
    }
}

#[tokio::test]
async fn a_submit_tool_answers_with_the_local_task_for_the_callers_thread() {
    for modern in [false, true] {
        let agent = Agent::new(modern);
        let answer = value(&agent.call("reports_start", json!({ "topic": "x" })).await);
        assert_eq!(answer["result"]["structuredContent"]["task_id"], "mcp-task-new", "{answer}");
        assert_eq!(answer["result"]["structuredContent"]["status"], "submitted");
        let submits = agent.stub.submits.lock().unwrap();
        assert_eq!((submits[0].user_id.as_str(), submits[0].thread_id.as_str()), ("ada", "t1"));
        assert_eq!((submits[0].server.as_str(), submits[0].task.as_str()), ("reports", "report"));
        assert_eq!(submits[0].arguments.get(), r#"{"topic":"x"}"#);
    }
}

#[tokio::test]
async fn an_ordinary_tools_result_is_passed_on_exactly() {
    let text = Agent::new(false).call("web_search", json!({ "q": 1 })).await;
    let exact =
        r#""result":{"z":1e400,"content":[{"type":"odd","of":"ada"}],"structuredContent":{"q":1},"isError":false}"#;
    assert!(text.contains(exact), "{text}");
    let broken = value(&Agent::new(true).call("web_broken", json!({})).await);
    assert_eq!(broken["result"]["isError"], true);
    assert!(broken["result"]["content"][0]["text"].as_str().unwrap().contains("connection refused"));
}

#[tokio::test]
async fn hidden_and_unknown_tools_are_unknown_38() {
    for modern in [false, true] {
        let agent = Agent::new(modern);
        for name in ["report_status", "reports_report_cancel", "nothing"] {
            let answer = value(&agent.call(name, json!({})).await);
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
            assert!(answer["error"]["message"].as_str().unwrap().contains("unknown tool"));
        }
        let answer = value(&agent.call("web_search", json!([1])).await);
        assert_eq!(answer["error"]["code"], -32602, "arguments must be an object: {answer}");
    }
}

#[tokio::test]
async fn a_result_is_exact_through_the_builtin_too_151() {
    for modern in [false, true] {
        let agent = Agent::new(modern);
        let text = agent.call("get_background_task", json!({ "task_id": "mcp-task-1" })).await;
        assert!(text.contains(r#""result":{"n":12345678901234567890.10}"#), "{text}");
        assert!(!text.contains("remote-secret"));
        let listed = value(&agent.call("list_background_tasks", json!({ "limit": 5.0, "active_only": true })).await);
        assert_eq!(listed["result"]["structuredContent"]["tasks"][0]["task_id"], "mcp-task-1");
        let cancelled = value(&agent.call("cancel_background_task", json!({ "task_id": "mcp-task-1" })).await);
        assert_eq!(cancelled["result"]["structuredContent"]["cancelled"], false, "it is completed (63)");
        for (tool, arguments) in [
            ("list_background_tasks", json!({ "limit": 51 })),
            ("list_background_tasks", json!({ "limit": 1.5 })),
            ("list_background_tasks", json!({ "limit": -1 })),
            ("get_background_task", json!({ "task_id": "mcp-task-1", "wait_seconds": 51 })),
            ("get_background_task", json!({ "task_id": "mcp-task-2" })),
            ("get_background_task", json!({})),
            ("cancel_background_task", json!({ "name": "x" })),
        ] {
            let answer = value(&agent.call(tool, arguments.clone()).await);
            assert_eq!(answer["result"]["isError"], true, "{tool} {arguments}: {answer}");
        }
    }
}

#[tokio::test]
async fn both_eras_shake_hands() {
    let initialize = json!({
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": { "name": "test", "version": "1" },
    });
    let legacy = value(&Agent::new(false).ask("initialize", initialize).await);
    assert_eq!(legacy["result"]["protocolVersion"], "2025-06-18", "{legacy}");
    assert_eq!(legacy["result"]["serverInfo"]["name"], "mcp-taskd");
    assert_eq!(legacy["result"]["capabilities"]["tools"]["listChanged"], true);
    let modern = value(&Agent::new(true).ask("server/discover", json!({})).await);
    assert!(modern["result"]["capabilities"]["tools"].is_object(), "{modern}");
    let ping = value(&Agent::new(false).ask("ping", json!({})).await);
    assert_eq!(ping["result"], json!({}));
}

#[tokio::test]
async fn a_body_that_is_no_message_gets_a_json_rpc_error() {
    let agent = Agent::new(false);
    let post = |body: &'static str, media_type: &'static str, accept: &'static str| {
        let request = ::http::Request::builder().method("POST").uri("/mcp").header("host", "localhost");
        let request =
            request.header("content-type", media_type).header("accept", accept).body(Body::from(body)).unwrap();
        let routes = agent.routes.clone();
        async move {
            let response = routes.oneshot(request).await.unwrap();
            let status = response.status().as_u16();
            let text = to_bytes(response.into_body(), 1 << 20).await.unwrap();
            (status, value(std::str::from_utf8(&text).unwrap())["error"]["code"].as_i64())
        }
    };
    let (json, both) = ("application/json", "application/json, text/event-stream");
    assert_eq!(post("garbage", json, both).await, (400, Some(-32700)));
    assert_eq!(post("[]", json, both).await, (400, Some(-32600)));
    assert_eq!(post("{}", json, "text/html").await, (406, Some(-32600)));
    assert_eq!(post("garbage", "text/plain", both).await, (415, Some(-32600)));
    let wrong = value(&agent.ask("initialize", json!({})).await);
    assert_eq!(wrong["error"]["code"], -32602, "{wrong}");
    let unknown = value(&agent.ask("nothing/such", json!({})).await);
    assert_eq!(unknown["error"]["code"], -32601);
    assert_eq!(unknown["error"]["message"], "method not found: nothing/such");
}

#[tokio::test]
async fn without_sessions_there_is_no_greeting_with_one() {
    let agent = Agent::new(true);
    for params in [json!({}), json!({ "protocolVersion": "2026-07-28" })] {
        let response = agent.send("initialize", params).await;
        assert_eq!(response.status(), 404);
        let body = to_bytes(response.into_body(), 1 << 16).await.unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["error"]["code"], -32601);
    }
}

#[tokio::test]
async fn headers_that_a_schema_asks_for_must_say_what_the_arguments_say() {
    let mut stub = stub();
    let definition = json!({ "name": "web_search", "inputSchema": { "type": "object", "properties": {
        "region": { "type": "string", "x-mcp-header": "Region" } } } });
    let tool = Arc::make_mut(&mut stub.tools[1]);
    tool.definition = raw(&definition.to_string());
    let agent = Agent::with(true, stub, |_| {});
    let answered = async |header: Option<&str>| {
        let meta = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {} });
        let mut request = agent.request("POST").header("content-type", "application/json");
        for (name, value) in
            [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "web_search")]
        {
            request = request.header(name, value);
        }
        if let Some(value) = header {
            request = request.header("mcp-param-region", value);
        }
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {
            "name": "web_search", "arguments": { "region": "west" }, "_meta": meta } });
        let response = agent.routes.clone().oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let text = to_bytes(response.into_body(), 1 << 16).await.unwrap();
        (status, String::from_utf8_lossy(&text).contains("-32020"))
    };
    assert_eq!(answered(Some("west")).await, (200, false));
    assert_eq!(answered(Some("=?base64?d2VzdA==?=")).await, (200, false));
    for wrong in [None, Some("east"), Some("=?base64?d2VzdA?="), Some("=?base64?d2V!dA==?=")] {
        assert_eq!(answered(wrong).await, (400, true), "{wrong:?}");
    }
}

#[tokio::test]
async fn over_stdio_a_line_that_is_no_message_ends_nothing_and_is_not_waited_for() {
    let (daemon, _) = daemon(stub());
    let gateway = Gateway::local(daemon.clone(), Caller::new("ada".into()));
    let (mut requests, input) = tokio::io::duplex(1 << 16);
    let (output, mut answers) = tokio::io::duplex(1 << 16);
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } } });
    requests.write_all(format!("{initialize}\n").as_bytes()).await.unwrap();
    requests
        .write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n\xff\xfe\ngarbage\n")
        .await
        .unwrap();
    for line in [r#"{"id":2,"method":"ping"}"#, r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, "[]"] {
        requests.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
    requests.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"ping\"}\n").await.unwrap();
    drop(requests);
    let served = stdio::serve_on(gateway, &daemon.shutdown, input, output);
    tokio::time::timeout(std::time::Duration::from_secs(20), served).await.expect("the end of input counts").unwrap();
    let mut text = String::new();
    answers.read_to_string(&mut text).await.unwrap();
    assert!(text.lines().any(|line| value(line)["id"] == 3 && value(line)["result"].is_object()), "{text}");
}

#[tokio::test]
async fn over_stdio_everything_that_was_asked_is_answered_before_the_end_of_input_counts() {
    let (daemon, stub) = daemon(stub());
    let gateway = Gateway::local(daemon.clone(), Caller::new("ada".into()));
    let (mut requests, input) = tokio::io::duplex(1 << 16);
    let (output, mut answers) = tokio::io::duplex(1 << 16);
    for message in [
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } } }),
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" }),
        json!({ "jsonrpc": "2.0", "id": "three", "method": "tools/call", "params": {
            "name": "reports_start", "arguments": {}, "_meta": { "mcp-taskd/thread-id": "t9" } } }),
        json!({ "jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {
            "name": "get_background_task", "arguments": { "task_id": "mcp-task-1", "wait_seconds": 0.2 },
            "_meta": { "mcp-taskd/thread-id": "t1" } } }),
    ] {
        requests.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }
    drop(requests);
    stdio::serve_on(gateway, &daemon.shutdown, input, output).await.unwrap();
    let mut text = String::new();
    answers.read_to_string(&mut text).await.unwrap();
    let ids: Vec<_> = text.lines().map(|line| value(line)["id"].clone()).collect();
    assert_eq!(ids.len(), 4, "{text}");
    assert!(text.contains(ODD) && text.contains(r#""result":{"n":12345678901234567890.10}"#), "{text}");
    let submits = stub.submits.lock().unwrap();
    assert_eq!((submits[0].user_id.as_str(), submits[0].thread_id.as_str()), ("ada", "t9"));
}
