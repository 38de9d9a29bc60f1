//! Native MCP Tasks of both generations: any replica answers for any task, to its user only, also after `kill -9`.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt as _;
use mcp_taskd_tests::daemon::{Api, Site};
use mcp_taskd_tests::wait::{PATIENCE, until};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{fake, site};

/// An agent that speaks MCP Tasks, by itself: without an SDK that could hide what is on the wire.
struct Client {
    api: Api,
    version: &'static str,
}

impl Client {
    fn core(api: &Api) -> Self {
        Self { api: api.clone(), version: "2025-11-25" }
    }

    fn extension(api: &Api) -> Self {
        Self { api: api.clone(), version: "2026-07-28" }
    }

    fn is_core(&self) -> bool {
        self.version == "2025-11-25"
    }

    async fn send(&self, method: &str, mut params: Value) -> Response {
        let mut request = self.api.plain(Method::POST, "/mcp").timeout(PATIENCE);
        request = request.header("accept", "application/json, text/event-stream");
        request = request.header("mcp-protocol-version", self.version);
        if !self.is_core() {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": self.version,
                "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities":
                    {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}},
            });
            request = request.header("mcp-method", method);
            if let Some(name) = params["taskId"].as_str().or(params["name"].as_str()) {
                request = request.header("mcp-name", name);
            }
        }
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        request.json(&message).send().await.expect("an answer")
    }

    /// The answer, which may come at the end of a stream; and what came before it.
    async fn told(&self, method: &str, params: Value) -> (Vec<Value>, Value) {
        let text = self.send(method, params).await.text().await.expect("a whole answer");
        let mut messages = messages(&text);
        let answer = messages.pop().unwrap_or_else(|| panic!("no answer: {text}"));
        assert_eq!(answer["id"], 1, "{text}");
        (messages, answer)
    }

    async fn ask(&self, method: &str, params: Value) -> Value {
        self.told(method, params).await.1
    }

    async fn result(&self, method: &str, params: Value) -> Value {
        let answer = self.ask(method, params).await;
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Submits a report that becomes a task.
    async fn submit(&self, script: &Value) -> String {
        let mut call = json!({"name": "s_submit_report", "arguments": {"script": script}});
        if self.is_core() {
            call["task"] = json!({"ttl": 60_000});
        }
        let result = self.result("tools/call", call).await;
        let task = if self.is_core() { &result["task"] } else { &result };
        assert_eq!(task["status"], "working", "{result}");
        task["taskId"].as_str().unwrap_or_else(|| panic!("no task: {result}")).to_owned()
    }

    async fn get(&self, id: &str) -> Value {
        self.result("tasks/get", json!({"taskId": id})).await
    }

    async fn reaches(&self, id: &str, status: &str) -> Value {
        until(status, async || self.get(id).await["status"] == status).await;
        self.get(id).await
    }
}

/// Of an answer in either form.
fn messages(text: &str) -> Vec<Value> {
    let events: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("data:")).collect();
    let texts = if events.is_empty() { vec![text] } else { events };
    texts.into_iter().map(|text| serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))).collect()
}

async fn replicated() -> (mcp_taskd_tests::fake::FakeServer, Site) {
    let fake = fake().await;
    let site = site().server("s", &fake.url);
    (fake, site)
}

