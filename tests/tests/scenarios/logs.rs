//! What the daemon logs of a run: a line for each event that matters, with who and where, and no secret.

use mcp_taskd_tests::daemon::{has_ended, id_of};
use mcp_taskd_tests::wait::until;
use serde_json::{Value, json};

use crate::{fake, site};

const SECRET: &str = "hunter2-of-the-server";

#[tokio::test(flavor = "multi_thread")]
async fn a_run_logs_a_line_an_event_with_task_server_and_worker_and_none_a_poll() {
    let fake = fake().await;
    let site = site()
        .server_with("s", &fake.url, false, json!({"headers": {"X-Api-Key": SECRET}}))
        .set("mcp_tasks.input_required_poll_interval_seconds", 5);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    let api = daemon.api.clone();
    let completed = id_of(&api.submit("s", &json!({"polls": 10, "poll_after_seconds": 0.1}), None).await.unwrap());
    until("ten polls and the end", async || has_ended(&api.task(&completed).await.unwrap())).await;
    let cancelled = id_of(&api.submit("s", &json!({"end": "never"}), None).await.unwrap());
    api.cancel(&cancelled).await.unwrap();
    until("the cancel", async || has_ended(&api.task(&cancelled).await.unwrap())).await;
    let asking = id_of(&api.submit("s", &json!({"polls": 1, "ask_input": true}), None).await.unwrap());
    until("it asks", async || api.task(&asking).await.unwrap()["status"] == "input_required").await;
    api.input(&asking, &json!(SECRET)).await.unwrap();
    until("it goes on", async || has_ended(&api.task(&asking).await.unwrap())).await;
    daemon.stop().await;

    let log = daemon.log();
    assert!(!log.contains(SECRET), "{log}");
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect();
    let worker = lines.iter().find(|line| line["message"] == "worker registered").unwrap()["worker"].clone();
    let of = |id: &str| -> Vec<(&str, Option<&str>)> {
        let about = lines.iter().filter(|line| line["task.id"] == *id);
        about
            .inspect(|line| {
                assert_eq!(line["level"], "INFO", "{line}");
                assert_eq!((&line["server"], &line["worker"]), (&json!("s"), &worker), "{line}");
            })
            .map(|line| (line["message"].as_str().unwrap(), line["status"].as_str()))
            .collect()
    };
    assert_eq!(
        of(&completed),
        [("submit ended", None), ("task changed", Some("working")), ("task ended", Some("completed"))]
    );
    let told = of(&cancelled);
    assert!(told.contains(&("cancel requested", None)), "{told:?}");
    assert_eq!(told.last(), Some(&("task ended", Some("cancelled"))));
    assert_eq!(of(&asking).iter().filter(|(message, _)| *message == "input given").count(), 1, "{:?}", of(&asking));
    assert!(lines.len() < 40, "{} lines for a short life:\n{log}", lines.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_a_server_is_two_lines_however_many_calls_fail() {
    let fake = fake().await;
    let site = site().server("s", &fake.url);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    daemon.api.submit_many("s", &json!({"end": "never", "poll_after_seconds": 0.2}), 20).await;
    let fault = |status: u16| fake.state.faults.status.store(status, std::sync::atomic::Ordering::Relaxed);
    let said = |what: &str| daemon.log().lines().filter(|line| line.contains(what)).count();
    fault(500);
    until("the outage is told of", async || said("the server does not answer as it should") > 0).await;
    fault(0);
    until("its end is told of", async || said("the server answers again") > 0).await;
    assert_eq!((said("the server does not answer as it should"), said("the server answers again")), (1, 1));
    let warns = |line: &&str| line.contains(r#""level":"WARN""#) && line.contains(r#""target":"mcp_taskd"#);
    assert!(daemon.log().lines().filter(warns).count() < 5, "{}", daemon.log());
    daemon.stop().await;
}
