//! Servers that are child processes, one session a user and thread (BEHAVIOURS O).

mod launch;
mod pool;
mod process;
mod session;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

use launch::Launch;
pub(super) use pool::Pool;
use pool::{Slot, Tenant};
use session::{Failure, Session};

use super::jsonrpc::Request;
use super::list::Listing;
use super::{CallError, CallErrorKind, Options, Scope, ToolCall, Upstream};
use crate::config::ServerConfig;

/// A server reached over the standard streams of a child process.
pub(super) struct StdioUpstream {
    name: Arc<str>,
    launch: Launch,
    pool: Arc<Pool>,
    tenant: Tenant,
    init_timeout: Option<Duration>,
    /// Bounds calls that bring no deadline of their own (109).
    call_timeout: Option<Duration>,
}

impl StdioUpstream {
    /// `None` where the server is not configured as a child process.
    pub(super) fn new(config: &ServerConfig, options: &Options, pool: &Arc<Pool>) -> Option<Self> {
        Some(Self {
            name: config.name.as_str().into(),
            launch: Launch::new(config, options)?,
            pool: Arc::clone(pool),
            tenant: pool.admit(),
            init_timeout: config.session_init_timeout,
            call_timeout: config.tool_call_timeout,
        })
    }

    fn scrubbed(&self, mut error: CallError) -> CallError {
        error.message = self.launch.scrubber.scrub(&error.message);
        error
    }

    /// The scope's session, brought up if need be.
    async fn session(&self, slot: &Slot, scope: &Scope) -> Result<Arc<Session>, CallError> {
        slot.flight
            .get(|session| session.is_closed(), async {
                let session = self.start_in_time(Some(scope)).await?;
                // Closed while it was being made: it must not come back to life (103).
                if slot.is_retired() {
                    return Err(CallError::new(CallErrorKind::Connect, "the server is being closed".to_owned()));
                }
                Ok(session)
            })
            .await
    }

    async fn start_in_time(&self, scope: Option<&Scope>) -> Result<Session, CallError> {
        let started = match self.init_timeout {
            None => self.launch.start(scope).await,
            Some(limit) => timeout(limit, self.launch.start(scope))
                .await
                .unwrap_or_else(|_| Err(CallError::timeout("session_init_timeout: the start of a session", limit))),
        };
        started.map_err(CallError::before_call).map_err(|error| self.scrubbed(error))
    }

    async fn call(&self, call: &ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        let limit = call.deadline.or(self.call_timeout);
        let request = Request { meta_headers: call.headers, ..Request::call(call) };
        let mut again = true;
        loop {
            let slot = self.pool.slot(self.tenant, call.scope);
            let session = self.session(&slot, call.scope).await?;
            let exchange = session.request(&request);
            let answered = match limit {
                None => exchange.await,
                Some(limit) => timeout(limit, exchange)
                    .await
                    .unwrap_or_else(|_| Err(Failure::Call(CallError::timeout(call.tool, limit)))),
            };
            match answered {
                Ok(result) => return Ok(result),
                Err(Failure::Rpc(error)) => return Err(error.into_call_error()),
                // It ended before the call was sent; another one may do.
                Err(Failure::NotSent(_)) if std::mem::take(&mut again) => slot.flight.evict(&session),
                Err(Failure::NotSent(error)) => return Err(error.before_call()),
                Err(Failure::Call(error)) => {
                    if session.is_closed() {
                        // Only this very session goes; nothing is replayed (105).
                        slot.flight.evict(&session);
                    }
                    return Err(error);
                }
            }
        }
    }

    async fn list(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        let session = self.launch.start(None).await.map_err(CallError::before_call)?;
        let mut listing = Listing::default();
        loop {
            let cursor = listing.cursor().map(ToOwned::to_owned);
            let request = Request { cursor: cursor.as_deref(), ..Request::new("tools/list") };
            let page = session.request(&request).await.map_err(Failure::into_error)?;
            if let Some(tools) = listing.add(&page)? {
                return Ok(tools);
            }
        }
    }
}

#[async_trait]
impl Upstream for StdioUpstream {
    async fn call_tool(&self, call: ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        self.call(&call).await.map_err(|error| self.scrubbed(error))
    }

    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        let started = Instant::now();
        let listed = match self.init_timeout {
            None => self.list().await,
            Some(limit) => {
                timeout(limit, self.list()).await.unwrap_or_else(|_| Err(CallError::timeout("tools/list", limit)))
            }
        };
        tracing::debug!(server = %self.name, elapsed = ?started.elapsed(), ok = listed.is_ok(), "discovery");
        listed.map_err(|error| self.scrubbed(error))
    }

    fn scrub(&self, text: &str) -> String {
        self.launch.scrubber.scrub(text)
    }

    async fn refresh(&self) {
        // A session ends when its last user lets go of it.
        drop(self.pool.take(self.tenant));
    }

    async fn close(&self) {
        for slot in self.pool.take(self.tenant) {
            slot.retire();
            if let Some(session) = slot.flight.take() {
                session.close();
            }
        }
        self.launch.ended().await;
    }
}
