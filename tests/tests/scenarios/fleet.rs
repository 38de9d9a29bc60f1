//! Several daemons on one store.

use std::collections::HashMap;
use std::time::Duration;

use mcp_taskd_tests::daemon::{ApiError, Daemon, id_of};
use mcp_taskd_tests::fake::FakeServer;
use mcp_taskd_tests::postgres;
use mcp_taskd_tests::wait::{PATIENCE, until, until_within};
use serde_json::{Value, json};

use crate::{audit, fake, site};

const LEASE: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_secs(1);
/// What a machine that does other things too may add.
const SLACK: Duration = Duration::from_secs(4);

/// The id of a daemon's worker, as the register has it.
async fn worker_of(daemon: &Daemon) -> String {
    let workers = daemon.api.workers().await.unwrap();
    let own = workers.iter().find(|worker| worker["live"] == true && worker["pid"] == daemon.pid());
    own.unwrap_or_else(|| panic!("{} is not in {workers:?}", daemon.pid()))["worker_id"].as_str().unwrap().to_owned()
}

/// The remote ids of the tasks that a worker holds.
async fn held_by(daemon: &Daemon, worker: &str) -> Vec<String> {
    let tasks = daemon.api.tasks().await.unwrap();
    let held = tasks.iter().filter(|task| task["lease_owner"] == worker);
    held.filter_map(|task| task["remote_task_id"].as_str().map(str::to_owned)).collect()
}

async fn both_hold_some(first: &Daemon, second: &Daemon) {
    until("both hold some of the tasks", || async {
        first.api.count("leases_held", &[]).await >= 10 && second.api.count("leases_held", &[]).await >= 10
    })
    .await;
}

