//! Polls, cancels, errors, recovery.

use std::time::Duration;

use mcp_taskd_core::service::ServiceError;
use mcp_taskd_core::task::Status;
use mcp_taskd_tests::scripted::{Answer, ended, running};
use mcp_taskd_tests::wait::{until, until_within};
use serde_json::json;

use crate::bench::{Bench, anyone};

fn asks(question: &str) -> Answer {
    Answer::Structured(json!({"task_id": "$id", "status": "input_required", "input_required": {"q": question}}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_polled_to_its_end_and_unchanged_polls_write_no_row_131() {
    let bench = Bench::new(&["s"]).await;
    let hinted = json!({"task_id": "$id", "status": "running", "poll_after_seconds": 0.1});
    bench.server().on("status", "", [Answer::Structured(hinted)]);
    let worker = bench.start().await;
    let task = worker.submit("s").await;
    assert_eq!(task.status, Status::Submitted);
    until("it is polled ten times", || async { bench.server().calls("status", "task-1") >= 10 }).await;
    let row = bench.task(&task.id).await;
    assert_eq!(row.status, Status::Working);
    let written = worker.metric("rows_written_total", &[("statement", "poll")]);
    assert!((written - 1.0).abs() < 0.1, "submitted → working, once: {written}");
    assert_eq!(row.poll_attempt_count, 1, "what an unchanged poll counts is written lazily");
    let seen = worker.service().get(&anyone(), &task.id, Duration::ZERO).await.unwrap();
    assert!(seen.poll_attempt_count >= 9, "but whoever asks the holder sees it: {}", seen.poll_attempt_count);

    bench.server().on("status", "", [ended("completed")]);
    let row = bench.wait_for(&task.id, Status::Completed).await;
    assert_eq!(row.outcome.result.as_ref().unwrap().as_str(), r#"{"by":"task-1"}"#);
    assert_eq!((row.lease_owner.clone(), row.completed_at.is_some()), (None, true));
    assert_eq!(bench.events(&task.id).await, ["submitted", "working", "completed"]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_of_unchanged_polls_are_written_once_a_lease() {
    let bench = Bench::new(&["s"]).await;
    let worker = bench.start().await;
    let task = worker.submit("s").await;
    let touched = || async { worker.metric("rows_written_total", &[("statement", "touch")]) >= 1.0 };
    until("the counters are written", touched).await;
    assert!(bench.task(&task.id).await.poll_attempt_count > 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_back_off_degrade_and_recover_46_47() {
    let bench = Bench::new(&["s"]).await;
    bench.server().on("status", "", [Answer::Error("busy".into())]);
    let worker = bench.start().await;
    let task = worker.submit("s").await;
    until("three errors in a row", || async { bench.task(&task.id).await.consecutive_poll_error_count >= 3 }).await;
    let row = bench.task(&task.id).await;
    assert_eq!(row.status, Status::Submitted, "an error never ends a task");
    assert_eq!(row.last_poll_error.as_deref(), Some("status returned an error: busy"));
    bench.server().on("status", "", [running()]);
    bench.wait_for(&task.id, Status::Working).await;
    let row = bench.task(&task.id).await;
    assert_eq!((row.consecutive_poll_error_count, row.last_poll_error.clone()), (0, None));
    let events = bench.events(&task.id).await;
    assert_eq!(events, ["submitted", "tracking_degraded", "tracking_recovered", "working"]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_count_survives_a_restart_46() {
    let bench = Bench::new(&["s"]).await;
    bench.server().on("status", "", [Answer::Error("busy".into())]);
    let worker = bench.start().await;
    let task = worker.submit("s").await;
    until("two errors", || async { bench.task(&task.id).await.consecutive_poll_error_count >= 2 }).await;
    worker.stop().await;
    let before = bench.task(&task.id).await.consecutive_poll_error_count;
    let worker = bench.start().await;
    until("another one", || async { bench.task(&task.id).await.consecutive_poll_error_count > before }).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_tasks_panic_is_its_own_49() {
    let bench = Bench::new(&["s"]).await;
    bench.server().on("status", "task-1", [Answer::Panic, ended("completed")]);
    bench.server().on("status", "task-2", [running(), ended("completed")]);
    let worker = bench.start().await;
    let (first, second) = (worker.submit("s").await, worker.submit("s").await);
    bench.wait_for(&second.id, Status::Completed).await;
    bench.wait_for(&first.id, Status::Completed).await;
    let counted = worker.metric("poll_retries_total", &[("reason", "internal")]);
    assert!((counted - 1.0).abs() < 0.1, "one error, with its backoff: {counted}");
    assert!(bench.events(&first.id).await.ends_with(&["completed".to_owned()]));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_fences_the_poll_in_flight_and_ends_as_the_server_says_57_61() {
    let bench = Bench::new(&["s"]).await;
    bench.server().on("status", "", [ended("completed")]);
    bench.server().on("cancel", "", [Answer::Error("not now".into()), ended("cancelled")]);
    let worker = bench.start().await;
    bench.server().hold();
    // The submit's own call is held too.
    let submit = tokio::spawn({
        let service = worker.service().clone();
        async move { service.submit(crate::bench::submit("s")).await.unwrap().task }
    });
    until("the submit is sent", || async { bench.server().calls("submit", "") == 1 }).await;
    bench.server().release();
    let task = submit.await.unwrap();
    bench.server().hold();
    until("a poll is in flight", || async { bench.server().calls("status", "") == 1 }).await;
    let asked = worker.service().cancel(&anyone(), &task.id).await.unwrap();
    assert!(asked.cancel_requested_at.is_some() && !asked.status.is_terminal(), "it answers at once");
    let again = worker.service().cancel(&anyone(), &task.id).await.unwrap();
    assert_eq!(again.cancel_requested_at, asked.cancel_requested_at, "a repeat changes nothing (58)");
    bench.server().release();
    let row = bench.wait_for(&task.id, Status::Cancelled).await;
    assert_eq!(row.cancel_attempt_count, 2);
    assert_eq!(bench.server().calls("status", ""), 1, "no poll after the request (60)");
    assert_eq!(bench.events(&task.id).await, ["submitted", "cancelled"], "the late completion was not applied (61)");
    let ended = worker.service().cancel(&anyone(), &task.id).await.unwrap();
    assert_eq!(ended.status, Status::Cancelled, "59");
    let unknown = worker.service().cancel(&anyone(), "mcp-task-0").await.unwrap_err();
    assert!(matches!(unknown, ServiceError::NotFound(_)));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_is_done_stays_done_when_cancelled_19() {
    let bench = Bench::new(&["s"]).await;
    bench.server().on("cancel", "", [ended("completed")]);
    let worker = bench.start().await;
    let task = worker.submit("s").await;
    worker.service().cancel(&anyone(), &task.id).await.unwrap();
    let row = bench.wait_for(&task.id, Status::Completed).await;
    assert!(row.outcome.result.is_some());
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_asked_once_answered_and_worked_on_64() {
    let bench = Bench::new(&["s"]).await;
    bench.server().on("status", "", [asks("which?")]);
    let worker = bench.start().await;
    let task = worker.submit("s").await;
    bench.wait_for(&task.id, Status::InputRequired).await;
    bench.server().on("status", "", [ended("completed")]);
    let answer = serde_json::value::RawValue::from_string("\"both\"".into()).unwrap();
    worker.service().input(&anyone(), &task.id, &answer).await.unwrap();
    // Well before the five seconds that an unanswered question waits.
    let done = || async { bench.task(&task.id).await.status == Status::Completed };
    assert!(until_within("it completes", Duration::from_secs(4), done).await < Duration::from_secs(4));
    assert_eq!(bench.server().calls("input", "task-1"), 1);
    let late = worker.service().input(&anyone(), &task.id, &answer).await.unwrap_err();
    assert!(matches!(late, ServiceError::Conflict(_)));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_answers_at_the_change() {
    let bench = Bench::new(&["s"]).await;
    let worker = bench.start().await;
    let task = worker.submit("s").await;
    let seen = worker.service().get(&anyone(), &task.id, Duration::from_secs(20)).await.unwrap();
    assert_eq!(seen.status, Status::Working);
    bench.server().on("status", "", [ended("failed")]);
    let seen = worker.service().get(&anyone(), &task.id, Duration::from_secs(20)).await.unwrap();
    assert_eq!(seen.status, Status::Failed);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_too_old_is_cancelled_once_and_expires_133() {
    let mut bench = Bench::new(&["s"]).await;
    bench.settings.max_task_age_seconds = Some(1);
    bench.server().on("cancel", "task-1", [Answer::Error("cannot".into())]);
    bench.server().on("cancel", "task-2", [ended("completed")]);
    let worker = bench.start().await;
    let (lost, done) = (worker.submit("s").await, worker.submit("s").await);
    let row = bench.wait_for(&lost.id, Status::Failed).await;
    assert_eq!(row.outcome.error_code.as_deref(), Some("task_expired"));
    assert_eq!(bench.server().calls("cancel", "task-1"), 1);
    bench.wait_for(&done.id, Status::Completed).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_gives_every_task_back_due_when_it_was_due_36_51() {
    let bench = Bench::new(&["s"]).await;
    let worker = bench.start().await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(worker.submit("s").await.id.to_string());
    }
    for id in &ids {
        bench.wait_for(id, Status::Working).await;
    }
    bench.server().on("status", "", [Answer::Hang]);
    until("calls hang", || async { worker.metric("poll_slots", &[("state", "used")]) >= 1.0 }).await;
    worker.stop().await;
    for id in &ids {
        let row = bench.task(id).await;
        assert_eq!((row.status, row.lease_owner.clone()), (Status::Working, None), "nothing was decided by the drain");
        assert_eq!(row.consecutive_poll_error_count, 0);
    }
    assert!(bench.store.workers().await.unwrap().rows.is_empty(), "nothing names the worker, so its row is gone");
    bench.server().on("status", "", [ended("completed")]);
    let worker = bench.start().await;
    for id in &ids {
        bench.wait_for(id, Status::Completed).await;
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_an_unconfigured_server_is_told_so_and_stays_open_to_others_48_50() {
    let bench = Bench::new(&["s"]).await;
    let worker = bench.start().await;
    let task = worker.submit("s").await;
    bench.wait_for(&task.id, Status::Working).await;
    worker.stop().await;
    let stranger = Bench { servers: Vec::new(), ..bench };
    let worker = stranger.start().await;
    // Overdue by a lease: from then on it is open to any worker.
    let told =
        || async { stranger.task(&task.id).await.last_poll_error.is_some_and(|text| text.contains("not configured")) };
    until("it is told", told).await;
    let row = stranger.task(&task.id).await;
    assert_eq!((row.status, row.lease_owner.clone()), (Status::Working, None));
    worker.stop().await;
}
