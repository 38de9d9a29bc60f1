//! Finding out which kind of protocol a server speaks, and beginning to speak it (`MCP_TASKS`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::Inner;
use super::session::Session;
use super::wire::{self, Failure};
use crate::upstream::jsonrpc::{self, Era, LEGACY_VERSION, MODERN_VERSION};
use crate::upstream::offers::Offers;
use crate::upstream::request::Request;
use crate::upstream::{CallError, CallErrorKind};

/// How long a server may take over `server/discover` before it counts as one that does not know it.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// The default of what is known of a server.
pub(super) const UNKNOWN: u8 = 0;
const MODERN: u8 = 1;
const LEGACY: u8 = 2;

impl Inner {
    pub(super) async fn bring_up(&self) -> Result<Session, CallError> {
        let known = self.known.era.load(Ordering::Relaxed);
        if known != LEGACY
            && let Some(session) = self.discover().await?
        {
            return Ok(session);
        }
        match self.initialize().await {
            // A server that was renewed may not know `initialize` any more.
            Err(error) if known == LEGACY && error.kind == CallErrorKind::Rpc => self.discover().await?.ok_or(error),
            initialized => initialized,
        }
    }

    /// Tries the modern protocol; `None` where the server does not speak it.
    async fn discover(&self) -> Result<Option<Session>, CallError> {
        let mut headers = self.target.headers.clone();
        headers.insert("mcp-protocol-version", HeaderValue::from_static(MODERN_VERSION));
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let request = Request::new("server/discover");
        let exchange = async {
            let mut headers = headers.clone();
            headers.insert("mcp-method", HeaderValue::from_static(request.method));
            let body = request.body(id, Era::Modern);
            let response = self.target.post(self.target.url.clone(), headers, body).await?;
            wire::read_answer(response, id, |_| {}).await
        };
        let probe = self.opening.limit.map_or(PROBE_TIMEOUT, |limit| PROBE_TIMEOUT.min(limit / 2));
        let mut offers = Offers::default();
        let modern = match timeout(probe, exchange).await {
            // Where the probe's time is up: an old server may swallow what it does not know.
            Err(_) | Ok(Err(Failure::SessionLost(_))) => false,
            Ok(Ok(result)) => {
                offers = Offers::read(&result);
                supports_modern(&result)
            }
            Ok(Err(Failure::Rpc(error))) => error.is_modern(),
            Ok(Err(Failure::Call(error))) => match error.kind {
                CallErrorKind::Connect | CallErrorKind::Auth => return Err(error),
                _ if error.retry_after.is_some() => return Err(error),
                _ => false,
            },
        };
        if !modern {
            return Ok(None);
        }
        self.known.era.store(MODERN, Ordering::Relaxed);
        Ok(Some(self.begun(Era::Modern, headers, false, offers)))
    }

    async fn initialize(&self) -> Result<Session, CallError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut headers = self.target.headers.clone();
        let post = |headers: &HeaderMap, body| self.target.post(self.target.url.clone(), headers.clone(), body);
        let response = post(&headers, jsonrpc::initialize(id)).await?;
        let session_id = response.headers().get("mcp-session-id").cloned();
        let result = wire::read_answer(response, id, |_| {}).await.map_err(Failure::into_error)?;
        headers.insert("mcp-protocol-version", negotiated(&result));
        let named = session_id.is_some();
        if let Some(id) = session_id {
            headers.insert("mcp-session-id", id);
        }
        // Servers may refuse requests before this arrived; its own answer says nothing.
        post(&headers, jsonrpc::INITIALIZED.to_vec()).await?;
        self.known.era.store(LEGACY, Ordering::Relaxed);
        tracing::debug!(server = self.name, named, "session is up");
        Ok(self.begun(Era::Legacy, headers, named, Offers::read(&result)))
    }

    fn begun(&self, era: Era, headers: HeaderMap, named: bool, offers: Offers) -> Session {
        let ending = named.then(|| self.target.clone());
        Session::new(era, headers, ending, offers, self.opening.metrics.session())
    }
}

/// The protocol version that the server chose in its answer to `initialize`, as a header.
pub(in crate::upstream) fn negotiated(initialized: &RawValue) -> HeaderValue {
    #[derive(Deserialize)]
    struct Initialized {
        #[serde(rename = "protocolVersion", default)]
        version: Option<String>,
    }
    serde_json::from_str(initialized.get())
        .ok()
        .and_then(|read: Initialized| HeaderValue::from_str(&read.version?).ok())
        .unwrap_or(HeaderValue::from_static(LEGACY_VERSION))
}

/// Whether a server's `server/discover` names the modern version, or no version at all.
pub(in crate::upstream) fn supports_modern(result: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Discovered {
        #[serde(rename = "supportedVersions", default)]
        versions: Option<Vec<String>>,
    }
    serde_json::from_str::<Discovered>(result.get())
        .is_ok_and(|read| read.versions.is_none_or(|versions| versions.iter().any(|version| version == MODERN_VERSION)))
}
