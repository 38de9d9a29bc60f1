//! What a status tool's answer means (BEHAVIOURS 8–18, 26–28, 134, 136, 146, 154).

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::ToolAnswer;
use crate::task::json::JsonError;
use crate::task::limits::{ERROR_CODE_MAX_CHARS, ERROR_MAX_CHARS, SLOT_MAX_BYTES, clip};
use crate::task::schedule::MAX_WAIT_MS;
use crate::task::transition::code;
use crate::task::{Failure, FailureKind, Json, Limits, Snapshot, Status};

/// What became of reading an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum StatusReading {
    /// The server spoke; a broken contract is a failed snapshot with `contract_violation`.
    Snapshot(Box<Snapshot>),
    /// Nothing can be concluded; try again.
    Failure(Failure),
}

impl StatusReading {
    pub(super) fn violation(tool: &str, why: &str) -> Self {
        Self::Snapshot(Box::new(Snapshot::failure(
            code::CONTRACT_VIOLATION,
            &format!("{tool} broke the task contract: {why}"),
        )))
    }
}

/// The members of the structured content, each as it came.
#[derive(Deserialize, Default)]
pub(super) struct Wire<'a> {
    #[serde(borrow, default)]
    pub(super) task_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) status: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result_artifact: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error_code: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input_required: Option<&'a RawValue>,
    #[serde(borrow, default)]
    poll_after_seconds: Option<&'a RawValue>,
}

/// Reads the answer of the status tool `tool` about the task `remote_id`.
pub fn read_status(answer: &ToolAnswer, tool: &str, remote_id: &str, limits: &Limits) -> StatusReading {
    read(answer, tool, remote_id, limits, |status| match status {
        "running" => Some(Status::Working),
        "input_required" => Some(Status::InputRequired),
        other => terminal(other),
    })
}

/// The terminal statuses of the contract.
pub(super) fn terminal(status: &str) -> Option<Status> {
    match status {
        "completed" => Some(Status::Completed),
        "failed" => Some(Status::Failed),
        "cancelled" => Some(Status::Cancelled),
        _ => None,
    }
}

/// Reads an answer whose status must be one that `accept` knows.
pub(super) fn read(
    answer: &ToolAnswer,
    tool: &str,
    remote_id: &str,
    limits: &Limits,
    accept: impl Fn(&str) -> Option<Status>,
) -> StatusReading {
    if answer.is_error {
        let message = format!("{tool} returned an error: {}", answer.snippet);
        return StatusReading::Failure(Failure::new(FailureKind::ToolError, message));
    }
    let Some(structured) = &answer.structured else {
        return StatusReading::violation(tool, "the answer has no structuredContent");
    };
    let Ok(wire) = serde_json::from_str::<Wire<'_>>(structured.get()) else {
        return StatusReading::violation(tool, "structuredContent is no object, or names a member twice");
    };
    match snapshot(&wire, remote_id, limits, accept) {
        Ok(snapshot) => StatusReading::Snapshot(Box::new(snapshot)),
        Err(Flaw::Violation(why)) => StatusReading::violation(tool, &why),
        Err(Flaw::Unreadable(why)) => StatusReading::Failure(Failure::new(
            FailureKind::Protocol,
            format!("the answer of {tool} cannot be judged: {why}"),
        )),
    }
}

/// Why an answer is no snapshot.
enum Flaw {
    /// The server broke the contract: permanent.
    Violation(String),
    /// The answer cannot be judged (146): try again.
    Unreadable(String),
}

impl Flaw {
    fn violation<T>(why: impl Into<String>) -> Result<T, Self> {
        Err(Self::Violation(why.into()))
    }
}

fn snapshot(
    wire: &Wire<'_>,
    remote_id: &str,
    limits: &Limits,
    accept: impl Fn(&str) -> Option<Status>,
) -> Result<Snapshot, Flaw> {
    let mut warnings = Vec::new();
    let error = advice(wire.error, "error", ERROR_MAX_CHARS, &mut warnings);
    let error_code = advice(wire.error_code, "error_code", ERROR_CODE_MAX_CHARS, &mut warnings);
    let not_found = error_code.as_deref() == Some(code::TASK_NOT_FOUND);
    match wire.task_id.map(text).transpose()?.flatten() {
        Some(id) => check_id(&id, remote_id)?,
        // A server that has lost the task may have lost its id too.
        None if not_found => {}
        None => return Flaw::violation("task_id is missing or no string"),
    }
    if not_found {
        let error = error.unwrap_or_else(|| "Remote MCP task was not found".to_owned());
        return Ok(Snapshot::failure(code::TASK_NOT_FOUND, &error));
    }
    let Some(named) = wire.status.map(text).transpose()?.flatten() else {
        return Flaw::violation("status is missing or no string");
    };
    let Some(status) = accept(&named) else {
        return Flaw::violation(format!("unexpected status {:?}", clip(&named, 64)));
    };

    let mut snapshot = Snapshot::bare(status);
    let outcome = &mut snapshot.outcome;
    outcome.input_required = slot(wire.input_required, "input_required")?;
    if outcome.input_required.as_ref().is_some_and(|json| !json.as_str().starts_with('{')) {
        return Flaw::violation("input_required is no object");
    }
    if status == Status::InputRequired && outcome.input_required.is_none() {
        return Flaw::violation("input_required carries no payload");
    }
    outcome.result_artifact = artifact(wire.result_artifact)?;
    if let Some(raw) = wire.result {
        outcome.set_result(json(raw)?, limits);
    }
    outcome.error = error;
    outcome.error_code = error_code;
    snapshot.hint = hint(wire.poll_after_seconds, &mut warnings);
    snapshot.warning = (!warnings.is_empty()).then(|| format!("ignored: {}", warnings.join("; ")));
    Ok(snapshot)
}

