//! Which keys are covered by which files: arithmetic of sorted, disjoint ranges.

use slackline_core::ids::KeyRange;

/// Takes from `open` what `offered` covers, and answers what was taken. Both are sorted and disjoint, and so is the answer.
pub(crate) fn take(open: &mut Vec<KeyRange>, offered: impl Iterator<Item = KeyRange>) -> Vec<KeyRange> {
    let mut offered = offered.peekable();
    let mut taken = Vec::new();
    let mut left = Vec::with_capacity(open.len());
    for range in open.drain(..) {
        let mut start = range.start;
        while start < range.end() {
            while offered.next_if(|offer| offer.end() <= start).is_some() {}
            let Some(offer) = offered.peek().filter(|offer| offer.start < range.end()) else {
                break;
            };
            if offer.start > start {
                left.push(between(start, offer.start));
            }
            let begin = start.max(offer.start);
            start = offer.end().min(range.end());
            taken.push(between(begin, start));
        }
        if start < range.end() {
            left.push(between(start, range.end()));
        }
    }
    *open = left;
    taken
}

/// The range from `start` up to, without, `end`.
pub(crate) const fn between(start: u64, end: u64) -> KeyRange {
    KeyRange::new(start, end - start)
}

/// The keys in both ranges; empty if there are none.
pub(crate) fn both(left: KeyRange, right: KeyRange) -> KeyRange {
    let start = left.start.max(right.start);
    between(start, left.end().min(right.end()).max(start))
}

/// The ranges of all keys in `keys`, none if it is empty.
pub(crate) fn all_of(keys: KeyRange) -> Vec<KeyRange> {
    if keys.is_empty() { Vec::new() } else { vec![keys] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn ranges(members: &BTreeSet<u64>) -> Vec<KeyRange> {
        let mut ranges: Vec<KeyRange> = Vec::new();
        for &member in members {
            match ranges.last_mut() {
                Some(last) if last.end() == member => last.len += 1,
                _ => ranges.push(KeyRange::new(member, 1)),
            }
        }
        ranges
    }

    fn members(ranges: &[KeyRange]) -> BTreeSet<u64> {
        ranges.iter().flat_map(|range| range.start..range.end()).collect()
    }

    proptest! {
        #[test]
        fn taking_is_set_arithmetic(
            open in prop::collection::btree_set(0..60_u64, 0..40),
            offered in prop::collection::btree_set(0..60_u64, 0..40),
        ) {
            let mut rest = ranges(&open);
            let taken = take(&mut rest, ranges(&offered).into_iter());
            prop_assert_eq!(members(&taken), &open & &offered);
            prop_assert_eq!(members(&rest), &open - &offered);
            for some in [&taken, &rest] {
                prop_assert!(some.windows(2).all(|pair| pair[0].end() <= pair[1].start));
                prop_assert!(some.iter().all(|range| !range.is_empty()));
            }
        }
    }
}
