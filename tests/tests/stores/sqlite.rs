//! What only SQLite can show (FAILURES 14–17).

use std::sync::Arc;

use mcp_taskd_core::store::sql::SqlStore;
use mcp_taskd_core::store::{Applied, ClaimOrder, SharedStore};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::bench::{Bench, T0, handle, intent, order, write};

/// A connection of the test's own.
async fn connect(bench: &Bench) -> SqliteConnection {
    let path = bench.directory.as_ref().expect("a file").path().join("tasks.db");
    SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(path)).await.expect("connects")
}

pub(crate) async fn execute(bench: &Bench, sql: &'static str) {
    let mut connection = connect(bench).await;
    sqlx::raw_sql(sql).execute(&mut connection).await.expect("executes");
}

async fn plan(bench: &Bench, statement: &str) -> String {
    let mut connection = connect(bench).await;
    let sql = format!("EXPLAIN QUERY PLAN {}", bench.statement(statement));
    let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await.expect("explains");
    rows.iter().map(|row| row.get::<String, _>("detail")).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_statement_that_must_be_quick_uses_its_index_14_35() {
    let bench = Bench::sqlite().await;
    for (statement, index) in [
        ("claim_polls", "mcp_tasks_claim_poll"),
        ("claim_cancels", "mcp_tasks_claim_cancel"),
        ("claim_polls_of", "mcp_tasks_server_poll (server_name=? AND next_due_at<?)"),
        ("claim_cancels_of", "mcp_tasks_server_cancel (server_name=? AND next_due_at<?)"),
        ("owned", "mcp_tasks_owner"),
        ("free_dead", "mcp_tasks_owner"),
        ("correct_tasks", "mcp_tasks_claim_poll"),
        ("correct_tasks", "mcp_tasks_claim_cancel"),
        ("is_tracked", "mcp_tasks_remote"),
        ("find_by_key", "mcp_tasks_idempotency"),
        ("tasks_of_thread", "mcp_tasks_thread"),
        ("tasks_of_user", "mcp_tasks_user"),
        ("tasks_in_status", "mcp_tasks_status"),
        ("tasks_active", "mcp_tasks_status"),
        ("tasks", "mcp_tasks_created"),
        ("events_of_thread", "task_events_thread"),
        ("events_of_user", "task_events_user"),
        ("events_of_task", "task_events_task"),
        ("count_tasks", "mcp_tasks_status"),
        ("count_degraded", "mcp_tasks_failing"),
        ("count_due", "mcp_tasks_claim_poll"),
    ] {
        let plan = plan(&bench, statement).await;
        assert!(plan.contains(index), "{statement}:\n{plan}");
    }
    let claim = plan(&bench, "claim_polls").await;
    assert!(!claim.contains("TEMP B-TREE"), "the index gives the order:\n{claim}");
    let far = plan(&bench, "correct_tasks").await;
    assert!(!far.contains("TEMP B-TREE") && far.contains("next_due_at>?"), "only the far end is looked at:\n{far}");
}

/// Four connections of their own stand for four processes: SQLite's locks make no difference between the two.
#[tokio::test(flavor = "multi_thread")]
async fn writers_of_several_processes_do_not_fail_as_busy_15_17() {
    let bench = Bench::sqlite().await;
    let path = bench.directory.as_ref().unwrap().path().join("tasks.db");
    let mut writers = tokio::task::JoinSet::new();
    for index in 0..4 {
        let store: SharedStore = Arc::new(SqlStore::connect_sqlite(&path).await.unwrap());
        let worker = bench.worker(&format!("w{index}")).await;
        writers.spawn(async move {
            for round in 0..25 {
                let id = format!("t-{index}-{round}");
                store.insert_intent(&intent(&worker, &id)).await.expect("inserts");
                store.record_submitted(&handle(&worker, &id, false)).await.expect("records");
                for task in store.claim(&ClaimOrder { limit: 5, ..order(&worker) }).await.expect("claims") {
                    let release = write(&task, task.on_release(T0 + 3));
                    let applied = store.apply(&worker, &[release]).await.expect("applies");
                    assert!(matches!(applied[..], [Applied::Done { .. }]));
                }
            }
        });
    }
    writers.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_connection_has_its_pragmas_15_16() {
    let bench = Bench::sqlite().await;
    let mut connection = connect(&bench).await;
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut connection).await.unwrap();
    assert_eq!(mode, "wal");
    // A reader of long standing keeps the log from being reused, and no write waits for it.
    let mut reader = connection.begin().await.unwrap();
    let _: i64 = sqlx::query_scalar("SELECT count(*) FROM workers").fetch_one(&mut *reader).await.unwrap();
    let worker = bench.worker("w").await;
    bench.held(&worker, "t").await;
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM mcp_tasks").fetch_one(&mut *reader).await.unwrap();
    assert_eq!(seen, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_by_sqlite_itself_as_on_a_full_disk_does_not_poison_the_writer_19() {
    let bench = Bench::sqlite().await;
    let worker = bench.worker("w").await;
    let task = bench.held(&worker, "t").await;
    // RAISE(ROLLBACK) ends the transaction under the driver, just as SQLITE_FULL does.
    execute(&bench, "CREATE TRIGGER full BEFORE INSERT ON task_events BEGIN SELECT RAISE(ROLLBACK, 'full'); END").await;
    let done = crate::bench::answered(&task, mcp_taskd_core::task::Status::Completed);
    for _ in 0..3 {
        bench.store.apply(&worker, std::slice::from_ref(&done)).await.unwrap_err();
    }
    assert_eq!(bench.get("t").await.lease_epoch, task.lease_epoch, "nothing was written");
    execute(&bench, "DROP TRIGGER full").await;
    assert!(matches!(bench.store.apply(&worker, &[done]).await.unwrap()[..], [Applied::Done { .. }]));
}

/// A reader that stays open, such as a backup or somebody's shell, keeps the log from being reused. Writes go on, the figure
/// shows it, and once the reader is gone the log is cut.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_grows_while_a_reader_stays_and_is_cut_when_it_goes_16() {
    const LIMIT: i64 = 64 * 1_024 * 1_024;
    let bench = Bench::sqlite().await;
    let worker = bench.worker("w").await;
    for index in 0..50 {
        bench.held(&worker, &format!("t{index}")).await;
    }
    let mut connection = connect(&bench).await;
    let mut reader = connection.begin().await.unwrap();
    let _: i64 = sqlx::query_scalar("SELECT count(*) FROM mcp_tasks").fetch_one(&mut *reader).await.unwrap();
    let size = async || bench.store.stats(T0, 3, 10).await.unwrap().log_bytes;
    while size().await <= LIMIT {
        execute(&bench, "UPDATE mcp_tasks SET result_preview = hex(randomblob(250000))").await;
        bench.held(&worker, &format!("meanwhile-{}", size().await)).await;
    }
    reader.rollback().await.unwrap();
    let mut index = 0;
    while size().await > LIMIT {
        index += 1;
        assert!(index < 2_000, "the log is {} bytes still", size().await);
        bench.held(&worker, &format!("after-{index}")).await;
    }
}
