//! Who gets the next slot: one lane a server, oldest due first among those with room (BEHAVIOURS 44, FAILURES 29).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::breaker::Breaker;
use crate::clock::Millis;
use crate::driver::PERSONAL_CALLS;
use crate::task::is_personal;

/// The lane of tasks whose server is not configured here: they are told so, one at a time, whatever their servers' names.
pub(super) const STRANGERS: &str = "unconfigured";
/// Writes of one server that may be on their way (in the writer's units) before its next task has to wait: what has been
/// decided and is not stored yet is bounded, and no server's flood of writes gets far ahead of the others' (FAILURES 24).
const UNWRITTEN: usize = 500;
/// The same for the writes that only say that a call was held back: a dead server's tasks come due in crowds, and are written
/// in small batches between those that carry news.
const HELD_BACK: usize = 100;

/// The two kinds of slots: cancels never wait behind polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Slot {
    /// Polls, and what replaces one.
    Poll,
    /// Cancels.
    Cancel,
}

/// A call that may start.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) lane: Box<str>,
    pub(super) id: Arc<str>,
    /// Whether it probes a server whose calls are held back.
    pub(super) probe: bool,
}

/// A server's queue of due tasks and its running calls.
#[derive(Debug, Default)]
struct Lane {
    ready: [BTreeSet<(Millis, Arc<str>)>; 2],
    running: [usize; 2],
    bound: usize,
    unwritten: usize,
    breaker: Breaker,
    /// Whether it is a user's own connection.
    personal: bool,
}

impl Lane {
    /// Whether a slot is kept for it: a configured server, or a user's connection with a task that is due.
    fn counts(&self, kind: usize) -> bool {
        !self.personal || !self.ready[kind].is_empty()
    }

