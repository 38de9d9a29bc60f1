//! What the requests of one session have in common.

use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderMap;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{NOTIFY_TIMEOUT, Target};
use crate::upstream::jsonrpc::Era;
use crate::upstream::metrics::SessionCount;
use crate::upstream::offers::Offers;

/// A session; of the modern era it is no more than a way of speaking.
pub(super) struct Session {
    pub(super) era: Era,
    pub(super) headers: HeaderMap,
    pub(super) offers: Offers,
    /// Whether somebody listens to changes of the tools already.
    pub(super) listening: AtomicBool,
    /// Cancelled when the session is gone.
    pub(super) closed: CancellationToken,
    /// Where a session that the server gave an `Mcp-Session-Id` is ended.
    named: Option<Target>,
    retired: AtomicBool,
    _count: SessionCount,
}

impl Session {
    pub(super) fn new(
        era: Era,
        headers: HeaderMap,
        named: Option<Target>,
        offers: Offers,
        count: SessionCount,
    ) -> Self {
        Self {
            era,
            headers,
            offers,
            listening: AtomicBool::new(false),
            closed: CancellationToken::new(),
            named,
            retired: AtomicBool::new(false),
            _count: count,
        }
    }

    /// Whether the server gave it an id, under which it can be forgotten.
    pub(super) fn is_named(&self) -> bool {
        self.named.is_some()
    }

    /// Has the server told to end it once nobody uses it any more.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Tells the server to end it; one that does not end sessions on request lets them expire.
    pub(super) async fn end(&self) {
        self.retired.store(false, Ordering::Relaxed);
        if let Some(target) = &self.named {
            let _ = timeout(NOTIFY_TIMEOUT, target.delete(self.headers.clone())).await;
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.closed.cancel();
        if *self.retired.get_mut()
            && let Some(target) = &self.named
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(timeout(NOTIFY_TIMEOUT, target.delete(self.headers.clone())));
        }
    }
}
