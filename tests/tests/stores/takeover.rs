//! Workers: heartbeats and takeover (BEHAVIOURS G; FAILURES 2, 4, 6, 39, 40).

use mcp_taskd_core::store::{Applied, CancelRequest, ClaimOrder, FAR_AHEAD_MS, Heartbeat, StoreErrorKind, WorkerInfo};
use mcp_taskd_core::task::Status;

use crate::bench::{Bench, T0, answered, behaviours, info, order, write};

behaviours! {
    a_heartbeat_renews_the_lease_by_the_stores_clock,
    heartbeats_are_refused_after_death_and_never_insert,
    a_worker_is_marked_dead_only_by_a_live_one_that_saw_its_last_heartbeat,
    dead_is_absorbing_and_an_id_is_used_once_4,
    rows_of_every_dead_worker_are_freed_in_chunks_and_spread_40,
    a_dead_workers_row_goes_only_when_no_task_names_it_4,
    a_result_applied_before_the_free_stays_2,
    tasks_that_ended_long_ago_are_pruned_with_their_events_oldest_first,
    what_is_due_absurdly_late_is_due_soon_6,
    a_lease_that_ends_absurdly_late_ends_one_lease_from_now_6,
}

async fn a_heartbeat_renews_the_lease_by_the_stores_clock(bench: &Bench) {
    let registered = bench.store.register(&info("w")).await.unwrap();
    let Heartbeat::Renewed { now_ms } = bench.store.heartbeat(&"w".into(), 42).await.unwrap() else {
        panic!("refused")
    };
    assert!(now_ms >= registered && registered > 1_600_000_000_000, "the store's wall clock");
    let workers = bench.store.workers().await.unwrap();
    assert!(workers.now_ms >= now_ms && workers.now_ms < now_ms + 60_000);
    let row = &workers.rows[0];
    assert_eq!((&row.info, row.live, row.heartbeat_count, row.held), (&info("w"), true, 1, 42));
    assert_eq!((row.lease_expires_at, row.started_at), (now_ms + 120_000, registered));
}

async fn heartbeats_are_refused_after_death_and_never_insert(bench: &Bench) {
    assert_eq!(bench.store.heartbeat(&"nobody".into(), 0).await.unwrap(), Heartbeat::Refused);
    assert!(bench.store.workers().await.unwrap().rows.is_empty());
    assert!(bench.store.workers().await.unwrap().now_ms >= 0);
    let worker = bench.worker("w").await;
    assert!(bench.store.mark_dead(&worker, &worker, None).await.unwrap());
    assert_eq!(bench.store.heartbeat(&worker, 0).await.unwrap(), Heartbeat::Refused);
    assert_eq!(bench.store.workers().await.unwrap().rows[0].heartbeat_count, 0);
}

async fn a_worker_is_marked_dead_only_by_a_live_one_that_saw_its_last_heartbeat(bench: &Bench) {
    let (marker, target, dead) = (bench.worker("m").await, bench.worker("t").await, bench.worker("d").await);
    bench.store.mark_dead(&marker, &dead, None).await.unwrap();
    bench.store.heartbeat(&target, 0).await.unwrap();
    assert!(!bench.store.mark_dead(&marker, &target, Some(0)).await.unwrap(), "it has beaten since");
    assert!(!bench.store.mark_dead(&dead, &target, Some(1)).await.unwrap(), "the marker is dead itself");
    assert!(!bench.store.mark_dead(&"nobody".into(), &target, Some(1)).await.unwrap());
    assert!(!bench.store.mark_dead(&marker, &"nobody".into(), None).await.unwrap());
    assert!(bench.store.mark_dead(&marker, &target, Some(1)).await.unwrap());
    let live: Vec<_> = bench.store.workers().await.unwrap().rows.into_iter().filter(|row| row.live).collect();
    assert_eq!((live.len(), &*live[0].info.id), (1, "m"));
}

