//! Where a sink's reading of events stands. On PostgreSQL a write that began earlier may commit later, so that an event shows
//! up behind others that were read: the reader goes on beyond such a gap and comes back to it until it is certain to stay one.

use std::collections::BTreeMap;

use mcp_taskd_core::clock::Millis;
use mcp_taskd_core::store::EventRecord;

/// How long a gap is looked at: several times longer than any statement may take, after which whatever was going to fill it
/// was rolled back.
const GAP_MS: Millis = 60_000;
/// What happened longer ago than this is no news that is late: its gaps are what was pruned, and are looked at once.
const HISTORY_MS: Millis = 3_600_000;
/// The most events that one look may find.
pub(super) const SPAN: i64 = 500;
/// Looks in one go.
const LOOKS: usize = 16;

/// Sequences that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gap {
    /// The sequence behind it.
    before: i64,
    /// When it was first seen. What is behind it may have been decided long before it was committed.
    since: Millis,
}

/// What was read, and what is missing in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reader {
    ahead: i64,
    /// By the sequence before a gap.
    gaps: BTreeMap<i64, Gap>,
    /// Where the next look begins: each gap has its turn.
    turn: i64,
}

impl Reader {
    /// Begins behind `position`.
    pub(super) fn at(position: i64) -> Self {
        Self { ahead: position, gaps: BTreeMap::new(), turn: 0 }
    }

    /// Behind which events have not been read at all.
    pub(super) fn ahead(&self) -> i64 {
        self.ahead
    }

    /// Up to where everything has been read that will ever be there: whoever begins here misses nothing.
    pub(super) fn position(&self) -> i64 {
        self.gaps.keys().next().copied().unwrap_or(self.ahead)
    }

    /// The ranges to look at now, both ends excluded. Each covers as many gaps as one statement can tell of.
    pub(super) fn looks(&self) -> Vec<(i64, i64)> {
        let mut looks: Vec<(i64, i64)> = Vec::new();
        for (after, gap) in self.gaps.range(self.turn..) {
            if let Some((from, to)) = looks.last_mut()
                && gap.before - *from <= SPAN
            {
                *to = gap.before;
            } else if looks.len() < LOOKS {
                looks.push((*after, gap.before));
            } else {
                break;
            }
        }
        looks
    }

    /// Takes note of all `events` that a look found, in their order; those that are new. A gap that was old when the look
    /// began, at `began`, is given up where nothing showed up in it.
    pub(super) fn looked(
        &mut self,
        (from, to): (i64, i64),
        events: Vec<EventRecord>,
        began: Millis,
    ) -> Vec<EventRecord> {
        // A single gap may be longer than one look.
        let to = events.last().filter(|_| events.len() as i64 >= SPAN).map_or(to, |last| last.sequence);
        let new: Vec<_> = events.into_iter().filter(|event| self.fill(event.sequence)).collect();
        self.gaps.retain(|after, gap| *after < from || gap.before > to || gap.since > began - GAP_MS);
        self.turn = to;
        new
    }

    /// Whether there are gaps that have not had their turn. Where all had, the first one's comes next.
    pub(super) fn looks_on(&mut self) -> bool {
        let more = self.gaps.range(self.turn..).next().is_some();
        if !more {
            self.turn = 0;
        }
        more
    }

    fn fill(&mut self, sequence: i64) -> bool {
        let Some((after, gap)) = self.gaps.range(..sequence).next_back().map(|(after, gap)| (*after, *gap)) else {
            return false;
        };
        if sequence >= gap.before {
            return false;
        }
        self.gaps.remove(&after);
        for (from, before) in [(after, sequence), (sequence, gap.before)] {
            if before > from + 1 {
                self.gaps.insert(from, Gap { before, ..gap });
            }
        }
        true
    }

