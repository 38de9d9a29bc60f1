//! Which other workers are dead: judged by the store's clock *and* by what this worker saw (DESIGN, Takeover).

use std::collections::HashMap;
use std::time::Duration;

use crate::store::{FAR_AHEAD_MS, WorkerId, WorkerRecord, Workers};

/// Between two looks at least, for the later one not to continue the earlier one; ticks are a second apart.
const BLIND: Duration = Duration::from_secs(3);

/// What was seen of the other workers, on the boot clock.
#[derive(Debug, Default)]
pub(super) struct Observer {
    seen: HashMap<WorkerId, Seen>,
    /// When it last looked.
    looked: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    heartbeat_count: i64,
    since: Duration,
}

impl Observer {
    /// The live workers that have to be marked dead, with the heartbeat they were last seen at.
    ///
    /// Expired means: the store says so and the same heartbeat was seen twice at least a third of a lease apart, between
    /// which this worker renewed its own lease (so that a jumping clock kills nobody); or the heartbeat stood still for the
    /// whole lease on this worker's own clock, whatever date the row carries. `renewed` is when this worker last did.
    /// While nobody could look, because the store was away or the machine slept, nobody could renew either: after a gap,
    /// what was seen before says nothing.
    pub(super) fn expired(
        &mut self,
        workers: &Workers,
        own: &WorkerId,
        now: Duration,
        renewed: Duration,
    ) -> Vec<(WorkerId, i64)> {
        self.seen.retain(|id, _| workers.rows.iter().any(|row| row.live && row.info.id == *id));
        let gap = now.saturating_sub(self.looked.replace(now).unwrap_or(now));
        let others = workers.rows.iter().filter(|row| row.live && row.info.id != *own);
        others.filter_map(|row| self.judge(row, workers.now_ms, (now, gap), renewed)).collect()
    }

    fn judge(
        &mut self,
        row: &WorkerRecord,
        store_now: i64,
        (now, gap): (Duration, Duration),
        renewed: Duration,
    ) -> Option<(WorkerId, i64)> {
        let fresh = Seen { heartbeat_count: row.heartbeat_count, since: now };
        let seen = self.seen.entry(row.info.id.clone()).or_insert(fresh);
        // Whatever a row says of its lease, it ends: nobody's is as long as this.
        let lease = Duration::from_millis(row.info.lease_ms.clamp(0, FAR_AHEAD_MS).unsigned_abs());
        if seen.heartbeat_count != row.heartbeat_count || gap > (lease / 3).max(BLIND) {
            *seen = fresh;
        }
        let still = now.saturating_sub(seen.since);
        let store_says = store_now >= row.lease_expires_at && still >= lease / 3 && renewed > seen.since;
        let own_clock_says = still >= lease;
        (store_says || own_clock_says).then(|| (row.info.id.clone(), row.heartbeat_count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::WorkerInfo;

    const LEASE: i64 = 30_000;

    fn row(id: &str, heartbeat_count: i64, lease_expires_at: i64) -> WorkerRecord {
        WorkerRecord {
            info: WorkerInfo {
                id: id.into(),
                host: "h".into(),
                pid: 1,
                role: "all".into(),
                version: "0".into(),
                lease_ms: LEASE,
                polls: true,
            },
            live: true,
            heartbeat_count,
            lease_expires_at,
            started_at: 0,
            held: 0,
        }
    }

    fn see(observer: &mut Observer, store_now: i64, rows: Vec<WorkerRecord>, at: u64, renewed: u64) -> usize {
        let workers = Workers { now_ms: store_now, rows };
        observer.expired(&workers, &"me".into(), Duration::from_secs(at), Duration::from_secs(renewed)).len()
    }

    #[test]
    fn a_worker_whose_lease_ran_out_is_dead_once_seen_twice() {
        let mut observer = Observer::default();
        for at in 0..30 {
            let store_now = i64::try_from(at).unwrap() * 1_000;
            assert_eq!(see(&mut observer, store_now, vec![row("w", 7, 30_000)], at, at / 10 * 10), 0);
        }
        assert_eq!(see(&mut observer, 30_000, vec![row("w", 7, 30_000)], 30, 30), 1);
    }

    #[test]
    fn after_a_time_in_which_nobody_could_look_everybody_has_time_to_renew_31() {
        let mut observer = Observer::default();
        for at in 0..6 {
            see(&mut observer, 0, vec![row("w", 7, 30_000)], at, 5);
        }
        // The store was away for a minute, or the machine slept.
        for at in 66..76 {
            assert_eq!(see(&mut observer, 66_000, vec![row("w", 7, 30_000)], at, at), 0);
        }
        assert_eq!(see(&mut observer, 76_000, vec![row("w", 7, 30_000)], 76, 76), 1, "who does not is dead");
    }

    #[test]
    fn a_jumping_clock_kills_nobody_6() {
        let mut observer = Observer::default();
        let jumped = 10_000_000;
        assert_eq!(see(&mut observer, jumped, vec![row("w", 7, 30_000)], 0, 0), 0);
        assert_eq!(see(&mut observer, jumped, vec![row("w", 8, jumped + 30_000)], 10, 10), 0);
        assert_eq!(see(&mut observer, jumped, vec![row("w", 8, 30_000)], 15, 10), 0, "not long enough");
    }

    #[test]
    fn an_observer_that_could_not_renew_itself_judges_nobody() {
        let mut observer = Observer::default();
        see(&mut observer, 0, vec![row("w", 7, 30_000)], 100, 90);
        assert_eq!(see(&mut observer, 40_000, vec![row("w", 7, 30_000)], 120, 90), 0);
    }

    #[test]
    fn a_lease_dated_in_the_future_ends_on_the_observers_clock_6() {
        let mut observer = Observer::default();
        let year_2300 = 10_413_792_000_000;
        for at in 0..30 {
            assert_eq!(see(&mut observer, 0, vec![row("w", 7, year_2300)], at, at / 10 * 10), 0);
        }
        assert_eq!(see(&mut observer, 0, vec![row("w", 7, year_2300)], 30, 20), 1);
    }

    #[test]
    fn the_worker_itself_and_the_dead_are_left_alone() {
        let mut observer = Observer::default();
        let dead = WorkerRecord { live: false, ..row("w", 7, 0) };
        for at in [0, 100] {
            assert_eq!(see(&mut observer, 1_000_000, vec![row("me", 7, 0), dead.clone()], at, at), 0);
        }
    }
}
