//! One open event stream and the calls whose answers arrive on it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderName, HeaderValue};
use reqwest::Response;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::outbox::Outbox;
use crate::upstream::changes::Changes;
use crate::upstream::http::{BODY_MAX_BYTES, NOTIFY_TIMEOUT, Target, negotiated, wire};
use crate::upstream::jsonrpc::{self, Era};
use crate::upstream::metrics::{ServerMetrics, SessionCount};
use crate::upstream::offers::Offers;
use crate::upstream::pending::{Failure, Pending};
use crate::upstream::request::Request;
use crate::upstream::sse::{Event, SseParser};
use crate::upstream::{CallError, CallErrorKind};

/// What is usually wrong where there is no stream.
const HINT: &str = " (is its type http?)";

/// A session; its stream is closed when the last user lets go of it.
pub(super) struct Session {
    outbox: Arc<Outbox>,
    pending: Arc<Pending>,
    /// Chunks that arrived.
    heard: Arc<AtomicU64>,
    closing: CancellationToken,
    offers: Offers,
    _open: DropGuard,
}

impl Session {
    /// Opens the stream, waits for the endpoint and shakes hands. Dropped half-way, it closes the stream.
    pub(super) async fn open(
        server: &str,
        target: &Target,
        changes: &Changes,
        metrics: &ServerMetrics,
    ) -> Result<Self, CallError> {
        let response = target.stream(target.headers.clone()).await?;
        let status = response.status();
        if !status.is_success() {
            let mut error = wire::read_error(response, status).await.into_error();
            if matches!(status.as_u16(), 404 | 405) {
                error.message.push_str(HINT);
            }
            return Err(error);
        }
        if !wire::is_event_stream(response.headers()) {
            return Err(protocol(format!("the server does not answer with an event stream{HINT}")));
        }
        let closing = CancellationToken::new();
        let mut session = Self {
            outbox: Arc::new(Outbox::new(target)),
            pending: Arc::default(),
            heard: Arc::default(),
            offers: Offers::default(),
            _open: closing.clone().drop_guard(),
            closing,
        };
        let (found, endpoint) = oneshot::channel();
        let reader = Reader {
            outbox: Arc::clone(&session.outbox),
            pending: Arc::clone(&session.pending),
            heard: Arc::clone(&session.heard),
            changes: changes.clone(),
            endpoint: Some(found),
            _count: metrics.session(),
        };
        tokio::spawn(reader.run(response, session.closing.clone()));
        if endpoint.await.is_err() {
            return Err(session.pending.over().cloned().unwrap_or_else(ended));
        }
        let initialized = session.exchange(jsonrpc::initialize, &[], false).await.map_err(Failure::into_error)?;
        session.outbox.agree(negotiated(&initialized));
        session.offers = Offers::read(&initialized);
        // Servers may refuse requests before this arrived; its own answer says nothing.
        wire::drain(session.outbox.post(jsonrpc::INITIALIZED.to_vec(), &[]).await?);
        tracing::debug!(server, "session is up");
        Ok(session)
    }

    /// Whether no answer can arrive any more.
    pub(super) fn is_over(&self) -> bool {
        self.closing.is_cancelled() || self.pending.over().is_some()
    }

    /// Grows with everything that arrives on the stream, the server's keep-alives included.
    pub(super) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Closes the stream, whoever waits on it.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    /// A request. Dropped before its answer, it tells the server so.
    pub(super) async fn request(&self, request: &Request<'_>) -> Result<Box<RawValue>, Failure> {
        if let Some(error) = request.unfit(Era::Legacy, self.offers) {
            return Err(Failure::Call(error));
        }
        self.exchange(|id| request.body(id, Era::Legacy), request.headers, request.told).await
    }

