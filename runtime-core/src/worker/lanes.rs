//! Who gets the next slot: one lane a server, oldest due first among those with room (BEHAVIOURS 44, FAILURES 29).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::breaker::Breaker;
use crate::clock::Millis;

/// The two kinds of slots: cancels never wait behind polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Slot {
    /// Polls, and what replaces one.
    Poll,
    /// Cancels.
    Cancel,
}

/// A server's queue of due tasks and its running calls.
#[derive(Debug, Default)]
pub(super) struct Lane {
    ready: [BTreeSet<(Millis, Arc<str>)>; 2],
    running: [usize; 2],
    bound: usize,
    /// Whether the server's calls are held back.
    pub(super) breaker: Breaker,
}

/// All lanes of a worker.
#[derive(Debug)]
pub(super) struct Lanes {
    by_server: HashMap<Box<str>, Lane>,
    slots: [usize; 2],
    running: [usize; 2],
}

impl Lanes {
    /// Lanes for the servers with these bounds; `polls` slots in all, and max(2, polls/4) for cancels beside them.
    pub(super) fn new(bounds: impl IntoIterator<Item = (Box<str>, usize)>, polls: usize) -> Self {
        let by_server = bounds.into_iter().map(|(server, bound)| (server, Lane { bound, ..Lane::default() })).collect();
        Self { by_server, slots: [polls.max(1), (polls / 4).max(2)], running: [0, 0] }
    }

    /// Queues a due task.
    pub(super) fn push(&mut self, server: &str, slot: Slot, due: Millis, id: Arc<str>) {
        if !self.by_server.contains_key(server) {
            // A server that is not configured here gets a lane of its own too: its tasks are told so, one at a time.
            self.by_server.insert(server.into(), Lane { bound: 1, ..Lane::default() });
        }
        if let Some(lane) = self.by_server.get_mut(server) {
            lane.ready[slot as usize].insert((due, id));
        }
    }

    /// Takes a task out of the queue, if it is there.
    pub(super) fn remove(&mut self, server: &str, slot: Slot, due: Millis, id: &Arc<str>) {
        if let Some(lane) = self.by_server.get_mut(server) {
            lane.ready[slot as usize].remove(&(due, Arc::clone(id)));
        }
    }

    /// The next task that may start, and its server; its slot is taken.
    ///
    /// A server with nothing running always finds a slot while slots last: the others leave one free for each such
    /// server, up to half of all.
    pub(super) fn take(&mut self, slot: Slot) -> Option<(Box<str>, Arc<str>)> {
        let kind = slot as usize;
        let free = self.slots[kind].checked_sub(self.running[kind]).filter(|free| *free > 0)?;
        let idle = self.by_server.values().filter(|lane| lane.running[kind] == 0).count();
        let reserved = idle.min(self.slots[kind] / 2);
        let may_start = |lane: &Lane| {
            let bound = if slot == Slot::Cancel { (self.slots[kind] / 2).max(1) } else { lane.bound };
            lane.running[kind] < bound && (lane.running[kind] == 0 || free > reserved)
        };
        let server = self
            .by_server
            .iter()
            .filter(|(_, lane)| may_start(lane))
            .filter_map(|(server, lane)| lane.ready[kind].first().map(|first| (first, server)))
            .min()
            .map(|(_, server)| server.clone())?;
        let lane = self.by_server.get_mut(&server)?;
        let (_, id) = lane.ready[kind].pop_first()?;
        lane.running[kind] += 1;
        self.running[kind] += 1;
        Some((server, id))
    }

    /// Gives a slot back.
    pub(super) fn finish(&mut self, server: &str, slot: Slot) {
        let kind = slot as usize;
        if let Some(lane) = self.by_server.get_mut(server) {
            lane.running[kind] = lane.running[kind].saturating_sub(1);
            self.running[kind] = self.running[kind].saturating_sub(1);
        }
    }

    /// A server's breaker.
    pub(super) fn breaker(&mut self, server: &str) -> Option<&mut Breaker> {
        self.by_server.get_mut(server).map(|lane| &mut lane.breaker)
    }

    /// Slots in all and slots in use.
    pub(super) fn usage(&self, slot: Slot) -> (usize, usize) {
        (self.slots[slot as usize], self.running[slot as usize])
    }

    /// Empties every queue; running calls keep their slots.
    pub(super) fn clear(&mut self) {
        self.by_server.values_mut().for_each(|lane| lane.ready = Default::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(bounds: &[(&str, usize)], polls: usize) -> Lanes {
        Lanes::new(bounds.iter().map(|(server, bound)| (Box::from(*server), *bound)), polls)
    }

    fn push(lanes: &mut Lanes, server: &str, ids: std::ops::Range<i64>) {
        ids.for_each(|n| lanes.push(server, Slot::Poll, n, format!("{server}{n}").into()));
    }

    fn drain(lanes: &mut Lanes) -> Vec<String> {
        std::iter::from_fn(|| lanes.take(Slot::Poll)).map(|(_, id)| id.to_string()).collect()
    }

    #[test]
    fn the_oldest_due_starts_first_and_slots_bound_them_44() {
        let mut lanes = lanes(&[("a", 8)], 3);
        push(&mut lanes, "a", 0..5);
        assert_eq!(drain(&mut lanes), ["a0", "a1", "a2"]);
        lanes.finish("a", Slot::Poll);
        assert_eq!(drain(&mut lanes), ["a3"]);
    }

    #[test]
    fn a_server_that_hangs_leaves_slots_for_the_others_29() {
        let mut lanes = lanes(&[("dead", 4), ("live", 4)], 8);
        push(&mut lanes, "dead", 0..100);
        assert_eq!(drain(&mut lanes).len(), 4, "its own bound");
        push(&mut lanes, "live", 50..60);
        assert_eq!(drain(&mut lanes).len(), 4);
    }

    #[test]
    fn many_dead_servers_do_not_take_the_last_slots_29() {
        let names = ["d1", "d2", "d3", "d4", "live"];
        let mut lanes = lanes(&names.map(|name| (name, 4)), 8);
        names[..4].iter().for_each(|name| push(&mut lanes, name, 0..100));
        let started = drain(&mut lanes).len();
        assert!(started < 8, "one slot is left for the server that has none running");
        push(&mut lanes, "live", 1_000..1_001);
        assert_eq!(drain(&mut lanes), ["live1000"]);
    }

    #[test]
    fn one_busy_server_among_idle_ones_keeps_half_of_the_slots() {
        let names: Vec<_> = (0..20).map(|n| format!("s{n}")).collect();
        let bounds: Vec<_> = names.iter().map(|name| (name.as_str(), 8)).collect();
        let mut lanes = lanes(&bounds, 8);
        push(&mut lanes, "s0", 0..100);
        assert_eq!(drain(&mut lanes).len(), 4);
    }

    #[test]
    fn cancels_have_slots_of_their_own() {
        let mut lanes = lanes(&[("a", 2)], 2);
        push(&mut lanes, "a", 0..10);
        assert_eq!(drain(&mut lanes).len(), 2);
        lanes.push("a", Slot::Cancel, 0, "c".into());
        assert_eq!(lanes.take(Slot::Cancel), Some(("a".into(), "c".into())));
        assert_eq!(lanes.usage(Slot::Poll), (2, 2));
    }
}
