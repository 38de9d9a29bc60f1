//! What only PostgreSQL can show (FAILURES 6, 10, 12–14, 18, 22, 39).

use mcp_taskd_core::store::sql::SqlStore;
use mcp_taskd_core::store::{
    ClaimOrder, Heartbeat, Inserted, Leases as _, NewHandle, Queries as _, Registry as _, StoreErrorKind, TaskFilter,
};
use mcp_taskd_tests::postgres as server;
use mcp_taskd_tests::wait::until;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::bench::{Bench, T0, handle, info, intent, order, write};

/// A connection of the test's own.
pub(crate) async fn connect(bench: &Bench) -> PgConnection {
    PgConnection::connect(bench.database.as_ref().expect("a database").url()).await.expect("connects")
}

pub(crate) async fn execute(bench: &Bench, sql: &'static str) {
    let mut connection = connect(bench).await;
    sqlx::raw_sql(sql).execute(&mut connection).await.expect("executes");
}

/// Many rows at once: owned by `w`, finished, and due.
const FILL: &str = "
    INSERT INTO mcp_tasks (id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool,
        idempotent_submit, remote_task_id, status, next_due_at, lease_owner, lease_epoch, created_at, updated_at, completed_at)
    SELECT kind || n, 'user', 'thread', 'server', 'tools', 'Report', 's', 's', 'c', 0, kind || n,
        CASE kind WHEN 'done' THEN 'completed' ELSE 'working' END, n,
        CASE kind WHEN 'owned' THEN 'w' END, 1, n, n, CASE kind WHEN 'done' THEN n END
    FROM (VALUES ('owned', 10000), ('done', 20000), ('due', 500)) AS kinds (kind, count), generate_series(1, count) AS n;
    ANALYZE mcp_tasks";

