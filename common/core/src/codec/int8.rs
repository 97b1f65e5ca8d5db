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
const BLOCK_MAX: u32 = 4096;

/// The form for blocks of so many keys, if they can have so many.
pub(super) fn form(block: u32) -> Option<Form> {
    let fits = (BLOCK_MIN..=BLOCK_MAX).contains(&block) && block.is_multiple_of(4);
    fits.then_some(Form::Int8 { block: block as usize })
}

/// The form for about so many keys a block.
pub(super) const fn nearest_form(block: u32) -> Form {
    let block = if block < BLOCK_MIN { BLOCK_MIN } else { block };
    let block = if block > BLOCK_MAX { BLOCK_MAX } else { block };
    Form::Int8 { block: (block / 4 * 4) as usize }
}

pub(super) fn encode(block: usize, values: &[f32], words: &mut [u32]) {
    for (values, words) in values.chunks(block).zip(words.chunks_mut(1 + block / 4)) {
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

pub(super) fn decode(block: usize, words: &[u32], values: &mut [f32]) {
    for (values, words) in values.chunks_mut(block).zip(words.chunks(1 + block / 4)) {
        let step = f32::from_bits(words[0]);
        for (value, code) in values.iter_mut().zip(cast_slice::<u32, i8>(&words[1..])) {
            *value = f32::from(*code) * step;
        }
    }
}

pub(super) fn fault(block: usize, words: &[u32], keys: usize) -> Option<&'static str> {
    let steps = words.iter().step_by(1 + block / 4).map(|bits| f32::from_bits(*bits));
    let is_sound = |step: f32| step.is_sign_positive() && (128.0 * step).is_finite();
    if !steps.into_iter().all(is_sound) {
        return Some("a step is not a small enough number");
    }
    let padding = &cast_slice::<u32, u8>(words)[words.len() * 4 - padding(keys % block)..];
    padding.iter().any(|byte| *byte != 0).then_some("its padding is not zero")
}

/// Bytes after the codes of a last block.
const fn padding(keys: usize) -> usize {
    keys.next_multiple_of(4) - keys
}
