//! Which samples a batch holds: a pure function of (seed, epoch, global index), the same on every worker.
//!
//! The run is one long line of samples: epoch after epoch, each a permutation of the whole training set. Batches
//! are cut from that line one after another and run on across epoch borders, so that every sample is used once an
//! epoch and P batches of b samples are exactly one batch of P * b. Only the last batch of the run may be shorter.

use bincode::{Decode, Encode};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::ids::BatchIndex;

/// How the line of samples is cut into batches: each is a run of units, and counted by its first one ([`BatchIndex`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Cut {
    /// Samples of a unit.
    pub unit: u64,
    /// Units of a batch; with `proportional` on average.
    pub units: u64,
    /// Whether a worker's batches follow its speed.
    pub proportional: bool,
}

impl Cut {
    /// Parts of a batch whose size follows the worker's speed: as fine as differences of speed matter.
    const PARTS: u64 = 16;

    /// How many times the average a proportional batch may have.
    pub const LARGEST: u64 = 4;

    /// Batches of about `batch` samples that follow the workers' speeds.
    #[must_use]
    pub const fn proportional(batch: u64) -> Self {
        let units = if batch < Self::PARTS { batch } else { Self::PARTS };
        Self { unit: batch.div_ceil(units), units, proportional: true }
    }

    /// Most units of a batch.
    #[must_use]
    pub const fn units_max(self) -> u64 {
        if self.proportional { self.units * Self::LARGEST } else { self.units }
    }

    /// Most samples of a batch.
    #[must_use]
    pub const fn samples_max(self) -> u64 {
        self.unit * self.units_max()
    }
}

/// The order of samples in a run.
#[derive(Clone, Debug)]
pub struct DataOrder {
    seed: u64,
    sample_count: u64,
    batch: u64,
    epochs: u64,
    /// Permutations of the two epochs used last: a batch may lie in both.
    cached: [Option<(u64, Vec<u32>)>; 2],
}

impl DataOrder {
    /// The order for `epochs` passes over `sample_count` samples in batches of `batch` (at least 1) samples.
    #[must_use]
    pub fn new(seed: u64, sample_count: u64, batch: u64, epochs: u64) -> Self {
        Self { seed, sample_count, batch: batch.max(1), epochs, cached: [None, None] }
    }

    /// Samples of the whole run, repeats counted.
    #[must_use]
    pub const fn sample_total(&self) -> u64 {
        self.sample_count * self.epochs
    }

    /// Batches of the whole run.
    #[must_use]
    pub const fn batch_count(&self) -> u64 {
        self.sample_total().div_ceil(self.batch)
    }

    /// Samples in `units` batches from one on; zero past the end of the run.
    #[must_use]
    pub const fn batch_len(&self, index: BatchIndex, units: u64) -> u64 {
        let left = self.sample_total().saturating_sub(index.0.saturating_mul(self.batch));
        let wanted = self.batch.saturating_mul(units);
        if left < wanted { left } else { wanted }
    }

    /// Writes the dataset indices of `units` batches from one on to `samples`, replacing what was there.
    pub fn samples(&mut self, index: BatchIndex, units: u64, samples: &mut Vec<u32>) {
        samples.clear();
        let start = index.0.saturating_mul(self.batch);
        for position in start..start + self.batch_len(index, units) {
            let (epoch, within) = (position / self.sample_count, position % self.sample_count);
            samples.push(self.permutation(epoch)[within as usize]);
        }
    }

    fn permutation(&mut self, epoch: u64) -> &[u32] {
        let slot = (epoch % 2) as usize;
        if self.cached[slot].as_ref().is_none_or(|(cached, _)| *cached != epoch) {
            let mut order: Vec<u32> = match self.cached[slot].take() {
                Some((_, buffer)) => buffer,
                None => Vec::with_capacity(self.sample_count as usize),
            };
            order.clear();
            order.extend(0..self.sample_count as u32);
            order.shuffle(&mut random_stream(self.seed, epoch));
            self.cached[slot] = Some((epoch, order));
        }
        self.cached[slot].as_ref().map_or(&[], |(_, order)| order)
    }
}

/// An independent random stream for each (seed, stream) pair.
#[must_use]
pub fn random_stream(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(stream);
    random
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(order: &mut DataOrder) -> Vec<u32> {
        let mut samples = Vec::new();
        let mut line = Vec::new();
        for index in 0..order.batch_count() {
            order.samples(BatchIndex(index), 1, &mut samples);
            assert_eq!(samples.len() as u64, order.batch_len(BatchIndex(index), 1));
            line.extend(&samples);
        }
        line
    }

    proptest! {
        #[test]
        fn every_sample_is_used_once_an_epoch(seed: u64, count in 1..200_u64, batch in 1..64_u64, epochs in 1..4_u64) {
            let line = all(&mut DataOrder::new(seed, count, batch, epochs));
            prop_assert_eq!(line.len() as u64, count * epochs);
            for epoch in line.chunks(count as usize) {
                let mut sorted = epoch.to_vec();
                sorted.sort_unstable();
                prop_assert!(sorted.iter().copied().eq(0..count as u32));
            }
        }

        #[test]
        fn the_line_of_samples_does_not_depend_on_the_batch(seed: u64, count in 1..100_u64, batch in 1..40_u64) {
            prop_assert_eq!(all(&mut DataOrder::new(seed, count, batch, 3)), all(&mut DataOrder::new(seed, count, 1, 3)));
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let line = all(&mut DataOrder::new(1, 50, 50, 2));
        assert_ne!(line[..50], line[50..]);
        assert_ne!(line, all(&mut DataOrder::new(2, 50, 50, 2)));
    }
}
