//! Word from a server that its tools have changed (`notifications/tools/list_changed`).

use std::sync::Arc;

use tokio::sync::watch;

use super::jsonrpc::LIST_CHANGED;

/// Counts the notices of one server.
#[derive(Clone)]
pub(super) struct Changes(Arc<watch::Sender<u64>>);

impl Default for Changes {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Changes {
    /// Takes note of a notification, if it is one of these.
    pub(super) fn heard(&self, method: &str) {
        if method == LIST_CHANGED {
            self.0.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }

    /// Whether anybody wants to know.
    pub(super) fn is_watched(&self) -> bool {
        self.0.receiver_count() > 0
    }
}
