//! A server's breaker: after failures in a row its calls are held back but for a few probes (BEHAVIOURS 149, 159).

use std::time::Duration;

use crate::task::{Failure, FailureKind};

/// Failures in a row that open it.
const THRESHOLD: u32 = 5;
/// The same where the server says when to come back: one such answer may concern one task only, a second the server.
const BUSY_THRESHOLD: u32 = 2;
/// Between two probes, at first; doubled by each failed one.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Between two probes at most, so that a recovery is noticed soon.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A `Retry-After` holds a whole server back for at most this long; the task itself honours it fully.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// Whether calls go through. Times are on the boot clock.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    probe_at: Duration,
    pause: Duration,
    reason: String,
}

/// What the breaker says to a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Go ahead.
    Call,
    /// Held back, for this reason.
    Hold(String),
}

impl Breaker {
    /// Asks for a call at `now`. While open, one call each pause goes through as a probe.
    pub(super) fn ask(&mut self, now: Duration) -> Verdict {
        match &mut self.open {
            None => Verdict::Call,
            Some(open) if now >= open.probe_at => {
                open.probe_at = now + open.pause;
                Verdict::Call
            }
            Some(open) => Verdict::Hold(format!("calls are held back after repeated failures: {}", open.reason)),
        }
    }

    /// The server answered, whatever it said.
    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// A call failed at `now`.
    pub(super) fn failed(&mut self, failure: &Failure, now: Duration) {
        match failure.kind {
            FailureKind::Timeout | FailureKind::Transport => {}
            // These are answers, or no calls at all.
            FailureKind::ToolError | FailureKind::Auth | FailureKind::Protocol => return self.succeeded(),
            FailureKind::Breaker | FailureKind::Unroutable | FailureKind::Internal | FailureKind::Intercepted => return,
        }
        self.failures = self.failures.saturating_add(1);
        let enough = if failure.retry_after.is_some() { BUSY_THRESHOLD } else { THRESHOLD };
        if self.failures < enough {
            return;
        }
        let pause = self.open.as_ref().map_or(FIRST_PAUSE, |open| (open.pause * 2).min(LONGEST_PAUSE));
        let hold = failure.retry_after.unwrap_or_default().min(LONGEST_HOLD).max(pause);
        self.open = Some(Open { probe_at: now + hold, pause, reason: failure.message.clone() });
    }

    /// Whether calls are held back.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout() -> Failure {
        Failure::new(FailureKind::Timeout, "no answer")
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        (0..THRESHOLD).for_each(|_| breaker.failed(&timeout(), Duration::ZERO));
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_an_answer_in_between_does_not_count() {
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            (0..THRESHOLD - 1).for_each(|_| breaker.failed(&timeout(), Duration::ZERO));
            breaker.failed(&Failure::new(FailureKind::ToolError, "busy"), Duration::ZERO);
        }
        assert!(!breaker.is_open());
        assert!(opened().is_open());
    }

    #[test]
    fn an_open_breaker_lets_a_few_probes_through_149() {
        let mut breaker = opened();
        let mut probes = 0;
        for ms in 0..60_000 {
            let now = Duration::from_millis(ms);
            if breaker.ask(now) == Verdict::Call {
                probes += 1;
                breaker.failed(&timeout(), now);
            }
        }
        assert!((10..=20).contains(&probes), "{probes} probes a minute");
        breaker.succeeded();
        assert_eq!(breaker.ask(Duration::ZERO), Verdict::Call);
    }

    #[test]
    fn a_second_retry_after_holds_the_server_back_within_bounds() {
        let mut breaker = Breaker::default();
        let hour = Some(Duration::from_secs(3_600));
        let busy = Failure { retry_after: hour, ..Failure::new(FailureKind::Transport, "503") };
        breaker.failed(&busy, Duration::ZERO);
        assert!(!breaker.is_open(), "it may concern that task only");
        breaker.failed(&busy, Duration::ZERO);
        assert!(matches!(breaker.ask(Duration::from_secs(59)), Verdict::Hold(_)));
        assert_eq!(breaker.ask(Duration::from_secs(61)), Verdict::Call);
    }
}
