//! A server whose calls carry their caller's credentials: a user's own, or those that came with a request (BEHAVIOURS 107,
//! 118–122).
//!
//! Each set of credentials has its own way to the server, with sessions of its own: no user's call travels on a session that
//! another's opened. What does not depend on who calls, such as listing the tools, goes out with the server's own headers.

mod pool;

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderName, HeaderValue};
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::interceptor::put;
use super::{CallError, CallErrorKind, SharedUpstream, ToolCall, Upstream};
use crate::config::{ConfigError, ContextHeaders, Secrets, ServerConfig, UserAuth};
use pool::Pool;

/// Headers in place of the server's own of that name.
pub(super) type Credential = [(HeaderName, HeaderValue)];

/// Makes the way to the server for a credential; connects to nothing.
pub(super) type Open = Box<dyn Fn(&Credential) -> Result<SharedUpstream, ConfigError> + Send + Sync>;

/// The server.
pub(super) struct PerCaller {
    server: String,
    user_auth: Option<UserAuth>,
    context: Option<ContextHeaders>,
    /// With the server's own headers alone.
    plain: SharedUpstream,
    open: Open,
    pool: Arc<Pool>,
}

impl PerCaller {
    /// `server` reached as `open` has it; where its calls carry nobody's credentials, that is all.
    pub(super) fn wrap(server: &ServerConfig, open: Open) -> Result<SharedUpstream, ConfigError> {
        let plain = open(&[])?;
        let (user_auth, context) = (server.user_auth.clone(), server.headers_from_context.clone());
        if user_auth.is_none() && context.is_none() {
            return Ok(plain);
        }
        let server = server.name.clone();
        Ok(Arc::new(Self { server, user_auth, context, plain, open, pool: Arc::default() }))
    }

    fn denied(&self, why: &str) -> CallError {
        CallError::new(CallErrorKind::Denied, format!("server {:?}: {why}", self.server))
    }

    /// The way to the server for a call.
    fn way(&self, call: &ToolCall<'_>) -> Result<SharedUpstream, CallError> {
        let user = match &self.user_auth {
            Some(auth) => auth.header_for(&call.scope.user_id).map_err(|why| self.denied(&why))?,
            None => None,
        };
        let mut credential: Vec<_> = user.into_iter().collect();
        // What was chosen for this one request is the most specific (122).
        for (name, value) in call.headers {
            put(&mut credential, name.clone(), value.clone());
        }
        if credential.is_empty() {
            return Ok(Arc::clone(&self.plain));
        }
        self.pool.get(&credential, &self.open).map_err(|error| self.denied(&error.0))
    }
}

#[async_trait]
impl Upstream for PerCaller {
    async fn call_tool(&self, call: ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        let way = self.way(&call)?;
        way.call_tool(call).await
    }

    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        self.plain.list_tools().await
    }

    fn context_headers(&self, secrets: &Secrets) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
        let Some(context) = &self.context else { return Ok(Vec::new()) };
        context.resolve(secrets).map_err(|why| format!("server {:?}: {why}", self.server))
    }

    fn scrub(&self, text: &str) -> String {
        self.pool.all().iter().fold(self.plain.scrub(text), |text, way| way.scrub(&text))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.plain.changes()
    }

    async fn refresh(&self) {
        self.plain.refresh().await;
        for way in self.pool.all() {
            way.refresh().await;
        }
    }

    async fn close(&self) {
        let ways = self.pool.drain();
        let pooled = futures_util::future::join_all(ways.iter().map(|way| way.close()));
        tokio::join!(self.plain.close(), pooled);
    }
}

#[cfg(test)]
mod tests;
