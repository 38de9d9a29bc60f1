//! What polling costs.

use mcp_taskd_tests::postgres;
use mcp_taskd_tests::wait::until;
use serde_json::json;
use sqlx::{Connection as _, PgConnection};

use crate::{fake, site};

/// Every version of every row is told by its `xmin`; a write of any kind changes it.
const VERSIONS: &str = "SELECT string_agg(id || ':' || xmin::text, ',' ORDER BY id) FROM mcp_tasks";

#[tokio::test(flavor = "multi_thread")]
async fn an_unchanged_poll_writes_no_row_131() {
    const TASKS: usize = 25;
    let database = postgres::database().await;
    let fake = fake().await;
    let site = site().postgres(database.url()).server("s", &fake.url).set("mcp_tasks.lease_seconds", 120);
    site.migrate().await;
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    daemon.api.submit_many("s", &json!({"end": "never", "poll_after_seconds": 0.2}), TASKS).await;
    let working = || async {
        let tasks = daemon.api.tasks().await.unwrap();
        tasks.iter().filter(|task| task["status"] == "working").count() == TASKS
    };
    until("all are working", working).await;

    let unchanged = || daemon.api.count("polls_total", &[("outcome", "unchanged")]);
    let written = || daemon.api.count("rows_written_total", &[]);
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let versions: String = sqlx::query_scalar(VERSIONS).fetch_one(&mut connection).await.unwrap();
    let (polls, rows) = (unchanged().await, written().await);
    until("500 polls find nothing new", || async { unchanged().await >= polls + 500 }).await;
    assert_eq!(written().await, rows, "rows written");
    let now: String = sqlx::query_scalar(VERSIONS).fetch_one(&mut connection).await.unwrap();
    assert_eq!(now, versions, "the rows are as they were");
    daemon.stop().await;
}
