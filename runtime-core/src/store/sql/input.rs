//! A batch of writes as the one JSON text it travels in.

use serde::Serialize;

use crate::store::TaskWrite;
use crate::task::Json;

/// One write; the fields are those of the statement's input, in the same names.
#[derive(Debug, Serialize)]
struct Fields<'a> {
    id: &'a str,
    epoch: i64,
    status: &'static str,
    terminal: i64,
    has_outcome: i64,
    result: Option<&'a str>,
    result_preview: Option<&'a str>,
    result_truncated: i64,
    result_artifact: Option<&'a str>,
    error: Option<&'a str>,
    error_code: Option<&'a str>,
    input_required: Option<&'a str>,
    snapshot_digest: Option<&'a str>,
    next_due_at: i64,
    poll_attempt_count: i64,
    consecutive_poll_error_count: i64,
    last_polled_at: Option<i64>,
    has_poll_error: i64,
    last_poll_error: Option<&'a str>,
    cancel_attempt_count: i64,
    has_cancel_error: i64,
    last_cancel_error: Option<&'a str>,
    event_fingerprint: Option<&'a str>,
    completed_at: Option<i64>,
    release: i64,
    at: i64,
    events: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct Emitted<'a> {
    id: &'a str,
    kind: &'static str,
    at: i64,
}

/// The writes, as a JSON array of objects.
pub(super) fn writes(writes: &[TaskWrite]) -> String {
    json(&writes.iter().map(input).collect::<Vec<_>>())
}

/// The events of those writes that took effect, in the order of their ids.
pub(super) fn events<'a>(writes: &'a [TaskWrite], took_effect: impl Fn(&TaskWrite) -> bool) -> Option<String> {
    let mut emitted: Vec<Emitted<'a>> = writes
        .iter()
        .filter(|write| took_effect(write))
        .flat_map(|write| {
            write.change.events.iter().map(|event| Emitted { id: &write.id, kind: event.as_str(), at: write.change.at })
        })
        .collect();
    emitted.sort_by_key(|event| event.id);
    (!emitted.is_empty()).then(|| json(&emitted))
}

/// One event, as [`events`] would write it.
pub(super) fn event(id: &str, kind: &'static str, at: i64) -> String {
    json(&[Emitted { id, kind, at }])
}

/// Texts, as a JSON array of strings.
pub(super) fn texts<T: AsRef<str>>(texts: &[T]) -> String {
    json(&texts.iter().map(AsRef::as_ref).collect::<Vec<&str>>())
}

fn input(write: &TaskWrite) -> Fields<'_> {
    let change = &write.change;
    let outcome = change.outcome.as_ref().map(|(outcome, _)| outcome);
    let terminal = change.status.is_terminal();
    Fields {
        id: &write.id,
        epoch: write.epoch,
        status: change.status.as_str(),
        terminal: terminal.into(),
        has_outcome: outcome.is_some().into(),
        result: outcome.and_then(|outcome| outcome.result.as_ref()).map(Json::as_str),
        result_preview: outcome.and_then(|outcome| outcome.result_preview.as_deref()),
        result_truncated: outcome.is_some_and(|outcome| outcome.result_truncated).into(),
        result_artifact: outcome.and_then(|outcome| outcome.result_artifact.as_ref()).map(Json::as_str),
        error: outcome.and_then(|outcome| outcome.error.as_deref()),
        error_code: outcome.and_then(|outcome| outcome.error_code.as_deref()),
        input_required: outcome.and_then(|outcome| outcome.input_required.as_ref()).map(Json::as_str),
        snapshot_digest: change.outcome.as_ref().map(|(_, digest)| digest.as_str()),
        next_due_at: change.next_due_at,
        poll_attempt_count: change.poll_attempt_count,
        consecutive_poll_error_count: change.consecutive_poll_error_count,
        last_polled_at: change.last_polled_at,
        has_poll_error: change.last_poll_error.is_some().into(),
        last_poll_error: change.last_poll_error.as_ref().and_then(Option::as_deref),
        cancel_attempt_count: change.cancel_attempt_count,
        has_cancel_error: change.last_cancel_error.is_some().into(),
        last_cancel_error: change.last_cancel_error.as_ref().and_then(Option::as_deref),
        event_fingerprint: change.event_fingerprint.as_deref(),
        completed_at: if terminal { change.completed_at.or(Some(change.at)) } else { None },
        release: (change.release || terminal).into(),
        at: change.at,
        events: change.events.iter().map(|event| event.as_str()).collect(),
    }
}

/// Rows of texts and integers, as JSON.
pub(super) fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("texts, integers and lists of them always serialise")
}
