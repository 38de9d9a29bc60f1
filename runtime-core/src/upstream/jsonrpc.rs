//! JSON-RPC and MCP framing that all transports share: answers read leniently; `request.rs` writes requests.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{CallError, CallErrorKind};
use crate::task::limits::{SNIPPET_MAX_CHARS, clip};

/// The stateless protocol.
pub(super) const MODERN_VERSION: &str = "2026-07-28";
/// The newest protocol with sessions.
pub(super) const LEGACY_VERSION: &str = "2025-11-25";

/// Which of the two kinds of protocol a server speaks (`MCP_TASKS`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    /// `initialize` and sessions.
    Legacy,
    /// `server/discover`, every request for itself.
    Modern,
}

/// What every modern request says of the client, before its capabilities.
pub(super) const MODERN_META: &str = concat!(
    "\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",",
    "\"io.modelcontextprotocol/clientInfo\":{\"name\":\"mcp-taskd\",\"version\":\"",
    env!("CARGO_PKG_VERSION"),
    "\"},"
);

/// The capabilities in most requests.
pub(super) const NO_CAPABILITIES: &str = "\"io.modelcontextprotocol/clientCapabilities\":{}";

/// The text of `initialize`.
pub(super) fn initialize(id: u64) -> Vec<u8> {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"initialize\",\"params\":{{\"protocolVersion\":\"{LEGACY_VERSION}\",\
         \"capabilities\":{{}},\"clientInfo\":{{\"name\":\"mcp-taskd\",\"version\":\"{}\"}}}}}}",
        env!("CARGO_PKG_VERSION")
    )
    .into_bytes()
}

/// The text that follows a successful `initialize`.
pub(super) const INITIALIZED: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}";

/// The notification that a request is given up.
const CANCELLED: &str = "notifications/cancelled";

/// The text that tells a server that nobody waits for the request any more.
pub(super) fn cancelled(id: u64, era: Era) -> Vec<u8> {
    let meta =
        if era == Era::Modern { format!(",\"_meta\":{{{MODERN_META}{NO_CAPABILITIES}}}") } else { String::new() };
    format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"{CANCELLED}\",\
         \"params\":{{\"requestId\":{id},\"reason\":\"no longer awaited\"{meta}}}}}"
    )
    .into_bytes()
}

/// The method that asks a modern server to tell of changes.
pub(super) const LISTEN: &str = "subscriptions/listen";

/// The text that asks a modern server to tell of changes to its tools.
pub(super) fn listen(id: u64) -> Vec<u8> {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{LISTEN}\",\
         \"params\":{{\"notifications\":{{\"toolsListChanged\":true}},\"_meta\":{{{MODERN_META}{NO_CAPABILITIES}}}}}}}"
    )
    .into_bytes()
}

/// The answer to a request of the server's: `ping` is answered, nothing else exists here.
pub(super) fn answer(id: &RawValue, method: &str) -> Vec<u8> {
    let id = id.get();
    if method == "ping" {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{}}}}").into_bytes()
    } else {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":-32601,\"message\":\"method not found\"}}}}")
            .into_bytes()
    }
}

/// A message from a server, as far as it matters.
#[derive(Debug, Deserialize)]
pub(super) struct Message<'a> {
    #[serde(borrow, default)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
}

/// What a server says of its own accord.
#[derive(Debug, Clone, Copy)]
pub(super) struct Aside<'a> {
    /// There where it wants an answer.
    pub(super) id: Option<&'a RawValue>,
    pub(super) method: &'a str,
    params: Option<&'a RawValue>,
}

impl Aside<'_> {
    /// The request of ours that the server will not go on with: so it ends a subscription on stdio.
    pub(super) fn given_up(&self) -> Option<u64> {
        #[derive(Deserialize)]
        struct Cancelled<'a> {
            #[serde(borrow, rename = "requestId")]
            request: &'a RawValue,
        }
        let params = self.params.filter(|_| self.method == CANCELLED)?;
        serde_json::from_str::<Cancelled<'_>>(params.get()).ok().and_then(|cancelled| number(cancelled.request))
    }
}

