//! Submit without orphans (BEHAVIOURS E; FAILURES 32, 33, 41).

use mcp_taskd_core::service::{ServiceError, Submit, Submitted};
use mcp_taskd_core::store::{Page, TaskFilter};
use mcp_taskd_core::task::Status;
use mcp_taskd_tests::scripted::{Answer, ended, running};
use mcp_taskd_tests::wait::until;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::bench::{Bench, Running, anyone, submit};

async fn all(bench: &Bench) -> usize {
    let page = Page { limit: 100, after: None };
    bench.store.list_tasks(&TaskFilter::default(), &page).await.unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_refuses_leaves_no_task_2_5_145() {
    let bench = Bench::new(&["s"]).await;
    let worker = bench.start().await;
    for answer in
        [Answer::Error("no quota".into()), Answer::Structured(json!({"status": "running"})), Answer::Broken(false)]
    {
        bench.server().on("submit", "", [answer.clone()]);
        let refused = worker.try_submit(submit("s")).await.unwrap_err();
        assert!(matches!(refused, ServiceError::Refused(_)), "{answer:?}: {refused:?}");
        assert_eq!(all(&bench).await, 0, "{answer:?}");
    }
    assert_eq!(bench.server().calls("cancel", ""), 0, "there is no handle to cancel");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_that_cannot_be_kept_is_cancelled_23_152() {
    let bench = Bench::new(&["s"]).await;
    let worker = bench.start().await;
    let long = "x".repeat(256);
    for structured in [json!({"task_id": "$id", "status": "completed"}), json!({"task_id": long, "status": "running"})]
    {
        bench.server().on("submit", "", [Answer::Structured(structured)]);
        let refused = worker.try_submit(submit("s")).await.unwrap_err();
        assert!(matches!(refused, ServiceError::Refused(_)), "{refused:?}");
    }
    assert_eq!((bench.server().calls("cancel", "task-1"), bench.server().calls("cancel", &long)), (1, 1));
    assert_eq!(all(&bench).await, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_nobody_can_know_is_on_record_145() {
    let bench = Bench::new(&["s"]).await;
    bench.server().on("submit", "", [Answer::Broken(true)]);
    let worker = bench.start().await;
    let Err(ServiceError::OutcomeUnknown { task_id, .. }) = worker.try_submit(submit("s")).await else {
        panic!("expected an unknown outcome");
    };
    let row = bench.task(&task_id).await;
    assert_eq!((row.status, row.outcome.error_code.as_deref()), (Status::Failed, Some("submit_outcome_unknown")));
    assert_eq!(bench.events(&task_id).await, ["failed"]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_whose_handling_panics_is_on_record_27_145() {
    let bench = Bench::new(&["s"]).await;
    bench.server().on("submit", "", [Answer::Panic]);
    let worker = bench.start().await;
    assert_eq!(worker.try_submit(submit("s")).await.unwrap_err(), ServiceError::Internal);
    let page = Page { limit: 10, after: None };
    until("the worker finds what nobody works on any more", || async {
        let tasks = bench.store.list_tasks(&TaskFilter::default(), &page).await.unwrap();
        tasks.iter().any(|task| task.outcome.error_code.as_deref() == Some("submit_outcome_unknown"))
    })
    .await;
    bench.server().on("submit", "", [running()]);
    worker.submit("s").await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_remote_id_does_not_cancel_the_living_task_41_33() {
    let bench = Bench::new(&["s"]).await;
    bench.server().on("submit", "", [Answer::Structured(json!({"task_id": "same", "status": "running"}))]);
    let worker = bench.start().await;
    let first = worker.submit("s").await;
    let second = worker.try_submit(submit("s")).await.unwrap_err();
    assert!(matches!(second, ServiceError::Conflict(_)), "{second:?}");
    assert_eq!((bench.server().calls("cancel", ""), all(&bench).await), (0, 1));
    bench.server().on("status", "", [ended("completed")]);
    bench.wait_for(&first.id, Status::Completed).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_key_waits_for_the_first_call_and_returns_its_task_137() {
    let bench = Bench::new(&["s"]).await;
    let worker = bench.start().await;
    let keyed = Submit { idempotency_key: Some("k1".into()), ..submit("s") };
    bench.server().hold();
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let (service, keyed) = (worker.service().clone(), keyed.clone());
            tokio::spawn(async move { service.submit(keyed).await.unwrap() })
        })
        .collect();
    until("the first call is sent", || async { bench.server().calls("submit", "") == 1 }).await;
    bench.server().release();
    let mut ids = Vec::new();
    let mut fresh = 0;
    for call in calls {
        let submitted = call.await.unwrap();
        fresh += usize::from(!submitted.replayed);
        ids.push(submitted.task.id.clone());
    }
    ids.dedup();
    assert_eq!((ids.len(), fresh, bench.server().calls("submit", "")), (1, 1, 1));
    assert_eq!(bench.server().keys(), [ids[0].as_ref()], "a key of the row's own travels in _meta");
    let other = Submit { arguments: serde_json::value::RawValue::from_string("{}".into()).unwrap(), ..keyed.clone() };
    assert!(matches!(worker.try_submit(other).await, Err(ServiceError::Invalid(_))));
    let elsewhere = Submit { thread_id: "t2".into(), ..keyed };
    assert!(!worker.try_submit(elsewhere).await.unwrap().replayed, "the key's scope is user and thread (155)");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_submit_frees_its_key() {
    let bench = Bench::new(&["s"]).await;
    bench.server().on("submit", "", [Answer::Error("busy".into()), running()]);
    let worker = bench.start().await;
    let keyed = Submit { idempotency_key: Some("k1".into()), ..submit("s") };
    assert!(worker.try_submit(keyed.clone()).await.is_err());
    assert!(!worker.try_submit(keyed).await.unwrap().replayed);
    worker.stop().await;
}

/// A submit that the server has in hand and does not answer until it is released.
async fn held_submit(bench: &Bench, worker: &Running) -> JoinHandle<Result<Submitted, ServiceError>> {
    bench.server().hold();
    let service = worker.service().clone();
    let call = tokio::spawn(async move { service.submit(submit("s")).await });
    until("the call is sent", || async { bench.server().calls("submit", "") == 1 }).await;
    call
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_hangs_up_cuts_nothing_off() {
    let bench = Bench::new(&["s"]).await;
    let worker = bench.start().await;
    let call = held_submit(&bench, &worker).await;
    call.abort();
    bench.server().release();
    until("it is tracked all the same", || async { bench.server().calls("status", "task-1") >= 1 }).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_before_the_answer_is_carried_out_after_it() {
    let bench = Bench::new(&["s"]).await;
    let worker = bench.start().await;
    let call = held_submit(&bench, &worker).await;
    let page = Page { limit: 1, after: None };
    let intent = bench.store.list_tasks(&TaskFilter::default(), &page).await.unwrap().remove(0);
    assert_eq!(intent.status, Status::Submitting, "the intent is durable before the server answers (40)");
    worker.service().cancel(&anyone(), &intent.id).await.unwrap();
    bench.server().release();
    call.await.unwrap().unwrap();
    bench.wait_for(&intent.id, Status::Cancelled).await;
    assert_eq!(bench.server().calls("status", ""), 0);
    worker.stop().await;
}

/// Leaves an intent behind, as a process does that is taken for dead in the middle of the submit call.
pub(crate) async fn abandoned(bench: &Bench, idempotent: bool) -> String {
    let worker = bench
        .start_with(&bench.settings, false, &bench.store, |config| {
            config.toolsets[0].idempotent_submit = idempotent;
        })
        .await;
    let service = worker.service().clone();
    tokio::spawn(async move { service.submit(submit("s")).await });
    until("the call is sent", || async { bench.server().calls("submit", "") >= 1 }).await;
    let page = Page { limit: 1, after: None };
    let intent = bench.store.list_tasks(&TaskFilter::default(), &page).await.unwrap().remove(0);
    let owner = intent.lease_owner.clone().unwrap().into();
    assert!(bench.store.mark_dead(&owner, &owner, None).await.unwrap());
    intent.id.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_submit_ends_as_unknown_where_it_must_not_be_repeated_32() {
    let bench = Bench::new(&["s"]).await;
    bench.server().hold();
    let id = abandoned(&bench, false).await;
    let worker = bench.start().await;
    let row = bench.wait_for(&id, Status::Failed).await;
    assert_eq!(row.outcome.error_code.as_deref(), Some("submit_outcome_unknown"));
    // The first process was only slow: its answer comes now, finds the intent closed, and cancels what nobody tracks.
    bench.server().release();
    until("the orphan is cancelled", || async { bench.server().calls("cancel", "task-1") >= 1 }).await;
    assert_eq!(bench.task(&id).await.status, Status::Failed, "a terminal status never changes");
    assert_eq!(bench.server().calls("submit", ""), 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_submit_is_repeated_with_its_key_where_that_is_safe_32() {
    let bench = Bench::new(&["s"]).await;
    let kept = Answer::Structured(json!({"task_id": "kept", "status": "running"}));
    bench.server().on("submit", "", [Answer::Hang, kept]);
    let id = abandoned(&bench, true).await;
    let worker = bench.start().await;
    until("it is polled", || async { bench.server().calls("status", "kept") >= 1 }).await;
    let row = bench.task(&id).await;
    assert_eq!((row.remote_task_id.as_deref(), row.arguments.clone()), (Some("kept"), None));
    assert_eq!(bench.server().keys(), [id.as_str(), id.as_str()], "the same key each time");
    worker.stop().await;
}
