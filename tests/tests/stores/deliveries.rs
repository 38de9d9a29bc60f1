//! Deliveries of events to sinks (BEHAVIOURS 64–70, DESIGN's leases).

use std::sync::Arc;

use mcp_taskd_core::store::{
    Backlog, Delivery, DeliveryOrder, DeliveryState, EnrolTimes, Enrolment, EventRecord, Mending, Settlement,
    StoreErrorKind, TaskFilter, WorkerId,
};
use mcp_taskd_core::task::Status;

use crate::bench::{Bench, T0, answered, behaviours};

behaviours! {
    a_new_sink_begins_behind_the_newest_event_and_an_old_one_where_it_was,
    events_are_enrolled_once_however_often_they_are_read,
    a_newer_event_is_nothing_to_a_delivery_under_way_and_follows_it_65,
    a_newer_event_resurrects_a_dead_letter_with_a_fresh_budget_68,
    a_newer_event_cuts_a_retrys_wait_short_but_does_not_ask_at_once,
    only_a_live_worker_claims_oldest_due_first_and_what_is_due,
    two_workers_never_claim_the_same_delivery,
    a_late_settlement_by_a_former_owner_changes_nothing_3,
    deliveries_of_a_dead_worker_are_free_once_its_row_is_gone_40,
    what_a_worker_owns_and_does_not_have_is_freed_38,
    what_is_due_absurdly_late_is_due_now_6,
    deliveries_go_with_their_task,
    a_replay_makes_what_has_ended_pending_and_leaves_what_is_under_way,
    what_waits_is_counted_up_to_a_bound,
    an_error_beyond_its_column_is_refused,
}

const SINK: &str = "hook";
const TIMES: EnrolTimes = EnrolTimes { at: T0, soon: T0 + 5_000 };

impl Bench {
    async fn events_of(&self, task: &str) -> Vec<EventRecord> {
        self.events(&TaskFilter { named: Some(task.to_owned()), ..TaskFilter::default() }).await
    }

    /// Enrols a task's newest event.
    async fn enrolled(&self, task: &str) -> i64 {
        let event = self.events_of(task).await.pop().expect("an event");
        self.deliveries.open_sink(SINK).await.unwrap();
        self.deliveries.enrol(SINK, &[Enrolment::from(&event)], TIMES, event.sequence).await.unwrap();
        event.sequence
    }

    async fn delivery(&self, task: &str) -> Delivery {
        let all = self.deliveries.deliveries_of(task).await.unwrap();
        all.into_iter().find(|delivery| delivery.sink == SINK).expect("a delivery")
    }

    async fn claim_one(&self, worker: &WorkerId) -> Delivery {
        self.deliveries.claim_deliveries(&all(worker)).await.unwrap().pop().expect("a delivery that is due")
    }

    async fn settle(&self, worker: &WorkerId, settlement: &Settlement) -> Option<DeliveryState> {
        self.deliveries.settle_delivery(worker, settlement).await.unwrap()
    }
}

fn all(worker: &WorkerId) -> DeliveryOrder {
    DeliveryOrder { worker: worker.clone(), sink: SINK.into(), due_before: T0 + 60_000, limit: 100 }
}

fn settled(delivery: &Delivery, state: DeliveryState) -> Settlement {
    let failed = state != DeliveryState::Delivered;
    Settlement {
        task_id: delivery.task_id.clone(),
        sink: delivery.sink.clone(),
        epoch: delivery.lease_epoch,
        sequence: delivery.sequence,
        state,
        attempt_count: delivery.attempt_count + 1,
        failure_count: delivery.failure_count + i64::from(failed),
        error: failed.then(|| "HTTP 500".to_owned()),
        next_due_at: T0 + if failed { 30_000 } else { 10 },
        at: T0 + 10,
    }
}

async fn a_new_sink_begins_behind_the_newest_event_and_an_old_one_where_it_was(bench: &Bench) {
    let worker = bench.worker("w").await;
    assert_eq!(bench.deliveries.open_sink("first").await.unwrap(), 0);
    bench.held(&worker, "t").await;
    let sequence = bench.events_of("t").await[0].sequence;
    assert_eq!(bench.deliveries.open_sink("second").await.unwrap(), sequence, "it hears of what comes");
    assert_eq!(bench.deliveries.open_sink("first").await.unwrap(), 0, "it loses nothing while nobody had it");
    bench.deliveries.enrol("first", &[], TIMES, sequence).await.unwrap();
    bench.deliveries.enrol("first", &[], TIMES, sequence - 1).await.unwrap();
    assert_eq!(bench.deliveries.open_sink("first").await.unwrap(), sequence, "a slower replica turns nothing back");
}

