//! `kill -9` at random moments.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mcp_taskd_tests::daemon::{Api, ApiError, Site, id_of};
use mcp_taskd_tests::fake::FakeServer;
use mcp_taskd_tests::postgres;
use mcp_taskd_tests::wait::{PATIENCE, until_within};
use serde_json::{Value, json};

use crate::{audit, fake, site};

const TASKS: usize = 200;
const SUBMITTERS: usize = 8;
const KILLS: usize = 6;

/// What task number `number` does, and whether its client cancels it.
fn plan(number: usize) -> (Value, bool) {
    let run_ms = fastrand::u64(300..6_000);
    let hint = 0.4;
    match number % 10 {
        0..=2 => {
            (json!({"polls": number % 4, "run_ms": run_ms, "poll_after_seconds": hint, "result_bytes": 40}), false)
        }
        3 => (json!({"run_ms": run_ms, "end": "failed", "poll_after_seconds": hint}), false),
        4 => (json!({"run_ms": run_ms, "ask_input": true, "poll_after_seconds": hint}), false),
        5 => (json!({"end": "never", "poll_after_seconds": hint}), true),
        // Ends about when it is cancelled.
        6 => (json!({"run_ms": 1_500, "poll_after_seconds": hint}), true),
        7 => (json!({"run_ms": run_ms, "bad_polls": 1, "end": "cancelled"}), false),
        8 => (json!({"run_ms": run_ms, "end": "not_found", "poll_after_seconds": hint}), false),
        _ => (json!({"end": "never", "deaf_cancels": 1, "on_cancel": "completed"}), true),
    }
}

/// A client as they should be: tries again with the same key until it knows.
async fn submit(api: &Api, server: &str, script: &Value, key: &str) -> String {
    loop {
        match api.submit(server, script, Some(key)).await {
            Ok(task) => return id_of(&task),
            // The outcome is unknown, and the task that says so is named.
            Err(ApiError::Refused(504, problem)) => return id_of(&problem),
            Err(ApiError::Unreachable(_) | ApiError::Refused(503, _)) => {}
            Err(error) => panic!("{key} was refused: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn cancel(api: Api, id: String) {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(500..2_500))).await;
    while let Err(error) = api.cancel(&id).await {
        let down = matches!(error, ApiError::Unreachable(_) | ApiError::Refused(503, _));
        assert!(down, "the cancel of {id} was refused: {error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Answers whatever is asked, for as long as it is not aborted.
async fn answer_questions(api: Api) {
    loop {
        for task in api.tasks().await.unwrap_or_default() {
            if task["status"] == "input_required" {
                // It may have been answered meanwhile, and the daemon may be down; then it is asked again.
                let _ = api.input(&id_of(&task), &json!("Q3")).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn kill_in_the_middle(site: Site, plain: &FakeServer, sure: &FakeServer) {
    for fake in [plain, sure] {
        // Calls take their time after they have done their work: a kill then loses the answer.
        fake.state.faults.after_execution.store(true, Ordering::Relaxed);
        fake.state.faults.latency_ms.store(60, Ordering::Relaxed);
    }
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    let api = daemon.api.clone();
    let tasks: Arc<Mutex<HashMap<String, String>>> = Arc::default();
    let answering = tokio::spawn(answer_questions(api.clone()));
    let submitting: Vec<_> = (0..SUBMITTERS)
        .map(|submitter| {
            let (api, tasks) = (api.clone(), Arc::clone(&tasks));
            tokio::spawn(async move {
                let mut cancels = Vec::new();
                for number in (submitter..TASKS).step_by(SUBMITTERS) {
                    let (script, cancelled) = plan(number);
                    let key = format!("key-{number}");
                    let server = if number % 3 == 0 { "sure" } else { "plain" };
                    let id = submit(&api, server, &script, &key).await;
                    if cancelled {
                        cancels.push(tokio::spawn(cancel(api.clone(), id.clone())));
                    }
                    tasks.lock().unwrap().insert(key, id);
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(..300))).await;
                }
                futures_util::future::try_join_all(cancels).await.unwrap();
            })
        })
        .collect();

    for _ in 0..KILLS {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(200..1_500))).await;
        daemon.kill9().await;
        daemon.start().await;
    }
    futures_util::future::try_join_all(submitting).await.unwrap();
    until_within("every task ends", PATIENCE * 2, || audit::all_ended(&api, TASKS)).await;
    answering.abort();

    let tasks = tasks.lock().unwrap().clone();
    audit::matches_the_truth(&api, &[("plain", plain), ("sure", sure)], &tasks).await;
    let rows = audit::details(&api).await;
    let unknown = rows.iter().filter(|row| row["error_code"] == "submit_outcome_unknown").count();
    let repeated = sure.state.core.truths().iter().filter(|truth| truth.submits > 1).count();
    eprintln!("{KILLS} kills: {unknown} submits of unknown outcome, {repeated} repeated");
    for row in rows {
        let sure = row["server_name"] == "sure";
        assert!(!sure || row["error_code"] != "submit_outcome_unknown", "a submit that may be repeated was not: {row}");
    }
    until_within("only the living worker is on record", PATIENCE, || async {
        api.workers().await.is_ok_and(|workers| workers.len() == 1)
    })
    .await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_in_the_middle_of_200_tasks_lose_nothing_on_sqlite_4_32_40() {
    let (plain, sure) = (fake().await, fake().await);
    let site = site().server("plain", &plain.url).server_with("sure", &sure.url, true, json!({}));
    kill_in_the_middle(site, &plain, &sure).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_in_the_middle_of_200_tasks_lose_nothing_on_postgres_4_32_40() {
    let database = postgres::database().await;
    let (plain, sure) = (fake().await, fake().await);
    let site = site().postgres(database.url()).server("plain", &plain.url);
    let site = site.server_with("sure", &sure.url, true, json!({}));
    site.migrate().await;
    kill_in_the_middle(site, &plain, &sure).await;
}

/// The lock of a state directory proves its predecessor dead; nobody waits for a lease of two minutes.
async fn restart_polls_at_once(site: Site, fake: &FakeServer) {
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    daemon.api.submit_many("s", &json!({"end": "never"}), 20).await;
    let polls = || fake.state.core.truths().into_iter().map(|truth| truth.polls).collect::<Vec<_>>();
    until_within("every task is polled", PATIENCE, || async { polls().iter().all(|polls| *polls > 0) }).await;

    daemon.kill9().await;
    let before = polls();
    let ready = daemon.start().await;
    let again = || async { polls().iter().zip(&before).all(|(now, before)| now > before) };
    // A tick, a random part of one interval and the poll itself; twice that for a slow machine.
    let took = until_within("every task is polled again", Duration::from_secs(5), again).await;
    eprintln!("ready after {ready:?}, every task polled again {took:?} later");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_the_same_state_directory_polls_at_once_on_sqlite() {
    let fake = fake().await;
    let site = site().server("s", &fake.url).set("mcp_tasks.lease_seconds", 120);
    restart_polls_at_once(site, &fake).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_the_same_state_directory_polls_at_once_on_postgres() {
    let database = postgres::database().await;
    let fake = fake().await;
    let site = site().postgres(database.url()).server("s", &fake.url).set("mcp_tasks.lease_seconds", 120);
    site.migrate().await;
    restart_polls_at_once(site, &fake).await;
}