    fn is_over(&self) -> bool {
        let idle = self.ready.iter().all(BTreeSet::is_empty) && self.running == [0, 0] && self.unwritten == 0;
        idle && self.breaker.is_sound()
    }
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
        let lane = |(server, bound): (Box<str>, usize)| (server, Lane { bound, ..Lane::default() });
        Self {
            by_server: bounds.into_iter().map(lane).collect(),
            slots: [polls.max(1), cancel_slots(polls)],
            running: [0, 0],
        }
    }

    /// The lane of a server's tasks.
    pub(super) fn of<'a>(&self, server: &'a str) -> &'a str {
        if self.by_server.contains_key(server) || is_personal(server) { server } else { STRANGERS }
    }

    fn lane(&mut self, server: &str) -> &mut Lane {
        let name = self.of(server);
        let personal = is_personal(name);
        let bound = if personal { PERSONAL_CALLS } else { 1 };
        self.by_server.entry(name.into()).or_insert_with(|| Lane { bound, personal, ..Lane::default() })
    }

    /// Queues a due task.
    pub(super) fn push(&mut self, server: &str, slot: Slot, due: Millis, id: Arc<str>) {
        self.lane(server).ready[slot as usize].insert((due, id));
    }

    /// Takes a task out of the queue, if it is there.
    pub(super) fn remove(&mut self, server: &str, slot: Slot, due: Millis, id: &Arc<str>) {
        self.lane(server).ready[slot as usize].remove(&(due, Arc::clone(id)));
    }

    /// The next task whose call may start at `now` on the boot clock; its slot is taken.
    ///
    /// A server with nothing running always finds a slot while slots last: the others leave one free for each such
    /// server, up to half of all. The last slot is for servers that answer: where there are more servers than slots, those
    /// that fail cannot take all of them.
    pub(super) fn take(&mut self, slot: Slot, now: Duration) -> Option<Turn> {
        let kind = slot as usize;
        let slots = self.slots[kind];
        let free = slots.checked_sub(self.running[kind]).filter(|free| *free > 0)?;
        let configured = self.by_server.iter().filter(|(name, _)| ***name != *STRANGERS);
        let idle = configured.filter(|(_, lane)| lane.running[kind] == 0 && lane.counts(kind)).count();
        let lanes = self.by_server.values().filter(|lane| lane.counts(kind)).count();
        // Users make as many connections as they like: together they leave half of the slots to the operator's servers.
        let personal: usize = self.by_server.values().filter(|lane| lane.personal).map(|lane| lane.running[kind]).sum();
        let personal_bound = (slots / 2).max(1);
        let reserved = idle.min(slots / 2);
        let may_start = |lane: &Lane| {
            let (bound, has_room) = match slot {
                Slot::Poll => (lane.bound, lane.unwritten < UNWRITTEN),
                Slot::Cancel => ((slots / 2).max(1), true),
            };
            let last_is_kept = slots > 1 && lanes > slots && !lane.breaker.is_sound();
            let kept = if lane.running[kind] > 0 { reserved } else { usize::from(last_is_kept) };
            let in_bounds = lane.running[kind] < bound && (!lane.personal || personal < personal_bound);
            has_room && in_bounds && free > kept && lane.breaker.admits(now, lane.running.iter().sum())
        };
        let server = self
            .by_server
            .iter()
            .filter(|(_, lane)| !lane.ready[kind].is_empty() && may_start(lane))
            .filter_map(|(server, lane)| lane.ready[kind].first().map(|first| (first, server)))
            .min()
            .map(|(_, server)| server.clone())?;
        let lane = self.by_server.get_mut(&server)?;
        let (_, id) = lane.ready[kind].pop_first()?;
        lane.running[kind] += 1;
        self.running[kind] += 1;
        let probe = lane.breaker.started(now);
        Some(Turn { lane: server, id, probe })
    }

    /// The next due task whose call is held back at `now`, and why; it needs no slot, but room for the write that says so.
    pub(super) fn take_held_back(&mut self, now: Duration) -> Option<(Arc<str>, String)> {
        // At its time a probe waits for a slot, but not for another that hangs in the only one.
        let held_back = |lane: &&mut Lane| {
            lane.breaker.is_open() && (!lane.breaker.admits(now, 0) || lane.running[Slot::Poll as usize] >= lane.bound)
        };
        self.by_server.values_mut().filter(|lane| lane.unwritten < HELD_BACK).filter(held_back).find_map(|lane| {
            let (_, id) = lane.ready.iter_mut().find_map(BTreeSet::pop_first)?;
            Some((id, lane.breaker.reason()?))
        })
    }

    /// Gives a slot back.
    pub(super) fn finish(&mut self, lane: &str, slot: Slot) {
        let kind = slot as usize;
        let lane = self.lane(lane);
        lane.running[kind] = lane.running[kind].saturating_sub(1);
        self.running[kind] = self.running[kind].saturating_sub(1);
    }

    /// A write of this weight is on its way.
    pub(super) fn sent(&mut self, server: &str, weight: usize) {
        self.lane(server).unwritten += weight;
    }

    /// It has come back.
    pub(super) fn written(&mut self, server: &str, weight: usize) {
        let lane = self.lane(server);
        lane.unwritten = lane.unwritten.saturating_sub(weight);
    }

    /// Whether calls of any personal connection are held back.
    pub(super) fn any_personal_open(&self) -> bool {
        self.by_server.values().any(|lane| lane.personal && lane.breaker.is_open())
    }

    /// Forgets personal connections of which nothing is left to know.
    pub(super) fn prune(&mut self) {
        self.by_server.retain(|_, lane| !lane.personal || !lane.is_over());
    }

    /// A server's breaker.
    pub(super) fn breaker(&mut self, server: &str) -> &mut Breaker {
        &mut self.lane(server).breaker
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

/// How many cancels run at a time beside so many polls.
pub(super) fn cancel_slots(polls: usize) -> usize {
    (polls / 4).max(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Failure, FailureKind};

    const NOW: Duration = Duration::from_secs(1);

    fn fail(lanes: &mut Lanes, server: &str, times: usize) {
        let failure = Failure::new(FailureKind::Timeout, "no answer");
        (0..times).for_each(|_| lanes.breaker(server).ended(false, Some(&failure), NOW, NOW));
    }

    fn lanes(bounds: &[(&str, usize)], polls: usize) -> Lanes {
        Lanes::new(bounds.iter().map(|(server, bound)| (Box::from(*server), *bound)), polls)
    }

    fn push(lanes: &mut Lanes, server: &str, ids: std::ops::Range<i64>) {
        ids.for_each(|n| lanes.push(server, Slot::Poll, n, format!("{server}{n}").into()));
    }

    fn drain(lanes: &mut Lanes) -> Vec<String> {
        std::iter::from_fn(|| lanes.take(Slot::Poll, NOW)).map(|turn| turn.id.to_string()).collect()
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
        assert_eq!(lanes.take(Slot::Cancel, NOW).unwrap().id, "c".into());
        assert_eq!(lanes.usage(Slot::Poll), (2, 2));
    }

    #[test]
    fn more_servers_that_fail_than_slots_leave_one_to_those_that_answer_29() {
        let names: Vec<_> = (0..20).map(|n| format!("dead{n}")).collect();
        let bounds: Vec<_> = names.iter().map(String::as_str).chain(["live"]).map(|name| (name, 2)).collect();
        let mut lanes = lanes(&bounds, 4);
        for name in &names {
            fail(&mut lanes, name, 1);
            push(&mut lanes, name, 0..5);
        }
        assert_eq!(drain(&mut lanes).len(), 3);
        push(&mut lanes, "live", 100..102);
        assert_eq!(drain(&mut lanes), ["live100"]);
    }

    #[test]
    fn what_is_held_back_takes_no_slot_and_waits_for_room_to_write_149_159() {
        let mut lanes = lanes(&[("dead", 1)], 1);
        push(&mut lanes, "dead", 0..3);
        fail(&mut lanes, "dead", 5);
        assert_eq!(lanes.take(Slot::Poll, NOW), None);
        let (id, why) = lanes.take_held_back(NOW).unwrap();
        assert!(&*id == "dead0" && why.contains("no answer"), "{id}: {why}");
        lanes.sent("dead", HELD_BACK);
        assert_eq!(lanes.take_held_back(NOW), None);
        lanes.written("dead", 1);
        assert!(lanes.take_held_back(NOW).is_some());
        let later = NOW + Duration::from_secs(1);
        assert!(lanes.take(Slot::Poll, later).unwrap().probe);
        assert_eq!(lanes.take_held_back(later), None, "nothing is left");
    }

    #[test]
    fn a_server_whose_writes_do_not_come_back_is_not_polled_on_and_others_are_24() {
        let mut lanes = lanes(&[("a", 4), ("b", 4)], 8);
        push(&mut lanes, "a", 0..4);
        push(&mut lanes, "b", 0..4);
        lanes.sent("a", UNWRITTEN);
        lanes.push("a", Slot::Cancel, 0, "c".into());
        assert!(drain(&mut lanes).iter().all(|id| id.starts_with('b')));
        assert!(lanes.take(Slot::Cancel, NOW).is_some(), "a cancel does not wait for them");
    }

    #[test]
    fn servers_that_are_not_configured_share_one_lane_and_one_slot() {
        let mut lanes = lanes(&[("a", 4)], 8);
        ["x", "y", "z"].iter().for_each(|name| push(&mut lanes, name, 0..5));
        assert_eq!(drain(&mut lanes).len(), 1);
        assert_eq!((lanes.of("x"), lanes.of("a")), (STRANGERS, "a"));
        assert_eq!(lanes.by_server.len(), 2);
    }
}
