//! Who may take which rows (BEHAVIOURS F, G).

use std::collections::HashSet;

use mcp_taskd_core::store::{CancelRequest, ClaimOrder, Inserted, NewHandle, NewIntent, WorkerId};
use mcp_taskd_core::task::Status;

use crate::bench::{Bench, FAR, T0, behaviours, binding, handle, intent, order};

behaviours! {
    oldest_due_is_taken_first_then_by_id_and_never_more_than_the_limit_44,
    only_due_rows_of_listed_servers_are_taken_and_long_overdue_ones_of_any,
    a_claim_of_listed_servers_alone_takes_the_oldest_of_them_all_and_nothing_else_42,
    rows_of_another_driver_are_taken_once_long_overdue_48,
    a_claim_takes_ownership_and_bumps_the_epoch_55,
    cancels_and_polls_are_claimed_apart,
    only_a_live_worker_claims_39,
    a_freed_intent_is_claimed_to_be_resolved,
    concurrent_claims_never_share_a_row_56,
}

/// The two ways to ask: for long overdue rows of other servers too, or for the listed ones alone.
fn both_ways(order: &ClaimOrder) -> [ClaimOrder; 2] {
    [Some(0), None].map(|any_server_due_before| ClaimOrder { any_server_due_before, ..order.clone() })
}

async fn oldest_due_is_taken_first_then_by_id_and_never_more_than_the_limit_44(bench: &Bench) {
    let worker = bench.worker("w").await;
    for (round, two) in both_ways(&ClaimOrder { limit: 2, ..order(&worker) }).into_iter().enumerate() {
        let named = |id: &str| format!("{id}{round}");
        for (id, due) in [("b", 20), ("D", 10), ("a", 20), ("c", 10), ("z", 1)] {
            bench.free(&worker, &named(id), T0 + due).await;
        }
        assert_eq!(bench.claim(&two).await, ["z", "D"].map(named));
        assert_eq!(bench.claim(&two).await, ["c", "a"].map(named), "ids in byte order on every store");
        assert_eq!(bench.claim(&two).await, ["b"].map(named));
        assert!(bench.claim(&two).await.is_empty());
        assert!(bench.claim(&ClaimOrder { limit: 0, ..two }).await.is_empty());
    }
}

async fn only_due_rows_of_listed_servers_are_taken_and_long_overdue_ones_of_any(bench: &Bench) {
    let worker = bench.worker("w").await;
    for (id, server, due) in [("1", "here", 0), ("2", "gone", 0), ("3", "here", 500), ("4", "gone", -900)] {
        free_on(bench, &worker, server, id, T0 + due).await;
    }
    let claim = ClaimOrder {
        servers: vec!["here".into(), "also".into()],
        due_before: T0 + 100,
        any_server_due_before: Some(T0 - 800),
        ..order(&worker)
    };
    let full = ClaimOrder { servers: Vec::new(), known: vec!["here".into(), "gone".into()], ..claim.clone() };
    assert!(bench.claim(&full).await.is_empty(), "a server whose share is full is not any server");
    assert_eq!(bench.claim(&claim).await, ["4", "1"]);
    let nothing = ClaimOrder { servers: Vec::new(), any_server_due_before: Some(0), due_before: FAR, ..order(&worker) };
    assert!(bench.claim(&nothing).await.is_empty());
}

/// A submitted task on `server` that nobody owns.
async fn free_on(bench: &Bench, worker: &WorkerId, server: &str, id: &str, next_due_at: i64) {
    let new = NewIntent { binding: binding(server), ..intent(worker, id) };
    bench.store.insert_intent(&new).await.unwrap();
    bench.record(&NewHandle { next_due_at, ..handle(worker, id, false) }).await;
}

async fn a_claim_of_listed_servers_alone_takes_the_oldest_of_them_all_and_nothing_else_42(bench: &Bench) {
    let worker = bench.worker("w").await;
    for (id, server, due) in
        [("a3", "a", 3), ("a5", "a", 5), ("b2", "b", 2), ("b4", "b", 4), ("b9", "b", 9), ("c1", "c", 1)]
    {
        free_on(bench, &worker, server, id, T0 + due).await;
    }
    let servers = ["a", "b", "idle"].map(str::to_owned).to_vec();
    let listed = ClaimOrder { servers, any_server_due_before: None, due_before: T0 + 8, limit: 3, ..order(&worker) };
    assert!(bench.claim(&ClaimOrder { drivers: vec!["newer".into()], ..listed.clone() }).await.is_empty());
    assert!(bench.claim(&ClaimOrder { servers: Vec::new(), ..listed.clone() }).await.is_empty());
    assert_eq!(bench.claim(&listed).await, ["b2", "a3", "b4"]);
    assert_eq!(bench.claim(&listed).await, ["a5"], "another server's task is left alone, and so is what is not due");
    assert_eq!(bench.get("c1").await.lease_owner, None);
}