async fn explain(connection: &mut PgConnection, sql: &str, limit: i64) -> String {
    let sql = format!("EXPLAIN (ANALYZE, BUFFERS) {sql}");
    let rows: Vec<PgRow> = sqlx::query(AssertSqlSafe(sql))
        .bind("w")
        .bind(r#"["server"]"#)
        .bind(T0)
        .bind(0_i64)
        .bind(limit)
        .bind(r#"["server"]"#)
        .bind(r#"["tools"]"#)
        .fetch_all(connection)
        .await
        .expect("explains");
    rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn owned_and_finished_rows_are_outside_the_claims_index_14() {
    let bench = Bench::postgres().await;
    bench.worker("w").await;
    execute(&bench, FILL).await;
    let mut connection = connect(&bench).await;
    let plan = explain(&mut connection, &bench.statement("claim_polls"), 10).await;
    assert!(plan.contains("mcp_tasks_claim_poll"), "{plan}");
    let scan = plan.lines().find(|line| line.contains("mcp_tasks_claim_poll")).unwrap();
    assert!(scan.contains("rows=10 "), "the scan stops at the limit: {plan}");
    assert!(!plan.contains("Seq Scan on mcp_tasks"), "{plan}");
}

/// However much waits of another server, and however long.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_one_server_reads_no_row_of_another_42() {
    let bench = Bench::postgres().await;
    let worker = bench.worker("w").await;
    execute(&bench, FILL).await;
    execute(&bench, "UPDATE mcp_tasks SET server_name = 'quiet' WHERE id IN ('due400', 'due450'); ANALYZE mcp_tasks")
        .await;
    let mut connection = connect(&bench).await;
    // As it is planned for any values, too.
    for mode in ["force_custom_plan", "force_generic_plan"] {
        sqlx::query(AssertSqlSafe(format!("SET plan_cache_mode = {mode}"))).execute(&mut connection).await.unwrap();
        for cancels in [false, true] {
            let (name, index) = if cancels {
                ("claim_cancels_of", "mcp_tasks_server_cancel")
            } else {
                ("claim_polls_of", "mcp_tasks_server_poll")
            };
            let mut planning = connection.begin().await.unwrap();
            let sql = format!("EXPLAIN (ANALYZE) {}", bench.statement(name));
            let explain = sqlx::query(AssertSqlSafe(sql)).bind("w").bind(r#"["quiet"]"#).bind(T0);
            let rows: Vec<PgRow> =
                explain.bind(10_i64).bind(r#"["tools"]"#).fetch_all(&mut *planning).await.expect("explains");
            planning.rollback().await.unwrap();
            let plan = rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n");
            assert!(plan.contains(index) && plan.contains("(server_name = "), "{mode}: {plan}");
            let looked_past = plan.contains("Rows Removed by Filter") || plan.contains("Rows Removed by Index Recheck");
            assert!(!looked_past && !plan.contains("Seq Scan on mcp_tasks"), "{mode}: {plan}");
        }
    }
    let quiet = ClaimOrder { servers: vec!["quiet".into()], any_server_due_before: None, ..order(&worker) };
    assert_eq!(bench.claim(&quiet).await, ["due400", "due450"]);
}

/// Nearly always there is none, and then it must cost nothing, however many rows wait.
#[tokio::test(flavor = "multi_thread")]
async fn looking_for_what_is_due_absurdly_late_reads_no_row_that_is_not_6() {
    let bench = Bench::postgres().await;
    bench.worker("w").await;
    execute(&bench, FILL).await;
    let mut connection = connect(&bench).await;
    let sql = format!("EXPLAIN (ANALYZE, BUFFERS) {}", bench.statement("correct_tasks"));
    let explain = sqlx::query(AssertSqlSafe(sql)).bind(90_000_000_i64).bind(500_i64).bind(5_000_i64);
    let rows = explain.fetch_all(&mut connection).await.unwrap();
    let plan = rows.iter().map(|row: &PgRow| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n");
    for index in ["mcp_tasks_claim_poll", "mcp_tasks_claim_cancel"] {
        assert!(plan.contains(index), "{plan}");
    }
    assert_eq!(plan.matches("Index Cond: (next_due_at > $").count(), 2, "{plan}");
    assert!(!plan.contains("Rows Removed by Filter") && !plan.contains("Seq Scan"), "{plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_holds_under_a_forced_nested_loop_10() {
    let bench = Bench::postgres().await;
    let worker = bench.worker("w").await;
    execute(&bench, FILL).await;
    let name = bench.database.as_ref().unwrap().name();
    for setting in ["enable_hashjoin", "enable_mergejoin", "enable_material", "enable_sort"] {
        let mut connection = connect(&bench).await;
        let sql = format!("ALTER DATABASE {name} SET {setting} = off");
        sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    }
    let store = SqlStore::connect_postgres(bench.database.as_ref().unwrap().url(), 1).await.unwrap();
    for limit in [1, 10, 33] {
        let tasks = store.claim(&ClaimOrder { limit, ..order(&worker) }).await.unwrap();
        assert_eq!(tasks.len(), limit as usize);
        assert!(tasks.windows(2).all(|pair| pair[0].next_due_at < pair[1].next_due_at));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_and_lists_read_no_more_than_their_cap_35() {
    let bench = Bench::postgres().await;
    bench.worker("w").await;
    execute(&bench, FILL).await;
    let mut connection = connect(&bench).await;
    let sql = format!("EXPLAIN (ANALYZE) {}", bench.statement("count_tasks"));
    let rows: Vec<PgRow> = sqlx::query(AssertSqlSafe(sql))
        .bind(r#"["completed","working","failed"]"#)
        .bind(100_i64)
        .fetch_all(&mut connection)
        .await
        .unwrap();
    let plan = rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n");
    assert!(plan.contains("mcp_tasks_status") && !plan.contains("Seq Scan on mcp_tasks"), "{plan}");
    let stats = bench.store.stats(T0, 3, 100).await.unwrap();
    assert_eq!((stats.due, stats.oldest_due_at), (100, Some(1)));
}

/// FAILURES 39: whichever comes second sees what the first one did.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_and_a_mark_dead_are_serialised_39() {
    let bench = Bench::postgres().await;
    let (worker, marker) = (bench.worker("w").await, bench.worker("m").await);
    bench.free(&marker, "t", T0).await;

    // A mark-dead that has not committed: claim and insert wait for it, and then do nothing.
    let mut connection = connect(&bench).await;
    let mut marking = connection.begin().await.unwrap();
    let mark = bench.statement("mark_dead");
    let marked = sqlx::query(AssertSqlSafe(mark)).bind("m").bind("w").bind(None::<i64>);
    assert_eq!(marked.fetch_all(&mut *marking).await.unwrap().len(), 1);
    let claim = tokio::spawn({
        let (store, order) = (bench.store.clone(), order(&worker));
        async move { store.claim(&order).await.unwrap() }
    });
    let insert = tokio::spawn({
        let (store, intent) = (bench.store.clone(), intent(&worker, "late"));
        async move { store.insert_intent(&intent).await.unwrap() }
    });
    wait_for_waiters(&bench, 2).await;
    marking.commit().await.unwrap();
    assert!(claim.await.unwrap().is_empty());
    assert_eq!(insert.await.unwrap(), Inserted::NotLive);

    // A claim that has not committed: mark-dead waits for it, and the free that follows sees the row.
    let other = bench.worker("other").await;
    let mut claiming = connection.begin().await.unwrap();
    let claim = sqlx::query(AssertSqlSafe(bench.statement("claim_polls")))
        .bind("other")
        .bind(r#"["server"]"#)
        .bind(T0 + 10_000)
        .bind(0_i64)
        .bind(5_i64)
        .bind(r#"["server"]"#)
        .bind(r#"["tools"]"#);
    assert_eq!(claim.fetch_all(&mut *claiming).await.unwrap().len(), 1);
    let beat = bench.store.heartbeat(&other, 1).await.unwrap();
    assert!(matches!(beat, Heartbeat::Renewed { .. }), "a heartbeat does not wait for a claim");
    let mark = tokio::spawn({
        let (store, marker, other) = (bench.store.clone(), marker.clone(), other.clone());
        async move { store.mark_dead(&marker, &other, Some(1)).await.unwrap() }
    });
    wait_for_waiters(&bench, 1).await;
    claiming.commit().await.unwrap();
    assert!(mark.await.unwrap());
    assert_eq!(bench.store.free_dead(T0, 10, 0).await.unwrap(), 1);
}

/// Until so many backends of this database wait for a lock.
pub(crate) async fn wait_for_waiters(bench: &Bench, count: i64) {
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let connection = tokio::sync::Mutex::new(connect(bench).await);
    until("they wait for a lock", || async {
        let mut connection = connection.lock().await;
        sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut *connection).await.unwrap() >= count
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_have_connections_of_their_own_18() {
    let bench = Bench::postgres().await;
    let worker = bench.worker("w").await;
    let store = SqlStore::connect_postgres(bench.database.as_ref().unwrap().url(), 1).await.unwrap();
    let mut connection = connect(&bench).await;
    let mut locking = connection.begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE mcp_tasks IN ACCESS EXCLUSIVE MODE").execute(&mut *locking).await.unwrap();
    // The one connection for queries is taken.
    let slow = tokio::spawn({
        let store = store.clone();
        async move { store.find_task("t", None, None).await }
    });
    wait_for_waiters(&bench, 1).await;
    assert!(matches!(store.heartbeat(&worker, 0).await.unwrap(), Heartbeat::Renewed { .. }));
    locking.rollback().await.unwrap();
    assert_eq!(slow.await.unwrap().unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_turns_read_only_is_unavailable_until_it_is_back_22() {
    let bench = Bench::postgres().await;
    let worker = bench.worker("w").await;
    let name = bench.database.as_ref().unwrap().name();
    let read_only = async |on: &str| {
        let mut admin = server::server().ready().await;
        let sql = format!("ALTER DATABASE {name} SET default_transaction_read_only = {on}");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
        let sql = format!("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
    };
    read_only("on").await;
    assert_eq!(bench.store.claim(&order(&worker)).await.unwrap_err().kind, StoreErrorKind::Unavailable);
    assert_eq!(bench.store.heartbeat(&worker, 0).await.unwrap_err().kind, StoreErrorKind::Unavailable);
    assert_eq!(bench.store.ping().await.unwrap_err().kind, StoreErrorKind::Unavailable);
    read_only("off").await;
    bench.store.ping().await.unwrap();
    assert!(matches!(bench.store.heartbeat(&worker, 0).await.unwrap(), Heartbeat::Renewed { .. }));
    assert!(bench.store.claim(&order(&worker)).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_lost_in_a_write_leaves_its_outcome_unknown_23() {
    let bench = Bench::postgres().await;
    bench.worker("w").await;
    let mut connection = connect(&bench).await;
    let mut locking = connection.begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE workers IN ACCESS EXCLUSIVE MODE").execute(&mut *locking).await.unwrap();
    let register = tokio::spawn({
        let store = bench.store.clone();
        async move { store.register(&info("late")).await }
    });
    wait_for_waiters(&bench, 1).await;
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
        AND wait_event_type = 'Lock'";
    sqlx::raw_sql(kill).execute(&mut connect(&bench).await).await.unwrap();
    assert_eq!(register.await.unwrap().unwrap_err().kind, StoreErrorKind::Unknown);
    locking.rollback().await.unwrap();
    assert_eq!(bench.store.workers().await.unwrap().rows.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_reached_is_unavailable_and_its_password_stays_secret() {
    let url = "postgres://someone:hunter2@127.0.0.1:1/nowhere";
    let error = SqlStore::connect_postgres(url, 1).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    assert!(error.message.starts_with("PostgreSQL at 127.0.0.1:1: "), "{error}");
    assert!(error.message.contains("refused") && !error.to_string().contains("hunter2"), "{error}");
    let error = SqlStore::connect_postgres("postgres://u:hunter2@h:port/x", 1).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Schema);
    assert!(!error.to_string().contains("hunter2"));
}

/// Sequences are drawn before commits: a reader that went past an open gap would never see what fills it.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_not_listed_while_an_earlier_one_may_still_be_committed() {
    let bench = Bench::postgres().await;
    let worker = bench.worker("w").await;
    let now_ms = bench.store.workers().await.unwrap().now_ms;
    let mut connection = connect(&bench).await;
    let mut slow = connection.begin().await.unwrap();
    let event = "INSERT INTO task_events (task_id, user_id, thread_id, kind, status, created_at)
        VALUES ('slow', 'u', 't', 'working', 'working', 0)";
    sqlx::raw_sql(event).execute(&mut *slow).await.unwrap();
    bench.intent(&worker, "t").await;
    bench.record(&NewHandle { at: now_ms, ..handle(&worker, "t", true) }).await;
    let all = TaskFilter::default();
    assert!(bench.events(&all).await.is_empty());
    slow.commit().await.unwrap();
    let sequences: Vec<_> = bench.events(&all).await.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, [1, 2]);
}

/// A snapshot that somebody holds keeps every old version of a row, and the claims' index full of them. Claims read past them;
/// what the program does itself never holds one for long.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_held_by_another_slows_claims_and_stops_none_13() {
    const ROUNDS: usize = 40;
    let bench = Bench::postgres().await;
    let worker = bench.worker("w").await;
    execute(&bench, FILL).await;
    let mut connection = connect(&bench).await;
    let mut holding = connection.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    sqlx::raw_sql("SELECT count(*) FROM mcp_tasks").execute(&mut *holding).await.unwrap();
    for _ in 0..ROUNDS {
        let tasks = bench.store.claim(&ClaimOrder { limit: 500, ..order(&worker) }).await.unwrap();
        assert_eq!(tasks.len(), 500);
        let writes: Vec<_> = tasks.iter().map(|task| write(task, task.on_release(T0))).collect();
        bench.store.apply(&worker, &writes).await.unwrap();
    }
    let mut explaining = connect(&bench).await;
    let plan = explain(&mut explaining, &bench.statement("claim_polls"), 10).await;
    assert!(plan.contains("mcp_tasks_claim_poll") && !plan.contains("Seq Scan on mcp_tasks"), "{plan}");
    holding.rollback().await.unwrap();

    // Nothing of this program's own stays in a transaction or a statement.
    let own =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'mcp-taskd'
        AND (state LIKE 'idle in transaction%' OR backend_xmin IS NOT NULL)";
    let open: i64 = sqlx::query_scalar(own).fetch_one(&mut explaining).await.unwrap();
    assert_eq!(open, 0);
}
