//! Guarded writes (BEHAVIOURS G; FAILURES 1–3, 12).

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::store::{Applied, Recorded, StoreErrorKind, TaskFilter, TaskWrite};
use mcp_taskd_core::task::schedule::Chance;
use mcp_taskd_core::task::{EventKind, Failure, FailureKind, Policy, Snapshot, Status};

use crate::bench::{Bench, T0, answered, behaviours, handle, intent, order, with_snapshot, write};

behaviours! {
    a_write_by_the_owner_at_its_epoch_takes_effect_and_bumps_the_epoch,
    stale_lease_cannot_overwrite_a_result_53_55,
    a_terminal_status_never_changes_and_tells_once,
    answers_come_in_the_order_given_and_events_for_changed_rows_only,
    of_writes_of_one_row_in_a_batch_the_one_at_its_epoch_takes_effect_and_tells_3,
    one_bad_write_refuses_the_batch_and_a_split_saves_the_others_34,
    releases_and_touches_are_nothing_that_the_user_sees,
    errors_are_kept_set_and_cleared_as_said,
    shuffled_batches_do_not_deadlock_12,
    an_outcome_is_kept_until_the_next_one,
    calls_cancelled_at_any_point_leave_a_usable_store_19,
}

async fn a_write_by_the_owner_at_its_epoch_takes_effect_and_bumps_the_epoch(bench: &Bench) {
    let worker = bench.worker("w").await;
    let mut task = bench.held(&worker, "t").await;
    let working = answered(&task, Status::Working);
    assert_eq!(bench.store.apply(&worker, std::slice::from_ref(&working)).await.unwrap(), [Applied::Done { epoch: 3 }]);
    task.applied(&working.change, 3);
    let record = bench.get("t").await;
    assert_eq!(record.tracked, task, "what is held is what is stored");
    assert_eq!((record.lease_owner.as_deref(), record.updated_at), (Some("w"), T0 + 2));
    assert_eq!(record.arguments, None, "cleared once the remote id was recorded");
    assert_eq!(bench.kinds("t").await, ["submitted", "working"]);
    assert!(bench.store.apply(&worker, &[]).await.unwrap().is_empty());
}

async fn stale_lease_cannot_overwrite_a_result_53_55(bench: &Bench) {
    let (worker, other) = (bench.worker("w").await, bench.worker("other").await);
    let task = bench.held(&worker, "t").await;
    let done = answered(&task, Status::Completed);
    let early = TaskWrite { epoch: task.lease_epoch - 1, ..done.clone() };
    let late = TaskWrite { epoch: task.lease_epoch + 1, ..done.clone() };
    let missing = TaskWrite { id: "missing".into(), ..done.clone() };
    for stale in [early, late, missing] {
        assert_eq!(bench.store.apply(&worker, &[stale]).await.unwrap(), [Applied::Stale]);
    }
    assert_eq!(bench.store.apply(&other, std::slice::from_ref(&done)).await.unwrap(), [Applied::Stale]);
    assert!(!bench.store.close_freed_intent(&done).await.unwrap(), "no freed intent");

    // Released and claimed again, even by the same worker, it is another lease.
    let released = write(&task, task.on_release(T0 + 2));
    assert_eq!(bench.store.apply(&worker, &[released]).await.unwrap(), [Applied::Done { epoch: 3 }]);
    assert_eq!(bench.claim(&order(&worker)).await, ["t"]);
    assert_eq!(bench.store.apply(&worker, &[done]).await.unwrap(), [Applied::Stale]);
    assert_eq!(bench.get("t").await.status, Status::Submitted);
    assert_eq!(bench.kinds("t").await, ["submitted"]);
}