/// A stored id is within its bounds (1–255 characters, no U+0000), so that an id that equals it is too.
fn check_id(id: &str, remote_id: &str) -> Result<(), Flaw> {
    if id == remote_id { Ok(()) } else { Flaw::violation("task_id is another task's, empty or too long") }
}

fn json(raw: &RawValue) -> Result<Json, Flaw> {
    Json::parse(raw.get()).map_err(|error| match error {
        JsonError::TooDeep | JsonError::Invalid => Flaw::Unreadable(error.to_string()),
    })
}

/// The string that `raw` is; `None` where it is something else.
pub(super) fn text(raw: &RawValue) -> Result<Option<String>, UnicodeError> {
    if !raw.get().starts_with('"') {
        return Ok(None);
    }
    serde_json::from_str(raw.get()).map(Some).map_err(|_| UnicodeError)
}

/// A string with a lone surrogate.
#[derive(Debug)]
pub(super) struct UnicodeError;

impl From<UnicodeError> for Flaw {
    fn from(_: UnicodeError) -> Self {
        Self::Unreadable("a string in it is not Unicode".to_owned())
    }
}

/// A text that merely advises: ignored where it is no string (154), bounded where it is.
fn advice(raw: Option<&RawValue>, name: &str, max_chars: usize, warnings: &mut Vec<String>) -> Option<String> {
    let raw = raw.filter(|raw| raw.get() != "null")?;
    if let Ok(Some(text)) = text(raw) {
        return Some(clip(&text, max_chars));
    }
    warnings.push(format!("{name} is no string"));
    None
}

/// A payload of at most 64 KiB of compact JSON, never truncated (26).
fn slot(raw: Option<&RawValue>, name: &str) -> Result<Option<Json>, Flaw> {
    let Some(raw) = raw.filter(|raw| raw.get() != "null") else { return Ok(None) };
    let json = json(raw)?;
    if json.as_str().len() > SLOT_MAX_BYTES {
        return Flaw::violation(format!("{name} is larger than {SLOT_MAX_BYTES} bytes"));
    }
    Ok(Some(json))
}

/// `{uri, mime_type}`, both non-empty; further members are dropped (14).
fn artifact(raw: Option<&RawValue>) -> Result<Option<Json>, Flaw> {
    #[derive(Deserialize)]
    struct Artifact<'a> {
        #[serde(borrow, default)]
        uri: Option<&'a RawValue>,
        #[serde(borrow, default)]
        mime_type: Option<&'a RawValue>,
    }
    let Some(raw) = raw.filter(|raw| raw.get() != "null") else { return Ok(None) };
    let Ok(artifact) = serde_json::from_str::<Artifact<'_>>(raw.get()) else {
        return Flaw::violation("result_artifact is no object");
    };
    let mut members = serde_json::Map::new();
    for (name, raw) in [("uri", artifact.uri), ("mime_type", artifact.mime_type)] {
        match raw.map(text).transpose()?.flatten() {
            Some(text) if !text.is_empty() => members.insert(name.to_owned(), text.into()),
            _ => return Flaw::violation(format!("result_artifact.{name} is missing, empty or no string")),
        };
    }
    let compact = serde_json::Value::Object(members).to_string();
    if compact.len() > SLOT_MAX_BYTES {
        return Flaw::violation(format!("result_artifact is larger than {SLOT_MAX_BYTES} bytes"));
    }
    Ok(Some(Json::from_stored(compact)))
}

/// The hint, where it is a finite positive number; anything else is ignored with a warning (136).
fn hint(raw: Option<&RawValue>, warnings: &mut Vec<String>) -> Option<Duration> {
    let raw = raw.filter(|raw| raw.get() != "null")?;
    // `1e999` is a JSON number that no f64 holds; it is as unusable as infinity.
    match raw.get().parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds > 0.0 => {
            Some(Duration::from_secs_f64(seconds.min(MAX_WAIT_MS as f64 / 1_000.0)))
        }
        _ => {
            warnings.push("poll_after_seconds is no finite positive number".to_owned());
            None
        }
    }
}

#[cfg(test)]
mod tests {
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
            with(&format!(
                r#"{{"uri":"{}","mime_type":"b"}}"#,
                "u".repeat(bytes - r#"{"uri":"","mime_type":"b"}"#.len())
            ))
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
}
