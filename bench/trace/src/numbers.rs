//! A set of numbers that are mostly without gaps: the pushes of one incarnation.

use std::collections::BTreeMap;

/// The set, as runs of numbers. One without gaps takes the room of one run, however long it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// First and last number of each run; no two runs touch.
    runs: BTreeMap<u64, u64>,
}

impl Numbers {
    /// Adds a number; returns whether it was new.
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        if self.contains(number) {
            return false;
        }
        let after = number.checked_add(1).and_then(|next| self.runs.remove(&next));
        let last = after.unwrap_or(number);
        match self.runs.range_mut(..number).next_back() {
            Some((_, end)) if *end + 1 == number => *end = last,
            _ => {
                self.runs.insert(number, last);
            }
        }
        true
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        self.runs.range(..=number).next_back().is_some_and(|(_, end)| number <= *end)
    }

    /// Whether every number from 1 to `last` is in it.
    pub(crate) fn has_all_to(&self, last: u64) -> bool {
        last == 0 || self.runs.range(..=1).next_back().is_some_and(|(_, end)| last <= *end)
    }

    /// The largest number.
    pub(crate) fn last(&self) -> Option<u64> {
        self.runs.values().next_back().copied()
    }

    /// The runs, first and last number of each.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.runs.iter().map(|(first, last)| (*first, *last))
    }

    /// The first number of `self` that `other` lacks.
    pub(crate) fn first_missing_in(&self, other: &Self) -> Option<u64> {
        let missing = |(first, last): (u64, u64)| match other.runs.range(..=first).next_back() {
            Some((_, end)) if *end >= last => None,
            Some((_, end)) if *end >= first => Some(*end + 1),
            _ => Some(first),
        };
        self.runs().find_map(missing)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_set_that_a_set_is(
            added in prop::collection::vec(0..60_u64, 0..80),
            others in prop::collection::btree_set(0..60_u64, 0..60),
        ) {
            let (mut numbers, mut model) = (Numbers::default(), BTreeSet::new());
            for number in added {
                prop_assert_eq!(numbers.insert(number), model.insert(number));
            }
            let mut other = Numbers::default();
            others.iter().for_each(|number| assert!(other.insert(*number)));
            prop_assert_eq!(numbers.first_missing_in(&other), model.difference(&others).next().copied());
            prop_assert_eq!(numbers.last(), model.last().copied());
            for number in 0..62 {
                prop_assert_eq!(numbers.contains(number), model.contains(&number));
                prop_assert_eq!(numbers.has_all_to(number), (1..=number).all(|each| model.contains(&each)));
            }
            let runs: Vec<_> = numbers.runs().collect();
            prop_assert!(runs.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
        }
    }

    #[test]
    fn the_largest_numbers_have_a_place() {
        let mut numbers = Numbers::default();
        assert!(numbers.insert(u64::MAX) && numbers.insert(u64::MAX - 1) && !numbers.insert(u64::MAX));
        assert_eq!(numbers.runs().collect::<Vec<_>>(), [(u64::MAX - 1, u64::MAX)]);
    }
}
