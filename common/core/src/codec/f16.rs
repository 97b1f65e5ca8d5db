//! IEEE half precision: eleven bits of precision, from 2^-24 to 65504 (IEEE 754-2019, binary16; for gradients Micikevicius et al. 2018,
//! "Mixed precision training").
//!
//! Error: the nearest half is off by at most `2^-11 |x|`, or by 2^-25 where `|x|` is below 2^-14. Both are multiples of the last place of
//! the f32, and what is lost is no larger than `x`, so it is kept exactly. From 65520 on, where halves are infinite, values are
//! sent plainly.
//!
//! The loops are plain ones that the compiler makes vectors of: conversion by the processor's own instruction needs `unsafe` or a
//! crate that calls it eight values at a time through a pointer, which is no faster.

use crate::wide::wide;

/// Magnitudes from here on, as bits of an f32, round to infinity: 65520.
pub(super) const TOO_LARGE: u32 = 0x477f_f000;

/// Smallest normal number of half precision, 2^-14.
const NORMAL: u32 = 113 << 23;
/// What the exponents of both formats differ by.
const REBIAS: u32 = 112 << 23;
#[cfg(test)]
const INFINITY: u32 = 0x7f80_0000;

/// Nearest half, ties to even; beyond the range infinity; not a number stays such, quiet, with the upper bits of its payload.
#[cfg(test)]
pub(super) fn from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let half = match magnitude {
        ..TOO_LARGE => return from_small(value),
        TOO_LARGE..=INFINITY => 0x7c00,
        _ => 0x7e00 | ((magnitude >> 13) & 0x3ff),
    };
    ((bits >> 16) & 0x8000 | half) as u16
}

/// Nearest half of a value below [`TOO_LARGE`], ties to even.
#[inline(always)]
fn from_small(value: f32) -> u16 {
    let magnitude = value.to_bits() & 0x7fff_ffff;
    // Carries into the exponent where it rounds up to the next power of two.
    let normal = magnitude.wrapping_sub(REBIAS - 0x0fff).wrapping_add((magnitude >> 13) & 1) << 3;
    // Half an ulp of 0.5 is what subnormal halves are multiples of: the addition rounds to them.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits() << 16;
    // A comparison as signed numbers, which is what old processors have for vectors. The upper half of a word is the easier to take.
    let half = if (magnitude as i32) < NORMAL as i32 { subnormal } else { normal };
    ((half | value.to_bits() & 0x8000_0000) >> 16) as u16
}

/// The value of a half; exact.
#[inline]
pub(super) fn to_f32(half: u16) -> f32 {
    // The sign in all upper bits.
    let bits = i32::from(half as i16) as u32;
    let magnitude = (bits & 0x7fff) << 13;
    // A subnormal half is given an exponent, too, and what that is worth is subtracted again. Of infinity the exponent is moved twice.
    let is_subnormal = if (magnitude as i32) < 1 << 23 { u32::MAX } else { 0 };
    let is_infinite = if magnitude as i32 >= 0x7c00 << 13 { u32::MAX } else { 0 };
    let normal = magnitude + REBIAS + (is_subnormal & 1 << 23) + (is_infinite & REBIAS);
    let value = f32::from_bits(normal) - f32::from_bits(is_subnormal & NORMAL);
    f32::from_bits(value.to_bits() | bits & 0x8000_0000)
}

/// Writes each value, all below [`TOO_LARGE`], as the nearest half.
pub(super) fn encode(values: &[f32], halves: &mut [u16]) {
    wide(|| {
        for (half, value) in halves.iter_mut().zip(values) {
            *half = from_small(*value);
        }
    });
}

/// What is read of each value, all below [`TOO_LARGE`], once it has been written: the same as going by way of halves, in fewer steps.
pub(super) fn round(values: &[f32], rounded: &mut [f32]) {
    wide(|| {
        for (rounded, value) in rounded.iter_mut().zip(values) {
            let magnitude = value.to_bits() & 0x7fff_ffff;
            let normal = (magnitude + 0x0fff + ((magnitude >> 13) & 1)) & !0x1fff;
            let subnormal = (f32::from_bits(magnitude) + 0.5 - 0.5).to_bits();
            let bits = if (magnitude as i32) < NORMAL as i32 { subnormal } else { normal };
            *rounded = f32::from_bits(bits | value.to_bits() & 0x8000_0000);
        }
    });
}

/// Reads each half.
pub(super) fn decode(halves: &[u16], values: &mut [f32]) {
    for (value, half) in values.iter_mut().zip(halves) {
        *value = to_f32(*half);
    }
}
