//! Streamable HTTP: a lean JSON-RPC client over a shared pool, one session a server.

mod client;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use reqwest::{Body, Client, Response, Url};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

pub(super) use client::Clients;
pub use wire::BODY_MAX_BYTES;
use wire::Failure;
pub(super) use wire::retry_after;

use super::flight::Flight;
use super::jsonrpc::{self, Era, LEGACY_VERSION, MODERN_VERSION, Request};
use super::list::Listing;
use super::scrub::Scrubber;
use super::{CallError, CallErrorKind, ToolCall, Upstream};
use crate::config::{ConfigError, ServerConfig};

/// Longest wait for an answer where a call has no deadline of its own (109: ordinary tools have the transport's).
const TRANSPORT_TIMEOUT: Duration = Duration::from_mins(5);
/// How long a server may take over `server/discover` before it counts as one that does not know it.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for a message that needs no answer.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// Notifications under way at a time; more are not sent.
const MAX_NOTIFICATIONS: usize = 32;
/// Requests of the server's that are answered during one call.
const MAX_ANSWERS: usize = 8;

const UNKNOWN: u8 = 0;
const MODERN: u8 = 1;
const LEGACY: u8 = 2;

/// A server reached over HTTP.
pub(super) struct HttpUpstream(Arc<Inner>);

struct Inner {
    name: String,
    client: Client,
    url: Url,
    /// Static headers; what the protocol needs comes on top.
    headers: HeaderMap,
    scrubber: Scrubber,
    init_timeout: Option<Duration>,
    /// The kind of protocol last seen: a silent old server costs the probe only once.
    era: AtomicU8,
    session: Flight<Session>,
    next_id: AtomicU64,
    notifications: Arc<Semaphore>,
}

/// What is the same in every request of a session.
struct Session {
    era: Era,
    headers: HeaderMap,
    /// Whether the server gave an `Mcp-Session-Id`.
    named: bool,
}

impl HttpUpstream {
    pub(super) fn new(
        config: &ServerConfig,
        url: &str,
        static_headers: &[(String, SecretString)],
        clients: &Clients,
    ) -> Result<Self, ConfigError> {
        let wrong = |what: &str| ConfigError(format!("mcpServers.{}.{what}", config.name));
        let url: Url = url.parse().map_err(|_| wrong("url is not usable"))?;
        let client = clients.of(&url);
        // The builder turns a user and a password in the URL into a header.
        let template = client.post(url.clone()).build().map_err(|_| wrong("url is not usable"))?;
        let url = template.url().clone();
        let mut headers = template.headers().clone();
        for (name, value) in static_headers {
            let name: HeaderName = name.parse().map_err(|_| wrong("headers have an impossible name"))?;
            let mut value = HeaderValue::from_str(value.expose_secret())
                .map_err(|_| wrong(&format!("headers.{name} cannot be sent")))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        headers
            .entry(header::USER_AGENT)
            .or_insert(HeaderValue::from_static(concat!("mcp-taskd/", env!("CARGO_PKG_VERSION"))));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        let query: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let sent = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap_or_default()));
        let scrubber = Scrubber::new(sent.chain(query.iter().map(|(name, value)| (name.as_str(), value.as_str()))));
        Ok(Self(Arc::new(Inner {
            name: config.name.clone(),
            client,
            url,
            headers,
            scrubber,
            init_timeout: config.session_init_timeout,
            era: AtomicU8::new(UNKNOWN),
            session: Flight::default(),
            next_id: AtomicU64::new(1),
            notifications: Arc::new(Semaphore::new(MAX_NOTIFICATIONS)),
        })))
    }
}

#[async_trait]
impl Upstream for HttpUpstream {
    async fn call_tool(&self, call: ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        let request = Request::call(call.tool, call.arguments, call.meta);
        self.0.request(&request, call.deadline).await.map_err(|error| self.0.scrubbed(error))
    }

    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        let pages = async {
            let mut listing = Listing::default();
            loop {
                let cursor = listing.cursor().map(ToOwned::to_owned);
                let request = Request { cursor: cursor.as_deref(), ..Request::new("tools/list") };
                let page = self.0.request(&request, None).await?;
                if let Some(tools) = listing.add(&page)? {
                    return Ok(tools);
                }
            }
        };
        let listed = match self.0.init_timeout {
            None => pages.await,
            Some(limit) => match timeout(limit, pages).await {
                Ok(listed) => listed,
                Err(_) => Err(CallError::timeout("tools/list", limit)),
            },
        };
        listed.map_err(|error| self.0.scrubbed(error))
    }

    fn scrub(&self, text: &str) -> String {
        self.0.scrubber.scrub(text)
    }

    async fn close(&self) {
        let Some(session) = self.0.session.take().filter(|session| session.named) else { return };
        let mut request = reqwest::Request::new(Method::DELETE, self.0.url.clone());
        *request.headers_mut() = session.headers.clone();
        // A server that does not end sessions on request lets them expire.
        let _ = timeout(NOTIFY_TIMEOUT, self.0.client.execute(request)).await;
    }
}

