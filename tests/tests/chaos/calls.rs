//! `kill -9` while a server holds a call open, before it has executed it and after.

use mcp_taskd_tests::daemon::{Daemon, id_of};
use mcp_taskd_tests::fake::{End, FakeServer, Truth};
use mcp_taskd_tests::wait::until;
use serde_json::{Value, json};

use crate::{audit, fake, site};

/// Kills the daemon while `fake` holds a call of `tool` that `cause` leads to, and starts it again.
async fn kill_in<T>(
    daemon: &mut Daemon,
    fake: &FakeServer,
    (tool, executed): (&'static str, bool),
    cause: impl Future<Output = T>,
) {
    let mut gate = fake.state.gates.arm(tool, executed);
    tokio::select! {
        caught = gate.caught() => assert!(caught.is_some()),
        // What causes the call need not be over before it arrives; where it is, the call is still to come.
        () = async { cause.await; std::future::pending::<()>().await } => {}
    }
    daemon.kill9().await;
    drop(gate);
    daemon.start().await;
}

/// The one task there is, once it has ended, and what its server knows of it.
async fn end(daemon: &Daemon, fake: &FakeServer) -> (Value, Vec<Truth>) {
    until("it ends", || audit::all_ended(&daemon.api, 1)).await;
    audit::ended_once(&daemon.api).await;
    let rows = audit::details(&daemon.api).await;
    let [row] = &rows[..] else { panic!("one task: {rows:?}") };
    (row.clone(), fake.state.core.truths())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_in_a_submit_leaves_a_task_that_says_that_nobody_knows_32_145() {
    for executed in [false, true] {
        let fake = fake().await;
        let site = site().server("s", &fake.url);
        let mut daemon = site.daemon("taskd");
        daemon.start().await;
        let api = daemon.api.clone();
        let script = json!({"end": "never"});
        let submit = api.submit("s", &script, Some("key"));
        kill_in(&mut daemon, &fake, ("submit_report", executed), submit).await;

        let (row, truths) = end(&daemon, &fake).await;
        assert_eq!((&row["status"], &row["error_code"]), (&json!("failed"), &json!("submit_outcome_unknown")));
        assert_eq!(truths.len(), usize::from(executed), "it is not repeated");
        let again = daemon.api.submit("s", &script, Some("key")).await.unwrap();
        assert_eq!(id_of(&again), id_of(&row), "the key is still the task's");
        daemon.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_in_a_submit_that_may_be_repeated_makes_one_task_32() {
    for executed in [false, true] {
        let fake = fake().await;
        let site = site().server_with("s", &fake.url, true, json!({}));
        let mut daemon = site.daemon("taskd");
        daemon.start().await;
        let api = daemon.api.clone();
        let script = json!({"polls": 1});
        let submit = api.submit("s", &script, Some("key"));
        kill_in(&mut daemon, &fake, ("submit_report", executed), submit).await;

        let (row, truths) = end(&daemon, &fake).await;
        let [truth] = &truths[..] else { panic!("one remote task: {truths:?}") };
        assert_eq!(row["status"], "completed", "{row}");
        assert_eq!(row["remote_task_id"], truth.id.as_str());
        assert_eq!(truth.submits, 1 + u64::from(executed));
        daemon.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_in_a_poll_or_a_cancel_loses_neither_the_end_nor_the_cancel_30() {
    for executed in [false, true] {
        let fake = fake().await;
        let site = site().server("s", &fake.url);
        let mut daemon = site.daemon("taskd");
        daemon.start().await;
        let api = daemon.api.clone();
        let script = json!({"polls": 1, "poll_after_seconds": 0.2});
        kill_in(&mut daemon, &fake, ("get_report_status", executed), api.submit("s", &script, None)).await;
        let (row, truths) = end(&daemon, &fake).await;
        assert_eq!((&row["status"], truths[0].end), (&json!("completed"), Some(End::Completed)));

        // A cancel that the server has carried out, and whose answer is lost, is sent again.
        let id = id_of(&daemon.api.submit("s", &json!({"end": "never"}), None).await.unwrap());
        let cancel = async { api.cancel(&id).await.unwrap() };
        kill_in(&mut daemon, &fake, ("cancel_report", executed), cancel).await;
        until("it is cancelled", || async { api.task(&id).await.unwrap()["status"] == "cancelled" }).await;
        let remote = api.task(&id).await.unwrap()["remote_task_id"].as_str().unwrap().to_owned();
        assert_eq!(fake.state.core.find(&remote).unwrap().cancels, 1 + u64::from(executed));
        audit::ended_once(&api).await;
        daemon.stop().await;
    }
}
