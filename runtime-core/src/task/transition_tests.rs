//! What answers, errors, cancels and age do to a task.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::task::{Binding, Json, Toolset};

fn policy() -> Policy {
    Policy::default()
}

fn tracked() -> Tracked {
    let toolset = Toolset::new("report", "submit", "status", "cancel");
    let binding = Binding { server_name: "s".into(), driver: "tools".into(), toolset };
    Tracked {
        remote_task_id: Some("r".into()),
        status: Status::Submitted,
        ..Tracked::new("mcp-task-1", "u", "t", Arc::new(binding))
    }
}

fn written(decision: Decision) -> Change {
    match decision {
        Decision::Write(change) => *change,
        Decision::Unchanged { .. } => panic!("expected a write"),
    }
}

fn answer(task: &mut Tracked, snapshot: Snapshot, now: Millis) -> Option<Change> {
    match task.on_answer(snapshot, now, &policy(), Chance::NONE) {
        Decision::Write(change) => {
            let epoch = task.lease_epoch + 1;
            task.applied(&change, epoch);
            Some(*change)
        }
        Decision::Unchanged { next_due_at } => {
            task.unchanged(next_due_at, now);
            None
        }
    }
}

fn fail(task: &mut Tracked, now: Millis) -> Change {
    let change = task.on_error(&Failure::new(FailureKind::Timeout, "slow"), now, &policy(), Chance::NONE);
    let epoch = task.lease_epoch + 1;
    task.applied(&change, epoch);
    change
}

#[test]
fn an_unchanged_poll_writes_nothing_131() {
    let mut task = tracked();
    let first = answer(&mut task, Snapshot::bare(Status::Working), 10).expect("submitted → working");
    assert_eq!(first.events, [EventKind::Status(Status::Working)]);
    assert_eq!(answer(&mut task, Snapshot::bare(Status::Working), 20), None);
    assert_eq!((task.poll_attempt_count, task.last_polled_at, task.next_due_at), (2, Some(20), 5_020));
}

#[test]
fn the_error_count_grows_and_an_applied_answer_resets_it_46() {
    let mut task = tracked();
    answer(&mut task, Snapshot::bare(Status::Working), 0);
    assert_eq!(fail(&mut task, 0).next_due_at, 5_000);
    assert_eq!(fail(&mut task, 0).next_due_at, 10_000);
    let change = answer(&mut task, Snapshot::bare(Status::Working), 0).expect("the counter is written back");
    assert_eq!((change.consecutive_poll_error_count, change.last_poll_error), (0, Some(None)));
    assert!(change.events.is_empty(), "it was never degraded");
}

#[test]
fn degradation_is_an_event_once_and_so_is_recovery_47_64() {
    let mut task = tracked();
    answer(&mut task, Snapshot::bare(Status::Working), 0);
    let events: Vec<_> = (0..4).map(|now| fail(&mut task, now).events).collect();
    assert_eq!(events, [vec![], vec![], vec![EventKind::TrackingDegraded], vec![]]);
    let change = answer(&mut task, Snapshot::bare(Status::Working), 9).unwrap();
    assert_eq!(change.events, [EventKind::TrackingRecovered]);
}

#[test]
fn the_same_question_is_asked_once_and_another_one_again_64() {
    let ask = |question: &str| {
        let mut snapshot = Snapshot::bare(Status::InputRequired);
        snapshot.outcome.input_required = Some(Json::parse(&format!("{{\"q\":\"{question}\"}}")).unwrap());
        snapshot
    };
    let mut task = tracked();
    let asked = [EventKind::Status(Status::InputRequired)];
    assert_eq!(answer(&mut task, ask("a"), 1).unwrap().events, asked);
    assert_eq!(answer(&mut task, ask("a"), 2), None);
    assert_eq!(answer(&mut task, ask("b"), 3).unwrap().events, asked);
    fail(&mut task, 4);
    assert!(answer(&mut task, ask("b"), 5).unwrap().events.is_empty(), "an error in between is no news");
    // Another worker that lost the digest but reads the fingerprint stays silent too.
    task.digest = None;
    assert!(answer(&mut task, ask("b"), 6).unwrap().events.is_empty());
}

#[test]
fn a_terminal_answer_ends_the_task_with_one_event() {
    let task = tracked();
    let mut snapshot = Snapshot::bare(Status::Completed);
    snapshot.outcome.result = Some(Json::parse("42").unwrap());
    let change = written(task.on_answer(snapshot, 77, &policy(), Chance::NONE));
    assert_eq!((change.status, change.completed_at, change.release), (Status::Completed, Some(77), true));
    assert_eq!(change.events, [EventKind::Status(Status::Completed)]);
}