#[tokio::test]
async fn a_task_made_on_one_replica_is_anothers_too_and_never_another_users() {
    let (_fake, site) = replicated().await;
    let (mut a, mut b) = (site.daemon("a"), site.daemon("b"));
    a.start().await;
    b.start().await;
    for make in [Client::core, Client::extension] {
        let listed = make(&a.api).result("tools/list", json!({})).await;
        let tool = listed["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == "s_submit_report").unwrap();
        let required = tool["outputSchema"]["required"].as_array().unwrap().clone();

        let id = make(&a.api).submit(&json!({"polls": 2, "result_bytes": 20})).await;
        assert_eq!(make(&b.api).get(&id).await["taskId"], id.as_str(), "it is durable before it is told");
        let ended = make(&b.api).reaches(&id, "completed").await;
        let result = match make(&b.api) {
            client if client.is_core() => client.result("tasks/result", json!({"taskId": id})).await,
            _ => ended["result"].clone(),
        };
        for member in required {
            let member = member.as_str().unwrap();
            assert!(result["structuredContent"][member].is_string(), "{member} of the output schema: {result}");
        }
        assert_eq!(result["structuredContent"]["result"], "rrrrrrrrrrrrrrrrrr", "{result}");
        assert_eq!(result["isError"], false);
        let as_tool = json!({"name": "get_background_task", "arguments": {"task_id": id}});
        let as_tool = make(&a.api).result("tools/call", as_tool).await["structuredContent"].clone();
        for member in ["task_id", "task_name", "status", "result"] {
            assert_eq!(
                result["structuredContent"][member], as_tool[member],
                "the builtin tool says the same: {member}"
            );
        }

        let eve = b.api.of("eve");
        for method in ["tasks/get", "tasks/cancel"] {
            let others = make(&eve).ask(method, json!({"taskId": id})).await;
            assert_eq!(others["error"]["code"], -32602, "{others}");
            assert_eq!(others, make(&eve).ask(method, json!({"taskId": "mcp-task-none"})).await);
        }

        let running = make(&a.api).submit(&json!({"polls": 3})).await;
        a.kill9().await;
        assert_eq!(make(&b.api).get(&running).await["taskId"], running.as_str());
        a.start().await;
        make(&a.api).reaches(&running, "completed").await;
    }
    a.stop().await;
    b.stop().await;
}

#[tokio::test]
async fn a_result_is_waited_for_on_a_stream_that_tells_how_it_goes() {
    let (_fake, site) = replicated().await;
    let (mut a, mut b) = (site.daemon("a"), site.daemon("b"));
    a.start().await;
    b.start().await;
    let id = Client::core(&a.api).submit(&json!({"run_ms": 1_500, "poll_after_seconds": 0.5})).await;
    let (told, answer) = Client::core(&b.api).told("tasks/result", json!({"taskId": id})).await;
    assert!(!told.is_empty(), "a stream is kept alive, a pending answer is not");
    assert!(told.iter().all(|told| told["method"] == "notifications/tasks/status"), "{told:?}");
    assert!(told.iter().all(|told| told["params"]["taskId"] == id.as_str()), "{told:?}");
    assert_eq!(answer["result"]["structuredContent"]["status"], "completed", "{answer}");
    assert_eq!(answer["result"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], id.as_str());

    let failing = Client::core(&a.api).submit(&json!({"end": "failed"})).await;
    let answer = Client::core(&b.api).result("tasks/result", json!({"taskId": failing})).await;
    assert_eq!(answer["isError"], true, "{answer}");
    assert!(answer["content"][0]["text"].as_str().unwrap().contains("could not be made"), "{answer}");
    let failed = Client::core(&b.api).get(&failing).await;
    assert_eq!(
        (&failed["status"], &failed["statusMessage"]),
        (&json!("failed"), &json!("the report could not be made"))
    );
    let failed = Client::extension(&b.api).get(&failing).await;
    assert_eq!((&failed["status"], &failed["result"]["isError"]), (&json!("completed"), &json!(true)), "{failed}");
    let lost = Client::extension(&a.api).submit(&json!({"end": "not_found"})).await;
    let lost = Client::extension(&b.api).reaches(&lost, "failed").await;
    assert_eq!(lost["error"]["code"], -32603, "no tool answered for it: {lost}");
    a.stop().await;
    b.stop().await;
}

#[tokio::test]
async fn a_cancel_is_answered_with_the_cancelled_task_or_with_the_truth() {
    let (_fake, site) = replicated().await;
    let mut daemon = site.daemon("a");
    daemon.start().await;
    let client = Client::core(&daemon.api);
    let id = client.submit(&json!({"end": "never"})).await;
    let cancelled = client.result("tasks/cancel", json!({"taskId": id})).await;
    assert_eq!((&cancelled["taskId"], &cancelled["status"]), (&json!(id), &json!("cancelled")), "{cancelled}");
    let again = client.ask("tasks/cancel", json!({"taskId": id})).await;
    assert_eq!(again["error"]["code"], -32602, "{again}");
    assert!(again["error"]["message"].as_str().unwrap().contains("'cancelled'"), "{again}");
    let result = client.result("tasks/result", json!({"taskId": id})).await;
    assert_eq!(result["isError"], true);

    let deaf = client.submit(&json!({"end": "never", "deaf_cancels": 1_000_000})).await;
    let told = client.result("tasks/cancel", json!({"taskId": deaf})).await;
    assert_eq!(told["status"], "working", "a server that does not listen has not cancelled it: {told}");
    assert!(told["statusMessage"].as_str().unwrap().contains("cancel is requested"), "{told}");

    let client = Client::extension(&daemon.api);
    let id = client.submit(&json!({"end": "never"})).await;
    for _ in 0..2 {
        assert_eq!(client.result("tasks/cancel", json!({"taskId": id})).await, json!({"resultType": "complete"}));
    }
    client.reaches(&id, "cancelled").await;
    assert_eq!(client.result("tasks/cancel", json!({"taskId": id})).await, json!({"resultType": "complete"}));
    daemon.stop().await;
}

#[tokio::test]
async fn a_question_is_asked_once_answered_on_any_replica_and_refused_where_nothing_takes_it() {
    let fake = fake().await;
    let toolset = json!([{"name": "report", "submit_tool": "submit_report", "status_tool": "get_report_status",
        "cancel_tool": "cancel_report"}]);
    let site = site().server("s", &fake.url).server_with("mute", &fake.url, false, json!({"task_toolsets": toolset}));
    let (mut a, mut b) = (site.daemon("a"), site.daemon("b"));
    a.start().await;
    b.start().await;
    let (client, other) = (Client::extension(&a.api), Client::extension(&b.api));
    let id = client.submit(&json!({"ask_input": true})).await;
    let asked = client.reaches(&id, "input_required").await["inputRequests"].clone();
    assert_eq!(other.get(&id).await["inputRequests"], asked, "the same key on every replica");
    let key = asked.as_object().unwrap().keys().next().unwrap().clone();
    assert_eq!(asked[&key]["params"]["message"], "Which quarter?", "{asked}");
    let answer = json!({ &key: {"action": "accept", "content": {"answer": "q3"}} });
    let update = json!({"taskId": id, "inputResponses": answer});
    assert_eq!(other.result("tasks/update", update.clone()).await, json!({"resultType": "complete"}));
    client.reaches(&id, "completed").await;
    let journal = fake.state.journal();
    assert_eq!(journal.iter().filter(|called| called.tool == "send_report_input").count(), 1);
    assert_eq!(other.result("tasks/update", update).await, json!({"resultType": "complete"}), "nothing is outstanding");

    let core = Client::core(&a.api);
    let id = core.submit(&json!({"ask_input": true})).await;
    assert_eq!(core.reaches(&id, "input_required").await["statusMessage"], "Which quarter?");

    let call = json!({"name": "mute_submit_report", "arguments": {"script": {"ask_input": true}}});
    let id = client.result("tools/call", call).await["taskId"].as_str().unwrap().to_owned();
    let asked = client.reaches(&id, "input_required").await["inputRequests"].clone();
    let key = asked.as_object().unwrap().keys().next().unwrap().clone();
    let answer = json!({"taskId": id, "inputResponses": {key: {"action": "accept", "content": {"answer": "q3"}}}});
    let refused = client.ask("tasks/update", answer).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("input_tool"), "{refused}");
    a.stop().await;
    b.stop().await;
}

