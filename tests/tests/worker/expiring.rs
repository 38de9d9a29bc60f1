//! Tasks and intents that get too old (BEHAVIOURS 133) while their server cannot be asked.

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::store::{NewIntent, SharedStore, WorkerInfo};
use mcp_taskd_core::task::Status;
use mcp_taskd_tests::faulty::{Fault, Faulty};
use mcp_taskd_tests::rows;
use mcp_taskd_tests::scripted::{Answer, ended};
use mcp_taskd_tests::wait::until;

use crate::bench::Bench;
use crate::submitting::abandoned;

#[tokio::test(start_paused = true)]
async fn a_call_that_was_held_back_is_not_the_last_cancel_of_a_task_too_old_133_149() {
    let mut bench = Bench::in_virtual_time(&["s"]);
    bench.settings.max_task_age_seconds = Some(4);
    let worker = bench.start().await;
    let mut ids = Vec::new();
    for _ in 0..12 {
        ids.push(worker.submit("s").await.id.to_string());
    }
    for tool in ["status", "cancel"] {
        bench.server().on(tool, "", [Answer::Broken(true)]);
    }
    until("the breaker opens", || async { worker.metric("breaker_open", &[("server", "s")]) >= 1.0 }).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    bench.server().on("cancel", "", [ended("cancelled")]);
    for (index, id) in ids.iter().enumerate() {
        until("it ends", || async { bench.task(id).await.status.is_terminal() }).await;
        let row = bench.task(id).await;
        let cancels = bench.server().calls("cancel", &format!("task-{}", index + 1));
        assert!(cancels >= 1, "{} was given up without a cancel: {}", row.id, row.status);
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_too_old_of_an_unconfigured_server_is_left_to_those_who_can_cancel_it_48_133() {
    let bench = Bench::new(&["s"]).await;
    let worker = bench.start().await;
    let task = worker.submit("s").await;
    bench.wait_for(&task.id, Status::Working).await;
    worker.stop().await;
    let mut settings = bench.settings.clone();
    settings.max_task_age_seconds = Some(1);
    let servers = bench.servers.clone();
    let stranger = Bench { servers: Vec::new(), settings, ..bench };
    let worker = stranger.start().await;
    let told = || async {
        let row = stranger.task(&task.id).await;
        row.status.is_terminal() || row.last_poll_error.is_some_and(|text| text.contains("not configured"))
    };
    until("it is looked at", told).await;
    assert_eq!(stranger.task(&task.id).await.status, Status::Working);
    let bench = Bench { servers, ..stranger };
    let owner = bench.start().await;
    bench.wait_for(&task.id, Status::Cancelled).await;
    assert_eq!(bench.server().calls("cancel", "task-1"), 1);
    owner.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intent_too_old_ends_instead_of_being_repeated_without_a_pause_133() {
    let mut bench = Bench::new(&["s"]).await;
    bench.settings.max_task_age_seconds = Some(3);
    bench.server().on("submit", "", [Answer::Hang, Answer::Broken(true)]);
    let id = abandoned(&bench, true).await;
    let worker = bench.start().await;
    let row = bench.wait_for(&id, Status::Failed).await;
    assert_eq!(row.outcome.error_code.as_deref(), Some("submit_outcome_unknown"));
    assert!(bench.server().calls("submit", "") < 8, "{} submits", bench.server().calls("submit", ""));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intent_of_an_unconfigured_server_is_left_to_those_who_can_repeat_it_48_32() {
    let bench = Bench::new(&["s"]).await;
    bench.server().on("submit", "", [Answer::Hang, mcp_taskd_tests::scripted::running()]);
    let id = abandoned(&bench, true).await;
    let servers = bench.servers.clone();
    let stranger = Bench { servers: Vec::new(), ..bench };
    let worker = stranger.start().await;
    let told =
        || async { stranger.task(&id).await.last_poll_error.is_some_and(|text| text.contains("not configured")) };
    until("it is told", told).await;
    let bench = Bench { servers, ..stranger };
    let owner = bench.start().await;
    until("it is repeated", || async { bench.task(&id).await.remote_task_id.is_some() }).await;
    owner.stop().await;
    worker.stop().await;
}

/// An intent whose process has died.
async fn orphaned(bench: &Bench) -> String {
    let gone = WorkerInfo { lease_ms: 5_000, polls: false, ..rows::worker("gone") };
    let now = bench.store.register(&gone).await.unwrap();
    let intent = NewIntent { user_id: "ann".into(), ..rows::intent(&gone.id, "mcp-task-orphaned", "s", now) };
    bench.store.insert_intent(&intent).await.unwrap();
    assert!(bench.store.mark_dead(&gone.id, &gone.id, None).await.unwrap());
    intent.id.to_string()
}

#[tokio::test(start_paused = true)]
async fn an_intent_that_ends_without_a_call_needs_no_answering_server_and_proves_none_149() {
    let bench = Bench::in_virtual_time(&["s"]);
    let worker = bench.start().await;
    for _ in 0..12 {
        worker.submit("s").await;
    }
    bench.server().on("status", "", [Answer::Broken(true)]);
    until("the breaker opens", || async { worker.metric("breaker_open", &[("server", "s")]) >= 1.0 }).await;
    let id = orphaned(&bench).await;
    let row = bench.wait_for(&id, Status::Failed).await;
    assert_eq!(row.outcome.error_code.as_deref(), Some("submit_outcome_unknown"));
    assert_eq!(row.consecutive_poll_error_count, 0, "the breaker has no say in it");
    let until_observed = Duration::from_millis(1_100);
    tokio::time::sleep(until_observed).await;
    assert!(worker.metric("breaker_open", &[("server", "s")]) >= 1.0, "nothing was heard from the server");
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_end_that_the_store_refuses_is_not_repeated_without_a_pause_133() {
    let mut bench = Bench::in_virtual_time(&["s"]);
    bench.settings.max_task_age_seconds = Some(1);
    bench.server().on("cancel", "", [Answer::Error("cannot".into())]);
    let store = Faulty::new(Arc::clone(&bench.store));
    let shared: SharedStore = Arc::clone(&store) as SharedStore;
    let worker = bench.start_with(&bench.settings, true, &shared, |_| {}).await;
    let task = worker.submit("s").await;
    store.next("apply", vec![Fault::Refused; 2_000]);
    until("it is too old", || async { bench.server().calls("cancel", "task-1") >= 1 }).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(store.calls("apply") < 40, "{} writes", store.calls("apply"));
    assert!(bench.server().calls("cancel", "") < 10, "{} cancels", bench.server().calls("cancel", ""));
    assert!(!bench.task(&task.id).await.status.is_terminal());
    tokio::time::timeout(Duration::from_secs(1), worker.stop()).await.ok();
}
