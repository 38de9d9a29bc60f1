//! Backup and restore as `docs/OPERATIONS.md` tells them.

use std::collections::HashMap;
use std::path::Path;

use mcp_taskd_tests::daemon::{Api, finish};
use mcp_taskd_tests::postgres;
use mcp_taskd_tests::wait::{PATIENCE, until, until_within};
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _};
use tokio::process::Command;

use crate::{audit, fake, site};

const TASKS: usize = 10;

/// Tasks that run longer than a backup takes; they are known by their ids.
async fn submit(api: &Api) -> HashMap<String, String> {
    let ids = api.submit_many("s", &json!({"run_ms": 4_000, "poll_after_seconds": 0.3}), TASKS).await;
    until("all are followed", || async {
        let working = |task: &Value| task["status"] == "working";
        api.tasks().await.is_ok_and(|tasks| tasks.iter().filter(|task| working(task)).count() == TASKS)
    })
    .await;
    ids.into_iter().map(|id| (id.clone(), id)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_sqlite_taken_while_it_runs_restores_every_task() {
    let fake = fake().await;
    let site = site().server("s", &fake.url);
    let mut daemon = site.daemon("one");
    daemon.start().await;
    let tasks = submit(&daemon.api).await;

    let (file, backup) = (site.path().join("data/mcp-taskd.sqlite3"), site.path().join("backup.sqlite3"));
    let mut shell = SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(&file)).await.unwrap();
    let vacuum = AssertSqlSafe(format!("VACUUM INTO '{}'", backup.display()));
    sqlx::raw_sql(vacuum).execute(&mut shell).await.unwrap();
    shell.close().await.unwrap();

    daemon.kill9().await;
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", file.display()));
    }
    std::fs::copy(&backup, &file).unwrap();
    daemon.start().await;
    until_within("every task ends", PATIENCE, || audit::all_ended(&daemon.api, TASKS)).await;
    audit::matches_the_truth(&daemon.api, &[("s", &fake)], &tasks).await;
    daemon.stop().await;
}

/// Runs one of PostgreSQL's programs.
async fn run(program: &Path, arguments: &[&str]) {
    let mut command = Command::new(program);
    command.args(arguments).env_remove("PGHOST");
    finish(command, "").await.success();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_of_postgres_taken_while_it_runs_restores_every_task() {
    let Some(programs) = postgres::find_programs().filter(|programs| programs.join("pg_restore").is_file()) else {
        eprintln!("not tested: there is no pg_restore");
        return;
    };
    let (database, restored) = (postgres::database().await, postgres::database().await);
    let fake = fake().await;
    let first = site().postgres(database.url()).server("s", &fake.url);
    first.migrate().await;
    let mut daemon = first.daemon("one");
    daemon.start().await;
    let tasks = submit(&daemon.api).await;

    let dump = first.path().join("dump");
    let dump = dump.to_str().unwrap();
    run(&programs.join("pg_dump"), &["--format=custom", "--file", dump, database.url()]).await;
    daemon.kill9().await;
    run(&programs.join("pg_restore"), &["--exit-on-error", "--dbname", restored.url(), dump]).await;

    let second = site().postgres(restored.url()).server("s", &fake.url);
    assert_eq!(second.run(&["migrate", "up"]).await.success(), "the schema is up to date\n");
    let mut daemon = second.daemon("two");
    daemon.start().await;
    until_within("every task ends", PATIENCE, || audit::all_ended(&daemon.api, TASKS)).await;
    audit::matches_the_truth(&daemon.api, &[("s", &fake)], &tasks).await;
    daemon.stop().await;
}
