//! Who holds a task when incarnations, roles and shares change.

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::store::SharedStore;
use mcp_taskd_core::task::Status;
use mcp_taskd_tests::faulty::{Fault, Faulty};
use mcp_taskd_tests::scripted::{Answer, ended, running};
use mcp_taskd_tests::wait::{until, until_within};

use crate::bench::{Bench, Running, anyone, submit};

/// A worker behind a faulty store, whose heartbeats and with them its reconciling come every ten seconds.
async fn rarely_reconciling(bench: &mut Bench) -> (Arc<Faulty>, Running) {
    bench.settings.lease_seconds = 30;
    let store = Faulty::new(Arc::clone(&bench.store));
    let shared: SharedStore = Arc::clone(&store) as SharedStore;
    let worker = bench.start_with(&bench.settings, true, &shared, |_| {}).await;
    (store, worker)
}

#[tokio::test(start_paused = true)]
async fn a_dead_servers_overdue_tasks_do_not_fill_the_room_of_the_others_42() {
    let mut bench = Bench::in_virtual_time(&["dead", "live"]);
    bench.settings.max_held = 8;
    bench.settings.lease_seconds = 2;
    bench.servers[0].1.on("status", "", [Answer::Broken(true)]);
    let gateway = bench.start_with(&bench.settings, false, &bench.store, |_| {}).await;
    for _ in 0..30 {
        gateway.submit("dead").await;
    }
    let worker = bench.start().await;
    let held = || async { worker.metric("leases_held", &[]) };
    until("the dead server's share is held", || async { held().await >= 4.0 }).await;
    // Overdue by a lease, the others of the dead server are as open as they ever get.
    tokio::time::sleep(Duration::from_secs(4)).await;
    bench.servers[1].1.on("status", "", [ended("completed")]);
    let task = gateway.submit("live").await;
    bench.wait_for(&task.id, Status::Completed).await;
    // The figure is a tick old, and the live server's task may have been in it.
    until("a share each", || async { held().await <= 4.0 }).await;
    gateway.stop().await;
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_resolves_its_own_intent_does_not_poll_it() {
    let bench = Bench::in_virtual_time(&["s"]);
    let store = Faulty::new(Arc::clone(&bench.store));
    let shared: SharedStore = Arc::clone(&store) as SharedStore;
    let idempotent = |config: &mut mcp_taskd_core::config::ServerConfig| config.toolsets[0].idempotent_submit = true;
    let gateway = bench.start_with(&bench.settings, false, &shared, idempotent).await;
    // After the attempt to withdraw it.
    store.next("insert_intent", [Fault::Late(Duration::from_millis(200))]);
    assert!(gateway.try_submit(submit("s")).await.is_err());
    until("it is repeated", || async { bench.server().calls("submit", "") >= 1 }).await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(bench.server().calls("status", ""), 0);
    bench.server().on("status", "", [ended("completed")]);
    let worker = bench.start().await;
    until("a worker polls it", || async { bench.server().calls("status", "task-1") >= 1 }).await;
    worker.stop().await;
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_recorded_under_a_former_id_is_not_polled_until_it_is_claimed_3() {
    let bench = Bench::new(&["s"]).await;
    let store = Faulty::new(Arc::clone(&bench.store));
    let shared: SharedStore = Arc::clone(&store) as SharedStore;
    let worker = bench.start_with(&bench.settings, true, &shared, |_| {}).await;
    bench.server().hold();
    let call = tokio::spawn({
        let service = worker.service().clone();
        async move { service.submit(submit("s")).await }
    });
    until("the call is sent", || async { bench.server().calls("submit", "") == 1 }).await;
    // The row stays named by the dead incarnation for a while.
    store.next("free_dead", [Fault::Away; 4]);
    let old = worker.service().worker().id().unwrap();
    assert!(bench.store.mark_dead(&old, &old, None).await.unwrap());
    until("it is reborn", || async { worker.service().worker().id().is_some_and(|id| id != old) }).await;
    bench.server().release();
    let task = call.await.unwrap().unwrap().task;
    let mut polled_unowned = false;
    let claimed = || async {
        let before = bench.server().calls("status", "");
        bench.task(&task.id).await.lease_owner.as_deref() != Some(&*old) || before > 0
    };
    until("it is freed", claimed).await;
    polled_unowned |= bench.task(&task.id).await.lease_owner.as_deref() == Some(&*old);
    assert!(!polled_unowned, "it was polled by one that does not own it");
    bench.server().on("status", "", [ended("completed")]);
    bench.wait_for(&task.id, Status::Completed).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_cancel_does_not_drop_what_is_just_being_written_58() {
    let mut bench = Bench::new(&["s"]).await;
    bench.server().on("cancel", "", [Answer::Error("not now".into()), ended("cancelled")]);
    let (store, worker) = rarely_reconciling(&mut bench).await;
    let task = worker.submit("s").await;
    bench.wait_for(&task.id, Status::Working).await;
    store.next("apply", [Fault::Slow(Duration::from_millis(500))]);
    worker.service().cancel(&anyone(), &task.id).await.unwrap();
    until("the first attempt is on record", || async { bench.task(&task.id).await.cancel_attempt_count == 1 }).await;
    worker.service().cancel(&anyone(), &task.id).await.unwrap();
    let ended = || async { bench.task(&task.id).await.status == Status::Cancelled };
    until_within("the next attempt ends it", Duration::from_secs(4), ended).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_recorded_unseen_is_found_before_the_next_heartbeat_23() {
    let mut bench = Bench::new(&["s"]).await;
    let (store, worker) = rarely_reconciling(&mut bench).await;
    store.next("record_submitted", [Fault::AnswerLost]);
    worker.submit("s").await;
    let polled = || async { bench.server().calls("status", "task-1") >= 1 };
    until_within("it is polled", Duration::from_secs(4), polled).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_too_much_for_the_store_shrinks_24() {
    let mut bench = Bench::new(&["s"]).await;
    let (store, worker) = rarely_reconciling(&mut bench).await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(worker.submit("s").await.id.to_string());
    }
    store.at_most(1);
    bench.server().on("status", "", [ended("completed")]);
    for id in &ids {
        bench.wait_for(id, Status::Completed).await;
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_ahead_and_back_leaves_no_task_waiting_for_it_6() {
    let bench = Bench::new(&["s"]).await;
    let store = Faulty::new(Arc::clone(&bench.store));
    let shared: SharedStore = Arc::clone(&store) as SharedStore;
    let worker = bench.start_with(&bench.settings, true, &shared, |_| {}).await;
    let task = worker.submit("s").await;
    bench.wait_for(&task.id, Status::Working).await;
    bench.server().on("status", "", [running()]);
    store.ahead(Duration::from_secs(86_400 * 365));
    let live = || async { worker.service().worker().peek(&task.id).await };
    let now = bench.task(&task.id).await.created_at;
    until("a poll happens in the future", || async {
        live().await.is_some_and(|live| live.next_due_at > now + 86_400_000)
    })
    .await;
    store.ahead(Duration::ZERO);
    until("the clock is back", || async { worker.service().worker().clock().now_ms() < now + 86_400_000 }).await;
    bench.server().on("status", "", [ended("completed")]);
    bench.wait_for(&task.id, Status::Completed).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_asked_for_twice_ends_once_for_both_51() {
    let bench = Bench::new(&["s"]).await;
    let worker = bench.start().await;
    let task = worker.submit("s").await;
    bench.server().on("status", "", [Answer::Hang]);
    until("a call hangs", || async { worker.metric("poll_slots", &[("state", "used")]) >= 1.0 }).await;
    let first = tokio::spawn({
        let runtime = worker.runtime.clone();
        async move { runtime.shutdown(Duration::from_secs(10)).await }
    });
    until("it drains", || async { worker.service().worker().is_draining() }).await;
    worker.stop().await;
    first.await.unwrap();
    assert_eq!(bench.task(&task.id).await.lease_owner, None);
    assert!(bench.store.workers().await.unwrap().rows.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_is_cancelled_though_the_deletion_of_its_intent_was_not_confirmed_41_152() {
    let bench = Bench::new(&["s"]).await;
    let store = Faulty::new(Arc::clone(&bench.store));
    let shared: SharedStore = Arc::clone(&store) as SharedStore;
    let worker = bench.start_with(&bench.settings, true, &shared, |_| {}).await;
    bench.server().on("submit", "", [ended("completed")]);
    store.next("discard_intent", [Fault::AnswerLost]);
    assert!(worker.try_submit(submit("s")).await.is_err());
    assert_eq!(bench.server().calls("cancel", "task-1"), 1);
    worker.stop().await;
}

/// The counters of polls that found nothing new are written lazily: each about once a lease, not with every poll.
#[tokio::test(flavor = "multi_thread")]
async fn the_counters_of_unchanged_polls_are_written_once_a_lease_131() {
    let mut bench = Bench::new(&["s"]).await;
    bench.settings.max_concurrent_polls = 32;
    let worker = bench.start().await;
    let mut ids = Vec::new();
    for _ in 0..120 {
        ids.push(worker.submit("s").await.id.to_string());
    }
    until("every task's counter is on record", || async {
        for id in &ids {
            if bench.task(id).await.poll_attempt_count < 2 {
                return false;
            }
        }
        true
    })
    .await;
    let touched = worker.metric("rows_written_total", &[("statement", "touch")]);
    let polls = worker.metric("polls_total", &[("outcome", "unchanged")]);
    assert!(touched >= 120.0 && touched < polls, "{touched} rows for {polls} polls");
    worker.stop().await;
}

/// A worker that the store counts as dead registers again; a shutdown just then must not leave that row behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_registration_under_way_when_a_drain_begins_leaves_no_live_row_31() {
    for grace in [Duration::from_secs(10), Duration::ZERO] {
        let bench = Bench::new(&["s"]).await;
        let store = Faulty::new(Arc::clone(&bench.store));
        let shared: SharedStore = Arc::clone(&store) as SharedStore;
        let worker = bench.start_with(&bench.settings, true, &shared, |_| {}).await;
        let old = worker.service().worker().id().unwrap();
        // The row is there at once, and the worker learns of it later.
        store.next("register", [Fault::Slow(Duration::from_secs(2))]);
        assert!(bench.store.mark_dead(&old, &old, None).await.unwrap());
        until("it registers again", || async { store.calls("register") == 2 }).await;
        worker.runtime.shutdown(grace).await;
        until("nobody is left", || async { bench.store.workers().await.unwrap().rows.is_empty() }).await;
        // The row may be deleted by the takeover before whoever marked it dead has come to its file.
        let files = || async { std::fs::read_dir(bench.folder.path().join("state/workers")).unwrap().count() };
        until("the locks' files are gone too", || async { files().await == 0 }).await;
    }
}

/// Everything is overdue at once; what the server sees of it is so many calls at a time, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_overdue_after_an_outage_comes_a_slot_at_a_time_9() {
    let mut bench = Bench::new(&["s"]).await;
    bench.settings.max_concurrent_polls = 3;
    let gateway = bench.start_with(&bench.settings, false, &bench.store, |_| {}).await;
    let mut last = gateway.submit("s").await;
    for _ in 0..100 {
        last = gateway.submit("s").await;
    }
    until("all are due", || async { gateway.service().worker().clock().now_ms() > last.next_due_at }).await;
    bench.server().slow(Duration::from_millis(10));
    let workers = [bench.start().await, bench.start().await];
    until("each is polled", || async { bench.server().calls("status", "") >= 101 }).await;
    assert!(bench.server().most_in_flight() <= 6, "{} calls at once", bench.server().most_in_flight());
    for worker in workers {
        worker.stop().await;
    }
    gateway.stop().await;
}

async fn held(workers: &[&Running]) -> Vec<f64> {
    std::future::ready(workers.iter().map(|worker| worker.metric("leases_held", &[])).collect()).await
}

/// Each starts when the others have shared out everything among themselves.
#[tokio::test(flavor = "multi_thread")]
async fn workers_that_come_one_by_one_have_their_shares_and_one_that_leaves_hands_over() {
    let mut bench = Bench::new(&["s"]).await;
    bench.settings.max_concurrent_polls = 32;
    let fair = |shares: &[f64]| {
        let even = 120.0 / shares.len() as f64;
        shares.iter().all(|share| *share <= 1.3 * even + 1.0 && *share >= 0.4 * even)
    };
    let first = bench.start().await;
    for _ in 0..120 {
        first.submit("s").await;
    }
    let second = bench.start().await;
    let took = until_within("two have half each", LEASES, || async { fair(&held(&[&first, &second]).await) }).await;
    eprintln!("two had their shares after {took:?}");
    let third = bench.start().await;
    let all = [&first, &second, &third];
    let took = until_within("three have a third each", LEASES, || async { fair(&held(&all).await) }).await;
    eprintln!("three had their shares after {took:?}");

    // Longer than a drain and a tick take, the one that leaves would be found dead.
    first.stop().await;
    let rest = [&second, &third];
    let took = until_within("the others hold all", LEASES, || async { held(&rest).await.iter().sum::<f64>() >= 120.0 });
    eprintln!("the others had everything {:?} after the end of the drain", took.await);
    for worker in [&second, &third] {
        assert!(worker.metric("leases_expired_total", &[]) < 1.0, "nobody had to be found dead");
    }
    second.stop().await;
    third.stop().await;
}

/// About a lease of five seconds, and as much again for a machine that does other things too.
const LEASES: Duration = Duration::from_secs(15);
