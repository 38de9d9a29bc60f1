//! Cancel requests (BEHAVIOURS H).

use mcp_taskd_core::store::{Applied, CancelRequest, ClaimOrder, NewHandle, Recorded};
use mcp_taskd_core::task::Status;

use crate::bench::{Bench, FAR, T0, answered, behaviours, handle, order};

behaviours! {
    the_first_request_frees_the_row_and_makes_it_due_and_repeats_change_nothing_58,
    a_late_answer_after_a_request_is_stale_61,
    a_request_on_an_ended_task_returns_it_as_it_is_59,
    another_users_task_is_not_found_59,
    an_intent_only_remembers_the_request_and_its_handle_comes_out_due_as_a_cancel,
    make_due_frees_what_has_a_remote_id_158,
}

fn request(id: &str) -> CancelRequest {
    CancelRequest { id: id.into(), user_id: Some("user".into()), thread_id: Some("thread".into()) }
}

async fn the_first_request_frees_the_row_and_makes_it_due_and_repeats_change_nothing_58(bench: &Bench) {
    let worker = bench.worker("w").await;
    bench.held(&worker, "t").await;
    let first = bench.store.request_cancel(&request("t"), T0 + 10).await.unwrap().unwrap();
    assert_eq!((first.lease_owner.as_deref(), first.lease_epoch, first.next_due_at), (None, 3, T0 + 10));
    assert_eq!((first.cancel_requested_at, first.updated_at), (Some(T0 + 10), T0 + 10));
    assert_eq!((first.status, bench.kinds("t").await.len()), (Status::Submitted, 1));

    let cancels = ClaimOrder { cancels: true, ..order(&worker) };
    let claimed = bench.store.claim(&cancels).await.unwrap().remove(0);
    let again = bench.store.request_cancel(&request("t"), T0 + 20).await.unwrap().unwrap();
    assert_eq!(again.tracked, claimed, "the active cancel's lease stands");
    assert_eq!((again.lease_owner.as_deref(), again.cancel_requested_at), (Some("w"), Some(T0 + 10)));
}

async fn a_late_answer_after_a_request_is_stale_61(bench: &Bench) {
    let worker = bench.worker("w").await;
    let task = bench.held(&worker, "t").await;
    bench.store.request_cancel(&request("t"), T0 + 10).await.unwrap();
    let late = answered(&task, Status::Completed);
    assert_eq!(bench.store.apply(&worker, &[late]).await.unwrap(), [Applied::Stale]);
    assert_eq!(bench.get("t").await.status, Status::Submitted);
    assert!(bench.claim(&ClaimOrder { due_before: FAR, ..order(&worker) }).await.is_empty(), "polled no longer");
}

async fn a_request_on_an_ended_task_returns_it_as_it_is_59(bench: &Bench) {
    let worker = bench.worker("w").await;
    let task = bench.held(&worker, "t").await;
    bench.store.apply(&worker, &[answered(&task, Status::Failed)]).await.unwrap();
    let ended = bench.get("t").await;
    assert_eq!(bench.store.request_cancel(&request("t"), T0 + 10).await.unwrap(), Some(ended));
}

async fn another_users_task_is_not_found_59(bench: &Bench) {
    let worker = bench.worker("w").await;
    bench.held(&worker, "t").await;
    let others = [
        CancelRequest { user_id: Some("other".into()), ..request("t") },
        CancelRequest { thread_id: Some("other".into()), ..request("t") },
        request("missing"),
        request("nul\0"),
    ];
    for other in others {
        assert_eq!(bench.store.request_cancel(&other, T0).await.unwrap(), None);
    }
    assert_eq!(bench.get("t").await.cancel_requested_at, None);
    let unbound = CancelRequest { user_id: None, thread_id: None, ..request("t") };
    assert!(bench.store.request_cancel(&unbound, T0).await.unwrap().is_some());
}

async fn an_intent_only_remembers_the_request_and_its_handle_comes_out_due_as_a_cancel(bench: &Bench) {
    let worker = bench.worker("w").await;
    bench.intent(&worker, "t").await;
    let asked = bench.store.request_cancel(&request("t"), T0 + 10).await.unwrap().unwrap();
    assert_eq!((asked.lease_owner.as_deref(), asked.lease_epoch), (Some("w"), 1));
    assert_eq!((asked.next_due_at, asked.cancel_requested_at), (T0 + 45_000, Some(T0 + 10)));

    let recorded =
        bench.store.record_submitted(&NewHandle { at: T0 + 20, ..handle(&worker, "t", true) }).await.unwrap();
    let Recorded::Done { task, kept } = recorded else { panic!("{recorded:?}") };
    assert!(!kept, "freed for whoever cancels");
    assert_eq!((task.lease_epoch, task.next_due_at, task.status), (2, T0 + 20, Status::Submitted));
    assert_eq!(bench.claim(&ClaimOrder { cancels: true, ..order(&worker) }).await, ["t"]);
}

async fn make_due_frees_what_has_a_remote_id_158(bench: &Bench) {
    let worker = bench.worker("w").await;
    bench.held(&worker, "t").await;
    bench.intent(&worker, "intent").await;
    let due = bench.store.make_due("t", T0 + 77).await.unwrap().unwrap();
    assert_eq!((due.lease_owner.as_deref(), due.lease_epoch, due.next_due_at), (None, 3, T0 + 77));
    let untouched = bench.store.make_due("intent", T0 + 77).await.unwrap().unwrap();
    assert_eq!((untouched.lease_owner.as_deref(), untouched.lease_epoch), (Some("w"), 1));
    assert_eq!(bench.store.make_due("missing", T0).await.unwrap(), None);
}
