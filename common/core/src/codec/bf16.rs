//! The upper half of an f32: eight bits of precision, the whole range.

/// Magnitudes from here on, as bits of an f32, round to infinity.
pub(super) const TOO_LARGE: u32 = 0x7f7f_8000;

const INFINITY: u32 = 0x7f80_0000;

/// Nearest, ties to even; beyond the range infinity; not a number stays such, quiet, with the upper bits of its payload.
#[must_use]
pub fn from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    // A comparison as signed numbers, which is what old processors have for vectors.
    let is_nan = (bits & 0x7fff_ffff) as i32 > INFINITY as i32;
    (if is_nan { quiet } else { rounded }) as u16
}

/// The value; exact.
#[must_use]
pub fn to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// Writes each value as its upper half.
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
