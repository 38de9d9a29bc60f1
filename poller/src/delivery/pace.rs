//! How hard a sink is pressed: one that keeps failing gets one message at a time, ever more rarely, so that an outage uses up
//! neither its deliveries' budgets nor this process's connections.

use std::time::Duration;

use tokio::time::Instant;

/// Deliveries to one sink at a time.
const AT_ONCE: usize = 8;
/// Failures in a row from which on a sink is on trial.
const PATIENCE: u32 = 5;
/// The first and the longest pause between two messages to a sink on trial.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What is remembered of a sink.
#[derive(Debug, Default)]
pub(super) struct Pace {
    failures: u32,
    not_before: Option<Instant>,
}

impl Pace {
    /// How many more may be sent now, with so many under way.
    pub(super) fn room(&self, under_way: usize, now: Instant) -> usize {
        if self.failures < PATIENCE {
            return AT_ONCE.saturating_sub(under_way);
        }
        let rests = self.not_before.is_some_and(|at| now < at);
        if rests { 0 } else { 1_usize.saturating_sub(under_way) }
    }

    /// Takes note of how one ended.
    pub(super) fn note(&mut self, answered: bool, now: Instant) {
        if answered {
            *self = Self::default();
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let doubled = PAUSE.0.saturating_mul(1 << self.failures.saturating_sub(PATIENCE).min(10));
        self.not_before = Some(now + doubled.min(PAUSE.1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sink_that_keeps_failing_gets_one_message_at_a_time_ever_more_rarely() {
        let mut pace = Pace::default();
        let now = Instant::now();
        assert_eq!((pace.room(0, now), pace.room(3, now), pace.room(9, now)), (8, 5, 0));
        for _ in 0..4 {
            pace.note(false, now);
        }
        assert_eq!(pace.room(0, now), 8, "a few failures are nothing");
        pace.note(false, now);
        assert_eq!(pace.room(0, now), 0);
        assert_eq!(pace.room(0, now + Duration::from_secs(1)), 1);
        assert_eq!(pace.room(1, now + Duration::from_secs(1)), 0);
        for _ in 0..100 {
            pace.note(false, now);
        }
        assert_eq!(pace.room(0, now + Duration::from_secs(59)), 0);
        assert_eq!(pace.room(0, now + Duration::from_secs(60)), 1, "a minute at most");
        pace.note(true, now);
        assert_eq!(pace.room(0, now), 8);
    }
}
