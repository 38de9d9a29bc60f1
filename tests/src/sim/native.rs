//! How a simulated server says of MCP's own tasks what is so (protocol 2026-07-28).

use mcp_taskd_core::task::Status;
use mcp_taskd_core::upstream::{CallError, CallErrorKind};
use serde_json::{Value, json};

use super::oracle::Saying;
use super::plan::Work;

/// How long a cancel takes to take effect after it was acknowledged; work may end before.
pub(super) const CANCEL_TAKES_MS: u64 = 2_500;

/// The task as `tasks/get` shows it, or the error that it does not exist.
pub(super) fn task(id: &str, work: Option<&Work>, truth: Saying) -> Result<Value, CallError> {
    let (status, more) = match truth {
        Saying::Running(step) => ("working", json!({"statusMessage": format!("step {step}")})),
        Saying::AsksInput => {
            let question = json!({"method": "elicitation/create", "params": {"message": id}});
            ("input_required", json!({"inputRequests": {"q": question}}))
        }
        Saying::Ended(Status::Failed) => {
            ("failed", json!({"error": {"code": -32_000, "message": format!("failed {id}")}}))
        }
        Saying::Ended(Status::Cancelled) => ("cancelled", json!({})),
        Saying::Ended(_) => {
            let pad = if work.is_some_and(|work| work.large) { "x".repeat(2_000) } else { String::new() };
            let result = if pad.is_empty() { json!({"end": id}) } else { json!({"end": id, "pad": pad}) };
            ("completed", json!({"result": {"content": [], "structuredContent": result}}))
        }
        Saying::NotFound | Saying::Violation => return Err(unknown(id)),
    };
    let mut task = json!({"resultType": "complete", "taskId": id, "status": status, "ttlMs": null});
    if let Some(hint) = work.and_then(|work| work.hint_ms) {
        task["pollIntervalMs"] = json!(hint);
    }
    if let (Value::Object(task), Value::Object(more)) = (&mut task, more) {
        task.extend(more);
    }
    Ok(task)
}

/// The answer about a task that does not exist.
pub(super) fn unknown(id: &str) -> CallError {
    rpc(-32_602, &format!("lost {id}"))
}

/// A JSON-RPC error.
pub(super) fn rpc(code: i64, message: &str) -> CallError {
    let message = format!("JSON-RPC error {code}: {message}");
    CallError { rpc_code: Some(code), ..CallError::new(CallErrorKind::Rpc, message) }
}
