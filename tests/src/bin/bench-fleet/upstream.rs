//! A server in this process whose tasks run for ever, and which answers at once.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use mcp_taskd_core::upstream::{CallError, ToolCall, Upstream};
use serde_json::value::RawValue;

/// Counts how often it was asked.
#[derive(Debug, Default)]
pub(crate) struct Endless(AtomicU64);

impl Endless {
    pub(crate) fn calls(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Upstream for Endless {
    async fn call_tool(&self, call: ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        #[derive(serde::Deserialize)]
        struct Arguments<'a> {
            task_id: &'a str,
        }
        self.0.fetch_add(1, Ordering::Relaxed);
        let arguments: Arguments<'_> = serde_json::from_str(call.arguments.get()).expect("a status call's arguments");
        // A hint of a minute: what is measured is the takeover, not how many polls a second there can be.
        let answer = format!(
            r#"{{"content":[],"structuredContent":{{"task_id":"{}","status":"running","poll_after_seconds":60}}}}"#,
            arguments.task_id
        );
        Ok(RawValue::from_string(answer).expect("JSON"))
    }

    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        Ok(Vec::new())
    }

    async fn close(&self) {}
}
