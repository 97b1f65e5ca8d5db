//! f16 and bf16 against references that are slow and plain.

use super::*;

/// The value of a half by the definition of the format.
fn half_value(half: u16) -> f64 {
    let sign = if half >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(half >> 10 & 0x1f), f64::from(half & 0x3ff) / 1024.0);
    match exponent {
        0 => sign * fraction * 2_f64.powi(-14),
        31 if half & 0x3ff == 0 => sign * f64::INFINITY,
        31 => f64::NAN,
        _ => sign * (1.0 + fraction) * 2_f64.powi(exponent - 15),
    }
}

/// The nearest half, found by looking at both neighbours: of halves with rising bits the magnitude rises.
fn nearest_half(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16) as u16 & 0x8000;
    if value.is_nan() {
        return sign | 0x7e00 | (value.to_bits() >> 13 & 0x3ff) as u16;
    }
    let magnitude = f64::from(value.abs());
    // The first half above, where infinity stands for 65536 (the next number if there were one).
    let (mut low, mut high) = (0_u16, 0x7c00);
    while low < high {
        let middle = (low + high) / 2;
        if half_value(middle) > magnitude { high = middle } else { low = middle + 1 }
    }
    let above = if magnitude == f64::INFINITY { return sign | 0x7c00 } else { low };
    let upper = if above == 0x7c00 { 65_536.0 } else { half_value(above) };
    let lower = half_value(above - 1);
    let takes_upper = match (magnitude - lower).total_cmp(&(upper - magnitude)) {
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Greater => true,
        std::cmp::Ordering::Equal => above.is_multiple_of(2),
    };
    sign | if takes_upper { above } else { above - 1 }
}

/// The nearest bf16: by the remainder of the bits.
fn nearest_bf16(value: f32) -> u16 {
    let (upper, lower) = ((value.to_bits() >> 16) as u16, value.to_bits() & 0xffff);
    if value.is_nan() {
        return upper | 0x40;
    }
    let is_up = lower > 0x8000 || lower == 0x8000 && !upper.is_multiple_of(2);
    upper + u16::from(is_up)
}

#[test]
fn every_half_is_read_as_the_format_says_and_written_back() {
    for half in 0..=u16::MAX {
        let value = f16::to_f32(half);
        let wanted = half_value(half);
        assert!(f64::from(value) == wanted || value.is_nan() && wanted.is_nan(), "{half:#x}");
        assert_eq!(value.is_sign_negative(), half >> 15 == 1, "{half:#x}");
        let quiet = if value.is_nan() { half | 0x200 } else { half };
        assert_eq!(f16::from_f32(value), quiet, "{half:#x}");
        let value = bf16::to_f32(half);
        assert_eq!(value.to_bits(), u32::from(half) << 16);
        let quiet = if value.is_nan() { half | 0x40 } else { half };
        assert_eq!(bf16::from_f32(value), quiet, "{half:#x}");
    }
}

/// Numbers with all exponents: random ones, and those at and beside every tie of f16.
fn hard_numbers() -> Vec<f32> {
    let mut random = random::Lanes::new(11, 0);
    let mut numbers = vec![0; 4_000_000];
    random.fill(&mut numbers);
    let ties = (0..0x7c00_u16).flat_map(|half| {
        let middle = ((half_value(half) + half_value(half + 1).min(65_536.0)) / 2.0) as f32;
        [middle, middle.next_up(), middle.next_down(), -middle]
    });
    let edges =
        [0.0, f32::MIN_POSITIVE, f32::MAX, 65_504.0, 65_519.996, 65_520.0, f32::INFINITY, f32::NAN, 1e-45];
    let signed = edges.into_iter().flat_map(|edge| [edge, -edge]);
    numbers.into_iter().map(f32::from_bits).chain(ties).chain(signed).collect()
}

#[test]
fn every_number_becomes_the_nearest_half() {
    let numbers = hard_numbers();
    for &number in &numbers {
        assert_eq!(f16::from_f32(number), nearest_half(number), "{number:e} {:#x}", number.to_bits());
        assert_eq!(bf16::from_f32(number), nearest_bf16(number), "{number:e} {:#x}", number.to_bits());
    }
    // The loops over blocks, which take what is below a limit, are the same.
    let small: Vec<f32> =
        numbers.into_iter().filter(|number| number.to_bits() & 0x7fff_ffff < f16::TOO_LARGE).collect();
    let (mut halves, mut back, mut rounded) =
        (vec![0; small.len()], vec![0.0; small.len()], vec![0.0; small.len()]);
    f16::encode(&small, &mut halves);
    f16::decode(&halves, &mut back);
    f16::round(&small, &mut rounded);
    for (at, number) in small.iter().enumerate() {
        assert_eq!(halves[at], nearest_half(*number), "{number:e}");
        assert_eq!(f64::from(back[at]), half_value(halves[at]), "{number:e}");
        assert_eq!(rounded[at].to_bits(), back[at].to_bits(), "{number:e}");
    }
    bf16::encode(&small, &mut halves);
    bf16::decode(&halves, &mut back);
    for (at, number) in small.iter().enumerate() {
        assert_eq!(halves[at], nearest_bf16(*number), "{number:e}");
        assert_eq!(back[at].to_bits(), u32::from(halves[at]) << 16, "{number:e}");
    }
}

#[test]
fn beyond_the_range_of_a_half_values_are_plain() {
    for (kind, edge, encoding) in [
        (CodecKind::F16, 65_520.0_f32, Encoding::F16),
        (CodecKind::Bf16 { stochastic: false }, f32::from_bits(bf16::TOO_LARGE), Encoding::Bf16),
        (CodecKind::Bf16 { stochastic: true }, f32::from_bits(bf16::TOO_LARGE_AT_RANDOM), Encoding::Bf16),
    ] {
        for (value, expected) in [(edge.next_down(), encoding), (edge, Encoding::F32)] {
            let mut gradient = vec![0.5; 2500];
            gradient[2400] = -value;
            let payload = encoder(kind, false, 2500).encode(&gradient, None, Vec::new());
            assert_eq!(payload.encoding(), expected, "{kind:?} {value:e}");
            assert_eq!(payload.first_not_finite(), None, "{kind:?} {value:e}");
        }
    }
}

#[test]
fn rounding_at_random_has_the_right_mean() {
    // Each value has 2^16 places between its neighbours: an odd spread of them, as many draws each.
    let draws = 100_000;
    let kind = CodecKind::Bf16 { stochastic: true };
    for value in [1.000_3_f32, -1.007_7, 3.3e-39, 1.0, 7e30, f32::from_bits(0x3f80_0001)] {
        let gradient = vec![value; draws];
        let sent = decoded(&encoder(kind, false, draws).encode(&gradient, None, Vec::new()));
        let (lower, upper) =
            (f32::from_bits(value.to_bits() & !0xffff), f32::from_bits((value.to_bits() | 0xffff) + 1));
        assert!(sent.iter().all(|sent| *sent == lower || *sent == upper && value != lower), "{value:e}");
        let share = f64::from(value.to_bits() & 0xffff) / 65_536.0;
        let mean = sent.iter().filter(|sent| **sent == upper).count() as f64 / draws as f64;
        let sigma = (share * (1.0 - share) / draws as f64).sqrt();
        assert!((mean - share).abs() <= 4.0 * sigma, "{value:e}: {mean} of {share}, sigma {sigma}");
    }
}
