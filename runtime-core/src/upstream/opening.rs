//! Bringing sessions up: one deadline over all of it, and what is made of a failure (BEHAVIOURS 108).

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::CallError;
use super::metrics::ServerMetrics;
use super::scrub::Scrubber;

/// How one server's sessions are brought up.
pub(super) struct Opening {
    /// `session_init_timeout`; none where `None`.
    pub(super) limit: Option<Duration>,
    pub(super) scrubber: Scrubber,
    pub(super) metrics: ServerMetrics,
}

impl Opening {
    /// Brings a session up with `make`: spawn or connect, endpoint, handshake, all within the limit. Whatever fails, the
    /// call that needed the session was not sent.
    pub(super) async fn open<T>(&self, make: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
        let opened = self.within("session_init_timeout: the start of a session", self.limit, make).await;
        self.metrics.attempted(&opened);
        opened.map_err(|error| self.scrubbed(error.before_call()))
    }

    /// A listing in what is left of the limit, which includes the session that it needed `since` (99, 108).
    pub(super) async fn list<T>(
        &self,
        since: Instant,
        list: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let left = self.limit.map(|limit| limit.saturating_sub(since.elapsed()));
        self.within("tools/list", left, list).await.map_err(|error| self.scrubbed(error))
    }

    /// The error without the credentials that are sent to the server (148).
    pub(super) fn scrubbed(&self, mut error: CallError) -> CallError {
        error.message = self.scrubber.scrub(&error.message);
        error
    }

    async fn within<T>(
        &self,
        what: &str,
        left: Option<Duration>,
        work: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let (Some(limit), Some(left)) = (self.limit, left) else { return work.await };
        timeout(left, work).await.unwrap_or_else(|_| Err(CallError::timeout(what, limit)))
    }
}
