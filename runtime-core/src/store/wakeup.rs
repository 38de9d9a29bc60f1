//! Wake-ups: hints that shorten waiting, within a process and, where the store can, between processes.
//!
//! They carry no data, many of them become one, and losing them all costs only latency: everything that listens also looks by
//! itself, at least once a second (DESIGN, Wake-ups; FAILURES 7, 8).

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::broadcast;

use super::Result;

/// How many wake-ups a listener may be behind before it is told only that it is.
const BEHIND: usize = 16;

/// What happened somewhere in the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// Rows that nobody owns are due, or will be soon: workers claim.
    Due,
    /// Tasks have changed: whoever waits for one looks.
    Changed,
}

/// Tasks that have changed lately, and where in the order of events that was read from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct News {
    /// The newest event.
    pub sequence: i64,
    /// Task and thread of each event.
    pub tasks: Vec<(Arc<str>, Arc<str>)>,
}

/// Hints from and to the other processes of the fleet.
#[async_trait]
pub trait Wakeups: Send + Sync {
    /// Tells everybody who listens, soon, and once for many calls. Never waits, never fails, and may be lost.
    fn wake(&self, what: Wakeup);

    /// What this and other processes tell from now on, and once after each gap in the listening.
    ///
    /// Subscribe before looking, so that nothing falls between.
    fn wakeups(&self) -> broadcast::Receiver<Wakeup>;

    /// The newest events after `after`, at most `limit`. One that is committed late may be missed: good for a hint only.
    async fn news(&self, after: i64, limit: u32) -> Result<News>;
}

/// Wake-ups within a process.
#[derive(Debug, Clone)]
pub(super) struct Channel(broadcast::Sender<Wakeup>);

impl Default for Channel {
    fn default() -> Self {
        Self(broadcast::channel(BEHIND).0)
    }
}

impl Channel {
    pub(super) fn wake(&self, what: Wakeup) {
        // Nobody may be listening.
        let _ = self.0.send(what);
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Wakeup> {
        self.0.subscribe()
    }
}