    async fn exchange(
        &self,
        body: impl FnOnce(u64) -> Vec<u8>,
        headers: &[(HeaderName, HeaderValue)],
        cancel: bool,
    ) -> Result<Box<RawValue>, Failure> {
        let mut waiter = self.pending.register()?;
        let mut awaited = Awaited { outbox: &self.outbox, id: waiter.id, armed: cancel };
        let mut posting = Box::pin(self.outbox.post(body(waiter.id), headers));
        // The answer may well arrive before the server has acknowledged the request.
        let answered = tokio::select! {
            biased;
            answered = waiter.answer() => match answered {
                Err(Failure::Call(ended)) => Err(never_taken(posting).await.unwrap_or(Failure::Call(ended))),
                answered => {
                    // Dropped now, it would take its connection along.
                    tokio::spawn(timeout(NOTIFY_TIMEOUT, async { posting.await.map(wire::drain) }));
                    answered
                }
            },
            posted = &mut posting => match accepted(posted).await {
                Ok(()) => waiter.answer().await,
                Err(failure) => Err(failure),
            },
        };
        awaited.armed = false;
        answered
    }
}

/// Whether the server took the message.
async fn accepted(posted: Result<Response, CallError>) -> Result<(), Failure> {
    let response = posted.map_err(Failure::Call)?;
    let status = response.status();
    if status.is_success() {
        wire::drain(response);
        return Ok(());
    }
    Err(match wire::read_error(response, status).await {
        wire::Failure::SessionLost(error) => Failure::NotSent(error),
        wire::Failure::Rpc(error) => Failure::Rpc(error),
        wire::Failure::Call(error) => Failure::Call(error),
    })
}

/// Whether a message that was on its way when the stream ended certainly did not arrive: it can be sent again.
async fn never_taken(posting: impl Future<Output = Result<Response, CallError>>) -> Option<Failure> {
    let posted = timeout(NOTIFY_TIMEOUT, posting).await.ok()?;
    match accepted(posted).await.err()? {
        Failure::Call(error) if error.kind == CallErrorKind::Connect => Some(Failure::NotSent(error)),
        failure @ Failure::NotSent(_) => Some(failure),
        Failure::Call(_) | Failure::Rpc(_) => None,
    }
}

/// Tells the server when a request is no longer awaited.
struct Awaited<'a> {
    outbox: &'a Outbox,
    id: u64,
    armed: bool,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.outbox.notify(jsonrpc::cancelled(self.id, Era::Legacy));
        }
    }
}

/// Takes in what arrives on the stream.
struct Reader {
    outbox: Arc<Outbox>,
    pending: Arc<Pending>,
    heard: Arc<AtomicU64>,
    changes: Changes,
    /// Where the first endpoint is told.
    endpoint: Option<oneshot::Sender<()>>,
    _count: SessionCount,
}

impl Reader {
    async fn run(mut self, response: Response, closing: CancellationToken) {
        let reason = closing.run_until_cancelled(self.read(response)).await.unwrap_or_else(ended);
        self.pending.end(reason);
        closing.cancel();
    }

    /// Reads to the end of the stream; why it ended.
    async fn read(&mut self, mut response: Response) -> CallError {
        let mut parser = SseParser::default();
        loop {
            let chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return ended(),
                Err(error) => return wire::broken(&error),
            };
            self.heard.fetch_add(1, Ordering::Relaxed);
            if let ControlFlow::Break(error) = parser.feed(&chunk, |event| self.take_in(event)) {
                return error;
            }
            // The stream goes on for ever; what has to be bounded is one event.
            if parser.held() > BODY_MAX_BYTES {
                return protocol(format!("an event is larger than {BODY_MAX_BYTES} bytes"));
            }
        }
    }

    fn take_in(&mut self, event: Event<'_>) -> ControlFlow<CallError> {
        let Ok(text) = std::str::from_utf8(event.data) else { return ControlFlow::Continue(()) };
        if event.name == b"endpoint" {
            if let Some(found) = self.endpoint.take() {
                if let Err(what) = self.outbox.address(text) {
                    // Whoever waits for it is told by the reason, which is not there yet.
                    self.endpoint = Some(found);
                    return ControlFlow::Break(protocol(what));
                }
                let _ = found.send(());
            }
            return ControlFlow::Continue(());
        }
        self.pending.take_in(text, |said| match said.id {
            Some(id) => self.outbox.notify(jsonrpc::answer(id, said.method)),
            None => self.changes.heard(said.method),
        });
        ControlFlow::Continue(())
    }
}

fn ended() -> CallError {
    CallError::new(CallErrorKind::Transport, "the server's event stream ended".to_owned())
}

fn protocol(what: String) -> CallError {
    CallError::new(CallErrorKind::Protocol, what)
}
