//! IEEE half precision: eleven bits of precision, from 2^-24 to 65504.

/// Magnitudes from here on, as bits of an f32, round to infinity: 65520.
pub(super) const TOO_LARGE: u32 = 0x477f_f000;

/// Smallest normal number of half precision, 2^-14.
const NORMAL: u32 = 113 << 23;
/// What the exponents of both formats differ by.
const REBIAS: u32 = 112 << 23;
const INFINITY: u32 = 0x7f80_0000;

/// Nearest half, ties to even; beyond the range infinity; not a number stays such, quiet, with the upper bits of its payload.
#[must_use]
pub fn from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let (sign, magnitude) = ((bits >> 16) & 0x8000, bits & 0x7fff_ffff);
    // Carries into the exponent where it rounds up to the next power of two, and to infinity at the end.
    let rounded = magnitude + 0x0fff + ((magnitude >> 13) & 1);
    let normal = rounded.wrapping_sub(REBIAS) >> 13;
    // Half an ulp of 0.5 is what subnormal halves are multiples of: the addition rounds to them.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let quiet = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    // Comparisons as signed numbers, which is what old processors have for vectors.
    let half = if (magnitude as i32) < NORMAL as i32 { subnormal } else { normal };
    let half = if magnitude as i32 >= TOO_LARGE as i32 { 0x7c00 } else { half };
    let half = if magnitude as i32 > INFINITY as i32 { quiet } else { half };
    (half | sign) as u16
}

/// The value of a half; exact.
#[must_use]
pub fn to_f32(half: u16) -> f32 {
    let half = u32::from(half);
    let (sign, magnitude) = ((half & 0x8000) << 16, (half & 0x7fff) << 13);
    let normal = magnitude + REBIAS;
    let infinite = magnitude + 2 * REBIAS;
    let subnormal = (f32::from_bits(magnitude + NORMAL) - f32::from_bits(NORMAL)).to_bits();
    let bits = if (magnitude as i32) < 1 << 23 { subnormal } else { normal };
    let bits = if magnitude as i32 >= 0x7c00 << 13 { infinite } else { bits };
    f32::from_bits(bits | sign)
}

/// Writes each value as a half.
pub(super) fn encode(values: &[f32], halves: &mut [u16]) {
    for (half, value) in halves.iter_mut().zip(values) {
        *half = from_f32(*value);
    }
}

/// Reads each half.
pub(super) fn decode(halves: &[u16], values: &mut [f32]) {
    for (value, half) in values.iter_mut().zip(halves) {
        *value = to_f32(*half);
    }
}
