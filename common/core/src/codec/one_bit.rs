//! One bit a value: its sign, which stands for the mean of the block's values of that sign.
//!
//! ```text
//! block:  means u32: of the others in the lower half, of those with a sign bit in the upper, both bf16 | ceil(keys / 32) words of signs
//! ```
//! With `W` words, bit `k` of word `w` belongs to key `k * W + w` of the block, so that neighbours lie in the same bit of neighbouring
//! words.
//!
//! Seide et al. 2014, "1-bit stochastic gradient descent and its application to data-parallel distributed training of speech DNNs",
//! equations 2 to 4, with blocks of 256 keys in the place of columns. (With larger ones the largest values have less weight in the means,
//! and what is kept of them grows further before it is sent.)
//!
//! Error: `|x - C(x)|^2 = |x|^2 - n+ m+^2 - n- m-^2 <= (1 - delta) |x|^2` for a block of `n` values with means `m+` of `n+` values and `m-`
//! of `n-`, where `delta = |x|_1^2 / (n |x|^2)`, since `n+ m+^2 + n- m-^2 >= (n+ m+ - n- m-)^2 / n` (Cauchy-Schwarz). So it contracts, in
//! every block by `1/n` at least. That the means are rounded to eight bits takes `2^-18` of `delta` away.
//!
//! What is kept is the f32 nearest to the sum less what is sent. It is not exact: of a value much smaller than the mean, the lower
//! bits lie below the last place of that difference. What is rounded off is at most half of that place, 2^-24 of what is kept, once an
//! encoding; the sum of gradient and kept is rounded in the same way before. No single f32 can be nearer, and no pair of them can be
//! exact for good, since the bits of a sum of small and large values spread over any width.

use super::bf16;

/// Keys of a block.
pub(super) const BLOCK: usize = 256;
const WORDS: usize = BLOCK / 32;

/// Magnitudes from here on, as bits of an f32, are not taken: 2^116. Sums of a block must be finite.
pub(super) const TOO_LARGE: u32 = 243 << 23;

pub(super) fn encode(values: &[f32], words: &mut [u32]) {
    for (values, words) in values.chunks(BLOCK).zip(words.chunks_mut(1 + WORDS)) {
        let (means, signs) = words.split_at_mut(1);
        match (values.as_array(), signs.as_mut_array()) {
            (Some(values), Some(signs)) => *signs = signs_of(values),
            _ => write_signs(values, signs),
        }
        let negative: u32 = signs.iter().map(|word| word.count_ones()).sum();
        let (above, below) = sums(values);
        let mean = |sum: f32, count: u32| u32::from(bf16::from_number(sum / count.max(1) as f32));
        means[0] = mean(above, values.len() as u32 - negative) | mean(below, negative) << 16;
    }
}

/// The signs of a whole block, of whose length the compiler makes vectors that stay in registers.
fn signs_of(values: &[f32; BLOCK]) -> [u32; WORDS] {
    let mut signs = [0; WORDS];
    for (bit, values) in values.as_chunks::<WORDS>().0.iter().enumerate() {
        for (word, value) in signs.iter_mut().zip(values) {
            *word |= value.to_bits() >> 31 << bit;
        }
    }
    signs
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
    let (mut above, mut below) = ([0.0_f32; 8], [0.0_f32; 8]);
    let (chunks, rest) = values.as_chunks::<8>();
    for chunk in chunks {
        for (lane, value) in chunk.iter().enumerate() {
            above[lane] += if *value > 0.0 { *value } else { 0.0 };
            below[lane] += if *value < 0.0 { *value } else { 0.0 };
        }
    }
    for (lane, value) in rest.iter().enumerate() {
        above[lane] += value.max(0.0);
        below[lane] += value.min(0.0);
    }
    (above.iter().sum(), below.iter().sum())
}

pub(super) fn decode(words: &[u32], values: &mut [f32]) {
    for (values, words) in values.chunks_mut(BLOCK).zip(words.chunks(1 + WORDS)) {
        let (above, below) = (words[0] << 16, words[0] & 0xffff_0000);
        let signs = &words[1..];
        for (bit, values) in values.chunks_mut(signs.len()).enumerate() {
            for (value, word) in values.iter_mut().zip(signs) {
                *value = f32::from_bits(if word & 1 << bit == 0 { above } else { below });
            }
        }
    }
}

pub(super) fn fault(words: &[u32], keys: usize) -> Option<&'static str> {
    let mut left = keys;
    for words in words.chunks(1 + WORDS) {
        if [words[0] << 16, words[0]].iter().any(|mean| mean & 0x7f80_0000 == 0x7f80_0000) {
            return Some("a mean is not finite");
        }
        let (signs, keys) = (&words[1..], left.min(BLOCK));
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
