//! Tasks of MCP's own, of both generations, on a server over HTTP.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mcp_taskd_core::config::{Environment, Extensions};
use mcp_taskd_core::runtime::{Process, Runtime};
use mcp_taskd_core::service::{ServiceError, Submit, Submitted};
use mcp_taskd_core::store::{Page, SharedStore, TaskFilter};
use mcp_taskd_core::task::{Status, TaskRecord};
use mcp_taskd_core::upstream::{Options, build};
use mcp_taskd_tests::fake::{End, Era, FakeOptions, FakeServer, NATIVE_TOOL, native_tools, tools};
use mcp_taskd_tests::faulty::{Fault, Faulty};
use mcp_taskd_tests::scripted::Answer;
use mcp_taskd_tests::wait::until;
use prometheus::Registry;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::bench::{Bench, Running, anyone, submit};

const ERAS: [Era; 2] = [Era::Modern, Era::Legacy];

/// A worker, its store, and a server of `era` that has native tasks.
struct Native {
    bench: Bench,
    worker: Running,
    fake: FakeServer,
}

impl Native {
    async fn start(era: Era) -> Self {
        Self::start_with(Bench::new(&[]).await, era, native_tools()).await
    }

    async fn start_with(bench: Bench, era: Era, tools: Value) -> Self {
        let options = FakeOptions { era, tools: Some(tools), journal: true, ..FakeOptions::default() };
        let fake = FakeServer::start(options).await;
        let worker = poller(&bench, &fake).await;
        Self { bench, worker, fake }
    }

    async fn submit(&self, script: Value) -> TaskRecord {
        self.try_submit(script).await.expect("an accepted submit").task
    }

    async fn try_submit(&self, script: Value) -> Result<Submitted, ServiceError> {
        let arguments = RawValue::from_string(json!({ "script": script }).to_string()).unwrap();
        self.worker.try_submit(Submit { arguments, ..submit("s") }).await
    }

    async fn ends(&self, task: &TaskRecord, status: Status) -> TaskRecord {
        self.bench.wait_for(&task.id, status).await
    }

    fn asked(&self, method: &str) -> usize {
        self.fake.state.journal().iter().filter(|called| called.tool == method).count()
    }

    async fn stop(self) {
        self.worker.stop().await;
    }
}

