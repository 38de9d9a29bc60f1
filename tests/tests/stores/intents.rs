//! Submits (BEHAVIOURS E; FAILURES 32, 33, 41).

use mcp_taskd_core::store::{Inserted, NewHandle, NewIntent, Recorded, StoreErrorKind, TaskWrite, WorkerId};
use mcp_taskd_core::task::Status;

use crate::bench::{Bench, T0, behaviours, binding, handle, intent, write};

behaviours! {
    an_intent_is_durable_before_the_call_and_its_handle_makes_it_a_task_40,
    the_same_key_finds_the_first_row_155,
    concurrent_submits_under_one_key_make_one_row_137,
    the_same_remote_id_twice_is_a_duplicate_and_nothing_else_41,
    a_handle_of_a_lost_intent_is_stale_41,
    a_discarded_intent_frees_its_key,
    a_freed_intent_is_closed_once_and_only_without_a_remote_id_145,
    ids_are_bounded_in_characters_23,
}

fn keyed(worker: &WorkerId, id: &str, key: &str) -> NewIntent {
    NewIntent { idempotency_key: Some(key.into()), body_hash: Some("hash".into()), ..intent(worker, id) }
}

async fn an_intent_is_durable_before_the_call_and_its_handle_makes_it_a_task_40(bench: &Bench) {
    let worker = bench.worker("w").await;
    let new = keyed(&worker, "t", "key");
    assert_eq!(bench.store.insert_intent(&new).await.unwrap(), Inserted::New { epoch: 1 });
    let row = bench.get("t").await;
    assert_eq!((row.status, row.remote_task_id.as_deref()), (Status::Submitting, None));
    assert_eq!((row.lease_owner.as_deref(), row.lease_epoch), (Some("w"), 1));
    assert_eq!((row.arguments.clone(), row.binding.clone()), (new.arguments.clone(), new.binding.clone()));
    assert_eq!((row.run_id.as_deref(), row.tool_call_id.as_deref()), (Some("run"), Some("call")));
    assert_eq!((row.idempotency_key.as_deref(), row.body_hash.as_deref()), (Some("key"), Some("hash")));
    assert_eq!((row.created_at, row.updated_at, row.next_due_at), (T0, T0, T0 + 45_000));
    assert!(bench.kinds("t").await.is_empty());
    assert!(!bench.store.is_tracked("server", "remote-t").await.unwrap());

    let task = bench.record(&handle(&worker, "t", true)).await;
    let row = bench.get("t").await;
    assert_eq!((row.tracked.clone(), row.lease_owner.as_deref()), (task.clone(), Some("w")));
    assert_eq!((task.status, task.lease_epoch, task.next_due_at), (Status::Submitted, 2, T0 + 5_000));
    assert_eq!((row.arguments.clone(), row.updated_at), (None, T0 + 1));
    assert_eq!(bench.kinds("t").await, ["submitted"]);
    assert!(bench.store.is_tracked("server", "remote-t").await.unwrap());
    assert!(!bench.store.is_tracked("another", "remote-t").await.unwrap());
}

async fn the_same_key_finds_the_first_row_155(bench: &Bench) {
    let worker = bench.worker("w").await;
    bench.store.insert_intent(&keyed(&worker, "first", "key")).await.unwrap();
    let again = bench.store.insert_intent(&keyed(&worker, "second", "key")).await.unwrap();
    assert_eq!(again, Inserted::Existing(Box::new(bench.get("first").await)));
    let elsewhere = NewIntent { thread_id: "another".into(), ..keyed(&worker, "third", "key") };
    assert_eq!(bench.store.insert_intent(&elsewhere).await.unwrap(), Inserted::New { epoch: 1 });
    let someone = NewIntent { user_id: "another".into(), ..keyed(&worker, "fourth", "key") };
    assert_eq!(bench.store.insert_intent(&someone).await.unwrap(), Inserted::New { epoch: 1 });
    for id in ["fifth", "sixth"] {
        bench.intent(&worker, id).await;
    }
}

async fn concurrent_submits_under_one_key_make_one_row_137(bench: &Bench) {
    let worker = bench.worker("w").await;
    let mut race = tokio::task::JoinSet::new();
    for index in 0..8 {
        let (store, new) = (bench.store.clone(), keyed(&worker, &format!("t{index}"), "key"));
        race.spawn(async move { store.insert_intent(&new).await.unwrap() });
    }
    let answers = race.join_all().await;
    let new = answers.iter().filter(|inserted| matches!(inserted, Inserted::New { .. })).count();
    assert_eq!(new, 1, "{answers:?}");
    assert!(!answers.contains(&Inserted::NotLive));
}

