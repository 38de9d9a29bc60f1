//! Traces by OpenTelemetry: a span for each call to a server, sent by OTLP over HTTP (docs/adr/0007-a-task-is-a-trace.md).
//!
//! Everything is said by the standard `OTEL_…` variables. Where they name no endpoint there is no tracer, no layer around
//! the servers, and nothing of this on the way of a call.

mod client;
mod ids;
mod upstream;

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::upstream::Layer;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use client::Client;
use ids::Ids;
use upstream::Traced;

/// How long the last spans may take to be sent.
const FLUSH: Duration = Duration::from_secs(3);

/// The tracer of a process.
#[derive(Debug, Clone)]
pub struct Tracing {
    provider: SdkTracerProvider,
    tracer: Arc<SdkTracer>,
}

impl Tracing {
    /// Starts tracing where the environment names an endpoint; must be called within the runtime that sends the spans.
    ///
    /// # Errors
    ///
    /// Where what the environment says cannot be used.
    pub fn start() -> anyhow::Result<Option<Self>> {
        if !wanted(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty())) {
            return Ok(None);
        }
        let exporter = SpanExporter::builder().with_http().with_http_client(Client::new()?).build()?;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource())
            .with_id_generator(Ids::default())
            .with_batch_exporter(exporter)
            .build();
        let scope = InstrumentationScope::builder("mcp-taskd").with_version(env!("CARGO_PKG_VERSION")).build();
        let tracer = Arc::new(provider.tracer_with_scope(scope));
        tracing::info!("calls to servers are traced by OpenTelemetry");
        Ok(Some(Self { provider, tracer }))
    }

    /// What makes a span of each call to a server.
    pub fn layer(&self) -> Layer {
        let tracer = Arc::clone(&self.tracer);
        Layer::new(move |server, inner| Arc::new(Traced::new(Arc::clone(&tracer), server, inner)))
    }

    /// Sends what there is.
    pub async fn stop(self) {
        // It blocks until the exporter's own thread is done, which needs this runtime to send.
        let stopped = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(FLUSH)).await;
        if !matches!(stopped, Ok(Ok(()))) {
            tracing::warn!("the last spans could not be sent");
        }
    }
}

/// Whether the environment asks for traces.
fn wanted(variable: impl Fn(&str) -> Option<String>) -> bool {
    let is = |name: &str, value: &str| variable(name).is_some_and(|given| given.trim().eq_ignore_ascii_case(value));
    let endpoint = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]
        .into_iter()
        .any(|name| variable(name).is_some());
    endpoint && !is("OTEL_SDK_DISABLED", "true") && !is("OTEL_TRACES_EXPORTER", "none")
}

/// Who sends the spans; what the environment says of it wins.
fn resource() -> Resource {
    let detected = Resource::builder().build();
    let unnamed = detected
        .iter()
        .all(|(key, value)| key.as_str() != "service.name" || value.as_str().starts_with("unknown_service"));
    let name = unnamed.then(|| KeyValue::new("service.name", "mcp-taskd"));
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    Resource::builder().with_attributes(name.into_iter().chain([version])).build()
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_is_traced_unless_an_endpoint_is_named_and_tracing_is_not_switched_off() {
        let wanted = |variables: &[(&str, &str)]| {
            super::wanted(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        assert!(!wanted(&[]));
        assert!(!wanted(&[("OTEL_SERVICE_NAME", "x")]));
        assert!(wanted(&[endpoint]));
        assert!(wanted(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:4318/v1/traces")]));
        assert!(!wanted(&[endpoint, ("OTEL_SDK_DISABLED", "True")]));
        assert!(!wanted(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]));
    }
}
