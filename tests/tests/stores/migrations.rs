//! Migrations (BEHAVIOURS 157; FAILURES 21).

use mcp_taskd_core::store::sql::SqlStore;
use mcp_taskd_core::store::{Queries as _, Registry as _, StoreErrorKind};
use mcp_taskd_tests::postgres;

use crate::bench::Bench;

/// All start at once on an empty database; exactly one of them applies each migration.
async fn race<F: Future<Output = SqlStore> + Send + 'static>(connect: impl Fn() -> F) {
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let connect = connect();
        starts.spawn(async move {
            let store = connect.await;
            let applied = store.migrate().await.expect("migrates");
            let (known, found) = store.schema_version().await.expect("answers");
            assert_eq!(found, Some(known));
            store.prepare_all().await.expect("every statement fits the schema");
            applied
        });
    }
    let mut applied = starts.join_all().await.concat();
    applied.sort_unstable();
    assert!(applied.is_sorted_by(|one, next| one < next), "each once: {applied:?}");
    let store = connect().await;
    let known = store.schema_version().await.unwrap().0;
    assert!(applied.last().is_some_and(|name| name.starts_with(&format!("{known:04}_"))), "{applied:?}");
    assert!(store.migrate().await.unwrap().is_empty(), "again is nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_starts_on_an_empty_sqlite_file_apply_each_migration_once_21() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tasks.db");
    race(|| {
        let path = path.clone();
        async move { SqlStore::connect_sqlite(path).await.expect("connects") }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_starts_on_an_empty_postgres_database_apply_each_migration_once_21() {
    let database = postgres::database().await;
    race(|| {
        let url = database.url().to_owned();
        async move { SqlStore::connect_postgres(&url, 2).await.expect("connects") }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_database_is_told_from_an_old_and_a_newer_one_157() {
    let directory = tempfile::tempdir().unwrap();
    let sqlite = SqlStore::connect_sqlite(directory.path().join("tasks.db")).await.unwrap();
    let database = postgres::database().await;
    let postgres = SqlStore::connect_postgres(database.url(), 2).await.unwrap();
    for store in [sqlite, postgres] {
        assert_eq!(store.schema_version().await.unwrap().1, None);
        assert_eq!(store.prepare_all().await.unwrap_err().kind, StoreErrorKind::Schema);
        assert_eq!(store.workers().await.unwrap_err().kind, StoreErrorKind::Schema);
    }
    let bench = Bench::sqlite().await;
    let newer = "INSERT INTO schema_migrations (version, name, applied_at) VALUES (999, '0999_future', 0)";
    crate::sqlite::execute(&bench, newer).await;
    let (known, applied) = bench.sql().schema_version().await.unwrap();
    assert!(applied == Some(999) && known < 999);
    assert!(bench.sql().migrate().await.unwrap().is_empty(), "the binary before the newest works on it");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_prepares_on_both_engines() {
    for bench in [Bench::sqlite().await, Bench::postgres().await] {
        bench.sql().prepare_all().await.unwrap();
        assert!(bench.sql().statements().len() > 30);
    }
}
