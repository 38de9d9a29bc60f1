//! What figures, lists and pruning cost where there are many rows (FAILURES 16, 28, 35).
//!
//! With a million rows, timings printed:
//! `TASKS=1000000 cargo test --release -p mcp-taskd-tests --test stores figures:: -- --nocapture --test-threads 1`

use std::time::{Duration, Instant};

use mcp_taskd_core::store::{Page, StoreStats, TaskFilter};
use mcp_taskd_core::task::Status;
use sqlx::{AssertSqlSafe, Connection as _};

use crate::bench::{Bench, FAR, T0, order};

/// The most that a count says here: a tenth of what there is, so that it is reached.
fn cap() -> i64 {
    tasks() / 10
}

fn tasks() -> i64 {
    std::env::var("TASKS").ok().and_then(|text| text.parse().ok()).unwrap_or(5_000)
}

/// Of ten tasks six have ended, two are held, one is due, and one is held and fails; each has a result and two events.
const FILL: &str = "
    INSERT INTO mcp_tasks (id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool,
        idempotent_submit, remote_task_id, status, result, consecutive_poll_error_count, next_due_at, lease_owner, lease_epoch,
        created_at, updated_at, completed_at)
    SELECT 'task-' || n, 'user-' || (n % 100), 'thread-' || (n % 1000), 'server', 'tools', 'Report', 's', 's', 'c', 0,
        'remote-' || n, CASE WHEN n % 10 < 6 THEN 'completed' ELSE 'working' END, '{padding}',
        CASE n % 10 WHEN 9 THEN 5 ELSE 0 END, n, CASE n % 10 WHEN 6 THEN 'w' WHEN 7 THEN 'w' WHEN 9 THEN 'w' END, 1, n, n,
        CASE WHEN n % 10 < 6 THEN n END
    FROM {numbers};
    INSERT INTO task_events (task_id, user_id, thread_id, kind, status, created_at)
    SELECT 'task-' || n, 'user-' || (n % 100), 'thread-' || (n % 1000), kind, kind, n
    FROM (SELECT 'submitted' AS kind UNION ALL SELECT 'working') AS kinds, {numbers};
    ANALYZE";

async fn fill(bench: &Bench) {
    bench.worker("w").await;
    let padding = format!("\"{}\"", "x".repeat(300));
    let series = |series: &str| FILL.replace("{padding}", &padding).replace("{numbers}", series);
    if let Some(database) = &bench.database {
        let sql = series(&format!("(SELECT generate_series(1, {}) AS n) AS numbers", tasks()));
        let mut connection = sqlx::PgConnection::connect(database.url()).await.expect("connects");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.expect("fills");
        // As autovacuum does soon after: until then every count looks at the rows as well.
        sqlx::raw_sql("VACUUM (ANALYZE) mcp_tasks").execute(&mut connection).await.expect("vacuums");
    } else {
        let numbers =
            "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) SELECT n FROM s";
        let sql = series(&format!("({})", numbers.replace("{count}", &tasks().to_string())));
        let path = bench.directory.as_ref().expect("a file").path().join("tasks.db");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
        let mut connection = sqlx::SqliteConnection::connect_with(&options).await.expect("connects");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.expect("fills");
    }
}

async fn stats(bench: &Bench, cap: i64) -> (StoreStats, Duration) {
    let started = Instant::now();
    (bench.store.stats(FAR, 3, cap).await.expect("answers"), started.elapsed())
}

fn count(stats: &StoreStats, status: Status) -> i64 {
    stats.tasks.iter().find(|(name, _)| name == status.as_str()).expect("a count").1
}

async fn figures_of_many_rows_stop_at_the_cap_and_pruning_gives_room_back(bench: &Bench) {
    fill(bench).await;
    let what = bench.store.backend();
    for round in 0..3 {
        let (shown, took) = stats(bench, cap()).await;
        assert_eq!((count(&shown, Status::Completed), count(&shown, Status::Working)), (cap(), cap()));
        assert_eq!((shown.due, shown.degraded.clone()), (cap(), vec![("server".to_owned(), cap())]));
        println!("{what}: {} tasks, figures up to {} in {took:?} (round {round})", tasks(), cap());
    }
    let started = Instant::now();
    let filter = TaskFilter { user_id: Some("user-7".to_owned()), ..TaskFilter::default() };
    let page = Page { limit: 50, after: None };
    assert_eq!(bench.store.list_tasks(&filter, &page).await.unwrap().len(), 50);
    println!("{what}: a page of one user's tasks in {:?}", started.elapsed());
    let started = Instant::now();
    let claimed = bench.store.claim(&order(&"w".into())).await.unwrap();
    assert_eq!(claimed.len(), 100);
    println!("{what}: a claim of 100 in {:?}", started.elapsed());

    let (before, _) = stats(bench, tasks()).await;
    assert!(before.size_bytes > tasks() * 500, "{}", before.size_bytes);
    let (started, mut pruned, mut longest) = (Instant::now(), 0, Duration::ZERO);
    loop {
        let statement = Instant::now();
        let chunk = bench.store.prune(T0 * 10, 500).await.unwrap();
        (pruned, longest) = (pruned + chunk, longest.max(statement.elapsed()));
        if chunk < 500 {
            break;
        }
    }
    let ended = tasks() / 10 * 6;
    assert_eq!(pruned, u64::try_from(ended).unwrap());
    println!("{what}: {pruned} ended tasks pruned in {:?}, the longest chunk {longest:?}", started.elapsed());
    let (after, _) = stats(bench, tasks()).await;
    assert_eq!((count(&after, Status::Completed), count(&after, Status::Working)), (0, tasks() - ended));
    println!(
        "{what}: {} MB before, {} MB after, of them {} MB free",
        mb(before.size_bytes),
        mb(after.size_bytes),
        mb(after.free_bytes)
    );
    if what == "sqlite" {
        assert!(after.free_bytes > before.size_bytes / 5, "what was deleted is free for new rows: {after:?}");
        assert!(after.log_bytes <= 64 * 1_048_576 + 4_096, "the log is cut (16): {}", after.log_bytes);
    }
}

fn mb(bytes: i64) -> i64 {
    bytes / 1_000_000
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_figures_of_many_rows_stop_at_the_cap_and_pruning_gives_room_back_28_35() {
    figures_of_many_rows_stop_at_the_cap_and_pruning_gives_room_back(&Bench::sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_figures_of_many_rows_stop_at_the_cap_and_pruning_gives_room_back_28_35() {
    figures_of_many_rows_stop_at_the_cap_and_pruning_gives_room_back(&Bench::postgres().await).await;
}
