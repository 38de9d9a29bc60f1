//! Agents are told that their list of tools is another now.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::time::timeout;
use tower::ServiceExt as _;

use super::tests::{Agent, stub, value};
use super::*;
use crate::stub::daemon;

const PATIENCE: Duration = Duration::from_secs(20);

fn agent(modern: bool) -> Agent {
    Agent::with(modern, stub(), |daemon| daemon.tool_search = Some(3))
}

/// The messages of an event stream.
pub(super) struct Events {
    body: BodyDataStream,
    text: String,
}

impl Events {
    pub(super) fn of(response: axum::response::Response) -> Self {
        assert_eq!(response.status(), 200);
        assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
        Self { body: response.into_body().into_data_stream(), text: String::new() }
    }

    /// The next message; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let message = event.lines().find_map(|line| line.strip_prefix("data:")).map(str::trim).map(value);
                self.text = rest.to_owned();
                if message.is_some() {
                    return message;
                }
                continue;
            }
            let chunk = timeout(PATIENCE, self.body.next()).await.expect("a message or the end")?.unwrap();
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}

impl Agent {
    async fn stream(&self) -> Events {
        let request = self.request("GET").body(Body::empty()).unwrap();
        Events::of(self.routes.clone().oneshot(request).await.unwrap())
    }

    fn change(&self) {
        self.stub.changed.send_modify(|changes| *changes += 1);
    }
}

const CHANGED: &str = "notifications/tools/list_changed";

#[tokio::test]
async fn a_client_with_a_session_is_told_on_its_get_stream() {
    let mut agent = agent(false);
    let initialize = json!({ "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": { "name": "test", "version": "1" } });
    let greeted = agent.send("initialize", initialize).await;
    assert!(greeted.headers()["mcp-session-id"].len() >= 16, "the Python SDK opens the stream only in a session");
    assert!(!agent.send("tools/list", json!({})).await.headers().contains_key("mcp-session-id"));

    agent.session = Some("s1");
    let mut mine = agent.stream().await;
    agent.session = Some("s2");
    let mut other = agent.stream().await;
    agent.change();
    assert_eq!(mine.next().await.unwrap(), json!({ "jsonrpc": "2.0", "method": CHANGED }));
    assert_eq!(other.next().await.unwrap()["method"], CHANGED);

    agent.session = Some("s1");
    agent.call("tool_search", json!({ "query": "select:web_search" })).await;
    assert_eq!(mine.next().await.unwrap()["method"], CHANGED, "its own list has grown");
    agent.daemon.shutdown.drain();
    assert_eq!(other.next().await, None, "the other's has not; a drain ends the stream");
    assert_eq!(mine.next().await, None);
}

#[tokio::test]
async fn a_client_without_sessions_subscribes() {
    let agent = agent(true);
    let response = agent.send("subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } })).await;
    let mut events = Events::of(response);
    let acknowledged = events.next().await.unwrap();
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged", "{acknowledged}");
    assert_eq!(acknowledged["params"]["notifications"]["toolsListChanged"], true, "{acknowledged}");
    agent.change();
    assert_eq!(events.next().await.unwrap()["method"], CHANGED);
    agent.call("tool_search", json!({ "query": "select:web_search" })).await;
    assert_eq!(events.next().await.unwrap()["method"], CHANGED, "of the same thread");
    agent.daemon.shutdown.drain();
    let last = events.next().await.unwrap();
    assert!(last["result"].is_object(), "the subscription has ended: {last}");
}

#[tokio::test]
async fn the_get_stream_is_refused_where_the_protocol_has_none() {
    let agent = agent(false);
    let ask = |version: &'static str, accept: &'static str| {
        let request = ::http::Request::builder().uri("/mcp").header("host", "localhost").header("accept", accept);
        let request = request.header("mcp-protocol-version", version).body(Body::empty()).unwrap();
        let routes = agent.routes.clone();
        async move { routes.oneshot(request).await.unwrap() }
    };
    assert_eq!(ask("2026-07-28", "text/event-stream").await.status(), 405);
    assert_eq!(ask("2025-06-18", "application/json").await.status(), 406);
    assert_eq!(ask("2025-06-18", "text/event-stream").await.status(), 200);
}

#[tokio::test]
async fn over_stdio_both_eras_are_told() {
    for modern in [false, true] {
        let (mut daemon, stub) = daemon(stub());
        daemon.tool_search = Some(3);
        let gateway = Gateway::local(daemon.clone(), Caller::new("ada".into()));
        let (mut requests, input) = tokio::io::duplex(1 << 16);
        let (output, answers) = tokio::io::duplex(1 << 16);
        let shutdown = daemon.shutdown.clone();
        let served = tokio::spawn(async move { stdio::serve_on(gateway, &shutdown, input, output).await });
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let opening = if modern {
            vec![json!({ "jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": {
                "_meta": meta, "notifications": { "toolsListChanged": true } } })]
        } else {
            vec![
                json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                    "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } } }),
                json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
            ]
        };
        for message in &opening {
            requests.write_all(format!("{message}\n").as_bytes()).await.unwrap();
        }
        let mut lines = BufReader::new(answers).lines();
        let mut next = async || value(&timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap());
        next().await;
        let mut search = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
            "name": "tool_search", "arguments": { "query": "select:web_search" } } });
        if modern {
            search["params"]["_meta"] = meta.clone();
        }
        // Once there is an answer, what was sent before was heard.
        let ping = json!({ "jsonrpc": "2.0", "id": 9, "method": "tools/list", "params": { "_meta": meta } });
        requests.write_all(format!("{ping}\n").as_bytes()).await.unwrap();
        while next().await["id"] != 9 {}
        until_listening(&stub).await;
        requests.write_all(format!("{search}\n").as_bytes()).await.unwrap();
        let (mut told, mut answered) = (0, false);
        while told == 0 || !answered {
            let message = next().await;
            told += usize::from(message["method"] == CHANGED);
            answered |= message["id"] == 2;
        }
        stub.changed.send_modify(|changes| *changes += 1);
        assert_eq!(next().await["method"], CHANGED, "modern: {modern}");
        drop(requests);
        timeout(PATIENCE, served).await.expect("a subscription does not hold the end of input back").unwrap().unwrap();
    }
}

/// Waits until somebody listens for changes of the catalogue.
async fn until_listening(stub: &crate::stub::Stub) {
    timeout(PATIENCE, async {
        while stub.changed.receiver_count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("a listener");
}
