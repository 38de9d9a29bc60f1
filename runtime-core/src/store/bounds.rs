//! What every store refuses before it writes: texts longer than their columns, and U+0000, which no text column takes (151).
//!
//! The tables check lengths too; judging here first gives one answer on every backend, without a round trip.

use super::{ApiKeyRecord, NewHandle, NewIntent, Result, Settlement, StoreError, StoreErrorKind, TaskWrite};
use crate::task::limits;

/// Longest local id, in characters.
const ID_MAX_CHARS: usize = 64;

pub(super) fn check_intent(intent: &NewIntent) -> Result<()> {
    const OPERATION: &str = "insert_intent";
    let check = |column, text: &str, max| check_text(OPERATION, column, text, max);
    let caller = limits::CALLER_ID_MAX_CHARS;
    check("id", &intent.id, ID_MAX_CHARS)?;
    check("user_id", &intent.user_id, caller)?;
    check("thread_id", &intent.thread_id, caller)?;
    check("server_name", &intent.binding.server_name, limits::SERVER_NAME_MAX_CHARS)?;
    let toolset = &intent.binding.toolset;
    check("task_name", &toolset.name, limits::TASK_NAME_MAX_CHARS)?;
    for (column, text) in [
        ("driver", &intent.binding.driver),
        ("submit_tool", &toolset.submit_tool),
        ("status_tool", &toolset.status_tool),
        ("cancel_tool", &toolset.cancel_tool),
    ] {
        check(column, text, usize::MAX)?;
    }
    for (column, text, max) in [
        ("run_id", &intent.run_id, caller),
        ("tool_call_id", &intent.tool_call_id, caller),
        ("idempotency_key", &intent.idempotency_key, caller),
        ("input_tool", &toolset.input_tool, usize::MAX),
        ("body_hash", &intent.body_hash, usize::MAX),
        ("arguments", &intent.arguments, limits::KEPT_ARGUMENTS_MAX_BYTES),
    ] {
        text.as_ref().map_or(Ok(()), |text| check(column, text, max))?;
    }
    Ok(())
}

pub(super) fn check_handle(handle: &NewHandle) -> Result<()> {
    check_text("record_submitted", "remote_task_id", &handle.remote_task_id, limits::REMOTE_ID_MAX_CHARS)
}

pub(super) fn check_settlement(settlement: &Settlement) -> Result<()> {
    let error = settlement.error.as_deref();
    error.map_or(Ok(()), |error| check_text("settle_delivery", "last_error", error, limits::ERROR_MAX_CHARS))
}

pub(super) fn check_key(key: &ApiKeyRecord) -> Result<()> {
    let check = |column, text: &str, max| check_text("insert_key", column, text, max);
    check("id", &key.id, ID_MAX_CHARS)?;
    check("user_id", &key.user_id, limits::CALLER_ID_MAX_CHARS)?;
    check("scopes", &key.scopes, limits::CALLER_ID_MAX_CHARS)?;
    check("secret_hash", &key.secret_hash, limits::CALLER_ID_MAX_CHARS)
}

pub(super) fn check_write(operation: &'static str, write: &TaskWrite) -> Result<()> {
    let check = |column, text: Option<&str>, max| text.map_or(Ok(()), |text| check_text(operation, column, text, max));
    let change = &write.change;
    check("last_poll_error", change.last_poll_error.as_ref().and_then(Option::as_deref), limits::ERROR_MAX_CHARS)?;
    check("last_cancel_error", change.last_cancel_error.as_ref().and_then(Option::as_deref), limits::ERROR_MAX_CHARS)?;
    check("event_fingerprint", change.event_fingerprint.as_deref(), usize::MAX)?;
    let Some((outcome, digest)) = &change.outcome else { return Ok(()) };
    check("snapshot_digest", Some(digest), usize::MAX)?;
    check("error", outcome.error.as_deref(), limits::ERROR_MAX_CHARS)?;
    check("error_code", outcome.error_code.as_deref(), limits::ERROR_CODE_MAX_CHARS)?;
    check("result_preview", outcome.result_preview.as_deref(), usize::MAX)?;
    for (column, json) in [
        ("result", &outcome.result),
        ("result_artifact", &outcome.result_artifact),
        ("input_required", &outcome.input_required),
    ] {
        check(column, json.as_ref().map(crate::task::Json::as_str), usize::MAX)?;
    }
    Ok(())
}

/// Whether a text that a caller looks for can be in no row.
pub(super) fn unstorable<'a>(texts: impl IntoIterator<Item = Option<&'a str>>) -> bool {
    texts.into_iter().flatten().any(|text| text.contains('\0'))
}

fn check_text(operation: &'static str, column: &str, text: &str, max_chars: usize) -> Result<()> {
    let refuse = |why: String| Err(StoreError::new(StoreErrorKind::Data, operation, format!("{column} {why}")));
    if text.contains('\0') {
        return refuse("holds U+0000".to_owned());
    }
    // A text has at most as many characters as bytes, so only long ones are counted.
    if text.len() > max_chars && text.chars().count() > max_chars {
        return refuse(format!("is longer than {max_chars} characters"));
    }
    Ok(())
}
