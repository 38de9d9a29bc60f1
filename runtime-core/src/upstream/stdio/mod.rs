//! Servers that are child processes, one session a user and thread (BEHAVIOURS O).

pub mod guard;
mod launch;
mod listen;
mod pool;
mod process;
mod restraint;
mod session;
mod stderr;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

pub(super) use launch::Launch;
pub(super) use pool::Pool;
use pool::{Slot, Tenant};
use restraint::Restraint;
use session::Session;

use super::opening::Opening;
use super::pending::Failure;
use super::request::Request;
use super::{CallError, CallErrorKind, Scope, ToolCall, Upstream, list};

/// A process that ends by itself sooner than this has failed rather than crashed.
const SOON: Duration = Duration::from_secs(10);

/// A server reached over the standard streams of a child process.
pub(super) struct StdioUpstream {
    launch: Launch,
    opening: Opening,
    pool: Arc<Pool>,
    tenant: Tenant,
    /// Bounds calls that bring no deadline of their own (109).
    call_timeout: Option<Duration>,
    /// Of starts that failed.
    restraint: Mutex<Restraint>,
}

impl StdioUpstream {
    pub(super) fn new(launch: Launch, opening: Opening, call_timeout: Option<Duration>, pool: &Arc<Pool>) -> Self {
        let (pool, tenant) = (Arc::clone(pool), pool.admit());
        Self { launch, opening, pool, tenant, call_timeout, restraint: Mutex::default() }
    }

    /// The scope's session, brought up if need be.
    async fn session(&self, slot: &Slot, scope: &Scope) -> Result<Arc<Session>, CallError> {
        slot.flight
            .get(|session| session.is_closed(), async {
                lock(&slot.restraint).check(Instant::now())?;
                let session = self.start(Some(scope)).await?;
                // Closed while it was being made: it must not come back to life (103).
                if slot.is_retired() {
                    return Err(CallError::new(CallErrorKind::Connect, "the server is being closed".to_owned()));
                }
                Ok(session)
            })
            .await
    }

    /// A new process, greeted; refused for a while after too many that failed.
    async fn start(&self, scope: Option<&Scope>) -> Result<Session, CallError> {
        lock(&self.restraint).check(Instant::now())?;
        let started = self.opening.open(self.launch.start(scope, &self.opening.metrics)).await;
        let mut restraint = lock(&self.restraint);
        match &started {
            Ok(_) => restraint.worked(),
            Err(error) => restraint.failed(Instant::now(), error),
        }
        started
    }

    async fn call(&self, call: &ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        let limit = call.deadline.or(self.call_timeout);
        let request = Request { headers_in_meta: true, ..Request::call(call) };
        let mut again = true;
        loop {
            let slot = self.pool.slot(self.tenant, call.scope);
            let session = self.session(&slot, call.scope).await?;
            let exchange = session.request(&request);
            let answered = match limit {
                None => exchange.await,
                Some(limit) => timeout(limit, exchange).await.unwrap_or_else(|_| {
                    Err(Failure::Call(CallError::timeout(request.name.unwrap_or(request.method), limit)))
                }),
            };
            match answered {
                Ok(result) => {
                    lock(&slot.restraint).worked();
                    return Ok(result);
                }
                Err(Failure::Rpc(error)) => return Err(error.into_call_error()),
                // It ended before the call was sent; another one may do.
                Err(Failure::NotSent(_)) if std::mem::take(&mut again) => slot.flight.evict(&session),
                Err(Failure::NotSent(error)) => return Err(error.before_call()),
                Err(Failure::Call(error)) => {
                    if session.is_closed() {
                        // Only this very session goes; nothing is replayed (105).
                        slot.flight.evict(&session);
                        if session.age() < SOON {
                            lock(&slot.restraint).failed(Instant::now(), &error);
                        }
                    }
                    return Err(error);
                }
            }
        }
    }
}

#[async_trait]
impl Upstream for StdioUpstream {
    async fn call_tool(&self, call: ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        self.call(&call).await.map_err(|error| self.opening.scrubbed(error))
    }

    /// Asks a process of its own, in the daemon's directory unless `cwd` is configured (82).
    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        let since = Instant::now();
        let session = &self.start(None).await?;
        let pages = list::follow(|cursor| async move {
            let request = list::page(cursor.as_deref());
            session.request(&request).await.map_err(Failure::into_error)
        });
        self.opening.list(since, pages).await
    }

    fn scrub(&self, text: &str) -> String {
        self.opening.scrubber.scrub(text)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.launch.changes.watch()
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

fn lock(restraint: &Mutex<Restraint>) -> MutexGuard<'_, Restraint> {
    restraint.lock().unwrap_or_else(PoisonError::into_inner)
}
