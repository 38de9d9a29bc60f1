//! Native MCP Tasks, through HTTP.

use mcp_taskd_core::service::ServiceError;
use mcp_taskd_core::task::{Json, Status};
use serde_json::{Value, json};

use super::changes_tests::Events;
use super::tests::{Agent, stub, value};
use crate::stub::Stub;
use crate::view::tests::task;

const CORE: &str = "2025-11-25";

fn core(stub: Stub) -> Agent {
    Agent { version: CORE, ..Agent::with(false, stub, |_| {}) }
}

/// An agent that declares the extension, and answers questions.
fn extension(stub: Stub) -> Agent {
    let capabilities = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} }, "elicitation": {} });
    Agent { capabilities, ..Agent::with(true, stub, |_| {}) }
}

fn waiting() -> Stub {
    let mut asks = task("mcp-task-2");
    asks.tracked.status = Status::InputRequired;
    asks.outcome.input_required = Some(Json::parse(r#"{"question":"Which?","choices":["a","b"]}"#).unwrap());
    let mut stub = stub();
    stub.tasks.push(asks);
    stub
}

async fn about(agent: &Agent, method: &str, task: &str) -> Value {
    value(&agent.ask(method, json!({ "taskId": task })).await)
}

#[tokio::test]
async fn only_clients_of_2025_11_25_are_told_of_tasks_in_the_greeting_and_in_the_list() {
    for version in ["2025-03-26", "2025-06-18", CORE] {
        let agent = Agent { version, ..Agent::new(false) };
        let hello =
            json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
        let response = agent.send("initialize", hello).await;
        assert!(response.headers().contains_key("mcp-session-id"));
        let greeted = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
        let greeted: Value = serde_json::from_slice(&greeted).unwrap();
        let capabilities = &greeted["result"]["capabilities"];
        assert_eq!(greeted["result"]["protocolVersion"], version);
        assert_eq!(capabilities["tools"]["listChanged"], true);
        let tasks = json!({ "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } });
        assert_eq!(capabilities.get("tasks"), (version == CORE).then_some(&tasks), "{version}");
        assert_eq!(capabilities.get("extensions"), None);
        assert_eq!(greeted["result"].get("_meta"), None);
        let listed = value(&agent.ask("tools/list", json!({})).await);
        let support: Vec<_> = listed["result"]["tools"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|tool| tool["execution"]["taskSupport"].as_str())
            .collect();
        assert_eq!(support.first().copied(), (version == CORE).then_some("optional"), "{version}");
        assert!(support.len() <= 1, "no other tool runs as a task");
    }
    let discovered = value(&Agent::new(true).ask("server/discover", json!({})).await);
    let capabilities = &discovered["result"]["capabilities"];
    assert_eq!(capabilities["extensions"], json!({ "io.modelcontextprotocol/tasks": {} }));
    assert_eq!(capabilities.get("tasks"), None);
    assert!(!Agent::new(true).ask("tools/list", json!({})).await.contains("taskSupport"));
}

#[tokio::test]
async fn a_submit_becomes_a_task_for_whoever_asks_for_one_and_for_nobody_else() {
    let agent = core(stub());
    let call = json!({ "name": "reports_start", "arguments": { "topic": "x" }, "task": { "ttl": 60_000 } });
    let made = value(&agent.ask("tools/call", call.clone()).await)["result"].clone();
    assert_eq!(made["task"]["taskId"], "mcp-task-new", "{made}");
    assert_eq!((&made["task"]["status"], &made["task"]["ttl"]), (&json!("working"), &Value::Null));
    let immediate = made["_meta"]["io.modelcontextprotocol/model-immediate-response"].as_str().unwrap();
    assert!(immediate.contains("mcp-task-new") && immediate.contains("do not poll"), "{immediate}");
    for stray in ["content", "isError", "resultType", "structuredContent"] {
        assert_eq!(made.get(stray), None, "{made}");
    }
    assert_eq!(agent.stub.submits.lock().unwrap()[0].arguments.get(), r#"{"topic":"x"}"#);
    let plain = value(&agent.call("reports_start", json!({})).await);
    assert_eq!(plain["result"]["structuredContent"]["task_id"], "mcp-task-new", "without task nothing changes");

    let made = value(&extension(stub()).call("reports_start", json!({})).await)["result"].clone();
    assert_eq!((&made["resultType"], &made["taskId"]), (&json!("task"), &json!("mcp-task-new")), "{made}");
    assert_eq!(
        (&made["status"], &made["ttlMs"], &made["pollIntervalMs"]),
        (&json!("working"), &Value::Null, &json!(5_000))
    );
    assert!(made.get("task").is_none() && made.get("content").is_none(), "{made}");

    // The extension in a client of another protocol, and `task` in one that has none, are nothing.
    for agent in [Agent::new(true), Agent::new(false), Agent { version: CORE, ..extension(stub()) }] {
        let mut call = call.clone();
        if agent.version == CORE {
            call.as_object_mut().unwrap().remove("task");
        }
        let answer = value(&agent.ask("tools/call", call).await);
        assert_eq!(answer["result"]["structuredContent"]["status"], "submitted", "{answer}");
    }
}

#[tokio::test]
async fn a_task_that_cannot_be_is_an_error_where_a_task_was_asked_for() {
    let agent = core(stub());
    for (name, task, code) in [
        ("web_search", json!({}), -32601),
        ("get_background_task", json!({}), -32601),
        ("reports_start", json!(true), -32602),
        ("reports_start", json!({ "ttl": "long" }), -32602),
        ("reports_start", json!({ "ttl": -1 }), -32602),
    ] {
        let call = json!({ "name": name, "arguments": { "task_id": "mcp-task-1" }, "task": task });
        let answer = value(&agent.ask("tools/call", call).await);
        assert_eq!(answer["error"]["code"], code, "{name}: {answer}");
    }
    assert!(agent.stub.submits.lock().unwrap().is_empty());
    let refusing = || Stub { submit_error: Some(ServiceError::Refused("no room".into())), ..stub() };
    let call = json!({ "name": "reports_start", "arguments": {}, "task": {} });
    let answer = value(&core(refusing()).ask("tools/call", call).await);
    assert_eq!(answer["error"]["code"], -32603);
    assert!(answer["error"]["message"].as_str().unwrap().contains("no room"), "{answer}");
    let answer = value(&extension(refusing()).call("reports_start", json!({})).await);
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    let answer = extension(stub()).call("web_search", json!({})).await;
    assert!(answer.contains(r#""resultType":"complete""#), "other tools answer as ever: {answer}");
}

#[tokio::test]
async fn a_task_is_shown_whole_in_the_extension_and_exactly_151() {
    let agent = extension(stub());
    let text = agent.ask("tasks/get", json!({ "taskId": "mcp-task-1" })).await;
    assert!(text.contains(r#""result":{"n":12345678901234567890.10}"#), "{text}");
    let task = value(&text)["result"].clone();
    assert_eq!((&task["resultType"], &task["status"]), (&json!("complete"), &json!("completed")));
    assert_eq!(task["result"]["structuredContent"]["task_id"], "mcp-task-1");
    assert_eq!(task.get("_meta"), None);
    assert!(!text.contains("remote-secret") && !text.contains("mcp-taskd/exact"));
}

#[tokio::test]
async fn another_users_an_unknown_and_another_threads_task_are_the_same_error() {
    for agent in [core(stub()), extension(stub())] {
        for method in ["tasks/get", "tasks/cancel"] {
            let absent = about(&agent, method, "mcp-task-absent").await;
            assert_eq!(absent["error"]["code"], -32602, "{absent}");
            let mut other = stub();
            other.tasks[0].tracked.user_id = "eve".into();
            let mut thread = stub();
            thread.tasks[0].tracked.thread_id = "t2".into();
            for hidden in [other, thread] {
                let make = if agent.version == CORE { core } else { extension };
                assert_eq!(about(&make(hidden), method, "mcp-task-1").await, absent);
            }
        }
    }
}

#[tokio::test]
async fn each_generation_has_its_own_methods() {
    let found = async |agent: &Agent, method: &str| {
        let params = json!({ "taskId": "mcp-task-1", "inputResponses": {} });
        let answer = value(&agent.ask(method, params).await);
        answer["error"]["code"].as_i64().unwrap_or(0)
    };
    let all = ["tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "tasks/update"];
    let mut codes = Vec::new();
    let old = Agent::new(false);
    for agent in [&core(stub()), &extension(stub()), &Agent::new(true), &old] {
        let mut row = Vec::new();
        for method in all {
            row.push(found(agent, method).await);
        }
        codes.push(row);
    }
    // The cancel of a task that has ended is refused in 2025-11-25 and acknowledged in the extension.
    assert_eq!(codes[0], [0, 0, 0, -32602, -32601], "2025-11-25");
    assert_eq!(codes[1], [0, -32601, -32601, 0, 0], "2026-07-28");
    assert_eq!(codes[2], [-32021, -32601, -32601, -32021, -32021], "2026-07-28 without the extension");
    assert_eq!(codes[3], [-32601; 5], "before");
    let named = value(&old.ask("tasks/get", json!({ "taskId": "x" })).await);
    assert_eq!(named["error"]["message"], "method not found: tasks/get");
    for agent in [core(stub()), extension(stub())] {
        let wrong = value(&agent.ask("tasks/get", json!({ "task": 1 })).await);
        assert_eq!(wrong["error"]["code"], -32602, "{wrong}");
        assert!(wrong["error"]["message"].as_str().unwrap().contains("taskId"));
    }
}

#[tokio::test]
async fn an_ended_tasks_result_is_the_tools_and_names_its_task() {
    let text = core(stub()).ask("tasks/result", json!({ "taskId": "mcp-task-1" })).await;
    assert!(text.contains(r#""result":{"n":12345678901234567890.10}"#), "{text}");
    let result = value(&text)["result"].clone();
    assert_eq!(result["_meta"], json!({ "io.modelcontextprotocol/related-task": { "taskId": "mcp-task-1" } }));
    assert_eq!((&result["isError"], result.get("resultType")), (&json!(false), None));
}

#[tokio::test]
async fn a_wait_for_a_result_ends_with_the_daemon_and_tells_the_state_meanwhile() {
    let agent = core(waiting());
    let mut events = Events::of(agent.send("tasks/result", json!({ "taskId": "mcp-task-2" })).await);
    let told = events.next().await.unwrap();
    assert_eq!(told["method"], "notifications/tasks/status", "{told}");
    assert_eq!(
        (&told["params"]["taskId"], &told["params"]["status"]),
        (&json!("mcp-task-2"), &json!("input_required"))
    );
    agent.daemon.shutdown.drain();
    let last = events.next().await.unwrap();
    assert_eq!((&last["id"], &last["error"]["code"]), (&json!(7), &json!(-32603)), "{last}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_result_outlives_an_outage_of_the_store() {
    let agent = core(Stub { outages: 2.into(), ..waiting() });
    let mut events = Events::of(agent.send("tasks/result", json!({ "taskId": "mcp-task-2" })).await);
    events.next().await.unwrap();
    while agent.stub.outages.load(std::sync::atomic::Ordering::Relaxed) > 0 {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    tokio::time::sleep(std::time::Duration::from_mins(2)).await;
    agent.daemon.shutdown.drain();
    let last = events.next().await.unwrap();
    assert!(last["error"]["message"].as_str().unwrap().contains("shutting down"), "{last}");
}

#[tokio::test]
async fn the_list_has_pages_of_the_callers_own_tasks() {
    let many = || Stub { tasks: (0..60).map(|at| task(&format!("mcp-task-{at}"))).collect(), ..stub() };
    let agent = core(many());
    let first = value(&agent.ask("tasks/list", json!({})).await)["result"].clone();
    assert_eq!(first["tasks"].as_array().unwrap().len(), 50);
    assert_eq!(first["tasks"][0]["status"], "working");
    let cursor = first["nextCursor"].as_str().unwrap();
    agent.ask("tasks/list", json!({ "cursor": cursor })).await;
    let filters = agent.stub.filters.lock().unwrap().clone();
    assert_eq!((filters[1].0.user_id.as_deref(), filters[1].0.thread_id.as_deref()), (Some("ada"), Some("t1")));
    assert_eq!(filters[1].1.after, Some((1_800_000_000_000, "mcp-task-49".to_owned())));
    let few = value(&core(stub()).ask("tasks/list", json!({})).await)["result"].clone();
    assert_eq!((few["tasks"].as_array().unwrap().len(), few.get("nextCursor")), (1, None));
    for wrong in [json!("zz"), json!(1)] {
        let answer = value(&agent.ask("tasks/list", json!({ "cursor": wrong })).await);
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
}

#[tokio::test]
async fn a_question_is_asked_and_its_answer_goes_where_input_goes() {
    let agent = extension(waiting());
    let task = about(&agent, "tasks/get", "mcp-task-2").await["result"].clone();
    let requests = task["inputRequests"].as_object().unwrap();
    let (key, request) = requests.iter().next().unwrap();
    assert_eq!((requests.len(), &request["method"]), (1, &json!("elicitation/create")));
    let update = async |task: &str, responses: Value| {
        let answer = agent.ask("tasks/update", json!({ "taskId": task, "inputResponses": responses })).await;
        value(&answer)
    };
    let refused = update("mcp-task-2", json!({ key: { "action": "accept", "content": { "answer": "a" } } })).await;
    assert_eq!(refused["error"]["code"], -32602, "the stub takes no input: {refused}");
    for ignored in [json!({}), json!({ "input-0": { "action": "accept" } }), json!({ key: { "action": "decline" } })] {
        assert_eq!(update("mcp-task-2", ignored).await["result"], json!({ "resultType": "complete" }));
    }
    assert_eq!(
        update("mcp-task-1", json!({ key: 1 })).await["result"],
        json!({ "resultType": "complete" }),
        "it has ended"
    );
    assert_eq!(update("mcp-task-0", json!({ key: 1 })).await["error"]["code"], -32602);

    let silent = Agent {
        capabilities: json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } }),
        ..extension(waiting())
    };
    let task = about(&silent, "tasks/get", "mcp-task-2").await["result"].clone();
    assert_eq!((&task["inputRequests"], &task["statusMessage"]), (&json!({}), &json!("Which?")));
}

#[tokio::test]
async fn a_subscription_tells_of_own_tasks_only() {
    let mut stub = waiting();
    let mut others = task("mcp-task-3");
    others.tracked.user_id = "eve".into();
    stub.tasks.push(others);
    let agent = extension(stub);
    let ids = ["mcp-task-1", "mcp-task-2", "mcp-task-3", "mcp-task-1"];
    let filter = json!({ "notifications": { "taskIds": ids, "toolsListChanged": true, "promptsListChanged": true } });
    let mut events = Events::of(agent.send("subscriptions/listen", filter).await);
    let acknowledged = events.next().await.unwrap();
    let expected = json!({ "toolsListChanged": true, "taskIds": ["mcp-task-1", "mcp-task-2"] });
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(acknowledged["params"]["notifications"], expected, "{acknowledged}");
    for (id, status) in [("mcp-task-1", "completed"), ("mcp-task-2", "input_required")] {
        let told = events.next().await.unwrap();
        assert_eq!(told["method"], "notifications/tasks");
        assert_eq!((&told["params"]["taskId"], &told["params"]["status"]), (&json!(id), &json!(status)), "{told}");
        assert_eq!(told["params"]["_meta"], json!({ "io.modelcontextprotocol/subscriptionId": 7 }));
        assert_eq!(told["params"].get("resultType"), None);
    }
    agent.stub.changed.send_modify(|changes| *changes += 1);
    assert_eq!(events.next().await.unwrap()["method"], "notifications/tools/list_changed");
    agent.daemon.shutdown.drain();
    let last = events.next().await.unwrap();
    assert_eq!((&last["id"], &last["result"]["resultType"]), (&json!(7), &json!("complete")), "{last}");
}

#[tokio::test]
async fn a_subscription_is_bounded_and_only_for_those_who_declare_the_extension() {
    let many: Vec<_> = (0..65).map(|at| format!("mcp-task-{at}")).collect();
    for (agent, ids, code) in [
        (extension(stub()), json!(many), -32602),
        (extension(stub()), json!([1]), -32602),
        (Agent::new(true), json!(["mcp-task-1"]), -32021),
    ] {
        let answer = value(&agent.ask("subscriptions/listen", json!({ "notifications": { "taskIds": ids } })).await);
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    // The header is judged as if nothing had been renamed.
    let agent = extension(stub());
    let meta = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": agent.capabilities });
    let body = json!({ "jsonrpc": "2.0", "id": 7, "method": "subscriptions/listen",
        "params": { "notifications": { "taskIds": ["mcp-task-1"] }, "_meta": meta } });
    let request = agent.request("POST").header("content-type", "application/json");
    let request = request.header("mcp-protocol-version", "2026-07-28").header("mcp-method", "tools/list");
    let request = request.body(axum::body::Body::from(body.to_string())).unwrap();
    let answer = tower::ServiceExt::oneshot(agent.routes.clone(), request).await.unwrap();
    assert_eq!(answer.status(), 400);
}

#[tokio::test]
async fn a_task_is_found_without_the_header_that_names_it_and_not_with_a_wrong_one() {
    let agent = extension(stub());
    let meta = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": agent.capabilities });
    let body = json!({ "jsonrpc": "2.0", "id": 7, "method": "tasks/get", "params": { "taskId": "mcp-task-1", "_meta": meta } });
    for (name, status) in [(None, 200), (Some("mcp-task-1"), 200), (Some("mcp-task-2"), 400)] {
        let request = agent.request("POST").header("content-type", "application/json");
        let mut request = request.header("mcp-protocol-version", "2026-07-28").header("mcp-method", "tasks/get");
        if let Some(name) = name {
            request = request.header("mcp-name", name);
        }
        let request = request.body(axum::body::Body::from(body.to_string())).unwrap();
        let answer = tower::ServiceExt::oneshot(agent.routes.clone(), request).await.unwrap();
        assert_eq!(answer.status(), status, "{name:?}");
    }
}
