//! Virtual clocks: the runtime's paused time, read with an error of one's own.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use mcp_taskd_core::clock::{Clock, Millis};
use tokio::time::Instant;

/// Where virtual wall time begins.
pub const EPOCH_MS: Millis = 1_800_000_000_000;

/// A clock that is off by some amount, which may change.
#[derive(Debug)]
pub struct Skewed {
    started: Instant,
    off_ms: AtomicI64,
}

impl Skewed {
    /// A clock that began at `started`, and is off by `off_ms`.
    pub fn new(started: Instant, off_ms: i64) -> Self {
        Self { started, off_ms: AtomicI64::new(off_ms) }
    }

    /// Jumps.
    pub fn set(&self, off_ms: i64) {
        self.off_ms.store(off_ms, Ordering::Relaxed);
    }
}

impl Clock for Skewed {
    fn now_ms(&self) -> Millis {
        EPOCH_MS + self.started.elapsed().as_millis() as Millis + self.off_ms.load(Ordering::Relaxed)
    }

    fn boot(&self) -> Duration {
        // An hour after the machine's start, so that no subtraction meets zero.
        self.started.elapsed() + Duration::from_secs(3_600)
    }
}
