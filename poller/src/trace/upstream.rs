//! A server whose calls are spans, by the semantic conventions for MCP clients.

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderName, HeaderValue};
use mcp_taskd_core::config::{ServerConfig, Transport};
use mcp_taskd_core::upstream::{CallError, Purpose, SharedUpstream, ToolCall, Upstream};
use opentelemetry::trace::{Link, Span as _, SpanBuilder, SpanContext, SpanKind, Status, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::ids::{submit_of, with_ids_of};

const TRACEPARENT: &str = "traceparent";

/// A server, and what all spans of calls to it say.
pub(super) struct Traced {
    inner: SharedUpstream,
    tracer: Arc<SdkTracer>,
    attributes: Vec<KeyValue>,
    /// Whether it takes HTTP headers.
    over_http: bool,
}

impl Traced {
    pub(super) fn new(tracer: Arc<SdkTracer>, server: &ServerConfig, inner: SharedUpstream) -> Self {
        let mut attributes = vec![KeyValue::new("mcp_taskd.server", server.name.clone())];
        let over_http = match &server.transport {
            Transport::Stdio { .. } => {
                attributes.push(KeyValue::new("network.transport", "pipe"));
                false
            }
            Transport::Http { url, .. } | Transport::Sse { url, .. } => {
                attributes.extend([
                    KeyValue::new("network.transport", "tcp"),
                    KeyValue::new("network.protocol.name", "http"),
                ]);
                attributes.extend(place(url));
                true
            }
        };
        Self { inner, tracer, attributes, over_http }
    }

    fn start(&self, method: &'static str, call: Option<&ToolCall<'_>>) -> Span {
        let mut attributes = self.attributes.clone();
        attributes.push(KeyValue::new("mcp.method.name", method));
        let tool = call.filter(|call| call.method.task_id().is_none());
        let name = tool.map_or_else(|| method.to_owned(), |call| format!("{method} {}", call.tool));
        if let Some(call) = tool {
            attributes.push(KeyValue::new("gen_ai.operation.name", "execute_tool"));
            attributes.push(KeyValue::new("gen_ai.tool.name", call.tool.to_owned()));
        }
        let span = SpanBuilder::from_name(name).with_kind(SpanKind::Client);
        // Whatever runs on this thread beside it is no parent.
        let start = |span: SpanBuilder| self.tracer.build_with_context(span, &Context::new());
        let Some(about) = call.and_then(|call| call.task) else { return start(span.with_attributes(attributes)) };
        attributes.push(KeyValue::new("mcp_taskd.task.id", about.task_id.to_owned()));
        attributes.push(KeyValue::new("mcp_taskd.call.purpose", about.purpose.as_str()));
        let span = span.with_attributes(attributes);
        let submit = submit_of(about.task_id);
        match about.purpose {
            Purpose::Submit => with_ids_of(&submit, || start(span)),
            // A task may live for days: each of these is a trace of its own, with a link to the submit.
            Purpose::Resubmit | Purpose::Status | Purpose::Cancel | Purpose::Input => {
                start(span.with_links(vec![Link::with_context(submit)]))
            }
        }
    }
}

/// Where a URL leads to; never its path, which may hold a secret.
fn place(url: &str) -> Vec<KeyValue> {
    let Ok(uri) = url.parse::<http::Uri>() else { return Vec::new() };
    let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let address = uri.host().map(|host| KeyValue::new("server.address", host.to_owned()));
    address.into_iter().chain([KeyValue::new("server.port", i64::from(uri.port_u16().unwrap_or(default)))]).collect()
}

fn traceparent(context: &SpanContext) -> String {
    format!("00-{}-{}-{:02x}", context.trace_id(), context.span_id(), context.trace_flags().to_u8())
}

fn fail(span: &mut Span, kind: &'static str, message: String) {
    span.set_attribute(KeyValue::new("error.type", kind));
    span.set_status(Status::error(message));
}

/// The tool's own word for a failure, which comes as an answer.
fn is_tool_error(result: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Head {
        #[serde(rename = "isError", default)]
        is_error: bool,
    }
    serde_json::from_str::<Head>(result.get()).is_ok_and(|head| head.is_error)
}

#[async_trait]
impl Upstream for Traced {
    async fn call_tool(&self, call: ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        // Ends when it is dropped, also where nobody waits for the answer any more.
        let mut span = self.start(call.method.as_str(), Some(&call));
        let parent = traceparent(span.span_context());
        let mut meta = call.meta.to_vec();
        meta.push((TRACEPARENT, &parent));
        let mut headers = call.headers.to_vec();
        if let (true, Ok(value)) = (self.over_http, HeaderValue::try_from(&parent)) {
            headers.push((HeaderName::from_static(TRACEPARENT), value));
        }
        let answered = self.inner.call_tool(ToolCall { meta: &meta, headers: &headers, ..call }).await;
        match &answered {
            Ok(result) if is_tool_error(result) => fail(&mut span, "tool_error", "isError".to_owned()),
            Ok(_) => {}
            Err(error) => fail(&mut span, error.kind.as_str(), error.message.clone()),
        }
        answered
    }

    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        let mut span = self.start("tools/list", None);
        let listed = self.inner.list_tools().await;
        if let Err(error) = &listed {
            fail(&mut span, error.kind.as_str(), error.message.clone());
        }
        listed
    }

    fn scrub(&self, text: &str) -> String {
        self.inner.scrub(text)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes()
    }

    async fn refresh(&self) {
        self.inner.refresh().await;
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanId, TraceFlags, TraceId, TraceState};

    use super::*;

    #[test]
    fn a_parent_is_written_as_w3c_has_it() {
        let (trace, span) = (TraceId::from_bytes([1; 16]), SpanId::from_bytes([2; 8]));
        let context = SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::NONE);
        assert_eq!(traceparent(&context), format!("00-{}-{}-01", "01".repeat(16), "02".repeat(8)));
    }

    #[test]
    fn a_span_says_where_a_server_is_and_nothing_else_of_its_url() {
        let said =
            |url: &str| -> Vec<_> { place(url).iter().map(|one| format!("{}={}", one.key, one.value)).collect() };
        assert_eq!(said("https://u:pw@h.example/secret?k=v"), ["server.address=h.example", "server.port=443"]);
        assert_eq!(said("http://[::1]:9000/mcp"), ["server.address=[::1]", "server.port=9000"]);
    }
}