async fn events_are_enrolled_once_however_often_they_are_read(bench: &Bench) {
    let worker = bench.worker("w").await;
    for id in ["a", "b"] {
        bench.held(&worker, id).await;
    }
    let first = bench.deliveries.events_between(0, i64::MAX, 1).await.unwrap();
    assert_eq!(first.len(), 1);
    let second = bench.deliveries.events_between(first[0].sequence, i64::MAX, 10).await.unwrap();
    assert_eq!((second.len(), &*second[0].task_id), (1, "b"));
    let between = bench.deliveries.events_between(first[0].sequence, second[0].sequence, 10).await.unwrap();
    assert!(between.is_empty(), "both ends are excluded");
    let mut events: Vec<Enrolment> = first.iter().chain(&second).map(Enrolment::from).collect();
    events.push(Enrolment { task_id: "gone".into(), ..events[0].clone() });
    bench.deliveries.open_sink(SINK).await.unwrap();
    assert_eq!(bench.deliveries.enrol(SINK, &events, TIMES, 2).await.unwrap(), 2, "a task that is gone has none");
    assert_eq!(bench.deliveries.enrol(SINK, &events, TIMES, 2).await.unwrap(), 0);
    assert_eq!(bench.deliveries.enrol("other", &events, TIMES, 2).await.unwrap(), 2, "each sink has its own");
    let row = bench.delivery("a").await;
    assert_eq!((row.state, row.sequence, &*row.kind), (DeliveryState::Pending, first[0].sequence, "submitted"));
    assert_eq!((row.next_due_at, row.attempt_count, row.lease_owner), (T0, 0, None));
    let claimed = bench.claim_one(&worker).await;
    assert_eq!(
        bench.settle(&worker, &settled(&claimed, DeliveryState::Delivered)).await,
        Some(DeliveryState::Delivered)
    );
    assert_eq!(bench.deliveries.enrol(SINK, &events, TIMES, 2).await.unwrap(), 0, "what was delivered stays so");
    assert_eq!(bench.delivery(&claimed.task_id).await.ended_at, Some(T0 + 10));
}

async fn a_newer_event_is_nothing_to_a_delivery_under_way_and_follows_it_65(bench: &Bench) {
    let worker = bench.worker("w").await;
    let task = bench.held(&worker, "t").await;
    let first = bench.enrolled("t").await;
    let under_way = bench.claim_one(&worker).await;
    assert_eq!((under_way.sequence, under_way.lease_epoch), (first, 1));
    bench.store.apply(&worker, &[answered(&task, Status::Completed)]).await.unwrap();
    let second = bench.enrolled("t").await;
    let row = bench.delivery("t").await;
    assert_eq!((row.sequence, row.lease_owner.as_deref(), row.lease_epoch), (second, Some("w"), 1));
    assert!(bench.deliveries.claim_deliveries(&all(&worker)).await.unwrap().is_empty());
    // Whatever became of the earlier one, the later is pending.
    for state in [DeliveryState::DeadLetter, DeliveryState::Delivered] {
        let settlement = Settlement { sequence: first, ..settled(&bench.delivery("t").await, state) };
        assert_eq!(bench.settle(&worker, &settlement).await, Some(DeliveryState::Pending), "{state:?}");
        let row = bench.delivery("t").await;
        assert_eq!((row.attempt_count, row.failure_count, row.last_error, row.ended_at), (0, 0, None, None));
        assert_eq!((&*row.kind, &*row.status, row.next_due_at), ("completed", "completed", settlement.next_due_at));
        assert_eq!(bench.claim_one(&worker).await.sequence, second);
    }
    let last = bench.delivery("t").await;
    assert_eq!(bench.settle(&worker, &settled(&last, DeliveryState::Delivered)).await, Some(DeliveryState::Delivered));
}

