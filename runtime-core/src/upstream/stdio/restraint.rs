//! Keeps a process that ends at once from being started again and again.

use std::time::Duration;

use tokio::time::Instant;

use crate::upstream::{CallError, CallErrorKind};

/// Failures in a row that cost nothing: one crash must not delay the next call.
const FREE: u32 = 3;
const MIN_WAIT: Duration = Duration::from_millis(250);
const MAX_WAIT: Duration = Duration::from_secs(30);

/// What became of the latest starts.
#[derive(Debug, Default)]
pub(super) struct Restraint {
    failures: u32,
    /// Until when there is no other start, and the error that tells why.
    held: Option<(Instant, CallError)>,
}

impl Restraint {
    /// Refuses a start that would come too soon; nothing was sent.
    pub(super) fn check(&self, now: Instant) -> Result<(), CallError> {
        match &self.held {
            Some((until, why)) if *until > now => {
                let message = format!("{}; it is not started again yet", why.message);
                let error = CallError::new(CallErrorKind::Connect, message);
                Err(CallError { retry_after: Some(*until - now), ..error })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn failed(&mut self, now: Instant, error: &CallError) {
        let wait = MIN_WAIT.saturating_mul(1 << self.failures.saturating_sub(FREE).min(10)).min(MAX_WAIT);
        self.failures = self.failures.saturating_add(1);
        if self.failures > FREE {
            self.held = Some((now + wait, error.clone()));
        }
    }

    pub(super) fn worked(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_held_back_longer_and_longer_until_one_works() {
        let error = CallError::new(CallErrorKind::Transport, "it broke".to_owned());
        let mut restraint = Restraint::default();
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..14 {
            restraint.failed(now, &error);
            let wait = restraint.check(now).err().map_or(Duration::ZERO, |error| {
                assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Connect, false));
                assert!(error.message.starts_with("it broke"), "{}", error.message);
                error.retry_after.unwrap()
            });
            assert!(restraint.check(now + wait).is_ok());
            waits.push(wait.as_millis());
            now += wait;
        }
        assert_eq!(waits[..7], [0, 0, 0, 250, 500, 1_000, 2_000]);
        assert_eq!(waits[13], MAX_WAIT.as_millis());
        restraint.worked();
        restraint.failed(now, &error);
        assert!(restraint.check(now).is_ok());
    }
}
