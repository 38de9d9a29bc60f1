//! The legacy HTTP+SSE transport: one event stream a session, on which every answer arrives (MCP 2024-11-05).

mod outbox;
mod session;

use std::time::Duration;
use std::{mem, sync::Arc};

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use session::Session;

use super::changes::Changes;
use super::flight::Flight;
use super::http::{TRANSPORT_TIMEOUT, Target};
use super::opening::Opening;
use super::pending::Failure;
use super::request::Request;
use super::{CallError, ToolCall, Upstream, list};

/// A server reached over HTTP+SSE.
pub(super) struct HttpSseUpstream {
    name: String,
    target: Target,
    opening: Opening,
    session: Flight<Session>,
    changes: Changes,
}

impl HttpSseUpstream {
    pub(super) fn new(name: &str, target: Target, opening: Opening) -> Self {
        Self { name: name.to_owned(), target, opening, session: Flight::default(), changes: Changes::default() }
    }

    /// The session whose stream is open, or a new one: stream, endpoint and handshake under one deadline (108).
    async fn session(&self) -> Result<Arc<Session>, CallError> {
        let ended = |session: &Arc<Session>| session.is_over();
        if let Some(session) = self.session.peek().filter(|session| !ended(session)) {
            return Ok(session);
        }
        let opening = self.opening.open(Session::open(&self.name, &self.target, &self.changes, &self.opening.metrics));
        Box::pin(self.session.get(ended, opening)).await
    }

    /// A request on the shared session. A call under way when the stream breaks fails, since nobody can know whether it
    /// ran; one that was not sent, or refused because the server does not know the session, is sent on a new one, once.
    async fn request(&self, request: &Request<'_>, deadline: Option<Duration>) -> Result<Box<RawValue>, CallError> {
        self.target.authorize(request.headers).await?;
        let limit = deadline.unwrap_or(TRANSPORT_TIMEOUT);
        let mut left = limit;
        let mut again = true;
        loop {
            let session = self.session().await?;
            let (started, heard) = (Instant::now(), session.heard());
            let failure = match timeout(left, session.request(request)).await {
                Ok(Ok(result)) => return Ok(result),
                Ok(Err(failure)) => failure,
                Err(_) => {
                    // Not a word while the call waited: the stream may be dead without an end, and whoever calls next
                    // must not wait on it too. Calls under way keep it.
                    if session.heard() == heard {
                        self.session.evict(&session);
                    }
                    return Err(CallError::timeout(request.name.unwrap_or(request.method), limit));
                }
            };
            match failure {
                Failure::NotSent(_) if mem::take(&mut again) => {
                    tracing::debug!(server = self.name, "the session is gone; bringing up another");
                    self.session.evict(&session);
                    // Bringing it up is not part of the call's own time.
                    left = left.saturating_sub(started.elapsed());
                }
                Failure::NotSent(error) => return Err(error.before_call()),
                failure => return Err(failure.into_error()),
            }
        }
    }
}

#[async_trait]
impl Upstream for HttpSseUpstream {
    async fn call_tool(&self, call: ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        let request = Request::call(&call);
        self.request(&request, call.deadline).await.map_err(|error| self.opening.scrubbed(error))
    }

    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        self.target.authorize(&[]).await?;
        let since = Instant::now();
        self.session().await?;
        let pages = list::follow(|cursor| async move {
            let request = list::page(cursor.as_deref());
            self.request(&request, None).await
        });
        self.opening.list(since, pages).await
    }

    fn scrub(&self, text: &str) -> String {
        self.opening.scrubber.scrub(text)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.watch()
    }

    async fn refresh(&self) {
        // The stream is closed when the last user lets go of the session.
        drop(self.session.take());
    }

    async fn close(&self) {
        if let Some(session) = self.session.take() {
            session.close();
        }
    }
}
