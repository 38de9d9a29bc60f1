//! What the rest of the fleet tells: claim now, or look at what somebody waits for (DESIGN, Wake-ups).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::mpsc;

use super::Context;
use super::message::Message;
use crate::store::Wakeup;

/// How soon after a wake-up a worker claims, drawn at random, for each worker that hears it: so many claims a second in all,
/// however large the fleet is (FAILURES 9).
const SPREAD_EACH: Duration = Duration::from_millis(20);
/// The least and the most of that; past the most, ticks are as soon.
const SPREAD: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// How many of the newest events are looked at.
const NEWS: u32 = 500;

/// What has been heard and not acted upon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Heard {
    due: bool,
    changed: bool,
}

impl Heard {
    fn add(&mut self, what: Wakeup) {
        match what {
            Wakeup::Due => self.due = true,
            Wakeup::Changed => self.changed = true,
        }
    }
}

/// Listens until the store is gone.
pub(super) async fn run(context: Arc<Context>, messages: mpsc::UnboundedSender<Message>) {
    let mut wakeups = context.store.wakeups();
    // An event may be committed after a later one: what was new at the last look is looked at once more.
    let (mut before, mut after) = (0, 0);
    while let Some(mut heard) = next(&mut wakeups).await {
        tokio::time::sleep(spread(context.fleet.load(Ordering::Relaxed)).mul_f64(fastrand::f64())).await;
        gather(&mut wakeups, &mut heard);
        if heard.due && context.options.polls {
            let _ = messages.send(Message::Wake);
        }
        if heard.changed && context.is_watched() {
            match context.store.news(before, NEWS).await {
                Ok(news) => {
                    (before, after) = (after, news.sequence.max(after));
                    news.tasks.iter().for_each(|(task, thread)| context.tell(task, thread));
                }
                Err(error) => tracing::debug!(%error, "what has changed elsewhere cannot be read"),
            }
        }
    }
}

async fn next(wakeups: &mut broadcast::Receiver<Wakeup>) -> Option<Heard> {
    let mut heard = Heard::default();
    match wakeups.recv().await {
        Ok(what) => heard.add(what),
        Err(RecvError::Lagged(_)) => heard = Heard { due: true, changed: true },
        Err(RecvError::Closed) => return None,
    }
    Some(heard)
}

/// Takes what came meanwhile.
fn gather(wakeups: &mut broadcast::Receiver<Wakeup>, heard: &mut Heard) {
    use broadcast::error::TryRecvError as E;
    loop {
        match wakeups.try_recv() {
            Ok(what) => heard.add(what),
            Err(E::Lagged(_)) => *heard = Heard { due: true, changed: true },
            Err(E::Empty | E::Closed) => return,
        }
    }
}

fn spread(fleet: usize) -> Duration {
    SPREAD_EACH.saturating_mul(u32::try_from(fleet).unwrap_or(u32::MAX)).clamp(SPREAD.0, SPREAD.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_fleet_answers_over_a_longer_time_9() {
        assert_eq!(spread(1), SPREAD.0);
        assert_eq!(spread(10), Duration::from_millis(200));
        assert_eq!(spread(10_000), SPREAD.1);
    }

    #[tokio::test]
    async fn many_wakeups_are_one() {
        let (tell, mut wakeups) = broadcast::channel(4);
        for _ in 0..3 {
            tell.send(Wakeup::Due).unwrap();
        }
        let mut heard = next(&mut wakeups).await.unwrap();
        assert_eq!(heard, Heard { due: true, changed: false });
        tell.send(Wakeup::Changed).unwrap();
        gather(&mut wakeups, &mut heard);
        assert_eq!(heard, Heard { due: true, changed: true });
        assert!(wakeups.is_empty());
        drop(tell);
        assert!(next(&mut wakeups).await.is_none());
    }

    #[tokio::test]
    async fn who_is_too_slow_to_hear_all_looks_at_everything() {
        let (tell, mut wakeups) = broadcast::channel(2);
        for _ in 0..5 {
            tell.send(Wakeup::Due).unwrap();
        }
        assert_eq!(next(&mut wakeups).await.unwrap(), Heard { due: true, changed: true });
    }
}
