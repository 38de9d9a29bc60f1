//! The JSON Schema of `extensions_config.json` (`config schema extensions`): for editors; the program itself reads leniently.

use serde_json::{Value, json};

use crate::task::Toolset;
use crate::task::limits::TASK_NAME_MAX_CHARS;

/// The JSON Schema of `extensions_config.json`.
///
/// A text that is wholly `$NAME` stands for a variable's value, so that numbers may be texts too; keys of other programs
/// are allowed everywhere but where this one refuses them.
pub fn extensions_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mcp-taskd extensions_config.json",
        "type": "object",
        "properties": {
            "mcpServers": { "type": ["object", "null"], "additionalProperties": server() },
            "mcpInterceptors": { "anyOf": [
                { "type": "null" }, interceptor(), { "type": "array", "items": interceptor() },
            ]},
        },
    })
}

fn server() -> Value {
    let source = json!({ "type": ["object", "null"], "properties": { "enabled": { "type": ["boolean", "null"] } } });
    json!({
        "type": "object",
        "properties": {
            "enabled": { "type": ["boolean", "null"], "default": true },
            "type": { "enum": ["stdio", "http", "sse"], "default": "stdio" },
            "transport": { "enum": ["stdio", "http", "sse"], "deprecated": true },
            "command": { "type": ["string", "null"] },
            "args": { "type": ["array", "null"], "items": { "type": "string" } },
            "env": texts(),
            "cwd": { "type": ["string", "null"] },
            "url": { "type": ["string", "null"] },
            "headers": texts(),
            "description": { "type": ["string", "null"] },
            "oauth": source,
            "user_auth": source,
            "headers_from_context": source,
            "routing": routing(),
            "tools": {
                "type": ["object", "null"],
                "additionalProperties": { "type": ["object", "null"], "properties": { "routing": routing() } },
            },
            "tool_name_prefix": { "type": ["boolean", "null"], "default": true },
            "session_init_timeout": seconds(),
            "tool_call_timeout": seconds(),
            "max_concurrent_calls": { "type": ["integer", "null"], "minimum": 1, "maximum": 4096 },
            "task_toolsets": { "type": ["array", "null"], "items": toolset() },
        },
    })
}

fn toolset() -> Value {
    let name = json!({ "type": "string", "pattern": r"\S" });
    let absent = json!({ "type": "null" });
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "pattern": r"\S", "maxLength": TASK_NAME_MAX_CHARS },
            "submit_tool": name,
            "driver": { "enum": [Toolset::TOOLS, Toolset::NATIVE, null], "default": Toolset::TOOLS },
            "status_tool": { "type": ["string", "null"], "pattern": r"\S" },
            "cancel_tool": { "type": ["string", "null"], "pattern": r"\S" },
            "input_tool": { "type": ["string", "null"], "pattern": r"\S" },
            "idempotent_submit": { "type": ["boolean", "null"], "default": false },
        },
        "required": ["name", "submit_tool"],
        // MCP's own tasks have methods in place of the other tools.
        "if": { "properties": { "driver": { "const": Toolset::NATIVE } }, "required": ["driver"] },
        "then": { "properties": { "status_tool": absent, "cancel_tool": absent, "input_tool": absent } },
        "else": { "properties": { "status_tool": name, "cancel_tool": name }, "required": ["status_tool", "cancel_tool"] },
        "additionalProperties": false,
    })
}

fn routing() -> Value {
    json!({
        "type": ["object", "null"],
        "properties": {
            "mode": { "enum": ["off", "prefer", null] },
            "priority": { "type": ["number", "string", "null"] },
            "keywords": { "type": ["array", "null"], "items": { "type": "string" } },
        },
        "additionalProperties": false,
    })
}

fn interceptor() -> Value {
    json!({ "anyOf": [
        { "type": "string", "description": "a Python import path, which is ignored here" },
        {
            "type": "object",
            "properties": {
                "name": { "type": "string", "minLength": 1, "maxLength": 128 },
                "url": { "type": "string" },
                "timeout_seconds": seconds(),
                "on_error": { "enum": ["deny", "skip", null] },
                "arguments": { "type": ["boolean", "null"] },
            },
            "required": ["name", "url"],
            "additionalProperties": false,
        },
    ]})
}

fn texts() -> Value {
    json!({ "type": ["object", "null"], "additionalProperties": { "type": "string" } })
}

/// A number above 0; a variable makes a text of it.
fn seconds() -> Value {
    json!({ "type": ["number", "string", "null"], "exclusiveMinimum": 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_knows_every_key_that_is_read_of_a_server_and_no_other() {
        let schema = server();
        let mut known: Vec<_> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        let mut read = super::super::server::SERVER_KEYS.to_vec();
        known.sort_unstable();
        read.sort_unstable();
        assert_eq!(known, read);
    }
}
