//! Wake-ups (FAILURES 7, 8), and connections that do not answer any more.

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::store::sql::SqlStore;
use mcp_taskd_core::store::{
    Applied, Heartbeat, Leases as _, Queries as _, Registry as _, SharedStore, StoreErrorKind, Wakeup,
};
use mcp_taskd_core::task::Status;
use mcp_taskd_tests::proxy::Proxy;
use mcp_taskd_tests::wait::{PATIENCE, until, until_within};
use tokio::sync::broadcast::Receiver;

use crate::bench::{Bench, answered, behaviours};

behaviours! {
    news_are_the_newest_events_and_where_they_happened,
}

/// Waits until `what` is heard, whatever else is.
async fn hear(heard: &mut Receiver<Wakeup>, what: Wakeup) {
    // Who is behind is told that it is, and looks at everything.
    let told = async { while matches!(heard.recv().await, Ok(other) if other != what) {} };
    tokio::time::timeout(PATIENCE, told).await.unwrap_or_else(|_| panic!("{what:?} is not heard"));
}

/// Waits until a listener has connected, and takes what it says to make its process look.
async fn attentive(store: &SharedStore) -> Receiver<Wakeup> {
    let mut heard = store.wakeups();
    if store.hears_others().is_some() {
        until("it listens", || async { store.hears_others() == Some(true) }).await;
        hear(&mut heard, Wakeup::Changed).await;
    }
    heard
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wakeup_reaches_who_listens() {
    for bench in [Bench::memory().await, Bench::sqlite().await, Bench::postgres().await] {
        let mut heard = attentive(&bench.store).await;
        for what in [Wakeup::Due, Wakeup::Changed] {
            for _ in 0..100 {
                bench.store.wake(what);
            }
            hear(&mut heard, what).await;
        }
    }
}

async fn news_are_the_newest_events_and_where_they_happened(bench: &Bench) {
    assert_eq!(bench.store.news(0, 10).await.unwrap().tasks, []);
    let worker = bench.worker("w").await;
    for id in ["a", "b", "c"] {
        bench.held(&worker, id).await;
    }
    let news = bench.store.news(0, 2).await.unwrap();
    let tasks: Vec<_> = news.tasks.iter().map(|(task, thread)| (&**task, &**thread)).collect();
    assert_eq!(tasks, [("c", "thread"), ("b", "thread")]);
    assert_eq!(news.sequence, 3);
    assert_eq!(bench.store.news(2, 10).await.unwrap().tasks.len(), 1);
    assert_eq!(bench.store.news(3, 10).await.unwrap(), mcp_taskd_core::store::News { sequence: 3, tasks: Vec::new() });
}

async fn another(bench: &Bench) -> SharedStore {
    Arc::new(SqlStore::connect_postgres(bench.database.as_ref().expect("a database").url(), 2).await.expect("connects"))
}

/// Many calls are few statements, and none of them is in a write's transaction.
#[tokio::test(flavor = "multi_thread")]
async fn wakeups_cross_processes_and_are_few_8() {
    let bench = Bench::postgres().await;
    let (speaker, listener) = (another(&bench).await, another(&bench).await);
    let mut heard = attentive(&listener).await;
    let writes = bench.statements_with("NOTIFY");
    assert!(writes.is_empty(), "{writes:?}");
    for _ in 0..10_000 {
        speaker.wake(Wakeup::Due);
    }
    hear(&mut heard, Wakeup::Due).await;
    // What is said now is said after all of that.
    speaker.wake(Wakeup::Changed);
    let mut more = 0;
    while tokio::time::timeout(PATIENCE, heard.recv()).await.expect("it is heard").expect("it is open")
        != Wakeup::Changed
    {
        more += 1;
    }
    assert!(more <= 10, "{more} more statements for what was said at once");
    assert_eq!(speaker.hears_others(), None, "who only speaks needs no listener");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_last_is_said_before_the_end() {
    let bench = Bench::postgres().await;
    let listener = another(&bench).await;
    let mut heard = attentive(&listener).await;
    bench.store.wake(Wakeup::Changed);
    bench.sql().close().await;
    hear(&mut heard, Wakeup::Changed).await;
}

/// Whatever happens while nobody listens is found by the look that follows the listening.
#[tokio::test(flavor = "multi_thread")]
async fn a_listener_whose_connection_is_cut_listens_again_and_then_looks_7() {
    let bench = Bench::postgres().await;
    let (speaker, listener) = (another(&bench).await, another(&bench).await);
    let mut heard = attentive(&listener).await;
    let cut = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND query LIKE 'LISTEN%' AND pid <> pg_backend_pid()";
    crate::postgres::execute(&bench, cut).await;
    // In the gap: nobody hears it.
    speaker.wake(Wakeup::Due);
    hear(&mut heard, Wakeup::Due).await;
    hear(&mut heard, Wakeup::Changed).await;
    until("it listens again", || async { listener.hears_others() == Some(true) }).await;
    speaker.wake(Wakeup::Due);
    hear(&mut heard, Wakeup::Due).await;
}

/// A firewall forgot the connections: no packet comes through, and nobody says so.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_half_open_cost_one_timeout_and_not_the_tcps_7_19_23() {
    let bench = Bench::postgres().await;
    let proxy = Proxy::start(bench.database.as_ref().expect("a database").url()).await;
    let url = format!("{}?options=-c%20statement_timeout%3D1s", proxy.url());
    let store = Arc::new(SqlStore::connect_postgres(&url, 4).await.unwrap());
    let shared: SharedStore = Arc::clone(&store) as SharedStore;
    let mut heard = attentive(&shared).await;
    let worker = bench.worker("w").await;
    let (task, other) = (bench.held(&worker, "t").await, bench.held(&worker, "u").await);
    // Several connections, all idle now.
    let warm = (0..4).map(|_| store.owned(&worker));
    futures_util::future::try_join_all(warm).await.unwrap();

    // One becomes half open while a statement runs on it: what became of that nobody knows.
    let mut locking = crate::postgres::connect(&bench).await;
    let mut lock = sqlx::Connection::begin(&mut locking).await.unwrap();
    sqlx::raw_sql("LOCK TABLE mcp_tasks IN SHARE MODE").execute(&mut *lock).await.unwrap();
    let write = tokio::spawn({
        let (store, worker, done) = (Arc::clone(&store), worker.clone(), answered(&task, Status::Completed));
        async move { store.apply(&worker, &[done]).await }
    });
    crate::postgres::wait_for_waiters(&bench, 1).await;
    proxy.freeze();
    let error = write.await.unwrap().unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unknown, "{error}");
    lock.rollback().await.unwrap();

    // The others are not tried one by one for as long.
    let before = proxy.connections();
    let patience = Duration::from_secs(4);
    until_within("reads and writes go on", patience, || async { store.inspect(&["t".into()]).await.is_ok() }).await;
    assert!(proxy.connections() > before, "on new connections");
    let done = answered(&other, Status::Completed);
    assert!(matches!(store.apply(&worker, &[done]).await.unwrap()[..], [Applied::Done { .. }]));
    until("heartbeats go on", || async { matches!(store.heartbeat(&worker, 0).await, Ok(Heartbeat::Renewed { .. })) })
        .await;
    // The listener notices by itself, and then looks.
    hear(&mut heard, Wakeup::Due).await;
    assert_eq!(store.hears_others(), Some(true));
}
