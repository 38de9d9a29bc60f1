//! Users' own connections: who sees them, what becomes of their tasks, and on which replica (BEHAVIOURS 50, 124–126).

use std::time::Duration;

use mcp_taskd_tests::daemon::{Api, ApiError, has_ended, id_of};
use mcp_taskd_tests::fake::FakeServer;
use mcp_taskd_tests::postgres;
use mcp_taskd_tests::wait::{until, until_within};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{fake, site};

const CONFIG: &str = "/api/mcp/personal/config";

fn definition(fake: &FakeServer) -> Value {
    json!({
        "type": "http",
        "url": fake.url,
        "headers": {"Authorization": "Bearer hunter2-of-ada"},
        "task_toolsets": [{"name": "report", "submit_tool": "submit_report", "status_tool": "get_report_status",
            "cancel_tool": "cancel_report", "input_tool": "send_report_input"}],
    })
}

/// Makes the connection `mine`; the name that it runs under.
async fn connect(api: &Api, fake: &FakeServer) -> String {
    let sent = json!({"server_name": "mine", "server": definition(fake)});
    let shown = api.request(Method::POST, &format!("{CONFIG}/servers"), Some(&sent), None).await.unwrap();
    shown["runtime_names"]["mine"].as_str().unwrap().to_owned()
}

async fn switch(api: &Api, enabled: bool) {
    let sent = json!({"server_name": "mine", "enabled": enabled});
    api.request(Method::PATCH, CONFIG, Some(&sent), None).await.unwrap();
}

async fn tools(api: &Api) -> Vec<String> {
    let listed = api.mcp(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

async fn call(api: &Api, name: &str, arguments: Value) -> Value {
    let params = json!({"name": name, "arguments": arguments});
    api.mcp(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})).await
}

fn polls(fake: &FakeServer) -> u64 {
    fake.state.core.truths().iter().map(|truth| truth.polls).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_personal_connection_is_there_for_its_owner_alone_and_its_tasks_live_as_long_as_it_50_124_126() {
    let (fake, shared) = (fake().await, fake().await);
    // A long lease: what waits for one is not polled in time.
    let site = site().server("shared", &shared.url).set("mcp_tasks.lease_seconds", 120);
    let mut daemon = site.daemon("a");
    daemon.start().await;
    let (ada, bob) = (daemon.api.of("ada"), daemon.api.of("bob"));
    let name = connect(&ada, &fake).await;
    let submit = format!("{name}_submit_report");
    let seen = tools(&ada).await;
    assert!(seen.contains(&submit) && seen.contains(&"shared_echo".to_owned()), "{seen:?}");
    assert!(!seen.contains(&format!("{name}_get_report_status")));
    assert!(!tools(&bob).await.iter().any(|tool| tool.starts_with("personal_")));
    assert_ne!(call(&ada, &format!("{name}_echo"), json!({})).await["result"]["isError"], true);
    assert_eq!(fake.state.journal()[0].headers["authorization"], "Bearer hunter2-of-ada");
    for tool in [&submit, &format!("{name}_echo")] {
        let refused = call(&bob, tool, json!({})).await;
        assert!(refused["error"]["message"].as_str().unwrap().contains("unknown tool"), "{refused}");
    }
    let script = json!({"end": "never", "poll_after_seconds": 0.2});
    let Err(ApiError::Refused(status, _)) = bob.submit(&name, &script, None).await else { panic!("accepted") };
    assert_eq!(status, 404, "as one that does not exist");

    let submitted = call(&ada, &submit, json!({"script": script})).await;
    let first = submitted["result"]["structuredContent"]["task_id"].as_str().unwrap().to_owned();
    until("polls", async || polls(&fake) >= 2).await;
    daemon.kill9().await;
    daemon.start().await;
    let before = polls(&fake);
    until("polls after a restart", async || polls(&fake) > before + 1).await;
    assert!(daemon.api.count("polls_total", &[("server", "personal"), ("outcome", "unchanged")]).await > 0);
    let page = daemon.api.request(Method::GET, "/metrics", None, None).await.unwrap();
    assert!(!page.as_str().unwrap().contains(&name), "all personal connections are one in metrics");

    let second = id_of(&ada.submit(&name, &script, None).await.unwrap());
    ada.cancel(&second).await.unwrap();
    until("the cancel", async || has_ended(&daemon.api.task(&second).await.unwrap())).await;
    assert_eq!(daemon.api.task(&second).await.unwrap()["status"], "cancelled");

    switch(&ada, false).await;
    assert!(!tools(&ada).await.contains(&submit));
    until("the end", async || has_ended(&daemon.api.task(&first).await.unwrap())).await;
    let task = daemon.api.task(&first).await.unwrap();
    assert_eq!((&task["status"], &task["error_code"]), (&"failed".into(), &"connection_gone".into()), "{task}");
    switch(&ada, true).await;
    assert_eq!(daemon.api.task(&first).await.unwrap()["status"], "failed", "it is not revived");

    let deaf = json!({"end": "never", "deaf_cancels": 1_000_000});
    let third = id_of(&ada.submit(&name, &deaf, None).await.unwrap());
    ada.cancel(&third).await.unwrap();
    until("a cancel that fails", async || daemon.api.task(&third).await.unwrap()["last_cancel_error"].is_string())
        .await;
    let path = format!("{CONFIG}/servers/mine");
    ada.request(Method::DELETE, &path, None, None).await.unwrap();
    until("the end", async || has_ended(&daemon.api.task(&third).await.unwrap())).await;
    let task = daemon.api.task(&third).await.unwrap();
    assert_eq!((&task["status"], &task["error_code"]), (&"failed".into(), &"connection_gone".into()), "{task}");
    daemon.stop().await;
    assert!(!daemon.log().contains("hunter2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_the_connection_leaves_its_tasks_to_one_that_has_it_50() {
    let database = postgres::database().await;
    let (fake, shared) = (fake().await, fake().await);
    let site = site().postgres(database.url()).server("shared", &shared.url);
    site.migrate().await;
    let (mut first, mut second) = (site.daemon("first"), site.daemon("second"));
    tokio::join!(first.start(), second.start());
    let ada = first.api.of("ada");
    let name = connect(&ada, &fake).await;
    let id = id_of(&ada.submit(&name, &json!({"run_ms": 1, "polls": 3, "poll_after_seconds": 2}), None).await.unwrap());
    first.kill9().await;
    let told = async || {
        let error = second.api.task(&id).await.unwrap()["last_poll_error"].clone();
        error.as_str().is_some_and(|error| error.contains("not known here"))
    };
    until_within("the other says that it cannot", Duration::from_secs(40), told).await;
    let task = second.api.task(&id).await.unwrap();
    assert!(!has_ended(&task), "{task}");
    first.start().await;
    let ended = async || has_ended(&second.api.task(&id).await.unwrap());
    until_within("who has it polls it to its end", Duration::from_secs(60), ended).await;
    assert_eq!(second.api.task(&id).await.unwrap()["status"], "completed");
    tokio::join!(first.stop(), second.stop());
}
