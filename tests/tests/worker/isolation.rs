//! Several servers, several workers.

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::task::Status;
use mcp_taskd_tests::scripted::{Answer, ended, running};
use mcp_taskd_tests::wait::until;

use crate::bench::Bench;

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_does_not_hold_up_a_healthy_one_29() {
    let bench = Bench::new(&["dead", "live"]).await;
    let worker = bench.start().await;
    let mut dead = Vec::new();
    for _ in 0..50 {
        dead.push(worker.submit("dead").await);
    }
    bench.servers[0].1.on("status", "", [Answer::Hang]);
    let task = worker.submit("live").await;
    let before = bench.servers[1].1.calls("status", "");
    until("the healthy one is polled on", || async { bench.servers[1].1.calls("status", "") >= before + 4 }).await;
    assert!(bench.servers[0].1.most_in_flight() <= 4, "half of the slots is a server's bound");
    assert_eq!(bench.task(&task.id).await.status, Status::Working);
    for task in dead {
        assert!(!bench.task(&task.id).await.status.is_terminal());
    }
    tokio::time::timeout(Duration::from_secs(8), worker.stop()).await.ok();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_gone_costs_a_few_probes_and_its_tasks_say_so_149_159() {
    let bench = Bench::in_virtual_time(&["s"]);
    let worker = bench.start().await;
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.push(worker.submit("s").await.id.to_string());
    }
    bench.server().on("status", "", [Answer::Broken(true)]);
    until("the breaker opens", || async { worker.metric("breaker_open", &[("server", "s")]) >= 1.0 }).await;
    let before = bench.server().calls("status", "");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let probes = bench.server().calls("status", "") - before;
    assert!(probes <= 12, "{probes} calls in three seconds");
    let held = worker.metric("poll_retries_total", &[("reason", "breaker")]);
    assert!(held >= 50.0, "each skipped due time counts as an error of the task: {held}");
    for id in &ids {
        let says_so = || async {
            let row = bench.task(id).await;
            row.consecutive_poll_error_count >= 3
                && row
                    .last_poll_error
                    .is_some_and(|text| text.contains("held back") || text.contains("connection failed"))
        };
        until("it is degraded, with the reason", says_so).await;
        assert!(bench.events(id).await.contains(&"tracking_degraded".to_owned()));
    }
    bench.server().on("status", "", [running()]);
    until("it closes", || async { worker.metric("breaker_open", &[("server", "s")]) == 0.0 }).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_worker_gets_its_share_and_a_leaving_one_hands_over() {
    let bench = Bench::new(&["s"]).await;
    let first = bench.start().await;
    for _ in 0..100 {
        first.submit("s").await;
    }
    let second = bench.start().await;
    let held = |worker: &crate::bench::Running| worker.metric("leases_held", &[]);
    until("it is even", || async { held(&second) >= 35.0 && held(&first) <= 65.0 }).await;
    first.stop().await;
    until("the other has all", || async { held(&second) >= 100.0 }).await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_gateway_submits_and_leaves_polling_to_a_worker() {
    let bench = Bench::in_virtual_time(&["s"]);
    let gateway = bench.start_with(&bench.settings, false, &bench.store, |_| {}).await;
    let task = gateway.submit("s").await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(bench.server().calls("status", ""), 0);
    bench.server().on("status", "", [ended("completed")]);
    let worker = bench.start().await;
    bench.wait_for(&task.id, Status::Completed).await;
    gateway.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_found_dead_starts_again_under_a_new_id() {
    let bench = Bench::new(&["s"]).await;
    let worker = bench.start().await;
    let task = worker.submit("s").await;
    let old = worker.service().worker().id().unwrap();
    assert!(bench.store.mark_dead(&old, &old, None).await.unwrap());
    until("it is reborn", || async { worker.service().worker().id().is_some_and(|id| id != old) }).await;
    let owned = || async {
        let owner = bench.task(&task.id).await.lease_owner;
        owner.is_some() && owner.map(Arc::from) == worker.service().worker().id()
    };
    until("it claims its task again", owned).await;
    worker.stop().await;
}
