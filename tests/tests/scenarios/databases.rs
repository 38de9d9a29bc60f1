//! The database goes away while tasks are polled.

use std::collections::HashMap;
use std::time::Duration;

use mcp_taskd_tests::daemon::{Api, ApiError, Site, id_of};
use mcp_taskd_tests::fake::FakeServer;
use mcp_taskd_tests::postgres::{self, Server};
use mcp_taskd_tests::wait::{PATIENCE, until, until_still, until_within};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};

use crate::{audit, fake, site};

const TASKS: usize = 60;

fn on(url: &str, fake: &FakeServer) -> Site {
    site().postgres(url).server("s", &fake.url)
}

/// Submits over a few seconds, whatever the database does meanwhile.
async fn submit_steadily(api: Api) -> HashMap<String, String> {
    let mut tasks = HashMap::new();
    for number in 0..TASKS {
        let end = ["completed", "failed", "cancelled"][number % 3];
        let script = json!({"run_ms": fastrand::u64(500..5_000), "end": end, "poll_after_seconds": 0.3});
        let key = format!("key-{number}");
        let id = loop {
            match api.submit("s", &script, Some(&key)).await {
                Ok(task) => break id_of(&task),
                Err(ApiError::Refused(503, _)) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(error) => panic!("{key} was refused: {error}"),
            }
        };
        tasks.insert(key, id);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tasks
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_during_polls_lose_nothing_19_23() {
    let database = postgres::database().await;
    let fake = fake().await;
    let site = on(database.url(), &fake);
    site.migrate().await;
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    let submitting = tokio::spawn(submit_steadily(daemon.api.clone()));
    let mut admin = postgres::server().ready().await;
    let mut cut = 0;
    while !submitting.is_finished() {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(100..500))).await;
        let gone = sqlx::query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1")
            .bind(database.name())
            .execute(&mut admin)
            .await
            .unwrap();
        cut += gone.rows_affected();
    }
    eprintln!("{cut} connections cut");
    let tasks = submitting.await.unwrap();
    until_within("every task ends", PATIENCE, || audit::all_ended(&daemon.api, TASKS)).await;
    audit::matches_the_truth(&daemon.api, &[("s", &fake)], &tasks).await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_crashes_and_comes_back_loses_nothing_22_23() {
    let Some(server) = Server::private() else {
        eprintln!("not tested: TEST_DATABASE_URL names a server that is not ours to stop, and there is no other");
        return;
    };
    server.create("taskd").await;
    let fake = fake().await;
    let site = on(&server.url("taskd"), &fake);
    site.migrate().await;
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    let submitting = tokio::spawn(submit_steadily(daemon.api.clone()));

    until("there are tasks to lose", || async { fake.state.core.truths().len() >= TASKS / 3 }).await;
    server.crash();
    until("it is not ready", || async { !daemon.api.is_ready().await }).await;
    let live = daemon.api.request(reqwest::Method::GET, "/livez", None, None).await;
    assert!(live.is_ok(), "liveness does not ask the database: {live:?}");
    let failed = async || daemon.api.count("db_errors_total", &[("kind", "unavailable")]).await;
    until("a scrape, which needs no database, tells of failed statements (35)", || async { failed().await > 0 }).await;
    // What is answered meanwhile waits. A task is polled every 0.3 s for as long as anything may be called.
    let polls = || fake.state.core.truths().iter().map(|truth| truth.polls).sum::<u64>();
    until_still("past its lease the daemon fences itself (31)", Duration::from_secs(3), polls).await;
    server.resume();
    server.ready().await.close().await.unwrap();

    let tasks = submitting.await.unwrap();
    until_within("every task ends", PATIENCE, || audit::all_ended(&daemon.api, TASKS)).await;
    until("it is ready", || daemon.api.is_ready()).await;
    audit::matches_the_truth(&daemon.api, &[("s", &fake)], &tasks).await;
    let mut connection = PgConnection::connect(&server.url("taskd")).await.unwrap();
    let owned: i64 = sqlx::query_scalar("SELECT count(*) FROM mcp_tasks WHERE lease_owner IS NOT NULL")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(owned, 0, "what has ended is nobody's");
    daemon.stop().await;
}

/// Two daemons behind a pooler that lends connections by the transaction: nothing relies on a session (20).
#[tokio::test(flavor = "multi_thread")]
async fn daemons_behind_a_pooler_work_and_hear_nothing_of_each_other_20() {
    let Some(pooler) = mcp_taskd_tests::pooler::pooler() else { return };
    let database = postgres::database().await;
    let fake = fake().await;
    let site = on(&pooler.url(database.name()), &fake);
    site.migrate().await;
    let (mut first, mut second) = (site.daemon("first"), site.daemon("second"));
    tokio::join!(first.start(), second.start());
    let ready = first.api.request(reqwest::Method::GET, "/readyz?verbose", None, None).await.unwrap();
    let wakeups = ready["checks"].as_array().unwrap().iter().find(|check| check["name"] == "wakeups").unwrap();
    assert_eq!(wakeups["status"], "warning", "{ready}");
    let tasks = submit_steadily(first.api.clone()).await;
    until_within("every task ends", PATIENCE, || audit::all_ended(&second.api, TASKS)).await;
    audit::matches_the_truth(&second.api, &[("s", &fake)], &tasks).await;
    assert!(!first.log().contains("prepared statement"), "{}", first.log());
    first.stop().await;
    second.stop().await;
}
