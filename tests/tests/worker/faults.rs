//! What a lost connection does to commits and claims (FAILURES 23, 31, 32, 34, 38, 41).

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::service::{ServiceError, Submit};
use mcp_taskd_core::store::SharedStore;
use mcp_taskd_core::task::Status;
use mcp_taskd_tests::faulty::{Fault, Faulty};
use mcp_taskd_tests::scripted::ended;
use mcp_taskd_tests::wait::{until, until_still};

use crate::bench::{Bench, Running};

async fn faulty() -> (Bench, Arc<Faulty>, Running) {
    faulty_in(Bench::new(&["s"]).await).await
}

async fn faulty_in(bench: Bench) -> (Bench, Arc<Faulty>, Running) {
    let store = Faulty::new(Arc::clone(&bench.store));
    let shared: SharedStore = Arc::clone(&store) as SharedStore;
    let worker = bench.start_with(&bench.settings, true, &shared, |_| {}).await;
    (bench, store, worker)
}

async fn completes_once(bench: &Bench, id: &str) {
    bench.wait_for(id, Status::Completed).await;
    let events = bench.events(id).await;
    assert_eq!(events.iter().filter(|kind| *kind == "completed").count(), 1, "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_recognised_and_not_repeated_23() {
    let (bench, store, worker) = faulty().await;
    let task = worker.submit("s").await;
    bench.wait_for(&task.id, Status::Working).await;
    let epoch = bench.task(&task.id).await.lease_epoch;
    store.next("apply", [Fault::AnswerLost]);
    store.next("inspect", [Fault::Away, Fault::StatementLost]);
    bench.server().on("status", "", [ended("completed")]);
    completes_once(&bench, &task.id).await;
    until("the worker knows", || async { worker.metric("tasks_finished_total", &[("status", "completed")]) >= 1.0 })
        .await;
    assert_eq!(bench.task(&task.id).await.lease_epoch, epoch + 1, "written once");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_never_arrived_is_repeated_23() {
    let (bench, store, worker) = faulty().await;
    let task = worker.submit("s").await;
    store.next("apply", [Fault::StatementLost, Fault::Away, Fault::StatementLost]);
    bench.server().on("status", "", [ended("completed")]);
    completes_once(&bench, &task.id).await;
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_first_attempt_that_comes_late_does_no_harm_23() {
    let (bench, store, worker) = faulty_in(Bench::in_virtual_time(&["s"])).await;
    let task = worker.submit("s").await;
    bench.wait_for(&task.id, Status::Working).await;
    let epoch = bench.task(&task.id).await.lease_epoch;
    // The re-reading finds it not executed, the repeat goes through, then the first attempt arrives: and the other way.
    for (status, late) in [("input_required", 400), ("completed", 60)] {
        store.next("apply", [Fault::Late(Duration::from_millis(late)), Fault::StatementLost]);
        let answer = serde_json::json!({"task_id": "$id", "status": status, "input_required": {"q": 1}, "result": 1});
        bench.server().on("status", "", [mcp_taskd_tests::scripted::Answer::Structured(answer)]);
        bench.wait_for(&task.id, status.parse().unwrap()).await;
        let answer = serde_json::value::RawValue::from_string("1".into()).unwrap();
        if status == "input_required" {
            worker.service().input(&crate::bench::anyone(), &task.id, &answer).await.unwrap();
        }
    }
    completes_once(&bench, &task.id).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let row = bench.task(&task.id).await;
    assert_eq!(row.status, Status::Completed);
    // One write each for the question and the end, and one free and one claim for the answer in between.
    assert_eq!(row.lease_epoch, epoch + 4);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_is_lost_is_adopted_38() {
    let (bench, store, worker) = faulty().await;
    let task = worker.submit("s").await;
    bench.wait_for(&task.id, Status::Working).await;
    worker.stop().await;
    drop(store);
    let store = Faulty::new(Arc::clone(&bench.store));
    store.next("claim", [Fault::AnswerLost]);
    store.next("owned", [Fault::Away]);
    let shared: SharedStore = Arc::clone(&store) as SharedStore;
    let worker = bench.start_with(&bench.settings, true, &shared, |_| {}).await;
    bench.server().on("status", "", [ended("completed")]);
    completes_once(&bench, &task.id).await;
    assert!(store.calls("owned") >= 2);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_executes_after_it_was_given_up_is_found_by_reconciling_38() {
    let (bench, _, worker) = faulty().await;
    let task = worker.submit("s").await;
    bench.wait_for(&task.id, Status::Working).await;
    worker.stop().await;
    let store = Faulty::new(Arc::clone(&bench.store));
    store.next("claim", [Fault::Late(Duration::from_millis(300))]);
    let shared: SharedStore = Arc::clone(&store) as SharedStore;
    let worker = bench.start_with(&bench.settings, true, &shared, |_| {}).await;
    bench.server().on("status", "", [ended("completed")]);
    completes_once(&bench, &task.id).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_whose_answer_is_lost_is_not_compensated_41() {
    let (bench, store, worker) = faulty().await;
    store.next("record_submitted", [Fault::AnswerLost, Fault::Away]);
    let task = worker.submit("s").await;
    assert_eq!(task.remote_task_id.as_deref(), Some("task-1"));
    until("it is polled", || async { bench.server().calls("status", "task-1") >= 1 }).await;
    assert_eq!(bench.server().calls("cancel", ""), 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_that_cannot_be_recorded_stays_on_record_and_is_cancelled_41() {
    let (bench, store, worker) = faulty().await;
    store.next("record_submitted", [Fault::Refused]);
    let Err(ServiceError::OutcomeUnknown { task_id, .. }) = worker.try_submit(crate::bench::submit("s")).await else {
        panic!("expected an unknown outcome");
    };
    let row = bench.task(&task_id).await;
    assert_eq!((row.status, row.outcome.error_code.as_deref()), (Status::Failed, Some("submit_outcome_unknown")));
    assert_eq!(bench.server().calls("cancel", "task-1"), 1, "after its intent was closed");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_comes_late_is_not_compensated_41() {
    let (bench, store, worker) = faulty().await;
    store.next("record_submitted", [Fault::Late(Duration::from_millis(20)), Fault::StatementLost]);
    let task = worker.submit("s").await;
    assert_eq!(task.remote_task_id.as_deref(), Some("task-1"));
    bench.server().on("status", "", [ended("completed")]);
    completes_once(&bench, &task.id).await;
    assert_eq!(bench.server().calls("cancel", ""), 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intent_whose_insert_went_through_unseen_is_resolved_32() {
    let (bench, store, worker) = faulty().await;
    // After the attempt to withdraw it.
    store.next("insert_intent", [Fault::Late(Duration::from_millis(200))]);
    assert!(worker.try_submit(crate::bench::submit("s")).await.is_err());
    let page = mcp_taskd_core::store::Page { limit: 1, after: None };
    let filter = mcp_taskd_core::store::TaskFilter::default();
    until("it is there", || async { !bench.store.list_tasks(&filter, &page).await.unwrap().is_empty() }).await;
    let id = bench.store.list_tasks(&filter, &page).await.unwrap().remove(0).id.to_string();
    let row = bench.wait_for(&id, Status::Failed).await;
    assert_eq!(row.outcome.error_code.as_deref(), Some("submit_outcome_unknown"));
    assert_eq!(bench.server().calls("submit", ""), 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intent_whose_answer_is_lost_does_not_use_up_its_key_32_155() {
    let (bench, store, worker) = faulty().await;
    store.next("insert_intent", [Fault::AnswerLost]);
    let keyed = || Submit { idempotency_key: Some("k1".into()), ..crate::bench::submit("s") };
    assert!(worker.try_submit(keyed()).await.is_err());
    assert_eq!(bench.server().calls("submit", ""), 0);
    let task = worker.try_submit(keyed()).await.expect("the server was never called, so the key is free").task;
    bench.wait_for(&task.id, Status::Working).await;
    assert_eq!(bench.server().calls("submit", ""), 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_waits_for_a_store_that_registers_nobody_yet_22() {
    let bench = Bench::new(&["s"]).await;
    let store = Faulty::new(Arc::clone(&bench.store));
    store.next("register", [Fault::Away, Fault::StatementLost]);
    let shared: SharedStore = Arc::clone(&store) as SharedStore;
    let worker = bench.start_with(&bench.settings, true, &shared, |_| {}).await;
    assert_eq!(store.calls("register"), 3);
    let task = worker.submit("s").await;
    bench.wait_for(&task.id, Status::Working).await;
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn past_its_lease_a_worker_stops_and_a_late_heartbeat_resumes_it_31() {
    let (bench, store, worker) = faulty_in(Bench::in_virtual_time(&["s"])).await;
    let task = worker.submit("s").await;
    bench.wait_for(&task.id, Status::Working).await;
    // Five seconds of lease, and nothing but failures for much longer: heartbeats are tried about every 0.2 s.
    store.next("heartbeat", [Fault::Away; 45]);
    until_still("it fences itself", Duration::from_millis(2_500), || bench.server().calls("status", "")).await;
    bench.server().on("status", "", [ended("completed")]);
    completes_once(&bench, &task.id).await;
    worker.stop().await;
}
