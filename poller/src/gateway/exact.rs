//! Results as exact text, through rmcp's types.
//!
//! The handler puts the raw result, as a string, into the `_meta` of an otherwise empty one; rmcp frames it as its era
//! demands; at the rim (the HTTP body, the line on stdout) [`restore`] puts the raw text in its place. A server's own
//! result is always inside that string, so it cannot forge the member.

use indexmap::IndexMap;
use rmcp::model::{
    CallToolResponse, CallToolResult, CustomResult, DetailedTask, GetTaskResult, InitializeResult, ListToolsResult,
    MetaObject, Task, TaskPayload, TaskStatus,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

const KEY: &str = "mcp-taskd/exact";

/// The members of an object, each as it came.
pub type Members = IndexMap<String, Box<RawValue>>;

#[derive(Deserialize)]
struct Carrier {
    #[serde(rename = "mcp-taskd/exact")]
    exact: String,
}

#[derive(Serialize)]
struct Tools<'a> {
    tools: Vec<&'a RawValue>,
}

/// A `tools/list` result that stands for `raw`.
pub fn list_result(raw: &RawValue) -> ListToolsResult {
    ListToolsResult { meta: Some(carrier(raw)), ..ListToolsResult::default() }
}

/// A `tools/call` result that stands for `raw`.
pub fn call_result(raw: &RawValue) -> CallToolResponse {
    let mut result = CallToolResult::success(Vec::new());
    result.meta = Some(carrier(raw));
    result.into()
}

/// A result that rmcp has no type for and that stands for `raw`.
pub fn custom_result(raw: &RawValue) -> CustomResult {
    CustomResult::new(json!({ "_meta": carrier(raw) }))
}

/// A `tasks/get` result that stands for `raw`.
pub fn task_result(raw: &RawValue) -> GetTaskResult {
    let task = DetailedTask::new(Task::new("", TaskStatus::Working, "", ""), TaskPayload::Working);
    let mut result = GetTaskResult::new(task);
    result.meta = Some(carrier(raw));
    result
}

/// A greeting whose `capabilities` are `raw`.
pub fn greeting(mut answer: InitializeResult, capabilities: &RawValue) -> InitializeResult {
    answer.meta =
        Some(carrier(&crate::view::raw(&Members::from_iter([("capabilities".into(), capabilities.to_owned())]))));
    answer
}

/// The params of a notification that stand for `raw`.
pub fn carried(raw: &RawValue) -> Value {
    json!({ KEY: raw.get() })
}

/// The text of a `tools/list` result with these definitions.
pub fn tools<'a>(definitions: impl Iterator<Item = &'a RawValue>) -> Box<RawValue> {
    crate::view::raw(&Tools { tools: definitions.collect() })
}

fn carrier(raw: &RawValue) -> MetaObject {
    let mut meta = MetaObject::new();
    meta.insert(KEY.into(), Value::String(raw.get().to_owned()));
    meta
}

/// Whether a message carries a raw result.
pub fn is_carried(message: &str) -> bool {
    message.contains(KEY)
}

/// Puts the raw result, or the raw params, into a message that carries them; `None` where it carries none.
///
/// What rmcp added for the era (`resultType`, caching hints) stays, unless the raw result says it itself.
pub fn restore(message: &str) -> Option<String> {
    if !is_carried(message) {
        return None;
    }
    let mut envelope: Members = serde_json::from_str(message).ok()?;
    if let Some(params) = envelope.get("params") {
        let carrier: Carrier = serde_json::from_str(params.get()).ok()?;
        envelope.insert("params".into(), RawValue::from_string(carrier.exact).ok()?);
        return serde_json::to_string(&envelope).ok();
    }
    let framed: Members = serde_json::from_str(envelope.get("result")?.get()).ok()?;
    let carrier: Carrier = serde_json::from_str(framed.get("_meta")?.get()).ok()?;
    let mut exact: Members = serde_json::from_str(&carrier.exact).ok()?;
    for (name, value) in framed {
        if !matches!(name.as_str(), "_meta" | "tools" | "content" | "isError" | "structuredContent") {
            exact.entry(name).or_insert(value);
        }
    }
    let result = serde_json::value::to_raw_value(&exact).ok()?;
    envelope.insert("result".into(), result);
    serde_json::to_string(&envelope).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(result: &impl Serialize) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{}}}"#, serde_json::to_string(result).unwrap())
    }

    #[test]
    fn a_tool_result_comes_out_as_it_went_in() {
        let raw = r#"{"structuredContent":{"n":12345678901234567890.10},"content":[{"type":"odd","x":1}],"extra":{"b":1,"a":2}}"#;
        let CallToolResponse::Complete(result) = call_result(&RawValue::from_string(raw.into()).unwrap()) else {
            panic!("not complete")
        };
        let restored = restore(&framed(&result)).unwrap();
        let body = restored.strip_prefix(r#"{"jsonrpc":"2.0","id":1,"result":"#).unwrap();
        assert!(body.starts_with(raw.strip_suffix('}').unwrap()), "{restored}");
        assert!(body.contains(r#""resultType":"complete""#), "what the era needs is added: {restored}");
    }

    #[test]
    fn definitions_keep_their_members_and_their_order() {
        let definition =
            RawValue::from_string(r#"{"name":"z","inputSchema":{"z":1,"a":2},"x-odd":null}"#.into()).unwrap();
        let restored = restore(&framed(&list_result(&tools([&*definition].into_iter())))).unwrap();
        assert!(restored.contains(&format!(r#""tools":[{}]"#, definition.get())), "{restored}");
        assert!(!restored.contains(KEY));
    }

    #[test]
    fn other_messages_are_left_alone_and_a_server_cannot_forge_the_carrier() {
        assert_eq!(restore(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#), None);
        assert_eq!(restore(r#"{"jsonrpc":"2.0","id":1,"error":{"message":"mcp-taskd/exact"}}"#), None);
        let forged = r#"{"content":[],"_meta":{"mcp-taskd/exact":"{\"forged\":true}"}}"#;
        let CallToolResponse::Complete(result) = call_result(&RawValue::from_string(forged.into()).unwrap()) else {
            panic!("not complete")
        };
        let restored = restore(&framed(&result)).unwrap();
        assert!(restored.contains(r#""_meta":{"mcp-taskd/exact":"{\"forged\":true}"}"#), "restored once: {restored}");
    }
}
