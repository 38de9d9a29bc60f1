//! Answers about tasks: submit, status, cancel.

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::contract::{
    CancelReading, Created, NotCreated, Refusal, StatusReading, TaskReading, ToolAnswer, read_cancel, read_created,
    read_result, read_status, read_submit, read_task,
};
use mcp_taskd_core::task::schedule::Chance;
use mcp_taskd_core::task::{Binding, Decision, Json, Limits, Policy, Snapshot, Status, Toolset, Tracked};
use serde_json::value::RawValue;

/// Small, so that results are cut often.
const LIMITS: Limits = Limits { max_result_bytes: 1_024, result_preview_max_chars: 64 };
/// A message of ours around 500 characters of the server's.
const MESSAGE_MAX_CHARS: usize = 700;

#[test]
fn an_answer_about_a_task_is_always_judged_and_bounded_26_28() {
    super::fuzz("contract", |bytes, _| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let Ok(raw) = RawValue::from_string(text) else { return };
        // What is no object at all is refused before there is an answer to judge.
        let Ok(answer) = ToolAnswer::read(&raw) else { return };
        let reading = read_status(&answer, "status_tool", "r-1", &LIMITS);
        assert_eq!(reading, read_status(&answer, "status_tool", "r-1", &LIMITS), "the verdict is the same");
        match reading {
            StatusReading::Snapshot(snapshot) => check(&snapshot),
            StatusReading::Failure(failure) => short(&failure.message),
        }
        let reading = read_cancel(&answer, "cancel_tool", "r-1", &LIMITS);
        assert_eq!(reading, read_cancel(&answer, "cancel_tool", "r-1", &LIMITS));
        match reading {
            CancelReading::Ended(snapshot) => {
                assert!(snapshot.status.is_terminal());
                check(&snapshot);
            }
            CancelReading::Failure(failure) => assert!(failure.message.chars().count() <= 4_000),
            CancelReading::Taken(_) => panic!("a cancel tool has no such answer"),
        }
        match read_submit(&answer, "submit_tool") {
            Ok(id) => assert!((1..=255).contains(&id.chars().count()) && !id.contains('\0')),
            Err(Refusal { message, .. }) => short(&message),
        }
    });
}

#[test]
fn what_is_said_of_a_native_task_is_always_judged_and_bounded_26_28() {
    super::fuzz("contract", |bytes, _| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        // Answers of ordinary tools hold the task's members one level deeper.
        let structured =
            serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default()["structuredContent"].to_string();
        for text in [text, structured.replace("task_id", "taskId").replace("input_required\":", "inputRequests\":")] {
            let Ok(raw) = RawValue::from_string(text) else { continue };
            match read_task(&raw, "r-1", &LIMITS) {
                TaskReading::Read(StatusReading::Snapshot(snapshot)) | TaskReading::Fetch(snapshot) => check(&snapshot),
                TaskReading::Read(StatusReading::Failure(failure)) => short(&failure.message),
            }
            match read_created(&raw, "submit_tool", &LIMITS) {
                Ok(Created::Task(handle)) => {
                    assert!((1..=255).contains(&handle.remote_id.chars().count()) && !handle.remote_id.contains('\0'));
                }
                Ok(Created::Ended(snapshot)) => check(&snapshot),
                Err(NotCreated::Refused(Refusal { message, .. }) | NotCreated::Unreadable(message)) => short(&message),
            }
            let ended = Snapshot::bare(Status::Completed);
            match read_result(ended, &raw, &LIMITS) {
                StatusReading::Snapshot(snapshot) => check(&snapshot),
                StatusReading::Failure(failure) => short(&failure.message),
            }
        }
    });
}

fn short(message: &str) {
    assert!(message.chars().count() <= MESSAGE_MAX_CHARS, "{} characters", message.chars().count());
}

/// What is stored is within bounds, and no JSON is cut.
fn check(snapshot: &Snapshot) {
    let outcome = &snapshot.outcome;
    for (text, max) in [
        (&outcome.error, 4_000),
        (&outcome.error_code, 64),
        (&outcome.result_preview, LIMITS.result_preview_max_chars),
        (&snapshot.warning, 500),
    ] {
        let Some(text) = text else { continue };
        assert!(text.chars().count() <= max && !text.contains('\0'), "{text:?}");
    }
    let slots = [
        (&outcome.result, LIMITS.max_result_bytes),
        (&outcome.result_artifact, 65_536),
        (&outcome.input_required, 65_536),
    ];
    for (json, max) in slots {
        let Some(json) = json else { continue };
        assert!(json.as_str().len() <= max);
        assert_eq!(Json::parse(json.as_str()).as_ref(), Ok(json), "whole, and compact already");
    }
    assert!(
        outcome.result_preview.is_some() == outcome.result_truncated
            && !(outcome.result.is_some() && outcome.result_truncated)
    );
    assert!(snapshot.hint.is_none_or(|hint| hint <= Duration::from_secs(86_400)));
    assert!(snapshot.status != Status::InputRequired || outcome.input_required.is_some());
    said_twice_is_written_once(snapshot);
}

fn said_twice_is_written_once(snapshot: &Snapshot) {
    let (policy, mut task) = (Policy::default(), task());
    let Decision::Write(change) = task.on_answer(snapshot.clone(), 1_000, &policy, Chance::new(0.5)) else {
        panic!("a first answer is news");
    };
    assert!((1_000..=1_000 + 86_400_000 * 2).contains(&change.next_due_at), "due at {}", change.next_due_at);
    if change.status.is_terminal() {
        assert_eq!(change.events.len(), 1, "one end, one event");
        return;
    }
    task.applied(&change, 2);
    let again = task.on_answer(snapshot.clone(), 2_000, &policy, Chance::new(0.5));
    assert!(matches!(again, Decision::Unchanged { .. }), "{again:?}");
}

fn task() -> Tracked {
    let toolset = Toolset::new("t", "t", "t", "t");
    let binding = Binding { server_name: "s".into(), driver: "tools".into(), toolset };
    Tracked {
        remote_task_id: Some("r-1".into()),
        status: Status::Submitted,
        ..Tracked::new("mcp-task-1", "u", "t", Arc::new(binding))
    }
}
