//! Random numbers by place: each (seed, stream, place) has its own, so that nothing depends on the order in which they are asked for.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

use super::exact::{exp, ln};
use crate::schedule::random_stream;

/// 32-bit words of the stream between two places: four blocks, which is what the generator makes at once. Nothing here takes more.
const PLACE_WORDS: u128 = 64;

/// Random numbers of one place, one after another, with the same bits on every machine.
#[derive(Clone, Debug)]
pub struct Draws(ChaCha8Rng);

impl Draws {
    /// The numbers of `place` in one of the independent streams of `seed`.
    #[must_use]
    pub fn at(seed: u64, stream: u64, place: u64) -> Self {
        let mut random = random_stream(seed, stream);
        random.set_word_pos(u128::from(place) * PLACE_WORDS);
        Self(random)
    }

    /// Uniform in `[0, 1)`, a multiple of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (0.5 / (1_u64 << 52) as f64)
    }

    /// Exponential with mean one.
    pub fn exponential(&mut self) -> f64 {
        // One minus a number below one is never zero; adding zero takes the sign from minus zero.
        -ln(1.0 - self.uniform()) + 0.0
    }

    /// Standard normal, by the polar method (Marsaglia and Bray 1964): a point in the unit disc gives two, of which one is used.
    pub fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * (-2.0 * ln(square) / square).sqrt();
            }
        }
    }

    /// Lognormal with mean one, where `sigma` is the standard deviation of the logarithm.
    pub fn lognormal(&mut self, sigma: f64) -> f64 {
        exp(sigma * self.normal() - sigma * sigma / 2.0)
    }

    /// Pareto with mean one and tail index `alpha` (above one): the least value is `(alpha - 1) / alpha`.
    pub fn pareto(&mut self, alpha: f64) -> f64 {
        (alpha - 1.0) / alpha * exp(self.exponential() / alpha)
    }
}
