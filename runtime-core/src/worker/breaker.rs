//! A server's breaker: after failures in a row its calls are held back but for a few probes (BEHAVIOURS 149, 159).
//!
//! Closed, open, on trial: a probe that is answered puts the server on trial, where few calls run at a time and one failure
//! opens the breaker again; a few answers in a row close it. So neither a recovery nor a server that flaps is met by all of
//! its tasks at once.

use std::time::Duration;

use crate::task::{Failure, FailureKind};

/// Failures in a row that open it.
const THRESHOLD: u32 = 5;
/// The same where the server says when to come back: one such answer may concern one task only, a second the server.
const BUSY_THRESHOLD: u32 = 2;
/// Answers in a row that end a trial.
const PROOF: u32 = 5;
/// Probes that may be unanswered at a time: a second one, because the first may have met the one task that hangs.
const PROBES: u32 = 2;
/// Between two probes, at first; doubled by each failed one.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Between two probes at most, so that a recovery is noticed soon.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A `Retry-After` holds a whole server back for at most this long; the task itself honours it fully.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// Whether calls go through. Times are on the boot clock.
#[derive(Debug)]
pub(super) struct Breaker {
    state: State,
    /// Probes without an answer yet.
    probes: u32,
    /// When the server last answered.
    answered_at: Duration,
    /// Until the next probe once it opens; remembered through a trial, so that a server that flaps is probed ever more rarely.
    pause: Duration,
}

#[derive(Debug)]
enum State {
    /// Calls go through.
    Closed { failures: u32 },
    /// Calls are held back, but for a probe at its time.
    Open { probe_at: Duration, reason: String },
    /// It has answered again, so many times in a row.
    Trial { answers: u32 },
}

impl Default for Breaker {
    fn default() -> Self {
        Self { state: State::Closed { failures: 0 }, probes: 0, answered_at: Duration::ZERO, pause: FIRST_PAUSE }
    }
}

impl Breaker {
    /// Whether a call may start at `now`, beside `running` others.
    pub(super) fn admits(&self, now: Duration, running: usize) -> bool {
        match &self.state {
            State::Closed { .. } => true,
            State::Open { probe_at, .. } => now >= *probe_at && self.probes < PROBES,
            State::Trial { answers } => running <= *answers as usize,
        }
    }

    /// Why calls are held back, if they are.
    pub(super) fn reason(&self) -> Option<String> {
        let State::Open { reason, .. } = &self.state else { return None };
        Some(format!("calls are held back after repeated failures: {reason}"))
    }

    /// A call starts at `now`; whether it is a probe.
    pub(super) fn started(&mut self, now: Duration) -> bool {
        let State::Open { probe_at, .. } = &mut self.state else { return false };
        *probe_at = now + self.pause;
        self.probes += 1;
        true
    }

    /// A call, or a probe, that began at `began` has ended at `now`: with an answer, whatever it said, or with a failure.
    pub(super) fn ended(&mut self, probe: bool, failure: Option<&Failure>, began: Duration, now: Duration) {
        if probe {
            self.abandoned();
        }
        match failure.map(|failure| (failure, failure.kind)) {
            Some((failure, FailureKind::Timeout | FailureKind::Transport)) => self.failed(probe, failure, began, now),
            // Nothing was heard of the server.
            Some((
                _,
                FailureKind::Breaker
                | FailureKind::Unroutable
                | FailureKind::Internal
                | FailureKind::Intercepted
                | FailureKind::Denied,
            )) => {}
            Some((_, FailureKind::ToolError | FailureKind::Auth | FailureKind::Protocol)) | None => self.answered(now),
        }
    }

    /// A probe was given up before it told anything.
    pub(super) fn abandoned(&mut self) {
        self.probes = self.probes.saturating_sub(1);
    }

    fn answered(&mut self, now: Duration) {
        self.answered_at = now;
        match &mut self.state {
            State::Closed { failures } => *failures = 0,
            State::Open { .. } => self.state = State::Trial { answers: 1 },
            State::Trial { answers } if *answers + 1 < PROOF => *answers += 1,
            State::Trial { .. } => {
                self.state = State::Closed { failures: 0 };
                self.pause = FIRST_PAUSE;
            }
        }
    }

    fn failed(&mut self, probe: bool, failure: &Failure, began: Duration, now: Duration) {
        // It was sent before the server's last answer, which is newer evidence. What says when to come back is an answer itself.
        if began < self.answered_at && failure.retry_after.is_none() && !self.is_open() {
            return;
        }
        let hold = failure.retry_after.unwrap_or_default().min(LONGEST_HOLD);
        match &mut self.state {
            State::Closed { failures } => {
                *failures += 1;
                let enough = if failure.retry_after.is_some() { BUSY_THRESHOLD } else { THRESHOLD };
                if *failures < enough {
                    return;
                }
            }
            // A call that began before it opened is no news, unless it says when to come back.
            State::Open { probe_at, .. } if !probe => {
                *probe_at = (*probe_at).max(now + hold);
                return;
            }
            State::Open { .. } | State::Trial { .. } => self.pause = (self.pause * 2).min(LONGEST_PAUSE),
        }
        self.state = State::Open { probe_at: now + hold.max(self.pause), reason: failure.message.clone() };
    }

