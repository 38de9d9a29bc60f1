//! Reads (BEHAVIOURS J; FAILURES 35).

use mcp_taskd_core::store::{CancelRequest, NewIntent, Page, TaskFilter};
use mcp_taskd_core::task::schedule::Chance;
use mcp_taskd_core::task::{Failure, FailureKind, Policy, Status};

use crate::bench::{Bench, T0, answered, behaviours, handle, intent, write};

behaviours! {
    tasks_are_listed_newest_first_page_by_page_71,
    filters_narrow_the_list_63_74,
    a_task_is_found_by_its_owner_only_74,
    events_are_listed_in_order_after_a_cursor,
    figures_count_what_is_there_up_to_the_cap_35,
    a_store_answers_and_knows_its_schema,
}

fn page(limit: u32) -> Page {
    Page { limit, after: None }
}

async fn ids(bench: &Bench, filter: &TaskFilter, page: &Page) -> Vec<String> {
    let tasks = bench.store.list_tasks(filter, page).await.unwrap();
    tasks.iter().map(|task| task.id.to_string()).collect()
}

async fn tasks_are_listed_newest_first_page_by_page_71(bench: &Bench) {
    let worker = bench.worker("w").await;
    for (id, at) in [("a", 1), ("b", 3), ("c", 3), ("d", 2)] {
        bench.store.insert_intent(&NewIntent { created_at: T0 + at, ..intent(&worker, id) }).await.unwrap();
    }
    let filters = [
        TaskFilter::default(),
        TaskFilter { user_id: Some("user".into()), ..TaskFilter::default() },
        TaskFilter { thread_id: Some("thread".into()), ..TaskFilter::default() },
        TaskFilter { status: Some(Status::Submitting), ..TaskFilter::default() },
        TaskFilter { active_only: true, ..TaskFilter::default() },
    ];
    for filter in filters {
        assert_eq!(ids(bench, &filter, &page(10)).await, ["c", "b", "d", "a"]);
        assert_eq!(ids(bench, &filter, &page(2)).await, ["c", "b"]);
        let after = |at, id: &str| Page { limit: 2, after: Some((T0 + at, id.into())) };
        assert_eq!(ids(bench, &filter, &after(3, "c")).await, ["b", "d"]);
        assert_eq!(ids(bench, &filter, &after(2, "d")).await, ["a"]);
        assert!(ids(bench, &filter, &after(1, "a")).await.is_empty());
    }
}

async fn filters_narrow_the_list_63_74(bench: &Bench) {
    let worker = bench.worker("w").await;
    for (id, user, thread) in [("1", "u", "x"), ("2", "u", "y"), ("3", "v", "x")] {
        let new = NewIntent { user_id: user.into(), thread_id: thread.into(), ..intent(&worker, id) };
        bench.store.insert_intent(&new).await.unwrap();
    }
    let done = bench.held(&worker, "4").await;
    bench.store.apply(&worker, &[answered(&done, Status::Completed)]).await.unwrap();
    let any = TaskFilter::default;
    let all = page(10);
    let user = || Some("u".to_owned());
    assert_eq!(ids(bench, &TaskFilter { user_id: user(), ..any() }, &all).await, ["2", "1"]);
    assert_eq!(ids(bench, &TaskFilter { thread_id: Some("x".into()), ..any() }, &all).await, ["3", "1"]);
    let both = TaskFilter { user_id: user(), thread_id: Some("x".into()), ..any() };
    assert_eq!(ids(bench, &both, &all).await, ["1"]);
    assert_eq!(ids(bench, &TaskFilter { status: Some(Status::Completed), ..any() }, &all).await, ["4"]);
    assert_eq!(ids(bench, &TaskFilter { active_only: true, ..any() }, &all).await, ["3", "2", "1"]);
    let none = TaskFilter { active_only: true, status: Some(Status::Completed), ..any() };
    assert!(ids(bench, &none, &all).await.is_empty());
    assert_eq!(
        ids(bench, &TaskFilter { named: Some("rEPORT".into()), user_id: user(), ..any() }, &all).await,
        ["2", "1"]
    );
    assert_eq!(ids(bench, &TaskFilter { named: Some("3".into()), ..any() }, &all).await, ["3"]);
    assert!(ids(bench, &TaskFilter { named: Some("nul\0".into()), ..any() }, &all).await.is_empty());
}

