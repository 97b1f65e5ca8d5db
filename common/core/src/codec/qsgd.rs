//! A few levels a value: a block of 512 keys shares a step, and a value is a whole multiple of it.
//!
//! ```text
//! head:   bits of a code, u32: 2, 4 or 8
//! block:  step f32 | ceil(keys * bits / 32) words of codes, as signed numbers
//! ```
//! With `W` words, code `k` of word `w` belongs to key `k * W + w` of the block, so that neighbours lie in the same place of
//! neighbouring words.
//!
//! Alistarh et al. 2017, "QSGD: communication-efficient SGD via gradient quantization and encoding", section 3.1: with `s` levels each
//! value is rounded at random to one of the two multiples beside it, so that its mean is right. The step is the block's largest
//! magnitude over `s` (theirs: its norm over `s`; their experiments use the largest, too). With that, the variance of a block of `n`
//! values is at most the sum of `min(d^2 / 4, d |x_i|)` for a step `d <= |x| / s`, so it keeps their bound
//! `min(n / s^2, sqrt(n) / s) |x|^2` (lemma 3.1). Codes have a fixed width, where theirs follow Elias.
//!
//! With error feedback a value goes to the nearest multiple: a bias is made good then, and an error at random may be larger than what
//! it is the error of (`sqrt(n) / s > 1`), of which what is kept would grow without bound (Karimireddy et al. 2019 need
//! `|x - C(x)|^2 <= (1 - delta) |x|^2`). To the nearest it is at most half a step, `delta` is `1 / n` at least since the largest value is
//! met but for rounding, and what is kept is exact (see [`step`]).

use super::blocks::{Form, NEAREST, largest, step};

/// Keys of a block, as in the paper.
pub(super) const BLOCK: usize = 512;

/// Magnitudes from here on, as bits of an f32, are not taken: 2^126. A multiple of a step could be infinite.
pub(super) const TOO_LARGE: u32 = 253 << 23;

/// The form of payloads whose first word is this one.
pub(super) fn form(bits: u32) -> Option<Form> {
    [2, 4, 8].contains(&bits).then_some(Form::Qsgd { bits })
}

/// Bits of a code for so many levels above zero.
pub(super) const fn bits(levels: u32) -> u32 {
    match levels {
        0 | 1 => 2,
        2..=7 => 4,
        _ => 8,
    }
}

/// Writes the nearest multiples.
pub(super) fn encode(levels: u32, values: &[f32], words: &mut [u32]) {
    write(levels, values, words, |_, _, quotient| (quotient + NEAREST).to_bits());
}

/// Writes a multiple beside each value, the upper one with the probability that makes the mean right: up to 2^-24 of a step.
/// There is a random number a value.
pub(super) fn encode_at_random(levels: u32, values: &[f32], random: &[u32], words: &mut [u32]) {
    let most = levels as f32;
    write(levels, values, words, |random_at, key, quotient| {
        let nearest = quotient + NEAREST - NEAREST;
        let beside = quotient - nearest;
        let draw = (random[random_at + key] >> 8) as i32 as f32 * (1.0 / 16_777_216.0);
        let other = nearest + if draw < beside.abs() { 1.0_f32.copysign(beside) } else { 0.0 };
        // The quotient of the largest may lie above the levels by its own rounding.
        (other.max(-most).min(most) + NEAREST).to_bits()
    });
}

/// Writes the codes that `code` gives for the place of a block, the key in it and the value over the step.
fn write(levels: u32, values: &[f32], words: &mut [u32], code: impl Fn(usize, usize, f32) -> u32) {
    let bits = bits(levels);
    let stride = Form::Qsgd { bits }.words(BLOCK);
    for (index, (values, words)) in values.chunks(BLOCK).zip(words.chunks_mut(stride)).enumerate() {
        let step = step(largest(values), levels);
        words[0] = step.to_bits();
        let codes = &mut words[1..];
        codes.fill(0);
        let (width, mask) = (codes.len(), (1 << bits) - 1);
        for (place, values) in values.chunks(width).enumerate() {
            for (at, (word, value)) in codes.iter_mut().zip(values).enumerate() {
                *word |=
                    (code(index * BLOCK, place * width + at, value / step) & mask) << (place as u32 * bits);
            }
        }
    }
}

pub(super) fn decode(bits: u32, words: &[u32], values: &mut [f32]) {
    let stride = Form::Qsgd { bits }.words(BLOCK);
    for (values, words) in values.chunks_mut(BLOCK).zip(words.chunks(stride)) {
        let (step, codes) = (f32::from_bits(words[0]), &words[1..]);
        for (place, values) in values.chunks_mut(codes.len()).enumerate() {
            let above = 32 - bits - place as u32 * bits;
            for (value, word) in values.iter_mut().zip(codes) {
                *value = (((word << above) as i32) >> (32 - bits)) as f32 * step;
            }
        }
    }
}

pub(super) fn fault(bits: u32, words: &[u32], keys: usize) -> Option<&'static str> {
    let lowest = (1_u32 << (bits - 1)) as f32;
    let mut left = keys;
    for words in words.chunks(Form::Qsgd { bits }.words(BLOCK)) {
        let step = f32::from_bits(words[0]);
        if step.is_sign_negative() || !(lowest * step).is_finite() {
            return Some("a step is not a small enough number");
        }
        let (codes, keys) = (&words[1..], left.min(BLOCK));
        let is_beyond = |(place, word): (usize, &u32)| {
            // Codes of this word that belong to keys.
            let held = keys.saturating_sub(place).div_ceil(codes.len()) as u32;
            u64::from(*word) >> (held * bits) != 0
        };
        if keys < BLOCK && codes.iter().enumerate().any(is_beyond) {
            return Some("its padding is not zero");
        }
        left -= keys;
    }
    None
}
