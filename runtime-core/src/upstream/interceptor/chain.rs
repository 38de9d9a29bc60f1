//! A server behind its interceptors: each sees a call in turn, then the call goes out.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use http::{HeaderName, HeaderValue};
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::headers::{check, put};
use super::{Call, Failed, Interceptor, Verdict};
use crate::config::OnError;
use crate::task::limits::{SNIPPET_MAX_CHARS, clip};
use crate::upstream::scrub::Scrubber;
use crate::upstream::{CallError, CallErrorKind, SharedUpstream, ToolCall, Upstream};

/// Values that are looked for in what the server says: those that were added last. More than calls can be under way by
/// default, so that an answer is looked at while its own are among them.
const REMEMBERED: usize = 512;

/// A server whose calls are intercepted.
pub(in crate::upstream) struct Chain {
    server: String,
    inner: SharedUpstream,
    interceptors: Vec<Arc<dyn Interceptor>>,
    /// The scrubbers of values that were added lately, the latest at the end.
    added: Mutex<VecDeque<(HeaderName, HeaderValue, Scrubber)>>,
}

impl Chain {
    /// `inner` behind `interceptors`, the first of which sees a call first; `inner` itself where there are none.
    pub(in crate::upstream) fn wrap(
        server: &str,
        inner: SharedUpstream,
        interceptors: Vec<Arc<dyn Interceptor>>,
    ) -> SharedUpstream {
        if interceptors.is_empty() {
            return inner;
        }
        Arc::new(Self { server: server.to_owned(), inner, interceptors, added: Mutex::default() })
    }

    /// The headers for a call, or why it is not sent.
    async fn consult(
        &self,
        call: &ToolCall<'_>,
        started: Instant,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, CallError> {
        let mut headers = Vec::new();
        for interceptor in &self.interceptors {
            let view = Call {
                server: &self.server,
                tool: call.tool,
                user_id: &call.scope.user_id,
                thread_id: &call.scope.thread_id,
                arguments: interceptor.wants_arguments().then_some(call.arguments),
            };
            let limit =
                left(call.deadline, started).map_or(interceptor.timeout(), |left| left.min(interceptor.timeout()));
            let name = interceptor.name();
            match ask(&**interceptor, view, limit).await {
                Ok(Verdict::Pass(added)) => {
                    let added = check(added).map_err(|what| refused(format!("the interceptor {name:?} {what}")))?;
                    for (name, value) in added {
                        put(&mut headers, name, value);
                    }
                }
                Ok(Verdict::Refuse(why)) => {
                    let why = clip(&why.replace(char::is_control, " "), SNIPPET_MAX_CHARS);
                    return Err(refused(format!("the interceptor {name:?} refused the call: {why}")));
                }
                Err(Failed(why)) => {
                    let why = clip(&why, SNIPPET_MAX_CHARS);
                    tracing::warn!(server = self.server, interceptor = name, error = why, "an interceptor failed");
                    if interceptor.on_error() == OnError::Deny {
                        return Err(refused(format!("the interceptor {name:?} could not be asked: {why}")));
                    }
                }
            }
        }
        // What was chosen for this one call is the most specific (122).
        for (name, value) in call.headers {
            put(&mut headers, name.clone(), value.clone());
        }
        Ok(headers)
    }

    fn remember(&self, headers: &[(HeaderName, HeaderValue)]) {
        let mut added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, value) in headers {
            let scrubber = match added.iter().position(|(known, held, _)| known == name && held == value) {
                Some(at) => added.remove(at).map(|(_, _, scrubber)| scrubber),
                None => None,
            };
            let scrubber =
                scrubber.unwrap_or_else(|| Scrubber::new([(name.as_str(), value.to_str().unwrap_or_default())]));
            added.push_back((name.clone(), value.clone(), scrubber));
        }
        let surplus = added.len().saturating_sub(REMEMBERED);
        added.drain(..surplus);
    }
}

#[async_trait]
impl Upstream for Chain {
    async fn call_tool(&self, call: ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        let started = Instant::now();
        let headers = self.consult(&call, started).await?;
        self.remember(&headers);
        // What they took is part of the call's own time.
        let deadline = left(call.deadline, started);
        if deadline == Some(Duration::ZERO) {
            return Err(refused("the call's time was used up by its interceptors".to_owned()));
        }
        let answered = self.inner.call_tool(ToolCall { headers: &headers, deadline, ..call }).await;
        answered.map_err(|mut error| {
            error.message = self.scrub(&error.message);
            error
        })
    }

    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        self.inner.list_tools().await
    }

    fn scrub(&self, text: &str) -> String {
        let added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        let text = self.inner.scrub(text);
        added.iter().fold(text, |text, (_, _, scrubber)| scrubber.scrub(&text))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes()
    }

    async fn refresh(&self) {
        self.inner.refresh().await;
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// Asks one interceptor, within `limit`. A panic is a failure like any other.
async fn ask(interceptor: &dyn Interceptor, call: Call<'_>, limit: Duration) -> Result<Verdict, Failed> {
    let asking = AssertUnwindSafe(interceptor.before_call(call)).catch_unwind();
    match timeout(limit, asking).await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(_)) => Err(Failed("it panicked".to_owned())),
        Err(_) => Err(Failed(format!("it did not answer within {limit:?}"))),
    }
}

/// What is left of a deadline that began at `started`.
fn left(deadline: Option<Duration>, started: Instant) -> Option<Duration> {
    deadline.map(|deadline| deadline.saturating_sub(started.elapsed()))
}

fn refused(message: String) -> CallError {
    CallError::new(CallErrorKind::Intercepted, message)
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod tests;
