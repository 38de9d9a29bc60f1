//! When a task is due next (BEHAVIOURS F, 135). Everything is in milliseconds; chance comes in as a number.

use std::time::Duration;

use super::Status;
use crate::clock::Millis;

/// The longest any task waits between two polls: 24 hours (13, 135).
pub const MAX_WAIT_MS: i64 = 86_400_000;
/// The shortest a hint may ask for (135).
pub const MIN_HINT_MS: i64 = 100;
/// The most that jitter adds to a regular poll.
const MAX_JITTER_MS: i64 = 30_000;
/// The shortest wait that the end of a task's time on its server brings about.
const MIN_TTL_WAIT_MS: i64 = 1_000;
/// The exponent at which backoff stops doubling (46).
const MAX_EXPONENT: i64 = 16;

/// The configured rhythm of polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Between two polls, without a hint.
    pub poll_interval_ms: i64,
    /// The most that errors stretch it to.
    pub max_backoff_ms: i64,
    /// The least for a task that waits for input.
    pub input_required_interval_ms: i64,
    /// Errors in a row from which tracking counts as degraded.
    pub degraded_after: i64,
    /// How old a task may get.
    pub max_age_ms: Option<i64>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            poll_interval_ms: 5_000,
            max_backoff_ms: 300_000,
            input_required_interval_ms: 60_000,
            degraded_after: 3,
            max_age_ms: None,
        }
    }
}

/// A number from 0 (inclusive) to 1 (exclusive): the chance in jitter, handed in so that decisions stay pure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chance(f64);

impl Chance {
    /// No jitter at all.
    pub const NONE: Self = Self(0.0);

    /// Takes `unit` into the range.
    pub fn new(unit: f64) -> Self {
        Self(if unit.is_finite() { unit.clamp(0.0, 1.0) } else { 0.0 })
    }

    /// The fraction of `of_ms` that chance picks.
    pub fn of(self, of_ms: i64) -> i64 {
        (of_ms as f64 * self.0) as i64
    }
}

impl Policy {
    /// When to poll again after an applied answer at `now` (45, 135): the hint or the interval, a floor where input is
    /// awaited, and 0–10 % on top (at most 30 s), so that it is never earlier than the hint.
    pub fn after_answer(&self, now: Millis, status: Status, hint: Option<Duration>, chance: Chance) -> Millis {
        let floor = if status == Status::InputRequired { self.input_required_interval_ms } else { 0 };
        let wait = hint.map_or(self.poll_interval_ms, hint_ms).max(floor).min(MAX_WAIT_MS);
        now.saturating_add(jittered(wait, chance).min(MAX_WAIT_MS))
    }

    /// When to ask for the first time about a task whose submit call started at `started`: after the server's hint or one
    /// interval (1), and before the server may have dropped it.
    pub fn first_poll(&self, started: Millis, hint: Option<Duration>, ttl: Option<Duration>) -> Millis {
        let due = started.saturating_add(hint.map_or(self.poll_interval_ms, hint_ms));
        ttl.map_or(due, |ttl| within_ttl(due, started, started, ttl))
    }

    /// When to try again after the `errors`-th error in a row (counted from 0) at `now` (46, 135): the interval doubled
    /// each time up to the cap, 0–25 % on top, and never before `retry_after`, which is a hint and is jittered like one: the
    /// tasks that were told the same do not come back together.
    pub fn after_error(&self, now: Millis, errors: i64, retry_after: Option<Duration>, chance: Chance) -> Millis {
        let exponent = errors.clamp(0, MAX_EXPONENT);
        let backoff = self.poll_interval_ms.saturating_mul(1 << exponent).min(self.max_backoff_ms);
        let told = retry_after.map_or(0, |after| jittered(hint_ms(after), chance));
        let wait = backoff.saturating_add(chance.of(backoff / 4)).max(told);
        now.saturating_add(wait.min(MAX_WAIT_MS))
    }

    /// When a task created at `created_at` is too old (133).
    pub fn expires_at(&self, created_at: Millis) -> Option<Millis> {
        self.max_age_ms.map(|age| created_at.saturating_add(age))
    }
}

/// `due`, or half-way to when the server may drop the task, if that is sooner: a result has to be fetched before. Of a task
/// that is past that the server decides.
pub(super) fn within_ttl(due: Millis, now: Millis, created_at: Millis, ttl: Duration) -> Millis {
    let left = created_at.saturating_add(i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)).saturating_sub(now);
    if left > 0 { due.min(now.saturating_add((left / 2).max(MIN_TTL_WAIT_MS))) } else { due }
}

