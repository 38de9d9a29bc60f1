//! Rows that cannot be decoded do not block their batch (FAILURES 27).

use mcp_taskd_core::store::{ClaimOrder, Page, StoreErrorKind, TaskFilter};

use crate::bench::{Bench, FAR, T0, order};
use crate::{postgres, sqlite};

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_row_does_not_block_its_batch_on_sqlite_27() {
    let bench = Bench::sqlite().await;
    a_corrupt_row_does_not_block_its_batch(&bench, async |sql| sqlite::execute(&bench, sql).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_row_does_not_block_its_batch_on_postgres_27() {
    let bench = Bench::postgres().await;
    a_corrupt_row_does_not_block_its_batch(&bench, async |sql| postgres::execute(&bench, sql).await).await;
}

async fn a_corrupt_row_does_not_block_its_batch(bench: &Bench, execute: impl AsyncFn(&'static str)) {
    let worker = bench.worker("w").await;
    for id in ["a", "flag", "remote", "z"] {
        bench.free(&worker, id, T0).await;
    }
    execute("UPDATE mcp_tasks SET idempotent_submit = 7 WHERE id = 'flag'").await;
    execute("UPDATE mcp_tasks SET remote_task_id = NULL WHERE id = 'remote'").await;
    assert_eq!(bench.claim(&order(&worker)).await, ["a", "z"]);

    // The others are given back, visibly, and not looked at again before long.
    let ids = ["flag".into(), "remote".into()];
    for state in bench.store.inspect(&ids).await.unwrap() {
        assert_eq!((state.owner, state.epoch), (None, 4));
    }
    assert!(bench.claim(&ClaimOrder { due_before: FAR, ..order(&worker) }).await.is_empty());
    let error = bench.store.find_task("flag", None, None).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Corrupt);
    assert_eq!(error.message, "mcp_tasks.idempotent_submit of \"flag\": 7 is neither 0 nor 1");

    let now = T0;
    let quarantined = bench.store.stats(now, 3, 100).await.unwrap().quarantined;
    let told: Vec<_> = quarantined.iter().map(|row| (&*row.task_id, &*row.column, &*row.reason)).collect();
    assert_eq!(
        told,
        [
            ("flag", "idempotent_submit", "7 is neither 0 nor 1"),
            ("remote", "remote_task_id", "absent although submitted")
        ]
    );

    // An adopted row that turns out corrupt is given back as well.
    execute("UPDATE mcp_tasks SET lease_owner = 'w', idempotent_submit = 7 WHERE id = 'a'").await;
    let loaded = bench.store.load_owned(&worker, &["a".into(), "z".into()]).await.unwrap();
    assert_eq!(loaded.iter().map(|task| &*task.id).collect::<Vec<_>>(), ["z"]);
    assert_eq!(bench.store.owned(&worker).await.unwrap().len(), 1);

    execute("UPDATE mcp_tasks SET result = '{broken' WHERE id = 'z'").await;
    execute("UPDATE mcp_tasks SET idempotent_submit = 1 WHERE id = 'a'").await;
    let page = Page { limit: 10, after: None };
    let listed = bench.store.list_tasks(&TaskFilter::default(), &page).await.unwrap();
    assert_eq!(listed.iter().map(|task| &*task.id).collect::<Vec<_>>(), ["a"]);
    assert!(listed[0].last_poll_error.as_deref().unwrap().starts_with("quarantined: "));
    let error = bench.store.find_task("z", None, None).await.unwrap_err();
    assert!(error.message.starts_with("mcp_tasks.result of \"z\""), "{error}");

    // A status that only a newer binary knows is left alone, and owned all the same (FAILURES 21).
    execute("UPDATE mcp_tasks SET status = 'paused', result = NULL, lease_owner = NULL WHERE id = 'z'").await;
    assert!(bench.claim(&ClaimOrder { due_before: FAR, ..order(&worker) }).await.is_empty());
    execute("UPDATE mcp_tasks SET lease_owner = 'w' WHERE id = 'z'").await;
    let owned = bench.store.owned(&worker).await.unwrap();
    assert_eq!((owned.len(), owned[0].status), (1, None));
}