    /// Takes note, at `now`, of events behind [`Reader::ahead`], in their order.
    pub(super) fn read(&mut self, events: &[EventRecord], now: Millis) {
        for event in events {
            if event.sequence > self.ahead + 1 {
                let since = if event.created_at < now - HISTORY_MS { event.created_at } else { now };
                self.gaps.insert(self.ahead, Gap { before: event.sequence, since });
            }
            self.ahead = event.sequence.max(self.ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Millis = 10 * HISTORY_MS;

    fn event(sequence: i64, created_at: Millis) -> EventRecord {
        EventRecord {
            sequence,
            task_id: "t".into(),
            user_id: "u".into(),
            thread_id: "h".into(),
            kind: "working".into(),
            status: "working".into(),
            created_at,
        }
    }

    fn look(reader: &mut Reader, visible: &[i64], now: Millis) -> Vec<i64> {
        let mut new = Vec::new();
        for (from, to) in reader.looks() {
            let found = visible.iter().filter(|it| **it > from && **it < to).take(SPAN as usize);
            let found = found.map(|it| event(*it, now)).collect();
            new.extend(reader.looked((from, to), found, now).iter().map(|event| event.sequence));
        }
        reader.looks_on();
        new
    }

    #[test]
    fn a_gap_holds_the_position_back_until_it_is_filled_or_was_looked_at_when_it_was_old() {
        let mut reader = Reader::at(10);
        // What is behind the gap was decided long ago, and committed only now.
        reader.read(&[event(11, NOW - 120_000), event(14, NOW - 120_000), event(15, NOW)], NOW);
        assert_eq!((reader.ahead(), reader.position(), reader.looks()), (15, 11, vec![(11, 14)]));
        assert_eq!(look(&mut reader, &[11, 13, 14, 15], NOW + 59_999), [13]);
        assert_eq!((reader.position(), reader.looks()), (11, vec![(11, 13)]), "somebody may still fill it");
        assert_eq!(look(&mut reader, &[11, 12, 13, 14, 15], NOW + 90_000), [12], "the look comes before the end");
        assert_eq!((reader.position(), reader.looks()), (15, vec![]));
        reader.read(&[event(20, NOW + 90_000)], NOW + 90_000);
        assert_eq!(look(&mut reader, &[], NOW + 150_000), [0; 0]);
        assert_eq!(reader.position(), 20);
    }

    #[test]
    fn what_was_pruned_long_ago_is_looked_at_once() {
        let mut reader = Reader::at(10);
        reader.read(&[event(5_000, NOW - HISTORY_MS - 1)], NOW);
        assert_eq!(look(&mut reader, &[4_000], NOW), [4_000]);
        assert_eq!(reader.position(), 5_000);
    }

    #[test]
    fn every_gap_has_its_turn_before_it_is_given_up() {
        let mut reader = Reader::at(0);
        let seen: Vec<_> = (1..=60).map(|it| event(it * 1_000, NOW)).collect();
        reader.read(&seen, NOW);
        let late = NOW + 2 * GAP_MS;
        let mut looked = 0;
        while reader.position() < 60_000 {
            let looks = reader.looks();
            assert!((1..=LOOKS).contains(&looks.len()), "{looks:?}");
            looked += looks.len();
            for range in looks {
                reader.looked(range, Vec::new(), late);
            }
            assert_eq!(reader.looks_on(), looked < 60);
        }
        assert_eq!(looked, 60);
    }

    proptest! {
        /// Whatever the order in which events become visible, and however far apart they are: each that shows up while its
        /// gap is young is read once, and none below the position is missing.
        #[test]
        fn no_event_is_missed_whatever_the_order_of_commits(
            order in Just((1_i64..80).collect::<Vec<_>>()).prop_shuffle(), steps in 1_usize..20, apart in 1_i64..700,
        ) {
            let order: Vec<i64> = order.into_iter().map(|it| it * apart).collect();
            let mut reader = Reader::at(0);
            let (mut visible, mut heard, mut now) = (Vec::new(), Vec::new(), NOW);
            for chunk in order.chunks(steps) {
                visible.extend_from_slice(chunk);
                visible.sort_unstable();
                now += 100;
                let ahead = reader.ahead();
                heard.extend(look(&mut reader, &visible, now));
                let new: Vec<_> = visible.iter().filter(|it| **it > ahead).map(|it| event(*it, now)).collect();
                heard.extend(new.iter().map(|event| event.sequence));
                reader.read(&new, now);
                prop_assert!((1..=reader.position() / apart).all(|it| heard.contains(&(it * apart))));
            }
            for _ in 0..20 {
                now += GAP_MS;
                heard.extend(look(&mut reader, &visible, now));
            }
            heard.sort_unstable();
            prop_assert_eq!(&heard, &visible);
            prop_assert_eq!(reader.position(), 79 * apart);
        }
    }
}