    /// Whether calls are held back.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Whether calls go through as they come: neither held back nor on trial.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// Whether the last that was heard of the server is good.
    pub(super) fn is_sound(&self) -> bool {
        matches!(self.state, State::Closed { failures: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout() -> Failure {
        Failure::new(FailureKind::Timeout, "no answer")
    }

    fn busy(seconds: u64) -> Failure {
        Failure { retry_after: Some(Duration::from_secs(seconds)), ..Failure::new(FailureKind::Transport, "503") }
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        (0..THRESHOLD).for_each(|_| breaker.ended(false, Some(&timeout()), Duration::ZERO, Duration::ZERO));
        breaker
    }

    /// How many calls start in a minute, each answered at once with what `answer` says about the n-th.
    fn calls_in_a_minute(breaker: &mut Breaker, answer: impl Fn(u32) -> Option<Failure>) -> u32 {
        let mut calls = 0;
        for ms in 0..60_000 {
            let now = Duration::from_millis(ms);
            if breaker.admits(now, 0) {
                let probe = breaker.started(now);
                breaker.ended(probe, answer(calls).as_ref(), now, now);
                calls += 1;
            }
        }
        calls
    }

    #[test]
    fn a_call_that_an_interceptor_kept_back_says_nothing_of_the_server_139() {
        let mut breaker = Breaker::default();
        let denied = Failure::new(FailureKind::Denied, "no credential");
        let kept_back = Failure::new(FailureKind::Intercepted, "not today");
        for _ in 0..20 {
            breaker.ended(false, Some(&kept_back), Duration::ZERO, Duration::ZERO);
            breaker.ended(false, Some(&denied), Duration::ZERO, Duration::ZERO);
        }
        assert!(!breaker.is_open(), "the server may be fine");
        let mut breaker = opened();
        breaker.ended(false, Some(&kept_back), Duration::ZERO, Duration::ZERO);
        breaker.ended(false, Some(&denied), Duration::ZERO, Duration::ZERO);
        assert!(breaker.is_open(), "the server has not answered");
    }

    #[test]
    fn failures_in_a_row_open_it_and_an_answer_in_between_does_not_count() {
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            (0..THRESHOLD - 1).for_each(|_| breaker.ended(false, Some(&timeout()), Duration::ZERO, Duration::ZERO));
            breaker.ended(false, Some(&Failure::new(FailureKind::ToolError, "busy")), Duration::ZERO, Duration::ZERO);
        }
        assert!(!breaker.is_open());
        assert!(opened().is_open());
    }

    #[test]
    fn an_open_breaker_lets_a_few_probes_through_and_says_why_149() {
        let mut breaker = opened();
        let probes = calls_in_a_minute(&mut breaker, |_| Some(timeout()));
        assert!((10..=20).contains(&probes), "{probes} probes a minute");
        let why = breaker.reason().unwrap();
        assert!(why.contains("no answer"), "{why}");
    }

    #[test]
    fn probes_that_are_never_answered_do_not_add_up_29() {
        let mut breaker = opened();
        for seconds in 0..600 {
            let now = Duration::from_secs(seconds);
            if breaker.admits(now, 0) {
                assert!(breaker.started(now));
            }
        }
        assert_eq!(breaker.probes, PROBES);
        breaker.abandoned();
        assert!(breaker.admits(Duration::from_secs(600), 0), "one that was given up makes room for another");
    }

    #[test]
    fn calls_that_began_before_it_opened_are_no_failed_probes() {
        let mut breaker = opened();
        (0..60).for_each(|_| breaker.ended(false, Some(&timeout()), Duration::ZERO, Duration::ZERO));
        assert!(breaker.admits(FIRST_PAUSE, 0));
    }

    #[test]
    fn a_recovery_is_met_by_few_calls_at_first_and_one_failure_opens_it_again() {
        let mut breaker = opened();
        let now = FIRST_PAUSE;
        let probe = breaker.started(now);
        breaker.ended(probe, None, now, now);
        assert!(!breaker.is_open() && breaker.admits(now, 1) && !breaker.admits(now, 2), "one more than has answered");
        breaker.ended(false, Some(&timeout()), Duration::ZERO, now);
        assert!(!breaker.is_open(), "what was sent before it answered is no news");
        breaker.ended(false, Some(&timeout()), now, now);
        assert!(breaker.is_open());
        let probe = breaker.started(Duration::from_secs(10));
        breaker.ended(probe, None, now, now);
        (1..PROOF).for_each(|_| breaker.ended(false, None, now, now));
        assert!(breaker.is_sound() && breaker.admits(now, 1_000));
    }

    #[test]
    fn a_server_that_flaps_is_asked_ever_more_rarely_25() {
        let calls = calls_in_a_minute(&mut opened(), |n| (n % 2 == 1).then(timeout));
        assert!(calls <= 40, "{calls} calls in a minute");
    }

    #[test]
    fn a_storm_of_refusals_is_met_by_two_calls_and_a_probe_at_its_time_25() {
        let calls = calls_in_a_minute(&mut Breaker::default(), |_| Some(busy(10)));
        assert_eq!(calls, BUSY_THRESHOLD + 5);
    }

    #[test]
    fn a_second_retry_after_holds_the_server_back_within_bounds_135() {
        let mut breaker = Breaker::default();
        breaker.ended(false, Some(&busy(3_600)), Duration::ZERO, Duration::ZERO);
        assert!(!breaker.is_open(), "it may concern that task only");
        breaker.ended(false, Some(&busy(3_600)), Duration::ZERO, Duration::ZERO);
        assert!(breaker.is_open() && !breaker.admits(Duration::from_secs(59), 0));
        assert!(breaker.admits(Duration::from_secs(61), 0));
    }
}