async fn a_newer_event_resurrects_a_dead_letter_with_a_fresh_budget_68(bench: &Bench) {
    let worker = bench.worker("w").await;
    let task = bench.held(&worker, "t").await;
    bench.enrolled("t").await;
    let claimed = bench.claim_one(&worker).await;
    let dead = Settlement { failure_count: 5, attempt_count: 7, ..settled(&claimed, DeliveryState::DeadLetter) };
    assert_eq!(bench.settle(&worker, &dead).await, Some(DeliveryState::DeadLetter));
    let row = bench.delivery("t").await;
    assert_eq!((row.state, row.failure_count, row.attempt_count), (DeliveryState::DeadLetter, 5, 7));
    assert_eq!((row.last_error.as_deref(), row.lease_owner), (Some("HTTP 500"), None));
    assert!(bench.deliveries.claim_deliveries(&all(&worker)).await.unwrap().is_empty(), "nobody tries it again");
    bench.store.apply(&worker, &[answered(&task, Status::Failed)]).await.unwrap();
    bench.enrolled("t").await;
    let row = bench.claim_one(&worker).await;
    assert_eq!((row.state, row.failure_count, row.attempt_count), (DeliveryState::Pending, 0, 0));
    assert_eq!((&*row.kind, row.next_due_at), ("failed", T0));
}

async fn a_newer_event_cuts_a_retrys_wait_short_but_does_not_ask_at_once(bench: &Bench) {
    let worker = bench.worker("w").await;
    let task = bench.held(&worker, "t").await;
    bench.enrolled("t").await;
    let claimed = bench.claim_one(&worker).await;
    assert_eq!(bench.settle(&worker, &settled(&claimed, DeliveryState::Retry)).await, Some(DeliveryState::Retry));
    let row = bench.delivery("t").await;
    assert_eq!((row.state, row.next_due_at, row.ended_at), (DeliveryState::Retry, T0 + 30_000, None));
    bench.store.apply(&worker, &[answered(&task, Status::Completed)]).await.unwrap();
    bench.enrolled("t").await;
    let row = bench.delivery("t").await;
    assert_eq!((row.state, row.failure_count, row.next_due_at), (DeliveryState::Pending, 0, TIMES.soon));
}

async fn only_a_live_worker_claims_oldest_due_first_and_what_is_due(bench: &Bench) {
    let (worker, dead) = (bench.worker("w").await, bench.worker("d").await);
    bench.store.mark_dead(&worker, &dead, None).await.unwrap();
    bench.deliveries.open_sink(SINK).await.unwrap();
    for (id, at) in [("b", T0 + 2), ("a", T0 + 2), ("c", T0 + 1), ("later", T0 + 90_000)] {
        bench.held(&worker, id).await;
        let event = Enrolment::from(&bench.events_of(id).await[0]);
        bench.deliveries.enrol(SINK, &[event], EnrolTimes { at, soon: at }, 0).await.unwrap();
    }
    for nobody in [&dead, &"nobody".into()] {
        assert!(bench.deliveries.claim_deliveries(&all(nobody)).await.unwrap().is_empty());
    }
    let other = DeliveryOrder { sink: "other".into(), ..all(&worker) };
    assert!(bench.deliveries.claim_deliveries(&other).await.unwrap().is_empty());
    let ids = async |order: &DeliveryOrder| {
        let claimed = bench.deliveries.claim_deliveries(order).await.unwrap();
        claimed.iter().map(|delivery| delivery.task_id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&DeliveryOrder { limit: 2, ..all(&worker) }).await, ["c", "a"]);
    assert_eq!(ids(&all(&worker)).await, ["b"], "each once, and none before its time");
}

async fn two_workers_never_claim_the_same_delivery(bench: &Bench) {
    let workers = [bench.worker("w0").await, bench.worker("w1").await];
    for index in 0..40 {
        bench.held(&workers[0], &format!("t{index}")).await;
        bench.enrolled(&format!("t{index}")).await;
    }
    let orders = workers.each_ref().map(|worker| DeliveryOrder { limit: 5, ..all(worker) });
    let mut claimed = Vec::new();
    loop {
        let (one, other) =
            tokio::join!(bench.deliveries.claim_deliveries(&orders[0]), bench.deliveries.claim_deliveries(&orders[1]));
        let both = [one.unwrap(), other.unwrap()].concat();
        if both.is_empty() {
            break;
        }
        claimed.extend(both.into_iter().map(|delivery| delivery.task_id));
    }
    assert_eq!(claimed.len(), 40);
    claimed.sort();
    claimed.dedup();
    assert_eq!(claimed.len(), 40);
}

