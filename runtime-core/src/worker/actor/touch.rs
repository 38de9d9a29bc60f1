//! The counters of unchanged polls: written once a lease for each task, a part of the tasks at each tick.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Actor;
use crate::worker::held::{Held, Phase};

/// How many are written at a tick at least, where so many are due.
const AT_LEAST: usize = 50;

/// Whose counters are still to be written before the next round.
#[derive(Debug)]
pub(super) struct Touch {
    round: Duration,
    next_round: Instant,
    /// How many at a tick, so that a round is over within its time.
    at_a_time: usize,
    waiting: VecDeque<Arc<str>>,
}

impl Touch {
    /// A round takes `round`, and the first one begins when one is over.
    pub(super) fn every(round: Duration) -> Self {
        Self { round, next_round: Instant::now() + round, at_a_time: 0, waiting: VecDeque::new() }
    }

    /// Whether it is time to begin another round.
    fn begins(&self, now: Instant) -> bool {
        now >= self.next_round
    }

    /// Begins a round with the tasks whose counters have changed.
    fn begin(&mut self, now: Instant, tasks: impl Iterator<Item = Arc<str>>) {
        self.next_round = now + self.round;
        // What the last round left over is among them again.
        self.waiting = tasks.collect();
        // Ticks are a second apart at most; half of the round is kept in hand.
        let ticks = usize::try_from(self.round.as_secs() / 2).unwrap_or(usize::MAX).max(1);
        self.at_a_time = self.waiting.len().div_ceil(ticks).max(AT_LEAST);
    }

    /// The next part.
    fn take(&mut self) -> Vec<Arc<str>> {
        let part = self.waiting.len().min(self.at_a_time);
        self.waiting.drain(..part).collect()
    }
}

impl Actor {
    pub(super) fn touch(&mut self) {
        if !self.may_call() {
            return;
        }
        let now = Instant::now();
        if self.touch.begins(now) {
            let dirty = self.held.iter().filter(|held| held.dirty).map(|held| Arc::clone(&held.task.id));
            self.touch.begin(now, dirty);
        }
        let at = self.context.now();
        for id in self.touch.take() {
            let idle = |held: &&Held| matches!(held.phase, Phase::Waiting) && held.dirty;
            // One that is polled or written just now is left to the next round.
            if let Some(change) = self.held.get(&id).filter(idle).map(|held| held.task.on_touch(at)) {
                self.write(&id, change);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(count: usize) -> impl Iterator<Item = Arc<str>> {
        (0..count).map(|index| index.to_string().into())
    }

    #[test]
    fn a_round_is_spread_over_its_time_and_writes_each_task_once() {
        let mut touch = Touch::every(Duration::from_secs(120));
        let start = Instant::now();
        assert!(!touch.begins(start));
        touch.begin(start, ids(100_000));
        let parts: Vec<usize> = (0..120).map(|_| touch.take().len()).collect();
        assert_eq!(parts.iter().sum::<usize>(), 100_000);
        assert!(parts.iter().all(|part| *part <= 1_667), "{parts:?}");
        assert!(touch.begins(start + Duration::from_secs(120)));
    }

    #[test]
    fn a_few_are_written_at_once_and_then_not_again() {
        let mut touch = Touch::every(Duration::from_secs(5));
        touch.begin(Instant::now(), ids(7));
        assert_eq!(touch.take().len(), 7);
        assert_eq!(touch.take().len(), 0);
    }
}
