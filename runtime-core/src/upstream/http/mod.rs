//! Streamable HTTP: a lean JSON-RPC client over a shared pool, one session a server.

mod client;
mod handshake;
mod listen;
mod mirror;
mod public;
mod session;
mod target;
pub(super) mod wire;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderValue;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};

pub(super) use client::Clients;
pub use client::Reach;
use handshake::UNKNOWN;
pub(super) use handshake::{negotiated, supports_modern};
use mirror::Mirror;
use session::Session;
pub(super) use target::Target;
pub use wire::BODY_MAX_BYTES;
use wire::Failure;
pub use wire::{cause, retry_after};

use super::changes::Changes;
use super::flight::Flight;
use super::jsonrpc::{self, Era};
use super::opening::Opening;
use super::request::Request;
use super::{CallError, ToolCall, Upstream, list};

/// Longest wait for an answer where a call has no deadline of its own (109: ordinary tools have the transport's).
pub(super) const TRANSPORT_TIMEOUT: Duration = Duration::from_mins(5);
/// Longest wait for a message that needs no answer.
pub(super) const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// Notifications under way at a time; more are not sent.
pub(super) const MAX_NOTIFICATIONS: usize = 32;
/// Requests of the server's that are answered during one call.
const MAX_ANSWERS: usize = 8;

/// A server reached over HTTP.
pub(super) struct HttpUpstream(Arc<Inner>);

struct Inner {
    name: String,
    target: Target,
    opening: Opening,
    known: Arc<Known>,
    session: Flight<Session>,
    next_id: AtomicU64,
    notifications: Arc<Semaphore>,
    changes: Changes,
}

/// What is known of a server whoever calls it.
#[derive(Default)]
pub(super) struct Known {
    /// The kind of protocol last seen: a silent old server costs the probe only once.
    era: AtomicU8,
    /// What the tools last listed want repeated in headers.
    mirror: RwLock<Arc<Mirror>>,
}

impl HttpUpstream {
    pub(super) fn new(name: &str, target: Target, opening: Opening, known: &Arc<Known>) -> Self {
        Self(Arc::new(Inner {
            name: name.to_owned(),
            target,
            opening,
            known: Arc::clone(known),
            session: Flight::default(),
            next_id: AtomicU64::new(1),
            notifications: Arc::new(Semaphore::new(MAX_NOTIFICATIONS)),
            changes: Changes::default(),
        }))
    }
}

#[async_trait]
impl Upstream for HttpUpstream {
    async fn call_tool(&self, call: ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        let request = Request::call(&call);
        self.0.request(&request, call.deadline).await.map_err(|error| self.0.opening.scrubbed(error))
    }

    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        self.0.target.authorize(&[]).await?;
        let since = Instant::now();
        self.0.session(None).await?;
        let pages = list::follow(|cursor| async move {
            let request = list::page(cursor.as_deref());
            self.0.request(&request, None).await
        });
        let tools = self.0.opening.list(since, pages).await?;
        self.0.learn(&tools);
        Ok(tools)
    }

    fn scrub(&self, text: &str) -> String {
        self.0.opening.scrubber.scrub(text)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        let changes = self.0.changes.watch();
        self.0.listen();
        changes
    }

    async fn refresh(&self) {
        if let Some(session) = self.0.session.take() {
            session.retire();
        }
    }

    async fn close(&self) {
        if let Some(session) = self.0.session.take() {
            session.end().await;
        }
    }
}

impl Inner {
    /// A request on the shared session. Where the session turns out to be gone, it is brought up again once, by one of
    /// all its users, and the request is sent once more: the server refused it without looking at it.
    async fn request(
        self: &Arc<Self>,
        request: &Request<'_>,
        deadline: Option<Duration>,
    ) -> Result<Box<RawValue>, CallError> {
        self.target.authorize(request.headers).await?;
        let session = self.session(None).await?;
        let limit = deadline.unwrap_or(TRANSPORT_TIMEOUT);
        let started = Instant::now();
        let failure = match self.bounded(&session, request, limit, limit).await {
            Ok(result) => return Ok(result),
            Err(failure) => failure,
        };
        // Neither bringing a session up nor listing tools is part of the call's own time.
        let left = limit.saturating_sub(started.elapsed());
        let session = match (failure, session.era) {
            // The headers do not repeat what the server wants to see there.
            (Failure::Rpc(error), Era::Modern) if error.code == -32_020 && request.name.is_some() => {
                tracing::debug!(server = self.name, "the server wants more in headers; listing its tools");
                Box::pin(self.list_anew(&session)).await?;
                session
            }
            (Failure::Rpc(error), _) if matches!(error.code, -32_022 | -32_020) => {
                self.known.era.store(UNKNOWN, Ordering::Relaxed);
                self.renewed(&session).await?
            }
            (Failure::SessionLost(_), Era::Modern) => {
                self.known.era.store(UNKNOWN, Ordering::Relaxed);
                self.renewed(&session).await?
            }
            (Failure::SessionLost(_), Era::Legacy) if session.is_named() => self.renewed(&session).await?,
            (failure, _) => return Err(failure.into_error()),
        };
        Box::pin(self.bounded(&session, request, limit, left)).await.map_err(Failure::into_error)
    }