impl Inner {
    fn scrubbed(&self, mut error: CallError) -> CallError {
        error.message = self.scrubber.scrub(&error.message);
        error
    }

    /// A request on the shared session. Where the session turns out to be gone, it is brought up again once, by one of
    /// all its users, and the request is sent once more: the server refused it without looking at it.
    async fn request(
        self: &Arc<Self>,
        request: &Request<'_>,
        deadline: Option<Duration>,
    ) -> Result<Box<RawValue>, CallError> {
        let session = self.session(None).await?;
        let limit = deadline.unwrap_or(TRANSPORT_TIMEOUT);
        let started = Instant::now();
        let failure = match self.bounded(&session, request, limit, limit).await {
            Ok(result) => return Ok(result),
            Err(failure) => failure,
        };
        let other_era = matches!(&failure, Failure::Rpc(error) if matches!(error.code, -32_022 | -32_020));
        let lost = matches!(failure, Failure::SessionLost(_)) && (session.named || session.era == Era::Modern);
        if !other_era && !lost {
            return Err(failure.into_error());
        }
        if other_era || session.era == Era::Modern {
            self.era.store(UNKNOWN, Ordering::Relaxed);
        }
        tracing::debug!(server = self.name, "the session is gone; bringing up another");
        // Bringing a session up is not part of the call's own time.
        let left = limit.saturating_sub(started.elapsed());
        let session = self.session(Some(&session)).await?;
        Box::pin(self.bounded(&session, request, limit, left)).await.map_err(Failure::into_error)
    }

