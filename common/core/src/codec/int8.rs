//! One byte a value: a block of keys shares a step, and a value is the nearest multiple of it from -127 to 127.
//!
//! ```text
//! head:   keys of a block, u32
//! block:  step f32 | a signed byte a key, padded to whole words
//! ```
//!
//! Error: at most half a step, where the step is the block's largest magnitude over 127, rounded up to 16 significant bits (2^-126 at
//! least). These few bits make what is lost an f32, so that nothing of it is lost ([`step`]); they cost at most 2^-15 of precision,
//! where steps that are powers of two would cost up to half. Linear quantisation a block: Dettmers 2016, "8-bit approximations for
//! parallelism in deep learning", here with one linear range a block.

use bytemuck::{cast_slice, cast_slice_mut};

use super::blocks::{Form, NEAREST, largest, step};

/// Magnitudes from here on, as bits of an f32, are not taken: 2^127. A multiple of a step could be infinite.
pub(super) const TOO_LARGE: u32 = 0x7f00_0000;

const LEVELS: u32 = 127;

/// Keys of a block: fewer waste bytes on steps, more lose precision and the cache.
const BLOCK_MIN: u32 = 16;
const BLOCK_MAX: u32 = 1 << 16;

/// The form for blocks of so many keys, if they can have so many.
pub(super) fn form(block: u32) -> Option<Form> {
    (BLOCK_MIN..=BLOCK_MAX).contains(&block).then_some(Form::Int8 { block: block as usize })
}

/// The form for blocks of so many keys, or the nearest that they can have.
pub(super) fn nearest_form(block: u32) -> Form {
    Form::Int8 { block: block.clamp(BLOCK_MIN, BLOCK_MAX) as usize }
}

/// Words of a block of so many keys.
pub(super) const fn words(keys: usize) -> usize {
    1 + keys.div_ceil(4)
}

pub(super) fn encode(block: usize, values: &[f32], all: &mut [u32]) {
    for (values, words) in values.chunks(block).zip(all.chunks_mut(words(block))) {
        let step = step(largest(values), LEVELS);
        words[0] = step.to_bits();
        let (codes, padding) = cast_slice_mut::<u32, i8>(&mut words[1..]).split_at_mut(values.len());
        // A true division: the nearest multiple must not be missed by the error of a reciprocal.
        for (code, value) in codes.iter_mut().zip(values) {
            *code = (value / step + NEAREST).to_bits() as i8;
        }
        padding.fill(0);
    }
}

pub(super) fn decode(block: usize, all: &[u32], values: &mut [f32]) {
    for (values, words) in values.chunks_mut(block).zip(all.chunks(words(block))) {
        let step = f32::from_bits(words[0]);
        for (value, code) in values.iter_mut().zip(cast_slice::<u32, i8>(&words[1..])) {
            *value = f32::from(*code) * step;
        }
    }
}

pub(super) fn fault(block: usize, all: &[u32], keys: usize) -> Option<&'static str> {
    let mut left = keys;
    for words in all.chunks(words(block)) {
        let step = f32::from_bits(words[0]);
        if step.is_sign_negative() || !(128.0 * step).is_finite() {
            return Some("a step is not a small enough number");
        }
        let codes = left.min(block);
        if cast_slice::<u32, u8>(&words[1..])[codes..].iter().any(|byte| *byte != 0) {
            return Some("its padding is not zero");
        }
        left -= codes;
    }
    None
}
