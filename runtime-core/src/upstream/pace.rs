//! The pauses between attempts to hear what a server says of its own accord.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The first pause, doubled with every further one.
const MIN_WAIT: Duration = Duration::from_secs(1);
/// The longest; an attempt that went well for longer than that starts over.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// How long to wait before the next attempt.
pub(super) struct Pace {
    wait: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { wait: MIN_WAIT }
    }
}

impl Pace {
    /// Waits after an attempt that began at `began`. Jittered: servers behind one restarted proxy are not all asked at the
    /// same moment.
    pub(super) async fn pause(&mut self, began: Instant) {
        if began.elapsed() > MAX_WAIT {
            self.wait = MIN_WAIT;
        }
        sleep(self.wait.mul_f64(1.0 + fastrand::f64() / 4.0)).await;
        self.wait = (self.wait * 2).min(MAX_WAIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_a_minute_and_start_over_after_a_long_stream_9() {
        let mut pace = Pace::default();
        let mut waits = Vec::new();
        for _ in 0..9 {
            let began = Instant::now();
            pace.pause(began).await;
            waits.push(began.elapsed().as_secs_f64());
        }
        for (wait, least) in waits.iter().zip([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]) {
            assert!((least..=least * 1.25 + 0.01).contains(wait), "{waits:?}");
        }
        let began = Instant::now();
        tokio::time::advance(MAX_WAIT + Duration::from_secs(1)).await;
        let paused = Instant::now();
        pace.pause(began).await;
        assert!(paused.elapsed() < MIN_WAIT * 2);
    }
}
