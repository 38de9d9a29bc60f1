//! Who may take which rows (BEHAVIOURS F, G).

use std::collections::HashSet;

use mcp_taskd_core::store::{CancelRequest, ClaimOrder, Inserted, NewIntent};
use mcp_taskd_core::task::Status;

use crate::bench::{Bench, FAR, T0, behaviours, binding, handle, intent, order};

behaviours! {
    oldest_due_is_taken_first_then_by_id_and_never_more_than_the_limit_44,
    only_due_rows_of_listed_servers_are_taken_and_long_overdue_ones_of_any,
    rows_of_another_driver_are_taken_once_long_overdue_48,
    a_claim_takes_ownership_and_bumps_the_epoch_55,
    cancels_and_polls_are_claimed_apart,
    only_a_live_worker_claims_39,
    a_freed_intent_is_claimed_to_be_resolved,
    concurrent_claims_never_share_a_row_56,
}

async fn oldest_due_is_taken_first_then_by_id_and_never_more_than_the_limit_44(bench: &Bench) {
    let worker = bench.worker("w").await;
    for (id, due) in [("b", 20), ("D", 10), ("a", 20), ("c", 10), ("z", 1)] {
        bench.free(&worker, id, T0 + due).await;
    }
    let two = ClaimOrder { limit: 2, ..order(&worker) };
    assert_eq!(bench.claim(&two).await, ["z", "D"]);
    assert_eq!(bench.claim(&two).await, ["c", "a"], "ids in byte order on every store");
    assert_eq!(bench.claim(&two).await, ["b"]);
    assert!(bench.claim(&two).await.is_empty());
    assert!(bench.claim(&ClaimOrder { limit: 0, ..order(&worker) }).await.is_empty());
}

async fn only_due_rows_of_listed_servers_are_taken_and_long_overdue_ones_of_any(bench: &Bench) {
    let worker = bench.worker("w").await;
    for (id, server, due) in [("1", "here", 0), ("2", "gone", 0), ("3", "here", 500), ("4", "gone", -900)] {
        let new = NewIntent { binding: binding(server), ..intent(&worker, id) };
        bench.store.insert_intent(&new).await.unwrap();
        let mut handle = handle(&worker, id, false);
        handle.next_due_at = T0 + due;
        bench.record(&handle).await;
    }
    let claim = ClaimOrder {
        servers: vec!["here".into(), "also".into()],
        due_before: T0 + 100,
        any_server_due_before: T0 - 800,
        ..order(&worker)
    };
    let full = ClaimOrder { servers: Vec::new(), known: vec!["here".into(), "gone".into()], ..claim.clone() };
    assert!(bench.claim(&full).await.is_empty(), "a server whose share is full is not any server");
    assert_eq!(bench.claim(&claim).await, ["4", "1"]);
    let nothing = ClaimOrder { servers: Vec::new(), any_server_due_before: 0, due_before: FAR, ..order(&worker) };
    assert!(bench.claim(&nothing).await.is_empty());
}

async fn rows_of_another_driver_are_taken_once_long_overdue_48(bench: &Bench) {
    let worker = bench.worker("w").await;
    bench.free(&worker, "t", T0).await;
    let known = ClaimOrder { known: vec!["server".into()], drivers: vec!["newer".into()], ..order(&worker) };
    assert!(bench.claim(&known).await.is_empty(), "left to those who have its driver");
    assert_eq!(bench.claim(&ClaimOrder { any_server_due_before: T0 + 1, ..known }).await, ["t"]);
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
    bench.free(&worker, "poll", T0).await;
    bench.free(&worker, "cancel", T0).await;
    let request = CancelRequest { id: "cancel".into(), user_id: None, thread_id: None };
    bench.store.request_cancel(&request, T0 + 7).await.unwrap();
    assert_eq!(bench.claim(&ClaimOrder { cancels: true, ..order(&worker) }).await, ["cancel"]);
    assert_eq!(bench.claim(&order(&worker)).await, ["poll"]);
}

async fn only_a_live_worker_claims_39(bench: &Bench) {
    let worker = bench.worker("w").await;
    bench.free(&worker, "t", T0).await;
    assert!(bench.claim(&order(&"never-registered".into())).await.is_empty());
    assert!(bench.store.mark_dead(&worker, &worker, None).await.unwrap());
    assert!(bench.claim(&order(&worker)).await.is_empty());
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
        claims.spawn(async move {
            let mut ids = Vec::new();
            loop {
                let taken = store.claim(&ClaimOrder { limit: 3, ..order(&worker) }).await.unwrap();
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
