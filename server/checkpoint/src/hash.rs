//! A fingerprint of values that is the same however the keys are divided.

use crate::part::Array;

/// Fingerprint over (array, key, bits of the value). It is a sum, so that parts may be added in any order and cut anywhere: the same state
/// held by three shards or by five has the same fingerprint. -0.0 and 0.0 differ, as do NaNs of different bits: it is the bits that count.
///
/// Guards against mistakes, not against malice. About two nanoseconds a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateHash(u64);

impl StateHash {
    /// Fingerprint of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds values of the array `name`, the first of which belongs to key `first`.
    pub fn add(&mut self, name: &str, first: u64, values: &[f32]) {
        let seed = xxhash_rust::xxh3::xxh3_64(name.as_bytes());
        // Keys are spread over the words by the golden ratio, as in splitmix64 (Steele, Lea and Flood 2014), whose mixer follows.
        let mut place = seed.wrapping_add(first.wrapping_mul(GOLDEN));
        for value in values {
            self.0 = self.0.wrapping_add(mixed(mixed(place) ^ u64::from(value.to_bits())));
            place = place.wrapping_add(GOLDEN);
        }
    }

    /// Adds arrays whose first value belongs to key `first`.
    pub fn add_arrays(&mut self, first: u64, arrays: &[Array]) {
        for array in arrays {
            self.add(&array.name, first, &array.values);
        }
    }

    /// Adds another fingerprint, of other keys or arrays.
    pub const fn merge(&mut self, other: Self) {
        self.0 = self.0.wrapping_add(other.0);
    }

    /// A fingerprint that was written down.
    #[must_use]
    pub const fn from_value(value: u64) -> Self {
        Self(value)
    }

    /// The number to write down or to compare.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

const fn mixed(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_cuts_do_not_show(
            values in prop::collection::vec(any::<f32>(), 1..200),
            first in any::<u32>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let first = u64::from(first);
            let cut = cut.index(values.len());
            let mut whole = StateHash::new();
            whole.add("values", first, &values);
            let (mut left, mut right) = (StateHash::new(), StateHash::new());
            left.add("values", first, &values[..cut]);
            right.add("values", first + cut as u64, &values[cut..]);
            right.merge(left);
            prop_assert_eq!(whole, right);
        }

        #[test]
        fn one_bit_shows(mut values in prop::collection::vec(any::<f32>(), 1..200), at in any::<prop::sample::Index>(), bit in 0..32_u32) {
            let before = of("values", &values);
            let at = at.index(values.len());
            values[at] = f32::from_bits(values[at].to_bits() ^ (1 << bit));
            prop_assert_ne!(before, of("values", &values));
        }
    }

    fn of(name: &str, values: &[f32]) -> StateHash {
        let mut hash = StateHash::new();
        hash.add(name, 0, values);
        hash
    }

    #[test]
    fn places_and_names_show() {
        assert_ne!(of("values", &[1.0, 2.0]), of("values", &[2.0, 1.0]));
        assert_ne!(of("values", &[1.0, 2.0]), of("slots", &[1.0, 2.0]));
        assert_ne!(of("values", &[0.0]), of("values", &[]));
        assert_ne!(of("values", &[0.0]), of("values", &[-0.0]));
    }
}