async fn the_same_remote_id_twice_is_a_duplicate_and_nothing_else_41(bench: &Bench) {
    let worker = bench.worker("w").await;
    bench.held(&worker, "first").await;
    bench.intent(&worker, "second").await;
    let same = NewHandle { remote_task_id: "remote-first".into(), ..handle(&worker, "second", true) };
    assert_eq!(bench.store.record_submitted(&same).await.unwrap(), Recorded::Duplicate);
    let row = bench.get("second").await;
    assert_eq!((row.status, row.lease_epoch), (Status::Submitting, 1), "it can be closed still");
    assert!(bench.kinds("second").await.is_empty());

    // Another user, or another server, may have the same remote id.
    let someone = NewIntent { user_id: "another".into(), ..intent(&worker, "third") };
    let elsewhere = NewIntent { binding: binding("elsewhere"), ..intent(&worker, "fourth") };
    for new in [someone, elsewhere] {
        bench.store.insert_intent(&new).await.unwrap();
        let same = NewHandle { remote_task_id: "remote-first".into(), ..handle(&worker, &new.id, true) };
        bench.record(&same).await;
    }
    // Other integrity errors are no duplicates.
    let error = bench.store.insert_intent(&intent(&worker, "first")).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Data, "{error}");
}

async fn a_handle_of_a_lost_intent_is_stale_41(bench: &Bench) {
    let (worker, other) = (bench.worker("w").await, bench.worker("other").await);
    bench.intent(&worker, "t").await;
    let stale = [
        NewHandle { epoch: 2, ..handle(&worker, "t", true) },
        handle(&other, "t", true),
        handle(&worker, "missing", true),
    ];
    for handle in stale {
        assert_eq!(bench.store.record_submitted(&handle).await.unwrap(), Recorded::Stale);
    }
    // A late record goes through while the dead worker's row is not yet freed, and no longer after.
    bench.store.mark_dead(&other, &worker, None).await.unwrap();
    bench.record(&handle(&worker, "t", true)).await;
    assert_eq!(bench.store.record_submitted(&handle(&worker, "t", true)).await.unwrap(), Recorded::Stale);
}

async fn a_discarded_intent_frees_its_key(bench: &Bench) {
    let worker = bench.worker("w").await;
    bench.store.insert_intent(&keyed(&worker, "t", "key")).await.unwrap();
    assert!(!bench.store.discard_intent(&worker, "t", 2).await.unwrap());
    assert!(!bench.store.discard_intent(&"other".into(), "t", 1).await.unwrap());
    assert!(bench.store.discard_intent(&worker, "t", 1).await.unwrap());
    assert_eq!(bench.store.find_task("t", None, None).await.unwrap(), None);
    assert_eq!(bench.store.insert_intent(&keyed(&worker, "u", "key")).await.unwrap(), Inserted::New { epoch: 1 });
    bench.held(&worker, "v").await;
    assert!(!bench.store.discard_intent(&worker, "v", 2).await.unwrap(), "a task is never discarded");
}

async fn a_freed_intent_is_closed_once_and_only_without_a_remote_id_145(bench: &Bench) {
    let (worker, heir) = (bench.worker("w").await, bench.worker("heir").await);
    bench.intent(&worker, "t").await;
    let held = bench.get("t").await.tracked;
    let close = |epoch| {
        let change = held.on_submit_unknown("the process ended", T0 + 9);
        TaskWrite { epoch, ..write(&held, change) }
    };
    assert!(!bench.store.close_freed_intent(&close(1)).await.unwrap(), "still owned");
    bench.store.mark_dead(&heir, &worker, None).await.unwrap();
    bench.store.free_dead(T0, 10, 0).await.unwrap();
    assert_eq!(bench.store.record_submitted(&handle(&worker, "t", true)).await.unwrap(), Recorded::Stale);
    assert!(!bench.store.close_freed_intent(&close(1)).await.unwrap());
    assert!(bench.store.close_freed_intent(&close(2)).await.unwrap());
    assert!(!bench.store.close_freed_intent(&close(3)).await.unwrap());
    let row = bench.get("t").await;
    assert_eq!((row.status, row.outcome.error_code.as_deref()), (Status::Failed, Some("submit_outcome_unknown")));
    assert_eq!((row.arguments.clone(), row.completed_at), (None, Some(T0 + 9)));
    assert_eq!(bench.kinds("t").await, ["failed"]);

    let free = bench.free(&heir, "task", T0).await;
    assert!(!bench.store.close_freed_intent(&write(&free, free.on_submit_unknown("?", T0))).await.unwrap());
}

async fn ids_are_bounded_in_characters_23(bench: &Bench) {
    let worker = bench.worker("w").await;
    let fits = "é".repeat(255);
    let new = NewIntent { user_id: fits.clone(), idempotency_key: Some(fits.clone()), ..intent(&worker, "t") };
    bench.store.insert_intent(&new).await.unwrap();
    bench.record(&NewHandle { remote_task_id: fits.clone(), ..handle(&worker, "t", true) }).await;
    let long = format!("{fits}x");
    for refused in [
        NewIntent { user_id: long.clone(), ..intent(&worker, "u") },
        NewIntent { thread_id: long.clone(), ..intent(&worker, "u") },
        NewIntent { run_id: Some("a\0b".into()), ..intent(&worker, "u") },
        NewIntent { binding: binding(&"s".repeat(129)), ..intent(&worker, "u") },
        intent(&worker, &"i".repeat(65)),
    ] {
        assert_eq!(bench.store.insert_intent(&refused).await.unwrap_err().kind, StoreErrorKind::Data);
    }
    bench.intent(&worker, "v").await;
    let handle = NewHandle { remote_task_id: long, ..handle(&worker, "v", true) };
    assert_eq!(bench.store.record_submitted(&handle).await.unwrap_err().kind, StoreErrorKind::Data);
}
