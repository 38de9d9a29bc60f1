//! The exchange with a sink: one bounded POST, without redirects.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use mcp_taskd_core::clock::{Clock as _, SystemClock};
use mcp_taskd_core::task::limits::{SNIPPET_MAX_CHARS, clip};
use mcp_taskd_core::upstream::{cause, retry_after};
use reqwest::redirect::Policy;
use reqwest::{Client, Response};

use super::signature::sign;
use super::sink::Sink;
use super::verdict::Answer;

/// How long a connection may take to be there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the whole exchange may take.
const DEADLINE: Duration = Duration::from_secs(15);
/// How much of an answer is read: enough to see why it is none.
const ANSWER_MAX_BYTES: usize = 4 << 10;

/// A message for a sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    /// The same for all attempts at one version.
    pub(super) id: String,
    /// JSON.
    pub(super) body: Bytes,
}

/// The way to sinks.
#[async_trait]
pub(super) trait Post: Send + Sync {
    /// Sends a message and says what came back, within a bounded time.
    async fn post(&self, sink: &Sink, message: &Message) -> Answer;
}

/// The way over HTTP.
pub(super) struct Http {
    remote: Client,
    /// A proxy from the environment is no way to this machine itself.
    loopback: Client,
}

impl Http {
    pub(super) fn new() -> reqwest::Result<Self> {
        let builder = || {
            Client::builder()
                .redirect(Policy::none())
                .connect_timeout(CONNECT_TIMEOUT)
                .timeout(DEADLINE)
                .pool_max_idle_per_host(8)
                .user_agent(concat!("mcp-taskd/", env!("CARGO_PKG_VERSION")))
        };
        Ok(Self { remote: builder().build()?, loopback: builder().no_proxy().build()? })
    }

    fn client(&self, sink: &Sink) -> &Client {
        let host = sink.url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let is_loopback = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        if is_loopback || host == "localhost" { &self.loopback } else { &self.remote }
    }

    async fn exchange(&self, sink: &Sink, message: &Message) -> Answer {
        // The receiver compares it with its own clock, so it is not the store's.
        let at_seconds = SystemClock.now_ms() / 1_000;
        let request = self
            .client(sink)
            .post(sink.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", &message.id)
            .header("webhook-timestamp", at_seconds)
            .header("webhook-signature", sign(&sink.keys, &message.id, at_seconds, &message.body))
            .body(message.body.clone());
        match request.send().await {
            Err(error) if error.is_timeout() => Answer::Failed(format!("no answer within {DEADLINE:?}")),
            Err(error) => Answer::Failed(sink.scrub(&cause(&error))),
            Ok(response) => {
                let status = response.status();
                let retry_after = retry_after(response.headers(), SystemClock.now_ms());
                let said = if status.is_success() { String::new() } else { beginning(response).await };
                Answer::Status { status, retry_after, said: clip(sink.scrub(&said).trim(), SNIPPET_MAX_CHARS) }
            }
        }
    }
}

#[async_trait]
impl Post for Http {
    async fn post(&self, sink: &Sink, message: &Message) -> Answer {
        // Whatever the client thinks of its own time limits.
        let exchange = tokio::time::timeout(DEADLINE + Duration::from_secs(1), self.exchange(sink, message)).await;
        exchange.unwrap_or_else(|_| Answer::Failed(format!("no answer within {DEADLINE:?}")))
    }
}

/// The beginning of a body; the connection is closed where there is more.
async fn beginning(mut response: Response) -> String {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = ANSWER_MAX_BYTES - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() >= room {
            break;
        }
    }
    String::from_utf8_lossy(&body).into_owned()
}