async fn a_terminal_status_never_changes_and_tells_once(bench: &Bench) {
    let worker = bench.worker("w").await;
    let task = bench.held(&worker, "t").await;
    let writes: Vec<_> =
        [Status::Completed, Status::Failed, Status::Cancelled].map(|status| answered(&task, status)).into();
    // FAILURES 3: whoever comes first wins, and the others change nothing.
    let mut race = tokio::task::JoinSet::new();
    for write in writes {
        let (store, worker) = (bench.store.clone(), worker.clone());
        race.spawn(async move { (write.change.status, store.apply(&worker, &[write]).await.unwrap()[0]) });
    }
    let answers = race.join_all().await;
    let won: Vec<_> = answers.iter().filter(|(_, applied)| *applied != Applied::Stale).collect();
    assert_eq!(won.len(), 1, "{answers:?}");
    let record = bench.get("t").await;
    assert_eq!((record.status, record.lease_owner.clone()), (won[0].0, None));
    assert_eq!(record.completed_at, Some(T0 + 2));
    assert_eq!(bench.kinds("t").await, ["submitted", record.status.as_str()]);

    let again = TaskWrite { epoch: record.lease_epoch, ..answered(&task, Status::Failed) };
    assert_eq!(bench.store.apply(&worker, &[again]).await.unwrap(), [Applied::Stale]);
    assert_eq!(bench.store.make_due("t", T0).await.unwrap().unwrap(), record);
    assert!(bench.claim(&order(&worker)).await.is_empty());
}

async fn answers_come_in_the_order_given_and_events_for_changed_rows_only(bench: &Bench) {
    let worker = bench.worker("w").await;
    let (a, b, c) = (bench.held(&worker, "a").await, bench.held(&worker, "b").await, bench.held(&worker, "c").await);
    let stale = TaskWrite { epoch: 99, ..answered(&b, Status::Completed) };
    let mut twice = answered(&a, Status::Working);
    twice.change.events.push(EventKind::TrackingRecovered);
    let applied = bench.store.apply(&worker, &[answered(&c, Status::Failed), stale, twice]).await.unwrap();
    assert_eq!(applied, [Applied::Done { epoch: 3 }, Applied::Stale, Applied::Done { epoch: 3 }]);
    let events = bench.events(&TaskFilter::default()).await;
    let told: Vec<_> = events[3..].iter().map(|event| (event.task_id.as_str(), event.kind.as_str())).collect();
    assert_eq!(told, [("a", "working"), ("a", "tracking_recovered"), ("c", "failed")]);
    let last = events.last().unwrap();
    assert_eq!((last.user_id.as_str(), last.thread_id.as_str()), ("user", "thread"));
    assert_eq!((last.status.as_str(), last.created_at), ("failed", T0 + 2));
    assert!(events.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
}

/// A row that was freed and claimed again while the store was away has an older write still waiting in the same batch.
async fn of_writes_of_one_row_in_a_batch_the_one_at_its_epoch_takes_effect_and_tells_3(bench: &Bench) {
    let worker = bench.worker("w").await;
    for (id, newest_first) in [("a", false), ("b", true)] {
        let task = bench.held(&worker, id).await;
        let old = TaskWrite { epoch: task.lease_epoch - 1, ..answered(&task, Status::Failed) };
        let older = TaskWrite { epoch: task.lease_epoch - 2, ..answered(&task, Status::Completed) };
        let mut batch = vec![older, old, answered(&task, Status::Completed)];
        let mut expected = vec![Applied::Stale, Applied::Stale, Applied::Done { epoch: 3 }];
        if newest_first {
            (batch, expected) = (batch.into_iter().rev().collect(), expected.into_iter().rev().collect());
        }
        assert_eq!(bench.store.apply(&worker, &batch).await.unwrap(), expected);
        assert_eq!(bench.kinds(id).await, ["submitted", "completed"]);
        assert_eq!(bench.get(id).await.status, Status::Completed);
    }
}

async fn one_bad_write_refuses_the_batch_and_a_split_saves_the_others_34(bench: &Bench) {
    let worker = bench.worker("w").await;
    let (good, bad) = (bench.held(&worker, "good").await, bench.held(&worker, "bad").await);
    let long = with_snapshot(&bad, Snapshot::bare(Status::Failed));
    let good = answered(&good, Status::Working);
    for text in ["x".repeat(4_001), "nul\0".to_owned()] {
        let mut bad = long.clone();
        bad.change.outcome.as_mut().unwrap().0.error = Some(text);
        let error = bench.store.apply(&worker, &[good.clone(), bad]).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Data, "{error}");
    }
    assert_eq!(bench.get("good").await.status, Status::Submitted);
    assert_eq!(bench.store.apply(&worker, &[good]).await.unwrap(), [Applied::Done { epoch: 3 }]);
    let mut fits = long;
    fits.change.outcome.as_mut().unwrap().0.error = Some("é".repeat(4_000));
    assert_eq!(bench.store.apply(&worker, &[fits]).await.unwrap(), [Applied::Done { epoch: 3 }], "characters count");
}