async fn dead_is_absorbing_and_an_id_is_used_once_4(bench: &Bench) {
    let worker = bench.worker("w").await;
    bench.worker("m").await;
    assert!(bench.store.mark_dead(&"m".into(), &worker, None).await.unwrap());
    assert!(!bench.store.mark_dead(&"m".into(), &worker, None).await.unwrap(), "changed nothing");
    assert_eq!(bench.store.register(&info("w")).await.unwrap_err().kind, StoreErrorKind::Data);
}

async fn rows_of_every_dead_worker_are_freed_in_chunks_and_spread_40(bench: &Bench) {
    let live = bench.worker("live").await;
    bench.held(&live, "kept").await;
    for (owner, count) in [("d1", 5), ("d2", 7)] {
        let owner = bench.worker(owner).await;
        for index in 0..count {
            bench.held(&owner, &format!("{owner}-{index}")).await;
        }
        bench.store.mark_dead(&live, &owner, None).await.unwrap();
    }
    let now = T0 + 100_000;
    assert_eq!(bench.store.free_dead(now, 8, 5_000).await.unwrap(), 8);
    assert_eq!(bench.store.free_dead(now, 8, 5_000).await.unwrap(), 4);
    assert_eq!(bench.store.free_dead(now, 8, 5_000).await.unwrap(), 0);
    assert_eq!(bench.get("kept").await.lease_owner.as_deref(), Some("live"));
    let mut dues = Vec::new();
    for (owner, count) in [("d1", 5), ("d2", 7)] {
        for index in 0..count {
            let row = bench.get(&format!("{owner}-{index}")).await;
            assert_eq!((row.lease_owner.clone(), row.lease_epoch), (None, 3));
            assert_eq!(row.updated_at, T0 + 1, "nothing that the user sees");
            dues.push(row.next_due_at);
        }
    }
    assert!(dues.iter().all(|due| (now..now + 5_000).contains(due)), "{dues:?}");
    dues.dedup();
    assert!(dues.len() > 1, "a takeover is no herd");
}

async fn a_dead_workers_row_goes_only_when_no_task_names_it_4(bench: &Bench) {
    let (live, dead) = (bench.worker("live").await, bench.worker("dead").await);
    bench.held(&dead, "t").await;
    bench.store.mark_dead(&live, &dead, None).await.unwrap();
    assert_eq!(bench.store.delete_dead().await.unwrap(), 0);
    // FAILURES 40: whoever marked it is gone; anybody frees.
    assert_eq!(bench.store.free_dead(T0, 100, 0).await.unwrap(), 1);
    assert_eq!(bench.store.delete_dead().await.unwrap(), 1);
    let rows = bench.store.workers().await.unwrap().rows;
    assert_eq!((rows.len(), &*rows[0].info.id), (1, "live"));
    assert!(bench.store.owned(&dead).await.unwrap().is_empty());
}

async fn a_result_applied_before_the_free_stays_2(bench: &Bench) {
    let (live, dead) = (bench.worker("live").await, bench.worker("dead").await);
    let task = bench.held(&dead, "t").await;
    let other = bench.held(&dead, "u").await;
    bench.store.mark_dead(&live, &dead, None).await.unwrap();
    let done = answered(&task, Status::Completed);
    assert_eq!(bench.store.apply(&dead, &[done]).await.unwrap(), [Applied::Done { epoch: 3 }]);
    assert_eq!(bench.store.free_dead(T0, 100, 0).await.unwrap(), 1);
    let late = answered(&other, Status::Completed);
    assert_eq!(bench.store.apply(&dead, &[late]).await.unwrap(), [Applied::Stale]);
    assert_eq!(bench.get("t").await.status, Status::Completed);
    assert_eq!(bench.claim(&order(&live)).await, ["u"]);
}

