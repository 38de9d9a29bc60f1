//! Stopping.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mcp_taskd_tests::wait::until;
use serde_json::{Value, json};

use crate::{fake, site};

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_during_hung_polls_ends_promptly_and_blames_no_task_31_36_51() {
    let fake = fake().await;
    let site = site().server("s", &fake.url).set("server.shutdown_grace_seconds", 4);
    let mut first = site.daemon("first");
    first.start().await;
    let ids = first.api.submit_many("s", &json!({"end": "never", "poll_after_seconds": 0.3}), 40).await;
    until("each is polled", || async { fake.state.core.truths().iter().all(|truth| truth.polls > 0) }).await;
    fake.state.faults.hang.store(true, Ordering::Relaxed);
    until("polls hang", || async { first.api.count("polls_in_flight", &[("server", "s")]).await >= 8 }).await;

    let took = first.stop().await;
    // Half of the grace period goes to calls that may still end.
    assert!(took < Duration::from_secs(4), "it took {took:?}");

    // Nobody runs: the store itself is asked.
    let rows: Value = serde_json::from_str(&site.run(&["tasks", "list", "--output", "json"]).await.success()).unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), ids.len());
    for row in rows {
        assert_eq!((&row["lease_owner"], &row["status"]), (&Value::Null, &json!("working")), "{row}");
    }
    fake.state.faults.hang.store(false, Ordering::Relaxed);
    let before: Vec<_> = fake.state.core.truths().into_iter().map(|truth| truth.polls).collect();
    let mut second = site.daemon("second");
    second.start().await;
    until("another daemon goes on", || async {
        fake.state.core.truths().iter().zip(&before).all(|(truth, before)| truth.polls > *before)
    })
    .await;
    for id in &ids {
        let task = second.api.task(id).await.unwrap();
        assert_eq!(task["consecutive_poll_error_count"], 0, "{task}");
        assert_eq!(task["last_poll_error"], Value::Null, "a shutdown is no error of a task");
    }
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_at_once_and_the_next_daemon_takes_over() {
    let fake = fake().await;
    let site = site().server("s", &fake.url).set("mcp_tasks.lease_seconds", 60);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    daemon.api.submit_many("s", &json!({"end": "never", "poll_after_seconds": 0.3}), 10).await;
    fake.state.faults.hang.store(true, Ordering::Relaxed);
    until("polls hang", || async { daemon.api.count("polls_in_flight", &[("server", "s")]).await >= 8 }).await;
    daemon.sigterm();
    until("it drains", || async { daemon.log().contains("draining") }).await;
    daemon.sigterm();
    let status = daemon.wait().await;
    assert_eq!(status.code(), Some(1), "a drain that was cut short is no success");

    fake.state.faults.hang.store(false, Ordering::Relaxed);
    let before: Vec<_> = fake.state.core.truths().into_iter().map(|truth| truth.polls).collect();
    daemon.start().await;
    until("its successor polls everything", || async {
        fake.state.core.truths().iter().zip(&before).all(|(truth, before)| truth.polls > *before)
    })
    .await;
    daemon.stop().await;
}
