//! One bit a value: its sign, which stands for the mean of the block's values of that sign.
//!
//! ```text
//! block:  mean of the others f32 | mean of those with a sign bit f32 | ceil(keys / 32) words of sign bits
//! ```
//! Bit `k` of word `w` of `W` belongs to key `k * W + w` of the block, so that neighbours lie in the same bit of neighbouring words.
//!
//! Seide et al. 2014, "1-bit stochastic gradient descent and its application to data-parallel distributed training of speech DNNs",
//! equations 2 to 4, with blocks of 1024 keys in the place of columns.
//!
//! Error: `|x - C(x)|^2 = |x|^2 - n+ m+^2 - n- m-^2 <= (1 - |x|_1^2 / (n |x|^2)) |x|^2` for a block of `n` values with means `m+` of
//! `n+` values and `m-` of `n-`, since `n+ m+^2 + n- m-^2 >= (n+ m+ - n- m-)^2 / n` (Cauchy-Schwarz). So it contracts, in every block
//! by `1/n` at least.
//!
//! What is kept is the f32 nearest to the sum less what is sent. It is not exact: of a value much smaller than the mean, the lower
//! bits lie below the last place of that difference. What is rounded off is at most half of that place, 2^-24 of what is kept, once an
//! encode; the sum of gradient and kept is rounded in the same way before. No single f32 can be nearer, and no pair of them can be
//! exact for good, since the bits of a sum of small and large values spread over any width.

/// Keys of a block.
pub(super) const BLOCK: usize = 1024;

/// Magnitudes from here on, as bits of an f32, are not taken: 2^116. Sums of a block must be finite.
pub(super) const TOO_LARGE: u32 = 243 << 23;

const LANES: usize = 8;

pub(super) fn encode(values: &[f32], words: &mut [u32]) {
    for (values, words) in values.chunks(BLOCK).zip(words.chunks_mut(2 + BLOCK / 32)) {
        let (means, signs) = words.split_at_mut(2);
        write_signs(values, signs);
        let (above, below) = sums(values);
        let negative: u32 = signs.iter().map(|word| word.count_ones()).sum();
        means[0] = (above / (values.len() as u32 - negative).max(1) as f32).to_bits();
        means[1] = (below / negative.max(1) as f32).to_bits();
    }
}

fn write_signs(values: &[f32], signs: &mut [u32]) {
    signs.fill(0);
    for (bit, values) in values.chunks(signs.len()).enumerate() {
        for (word, value) in signs.iter_mut().zip(values) {
            *word |= value.to_bits() >> 31 << bit;
        }
    }
}

/// Sums of the values above and below zero, in an order that suits vectors.
fn sums(values: &[f32]) -> (f32, f32) {
    let (mut above, mut below) = ([0.0; LANES], [0.0; LANES]);
    let mut chunks = values.chunks_exact(LANES);
    for chunk in &mut chunks {
        for lane in 0..LANES {
            above[lane] += if chunk[lane] > 0.0 { chunk[lane] } else { 0.0 };
            below[lane] += if chunk[lane] < 0.0 { chunk[lane] } else { 0.0 };
        }
    }
    for (lane, value) in chunks.remainder().iter().enumerate() {
        above[lane] += value.max(0.0);
        below[lane] += value.min(0.0);
    }
    (above.iter().sum(), below.iter().sum())
}

pub(super) fn decode(words: &[u32], values: &mut [f32]) {
    for (values, words) in values.chunks_mut(BLOCK).zip(words.chunks(2 + BLOCK / 32)) {
        let (above, below, signs) = (words[0], words[1], &words[2..]);
        for (bit, values) in values.chunks_mut(signs.len()).enumerate() {
            for (value, word) in values.iter_mut().zip(signs) {
                *value = f32::from_bits(if word & 1 << bit == 0 { above } else { below });
            }
        }
    }
}

pub(super) fn fault(words: &[u32], keys: usize) -> Option<&'static str> {
    let mut left = keys;
    for words in words.chunks(2 + BLOCK / 32) {
        if words[..2].iter().any(|mean| !f32::from_bits(*mean).is_finite()) {
            return Some("a mean is not finite");
        }
        let (signs, keys) = (&words[2..], left.min(BLOCK));
        let is_beyond = |(place, word): (usize, &u32)| {
            // Bits of this word that belong to keys.
            let bits = keys.saturating_sub(place).div_ceil(signs.len());
            u64::from(*word) >> bits != 0
        };
        if keys < BLOCK && signs.iter().enumerate().any(is_beyond) {
            return Some("its padding is not zero");
        }
        left -= keys;
    }
    None
}
