//! What the gateway tells a client about itself: MCP's `instructions`.

use std::fmt::Write as _;
use std::sync::Arc;

use mcp_taskd_core::catalog::{TOOL_SEARCH, Tool, hints};

const BACKGROUND: &str = "Some tools start background tasks: they answer at once with a task_id while the work goes on \
    for minutes or days. The daemon follows each task by itself, so do not wait for one or ask about it again and \
    again; go on with other work, and look it up when its result is needed.";

/// The text for these tools; `deferred` says that only a search shows them.
pub fn instructions(tools: &[Arc<Tool>], deferred: bool) -> String {
    let mut text = BACKGROUND.to_owned();
    if deferred {
        let _ = write!(
            text,
            "\n\nMost tools are deferred: only their names are known, from the description of {TOOL_SEARCH}. Call it to \
             load the ones that are needed before calling them."
        );
    }
    let hints = hints(tools, deferred);
    if !hints.is_empty() {
        text.push_str("\n\n");
        text.push_str(&hints);
    }
    text
}
