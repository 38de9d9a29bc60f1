//! A database that is busy, read-only, or ends connections.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mcp_taskd_tests::daemon::{ApiError, id_of};
use mcp_taskd_tests::postgres::{self, Server};
use mcp_taskd_tests::wait::{PATIENCE, until, until_within};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::{LEASE, audit, fake, site};

/// The process ids of the daemons' connections to a database.
async fn backends(admin: &mut PgConnection, database: &str) -> HashSet<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE datname = $1 AND application_name = 'mcp-taskd'";
    sqlx::query_scalar(sql).bind(database).fetch_all(admin).await.unwrap().into_iter().collect()
}

async fn execute(connection: &mut PgConnection, sql: &str) {
    sqlx::query(AssertSqlSafe(sql.to_owned())).execute(connection).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_go_on_behind_500_slow_polls_and_a_pool_of_two_that_hangs_18() {
    const TASKS: usize = 500;
    let database = postgres::database().await;
    let fake = fake().await;
    let site = site()
        .postgres(database.url())
        .server("s", &fake.url)
        .set("database.max_connections", 2)
        .set("mcp_tasks.max_concurrent_polls", TASKS);
    site.migrate().await;
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    for _ in 0..TASKS / 50 {
        daemon.api.submit_many("s", &json!({"end": "never", "poll_after_seconds": 1}), 50).await;
    }
    fake.state.faults.latency_ms.store(10_000, Ordering::Relaxed);
    let in_flight = || async { daemon.api.count("polls_in_flight", &[("server", "s")]).await };
    until("every task is polled at once", || async { in_flight().await >= TASKS as u64 }).await;
    daemon.api.submit("s", &json!(null), None).await.expect("no poll holds a connection");

    // Whoever uses the pool waits now.
    let beats = || async {
        let mut connection = PgConnection::connect(database.url()).await.unwrap();
        let beats = sqlx::query_as("SELECT id, heartbeat_count FROM workers").fetch_one(&mut connection).await;
        beats.unwrap()
    };
    let (worker, before): (String, i64) = beats().await;
    let mut locking = PgConnection::connect(database.url()).await.unwrap();
    execute(&mut locking, "BEGIN").await;
    execute(&mut locking, "LOCK TABLE mcp_tasks IN ACCESS EXCLUSIVE MODE").await;
    until("the pool hangs", || async {
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        let mut admin = postgres::server().ready().await;
        sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut admin).await.unwrap() >= 2
    })
    .await;
    // Each is a third of the lease after the one before.
    until_within("heartbeats go on for longer than a lease", PATIENCE, || async { beats().await.1 >= before + 4 })
        .await;
    assert_eq!(beats().await.0, worker, "nobody had to start again");
    execute(&mut locking, "ROLLBACK").await;
    assert_eq!(daemon.api.count("leases_lost_total", &[]).await, 0);
    daemon.kill9().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_turns_read_only_is_left_alone_until_it_is_back_22() {
    let Some(server) = Server::private() else {
        eprintln!("not tested: TEST_DATABASE_URL names a server that is not ours to change, and there is no other");
        return;
    };
    server.create("taskd").await;
    let fake = fake().await;
    let site = site().postgres(&server.url("taskd")).server("s", &fake.url);
    site.migrate().await;
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    let script = json!({"run_ms": 2_000, "poll_after_seconds": 0.3});
    daemon.api.submit_many("s", &script, 20).await;
    let mut admin = server.ready().await;
    let before = backends(&mut admin, "taskd").await;

    execute(&mut admin, "ALTER SYSTEM SET default_transaction_read_only = on").await;
    execute(&mut admin, "SELECT pg_reload_conf()").await;
    until("it is not ready", || async { !daemon.api.is_ready().await }).await;
    let refused = daemon.api.submit("s", &script, None).await;
    assert!(matches!(refused, Err(ApiError::Refused(503, _))), "{refused:?}");
    // The lease is not renewed any more: past it nothing is called.
    let since = Instant::now();
    let is_quiet = || fake.state.journal().pop().is_some_and(|last| last.at.elapsed() > Duration::from_millis(1_500));
    until_within("it fences itself", LEASE * 3, || async { since.elapsed() >= LEASE && is_quiet() }).await;
    execute(&mut admin, "ALTER SYSTEM RESET default_transaction_read_only").await;
    execute(&mut admin, "SELECT pg_reload_conf()").await;

    until("it is ready again", || daemon.api.is_ready()).await;
    until("every task ends", || audit::all_ended(&daemon.api, 20)).await;
    audit::ended_once(&daemon.api).await;
    let kept = backends(&mut admin, "taskd").await.intersection(&before).count();
    // What only reads was not refused; what writes was, and connects anew: after a failover it would be to another node.
    assert!(kept < before.len(), "no connection was given up");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_announces_is_found_by_the_ticks_7() {
    let database = postgres::database().await;
    let fake = fake().await;
    let site = site().postgres(database.url()).server("s", &fake.url);
    site.migrate().await;
    let mut gateway = site.daemon("gateway").with(&["--role", "gateway"]);
    let mut worker = site.daemon("worker").with(&["--role", "worker"]);
    tokio::join!(gateway.start(), worker.start());
    let mut admin = postgres::server().ready().await;
    let script = json!({"end": "never"});
    for _ in 0..3 {
        // Whatever the worker listens on is gone just as another process makes work for it.
        let (submitted, ()) = tokio::join!(gateway.api.submit("s", &script, None), async {
            let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND state = 'idle'";
            sqlx::query(sql).bind(database.name()).execute(&mut admin).await.unwrap();
        });
        let id = match submitted {
            Ok(task) => id_of(&task),
            // The gateway's own connection may have been among them.
            Err(ApiError::Refused(503, _)) => continue,
            Err(error) => panic!("{error}"),
        };
        let remote = gateway.api.task(&id).await.unwrap()["remote_task_id"].as_str().unwrap().to_owned();
        let polled = || async { fake.state.core.find(&remote).is_some_and(|truth| truth.polls > 0) };
        until_within("it is polled", LEASE, polled).await;
    }
    worker.stop().await;
    gateway.stop().await;
}