async fn tasks_that_ended_long_ago_are_pruned_with_their_events_oldest_first(bench: &Bench) {
    let worker = bench.worker("w").await;
    for (id, ended_at) in [("old", T0), ("older", T0 - 1_000), ("recent", T0 + 1_000)] {
        let task = bench.held(&worker, id).await;
        let mut write = answered(&task, Status::Completed);
        write.change.completed_at = Some(ended_at);
        bench.store.apply(&worker, &[write]).await.unwrap();
    }
    bench.held(&worker, "active").await;
    assert_eq!(bench.store.prune(T0 + 1, 1).await.unwrap(), 1);
    assert!(bench.store.find_task("older", None, None).await.unwrap().is_none(), "the oldest goes first");
    assert_eq!(bench.get("old").await.status, Status::Completed);
    assert_eq!(bench.store.prune(T0 + 1, 100).await.unwrap(), 1);
    assert_eq!(bench.store.prune(T0 + 1, 100).await.unwrap(), 0, "neither the recent nor the active one");
    assert!(bench.kinds("old").await.is_empty() && bench.kinds("older").await.is_empty());
    assert_eq!(bench.get("recent").await.status, Status::Completed);
    assert_eq!(bench.get("active").await.status, Status::Submitted);
}

const YEAR_2300: i64 = 10_413_792_000_000;

async fn what_is_due_absurdly_late_is_due_soon_6(bench: &Bench) {
    let worker = bench.worker("w").await;
    let now_ms = bench.store.workers().await.unwrap().now_ms;
    let day = 24 * 3_600_000;
    let held = bench.held(&worker, "held").await;
    for (id, due) in [("soon", now_ms + 60_000), ("a day", now_ms + day), ("2300", YEAR_2300), ("2301", YEAR_2300 + 1)]
    {
        bench.free(&worker, id, due).await;
    }
    // A cancel is due at once; one that was put off by a jumping clock is not.
    let cancelled = bench.free(&worker, "cancel", T0).await;
    let request = CancelRequest { id: "cancel".into(), user_id: None, thread_id: None };
    bench.store.request_cancel(&request, T0).await.unwrap();
    let claimed = bench.store.claim(&ClaimOrder { cancels: true, ..order(&worker) }).await.unwrap().remove(0);
    assert_eq!(claimed.id, cancelled.id);
    let mut put_off = write(&claimed, claimed.on_release(now_ms));
    put_off.change.next_due_at = YEAR_2300;
    bench.store.apply(&worker, &[put_off]).await.unwrap();

    let before = bench.get("2300").await.lease_epoch;
    let one = bench.store.correct_far(1, 5_000).await.unwrap();
    assert!((1..=2).contains(&one.tasks.len()), "a chunk of each kind: {one:?}");
    let rest = bench.store.correct_far(10, 5_000).await.unwrap();
    let mut corrected = [one.tasks, rest.tasks].concat();
    corrected.sort();
    assert_eq!(corrected, ["2300", "2301", "cancel"]);
    assert!(bench.store.correct_far(10, 5_000).await.unwrap().tasks.is_empty());
    for id in &corrected {
        let row = bench.get(id).await;
        assert!((now_ms..now_ms + 65_000).contains(&row.next_due_at), "{id} is due at {}", row.next_due_at);
    }
    assert_eq!(bench.get("2300").await.lease_epoch, before + 1);
    assert_eq!(bench.get("a day").await.next_due_at, now_ms + day);
    assert_eq!(bench.get("held").await.lease_epoch, held.lease_epoch);
}

async fn a_lease_that_ends_absurdly_late_ends_one_lease_from_now_6(bench: &Bench) {
    bench.worker("usual").await;
    let days = WorkerInfo { lease_ms: 400 * 24 * 3_600_000, ..info("days") };
    bench.store.register(&days).await.unwrap();
    assert_eq!(bench.store.correct_far(10, 0).await.unwrap().workers, ["days"]);
    let workers = bench.store.workers().await.unwrap();
    let ends = |id: &str| workers.rows.iter().find(|row| *row.info.id == *id).unwrap().lease_expires_at;
    assert!(ends("days") <= workers.now_ms + FAR_AHEAD_MS);
    assert!(ends("usual") > workers.now_ms + 60_000);
    assert!(bench.store.correct_far(10, 0).await.unwrap().workers.is_empty());
}