fn jittered(wait: i64, chance: Chance) -> i64 {
    wait + chance.of((wait / 10).min(MAX_JITTER_MS))
}

fn hint_ms(hint: Duration) -> i64 {
    i64::try_from(hint.as_millis()).unwrap_or(i64::MAX).clamp(MIN_HINT_MS, MAX_WAIT_MS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: Policy = Policy {
        poll_interval_ms: 5_000,
        max_backoff_ms: 300_000,
        input_required_interval_ms: 60_000,
        degraded_after: 3,
        max_age_ms: None,
    };

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_hint_replaces_the_interval_and_24_hours_cap_it_45_13() {
        let at = |status, hint| POLICY.after_answer(0, status, hint, Chance::NONE);
        assert_eq!(at(Status::Working, None), 5_000);
        assert_eq!(at(Status::Working, Some(secs(2))), 2_000);
        assert_eq!(at(Status::Working, Some(secs(90))), 90_000);
        assert_eq!(at(Status::Working, Some(secs(1_000_000))), MAX_WAIT_MS);
        assert_eq!(at(Status::Working, Some(Duration::from_micros(1))), MIN_HINT_MS);
        assert_eq!(at(Status::InputRequired, Some(secs(2))), 60_000);
        assert_eq!(at(Status::InputRequired, Some(secs(90))), 90_000);
    }

    #[test]
    fn errors_double_the_interval_up_to_the_cap_46() {
        let waits: Vec<_> = (0..8).map(|errors| POLICY.after_error(0, errors, None, Chance::NONE)).collect();
        assert_eq!(waits, [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000]);
        assert_eq!(POLICY.after_error(0, i64::MAX, None, Chance::NONE), 300_000);
        assert_eq!(POLICY.after_error(0, 0, Some(secs(60)), Chance::NONE), 60_000, "Retry-After counts as a hint");
        let late = POLICY.after_error(0, 0, Some(secs(60)), Chance::new(1.0));
        assert_eq!(late, 66_000, "and is jittered like one, so that a storm does not come back together (25)");
        assert_eq!(POLICY.after_error(0, 0, Some(secs(u64::MAX)), Chance::NONE), MAX_WAIT_MS, "and is clamped");
    }

    #[test]
    fn a_poll_comes_before_the_server_may_drop_the_task() {
        assert_eq!(POLICY.first_poll(1_000, None, None), 6_000, "one interval after the call started (1)");
        assert_eq!(POLICY.first_poll(1_000, Some(secs(9)), None), 10_000);
        assert_eq!(POLICY.first_poll(1_000, Some(Duration::ZERO), None), 1_000 + MIN_HINT_MS);
        assert_eq!(POLICY.first_poll(1_000, Some(secs(3_600)), Some(secs(60))), 31_000);
        let at = |due, now, ttl| within_ttl(due, now, 0, Duration::from_millis(ttl));
        assert_eq!(at(3_600_000, 40_000, 60_000), 50_000, "half of what is left, again and again");
        assert_eq!(at(45_000, 40_000, 60_000), 45_000, "what is due sooner stays so");
        assert_eq!(at(3_600_000, 59_900, 60_000), 60_900, "but not ever faster");
        assert_eq!(at(3_600_000, 60_000, 60_000), 3_600_000, "of a task past its time the server decides");
        assert!(within_ttl(9, i64::MIN, i64::MAX, Duration::MAX) <= 9, "nothing overflows");
    }

    proptest! {
        #[test]
        fn jitter_is_never_early_and_stays_in_its_bounds_135(
            unit in any::<f64>(), hint_ms in 0u64..200_000_000, now in -1_000_000_000_000i64..4_000_000_000_000,
        ) {
            let hint = Duration::from_millis(hint_ms);
            let wait = POLICY.after_answer(now, Status::Working, Some(hint), Chance::new(unit)) - now;
            let base = i64::try_from(hint_ms).unwrap().clamp(MIN_HINT_MS, MAX_WAIT_MS);
            prop_assert!(wait >= base && wait <= MAX_WAIT_MS && wait - base <= (base / 10).min(30_000));
        }

        #[test]
        fn backoff_stays_in_its_bounds_and_never_overflows(
            unit in any::<f64>(), errors in any::<i64>(), now in any::<i64>(),
        ) {
            let at = POLICY.after_error(now, errors, None, Chance::new(unit));
            prop_assert!(at >= now && at.saturating_sub(now) <= 375_000);
        }
    }
}
