//! What `tools/list` of 2025-11-25 says of each tool: whether it may be called as a task.

use std::borrow::Cow;

use mcp_taskd_core::catalog::Tool;
use serde_json::value::RawValue;

use super::{Generation, with};

const OPTIONAL: &str = r#"{"taskSupport":"optional"}"#;
const FORBIDDEN: &str = r#"{"taskSupport":"forbidden"}"#;

/// A tool's definition as a client sees it. Where no client may ask for tasks it is the catalogue's.
pub fn definition(tool: &Tool, generation: Option<Generation>) -> Cow<'_, RawValue> {
    let definition = &*tool.definition;
    if generation != Some(Generation::Core) {
        return Cow::Borrowed(definition);
    }
    let support = match &tool.toolset {
        Some(_) => OPTIONAL,
        // Its server may run it as a task of its own, but nothing could keep that one here.
        None if definition.get().contains("taskSupport") => FORBIDDEN,
        None => return Cow::Borrowed(definition),
    };
    with(definition, "execution", support).map_or(Cow::Borrowed(definition), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mcp_taskd_core::catalog::Routing;

    use super::*;
    use crate::stub::json;

    fn tool(definition: &str, submits: bool) -> Tool {
        let record = crate::view::tests::task("mcp-task-1");
        Tool {
            name: "t".into(),
            server: "s".into(),
            raw_name: "t".into(),
            definition: json(definition),
            toolset: submits.then(|| Arc::new(record.binding.toolset.clone())),
            routing: Routing::default(),
        }
    }

    #[test]
    fn a_submit_tool_may_be_a_task_and_no_other_whatever_its_server_says() {
        let own = r#"{"name":"t","execution":{"taskSupport":"required"},"z":1.10}"#;
        for (definition, submits, generation, listed) in [
            (r#"{"name":"t"}"#, true, Some(Generation::Core), r#"{"name":"t","execution":{"taskSupport":"optional"}}"#),
            (own, false, Some(Generation::Core), r#"{"name":"t","execution":{"taskSupport":"forbidden"},"z":1.10}"#),
            (r#"{"name":"t","a":1e400}"#, false, Some(Generation::Core), r#"{"name":"t","a":1e400}"#),
            (r#"{"name":"t"}"#, true, Some(Generation::Extension), r#"{"name":"t"}"#),
            (own, false, None, own),
        ] {
            let tool = tool(definition, submits);
            assert_eq!(super::definition(&tool, generation).get(), listed);
        }
    }
}
