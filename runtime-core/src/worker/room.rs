//! Who may be claimed, and how many: a share of the room for each server, so that a dead server's tasks cannot fill it
//! (FAILURES 42), and turns while more waits than one claim takes, so that a flood is not claimed before all others.

use super::held::Count;

/// The most tasks one claim takes; while servers take turns, all of them together and strangers once more as many as one.
pub(super) const CLAIM: usize = 500;
/// What a claim takes of each server, at least, while they take turns.
const TURN: usize = 16;

/// The room of a worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Tasks it may hold.
    pub(super) max_held: usize,
    /// Tasks it holds.
    pub(super) held: usize,
    /// Cancels of each server that it may hold beyond that: they are claimed even when room is full, and still bounded.
    pub(super) cancel_reserve: usize,
}

/// Whether the last claim left something behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Crowd {
    pub(super) polls: bool,
    pub(super) cancels: bool,
}

/// One claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Portion {
    /// The servers whose tasks it takes.
    pub(super) servers: Vec<String>,
    /// Whether it takes tasks of servers that are not configured here, once they are overdue by a lease.
    pub(super) strangers: bool,
    /// How many tasks at most.
    pub(super) limit: usize,
}

impl Room {
    /// How many of one of `servers` may be held.
    fn share(self, servers: usize) -> usize {
        (self.max_held / servers.max(1)).max(1)
    }

    /// Whether another task of a server with so many held, one of `servers`, has room.
    pub(super) fn has_for(self, server: Count, servers: usize) -> bool {
        self.held < self.max_held && server.all < self.share(servers)
    }

    /// Claims of polls. A server whose share is nearly full is asked for apart, so that one claim does not take more than
    /// the rest of it. `crowded`, each is, and likewise where one's share is full, since what waits of that one may be any number:
    /// a claim of one server does not look at the others' tasks. Strangers then only when it is their time: they are few, and
    /// looked for among all that waits.
    pub(super) fn polls(self, servers: &[(&str, Count)], crowded: bool, strangers: bool) -> Vec<Portion> {
        let mut room = self.max_held.saturating_sub(self.held);
        let share = self.share(servers.len());
        let turn = if crowded { turn(servers.len()) } else { CLAIM };
        let apart = crowded || servers.iter().any(|(_, count)| count.all >= share);
        let (mut portions, mut ample) = (Vec::new(), Vec::new());
        for (server, count) in servers {
            let left = share.saturating_sub(count.all).min(room);
            if left >= CLAIM && !apart {
                ample.push((*server).to_owned());
            } else if left > 0 {
                let limit = left.min(turn);
                room -= limit;
                portions.push(Portion { servers: vec![(*server).to_owned()], strangers: false, limit });
            }
        }
        if room > 0 && (strangers || !apart) {
            portions.push(Portion { servers: ample, strangers: true, limit: room.min(turn) });
        }
        portions
    }

    /// Claims of cancels: as they come while there is room for them, else each server's apart, with its reserve; those of
    /// strangers then where it is their time.
    pub(super) fn cancels(self, servers: &[(&str, Count)], strangers: Option<Count>, crowded: bool) -> Vec<Portion> {
        let room = self.max_held.saturating_sub(self.held);
        if room >= CLAIM && !crowded {
            let servers = servers.iter().map(|(server, _)| (*server).to_owned()).collect();
            return vec![Portion { servers, strangers: true, limit: CLAIM }];
        }
        let parts = servers.len() + 1;
        let limit = |count: Count| {
            let reserve = self.cancel_reserve.saturating_sub(count.cancels);
            (room / parts).max(reserve).min(turn(parts))
        };
        let each = servers.iter().map(|(server, count)| (vec![(*server).to_owned()], false, limit(*count)));
        each.chain(strangers.map(|count| (Vec::new(), true, limit(count))))
            .filter(|(.., limit)| *limit > 0)
            .map(|(servers, strangers, limit)| Portion { servers, strangers, limit })
            .collect()
    }
}