    async fn renewed(self: &Arc<Self>, lost: &Arc<Session>) -> Result<Arc<Session>, CallError> {
        tracing::debug!(server = self.name, "the session is gone; bringing up another");
        self.session(Some(lost)).await
    }

    /// Lists the tools for what their schemas say of headers.
    async fn list_anew(self: &Arc<Self>, session: &Arc<Session>) -> Result<(), CallError> {
        let pages = list::follow(|cursor| async move {
            let request = list::page(cursor.as_deref());
            let listed = self.bounded(session, &request, TRANSPORT_TIMEOUT, TRANSPORT_TIMEOUT).await;
            listed.map_err(Failure::into_error)
        });
        let tools = self.opening.list(Instant::now(), pages).await.map_err(CallError::before_call)?;
        self.learn(&tools);
        Ok(())
    }

    fn learn(&self, tools: &[Box<RawValue>]) {
        *self.known.mirror.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Mirror::of(tools));
    }

    async fn bounded(
        self: &Arc<Self>,
        session: &Arc<Session>,
        request: &Request<'_>,
        limit: Duration,
        left: Duration,
    ) -> Result<Box<RawValue>, Failure> {
        if let Some(error) = request.unfit(session.era, session.offers) {
            return Err(error.into());
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = request.body(id, session.era);
        let mut awaited = Awaited { upstream: self, session, id, armed: request.told };
        let answered = timeout(left, self.exchange(session, request, id, body)).await;
        awaited.armed &= answered.is_err();
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
        for (name, value) in request.headers {
            headers.insert(name, value.clone());
        }
        if session.era == Era::Modern {
            let mirror = Arc::clone(&self.known.mirror.read().unwrap_or_else(PoisonError::into_inner));
            mirror.apply(request, &mut headers);
        }
        let response = self.target.post(self.target.url.clone(), headers, body).await?;
        let mut answers = 0;
        wire::read_answer(response, id, |said| match said.id {
            Some(asked) => {
                answers += 1;
                if answers <= MAX_ANSWERS {
                    self.notify(session, jsonrpc::answer(asked, said.method));
                }
            }
            None => self.changes.heard(said.method),
        })
        .await
    }

    /// Sends what needs no answer, without waiting; where too many are under way already, not at all.
    fn notify(&self, session: &Session, body: Vec<u8>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let Ok(permit) = Arc::clone(&self.notifications).try_acquire_owned() else { return };
        let mut headers = session.headers.clone();
        if session.era == Era::Modern {
            headers.insert("mcp-method", HeaderValue::from_static("notifications/cancelled"));
        }
        let sent = self.target.post(self.target.url.clone(), headers, body);
        runtime.spawn(async move {
            let _ = timeout(NOTIFY_TIMEOUT, sent).await;
            drop(permit);
        });
    }

    /// The current session where it is not `lost`, or a new one.
    async fn session(self: &Arc<Self>, lost: Option<&Arc<Session>>) -> Result<Arc<Session>, CallError> {
        let stale = |current: &Arc<Session>| lost.is_some_and(|lost| Arc::ptr_eq(lost, current));
        if let Some(session) = self.session.peek().filter(|session| !stale(session)) {
            return Ok(session);
        }
        // Rare, and large: what every call carries along must not have room for it.
        let session = Box::pin(self.session.get(stale, self.opening.open(self.bring_up()))).await?;
        self.listen();
        Ok(session)
    }

    /// Listens for changes of the tools, where somebody wants to know and the server says that it tells.
    fn listen(self: &Arc<Self>) {
        let Some(session) = self.session.peek() else { return };
        let wanted = self.changes.is_watched() && session.offers.changes;
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if wanted && !session.listening.swap(true, Ordering::Relaxed) {
            let listening = listen::listen(Arc::downgrade(self), Arc::downgrade(&session), self.changes.clone());
            let closed = session.closed.clone();
            runtime.spawn(async move { closed.run_until_cancelled(listening).await });
        }
    }
}

/// Tells the server when a request is no longer awaited: its deadline passed, or its caller went away.
struct Awaited<'a> {
    upstream: &'a Inner,
    session: &'a Session,
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
