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
    fn violation(tool: &str, why: &str) -> Self {
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
        Err(flaw) => flaw.reading(tool),
    }
}

/// Why an answer is no snapshot.
pub(super) enum Flaw {
    /// The server broke the contract: permanent.
    Violation(String),
    /// The answer cannot be judged (146): try again.
    Unreadable(String),
}

impl Flaw {
    pub(super) fn violation<T>(why: impl Into<String>) -> Result<T, Self> {
        Err(Self::Violation(why.into()))
    }

    /// What it makes of the answer of `tool`.
    pub(super) fn reading(self, tool: &str) -> StatusReading {
        match self {
            Self::Violation(why) => StatusReading::violation(tool, &why),
            Self::Unreadable(why) => {
                let message = format!("the answer of {tool} cannot be judged: {why}");
                StatusReading::Failure(Failure::new(FailureKind::Protocol, message))
            }
        }
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
pub(super) fn check_id(id: &str, remote_id: &str) -> Result<(), Flaw> {
    if id == remote_id { Ok(()) } else { Flaw::violation("task_id is another task's, empty or too long") }
}

pub(super) fn json(raw: &RawValue) -> Result<Json, Flaw> {
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
pub(super) fn advice(
    raw: Option<&RawValue>,
    name: &str,
    max_chars: usize,
    warnings: &mut Vec<String>,
) -> Option<String> {
    let raw = raw.filter(|raw| raw.get() != "null")?;
    if let Ok(Some(text)) = text(raw) {
        return Some(clip(&text, max_chars));
    }
    warnings.push(format!("{name} is no string"));
    None
}

/// A payload of at most 64 KiB of compact JSON, never truncated (26).
pub(super) fn slot(raw: Option<&RawValue>, name: &str) -> Result<Option<Json>, Flaw> {
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

/// The hint, at most 24 hours (13).
fn hint(raw: Option<&RawValue>, warnings: &mut Vec<String>) -> Option<Duration> {
    positive(raw, "poll_after_seconds", warnings).map(wait)
}

/// A wait of so many seconds, at most 24 hours.
pub(super) fn wait(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.min(MAX_WAIT_MS as f64 / 1_000.0))
}

/// A finite positive number; anything else is ignored with a warning (136).
pub(super) fn positive(raw: Option<&RawValue>, name: &str, warnings: &mut Vec<String>) -> Option<f64> {
    let raw = raw.filter(|raw| raw.get() != "null")?;
    // `1e999` is a JSON number that no f64 holds; it is as unusable as infinity.
    match raw.get().parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Some(number),
        _ => {
            warnings.push(format!("{name} is no finite positive number"));
            None
        }
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
