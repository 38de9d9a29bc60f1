//! An even share of the tasks for each worker (DESIGN, Balance).

use std::collections::HashMap;

use super::takeover::Fleet;
use crate::store::WorkerId;

/// A fleet this small is not balanced.
pub(super) const FROM: i64 = 32;
/// Above this many times its share, a worker lets go.
const LET_GO_ABOVE: f64 = 1.25;
/// How often the rounds are doubled that are sat out after nobody took what was let go.
const SIT_OUT: u32 = 5;

/// What a worker remembers of letting go.
#[derive(Debug, Default)]
pub(super) struct Balance {
    /// The others' heartbeats when tasks were last let go, or a round was sat out.
    seen: HashMap<WorkerId, i64>,
    /// What the others held when tasks were last let go, until it is known whether they took any.
    let_go: Option<i64>,
    /// How often in a row nobody took any.
    unwanted: u32,
    /// How many rounds are still sat out for it.
    sit_out: u32,
}

impl Balance {
    /// By how many tasks `own` exceeds an even share, if it does by more than `factor`.
    fn excess(fleet: &Fleet, own: usize, factor: f64) -> usize {
        let total = fleet.held_by_others + own as i64;
        if fleet.polling < 2 || total < FROM {
            return 0;
        }
        let share = (total as f64 / fleet.polling as f64).ceil();
        if own as f64 > share * factor { own - share as usize } else { 0 }
    }

    /// Whether more is held than an even share, or some of that was let go and the others have not said yet whether they took
    /// it. Who claimed then would take back at once what nobody owns meanwhile.
    ///
    /// Not where more waits than one claim takes: what others published is old by then, everybody would find to be the one
    /// with too much, and a dead worker's tasks would wait for nothing.
    pub(super) fn holds_back(&self, fleet: &Fleet, own: usize, crowded: bool) -> bool {
        self.let_go.is_some() || (!crowded && Self::excess(fleet, own, 1.0) > 0)
    }

    /// There was more to claim than one claim takes: the others took of it too, and nothing is let go before they have
    /// published since. Whether they wanted what was let go before says nothing any more.
    pub(super) fn shared_a_crowd(&mut self, fleet: &Fleet) {
        if !self.knows(fleet) {
            (self.unwanted, self.sit_out) = (0, 0);
        }
        self.let_go = None;
        self.seen.clone_from(&fleet.heartbeats);
    }

    /// Whether the fleet is the one that was seen last.
    fn knows(&self, fleet: &Fleet) -> bool {
        self.seen.len() == fleet.heartbeats.len() && fleet.heartbeats.keys().all(|id| self.seen.contains_key(id))
    }

    /// How many tasks to let go now: once the others have published since the last time, and ever more rarely where
    /// nobody takes them: workers without the servers, or without room, take nothing.
    pub(super) fn let_go(&mut self, fleet: &Fleet, own: usize) -> usize {
        let stale = |(id, count): (&WorkerId, &i64)| self.seen.get(id) == Some(count);
        if fleet.heartbeats.iter().any(stale) {
            return 0;
        }
        if !self.knows(fleet) {
            (self.let_go, self.unwanted, self.sit_out) = (None, 0, 0);
        } else if let Some(before) = self.let_go.take() {
            self.unwanted = if fleet.held_by_others > before { 0 } else { (self.unwanted + 1).min(SIT_OUT) };
            self.sit_out = (1 << self.unwanted) - 1;
        }
        let excess = Self::excess(fleet, own, LET_GO_ABOVE);
        if excess == 0 {
            return 0;
        }
        self.seen.clone_from(&fleet.heartbeats);
        if self.sit_out > 0 {
            self.sit_out -= 1;
            return 0;
        }
        self.let_go = Some(fleet.held_by_others);
        excess
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(held_by_others: i64, heartbeat: i64) -> Fleet {
        Fleet { polling: 2, held_by_others, heartbeats: HashMap::from([("other".into(), heartbeat)]) }
    }

    #[test]
    fn half_of_the_tasks_go_to_a_new_worker_and_nothing_more_before_it_has_published() {
        let mut balance = Balance::default();
        assert_eq!(balance.let_go(&fleet(0, 1), 100), 50);
        assert_eq!(balance.let_go(&fleet(0, 1), 50), 0, "it may have taken them, and has not said so yet");
        assert_eq!(balance.let_go(&fleet(50, 2), 50), 0, "even");
    }

    #[test]
    fn what_was_let_go_is_left_to_the_others_until_they_have_published() {
        let mut balance = Balance::default();
        assert!(!balance.holds_back(&fleet(0, 1), 20, false), "a small fleet, where everybody takes what there is");
        assert_eq!(balance.let_go(&fleet(0, 1), 40), 20);
        assert!(balance.holds_back(&fleet(0, 1), 20, true), "those that nobody owns are among the forty");
        assert_eq!(balance.let_go(&fleet(20, 2), 20), 0);
        assert!(!balance.holds_back(&fleet(20, 2), 20, false), "they were taken");
    }

    #[test]
    fn a_dead_workers_tasks_are_taken_by_all_at_once_and_compared_only_afterwards() {
        let mut balance = Balance::default();
        assert!(balance.holds_back(&fleet(0, 1), 500, false), "the other one may take some");
        assert!(!balance.holds_back(&fleet(0, 1), 500, true), "there is enough for both");
        balance.shared_a_crowd(&fleet(0, 1));
        assert_eq!(balance.let_go(&fleet(0, 1), 50_000), 0, "the other one has not published what it took");
        assert_eq!(balance.let_go(&fleet(48_000, 2), 50_000), 0);
        balance.shared_a_crowd(&fleet(48_000, 2));
        assert_eq!(balance.let_go(&fleet(20_000, 3), 50_000), 15_000, "it was slower");
        assert!(balance.holds_back(&fleet(20_000, 3), 35_000, true), "the other one may take them");
        balance.shared_a_crowd(&fleet(20_000, 3));
        assert!(!balance.holds_back(&fleet(20_000, 3), 35_000, true), "more is late than anybody took");
    }

    #[test]
    fn a_small_difference_and_a_small_fleet_are_left_alone() {
        assert_eq!(Balance::default().let_go(&fleet(45, 1), 55), 0);
        assert_eq!(Balance::default().let_go(&fleet(0, 1), 31), 0);
        assert_eq!(Balance::default().let_go(&Fleet { polling: 1, ..fleet(0, 1) }, 1_000), 0);
    }

    #[test]
    fn what_nobody_takes_is_let_go_ever_more_rarely() {
        let mut balance = Balance::default();
        let times = (0..1_000).filter(|heartbeat| balance.let_go(&fleet(0, *heartbeat), 100) > 0).count();
        assert!((10..=60).contains(&times), "{times} of 1000 rounds");
        // Another worker is another chance.
        let joined = Fleet { heartbeats: HashMap::from([("new".into(), 1)]), ..fleet(0, 0) };
        assert_eq!(balance.let_go(&joined, 100), 50);
    }
}