async fn a_late_settlement_by_a_former_owner_changes_nothing_3(bench: &Bench) {
    let (first, second) = (bench.worker("w0").await, bench.worker("w1").await);
    bench.held(&first, "t").await;
    bench.enrolled("t").await;
    let early = bench.claim_one(&first).await;
    let mending = Mending { worker: first.clone(), sink: SINK.into(), keep: Vec::new(), at: T0 };
    assert_eq!(bench.deliveries.mend_deliveries(&mending).await.unwrap(), 1);
    let late = bench.claim_one(&second).await;
    assert!(late.lease_epoch > early.lease_epoch);
    assert_eq!(bench.settle(&first, &settled(&early, DeliveryState::DeadLetter)).await, None);
    let borrowed = Settlement { epoch: early.lease_epoch, ..settled(&late, DeliveryState::DeadLetter) };
    assert_eq!(bench.settle(&second, &borrowed).await, None, "the epoch of another lease");
    assert_eq!(bench.settle(&second, &settled(&late, DeliveryState::Delivered)).await, Some(DeliveryState::Delivered));
    assert_eq!(bench.settle(&second, &settled(&late, DeliveryState::Retry)).await, None, "repeated, it is nothing");
    assert_eq!(bench.delivery("t").await.state, DeliveryState::Delivered);
}

async fn deliveries_of_a_dead_worker_are_free_once_its_row_is_gone_40(bench: &Bench) {
    let (live, dead) = (bench.worker("live").await, bench.worker("dead").await);
    bench.held(&live, "t").await;
    bench.enrolled("t").await;
    let lost = bench.claim_one(&dead).await;
    bench.store.mark_dead(&live, &dead, None).await.unwrap();
    assert_eq!(bench.store.delete_dead().await.unwrap(), 1, "no task names it");
    assert_eq!(bench.delivery("t").await.lease_owner, None);
    assert_eq!(bench.settle(&dead, &settled(&lost, DeliveryState::DeadLetter)).await, None, "it came too late");
    let again = bench.claim_one(&live).await;
    assert_eq!((again.sequence, again.lease_epoch), (lost.sequence, lost.lease_epoch + 1));
}

async fn what_a_worker_owns_and_does_not_have_is_freed_38(bench: &Bench) {
    let (worker, other) = (bench.worker("w").await, bench.worker("o").await);
    for id in ["kept", "lost", "others"] {
        bench.held(&worker, id).await;
        bench.enrolled(id).await;
    }
    let owner = |id: &str| if id == "others" { &other } else { &worker };
    for id in ["kept", "lost", "others"] {
        let claimed = bench.deliveries.claim_deliveries(&DeliveryOrder { limit: 1, ..all(owner(id)) }).await.unwrap();
        assert_eq!(&*claimed[0].task_id, id);
    }
    let keep = vec![Arc::from("kept")];
    let mending = Mending { worker: worker.clone(), sink: SINK.into(), keep, at: T0 };
    assert_eq!(bench.deliveries.mend_deliveries(&mending).await.unwrap(), 1);
    assert_eq!(bench.deliveries.mend_deliveries(&mending).await.unwrap(), 0);
    assert_eq!(bench.claim_one(&worker).await.task_id, "lost".into());
    assert_eq!(bench.delivery("others").await.lease_owner, Some(other));
}

async fn what_is_due_absurdly_late_is_due_now_6(bench: &Bench) {
    let worker = bench.worker("w").await;
    for id in ["far", "near"] {
        bench.held(&worker, id).await;
        bench.enrolled(id).await;
    }
    for claimed in bench.deliveries.claim_deliveries(&all(&worker)).await.unwrap() {
        let next_due_at = if &*claimed.task_id == "far" { 10_413_792_000_000 } else { T0 + 86_400_000 };
        let retry = Settlement { next_due_at, ..settled(&claimed, DeliveryState::Retry) };
        bench.settle(&worker, &retry).await.unwrap();
    }
    let mending = Mending { worker: worker.clone(), sink: SINK.into(), keep: Vec::new(), at: T0 + 20 };
    assert_eq!(bench.deliveries.mend_deliveries(&mending).await.unwrap(), 1);
    assert_eq!(bench.delivery("far").await.next_due_at, T0 + 20);
    assert_eq!(bench.delivery("near").await.next_due_at, T0 + 86_400_000);
}

