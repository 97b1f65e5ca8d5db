//! A histogram of small whole numbers (clock lead, version staleness): exact to 255, within 1/16 above.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};

use crate::limits::HISTOGRAM_BUCKETS;

/// The bucket of the largest values.
const LAST_BUCKET: u32 = HISTOGRAM_BUCKETS as u32 - 1;

/// Counts by value. Memory is bounded by [`HISTOGRAM_BUCKETS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Histogram {
    counts: BTreeMap<u32, u64>,
    sum: u64,
    max: u64,
}

/// The figures of a histogram that a summary shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Spread {
    /// Mean; zero when nothing was counted.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Largest.
    pub max: u64,
}

impl Histogram {
    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        let count = self.counts.entry(bucket(value)).or_default();
        *count = count.saturating_add(1);
        self.sum = self.sum.saturating_add(value);
        self.max = self.max.max(value);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.counts {
            // A peer may send anything: rows outside the buckets are folded into the last.
            let sum = self.counts.entry((*bucket).min(LAST_BUCKET)).or_default();
            *sum = sum.saturating_add(*count);
        }
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// Values counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The counts in rising order of values, each with the lowest value of its bucket.
    pub fn rows(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts.iter().map(|(bucket, count)| (lowest_in((*bucket).min(LAST_BUCKET)), *count))
    }

    /// Sum of the values counted.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// Largest value counted.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// The smallest value that at least `share` of the counted ones do not exceed.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0_u64;
        for (bucket, count) in &self.counts {
            seen = seen.saturating_add(*count);
            if seen >= wanted {
                return lowest_in((*bucket).min(LAST_BUCKET)).min(self.max);
            }
        }
        0
    }

    /// The figures of a summary.
    #[must_use]
    pub fn spread(&self) -> Spread {
        let count = self.count();
        let mean = if count == 0 { 0.0 } else { self.sum as f64 / count as f64 };
        Spread { mean, p50: self.quantile(0.5), p99: self.quantile(0.99), max: self.max }
    }
}

const fn bucket(value: u64) -> u32 {
    if value < 256 {
        return value as u32;
    }
    let exponent = 63 - value.leading_zeros();
    256 + 16 * (exponent - 8) + ((value >> (exponent - 4)) & 15) as u32
}

const fn lowest_in(bucket: u32) -> u64 {
    if bucket < 256 {
        return bucket as u64;
    }
    let (exponent, part) = ((bucket - 256) / 16 + 8, (bucket - 256) % 16);
    (1 << exponent) + ((part as u64) << (exponent - 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quantiles_are_exact_when_small_and_close_when_large(mut values in prop::collection::vec(prop_oneof![0..256_u64, any::<u64>()], 1..200)) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|value| histogram.record(*value));
            values.sort_unstable();
            for share in [0.01, 0.5, 0.99, 1.0] {
                let exact = values[((values.len() as f64 * share).ceil() as usize).max(1) - 1];
                let got = histogram.quantile(share);
                prop_assert!(got <= exact && exact - got <= exact / 16, "{} {}", got, exact);
                prop_assert!(exact >= 256 || got == exact);
            }
            prop_assert!(histogram.counts.keys().all(|bucket| (*bucket as usize) < HISTOGRAM_BUCKETS));
        }

        #[test]
        fn merging_is_counting_together(left in prop::collection::vec(0..5000_u64, 0..50), right in prop::collection::vec(0..5000_u64, 0..50)) {
            let of = |values: &[u64]| { let mut histogram = Histogram::default(); values.iter().for_each(|value| histogram.record(*value)); histogram };
            let mut merged = of(&left);
            merged.merge(&of(&right));
            prop_assert_eq!(merged, of(&[left, right].concat()));
        }
    }

    #[test]
    fn absurd_counts_of_a_peer_saturate() {
        let absurd =
            Histogram { counts: [(3, u64::MAX), (u32::MAX, u64::MAX)].into(), sum: u64::MAX, max: u64::MAX };
        let mut total = absurd.clone();
        total.merge(&absurd);
        assert_eq!(total.count(), u64::MAX);
        assert_eq!((absurd.quantile(0.99), total.counts.len()), (3, 3));
    }
}
