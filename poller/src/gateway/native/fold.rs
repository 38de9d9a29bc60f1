//! Requests that rmcp would misread, put so that it passes them on.
//!
//! rmcp has types for the extension of 2026-07-28 only. It drops `task` of a call and `taskIds` of a subscription, and takes
//! `tasks/get` and `tasks/cancel` of 2025-11-25 for those of the extension. So, before it sees a message, the dropped members move
//! to where they are kept, and the methods get names that it has no types for.

use serde_json::value::RawValue;

use super::super::exact::Members;
use super::legacy::TASK_META;

/// Stands before a method that rmcp is not to know.
const PREFIX: &str = "mcp-taskd/";
/// A subscription to tasks.
pub const LISTEN: &str = "subscriptions/listen";
/// What the client speaks, in `_meta`, from 2026-07-28 on.
const VERSION_META: &str = "io.modelcontextprotocol/protocolVersion";

/// A message as rmcp gets it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Fold {
    /// The message, where it is another.
    pub message: Option<String>,
    /// Its method, where that is another.
    pub method: Option<String>,
    /// The task that it is about, in the extension: some clients leave out the header that routes by it.
    pub task: Option<String>,
    /// Whether the answer may be a stream with exact results in it.
    pub streams: bool,
}

/// Folds one message; `modern` says that the transport knows it to be of 2026-07-28 or later.
pub fn fold(message: &[u8], modern: bool) -> Fold {
    try_fold(message, modern).unwrap_or_default()
}

/// A method by its own name.
pub fn unfolded(method: &str) -> &str {
    method.strip_prefix(PREFIX).unwrap_or(method)
}

fn try_fold(message: &[u8], modern: bool) -> Option<Fold> {
    let text = std::str::from_utf8(message).ok()?;
    // Nearly all messages have none of this, and are not read for it.
    if !(text.contains("\"tasks/") || text.contains("\"task\"") || text.contains("\"taskIds\"")) {
        return None;
    }
    let mut envelope: Members = serde_json::from_str(text).ok()?;
    let method: String = serde_json::from_str(envelope.get("method")?.get()).ok()?;
    let mut params: Members = serde_json::from_str(envelope.get("params")?.get()).ok()?;
    let mut meta = match params.get("_meta") {
        Some(meta) => serde_json::from_str(meta.get()).ok()?,
        None => Members::new(),
    };
    let modern = modern || meta.contains_key(VERSION_META);
    let renamed = match (method.as_str(), modern) {
        ("tools/call", false) => {
            meta.insert(TASK_META.into(), params.shift_remove("task")?);
            params.insert("_meta".into(), crate::view::raw(&meta));
            envelope.insert("params".into(), crate::view::raw(&params));
            None
        }
        ("tasks/get" | "tasks/cancel" | "tasks/update", true) => {
            let task = serde_json::from_str(params.get("taskId")?.get()).ok()?;
            return Some(Fold { task: Some(task), ..Fold::default() });
        }
        ("tasks/result", false) => return Some(Fold { streams: true, ..Fold::default() }),
        ("tasks/get" | "tasks/cancel" | "tasks/update", false) => Some(format!("{PREFIX}{method}")),
        (LISTEN, true) => {
            let filter: Members = serde_json::from_str(params.get("notifications")?.get()).ok()?;
            filter.contains_key("taskIds").then(|| format!("{PREFIX}{method}"))?.into()
        }
        _ => return None,
    };
    if let Some(renamed) = &renamed {
        envelope.insert("method".into(), RawValue::from_string(format!("\"{renamed}\"")).ok()?);
    }
    let message = Some(serde_json::to_string(&envelope).ok()?);
    Some(Fold { message, method: renamed, streams: method == LISTEN, task: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(message: &str, modern: bool) -> Fold {
        fold(message.as_bytes(), modern)
    }

    #[test]
    fn what_rmcp_would_drop_moves_and_what_it_would_misread_is_renamed() {
        let call = r#"{"id":1,"method":"tools/call","params":{"name":"t","task":{"ttl":1},"arguments":{"n":1e400}}}"#;
        let moved = r#"{"id":1,"method":"tools/call","params":{"name":"t","arguments":{"n":1e400},"_meta":{"mcp-taskd/task":{"ttl":1}}}}"#;
        assert_eq!(folded(call, false), Fold { message: Some(moved.into()), ..Fold::default() });
        let get = r#"{"id":1,"method":"tasks/get","params":{"taskId":"t"}}"#;
        let renamed = r#"{"id":1,"method":"mcp-taskd/tasks/get","params":{"taskId":"t"}}"#;
        let fold = folded(get, false);
        assert_eq!((fold.message.as_deref(), fold.streams), (Some(renamed), false));
        assert_eq!(unfolded(&fold.method.unwrap()), "tasks/get");
        let listen = r#"{"id":1,"method":"subscriptions/listen","params":{"notifications":{"taskIds":[]}}}"#;
        let fold = folded(listen, true);
        assert_eq!((fold.method.as_deref(), fold.streams), (Some("mcp-taskd/subscriptions/listen"), true));
        assert!(folded(r#"{"id":1,"method":"tasks/result","params":{"taskId":"t"}}"#, false).streams);
    }

    #[test]
    fn everything_else_is_left_as_it_is() {
        let get = r#"{"method":"tasks/get","params":{"taskId":"t","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
        assert_eq!(folded(get, false), Fold { task: Some("t".into()), ..Fold::default() });
        for (message, modern) in [
            (r#"{"method":"tasks/list"}"#, false),
            (r#"{"method":"tools/call","params":{"name":"t","task":{}}}"#, true),
            (r#"{"method":"tools/call","params":{"name":"t","arguments":{"task":1}}}"#, false),
            (r#"{"method":"subscriptions/listen","params":{"notifications":{"taskIds":[]}}}"#, false),
            (r#"{"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true}}}"#, true),
            (r#"["tasks/get"]"#, false),
            (r#""tasks/"#, false),
        ] {
            assert_eq!(folded(message, modern), Fold::default(), "{message}");
        }
        assert_eq!(fold(b"\"tasks/\xff", false), Fold::default());
    }
}