    async fn bounded(
        self: &Arc<Self>,
        session: &Arc<Session>,
        request: &Request<'_>,
        limit: Duration,
        left: Duration,
    ) -> Result<Box<RawValue>, Failure> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = request.body(id, session.era);
        let mut awaited = Awaited { upstream: self, session, id, armed: true };
        let answered = timeout(left, self.exchange(session, request, id, body)).await;
        awaited.armed = answered.is_err();
        answered.unwrap_or_else(|_| Err(CallError::timeout(request.name.unwrap_or(request.method), limit).into()))
    }

    async fn exchange(
        self: &Arc<Self>,
        session: &Arc<Session>,
        request: &Request<'_>,
        id: u64,
        body: Vec<u8>,
    ) -> Result<Box<RawValue>, Failure> {
        let mut headers = session.headers.clone();
        if session.era == Era::Modern {
            headers.insert("mcp-method", HeaderValue::from_static(request.method));
            if let Some(name) = request.name {
                headers.insert("mcp-name", header_text(name));
            }
        }
        let response = self.post(headers, body).await.map_err(|error| wire::not_sent(&error))?;
        let mut answers = 0;
        wire::read_answer(response, id, |asked, method| {
            answers += 1;
            if answers <= MAX_ANSWERS {
                self.notify(session, jsonrpc::answer(asked, method));
            }
        })
        .await
    }

    async fn post(&self, headers: HeaderMap, body: Vec<u8>) -> Result<Response, reqwest::Error> {
        let mut request = reqwest::Request::new(Method::POST, self.url.clone());
        *request.headers_mut() = headers;
        *request.body_mut() = Some(Body::from(body));
        self.client.execute(request).await
    }

    /// Sends what needs no answer, without waiting; where too many are under way already, not at all.
    fn notify(self: &Arc<Self>, session: &Arc<Session>, body: Vec<u8>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let Ok(permit) = Arc::clone(&self.notifications).try_acquire_owned() else { return };
        let (upstream, mut headers) = (Arc::clone(self), session.headers.clone());
        if session.era == Era::Modern {
            headers.insert("mcp-method", HeaderValue::from_static("notifications/cancelled"));
        }
        runtime.spawn(async move {
            let _ = timeout(NOTIFY_TIMEOUT, upstream.post(headers, body)).await;
            drop(permit);
        });
    }

    /// The current session where it is not `lost`, or a new one.
    async fn session(&self, lost: Option<&Arc<Session>>) -> Result<Arc<Session>, CallError> {
        let stale = |current: &Arc<Session>| lost.is_some_and(|lost| Arc::ptr_eq(lost, current));
        if let Some(session) = self.session.peek().filter(|session| !stale(session)) {
            return Ok(session);
        }
        // Rare, and large: what every call carries along must not have room for it.
        Box::pin(self.session.get(stale, self.bring_up_in_time())).await
    }

    async fn bring_up_in_time(&self) -> Result<Session, CallError> {
        let brought_up = match self.init_timeout {
            None => self.bring_up().await,
            Some(limit) => timeout(limit, self.bring_up())
                .await
                .unwrap_or_else(|_| Err(CallError::timeout("session_init_timeout: the start of a session", limit))),
        };
        brought_up.map_err(CallError::before_call).map_err(|error| self.scrubbed(error))
    }

    async fn bring_up(&self) -> Result<Session, CallError> {
        if self.era.load(Ordering::Relaxed) != LEGACY
            && let Some(session) = self.discover().await?
        {
            self.era.store(MODERN, Ordering::Relaxed);
            return Ok(session);
        }
        let session = self.initialize().await?;
        self.era.store(LEGACY, Ordering::Relaxed);
        Ok(session)
    }

    /// Tries the modern protocol; `None` where the server does not speak it.
    async fn discover(&self) -> Result<Option<Session>, CallError> {
        let mut headers = self.headers.clone();
        headers.insert("mcp-protocol-version", HeaderValue::from_static(MODERN_VERSION));
        let session = Arc::new(Session { era: Era::Modern, headers, named: false });
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let request = Request::new("server/discover");
        let mut headers = session.headers.clone();
        headers.insert("mcp-method", HeaderValue::from_static(request.method));
        let exchange = async {
            let body = request.body(id, Era::Modern);
            let response = self.post(headers, body).await.map_err(|error| wire::not_sent(&error))?;
            wire::read_answer(response, id, |_, _| {}).await
        };
        let probe = self.init_timeout.map_or(PROBE_TIMEOUT, |limit| PROBE_TIMEOUT.min(limit / 2));
        let modern = match timeout(probe, exchange).await {
            // Where the probe's time is up: an old server may swallow what it does not know.
            Err(_) | Ok(Err(Failure::SessionLost(_))) => false,
            Ok(Ok(result)) => supports_modern(&result),
            Ok(Err(Failure::Rpc(error))) => error.is_modern(),
            Ok(Err(Failure::Call(error))) => match error.kind {
                CallErrorKind::Connect | CallErrorKind::Auth => return Err(error),
                _ if error.retry_after.is_some() => return Err(error),
                _ => false,
            },
        };
        Ok(if modern { Arc::into_inner(session) } else { None })
    }

    async fn initialize(&self) -> Result<Session, CallError> {
        #[derive(Deserialize)]
        struct Initialized {
            #[serde(rename = "protocolVersion", default)]
            version: Option<String>,
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = jsonrpc::initialize(id);
        let response = self.post(self.headers.clone(), body).await.map_err(|error| wire::not_sent(&error))?;
        let session_id = response.headers().get("mcp-session-id").cloned();
        let result = wire::read_answer(response, id, |_, _| {}).await.map_err(Failure::into_error)?;
        let version = serde_json::from_str(result.get()).ok().and_then(|read: Initialized| read.version);
        let version = version.as_deref().unwrap_or(LEGACY_VERSION);
        let mut headers = self.headers.clone();
        if let Ok(version) = HeaderValue::from_str(version) {
            headers.insert("mcp-protocol-version", version);
        }
        let named = session_id.is_some();
        if let Some(id) = session_id {
            headers.insert("mcp-session-id", id);
        }
        // Servers may refuse requests before this arrived; its own answer says nothing.
        let response = self.post(headers.clone(), jsonrpc::INITIALIZED.to_vec()).await;
        response.map_err(|error| wire::not_sent(&error))?;
        tracing::debug!(server = self.name, version, named, "session is up");
        Ok(Session { era: Era::Legacy, headers, named })
    }
}

/// Whether a server's `server/discover` names the modern version, or no version at all.
pub(super) fn supports_modern(result: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Discovered {
        #[serde(rename = "supportedVersions", default)]
        versions: Option<Vec<String>>,
    }
    serde_json::from_str::<Discovered>(result.get())
        .is_ok_and(|read| read.versions.is_none_or(|versions| versions.iter().any(|version| version == MODERN_VERSION)))
}

/// A text as the value of `Mcp-Name`: what cannot travel as it is goes as Base64 (MCP 2026-07-28).
fn header_text(text: &str) -> HeaderValue {
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

/// Tells the server when a request is no longer awaited: its deadline passed, or its caller went away.
struct Awaited<'a> {
    upstream: &'a Arc<Inner>,
    session: &'a Arc<Session>,
    id: u64,
    armed: bool,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.upstream.notify(self.session, jsonrpc::cancelled(self.id, self.session.era));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_header_takes_travel_as_base64() {
        assert_eq!(header_text("get_status"), "get_status");
        assert_eq!(header_text("prüfe"), "=?base64?cHLDvGZl?=");
        assert_eq!(header_text(" a"), "=?base64?IGE=?=");
        assert_eq!(header_text("=?base64?x?="), "=?base64?PT9iYXNlNjQ/eD89?=");
        assert_eq!(["", "f", "fo", "foo"].map(|text| base64(text.as_bytes())), ["", "Zg==", "Zm8=", "Zm9v"]);
    }
}
