//! `mcp-taskd mcp`: the gateway over standard input and output.

use std::process::Stdio;
use std::time::Duration;

use mcp_taskd_tests::daemon::finish;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::{fake, site};

/// An agent with its gateway as a child.
struct Agent {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    next: u64,
}

impl Agent {
    fn start(mut command: tokio::process::Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("a process");
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, input, output, next: 1 }
    }

    async fn send(&mut self, message: &Value) {
        self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    /// Asks and waits for the answer; whatever else comes is a message of the protocol too.
    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.next;
        self.next += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        loop {
            let line = tokio::time::timeout(Duration::from_secs(30), self.output.next_line()).await;
            let line = line.expect("an answer in time").unwrap().expect("an answer before the end");
            let message: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not JSON: {line}"));
            if message["id"] == id {
                assert!(message["error"].is_null(), "{message}");
                return message["result"].clone();
            }
        }
    }

    async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.ask("tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert_ne!(result["isError"], true, "{result}");
        result["structuredContent"].clone()
    }
}

fn initialize() -> Value {
    json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_on_stdio_submits_and_the_gateway_drains_at_the_end_of_input() {
    let fake = fake().await;
    let site = site().server("reports", &fake.url);
    let mut agent = Agent::start(site.command(&["mcp"]));
    let server = agent.ask("initialize", initialize()).await;
    assert_eq!(server["protocolVersion"], "2025-11-25");
    agent.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;

    let tools = agent.ask("tools/list", json!({})).await;
    let names: Vec<_> = tools["tools"].as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
    for seen in ["reports_submit_report", "reports_echo", "get_background_task", "list_background_tasks"] {
        assert!(names.contains(&seen), "{seen} is not among {names:?}");
    }
    for hidden in ["reports_get_report_status", "reports_cancel_report"] {
        assert!(!names.contains(&hidden), "{hidden} is the daemon's own affair (38)");
    }
    assert_eq!(agent.call("reports_echo", json!({"b": 1})).await, json!({"b": 1}));

    let script = json!({"script": {"polls": 1, "result_bytes": 20}});
    let done = agent.call("reports_submit_report", script).await;
    assert_eq!((&done["status"], &done["task_name"]), (&json!("submitted"), &json!("report")));
    let mut task = json!(null);
    while task["status"] != "completed" {
        let arguments = json!({"task_id": done["task_id"], "wait_seconds": 10});
        task = agent.call("get_background_task", arguments).await;
        assert_ne!(task["status"], "failed", "{task}");
    }
    let left = agent.call("reports_submit_report", json!({"script": {"end": "never"}})).await;

    let Agent { mut child, input, .. } = agent;
    drop(input);
    let ended = tokio::time::timeout(Duration::from_secs(10), child.wait()).await;
    assert_eq!(ended.expect("it ends with its input").unwrap().code(), Some(0));

    // What was left is in the store, nobody's, and goes on with the next who polls.
    let id = left["task_id"].as_str().unwrap();
    let row: Value =
        serde_json::from_str(&site.run(&["tasks", "get", id, "--output", "json"]).await.success()).unwrap();
    assert_eq!(row["lease_owner"], Value::Null, "{row}");
    assert!(["submitted", "working"].contains(&row["status"].as_str().unwrap()), "{row}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_on_stdio_is_told_of_other_tools_94() {
    let fake = fake().await;
    let site = site().server("reports", &fake.url);
    let mut agent = Agent::start(site.command(&["mcp"]));
    let server = agent.ask("initialize", initialize()).await;
    assert_eq!(server["capabilities"]["tools"]["listChanged"], true);
    agent.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    agent.ask("tools/list", json!({})).await;

    let path = site.path().join("extensions_config.json");
    let mut document: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    document["mcpServers"]["more"] = json!({"type": "http", "url": fake.url});
    std::fs::write(&path, document.to_string()).unwrap();
    let told = async {
        while let Some(line) = agent.output.next_line().await.unwrap() {
            if line.contains("notifications/tools/list_changed") {
                return;
            }
        }
        panic!("the gateway ended");
    };
    tokio::time::timeout(Duration::from_secs(30), told).await.expect("it is told");
    let tools = agent.ask("tools/list", json!({})).await;
    assert!(tools.to_string().contains("more_echo"));
    drop(agent.input);
    agent.child.wait().await.unwrap();
}

/// `printf … | mcp-taskd mcp`: the input is over before anything is answered.
#[tokio::test(flavor = "multi_thread")]
async fn every_request_of_a_finished_input_is_answered() {
    let fake = fake().await;
    fake.state.faults.latency_ms.store(300, std::sync::atomic::Ordering::Relaxed);
    let site = site().server("reports", &fake.url);
    let messages = [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize()}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": "reports_submit_report", "arguments": {"script": {"end": "never"}}}}),
    ];
    let input = messages.map(|message| message.to_string()).join("\n");
    let output = finish(site.command(&["mcp"]), &input).await.success();
    let answers: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).expect("only JSON")).collect();
    let answer = answers.iter().find(|answer| answer["id"] == 2).expect("the submit is answered");
    assert_eq!(answer["result"]["structuredContent"]["status"], "submitted", "{answer}");
    assert_eq!(fake.state.core.truths().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn native_tasks_of_both_generations_work_over_stdio() {
    let fake = fake().await;
    let site = site().server("reports", &fake.url);
    for modern in [false, true] {
        let mut agent = Agent::start(site.command(&["mcp"]));
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
        });
        let with = |mut params: Value| {
            if modern {
                params["_meta"] = meta.clone();
            }
            params
        };
        if modern {
            let discovered = agent.ask("server/discover", with(json!({}))).await;
            assert!(
                discovered["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"].is_object(),
                "{discovered}"
            );
        } else {
            let server = agent.ask("initialize", initialize()).await;
            assert!(server["capabilities"]["tasks"]["requests"]["tools"]["call"].is_object(), "{server}");
            agent.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        }
        let script = json!({"polls": 1, "result_bytes": 20});
        let mut call = json!({"name": "reports_submit_report", "arguments": {"script": script}});
        if !modern {
            call["task"] = json!({});
        }
        let made = agent.ask("tools/call", with(call)).await;
        let task = if modern { &made } else { &made["task"] };
        let id = task["taskId"].as_str().unwrap_or_else(|| panic!("no task: {made}")).to_owned();
        let result = if modern {
            let listen = json!({"jsonrpc": "2.0", "id": "listen", "method": "subscriptions/listen",
                "params": with(json!({"notifications": {"taskIds": [id]}}))});
            agent.send(&listen).await;
            loop {
                let line = tokio::time::timeout(Duration::from_secs(30), agent.output.next_line()).await;
                let told: Value = serde_json::from_str(&line.expect("in time").unwrap().expect("a line")).unwrap();
                assert_eq!(told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "listen", "{told}");
                if told["params"]["status"] == "completed" {
                    break told["params"]["result"].clone();
                }
            }
        } else {
            agent.ask("tasks/result", json!({"taskId": id})).await
        };
        assert_eq!(result["structuredContent"]["result"], "rrrrrrrrrrrrrrrrrr", "{result}");
        let got = agent.ask("tasks/get", with(json!({"taskId": id}))).await;
        assert_eq!((&got["taskId"], &got["status"]), (&json!(id), &json!("completed")), "{got}");
        drop(agent.input);
        tokio::time::timeout(Duration::from_secs(20), agent.child.wait()).await.expect("its input is over").unwrap();
    }
}