#[test]
fn a_cancel_that_was_taken_is_asked_on_at_the_pace_of_polls_60() {
    let mut task = tracked();
    task.cancel_requested_at = Some(5);
    task.cancel_attempt_count = 9;
    let seen = Snapshot { hint: Some(Duration::from_secs(2)), ..Snapshot::bare(Status::Working) };
    let change = task.on_cancel_taken(&seen, 100, &policy(), Chance::NONE);
    assert_eq!((change.status, change.cancel_attempt_count), (Status::Submitted, 10));
    assert_eq!(change.next_due_at, 2_100, "without a growing pause");
    assert_eq!((change.last_cancel_error, change.outcome, change.events), (Some(None), None, Vec::new()));
}

#[test]
fn a_submit_that_was_answered_by_the_works_end_ends_with_one_event() {
    let mut task = tracked();
    (task.status, task.remote_task_id) = (Status::Submitting, None);
    let mut done = Snapshot::bare(Status::Completed);
    done.outcome.result = Some(Json::parse("1").unwrap());
    let change = task.on_submit_ended(done, 100);
    assert_eq!((change.status, change.completed_at, change.release), (Status::Completed, Some(100), true));
    assert_eq!(change.events, [EventKind::Status(Status::Completed)]);
    assert!(change.outcome.unwrap().0.result.is_some());
}

#[test]
fn a_task_is_asked_before_its_server_may_drop_it() {
    let mut task = tracked();
    let hinted = Snapshot {
        hint: Some(Duration::from_hours(1)),
        ttl: Some(Duration::from_mins(1)),
        ..Snapshot::bare(Status::Working)
    };
    assert_eq!(answer(&mut task, hinted.clone(), 40_000).unwrap().next_due_at, 50_000);
    assert_eq!(answer(&mut task, hinted, 50_000), None, "an unchanged answer too");
    assert_eq!(task.next_due_at, 55_000);
}

#[test]
fn a_cancel_stores_what_the_server_says_and_retries_what_it_does_not_19_20_60() {
    let mut task = tracked();
    task.cancel_requested_at = Some(5);
    let retry = Failure::new(FailureKind::Transport, "gone");
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let change = task.on_cancel_error(&retry, 100, &policy(), Chance::NONE);
            let epoch = task.lease_epoch + 1;
            task.applied(&change, epoch);
            assert_eq!(change.consecutive_poll_error_count, 0, "a cancel's errors are counted apart");
            change.next_due_at - 100
        })
        .collect();
    assert_eq!(waits, [5_000, 10_000, 20_000]);
    let change = task.on_cancel_answer(Snapshot::bare(Status::Completed), 200);
    assert_eq!((change.status, change.cancel_attempt_count), (Status::Completed, 4));
    assert_eq!(change.events, [EventKind::Status(Status::Completed)]);
}

#[test]
fn a_task_that_ended_by_its_cancel_is_not_degraded_any_more() {
    let mut task = tracked();
    (0..3).for_each(|now| drop(fail(&mut task, now)));
    assert!(task.degraded(&policy()));
    let change = task.on_cancel_answer(Snapshot::bare(Status::Cancelled), 9);
    assert_eq!((change.consecutive_poll_error_count, change.events.len()), (0, 1));
}

#[test]
fn a_task_is_looked_at_when_it_expires_133() {
    let task = tracked();
    let policy = Policy { max_age_ms: Some(60_000), ..policy() };
    let hinted = Snapshot { hint: Some(Duration::from_secs(3_600)), ..Snapshot::bare(Status::Working) };
    assert_eq!(written(task.on_answer(hinted, 0, &policy, Chance::NONE)).next_due_at, 60_000);
    assert!(!task.expired(59_999, &policy) && task.expired(60_000, &policy));
    let change = task.on_expired(60_000);
    assert_eq!(change.outcome.unwrap().0.error_code.as_deref(), Some(code::TASK_EXPIRED));
}

#[test]
fn stored_errors_are_bounded_25() {
    let task = tracked();
    let failure = Failure::new(FailureKind::ToolError, "é".repeat(5_000));
    let change = task.on_error(&failure, 0, &policy(), Chance::NONE);
    assert_eq!(change.last_poll_error.unwrap().unwrap().chars().count(), ERROR_MAX_CHARS);
}

proptest! {
    #[test]
    fn a_transport_failure_never_ends_a_task_and_counters_only_grow(
        kinds in prop::collection::vec((0usize..FailureKind::ALL.len(), any::<u64>()), 1..40),
    ) {
        let mut task = tracked();
        for (index, (kind, retry_after)) in kinds.into_iter().enumerate() {
            let failure = Failure {
                retry_after: Some(Duration::from_millis(retry_after)),
                ..Failure::new(FailureKind::ALL[kind], "x")
            };
            let change = task.on_error(&failure, 0, &policy(), Chance::NONE);
            prop_assert!(!change.status.is_terminal() && !change.release && change.completed_at.is_none());
            prop_assert!(change.next_due_at >= 5_000 && change.next_due_at <= super::super::schedule::MAX_WAIT_MS);
            prop_assert_eq!(change.consecutive_poll_error_count, i64::try_from(index).unwrap() + 1);
            let epoch = task.lease_epoch + 1;
            task.applied(&change, epoch);
        }
    }
}
