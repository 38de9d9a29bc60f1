//! The one refresh of a connection that is under way, and when there may be another (invariant 8).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::held::{Token, now};
use crate::upstream::CallError;

/// Between a refresh that failed and the next, doubling: every request meanwhile fails at once.
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_mins(1);
/// The most of a `Retry-After` that is heeded.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);
/// Between two tokens that are asked for because the server refuses even a new one, doubling.
const MIN_FORCED_PAUSE: Duration = Duration::from_secs(30);
const MAX_FORCED_PAUSE: Duration = Duration::from_mins(15);

/// What came of a refresh, once it is over.
pub(super) type Landing = Option<Result<Token, CallError>>;

/// The refreshes of one connection. Locked before its tokens are, by whoever locks both.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<Flight>);

impl Flights {
    pub(super) fn lock(&self) -> MutexGuard<'_, Flight> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The refresh under way, or the last one.
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// What it asks with, and where it is told what came of it.
    last: Option<(String, watch::Receiver<Landing>)>,
    failed: Option<(Pause, CallError)>,
    forced: Option<Pause>,
}

impl Flight {
    /// The one under way: what it asks with, and where it is told what comes of it.
    pub(super) fn under_way(&self) -> Option<(&str, watch::Receiver<Landing>)> {
        let (request, landing) = self.last.as_ref()?;
        // One that panicked has nobody left to say so.
        let is_over = landing.borrow().is_some() || landing.has_changed().is_err();
        (!is_over).then(|| (request.as_str(), landing.clone()))
    }

    /// Begins one that asks with `request`.
    pub(super) fn begin(&mut self, request: &str) -> (watch::Sender<Landing>, watch::Receiver<Landing>) {
        let (sender, landing) = watch::channel(None);
        self.last = Some((request.to_owned(), landing.clone()));
        (sender, landing)
    }

    /// Why the last one failed, where it is too early for another.
    pub(super) fn failure(&self) -> Option<CallError> {
        self.failed.as_ref().filter(|(pause, _)| !pause.is_over()).map(|(_, error)| error.clone())
    }

    /// Whether it is too early for another token because the server refuses even a new one.
    pub(super) fn is_held_back(&self) -> bool {
        self.forced.is_some_and(|pause| !pause.is_over())
    }

    /// Takes note of a success; `forced` says that the server had refused the token before.
    pub(super) fn succeeded(&mut self, forced: bool) {
        self.failed = None;
        if forced {
            let last = self.forced.filter(|last| now() < last.until + last.length);
            self.forced = Some(Pause::after(last, MIN_FORCED_PAUSE, MAX_FORCED_PAUSE));
        }
    }

    /// Takes note of a failure.
    pub(super) fn failed(&mut self, error: CallError, retry_after: Option<Duration>) {
        let mut pause = Pause::after(self.failed.as_ref().map(|(pause, _)| *pause), MIN_PAUSE, MAX_PAUSE);
        pause.until = pause.until.max(now() + retry_after.unwrap_or_default().min(MAX_RETRY_AFTER));
        self.failed = Some((pause, error));
    }

    /// Forgets what failed: another configuration may do better.
    pub(super) fn forget_failures(&mut self) {
        (self.failed, self.forced) = (None, None);
    }
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    /// On the boot clock.
    until: Duration,
    length: Duration,
}

impl Pause {
    /// A pause from now that is twice as long as the last one.
    fn after(last: Option<Self>, min: Duration, max: Duration) -> Self {
        let length = last.map_or(min, |last| (last.length * 2).min(max));
        Self { until: now() + length.mul_f64(1.0 + fastrand::f64() / 4.0), length }
    }

    fn is_over(self) -> bool {
        now() >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::CallErrorKind;

    #[test]
    fn failures_hold_the_next_refresh_back_longer_and_longer() {
        let error = CallError::new(CallErrorKind::Auth, "no token".to_owned());
        let mut flight = Flight::default();
        let mut lengths = Vec::new();
        for _ in 0..8 {
            flight.failed(error.clone(), None);
            assert_eq!(flight.failure(), Some(error.clone()));
            lengths.push(flight.failed.as_ref().unwrap().0.length.as_secs());
        }
        assert_eq!(lengths, [1, 2, 4, 8, 16, 32, 60, 60]);
        flight.failed(error, Some(Duration::from_secs(3_600)));
        let left = flight.failed.as_ref().unwrap().0.until.saturating_sub(now());
        assert!(left > Duration::from_secs(290) && left <= MAX_RETRY_AFTER, "{left:?}");
        flight.succeeded(false);
        assert!(flight.failure().is_none() && !flight.is_held_back());
        flight.succeeded(true);
        flight.succeeded(true);
        assert!(flight.is_held_back() && flight.forced.unwrap().length == Duration::from_secs(60));
        flight.forget_failures();
        assert!(!flight.is_held_back());
    }
}
