//! The upper half of an f32: eight bits of precision, the whole range (Kalamkar et al. 2019, "A study of BFLOAT16 for deep learning
//! training").
//!
//! Error: to the nearest at most `2^-9 |x|`, or 2^-134 where `|x|` is below 2^-126. At random (Gupta et al. 2015, "Deep learning with
//! limited numerical precision") less than twice that, and the mean is `x`, exactly: of the sixteen bits that are cut off the upper
//! neighbour gets as many in 2^16. What is lost is a multiple of the last place of the f32 and no larger than it, so it is kept
//! exactly. Where rounding would be infinite, values are sent plainly.

/// Magnitudes from here on, as bits of an f32, round to infinity.
pub(super) const TOO_LARGE: u32 = 0x7f7f_8000;

/// The same where the upper one is taken at random.
pub(super) const TOO_LARGE_AT_RANDOM: u32 = 0x7f7f_0001;

/// Nearest, ties to even; beyond the range infinity; not a number stays such, quiet, with the upper bits of its payload.
#[cfg(test)]
pub(super) fn from_f32(value: f32) -> u16 {
    let is_nan = value.is_nan();
    if is_nan { (value.to_bits() >> 16) as u16 | 0x40 } else { from_number(value) }
}

/// Nearest of a number, ties to even; beyond the range infinity.
#[inline]
pub(super) fn from_number(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// The value; exact.
pub(super) fn to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// Writes each number as the nearest half.
pub(super) fn encode(values: &[f32], halves: &mut [u16]) {
    for (half, value) in halves.iter_mut().zip(values) {
        *half = from_number(*value);
    }
}

/// Writes each value as one of the two beside it, the upper one with the probability that makes the mean right. There is a random
/// number a value.
pub(super) fn encode_at_random(values: &[f32], random: &[u32], halves: &mut [u16]) {
    for ((half, value), random) in halves.iter_mut().zip(values).zip(random) {
        // Of the sixteen bits that are cut off, as many numbers lie below them as the value lies above the lower one.
        *half = ((value.to_bits() + (random >> 16)) >> 16) as u16;
    }
}

/// Reads each half.
pub(super) fn decode(halves: &[u16], values: &mut [f32]) {
    for (value, half) in values.iter_mut().zip(halves) {
        *value = to_f32(*half);
    }
}
