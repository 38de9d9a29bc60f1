//! A subscriber of events: it writes down what it is sent, and answers as it is told.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, StatusCode};
use serde_json::Value;
use sha2::Sha256;
use tokio::net::TcpListener;

/// What a hook answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// This status.
    Status(u16),
    /// This status and a gigabyte.
    Gigabyte(u16),
    /// Nothing, ever.
    Hang,
}

/// A message as it came.
#[derive(Debug, Clone)]
pub struct Received {
    /// `webhook-id`.
    pub id: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body's bytes.
    pub body: Bytes,
    /// What it was answered; `None`: nothing.
    pub status: Option<u16>,
}

impl Received {
    /// The body.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// Whether the signature is one with this key.
    pub fn is_signed_with(&self, key: &[u8]) -> bool {
        let header = |name: &str| self.headers[name].to_str().expect("plain text");
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key");
        mac.update(format!("{}.{}.", header("webhook-id"), header("webhook-timestamp")).as_bytes());
        mac.update(&self.body);
        let expected = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        header("webhook-signature").split(' ').any(|signature| signature == expected)
    }
}

#[derive(Debug)]
struct Inner {
    reply: Mutex<Reply>,
    received: Mutex<Vec<Received>>,
}

/// A running subscriber; it ends when dropped.
#[derive(Debug)]
pub struct Hook {
    /// Its URL.
    pub url: String,
    inner: Arc<Inner>,
    serving: tokio::task::JoinHandle<()>,
}

impl Hook {
    /// Starts one on a loopback port.
    pub async fn start(reply: Reply) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a loopback port");
        let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
        let inner = Arc::new(Inner { reply: Mutex::new(reply), received: Mutex::default() });
        let routes = Router::new().route("/hook", post(receive)).with_state(Arc::clone(&inner));
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, routes).await;
        });
        Self { url, inner, serving }
    }

    /// Answers like this from now on.
    pub fn replies(&self, reply: Reply) {
        *lock(&self.inner.reply) = reply;
    }

    /// What came so far.
    pub fn received(&self) -> Vec<Received> {
        lock(&self.inner.received).clone()
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn receive(State(inner): State<Arc<Inner>>, headers: HeaderMap, body: Bytes) -> Response {
    let id = headers.get("webhook-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
    let reply = *lock(&inner.reply);
    let status = match reply {
        Reply::Status(status) | Reply::Gigabyte(status) => Some(status),
        Reply::Hang => None,
    };
    lock(&inner.received).push(Received { id, headers, body, status });
    let of = |status| StatusCode::from_u16(status).unwrap_or(StatusCode::IM_A_TEAPOT);
    match reply {
        Reply::Status(status) => of(status).into_response(),
        Reply::Gigabyte(status) => {
            let chunk = Bytes::from(vec![b'x'; 1 << 20]);
            let chunks = futures_util::stream::iter((0..1_024).map(move |_| Ok::<_, std::io::Error>(chunk.clone())));
            (of(status), Body::from_stream(chunks)).into_response()
        }
        Reply::Hang => std::future::pending().await,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