fn turn(parts: usize) -> usize {
    (CLAIM / parts.max(1)).max(TURN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(max_held: usize, held: usize) -> Room {
        Room { max_held, held, cancel_reserve: 8 }
    }

    fn count(all: usize, cancels: usize) -> Count {
        Count { all, cancels }
    }

    fn limits(portions: &[Portion]) -> Vec<(&str, usize)> {
        portions.iter().map(|portion| (portion.servers.first().map_or("", String::as_str), portion.limit)).collect()
    }

    #[test]
    fn a_dead_servers_tasks_fill_their_share_and_no_more_42() {
        let servers = [("dead", count(50, 0)), ("live", count(0, 0))];
        let portions = room(100, 50).polls(&servers, false, true);
        assert_eq!(portions, [Portion { servers: vec!["live".into()], strangers: false, limit: 50 }]);
        assert!(!room(100, 50).has_for(servers[0].1, 2) && room(100, 50).has_for(servers[1].1, 2));
    }

    #[test]
    fn where_a_share_is_full_no_claim_looks_past_that_servers_tasks_42() {
        let servers = [("dead", count(30_000, 0)), ("a", count(9, 0)), ("b", count(0, 0))];
        let room = room(90_000, 30_009);
        assert_eq!(limits(&room.polls(&servers, false, false)), [("a", CLAIM), ("b", CLAIM)]);
        assert_eq!(limits(&room.polls(&servers, false, true)), [("a", CLAIM), ("b", CLAIM), ("", CLAIM)]);
    }

    #[test]
    fn one_claim_takes_all_where_there_is_room_and_no_crowd() {
        let servers = [("a", count(9, 0)), ("b", count(0, 0))];
        let all = Portion { servers: vec!["a".into(), "b".into()], strangers: true, limit: CLAIM };
        assert_eq!(room(100_000, 9).polls(&servers, false, false), std::slice::from_ref(&all));
        assert_eq!(room(100_000, 9).cancels(&servers, Some(count(0, 0)), false), [all]);
    }

    #[test]
    fn in_a_crowd_servers_take_turns_and_strangers_have_one_too() {
        let servers = [("a", count(9, 0)), ("b", count(0, 0)), ("c", count(0, 0))];
        let each = |limit| [("a", limit), ("b", limit), ("c", limit), ("", limit)];
        assert_eq!(limits(&room(100_000, 9).polls(&servers, true, true)), each(CLAIM / 3));
        assert_eq!(limits(&room(100_000, 9).cancels(&servers, Some(count(0, 0)), true)), each(CLAIM / 4));
        assert_eq!(
            limits(&room(100_000, 9).polls(&servers, true, false)),
            each(CLAIM / 3)[..3],
            "it is not their time"
        );
        assert_eq!(limits(&room(100_000, 9).cancels(&servers, None, true)), each(CLAIM / 4)[..3]);
    }

    #[test]
    fn cancels_are_claimed_even_when_room_is_full_and_each_server_has_a_reserve_of_its_own_42() {
        let servers = [("dead", count(60, 8)), ("live", count(48, 2))];
        let portions = room(100, 108).cancels(&servers, Some(count(0, 0)), false);
        assert_eq!(limits(&portions), [("live", 6), ("", 8)]);
    }

    #[test]
    fn a_worker_without_servers_still_claims_what_nobody_else_has_48() {
        let strangers = Portion { servers: Vec::new(), strangers: true, limit: CLAIM };
        assert_eq!(room(100_000, 0).polls(&[], true, true), std::slice::from_ref(&strangers));
        assert_eq!(room(100_000, 0).polls(&[], true, false), []);
        assert_eq!(room(100_000, 0).cancels(&[], Some(count(0, 0)), true), [strangers]);
    }

    #[test]
    fn what_is_claimed_never_exceeds_the_room() {
        for held in 0..120 {
            let servers = [("a", count(held / 2, 0)), ("b", count(held - held / 2, 0)), ("c", count(0, 0))];
            for crowded in [false, true] {
                let claimed: usize =
                    room(100, held).polls(&servers, crowded, true).iter().map(|portion| portion.limit).sum();
                assert!(held + claimed <= 100.max(held), "{held} + {claimed}");
            }
        }
    }
}