async fn releases_and_touches_are_nothing_that_the_user_sees(bench: &Bench) {
    let worker = bench.worker("w").await;
    let mut task = bench.held(&worker, "t").await;
    task.unchanged(T0 + 9_000, T0 + 3);
    let touch = write(&task, task.on_touch(T0 + 4));
    assert_eq!(bench.store.apply(&worker, &[touch]).await.unwrap(), [Applied::Done { epoch: 3 }]);
    let record = bench.get("t").await;
    assert_eq!((record.poll_attempt_count, record.last_polled_at), (1, Some(T0 + 3)));
    assert_eq!((record.next_due_at, record.updated_at), (T0 + 9_000, T0 + 1));
    assert_eq!(record.lease_owner.as_deref(), Some("w"));
    task.lease_epoch = 3;
    let release = write(&task, task.on_release(T0 + 5));
    assert_eq!(bench.store.apply(&worker, &[release]).await.unwrap(), [Applied::Done { epoch: 4 }]);
    let record = bench.get("t").await;
    assert_eq!((record.lease_owner.clone(), record.updated_at), (None, T0 + 1));
    assert_eq!(bench.kinds("t").await, ["submitted"]);
}

async fn errors_are_kept_set_and_cleared_as_said(bench: &Bench) {
    let worker = bench.worker("w").await;
    let mut task = bench.held(&worker, "t").await;
    let policy = Policy::default();
    let failure = Failure::new(FailureKind::Timeout, "slow");
    let mut change = task.on_error(&failure, T0 + 2, &policy, Chance::NONE);
    change.last_cancel_error = Some(Some("refused".into()));
    bench.store.apply(&worker, &[write(&task, change.clone())]).await.unwrap();
    task.applied(&change, 3);
    let touch = task.on_touch(T0 + 3);
    bench.store.apply(&worker, &[write(&task, touch)]).await.unwrap();
    let record = bench.get("t").await;
    assert_eq!(record.last_poll_error.as_deref(), Some("slow"));
    assert_eq!(record.last_cancel_error.as_deref(), Some("refused"));
    assert_eq!((record.consecutive_poll_error_count, record.updated_at), (1, T0 + 2));
    task.lease_epoch = 4;
    let mut clear = task.on_touch(T0 + 4);
    clear.last_poll_error = Some(None);
    bench.store.apply(&worker, &[write(&task, clear)]).await.unwrap();
    let record = bench.get("t").await;
    assert_eq!((record.last_poll_error.clone(), record.updated_at), (None, T0 + 4));
    assert_eq!(record.last_cancel_error.as_deref(), Some("refused"));
}