#[tokio::test]
async fn a_subscription_on_another_replica_tells_of_the_end_with_the_result() {
    let (_fake, site) = replicated().await;
    let (mut a, mut b) = (site.daemon("a"), site.daemon("b"));
    a.start().await;
    b.start().await;
    let id = Client::extension(&a.api).submit(&json!({"polls": 2})).await;
    let filter = json!({"notifications": {"taskIds": [id, "mcp-task-none"]}});
    let mut stream = Client::extension(&b.api).send("subscriptions/listen", filter).await.bytes_stream();
    let mut text = String::new();
    let end = async {
        while !text.contains("\"completed\"") {
            let chunk = stream.next().await.expect("the stream stays open").expect("a chunk");
            text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    };
    timeout(Duration::from_secs(25), end).await.expect("the end is told");
    let told = messages(&text);
    assert_eq!(told[0]["params"]["notifications"], json!({"taskIds": [id]}), "{text}");
    let last = &told.last().unwrap()["params"];
    assert_eq!(last["result"]["structuredContent"]["task_id"], id.as_str(), "{text}");
    assert_eq!(last["_meta"]["io.modelcontextprotocol/subscriptionId"], 1);
    drop(stream);
    a.stop().await;
    b.stop().await;
}

#[tokio::test]
async fn the_list_has_every_own_task_once_over_its_pages() {
    let (_fake, site) = replicated().await;
    let mut daemon = site.daemon("a");
    daemon.start().await;
    let made: BTreeSet<String> = daemon
        .api
        .submit_many("s", &json!({"end": "never", "poll_after_seconds": 60}), 120)
        .await
        .into_iter()
        .collect();
    let eve = daemon.api.of("eve");
    let hers = Client::core(&eve).submit(&json!({"end": "never"})).await;
    let (mut seen, mut params, mut pages) = (Vec::new(), json!({}), 0);
    loop {
        let page = Client::core(&daemon.api).result("tasks/list", params).await;
        seen.extend(page["tasks"].as_array().unwrap().iter().map(|task| task["taskId"].as_str().unwrap().to_owned()));
        pages += 1;
        let Some(cursor) = page["nextCursor"].as_str() else { break };
        params = json!({ "cursor": cursor });
    }
    assert_eq!((pages, seen.len()), (3, 120));
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), made);
    let listed = Client::core(&eve).result("tasks/list", json!({})).await;
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 1);
    assert_eq!(listed["tasks"][0]["taskId"], hers.as_str());
    daemon.stop().await;
}