fn polls(fake: &FakeServer) -> HashMap<String, u64> {
    fake.state.core.truths().into_iter().map(|truth| (truth.id, truth.polls)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_daemons_tasks_are_polled_by_the_other_within_a_lease_a_tick_and_an_interval_4_40() {
    let database = postgres::database().await;
    let fake = fake().await;
    let site = site().postgres(database.url()).server("s", &fake.url).set("mcp_tasks.max_concurrent_polls", 32);
    site.migrate().await;
    let (mut first, mut second) = (site.daemon("first"), site.daemon("second"));
    tokio::join!(first.start(), second.start());
    let script = json!({"end": "never", "poll_after_seconds": 0.5});
    first.api.submit_many("s", &script, 60).await;
    both_hold_some(&first, &second).await;

    let orphans = held_by(&second, &worker_of(&first).await).await;
    assert!(orphans.len() >= 10, "{orphans:?}");
    first.kill9().await;
    let before = polls(&fake);
    let took = until_within("the other polls them", LEASE + TICK + INTERVAL + SLACK, || async {
        let now = polls(&fake);
        orphans.iter().all(|id| now[id] > before[id])
    })
    .await;
    eprintln!("{} tasks of the killed daemon were polled by the other {took:?} later", orphans.len());
    assert_eq!(second.api.count("leases_expired_total", &[]).await, 1);
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_stopped_past_its_lease_and_continued_harms_nothing_1_2() {
    let database = postgres::database().await;
    let fake = fake().await;
    // Calls take a while, so that some are open whenever the process is stopped.
    fake.state.faults.latency_ms.store(300, std::sync::atomic::Ordering::Relaxed);
    let site = site().postgres(database.url()).server("s", &fake.url).set("mcp_tasks.max_concurrent_polls", 64);
    site.migrate().await;
    let (mut first, mut second) = (site.daemon("first"), site.daemon("second"));
    tokio::join!(first.start(), second.start());
    // They end while the first is stopped: it has their `running` in hand, or their end, when it goes on.
    let ending = json!({"run_ms": 5_000, "poll_after_seconds": 0.4});
    let running = json!({"end": "never", "poll_after_seconds": 0.4});
    let (ending, running) =
        tokio::join!(first.api.submit_many("s", &ending, 40), first.api.submit_many("s", &running, 40));
    both_hold_some(&first, &second).await;
    let old = worker_of(&first).await;
    let theirs = held_by(&second, &old).await;

    first.sigstop();
    let before = polls(&fake);
    until_within("the other has taken over", LEASE + TICK + INTERVAL + SLACK, || async {
        let now = polls(&fake);
        // A call of the first may still have been on its way when it was stopped.
        theirs.iter().all(|id| now[id] >= before[id] + 2 || fake.state.core.find(id).is_some_and(|t| t.end.is_some()))
    })
    .await;
    until("what had to end has ended", || async {
        let tasks = second.api.tasks().await.unwrap();
        tasks.iter().filter(|task| task["status"] == "completed").count() == ending.len()
    })
    .await;
    first.sigcont();
    let lost = || async { first.api.count("leases_lost_total", &[]).await };
    until("the first notices and drops what it held", || async { lost().await > 0 }).await;
    until("it is back under a new id", || async {
        let workers = first.api.workers().await.unwrap();
        let live: Vec<_> = workers.iter().filter(|worker| worker["live"] == true).collect();
        live.len() == 2 && live.iter().all(|worker| worker["worker_id"] != old)
    })
    .await;

    audit::ended_once(&second.api).await;
    for id in &running {
        second.api.cancel(id).await.unwrap();
    }
    until("the rest is cancelled", || audit::all_ended(&second.api, 80)).await;
    audit::ended_once(&second.api).await;
    assert_eq!(fake.state.core.truths().iter().map(|truth| truth.cancels).max(), Some(1), "nobody cancels twice");
    first.stop().await;
    second.stop().await;
}

/// Two daemons on one SQLite file, with one state directory: what starting it twice comes to.
#[tokio::test(flavor = "multi_thread")]
async fn two_daemons_on_one_sqlite_file_work_together_17_157() {
    let fake = fake().await;
    let site = site().server("s", &fake.url).set("mcp_tasks.lease_seconds", 60);
    let (mut first, mut second) = (site.daemon_in("first", "state"), site.daemon_in("second", "state"));
    tokio::join!(first.start(), second.start());
    let script = json!({"run_ms": 8_000, "poll_after_seconds": 0.5});
    let submitted = tokio::join!(first.api.submit_many("s", &script, 40), second.api.submit_many("s", &script, 40));
    both_hold_some(&first, &second).await;
    // Either sees and changes what the other submitted.
    let (of_first, of_second) = (&submitted.0[0], &submitted.1[0]);
    second.api.cancel(of_first).await.unwrap();
    first.api.cancel(of_second).await.unwrap();
    for id in [of_first, of_second] {
        until("it is cancelled", || async { first.api.task(id).await.unwrap()["status"] == "cancelled" }).await;
    }
    // The lock on its file proves the first one's end: its lease of a minute is not waited for.
    let orphans = held_by(&second, &worker_of(&first).await).await;
    first.kill9().await;
    let before = polls(&fake);
    until_within("the other goes on at once", Duration::from_secs(6), || async {
        let now = polls(&fake);
        orphans.iter().all(|id| now[id] > before[id])
    })
    .await;
    until_within("all end", PATIENCE, || audit::all_ended(&second.api, 80)).await;
    audit::ended_once(&second.api).await;
    second.stop().await;
}

/// What `/readyz?verbose` says of one of its checks.
async fn check(daemon: &Daemon, name: &str) -> Value {
    let report = daemon.api.request(reqwest::Method::GET, "/readyz?verbose", None, None).await.unwrap();
    let found = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).cloned();
    found.unwrap_or_else(|| panic!("no check {name} in {report}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_submit_and_workers_poll_35_144() {
    let database = postgres::database().await;
    let fake = fake().await;
    let site = site().postgres(database.url()).server("s", &fake.url);
    site.migrate().await;
    let mut gateway = site.daemon("gateway").with(&["--role", "gateway"]);
    gateway.start().await;
    let id = id_of(&gateway.api.submit("s", &json!({"polls": 1}), None).await.unwrap());
    let doomed = id_of(&gateway.api.submit("s", &json!({"end": "never"}), None).await.unwrap());
    let features = gateway.api.request(reqwest::Method::GET, "/api/features", None, None).await.unwrap();
    assert_eq!(features["mcp_tasks"]["enabled"], false, "nothing is polled here (35)");
    let task = async |id: &str| gateway.api.task(id).await.unwrap();
    assert_eq!(task(&id).await["lease_owner"], Value::Null);
    // Nobody polls: that is said, and a cancel is recorded all the same.
    let pollers = check(&gateway, "pollers").await;
    assert!(pollers["detail"].as_str().unwrap().contains("nobody polls"), "{pollers}");
    assert_eq!(gateway.api.count("workers_polling", &[]).await, 0);
    assert_eq!(gateway.api.cancel(&doomed).await.unwrap()["cancel_requested"], true);

    let mut worker = site.daemon("worker").with(&["--role", "worker"]);
    worker.start().await;
    until("the worker polls it to its end", async || task(&id).await["status"] == "completed").await;
    until("the worker carries the cancel", async || task(&doomed).await["status"] == "cancelled").await;
    for (method, path) in [
        (reqwest::Method::GET, "/api/tasks"),
        (reqwest::Method::GET, "/api/threads/default/mcp-tasks"),
        (reqwest::Method::POST, "/api/threads/default/mcp-tasks"),
        (reqwest::Method::POST, "/mcp"),
    ] {
        match worker.api.request(method, path, Some(&json!({})), None).await {
            Err(ApiError::Refused(404, _)) => {}
            other => panic!("a worker serves probes and metrics only, and {path} answers {other:?}"),
        }
    }
    assert!(worker.api.count("polls_total", &[("server", "s")]).await >= 2);
    assert_eq!(gateway.api.count("polls_total", &[("server", "s")]).await, 0);
    assert_eq!(gateway.api.count("claims_total", &[]).await, 0);
    until("they hear each other", async || {
        check(&gateway, "wakeups").await["status"] == "ok" && check(&worker, "wakeups").await["status"] == "ok"
    })
    .await;
    let listed = site.run(&["workers", "list", "--output", "json"]).await;
    let listed: Vec<Value> = serde_json::from_str(&listed.success()).unwrap();
    let mut roles: Vec<_> = listed.iter().map(|worker| (worker["role"].as_str().unwrap(), &worker["polls"])).collect();
    roles.sort_by_key(|(role, _)| *role);
    assert_eq!(roles, [("gateway", &json!(false)), ("worker", &json!(true))]);
    worker.stop().await;
    gateway.stop().await;
}