impl<'a> Message<'a> {
    /// The messages in `text`: one, or a batch of them. What is no message is left out.
    pub(super) fn read_all(text: &'a str) -> Vec<Self> {
        if text.trim_start().starts_with('[') {
            let batch: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
            batch.into_iter().filter_map(|raw| serde_json::from_str(raw.get()).ok()).collect()
        } else {
            serde_json::from_str(text).ok().into_iter().collect()
        }
    }

    /// What it says where it is no answer: a request of the server's, or where it has no id a notification.
    pub(super) fn aside(&self) -> Option<Aside<'_>> {
        Some(Aside { id: self.id, method: self.method.as_deref()?, params: self.params })
    }

    /// Whether it answers the request `id`.
    pub(super) fn answers(&self, id: u64) -> bool {
        self.method.is_none() && self.id.is_some_and(|raw| number(raw) == Some(id))
    }
}

/// The notification that a server's tools have changed.
pub(super) const LIST_CHANGED: &str = "notifications/tools/list_changed";

/// The number that an id is; servers are known to answer with it as a string.
pub(super) fn number(id: &RawValue) -> Option<u64> {
    let text = id.get();
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text).parse().ok()
}

/// A JSON-RPC error, as far as it can be read.
#[derive(Debug, Default)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
    /// `data.supported` names versions, and the modern one is not among them.
    pub(super) modern_unsupported: bool,
}

impl RpcError {
    pub(super) fn read(raw: &RawValue) -> Self {
        let value: serde_json::Value = serde_json::from_str(raw.get()).unwrap_or_default();
        let supported = value["data"]["supported"].as_array();
        Self {
            code: value["code"].as_f64().unwrap_or_default() as i64,
            message: value["message"].as_str().unwrap_or_default().to_owned(),
            modern_unsupported: supported
                .is_some_and(|versions| !versions.iter().any(|version| version == MODERN_VERSION)),
        }
    }

    /// Whether only a server of the modern era answers like this.
    pub(super) fn is_modern(&self) -> bool {
        matches!(self.code, -32_022..=-32_020) && !self.modern_unsupported
    }

    pub(super) fn into_call_error(self) -> CallError {
        let message = clip(self.message.trim(), SNIPPET_MAX_CHARS);
        let mut error = CallError::new(CallErrorKind::Rpc, format!("JSON-RPC error {}: {message}", self.code));
        error.rpc_code = Some(self.code);
        // The codes for requests that were not understood; anything else may come from half-done work.
        error.maybe_executed = !matches!(self.code, -32_700 | -32_602..=-32_600 | -32_022..=-32_020);
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn an_answer_is_found_by_its_id_in_batches_and_among_strings() {
        let batch = r#"[{"id":1,"result":1}, 7, {"method":"ping","id":2}, {"id":"2","result":{"x":1},"more":[]}]"#;
        let found = Message::read_all(batch).into_iter().find(|message| message.answers(2)).unwrap();
        assert_eq!(found.result.unwrap().get(), r#"{"x":1}"#);
        assert!(Message::read_all("<html>").is_empty());
        assert!(Message::read_all(r#"{"id":null,"result":1}"#).iter().all(|message| !message.answers(0)));
    }

    #[test]
    fn a_request_that_the_server_gives_up_is_named_by_its_id() {
        let given_up = |text: &'static str| Message::read_all(text)[0].aside().unwrap().given_up();
        assert_eq!(given_up(r#"{"method":"notifications/cancelled","params":{"x":[],"requestId":"7"}}"#), Some(7));
        assert_eq!(given_up(r#"{"method":"notifications/cancelled","params":{"requestId":"listen"}}"#), None);
        assert_eq!(given_up(r#"{"method":"notifications/cancelled"}"#), None);
        assert_eq!(given_up(r#"{"method":"notifications/progress","params":{"requestId":7}}"#), None);
    }

    #[test]
    fn errors_are_bounded_and_say_whether_the_call_was_understood() {
        let long = format!(r#"{{"code":-32603,"message":"{}"}}"#, "x".repeat(2_000));
        let error = RpcError::read(&raw(&long)).into_call_error();
        assert!(error.message.len() < 600 && error.maybe_executed);
        assert!(!RpcError::read(&raw(r#"{"code":-32602,"message":"no such tool"}"#)).into_call_error().maybe_executed);
        assert_eq!(RpcError::read(&raw("7")).into_call_error().kind, CallErrorKind::Rpc);
    }
}
