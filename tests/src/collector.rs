//! An OpenTelemetry collector: takes spans by OTLP over HTTP and keeps them.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
pub use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// What has arrived.
#[derive(Debug, Default)]
struct Arrived {
    spans: Mutex<Vec<Span>>,
    resource: Mutex<Vec<KeyValue>>,
}

/// A collector; it ends when it is dropped.
#[derive(Debug)]
pub struct Collector {
    /// For `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub endpoint: String,
    arrived: Arc<Arrived>,
    _server: AbortOnDropHandle<()>,
}

impl Collector {
    /// A collector that nobody has sent anything yet.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let arrived = Arc::new(Arrived::default());
        let routes = Router::new().route("/v1/traces", post(take)).with_state(Arc::clone(&arrived));
        let server = tokio::spawn(async move { axum::serve(listener, routes).await.expect("a server") });
        Self { endpoint, arrived, _server: AbortOnDropHandle::new(server) }
    }

    /// The spans so far.
    pub fn spans(&self) -> Vec<Span> {
        self.arrived.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// An attribute of who sent them.
    pub fn resource(&self, key: &str) -> Option<String> {
        text(&self.arrived.resource.lock().unwrap_or_else(PoisonError::into_inner), key)
    }
}

async fn take(State(arrived): State<Arc<Arrived>>, body: Bytes) {
    let request = ExportTraceServiceRequest::decode(body).expect("a request of OTLP");
    for sent in request.resource_spans {
        *arrived.resource.lock().unwrap_or_else(PoisonError::into_inner) = sent.resource.unwrap_or_default().attributes;
        let spans = sent.scope_spans.into_iter().flat_map(|scope| scope.spans);
        arrived.spans.lock().unwrap_or_else(PoisonError::into_inner).extend(spans);
    }
}

/// An attribute as text.
pub fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match &found.value {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => Some(text.clone()),
        Some(AnyValue { value: Some(Value::IntValue(number)) }) => Some(number.to_string()),
        _ => None,
    }
}

/// An id in hexadecimal.
pub fn hex(id: &[u8]) -> String {
    id.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