async fn shuffled_batches_do_not_deadlock_12(bench: &Bench) {
    const TASKS: usize = 200;
    const WRITERS: usize = 6;
    const ROUNDS: usize = 8;
    let worker = bench.worker("w").await;
    let mut held = Vec::new();
    for index in 0..TASKS {
        held.push(bench.held(&worker, &format!("t{index:03}")).await);
    }
    let round = Arc::new(tokio::sync::Barrier::new(WRITERS));
    let mut race = tokio::task::JoinSet::new();
    for seed in 0..WRITERS as u64 {
        let (store, worker, round, mut tasks) = (bench.store.clone(), worker.clone(), round.clone(), held.clone());
        race.spawn(async move {
            let mut lots = fastrand::Rng::with_seed(seed);
            let mut done = 0;
            for _ in 0..ROUNDS {
                // All write all rows at the epoch they have: one of them wins each row.
                lots.shuffle(&mut tasks);
                let writes: Vec<_> = tasks.iter().map(|task| write(task, task.on_touch(T0 + 5))).collect();
                round.wait().await;
                let applied = store.apply(&worker, &writes).await.expect("no deadlock");
                for (task, applied) in tasks.iter_mut().zip(applied) {
                    task.lease_epoch += 1;
                    if applied != Applied::Stale {
                        assert_eq!(applied, Applied::Done { epoch: task.lease_epoch });
                        done += 1;
                    }
                }
            }
            done
        });
    }
    let done: usize = race.join_all().await.into_iter().sum();
    assert_eq!(done, TASKS * ROUNDS, "each row was written once a round");
    // A deadlock would have been tried again unseen.
    if bench.database.is_some() {
        assert!(!mcp_taskd_tests::postgres::server().log().contains("deadlock detected"));
    }
}

async fn an_outcome_is_kept_until_the_next_one(bench: &Bench) {
    let worker = bench.worker("w").await;
    let mut task = bench.held(&worker, "t").await;
    let mut asked = Snapshot::bare(Status::InputRequired);
    asked.outcome.input_required = Some(mcp_taskd_core::task::Json::parse(r#"{"q":"why"}"#).unwrap());
    let asked = with_snapshot(&task, asked);
    bench.store.apply(&worker, std::slice::from_ref(&asked)).await.unwrap();
    task.applied(&asked.change, 3);
    let failure = Failure::new(FailureKind::Transport, "gone");
    let failed = task.on_error(&failure, T0 + 3, &Policy::default(), Chance::NONE);
    bench.store.apply(&worker, &[write(&task, failed)]).await.unwrap();
    let record = bench.get("t").await;
    assert_eq!(record.outcome, asked.change.outcome.clone().unwrap().0);
    assert_eq!(record.event_fingerprint.as_deref(), asked.change.event_fingerprint.as_deref());
    task = record.tracked;
    let working = answered(&task, Status::Working);
    bench.store.apply(&worker, &[working]).await.unwrap();
    assert_eq!(bench.get("t").await.outcome.input_required, None);
}

async fn calls_cancelled_at_any_point_leave_a_usable_store_19(bench: &Bench) {
    let worker = bench.worker("w").await;
    let mut lots = fastrand::Rng::with_seed(19);
    let mut acknowledged = Vec::new();
    for index in 0..120 {
        let (store, worker, id) = (bench.store.clone(), worker.clone(), format!("t{index}"));
        let call = tokio::spawn(async move {
            store.insert_intent(&intent(&worker, &id)).await.expect("inserts");
            let recorded = store.record_submitted(&handle(&worker, &id, true)).await.expect("records");
            let Recorded::Done { task, .. } = recorded else { panic!("{recorded:?}") };
            store.apply(&worker, &[answered(&task, Status::Completed)]).await.expect("applies");
            id
        });
        tokio::time::sleep(Duration::from_micros(lots.u64(0..6_000))).await;
        call.abort();
        acknowledged.extend(call.await.ok());
    }
    // Whatever was cut off was done as a whole or not at all, and nothing is left locked.
    for owned in bench.store.owned(&worker).await.unwrap() {
        let record = bench.get(&owned.id).await;
        let expected: &[&str] = if record.status == Status::Submitting { &[] } else { &["submitted"] };
        assert_eq!(bench.kinds(&owned.id).await, expected);
        let release = write(&record.tracked, record.on_release(T0 + 9));
        let applied = bench.store.apply(&worker, &[release]).await.unwrap();
        assert_eq!(applied, [Applied::Done { epoch: owned.epoch + 1 }]);
    }
    for id in acknowledged {
        assert_eq!(bench.kinds(&id).await, ["submitted", "completed"]);
    }
}