async fn deliveries_go_with_their_task(bench: &Bench) {
    let worker = bench.worker("w").await;
    for id in ["ended", "active"] {
        let task = bench.held(&worker, id).await;
        if id == "ended" {
            bench.store.apply(&worker, &[answered(&task, Status::Completed)]).await.unwrap();
        }
        bench.enrolled(id).await;
    }
    assert_eq!(bench.store.prune(T0 + 1_000, 100).await.unwrap(), 1);
    assert!(bench.deliveries.deliveries_of("ended").await.unwrap().is_empty());
    assert_eq!(bench.deliveries.deliveries_of("active").await.unwrap().len(), 1);
    let claimed = bench.deliveries.claim_deliveries(&all(&worker)).await.unwrap();
    assert_eq!(claimed.len(), 1);
}

async fn a_replay_makes_what_has_ended_pending_and_leaves_what_is_under_way(bench: &Bench) {
    let worker = bench.worker("w").await;
    let mut events = Vec::new();
    for (id, state) in [("delivered", DeliveryState::Delivered), ("dead", DeliveryState::DeadLetter)] {
        bench.held(&worker, id).await;
        bench.enrolled(id).await;
        let claimed = bench.claim_one(&worker).await;
        bench.settle(&worker, &settled(&claimed, state)).await.unwrap();
        events.push(Enrolment::from(&bench.events_of(id).await[0]));
    }
    bench.held(&worker, "under way").await;
    bench.enrolled("under way").await;
    let under_way = bench.claim_one(&worker).await;
    bench.held(&worker, "unheard").await;
    for id in ["under way", "unheard"] {
        events.push(Enrolment::from(&bench.events_of(id).await[0]));
    }
    events.push(Enrolment { task_id: "gone".into(), ..events[0].clone() });
    assert_eq!(bench.deliveries.replay(SINK, &events, TIMES).await.unwrap(), 3);
    for id in ["delivered", "dead", "unheard"] {
        let row = bench.delivery(id).await;
        assert_eq!(
            (row.state, row.attempt_count, row.ended_at, row.next_due_at),
            (DeliveryState::Pending, 0, None, T0)
        );
    }
    assert_eq!(bench.delivery("under way").await, under_way);
    assert_eq!(bench.deliveries.replay(SINK, &events, TIMES).await.unwrap(), 0, "all of them wait already");
    assert_eq!(bench.deliveries.claim_deliveries(&all(&worker)).await.unwrap().len(), 3);
}

async fn what_waits_is_counted_up_to_a_bound(bench: &Bench) {
    let worker = bench.worker("w").await;
    for id in ["a", "b", "c"] {
        bench.held(&worker, id).await;
        bench.enrolled(id).await;
    }
    let claimed = bench.deliveries.claim_deliveries(&DeliveryOrder { limit: 1, ..all(&worker) }).await.unwrap();
    let sinks = [SINK.to_owned(), "idle".to_owned()];
    let counted = |pending, cap| async move {
        let expected = [
            Backlog { sink: SINK.into(), pending, oldest_at: Some(T0 + 1) },
            Backlog { sink: "idle".into(), pending: 0, oldest_at: None },
        ];
        let mut backlog = bench.deliveries.backlog(&[SINK.to_owned(), "idle".to_owned()], cap).await.unwrap();
        backlog.sort_by(|a, b| a.sink.cmp(&b.sink));
        assert_eq!(backlog, expected);
    };
    counted(3, 100).await;
    counted(2, 2).await;
    bench.settle(&worker, &settled(&claimed[0], DeliveryState::Delivered)).await.unwrap();
    counted(2, 100).await;
    assert_eq!(bench.deliveries.backlog(&sinks[1..], 10).await.unwrap().len(), 1);
}

async fn an_error_beyond_its_column_is_refused(bench: &Bench) {
    let worker = bench.worker("w").await;
    bench.held(&worker, "t").await;
    bench.enrolled("t").await;
    let claimed = bench.claim_one(&worker).await;
    let long = Settlement { error: Some("e".repeat(4_001)), ..settled(&claimed, DeliveryState::Retry) };
    let refused = bench.deliveries.settle_delivery(&worker, &long).await.unwrap_err();
    assert_eq!(refused.kind, StoreErrorKind::Data);
    let fits = Settlement { error: Some("e".repeat(4_000)), ..long };
    assert_eq!(bench.settle(&worker, &fits).await, Some(DeliveryState::Retry));
}
