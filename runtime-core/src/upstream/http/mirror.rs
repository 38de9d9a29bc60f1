//! What a request's body says, said again in its headers, for whoever routes by them (MCP 2026-07-28).

use std::collections::{HashMap, HashSet};

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::upstream::request::Request;

/// Deepest nesting of a schema that is looked through.
const MAX_DEPTH: usize = 16;

/// The arguments that tools want to see in `Mcp-Param-*` headers, as their schemas say (`x-mcp-header`).
#[derive(Debug, Default)]
pub(super) struct Mirror(HashMap<String, Vec<Param>>);

#[derive(Debug, PartialEq, Eq)]
struct Param {
    header: HeaderName,
    /// The property's way from the arguments' root.
    path: Vec<String>,
}

impl Mirror {
    /// What `tools` ask for. A tool with an annotation that breaks the rules asks for nothing: the specification has
    /// clients reject it, and its calls fail on the server.
    pub(super) fn of(tools: &[Box<RawValue>]) -> Self {
        let read = tools.iter().filter(|raw| raw.get().contains("x-mcp-header")).filter_map(|raw| {
            let tool: Value = serde_json::from_str(raw.get()).ok()?;
            let name = tool.get("name")?.as_str()?.to_owned();
            let mut params = Vec::new();
            collect(tool.get("inputSchema")?, &mut Vec::new(), &mut params)?;
            let mut seen = HashSet::new();
            // Names of headers are compared without regard to case.
            params.iter().all(|param| seen.insert(param.header.clone())).then_some((name, params))
        });
        Self(read.filter(|(_, params)| !params.is_empty()).collect())
    }

    /// The headers of a modern request.
    pub(super) fn apply(&self, request: &Request<'_>, headers: &mut HeaderMap) {
        headers.insert("mcp-method", HeaderValue::from_static(request.method));
        // A request about a task is routed by its id (SEP-2663).
        let Some(name) = request.name.or(request.task_id) else { return };
        headers.insert("mcp-name", text(name));
        let Some(params) = request.name.and_then(|tool| self.0.get(tool)) else { return };
        let arguments: Value =
            request.arguments.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        for param in params {
            let value = param.path.iter().try_fold(&arguments, |value, key| value.get(key));
            // An argument that is absent or null has no header; lists and objects cannot be annotated.
            let value = match value {
                Some(Value::String(value)) => text(value),
                Some(value @ (Value::Number(_) | Value::Bool(_))) => text(&value.to_string()),
                _ => continue,
            };
            headers.insert(param.header.clone(), value);
        }
    }
}

/// Gathers the annotations below `schema`, along `properties` only; `None` where one cannot be kept.
fn collect(schema: &Value, path: &mut Vec<String>, params: &mut Vec<Param>) -> Option<()> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return Some(()) };
    if path.len() >= MAX_DEPTH {
        return None;
    }
    for (key, property) in properties {
        path.push(key.clone());
        if let Some(annotation) = property.get("x-mcp-header") {
            let header = format!("mcp-param-{}", annotation.as_str().filter(|name| !name.is_empty())?);
            params.push(Param { header: header.parse().ok()?, path: path.clone() });
        }
        collect(property, path, params)?;
        path.pop();
    }
    Some(())
}

/// A text as a header's value: what cannot travel as it is goes as Base64.
fn text(text: &str) -> HeaderValue {
    let plain = crate::config::is_legal_header_value(text) && !text.contains('\t') && !text.starts_with("=?base64?");
    let encoded = if plain { None } else { Some(format!("=?base64?{}?=", base64(text.as_bytes()))) };
    HeaderValue::from_str(encoded.as_deref().unwrap_or(text)).unwrap_or(HeaderValue::from_static(""))
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn raw(value: &Value) -> Box<RawValue> {
        RawValue::from_string(value.to_string()).unwrap()
    }

    fn headers(schema: &Value, arguments: &Value) -> Vec<(String, String)> {
        let mirror = Mirror::of(&[raw(&json!({"name": "t", "inputSchema": schema}))]);
        let mut headers = HeaderMap::new();
        let arguments = raw(arguments);
        let request = Request { name: Some("t"), arguments: Some(&arguments), ..Request::new("tools/call") };
        mirror.apply(&request, &mut headers);
        let mut all: Vec<_> = headers
            .iter()
            .filter_map(|(name, value)| {
                Some((name.as_str().strip_prefix("mcp-param-")?.to_owned(), value.to_str().ok()?.to_owned()))
            })
            .collect();
        all.sort();
        all
    }

    #[test]
    fn values_that_no_header_takes_travel_as_base64() {
        assert_eq!(text("get_status"), "get_status");
        assert_eq!(text("prüfe"), "=?base64?cHLDvGZl?=");
        assert_eq!(text(" a"), "=?base64?IGE=?=");
        assert_eq!(text("=?base64?x?="), "=?base64?PT9iYXNlNjQ/eD89?=");
        assert_eq!(["", "f", "fo", "foo"].map(|text| base64(text.as_bytes())), ["", "Zg==", "Zm8=", "Zm9v"]);
    }

    #[test]
    fn annotated_arguments_are_repeated_in_headers() {
        let schema = json!({"properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "limit": {"type": "integer", "x-mcp-header": "Limit"},
            "dry": {"type": "boolean", "x-mcp-header": "Dry-Run"},
            "where": {"type": "object", "properties": {"zone": {"type": "string", "x-mcp-header": "Zone"}}},
            "absent": {"type": "string", "x-mcp-header": "Absent"},
            "null": {"type": "string", "x-mcp-header": "Null"},
            "plain": {"type": "string"},
        }});
        let arguments = json!({"region": "süd", "limit": 42, "dry": false, "where": {"zone": "a"}, "null": null,
            "plain": "p"});
        let expected = [("dry-run", "false"), ("limit", "42"), ("region", "=?base64?c8O8ZA==?="), ("zone", "a")];
        assert_eq!(headers(&schema, &arguments), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_request_about_a_task_is_named_by_the_tasks_id() {
        let mut headers = HeaderMap::new();
        let request = Request { task_id: Some("r-1"), ..Request::new("tasks/get") };
        Mirror::default().apply(&request, &mut headers);
        assert_eq!(
            (&headers["mcp-method"], &headers["mcp-name"]),
            (&"tasks/get".parse().unwrap(), &"r-1".parse().unwrap())
        );
    }

    #[test]
    fn annotations_that_break_the_rules_are_not_followed() {
        let bad = [
            json!({"properties": {"a": {"x-mcp-header": "A B"}}}),
            json!({"properties": {"a": {"x-mcp-header": ""}}}),
            json!({"properties": {"a": {"x-mcp-header": 7}}}),
            json!({"properties": {"a": {"x-mcp-header": "X"}, "b": {"x-mcp-header": "x"}}}),
            json!({"items": {"properties": {"a": {"x-mcp-header": "A"}}}}),
        ];
        for schema in bad {
            assert_eq!(headers(&schema, &json!({"a": "1", "b": "2"})), [], "{schema}");
        }
    }
}
