//! Tasks of MCP's own behind a real daemon: killed in between, cancelled, asked for input.

use mcp_taskd_tests::daemon::{Daemon, Site, id_of};
use mcp_taskd_tests::fake::{Era, FakeOptions, FakeServer, NATIVE_TOOL, native_tools};
use mcp_taskd_tests::wait::until;
use serde_json::{Value, json};

use crate::site;

async fn fake(era: Era) -> FakeServer {
    FakeServer::start(FakeOptions { era, tools: Some(native_tools()), ..FakeOptions::default() }).await
}

fn native(url: &str) -> Site {
    site().native_server("s", url, false, json!({}))
}

async fn ends(daemon: &Daemon, id: &str, status: &str) -> Value {
    until(&format!("it is {status}"), || async {
        daemon.api.task(id).await.is_ok_and(|task| task["status"] == status)
    })
    .await;
    daemon.api.task(id).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_native_task_survives_kill_9_in_both_generations() {
    for era in [Era::Modern, Era::Legacy] {
        let fake = fake(era).await;
        let site = native(&fake.url);
        let mut daemon = site.daemon("taskd");
        daemon.start().await;
        let script = json!({"run_ms": 3_000, "result_bytes": 6});
        let id = id_of(&daemon.api.submit("s", &script, None).await.unwrap());
        ends(&daemon, &id, "working").await;
        daemon.kill9().await;
        daemon.start().await;
        let task = ends(&daemon, &id, "completed").await;
        assert_eq!(task["result"], json!({"report": "rrrr"}), "{era:?}");
        let truths = fake.state.core.truths();
        assert_eq!((truths.len(), truths[0].submits), (1, 1), "{era:?}: it was submitted once");
        daemon.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_native_task_may_complete_anyway_and_a_question_is_answered_over_rest() {
    let fake = fake(Era::Modern).await;
    let site = native(&fake.url);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    let script = json!({"end": "never", "cancel_polls": 2, "on_cancel": "completed", "poll_after_seconds": 0.2});
    let stubborn = id_of(&daemon.api.submit("s", &script, None).await.unwrap());
    ends(&daemon, &stubborn, "working").await;
    daemon.api.cancel(&stubborn).await.unwrap();
    let task = ends(&daemon, &stubborn, "completed").await;
    assert!(task["result"].is_object(), "{task}");

    let asks = id_of(&daemon.api.submit("s", &json!({"ask_input": true}), None).await.unwrap());
    let task = ends(&daemon, &asks, "input_required").await;
    assert_eq!(task["input_required"]["quarter"]["method"], "elicitation/create");
    daemon.api.input(&asks, &json!({"quarter": {"action": "accept", "content": {"q": 3}}})).await.unwrap();
    ends(&daemon, &asks, "completed").await;

    let at_once = daemon.api.submit("s", &json!({"at_once": true}), None).await.unwrap();
    assert_eq!((&at_once["status"], &at_once["result"]), (&json!("completed"), &json!({"rendered": true})));
    let tools = daemon.api.request(http::Method::GET, "/api/mcp/tools", None, None).await.unwrap();
    let names: Vec<_> = tools["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect();
    assert!(names.contains(&json!(format!("s_{NATIVE_TOOL}"))), "the submit tool stays visible: {names:?}");
    daemon.stop().await;
}
