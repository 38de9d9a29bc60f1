//! Operators' interceptors in front of every call of the daemon (BEHAVIOURS 106, 127, 139).

use mcp_taskd_tests::daemon::{Api, ApiError, has_ended, id_of};
use mcp_taskd_tests::fake::FakeServer;
use mcp_taskd_tests::gate::{Answer, Gate};
use mcp_taskd_tests::wait::until;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{fake, site};

const SECRET: &str = "hunter2-of-the-tenant";

fn passing() -> Answer {
    Answer::Json(json!({"headers": {"Authorization": format!("Bearer {SECRET}")}}))
}

/// What the server saw of calls of a tool.
fn authorized(fake: &FakeServer, tool: &str) -> Vec<Option<String>> {
    let called = fake.state.journal().into_iter().filter(|called| called.tool == tool);
    let value = |headers: http::HeaderMap| Some(headers.get("authorization")?.to_str().ok()?.to_owned());
    called.map(|called| value(called.headers)).collect()
}

async fn submit(api: &Api, script: Value) -> Result<Value, ApiError> {
    let body = json!({"server": "s", "task": "report", "arguments": {"script": script}});
    api.request(Method::POST, "/api/threads/t7/mcp-tasks", Some(&body), None).await
}

#[tokio::test]
async fn an_endpoint_stands_before_submits_polls_cancels_and_ordinary_calls_139() {
    let (fake, gate) = (fake().await, Gate::start(passing()).await);
    let entry = json!({"name": "gate", "url": gate.url, "timeout_seconds": 2});
    let site = site().server("s", &fake.url).interceptor(json!("old.module:build")).interceptor(entry);
    let mut daemon = site.daemon("a");
    daemon.start().await;
    let api = daemon.api.clone();

    let id = id_of(&submit(&api, json!({"end": "never"})).await.unwrap());
    until("polls", async || authorized(&fake, "get_report_status").len() >= 2).await;
    gate.answers(Answer::Status(500));
    until("an error", async || api.task(&id).await.unwrap()["last_poll_error"].is_string()).await;
    let task = api.task(&id).await.unwrap();
    assert!(task["last_poll_error"].as_str().unwrap().contains("gate"), "{task}");
    assert_eq!(task["status"], "working", "a poll that was not sent says nothing of the task: {task}");
    assert!(api.count("polls_total", &[("outcome", "intercepted")]).await > 0);

    api.request(Method::POST, &format!("/api/threads/t7/mcp-tasks/{id}/cancel"), None, None).await.unwrap();
    until("an error", async || api.task(&id).await.unwrap()["last_cancel_error"].is_string()).await;
    assert!(authorized(&fake, "cancel_report").is_empty());
    gate.answers(passing());
    until("the cancel", async || has_ended(&api.task(&id).await.unwrap())).await;
    assert_eq!(api.task(&id).await.unwrap()["status"], "cancelled");
    let call =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "s_echo", "arguments": {}}});
    let echoed = mcp(&api, &call).await;
    assert_ne!(echoed["result"]["isError"], true, "{echoed}");
    for tool in ["submit_report", "get_report_status", "cancel_report", "echo"] {
        let seen = authorized(&fake, tool);
        assert!(
            !seen.is_empty() && seen.iter().all(|seen| seen.as_deref() == Some(&*format!("Bearer {SECRET}"))),
            "{tool}"
        );
    }
    for asked in gate.asked().iter().filter(|asked| asked["tool"] != "echo") {
        assert_eq!(
            (&asked["server"], &asked["user_id"], &asked["thread_id"]),
            (&"s".into(), &"default".into(), &"t7".into())
        );
        assert!(asked.get("arguments").is_none(), "{asked}");
    }

    gate.answers(Answer::Json(json!({"refuse": "outside office hours"})));
    let refused = mcp(&api, &call).await;
    assert_eq!(refused["result"]["isError"], true);
    assert!(refused["result"]["content"][0]["text"].as_str().unwrap().contains("outside office hours"), "{refused}");
    let Err(ApiError::Refused(status, problem)) = submit(&api, json!({})).await else { panic!("accepted") };
    assert_eq!(status, 502, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("outside office hours"), "{problem}");
    assert_eq!(api.tasks().await.unwrap().len(), 1, "a submit that was not sent leaves no task");
    daemon.stop().await;
    let log = daemon.log();
    assert!(log.contains("old.module:build") && log.contains("cannot run here"), "the Python one is named");
    assert!(!log.contains(SECRET), "no header's value is logged");
}

async fn mcp(api: &Api, message: &Value) -> Value {
    let request = reqwest::Client::new().post(format!("{}/mcp", api.url)).json(message);
    let request = request.header("accept", "application/json, text/event-stream");
    request.send().await.unwrap().json().await.unwrap()
}

#[tokio::test]
async fn an_entry_that_cannot_be_used_is_exit_78_and_names_the_key_139() {
    let output =
        site().interceptor(json!({"name": "gate", "url": "http://h", "on_error": "allow"})).run(&["serve"]).await;
    assert_eq!(output.code, Some(78), "{}", output.stderr);
    assert!(output.stderr.contains("mcpInterceptors[0].on_error"), "{}", output.stderr);
}