async fn rows_of_another_driver_are_taken_once_long_overdue_48(bench: &Bench) {
    let worker = bench.worker("w").await;
    bench.free(&worker, "t", T0).await;
    let known = ClaimOrder { known: vec!["server".into()], drivers: vec!["newer".into()], ..order(&worker) };
    assert!(bench.claim(&known).await.is_empty(), "left to those who have its driver");
    assert_eq!(bench.claim(&ClaimOrder { any_server_due_before: Some(T0 + 1), ..known }).await, ["t"]);
}

async fn a_claim_takes_ownership_and_bumps_the_epoch_55(bench: &Bench) {
    let worker = bench.worker("w").await;
    let before = bench.free(&worker, "t", T0).await;
    assert_eq!(before.lease_epoch, 2);
    let claimed = bench.store.claim(&order(&worker)).await.unwrap().remove(0);
    assert_eq!(claimed.lease_epoch, 3);
    let record = bench.get("t").await;
    assert_eq!((record.tracked.clone(), record.lease_owner.as_deref()), (claimed, Some("w")));
    assert_eq!(record.updated_at, T0 + 1, "a claim is nothing that the user sees");
    let owned = bench.store.owned(&worker).await.unwrap();
    assert_eq!((owned.len(), owned[0].epoch, owned[0].status), (1, 3, Some(Status::Submitted)));
    let ids = ["t".into(), "nobody".into()];
    assert_eq!(bench.store.load_owned(&worker, &ids).await.unwrap(), std::slice::from_ref(&record.tracked));
    assert!(bench.store.load_owned(&"other".into(), &ids).await.unwrap().is_empty());
    let states = bench.store.inspect(&ids).await.unwrap();
    assert_eq!(states.len(), 1);
    assert_eq!((states[0].owner.as_deref(), states[0].epoch), (Some("w"), 3));
    assert_eq!(states[0].remote_task_id.as_deref(), Some("remote-t"));
}

async fn cancels_and_polls_are_claimed_apart(bench: &Bench) {
    let worker = bench.worker("w").await;
    for (round, polls) in both_ways(&order(&worker)).into_iter().enumerate() {
        let (poll, cancel) = (format!("poll{round}"), format!("cancel{round}"));
        bench.free(&worker, &poll, T0).await;
        bench.free(&worker, &cancel, T0).await;
        let request = CancelRequest { id: cancel.as_str().into(), user_id: None, thread_id: None };
        bench.store.request_cancel(&request, T0 + 7).await.unwrap();
        assert_eq!(bench.claim(&ClaimOrder { cancels: true, ..polls.clone() }).await, [cancel]);
        assert_eq!(bench.claim(&polls).await, [poll]);
    }
}

async fn only_a_live_worker_claims_39(bench: &Bench) {
    let worker = bench.worker("w").await;
    bench.free(&worker, "t", T0).await;
    for claim in both_ways(&order(&"never-registered".into())) {
        assert!(bench.claim(&claim).await.is_empty());
    }
    assert!(bench.store.mark_dead(&worker, &worker, None).await.unwrap());
    for claim in both_ways(&order(&worker)) {
        assert!(bench.claim(&claim).await.is_empty());
    }
    assert_eq!(bench.store.insert_intent(&intent(&worker, "late")).await.unwrap(), Inserted::NotLive);
    assert_eq!(bench.get("t").await.lease_owner, None);
}

async fn a_freed_intent_is_claimed_to_be_resolved(bench: &Bench) {
    let (gone, heir) = (bench.worker("gone").await, bench.worker("heir").await);
    bench.intent(&gone, "t").await;
    bench.store.mark_dead(&heir, &gone, None).await.unwrap();
    assert_eq!(bench.store.free_dead(T0, 10, 0).await.unwrap(), 1);
    assert!(bench.claim(&order(&heir)).await.is_empty(), "the submitter's deadline is kept");
    let claimed = bench.store.claim(&ClaimOrder { due_before: FAR, ..order(&heir) }).await.unwrap();
    assert_eq!((claimed[0].status, claimed[0].lease_epoch), (Status::Submitting, 3));
}

async fn concurrent_claims_never_share_a_row_56(bench: &Bench) {
    let first = bench.worker("w0").await;
    for index in 0..60 {
        bench.free(&first, &format!("t{index:02}"), T0 + index).await;
    }
    let mut claims = tokio::task::JoinSet::new();
    for index in 0..6 {
        let worker = if index == 0 { first.clone() } else { bench.worker(&format!("w{index}")).await };
        let store = bench.store.clone();
        // Who asks in one way meets others that ask in the other.
        let [any, listed] = both_ways(&ClaimOrder { limit: 3, ..order(&worker) });
        let claim = if index % 2 == 0 { any } else { listed };
        claims.spawn(async move {
            let mut ids = Vec::new();
            loop {
                let taken = store.claim(&claim).await.unwrap();
                assert!(taken.len() <= 3);
                if taken.is_empty() {
                    return ids;
                }
                ids.extend(taken.into_iter().map(|task| task.id));
            }
        });
    }
    let ids: Vec<_> = claims.join_all().await.concat();
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len(), "a row was taken twice");
    // Who skips what another one is taking may end early, and leaves nothing unowned that all skipped for good.
    let rest = bench.claim(&order(&first)).await;
    assert_eq!(ids.len() + rest.len(), 60);
}
