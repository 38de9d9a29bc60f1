//! What a submit tool's answer means (BEHAVIOURS 1–6, 23, 152).

use serde_json::value::RawValue;

use super::ToolAnswer;
use super::status::{Wire, text};
use crate::task::limits::{REMOTE_ID_MAX_CHARS, clip};

/// Why a submit was not accepted; nothing is stored (2, 5).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What to tell the caller.
    pub message: String,
    /// A remote task that exists nevertheless and has to be cancelled (23, 152).
    pub orphan: Option<String>,
}

/// The remote id that the answer of the submit tool `tool` hands over.
pub fn read_submit(answer: &ToolAnswer, tool: &str) -> Result<String, Refusal> {
    let refuse = |message: String, orphan: Option<String>| Err(Refusal { message, orphan });
    if answer.is_error {
        return refuse(format!("{tool} returned an error: {}", answer.snippet), None);
    }
    let broke = |why: &str| format!("{tool} broke the task contract: {why}");
    let Some(structured) = &answer.structured else {
        return refuse(broke("the answer has no structuredContent"), None);
    };
    let Ok(wire) = serde_json::from_str::<Wire<'_>>(structured.get()) else {
        return refuse(broke("structuredContent is no object, or names a member twice"), None);
    };
    let id = check_handle(wire.task_id, "task_id", tool)?;
    match wire.status.map(text) {
        Some(Ok(Some(status))) if status == "running" => Ok(id),
        Some(Ok(Some(status))) => {
            refuse(broke(&format!("a submit answers status \"running\", not {:?}", clip(&status, 64))), Some(id))
        }
        _ => refuse(broke("status is missing or no string"), Some(id)),
    }
}

/// The id of a new task, in the member `name` of what `tool` answered; one that cannot be tracked is to be cancelled (23).
pub(super) fn check_handle(raw: Option<&RawValue>, name: &str, tool: &str) -> Result<String, Refusal> {
    let refuse =
        |why: String, orphan| Err(Refusal { message: format!("{tool} broke the task contract: {name} {why}"), orphan });
    let id = match raw.map(text) {
        Some(Ok(Some(id))) if !id.is_empty() => id,
        _ => return refuse("is missing, empty or no string".to_owned(), None),
    };
    if id.contains('\0') {
        return refuse("contains U+0000".to_owned(), Some(id));
    }
    if id.chars().count() > REMOTE_ID_MAX_CHARS {
        return refuse(format!("is longer than {REMOTE_ID_MAX_CHARS} characters"), Some(id));
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::super::answer::answer;
    use super::*;

    fn submit(structured: &str) -> Result<String, Refusal> {
        read_submit(&answer(&format!(r#"{{"structuredContent":{structured}}}"#)), "submit_it")
    }

    #[test]
    fn a_running_task_with_an_id_is_accepted_1_3() {
        assert_eq!(submit(r#"{"task_id":"r-1","status":"running","eta":3}"#), Ok("r-1".to_owned()));
    }

    #[test]
    fn anything_without_an_id_is_refused_and_leaves_nothing_to_cancel_2_4() {
        for structured in [
            "null",
            "{}",
            r#"{"status":"running"}"#,
            r#"{"task_id":"","status":"running"}"#,
            r#"{"task_id":5,"status":"running"}"#,
            "[]",
        ] {
            assert_eq!(submit(structured).unwrap_err().orphan, None, "{structured}");
        }
        let text = answer(r#"{"content":[{"type":"text","text":"{\"task_id\":\"r\",\"status\":\"running\"}"}]}"#);
        assert!(read_submit(&text, "submit_it").is_err());
    }

    #[test]
    fn an_id_with_a_wrong_status_is_cancelled_152() {
        for status in ["\"completed\"", "\"queued\"", "\"Running\"", "1", "null"] {
            let refusal = submit(&format!(r#"{{"task_id":"r-1","status":{status}}}"#)).unwrap_err();
            assert_eq!(refusal.orphan.as_deref(), Some("r-1"), "{status}");
        }
    }

    #[test]
    fn an_overlong_id_is_cancelled_and_refused_23() {
        let id = |chars: usize| "ü".repeat(chars);
        let of = |id: &str| submit(&format!(r#"{{"task_id":"{id}","status":"running"}}"#));
        assert!(of(&id(255)).is_ok());
        assert_eq!(of(&id(256)).unwrap_err().orphan, Some(id(256)));
    }

    #[test]
    fn a_tool_error_is_shown_with_its_first_text_5() {
        let failed = answer(r#"{"isError":true,"content":[{"type":"text","text":"no quota"}]}"#);
        assert_eq!(read_submit(&failed, "submit_it").unwrap_err().message, "submit_it returned an error: no quota");
    }
}
