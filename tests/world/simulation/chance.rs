//! All chance of a world comes from one seed through here.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A stream of random choices.
#[derive(Clone, Debug)]
pub(crate) struct Chance(ChaCha8Rng);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number in `[low, high]`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high.max(low))
    }

    /// A duration in `[low, high]` microseconds, drawn to the nanosecond so that ties are rare.
    pub(crate) fn micros(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_nanos(self.between(low * 1000, high * 1000))
    }

    /// Whether something of this many thousandths happens.
    pub(crate) fn happens(&mut self, thousandths: u64) -> bool {
        thousandths > 0 && self.between(0, 999) < thousandths
    }

    /// One of some.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let last = from.len().checked_sub(1)?;
        from.get(self.between(0, last as u64) as usize).copied()
    }
}
