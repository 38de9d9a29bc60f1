//! Where a sink's reading of events stands. On PostgreSQL a write that began earlier may commit later, so that an event shows
//! up behind others that were read: the reader goes on beyond such a gap and comes back to it until it is certain to stay one.

use std::collections::BTreeMap;

use mcp_taskd_core::clock::Millis;
use mcp_taskd_core::store::EventRecord;

/// How long a gap is looked at: several times longer than any statement may take, after which whatever was going to fill it
/// was rolled back.
const GAP_MS: Millis = 60_000;
/// Gaps that are looked at in one go.
const GAPS_AT_ONCE: usize = 16;

/// What was read, and what is missing in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reader {
    ahead: i64,
    /// By the sequence before a gap: the one behind it, and when that event happened.
    gaps: BTreeMap<i64, (i64, Millis)>,
}

impl Reader {
    /// Begins behind `position`.
    pub(super) fn at(position: i64) -> Self {
        Self { ahead: position, gaps: BTreeMap::new() }
    }

    /// Behind which events have not been read at all.
    pub(super) fn ahead(&self) -> i64 {
        self.ahead
    }

    /// Up to where everything has been read that will ever be there: whoever begins here misses nothing.
    pub(super) fn position(&self) -> i64 {
        self.gaps.keys().next().copied().unwrap_or(self.ahead)
    }

    /// The gaps to look at, both ends excluded.
    pub(super) fn gaps(&self) -> Vec<(i64, i64)> {
        self.gaps.iter().take(GAPS_AT_ONCE).map(|(after, (before, _))| (*after, *before)).collect()
    }

    /// Takes note of events behind [`Reader::ahead`], in their order.
    pub(super) fn read(&mut self, events: &[EventRecord]) {
        for event in events {
            if event.sequence > self.ahead + 1 {
                self.gaps.insert(self.ahead, (event.sequence, event.created_at));
            }
            self.ahead = event.sequence.max(self.ahead);
        }
    }

    /// Takes note of what has shown up in the gap behind `after`, in its order.
    pub(super) fn fill(&mut self, after: i64, events: &[EventRecord]) {
        let Some((before, since)) = self.gaps.remove(&after) else { return };
        let ends = events.iter().map(|event| event.sequence).chain([before]);
        let mut from = after;
        for to in ends {
            if to > from + 1 {
                self.gaps.insert(from, (to, since));
            }
            from = to;
        }
    }

    /// Gives up gaps that nothing can fill any more.
    pub(super) fn settle(&mut self, now: Millis) {
        self.gaps.retain(|_, (_, since)| *since > now - GAP_MS);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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

    #[test]
    fn a_gap_holds_the_position_back_until_it_is_filled_or_old() {
        let mut reader = Reader::at(10);
        reader.read(&[event(11, 0), event(14, 1_000), event(15, 1_000)]);
        assert_eq!((reader.ahead(), reader.position(), reader.gaps()), (15, 11, vec![(11, 14)]));
        reader.fill(11, &[event(13, 500)]);
        assert_eq!((reader.position(), reader.gaps()), (11, vec![(11, 13)]));
        reader.settle(60_999);
        assert_eq!(reader.position(), 11, "somebody may still fill it");
        reader.settle(61_000);
        assert_eq!((reader.position(), reader.gaps()), (15, vec![]));
        let mut filled = Reader::at(0);
        filled.read(&[event(3, 0)]);
        filled.fill(0, &[event(1, 0), event(2, 0)]);
        assert_eq!(filled.position(), 3);
    }

    proptest! {
        /// Whatever the order in which events become visible: each is read once, and none below the position is missing.
        #[test]
        fn no_event_is_missed_whatever_the_order_of_commits(
            order in Just((1_i64..40).collect::<Vec<_>>()).prop_shuffle(), steps in 1_usize..6,
        ) {
            let mut reader = Reader::at(0);
            let mut visible: Vec<i64> = Vec::new();
            let mut heard: Vec<i64> = Vec::new();
            for chunk in order.chunks(steps) {
                visible.extend(chunk);
                visible.sort_unstable();
                let between = |after: i64, before: i64| -> Vec<EventRecord> {
                    visible.iter().filter(|it| **it > after && **it < before).map(|it| event(*it, 0)).collect()
                };
                let new = between(reader.ahead(), i64::MAX);
                for (after, before) in reader.gaps() {
                    let late = between(after, before);
                    heard.extend(late.iter().map(|event| event.sequence));
                    reader.fill(after, &late);
                }
                heard.extend(new.iter().map(|event| event.sequence));
                reader.read(&new);
                prop_assert!((1..=reader.position()).all(|sequence| heard.contains(&sequence)));
            }
            heard.sort_unstable();
            let looked_at_all = reader.gaps().is_empty();
            prop_assert!(!looked_at_all || heard == (1..40).collect::<Vec<_>>());
            let once = heard.windows(2).all(|pair| pair[0] != pair[1]);
            prop_assert!(once);
        }
    }
}
