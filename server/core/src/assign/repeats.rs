//! Which samples were given out a second time, and why: what a user of a run with crashes must know of its data.
//!
//! Ranges are places in the order in which the run goes through its data: place p is in epoch p / samples of an epoch.

use std::collections::BTreeMap;
use std::fmt;

use bincode::{Decode, Encode};
use serde::Serialize;
use slackline_core::ids::{BatchIndex, Incarnation, WorkerId};

use super::Assigner;

/// Ranges that are kept; of more, only the samples are counted.
pub const RANGES_MAX: usize = 1000;

/// Why samples were given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum Why {
    /// Their worker was lost: what it had pushed of them is in the values all the same, and they are done a second time.
    Lost {
        /// Which.
        worker: WorkerId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// Their worker left before it had done them.
    Left {
        /// Which.
        worker: WorkerId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// Every shard was restored from this checkpoint, and they were done or begun after it: nothing of that is left.
    Restored {
        /// Which.
        checkpoint: u64,
    },
    /// Their gradient was not used (the policy or a guard dropped it), so they are still used once.
    Unused,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { worker, incarnation } => write!(f, "{worker} ({incarnation}) was lost"),
            Self::Left { worker, incarnation } => {
                write!(f, "{worker} ({incarnation}) left before they were done")
            }
            Self::Restored { checkpoint } => {
                write!(f, "checkpoint {checkpoint}, which was made before them, is all that was left")
            }
            Self::Unused => f.write_str("their gradient was not used"),
        }
    }
}

/// Samples that were given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Repeat {
    /// The first.
    pub from: u64,
    /// The first after them.
    pub to: u64,
    /// Why.
    #[serde(flatten)]
    pub why: Why,
}

impl fmt::Display for Repeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "samples {}..{} are done again: {}", self.from, self.to, self.why)
    }
}

/// All that were, merged by their reason; at most [`RANGES_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Repeats {
    /// From where to where.
    ranges: BTreeMap<Why, BTreeMap<u64, u64>>,
    count: usize,
    samples: u64,
    unlisted: u64,
}

impl Repeats {
    /// Takes note of samples; those that were noted before for the same reason are counted again and not listed again.
    pub fn note(&mut self, repeat: Repeat) {
        let Repeat { mut from, mut to, why } = repeat;
        if from >= to {
            return;
        }
        self.samples += to - from;
        let known = self.ranges.get(&why);
        // Whatever it overlaps or touches becomes one range with it.
        let joins = |(start, end): (&u64, &u64)| (*end >= from).then_some((*start, *end));
        let touched: Vec<(u64, u64)> =
            known.into_iter().flat_map(|known| known.range(..=to).rev().map_while(joins)).collect();
        if touched.is_empty() && self.count >= RANGES_MAX {
            self.unlisted += to - from;
            return;
        }
        let ranges = self.ranges.entry(why).or_default();
        for (start, end) in &touched {
            ranges.remove(start);
            (from, to) = (from.min(*start), to.max(*end));
        }
        ranges.insert(from, to);
        self.count = self.count + 1 - touched.len();
    }

    /// The ranges, by reason.
    pub fn ranges(&self) -> impl Iterator<Item = Repeat> + '_ {
        let of = |(why, ranges): (&Why, &BTreeMap<u64, u64>)| {
            let why = *why;
            ranges.iter().map(|(from, to)| Repeat { from: *from, to: *to, why }).collect::<Vec<_>>()
        };
        self.ranges.iter().flat_map(of)
    }

    /// Samples that were given out again, each as often as it was.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// Those of them that are in no range, because there were too many.
    #[must_use]
    pub const fn unlisted(&self) -> u64 {
        self.unlisted
    }
}

impl Assigner {
    /// A worker is gone: takes note of what it had. Called before [`Assigner::forget`].
    pub fn note_gone(&mut self, worker: WorkerId, why: Why) -> Vec<Repeat> {
        let batches = self.desks.get(&worker).map(|desk| desk.batches.clone()).unwrap_or_default();
        let mut noted = Repeats::default();
        for (batch, units) in batches {
            let repeat = self.repeat_of(batch, units, why);
            self.repeats.note(repeat);
            noted.note(repeat);
        }
        noted.ranges().collect()
    }

    pub(super) fn repeat_of(&self, batch: BatchIndex, units: u32, why: Why) -> Repeat {
        let (from, to) =
            (self.plan.samples_before(batch.0), self.plan.samples_before(batch.0 + u64::from(units)));
        Repeat { from, to, why }
    }

    /// What was given out again.
    #[must_use]
    pub const fn repeats(&self) -> &Repeats {
        &self.repeats
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOST: Why = Why::Lost { worker: WorkerId(3), incarnation: Incarnation(5) };

    fn noted(ranges: &[(u64, u64)]) -> Repeats {
        let mut repeats = Repeats::default();
        for (from, to) in ranges {
            repeats.note(Repeat { from: *from, to: *to, why: LOST });
        }
        repeats
    }

    fn listed(repeats: &Repeats) -> Vec<(u64, u64)> {
        repeats.ranges().map(|repeat| (repeat.from, repeat.to)).collect()
    }

    #[test]
    fn a_range_is_told_with_its_worker_and_why() {
        let repeat = Repeat { from: 1280, to: 1408, why: LOST };
        assert_eq!(
            repeat.to_string(),
            "samples 1280..1408 are done again: worker 3 (incarnation 5) was lost"
        );
    }

    #[test]
    fn neighbours_of_one_reason_are_one_range() {
        assert_eq!(listed(&noted(&[(0, 10), (20, 30), (10, 20)])), [(0, 30)]);
        assert_eq!(listed(&noted(&[(0, 10), (20, 30), (40, 50), (5, 41)])), [(0, 50)]);
        let repeats = noted(&[(0, 10), (0, 10), (12, 14), (3, 3)]);
        assert_eq!((listed(&repeats), repeats.samples()), (vec![(0, 10), (12, 14)], 22));
        let mut repeats = noted(&[(0, 10)]);
        repeats.note(Repeat { from: 10, to: 20, why: Why::Unused });
        assert_eq!(repeats.ranges().count(), 2, "other reasons stay apart");
    }

    #[test]
    fn more_ranges_than_are_kept_are_counted() {
        let many: Vec<(u64, u64)> =
            (0..RANGES_MAX as u64 + 5).map(|index| (10 * index, 10 * index + 4)).collect();
        let mut repeats = noted(&many);
        assert_eq!((repeats.ranges().count(), repeats.unlisted()), (RANGES_MAX, 20));
        // What touches a range that is kept still finds its place.
        repeats.note(Repeat { from: 4, to: 10, why: LOST });
        assert_eq!((listed(&repeats)[0], repeats.unlisted()), ((0, 14), 20));
    }

    proptest! {
        #[test]
        fn the_ranges_cover_exactly_what_was_noted(
            ranges in prop::collection::vec((0_u64..200, 0_u64..20), 0..40),
        ) {
            let ranges: Vec<(u64, u64)> = ranges.into_iter().map(|(from, len)| (from, from + len)).collect();
            let repeats = noted(&ranges);
            let covers = |list: &[(u64, u64)], place| list.iter().any(|(from, to)| (*from..*to).contains(&place));
            let list = listed(&repeats);
            for place in 0..230 {
                prop_assert_eq!(covers(&list, place), covers(&ranges, place), "{}", place);
            }
            prop_assert!(list.windows(2).all(|pair| pair[0].1 < pair[1].0), "{:?}", list);
            prop_assert_eq!(repeats.count, list.len());
        }
    }
}
