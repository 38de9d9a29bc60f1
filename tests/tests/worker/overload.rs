//! More than there is room for, and a store that is slow or away (FAILURES 24, 30, 42).

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::store::SharedStore;
use mcp_taskd_core::task::Status;
use mcp_taskd_tests::faulty::Faulty;
use mcp_taskd_tests::scripted::{Answer, ended};
use mcp_taskd_tests::wait::{until, until_still, until_within};
use serde_json::json;

use crate::bench::{Bench, Running, anyone};

/// The reserve of one server's cancels, with the default of 8 poll slots.
const CANCEL_RESERVE: f64 = 8.0;

async fn submit(worker: &Running, server: &str, tasks: usize) -> Vec<String> {
    let mut ids = Vec::with_capacity(tasks);
    for _ in 0..tasks {
        ids.push(worker.submit(server).await.id.to_string());
    }
    ids
}

/// Running still, and with something new in every answer.
fn restless(answers: usize) -> impl Iterator<Item = Answer> {
    (0..answers).map(|n| {
        Answer::Structured(json!({"task_id": "$id", "status": "running", "result": n, "poll_after_seconds": 0.1}))
    })
}

async fn behind_faults(bench: &Bench) -> (Arc<Faulty>, Running) {
    let store = Faulty::new(Arc::clone(&bench.store));
    let shared: SharedStore = Arc::clone(&store) as SharedStore;
    let worker = bench.start_with(&bench.settings, true, &shared, |_| {}).await;
    (store, worker)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_live_tasks_end_beside_ten_thousand_dead_ones_in_a_small_room_42() {
    let mut bench = Bench::in_memory(&["dead", "live"]);
    bench.settings.max_held = 200;
    bench.servers[0].1.on("status", "", [Answer::Broken(true)]);
    bench.servers[1].1.on("status", "", [ended("completed")]);
    let gateway = bench.start_with(&bench.settings, false, &bench.store, |_| {}).await;
    submit(&gateway, "dead", 10_000).await;
    let live = submit(&gateway, "live", 100).await;
    let worker = bench.start().await;
    for id in &live {
        bench.wait_for(id, Status::Completed).await;
        assert!(worker.metric("leases_held", &[]) <= 200.0);
    }
    gateway.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_submitted_here_without_room_for_it_waits_in_the_store_42() {
    let mut bench = Bench::in_memory(&["dead", "live"]);
    bench.settings.max_held = 20;
    bench.servers[0].1.on("status", "", [Answer::Broken(true)]);
    bench.servers[1].1.on("status", "", [ended("completed")]);
    let worker = bench.start().await;
    submit(&worker, "dead", 500).await;
    let live = submit(&worker, "live", 1).await.remove(0);
    bench.wait_for(&live, Status::Completed).await;
    until("the rest is given back", || async { worker.metric("leases_held", &[]) <= 20.0 }).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancels_have_a_bounded_room_of_their_own_and_a_dead_servers_do_not_fill_it_30_42() {
    let mut bench = Bench::in_memory(&["dead", "live"]);
    bench.settings.max_held = 4;
    let gateway = bench.start_with(&bench.settings, false, &bench.store, |_| {}).await;
    submit(&gateway, "dead", 2).await;
    submit(&gateway, "live", 2).await;
    let worker = bench.start().await;
    until("the room is full", || async { worker.metric("leases_held", &[]) >= 4.0 }).await;
    bench.servers[0].1.on("cancel", "", [Answer::Hang]);
    let (dead, live) = (submit(&gateway, "dead", 300).await, submit(&gateway, "live", 20).await);
    for id in dead.iter().chain(&live) {
        gateway.service().cancel(&anyone(), id).await.unwrap();
    }
    for id in &live {
        bench.wait_for(id, Status::Cancelled).await;
        let held = worker.metric("leases_held", &[]);
        assert!(held <= 4.0 + 3.0 * CANCEL_RESERVE, "{held} held");
    }
    gateway.stop().await;
    tokio::time::timeout(Duration::from_secs(8), worker.stop()).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_room_a_cancel_that_fails_makes_room_for_the_next_one_30_42() {
    let mut bench = Bench::in_memory(&["s"]);
    bench.settings.max_held = 1;
    bench.server().on("cancel", "", [Answer::Error("not now".into())]);
    let gateway = bench.start_with(&bench.settings, false, &bench.store, |_| {}).await;
    let ids = submit(&gateway, "s", 40).await;
    for id in &ids {
        gateway.service().cancel(&anyone(), id).await.unwrap();
    }
    let worker = bench.start().await;
    for id in &ids {
        until("each has its turn", || async { bench.task(id).await.cancel_attempt_count >= 1 }).await;
    }
    gateway.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_store_is_asked_no_more_often_than_it_answers_and_polling_goes_on_24() {
    let bench = Bench::new(&["s"]).await;
    let (store, worker) = behind_faults(&bench).await;
    let ids = submit(&worker, "s", 100).await;
    bench.server().on("status", "", restless(100_000));
    until("all are polled", || async { bench.server().calls("status", "") >= 200 }).await;
    store.delay(Duration::from_millis(400));
    let (statements, polls) = (store.all_calls(), bench.server().calls("status", ""));
    let writes = store.calls("apply");
    until("ten more batches are written", || async { store.calls("apply") >= writes + 10 }).await;
    let (statements, polls) = (store.all_calls() - statements, bench.server().calls("status", "") - polls);
    assert!(statements <= 60, "{statements} statements for ten batches");
    assert!(polls >= 100, "what waits is written together, so {polls} polls went on");
    assert!(polls <= 12 * ids.len(), "a task whose outcome is not written is not polled: {polls}");
    store.delay(Duration::ZERO);
    bench.server().on("status", "", [ended("completed")]);
    for id in &ids {
        bench.wait_for(id, Status::Completed).await;
    }
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_tried_ever_more_rarely_and_each_task_waits_for_its_write_24() {
    let bench = Bench::in_virtual_time(&["s"]);
    let (store, worker) = behind_faults(&bench).await;
    let ids = submit(&worker, "s", 50).await;
    bench.server().on("status", "", restless(100_000));
    until("all are polled", || async { bench.server().calls("status", "") >= 100 }).await;
    store.away(true);
    let before = store.calls("apply");
    until("writes fail", || async { store.calls("apply") >= before + 2 }).await;
    let (statements, polls) = (store.all_calls(), bench.server().calls("status", ""));
    tokio::time::sleep(Duration::from_secs(4)).await;
    let (statements, polls) = (store.all_calls() - statements, bench.server().calls("status", "") - polls);
    assert!(statements <= 40, "{statements} statements in four seconds");
    assert!(polls <= 2 * ids.len(), "{polls} polls whose outcome cannot be written");
    store.away(false);
    bench.server().on("status", "", [ended("completed")]);
    for id in &ids {
        bench.wait_for(id, Status::Completed).await;
    }
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn outcomes_that_cannot_be_written_are_bounded_and_other_servers_are_polled_on_24_29() {
    let bench = Bench::in_virtual_time(&["chatty", "calm"]);
    let (store, worker) = behind_faults(&bench).await;
    let ids = submit(&worker, "chatty", 1_200).await;
    let calm = submit(&worker, "calm", 1).await.remove(0);
    for id in ids.iter().chain([&calm]) {
        bench.wait_for(id, Status::Working).await;
    }
    store.away(true);
    bench.servers[0].1.on("status", "", [ended("completed")]);
    let before = bench.servers[0].1.calls("status", "");
    let polls = || bench.servers[0].1.calls("status", "") - before;
    until_still("it is not polled on", Duration::from_millis(1_500), polls).await;
    assert!(polls() <= 500 + 2 * 8, "{} outcomes wait", polls());
    let calm_polls = bench.servers[1].1.calls("status", "");
    let goes_on = || async { bench.servers[1].1.calls("status", "") >= calm_polls + 3 };
    until_within("unchanged polls write nothing, so they go on", Duration::from_secs(10), goes_on).await;
    store.away(false);
    for id in &ids {
        bench.wait_for(id, Status::Completed).await;
    }
    worker.stop().await;
}
