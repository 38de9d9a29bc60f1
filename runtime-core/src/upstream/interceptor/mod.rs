//! Interceptors: who may add headers to a tool call, or refuse it, before it is sent (BEHAVIOURS 106, 127, 139).
//!
//! A Rust program that embeds the runtime implements [`Interceptor`] and hands a builder to
//! [`Options`](super::Options); operators name HTTP endpoints in `mcpInterceptors`.

mod chain;
mod endpoint;
mod headers;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;
use serde_json::value::RawValue;

use crate::config::OnError;

pub(super) use chain::Chain;
pub(super) use endpoint::Endpoint;
pub(super) use headers::put;

/// How long an interceptor may take where it does not say, and its call has more time.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// A tool call on its way to a server: an agent's, or one about a task, by whoever owns the task.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The server's name in the configuration.
    pub server: &'a str,
    /// The tool's raw name.
    pub tool: &'a str,
    /// The user: of a background call, the task's stored owner.
    pub user_id: &'a str,
    /// The user's thread.
    pub thread_id: &'a str,
    /// The arguments, the text of a JSON object, where [`Interceptor::wants_arguments`].
    pub arguments: Option<&'a RawValue>,
}

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It goes on, with these headers in place of the server's own and of earlier interceptors' of the same name.
    ///
    /// A server reached over HTTP gets them as HTTP headers, a child process as `headers` in the call's `_meta`. Headers
    /// that carry the protocol itself, and values that no header can have, refuse the call.
    Pass(HeaderMap),
    /// It is not sent. The caller is shown this text; a poll or cancel is tried again later.
    Refuse(String),
}

/// Why an interceptor has no verdict. The text is logged and shown: it must hold no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failed(pub String);

/// Looks at every tool call to one server: ordinary calls, submits, status and cancel calls. Discovery is not intercepted.
#[async_trait]
pub trait Interceptor: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// Whether [`Call::arguments`] is filled in; they may be confidential.
    fn wants_arguments(&self) -> bool {
        false
    }

    /// How long it may take. The call's own deadline counts too.
    fn timeout(&self) -> Duration {
        DEFAULT_TIMEOUT
    }

    /// What happens to the call where it fails, panics or takes too long.
    fn on_error(&self) -> OnError {
        OnError::Deny
    }

    /// Looks at a call before it is sent. It may be dropped at any await, when the call is given up.
    async fn before_call(&self, call: Call<'_>) -> Result<Verdict, Failed>;
}

type Build = dyn Fn(&str) -> Option<Arc<dyn Interceptor>> + Send + Sync;

/// Builders of interceptors, in the order in which these see a call.
#[derive(Clone, Default)]
pub struct Interceptors(Vec<Arc<Build>>);

impl Interceptors {
    /// Adds a builder. It runs once for each enabled server and gets the server's name, so that what an interceptor
    /// counts or remembers is of one server; `None` leaves that server's calls alone (127).
    #[must_use]
    pub fn with(mut self, build: impl Fn(&str) -> Option<Arc<dyn Interceptor>> + Send + Sync + 'static) -> Self {
        self.0.push(Arc::new(build));
        self
    }

    /// The interceptors of one server.
    pub(super) fn of(&self, server: &str) -> impl Iterator<Item = Arc<dyn Interceptor>> {
        self.0.iter().filter_map(move |build| build(server))
    }
}

impl std::fmt::Debug for Interceptors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Interceptors").field(&self.0.len()).finish()
    }
}
