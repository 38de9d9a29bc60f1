//! Status answers, rule by rule.

use proptest::prelude::*;

use super::super::answer::answer;
use super::*;

fn read(structured: &str) -> StatusReading {
    let answer = answer(&format!(r#"{{"structuredContent":{structured}}}"#));
    read_status(&answer, "get_status", "r-1", &Limits::default())
}

fn snapshot(structured: &str) -> Snapshot {
    match read(structured) {
        StatusReading::Snapshot(snapshot) => *snapshot,
        StatusReading::Failure(failure) => panic!("{failure:?}"),
    }
}

fn violation(structured: &str) -> String {
    let snapshot = snapshot(structured);
    assert_eq!(snapshot.status, Status::Failed, "{structured}");
    assert_eq!(snapshot.outcome.error_code.as_deref(), Some(code::CONTRACT_VIOLATION), "{structured}");
    snapshot.outcome.error.unwrap()
}

#[test]
fn the_five_statuses_are_read_and_no_other_spelling_9_18() {
    for (name, status) in [
        ("running", Status::Working),
        ("completed", Status::Completed),
        ("failed", Status::Failed),
        ("cancelled", Status::Cancelled),
    ] {
        let read = snapshot(&format!(r#"{{"task_id":"r-1","status":"{name}","extra":1}}"#));
        assert_eq!((read.status, read.warning), (status, None));
    }
    for name in ["Running", "working", "queued", ""] {
        violation(&format!(r#"{{"task_id":"r-1","status":"{name}"}}"#));
    }
    violation(r#"{"task_id":"r-1"}"#);
    violation(r#"{"task_id":"r-1","status":1}"#);
}

#[test]
fn the_id_must_be_the_tasks_own_8() {
    for id in ["\"\"", "\"r-2\"", "7", "null", "\"r-1\\u0000\"", &format!("\"{}\"", "r".repeat(256))] {
        violation(&format!(r#"{{"task_id":{id},"status":"running"}}"#));
    }
    violation(r#"{"status":"running"}"#);
}

#[test]
fn text_blocks_are_never_read_and_a_missing_structure_is_a_violation_4_15() {
    let plain = answer(r#"{"content":[{"type":"text","text":"{\"task_id\":\"r-1\",\"status\":\"running\"}"}]}"#);
    let StatusReading::Snapshot(snapshot) = read_status(&plain, "get_status", "r-1", &Limits::default()) else {
        panic!("expected a violation");
    };
    assert_eq!(snapshot.outcome.error_code.as_deref(), Some(code::CONTRACT_VIOLATION));
    violation("[]");
    violation("\"running\"");
}

#[test]
fn an_error_answer_is_retried_whatever_its_structure_says_16() {
    let failed = answer(
        r#"{"isError":true,"content":[{"type":"text","text":"busy"}],
            "structuredContent":{"task_id":"r-1","status":"failed"}}"#,
    );
    let StatusReading::Failure(failure) = read_status(&failed, "get_status", "r-1", &Limits::default()) else {
        panic!("expected a failure");
    };
    assert_eq!(
        (failure.kind, failure.message.as_str()),
        (FailureKind::ToolError, "get_status returned an error: busy")
    );
}

#[test]
fn task_not_found_wins_over_any_status_11() {
    let read = snapshot(r#"{"task_id":"r-1","status":"completed","error_code":"task_not_found"}"#);
    assert_eq!(read.status, Status::Failed);
    assert_eq!(read.outcome.error.as_deref(), Some("Remote MCP task was not found"));
    let read = snapshot(r#"{"error_code":"task_not_found","error":"swept"}"#);
    assert_eq!(read.outcome.error.as_deref(), Some("swept"));
    violation(r#"{"task_id":"r-2","error_code":"task_not_found"}"#);
}

#[test]
fn other_codes_are_kept_and_change_nothing_12_134() {
    let read = snapshot(r#"{"task_id":"r-1","status":"running","error_code":"E7","error":"soft"}"#);
    assert_eq!((read.status, read.outcome.error_code.as_deref()), (Status::Working, Some("E7")));
    let long = format!(r#"{{"task_id":"r-1","status":"failed","error_code":"{}"}}"#, "c".repeat(65));
    assert_eq!(snapshot(&long).outcome.error_code.unwrap().len(), 64);
}

#[test]
fn a_wrong_error_is_ignored_on_every_status_154() {
    for status in ["running", "completed", "failed"] {
        let read = snapshot(&format!(r#"{{"task_id":"r-1","status":"{status}","error":{{}},"error_code":4}}"#));
        assert_ne!(read.outcome.error_code.as_deref(), Some(code::CONTRACT_VIOLATION));
        assert_eq!(read.warning.as_deref(), Some("ignored: error is no string; error_code is no string"));
    }
}

#[test]
fn input_is_an_object_within_64_kib_to_the_byte_10_26() {
    violation(r#"{"task_id":"r-1","status":"input_required"}"#);
    violation(r#"{"task_id":"r-1","status":"input_required","input_required":"name?"}"#);
    violation(r#"{"task_id":"r-1","status":"running","input_required":[1]}"#);
    let sized = |bytes: usize| {
        let text = "é".repeat((bytes - 8) / 2) + if bytes % 2 == 1 { "x" } else { "" };
        format!(r#"{{"task_id":"r-1","status":"input_required","input_required":{{ "q" : "{text}" }} }}"#)
    };
    let read = snapshot(&sized(SLOT_MAX_BYTES));
    assert_eq!(read.outcome.input_required.unwrap().as_str().len(), SLOT_MAX_BYTES);
    violation(&sized(SLOT_MAX_BYTES + 1));
}

#[test]
fn an_artifact_has_a_uri_and_a_type_and_nothing_else_14_26() {
    let with = |artifact: &str| format!(r#"{{"task_id":"r-1","status":"completed","result_artifact":{artifact}}}"#);
    let read = snapshot(&with(r#"{"x":1,"mime_type":"text/csv","uri":"s3://b/k"}"#));
    assert_eq!(read.outcome.result_artifact.unwrap().as_str(), r#"{"uri":"s3://b/k","mime_type":"text/csv"}"#);
    for bad in [r#"{"uri":"a"}"#, r#"{"uri":"","mime_type":"b"}"#, r#"{"uri":"a","mime_type":3}"#, "[]", "\"a\""] {
        violation(&with(bad));
    }
    let sized = |bytes: usize| {
        with(&format!(r#"{{"uri":"{}","mime_type":"b"}}"#, "u".repeat(bytes - r#"{"uri":"","mime_type":"b"}"#.len())))
    };
    assert_eq!(snapshot(&sized(SLOT_MAX_BYTES)).status, Status::Completed);
    violation(&sized(SLOT_MAX_BYTES + 1));
    assert!(snapshot(&with("null")).outcome.result_artifact.is_none());
}

#[test]
fn a_large_result_keeps_its_status_and_artifact_27() {
    let text = "z".repeat(70_000);
    let read = snapshot(&format!(
        r#"{{"task_id":"r-1","status":"completed","result":"{text}","result_artifact":{{"uri":"a","mime_type":"b"}}}}"#
    ));
    assert_eq!((read.status, read.outcome.result.clone()), (Status::Completed, None));
    assert!(read.outcome.result_truncated && read.outcome.result_artifact.is_some());
    assert_eq!(read.outcome.result_preview.unwrap().len(), 2_000);
    let read = snapshot(r#"{"task_id":"r-1","status":"running","result":{"progress":0.5}}"#);
    assert_eq!(read.outcome.result.unwrap().as_str(), r#"{"progress":0.5}"#, "17: stored while running too");
    for any in ["false", "0", "\"\"", "[null]"] {
        let read = snapshot(&format!(r#"{{"task_id":"r-1","status":"completed","result":{any}}}"#));
        assert_eq!(read.outcome.result.unwrap().as_str(), any, "any JSON is a result");
    }
}

#[test]
fn a_bad_hint_is_ignored_with_a_warning_13_136() {
    for bad in ["0", "-1", "1e999", "-1e999", "\"5\"", "true", "[]"] {
        let read = snapshot(&format!(r#"{{"task_id":"r-1","status":"running","poll_after_seconds":{bad}}}"#));
        assert_eq!((read.status, read.hint), (Status::Working, None), "{bad}");
        assert!(read.warning.unwrap().contains("poll_after_seconds"));
    }
    let read = snapshot(r#"{"task_id":"r-1","status":"running","poll_after_seconds":1e300}"#);
    assert_eq!(read.hint, Some(Duration::from_secs(86_400)));
    let read = snapshot(r#"{"task_id":"r-1","status":"running","poll_after_seconds":1e-300}"#);
    assert_eq!((read.hint, read.warning), (Some(Duration::ZERO), None));
}

#[test]
fn an_answer_too_deep_to_judge_is_retried_146() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let reading = read(&format!(r#"{{"task_id":"r-1","status":"completed","result":{deep}}}"#));
    assert!(matches!(reading, StatusReading::Failure(Failure { kind: FailureKind::Protocol, .. })));
}

proptest! {
    #[test]
    fn every_number_as_a_hint_is_clamped_or_ignored_13(bits in any::<u64>()) {
        let seconds = f64::from_bits(bits);
        if seconds.is_finite() {
            let read = snapshot(&format!(
                r#"{{"task_id":"r-1","status":"running","poll_after_seconds":{}}}"#,
                serde_json::to_string(&seconds).unwrap()
            ));
            prop_assert_eq!(read.hint.is_some(), seconds > 0.0);
            prop_assert!(read.hint.unwrap_or_default() <= Duration::from_secs(86_400));
        }
    }

    #[test]
    fn arbitrary_members_never_panic_and_never_overstep_the_bounds(
        status in "running|input_required|completed|failed|cancelled|other",
        error in any::<String>(), code in any::<String>(), result in any::<String>(),
    ) {
        let structured = serde_json::json!({
            "task_id": "r-1", "status": status, "error": error, "error_code": code, "result": result,
            "input_required": {"q": result},
        });
        if let StatusReading::Snapshot(snapshot) = read(&structured.to_string()) {
            let outcome = snapshot.outcome;
            prop_assert!(outcome.error.as_ref().is_none_or(|text| text.chars().count() <= ERROR_MAX_CHARS));
            prop_assert!(!outcome.error.unwrap_or_default().contains('\0'));
            prop_assert!(outcome.error_code.unwrap_or_default().chars().count() <= ERROR_CODE_MAX_CHARS);
        }
    }
}