async fn a_task_is_found_by_its_owner_only_74(bench: &Bench) {
    let worker = bench.worker("w").await;
    bench.held(&worker, "t").await;
    let store = &bench.store;
    for (user, thread) in [(None, None), (Some("user"), None), (None, Some("thread")), (Some("user"), Some("thread"))] {
        assert!(store.find_task("t", user, thread).await.unwrap().is_some());
    }
    for (user, thread) in [(Some("other"), None), (None, Some("other")), (Some("user"), Some("other"))] {
        assert!(store.find_task("t", user, thread).await.unwrap().is_none());
    }
    assert!(store.find_task("t\0", None, None).await.unwrap().is_none());
}

async fn events_are_listed_in_order_after_a_cursor(bench: &Bench) {
    let worker = bench.worker("w").await;
    for id in ["a", "b"] {
        let new = NewIntent { thread_id: format!("thread-{id}"), ..intent(&worker, id) };
        bench.store.insert_intent(&new).await.unwrap();
        let task = bench.record(&handle(&worker, id, true)).await;
        bench.store.apply(&worker, &[answered(&task, Status::Completed)]).await.unwrap();
    }
    let list = async |after, filter: &TaskFilter, limit| {
        let events = bench.store.list_events(after, filter, limit).await.unwrap();
        events.into_iter().map(|event| (event.task_id, event.kind, event.sequence)).collect::<Vec<_>>()
    };
    let all = list(0, &TaskFilter::default(), 10).await;
    let told: Vec<_> = all.iter().map(|(id, kind, _)| (id.as_str(), kind.as_str())).collect();
    assert_eq!(told, [("a", "submitted"), ("a", "completed"), ("b", "submitted"), ("b", "completed")]);
    assert_eq!(list(all[1].2, &TaskFilter::default(), 1).await, all[2..3]);
    let thread = TaskFilter { thread_id: Some("thread-b".into()), ..TaskFilter::default() };
    assert_eq!(list(0, &thread, 10).await, all[2..]);
    let user = TaskFilter { user_id: Some("user".into()), ..TaskFilter::default() };
    assert_eq!(list(0, &user, 10).await, all);
    let done = TaskFilter { status: Some(Status::Completed), ..TaskFilter::default() };
    assert_eq!(list(0, &done, 10).await, [all[1].clone(), all[3].clone()]);
    assert!(list(all[3].2, &TaskFilter::default(), 10).await.is_empty());
}

async fn figures_count_what_is_there_up_to_the_cap_35(bench: &Bench) {
    let worker = bench.worker("w").await;
    bench.store.register(&mcp_taskd_core::store::WorkerInfo { polls: false, ..crate::bench::info("g") }).await.unwrap();
    let dead = bench.worker("dead").await;
    bench.store.mark_dead(&worker, &dead, None).await.unwrap();
    bench.intent(&worker, "intent").await;
    for (id, due) in [("1", 30), ("2", 20), ("3", 9_000)] {
        bench.free(&worker, id, T0 + due).await;
    }
    let cancel = CancelRequest { id: "2".into(), user_id: None, thread_id: None };
    bench.store.request_cancel(&cancel, T0 + 10).await.unwrap();
    let failing = bench.held(&worker, "failing").await;
    let mut change =
        failing.on_error(&Failure::new(FailureKind::Timeout, "slow"), T0, &Policy::default(), Chance::NONE);
    change.consecutive_poll_error_count = 3;
    bench.store.apply(&worker, &[write(&failing, change)]).await.unwrap();
    let done = bench.held(&worker, "done").await;
    bench.store.apply(&worker, &[answered(&done, Status::Completed)]).await.unwrap();

    let stats = bench.store.stats(T0 + 100, 3, 1_000).await.unwrap();
    let count = |status: Status| stats.tasks.iter().find(|(name, _)| name == status.as_str()).unwrap().1;
    assert_eq!(stats.tasks.len(), Status::ALL.len());
    assert_eq!((count(Status::Submitting), count(Status::Submitted), count(Status::Completed)), (1, 4, 1));
    assert_eq!(stats.degraded, [("server".to_owned(), 1)]);
    assert_eq!((stats.due, stats.oldest_due_at, stats.active), (2, Some(T0 + 10), 5));
    assert_eq!((stats.workers_live, stats.workers_polling), (2, 1));
    let capped = bench.store.stats(T0 + 100, 3, 2).await.unwrap();
    assert_eq!(capped.tasks.iter().find(|(name, _)| name == "submitted").unwrap().1, 2);
    assert_eq!(bench.store.stats(T0, 4, 2).await.unwrap().oldest_due_at, None);
}

async fn a_store_answers_and_knows_its_schema(bench: &Bench) {
    bench.store.ping().await.unwrap();
    let (known, applied) = bench.store.schema_version().await.unwrap();
    assert_eq!(applied, Some(known));
    assert!(["memory", "sqlite", "postgres"].contains(&bench.store.backend()));
}
