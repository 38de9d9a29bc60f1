//! The only place that reads clocks: wall time, boot time, and the store's time that leases are judged by.

use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Milliseconds since the Unix epoch.
pub type Millis = i64;

/// A source of time; the simulation and tests put their own in.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Wall time, in milliseconds since the Unix epoch.
    fn now_ms(&self) -> Millis;
    /// Time since some fixed point, running on while the machine is suspended.
    fn boot(&self) -> Duration;
}

/// The operating system's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> Millis {
        #[expect(clippy::disallowed_methods, reason = "the one sanctioned wall-clock read")]
        let now = std::time::SystemTime::now();
        now.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_millis() as Millis)
    }

    fn boot(&self) -> Duration {
        // Linux's monotonic clock stops during suspend, and a lease does not: only the boot clock can fence itself.
        #[cfg(target_os = "linux")]
        let id = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let id = rustix::time::ClockId::Monotonic;
        let at = rustix::time::clock_gettime(id);
        Duration::new(at.tv_sec.unsigned_abs(), at.tv_nsec as u32)
    }
}

/// A clock held to the store's: an offset measured at each heartbeat, monotonic in between.
///
/// Replica clocks may be minutes apart (`FAILURES` 6); due times and leases are compared in the store's time only.
#[derive(Debug)]
pub struct StoreClock {
    inner: Arc<dyn Clock>,
    anchor: Mutex<Option<Anchor>>,
}

#[derive(Debug, Clone, Copy)]
struct Anchor {
    store_ms: Millis,
    boot: Duration,
}

impl StoreClock {
    /// A clock that follows `inner` until the first [`StoreClock::discipline`].
    pub fn new(inner: Arc<dyn Clock>) -> Self {
        Self { inner, anchor: Mutex::new(None) }
    }

    /// Takes over the store's time, read between `sent` and now on the boot clock; the middle is the best guess.
    pub fn discipline(&self, store_ms: Millis, sent: Duration) {
        let boot = self.inner.boot();
        let middle = sent + boot.saturating_sub(sent) / 2;
        *self.anchor.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
            Some(Anchor { store_ms, boot: middle });
    }
}

impl Clock for StoreClock {
    fn now_ms(&self) -> Millis {
        let anchor = *self.anchor.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        anchor.map_or_else(
            || self.inner.now_ms(),
            |anchor| anchor.store_ms + self.inner.boot().saturating_sub(anchor.boot).as_millis() as Millis,
        )
    }

    fn boot(&self) -> Duration {
        self.inner.boot()
    }
}

/// A clock that stands still until told otherwise.
#[derive(Debug, Default)]
pub struct ManualClock(Mutex<(Millis, Duration)>);

impl ManualClock {
    /// A clock that shows `now_ms`.
    pub fn at(now_ms: Millis) -> Self {
        Self(Mutex::new((now_ms, Duration::ZERO)))
    }

    /// Moves both hands forward.
    pub fn advance(&self, by: Duration) {
        let mut hands = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        hands.0 += by.as_millis() as Millis;
        hands.1 += by;
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> Millis {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).0
    }

    fn boot(&self) -> Duration {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disciplined_clock_shows_the_stores_time_and_moves_on_by_itself() {
        let hands = Arc::new(ManualClock::at(1_000));
        let clock = StoreClock::new(Arc::clone(&hands) as Arc<dyn Clock>);
        assert_eq!(clock.now_ms(), 1_000);
        clock.discipline(600_000, Duration::ZERO);
        assert_eq!(clock.now_ms(), 600_000);
        hands.advance(Duration::from_millis(250));
        assert_eq!(clock.now_ms(), 600_250);
    }
}