async fn poller(bench: &Bench, fake: &FakeServer) -> Running {
    let document = json!({"mcpServers": {"s": {"type": "http", "url": fake.url, "task_toolsets": [
        {"name": "report", "submit_tool": NATIVE_TOOL, "driver": "native"}]}}});
    let extensions =
        Extensions::parse(&document.to_string(), Path::new("e.json"), &Environment::default()).expect("usable");
    let state_dir = bench.folder.path().join("state");
    let upstreams = build(&extensions, &Options::new(&state_dir)).expect("buildable");
    let server = (extensions.servers["s"].clone(), upstreams.find("s").expect("it is there").clone());
    let registry = Registry::new();
    let process = Process { role: "test".into(), polls: true, state_dir };
    let runtime =
        Runtime::start(&bench.settings, process, Arc::clone(&bench.store), vec![server], &registry).await.unwrap();
    Running { runtime, registry }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_native_task_is_polled_to_its_end_and_unchanged_polls_write_no_row_131() {
    for era in ERAS {
        let native = Native::start(era).await;
        let task = native.submit(json!({"polls": 4, "poll_after_seconds": 0.1, "result_bytes": 8})).await;
        assert_eq!((task.status, task.binding.driver.as_str()), (Status::Submitted, "native"), "{era:?}");
        let row = native.ends(&task, Status::Completed).await;
        assert_eq!(row.outcome.result.as_ref().unwrap().as_str(), r#"{"report":"rrrrrr"}"#);
        assert_eq!(native.bench.events(&task.id).await, ["submitted", "working", "completed"]);
        let written = native.worker.metric("rows_written_total", &[("statement", "poll")]);
        assert!((written - 2.0).abs() < 0.1, "submitted → working → completed: {written}");
        assert_eq!(native.asked("tasks/result"), usize::from(era == Era::Legacy), "{era:?}");
        let truth = native.fake.state.core.find(row.remote_task_id.as_deref().unwrap()).unwrap();
        assert_eq!(truth.idempotency_key.as_deref(), Some(&*task.id), "the submit carries its key");
        native.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_answered_at_once_is_a_task_that_has_ended() {
    for era in ERAS {
        let native = Native::start(era).await;
        let task = native.submit(json!({"at_once": true})).await;
        assert_eq!((task.status, &task.remote_task_id), (Status::Completed, &None), "{era:?}");
        let row = native.bench.task(&task.id).await;
        assert_eq!(row.outcome.result.as_ref().unwrap().as_str(), r#"{"rendered":true}"#);
        assert_eq!((&row.lease_owner, row.completed_at.is_some()), (&None, true));
        assert_eq!(native.bench.events(&task.id).await, ["completed"], "one event");
        let finished = native.worker.metric("tasks_finished_total", &[("status", "completed")]);
        assert!((finished - 1.0).abs() < 0.1, "{finished}");
        assert_eq!(native.asked("tasks/get"), 0);
        let again = native.worker.service().cancel(&anyone(), &task.id).await.unwrap();
        assert_eq!(again.status, Status::Completed, "59");
        native.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_end_as_the_server_says_and_a_tools_own_error_stands_beside_its_result() {
    for era in ERAS {
        let native = Native::start(era).await;
        let failed = native.submit(json!({"end": "failed"})).await;
        let reported = native.submit(json!({"reports_error": true})).await;
        let gone = native.submit(json!({"end": "not_found"})).await;
        let row = native.ends(&failed, Status::Failed).await;
        assert_eq!(row.outcome.error.as_deref(), Some("the report could not be made"), "{era:?}");
        assert_eq!(row.outcome.error_code.as_deref(), Some("-32000"));
        let row = native.ends(&reported, Status::Completed).await;
        assert_eq!(row.outcome.error.as_deref(), Some("The tool returned an error: out of paper"));
        assert_eq!(row.outcome.error_code.as_deref(), Some("tool_error"));
        assert!(row.outcome.result.unwrap().as_str().contains("out of paper"));
        let row = native.ends(&gone, Status::Failed).await;
        assert_eq!(row.outcome.error_code.as_deref(), Some("task_not_found"), "11");
        native.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_protocol_is_retried_and_never_ends_a_task_16_22() {
    for era in ERAS {
        let native = Native::start(era).await;
        let task = native.submit(json!({"bad_polls": 1})).await;
        until("the error is seen", || async { native.bench.task(&task.id).await.last_poll_error.is_some() }).await;
        let row = native.ends(&task, Status::Completed).await;
        assert_eq!(row.last_poll_error, None, "{era:?}");
        native.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_an_acknowledgement_after_which_the_task_is_asked_until_it_has_ended_19_60() {
    for (era, on_cancel, status) in [
        (Era::Modern, "cancelled", Status::Cancelled),
        (Era::Modern, "completed", Status::Completed),
        (Era::Legacy, "cancelled", Status::Cancelled),
    ] {
        let native = Native::start(era).await;
        let script = json!({"end": "never", "cancel_polls": 3, "on_cancel": on_cancel, "poll_after_seconds": 0.2});
        let task = native.submit(script).await;
        native.ends(&task, Status::Working).await;
        native.worker.service().cancel(&anyone(), &task.id).await.unwrap();
        let row = native.ends(&task, status).await;
        assert!(row.cancel_attempt_count >= 2, "{era:?}: {}", row.cancel_attempt_count);
        assert_eq!(row.last_cancel_error, None, "it was acknowledged");
        assert_eq!(row.outcome.result.is_some(), status == Status::Completed, "done work stays done");
        assert_eq!(native.bench.events(&task.id).await, ["submitted", "working", status.as_str()]);
        native.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_is_refused_is_tried_again_and_one_that_comes_too_late_takes_the_end_20() {
    for era in ERAS {
        let native = Native::start(era).await;
        let deaf = native.submit(json!({"end": "never", "deaf_cancels": 1})).await;
        native.worker.service().cancel(&anyone(), &deaf.id).await.unwrap();
        let refused = || async {
            native.bench.task(&deaf.id).await.last_cancel_error.is_some_and(|why| why.contains("did not come through"))
        };
        until("it is refused once", refused).await;
        let row = native.ends(&deaf, Status::Cancelled).await;
        assert_eq!(row.cancel_attempt_count, 2, "{era:?}");

        // It has ended before anybody has looked.
        let late = native.submit(json!({"poll_after_seconds": 3_600})).await;
        let remote = native.bench.task(&late.id).await.remote_task_id.clone().unwrap();
        native.fake.state.core.end(&remote, End::Completed);
        native.worker.service().cancel(&anyone(), &late.id).await.unwrap();
        assert!(native.ends(&late, Status::Completed).await.outcome.result.is_some());
        native.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_asked_once_answered_by_its_key_and_worked_on_64() {
    let native = Native::start(Era::Modern).await;
    let task = native.submit(json!({"ask_input": true})).await;
    let row = native.ends(&task, Status::InputRequired).await;
    let asked: Value = serde_json::from_str(row.outcome.input_required.as_ref().unwrap().as_str()).unwrap();
    assert_eq!(asked["quarter"]["method"], "elicitation/create");
    let answer = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
    let service = native.worker.service();
    let odd = service.input(&anyone(), &task.id, &answer("\"Q3\"")).await.unwrap_err();
    assert!(matches!(odd, ServiceError::Invalid(_)), "{odd:?}");
    let right = answer(r#"{"quarter":{"action":"accept","content":{"quarter":"Q3"}}}"#);
    service.input(&anyone(), &task.id, &right).await.unwrap();
    native.ends(&task, Status::Completed).await;
    assert_eq!(native.bench.events(&task.id).await, ["submitted", "input_required", "completed"]);
    native.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_server_asks_where_no_answer_can_be_sent() {
    let native = Native::start(Era::Legacy).await;
    let task = native.submit(json!({"ask_input": true})).await;
    native.ends(&task, Status::InputRequired).await;
    let answer = RawValue::from_string("{}".to_owned()).unwrap();
    let refused = native.worker.service().input(&anyone(), &task.id, &answer).await.unwrap_err();
    assert!(matches!(&refused, ServiceError::Conflict(why) if why.contains("tasks/update")), "{refused:?}");
    native.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_fetched_before_its_server_may_drop_it() {
    for era in ERAS {
        let native = Native::start(era).await;
        let started = Instant::now();
        let script = json!({"run_ms": 1_000, "ttl_ms": 16_000, "poll_after_seconds": 3_600});
        let task = native.submit(script).await;
        native.ends(&task, Status::Completed).await;
        assert!(started.elapsed() < Duration::from_secs(16), "{era:?}: not an hour later");
        native.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_does_not_offer_or_refuses_leaves_no_task_2_145() {
    // Without a native tool it has no such tasks.
    let old = Native::start_with(Bench::new(&[]).await, Era::Legacy, tools()).await;
    let refused = old.try_submit(json!({})).await.unwrap_err();
    assert!(matches!(&refused, ServiceError::Refused(why) if why.contains("no MCP tasks")), "{refused:?}");
    assert_eq!(old.asked(NATIVE_TOOL), 0, "it is not even called");
    old.stop().await;
    let native = Native::start(Era::Modern).await;
    let wrong = native.try_submit(json!({"submit_status": "queued", "end": "never"})).await.unwrap_err();
    assert!(matches!(&wrong, ServiceError::Refused(why) if why.contains("\"queued\"")), "{wrong:?}");
    let ended = || async { native.fake.state.core.truths().iter().all(|truth| truth.end == Some(End::Cancelled)) };
    until("its remote task is cancelled (152)", ended).await;
    let page = Page { limit: 10, after: None };
    assert_eq!(native.bench.store.list_tasks(&TaskFilter::default(), &page).await.unwrap(), []);
    native.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_too_old_is_cancelled_and_expires_133() {
    let mut bench = Bench::new(&[]).await;
    bench.settings.max_task_age_seconds = Some(1);
    let native = Native::start_with(bench, Era::Modern, native_tools()).await;
    let task = native.submit(json!({"end": "never", "cancel_polls": 1_000})).await;
    let row = native.ends(&task, Status::Failed).await;
    assert_eq!(row.outcome.error_code.as_deref(), Some("task_expired"));
    assert_eq!(native.asked("tasks/cancel"), 1, "after one cancel that was acknowledged");
    native.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_worker_goes_on_with_a_native_task() {
    let native = Native::start(Era::Modern).await;
    let task = native.submit(json!({"end": "never"})).await;
    native.ends(&task, Status::Working).await;
    let Native { bench, worker, fake } = native;
    worker.stop().await;
    let remote = bench.task(&task.id).await.remote_task_id.clone().unwrap();
    fake.state.core.end(&remote, End::Completed);
    let worker = poller(&bench, &fake).await;
    bench.wait_for(&task.id, Status::Completed).await;
    worker.stop().await;
}

/// A worker whose native tool, on a scripted server, answers every call at once.
async fn at_once(bench: &Bench, polls: bool, store: &SharedStore) -> Running {
    bench.server().on("submit", "", [done()]);
    bench
        .start_with(&bench.settings, polls, store, |config| {
            let toolset = &mut config.toolsets[0];
            (toolset.status_tool, toolset.cancel_tool, toolset.input_tool) = (String::new(), String::new(), None);
            toolset.idempotent_submit = true;
        })
        .await
}

fn done() -> Answer {
    Answer::Structured(json!({"pages": 12}))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_at_once_is_recorded_once_whatever_becomes_of_the_write_23() {
    let bench = Bench::new(&["s"]).await;
    let faulty = Faulty::new(Arc::clone(&bench.store));
    let store: SharedStore = Arc::<Faulty>::clone(&faulty);
    let worker = at_once(&bench, true, &store).await;
    let late = [Fault::Late(Duration::from_millis(20)), Fault::StatementLost];
    for faults in [&[Fault::Away][..], &[Fault::AnswerLost], &[Fault::StatementLost], &late] {
        faulty.next("apply", faults.iter().copied());
        let task = worker.submit("s").await;
        assert_eq!(task.status, Status::Completed, "{faults:?}");
        assert_eq!(bench.events(&task.id).await, ["completed"], "{faults:?}");
    }
    assert_eq!(bench.server().calls("submit", ""), 4, "the work is not done again");
    faulty.next("apply", [Fault::Refused]);
    let Err(ServiceError::OutcomeUnknown { task_id, .. }) = worker.try_submit(submit("s")).await else {
        panic!("expected an unknown outcome");
    };
    let row = bench.task(&task_id).await;
    assert_eq!((row.status, row.outcome.error_code.as_deref()), (Status::Failed, Some("submit_outcome_unknown")));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_at_once_is_recorded_though_its_process_was_taken_for_dead_32() {
    let bench = Bench::new(&["s"]).await;
    let worker = at_once(&bench, false, &bench.store).await;
    bench.server().hold();
    let service = worker.service().clone();
    let call = tokio::spawn(async move { service.submit(submit("s")).await });
    until("the call is sent", || async { bench.server().calls("submit", "") == 1 }).await;
    let page = Page { limit: 1, after: None };
    let intent = bench.store.list_tasks(&TaskFilter::default(), &page).await.unwrap().remove(0);
    let owner = intent.lease_owner.clone().unwrap().into();
    assert!(bench.store.mark_dead(&owner, &owner, None).await.unwrap());
    until("the intent is freed", || async { bench.task(&intent.id).await.lease_owner.is_none() }).await;
    bench.server().release();
    let task = call.await.unwrap().unwrap().task;
    assert_eq!((task.status, &task.id), (Status::Completed, &intent.id));
    assert_eq!(bench.events(&intent.id).await, ["completed"]);
    worker.stop().await;
}

/// An intent whose process is taken for dead in the call, and which the next call is to answer at once.
async fn left_in_the_call(bench: &Bench) -> (Running, TaskRecord) {
    let first = at_once(bench, false, &bench.store).await;
    bench.server().on("submit", "", [Answer::Hang, done()]);
    let service = first.service().clone();
    tokio::spawn(async move { service.submit(submit("s")).await });
    until("the call is sent", || async { bench.server().calls("submit", "") == 1 }).await;
    let page = Page { limit: 1, after: None };
    let intent = bench.store.list_tasks(&TaskFilter::default(), &page).await.unwrap().remove(0);
    let owner = intent.lease_owner.clone().unwrap().into();
    assert!(bench.store.mark_dead(&owner, &owner, None).await.unwrap());
    (first, intent)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_at_once_that_the_store_refuses_is_not_asked_for_again_32_145() {
    let bench = Bench::new(&["s"]).await;
    let (_first, intent) = left_in_the_call(&bench).await;
    let faulty = Faulty::new(Arc::clone(&bench.store));
    faulty.next("apply", [Fault::Refused]);
    let store: SharedStore = faulty;
    let worker = bench.start_with(&bench.settings, true, &store, |_| {}).await;
    let row = bench.wait_for(&intent.id, Status::Failed).await;
    assert_eq!(row.outcome.error_code.as_deref(), Some("submit_outcome_unknown"));
    assert_eq!(bench.server().calls("submit", ""), 2, "the work is not done a third time");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_submit_may_be_answered_at_once_32() {
    let bench = Bench::new(&["s"]).await;
    let (_first, intent) = left_in_the_call(&bench).await;
    // Its script must stay as it is: the second answer is for the resolver.
    let worker = bench.start().await;
    let row = bench.wait_for(&intent.id, Status::Completed).await;
    assert_eq!((&row.remote_task_id, &row.arguments), (&None, &None));
    assert_eq!(row.outcome.result.as_ref().unwrap().as_str(), r#"{"pages":12}"#);
    assert_eq!(bench.events(&intent.id).await, ["completed"]);
    worker.stop().await;
}
