//! Values at random places that both sides draw from one seed, so that no index is sent.
//!
//! ```text
//! seed u64 | k values f32
//! ```
//! Stich et al. 2018, "Sparsified SGD with memory"; Konecny et al. 2016 (random mask). The keys are divided into `k` strata, each as long
//! as the others but for one key, and one key of each is sent: the same chance for each key as with any `k` of them, in rising order,
//! and in as many steps as there are places.
//!
//! Error: with error feedback what is not sent is kept as it is, so `sent + kept` is the sum, exactly, and the mean of `|x - C(x)|^2` is
//! `(1 - k/n) |x|^2` where `k` divides `n`; else `1/n'` takes the place of `k/n` for the longest stratum `n' = ceil(n/k)`, at worst.
//! Without, each value is multiplied by the length of its stratum, so that its mean is right (Wangni et al. 2018).

use super::random::{LANES, Lanes};
use super::sparse::Cursor;

/// Words before the values.
pub(super) const HEAD: usize = 2;

/// The places of `count` values among `keys`, rising.
#[derive(Clone, Debug)]
pub(super) struct Strata {
    random: Lanes,
    drawn: [u32; LANES],
    /// Strata that were drawn from.
    done: usize,
    count: usize,
    /// Keys of a stratum at least, and what is left when all have so many.
    len: usize,
    rest: usize,
    /// Where the next begins, and what had gathered of the rest by then.
    begin: usize,
    gathered: usize,
}

impl Strata {
    /// There are at least as many keys as places.
    pub(super) fn new(seed: u64, count: usize, keys: usize) -> Self {
        let (len, rest) = (keys.checked_div(count).unwrap_or(0), keys.checked_rem(count).unwrap_or(0));
        Self {
            random: Lanes::new(seed, 0),
            drawn: [0; LANES],
            done: 0,
            count,
            len,
            rest,
            begin: 0,
            gathered: 0,
        }
    }

    /// The next place, with the length of its stratum.
    pub(super) fn draw(&mut self) -> Option<(u32, u32)> {
        if self.done == self.count {
            return None;
        }
        if self.done.is_multiple_of(LANES) {
            self.random.step(&mut self.drawn);
        }
        let random = self.drawn[self.done % LANES];
        self.done += 1;
        self.gathered += self.rest;
        let is_longer = self.gathered >= self.count;
        self.gathered -= if is_longer { self.count } else { 0 };
        let len = self.len + usize::from(is_longer);
        let place = self.begin + ((u64::from(random) * len as u64) >> 32) as usize;
        self.begin += len;
        Some((place as u32, len as u32))
    }
}

impl Iterator for Strata {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.draw().map(|(place, _)| place)
    }
}

/// What is wrong with a foreign payload.
pub(super) fn fault(words: &[u32], keys: usize) -> Option<&'static str> {
    let is_right = words.len().checked_sub(HEAD).is_some_and(|count| count <= keys);
    // Draws have 32 bits.
    (!is_right || keys > u32::MAX as usize).then_some("it has more values than keys")
}

/// Writes the values of `sum` at drawn places; false, and nothing written, where plain values would not be longer. They are multiplied
/// by the length of their stratum where that `is_scaled`.
pub(super) fn write(seed: u64, count: usize, sum: &[f32], is_scaled: bool, words: &mut Vec<f32>) -> bool {
    if HEAD + count >= sum.len() {
        return false;
    }
    words.clear();
    words.extend([seed as u32, (seed >> 32) as u32].map(f32::from_bits));
    let mut strata = Strata::new(seed, count, sum.len());
    while let Some((place, len)) = strata.draw() {
        let value = sum[place as usize];
        words.push(if is_scaled { value * len as f32 } else { value });
    }
    true
}

/// Reads a payload.
pub(super) fn cursor(words: &[u32], keys: usize) -> Cursor<'_> {
    let seed = words.first_chunk().map_or(0, |[low, high]| u64::from(*low) | u64::from(*high) << 32);
    let values = words.get(HEAD..).unwrap_or_default();
    Cursor::drawn(Strata::new(seed, values.len(), keys), values)
}

/// Forgets what was sent: the places that a seed gives are set to zero.
pub(super) fn forget(seed: u64, count: usize, kept: &mut [f32]) {
    for place in Strata::new(seed, count, kept.len()) {
        kept[place as usize] = 0.0;
    }
}
