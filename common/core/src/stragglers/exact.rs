//! Logarithm and exponential from additions and multiplications only.
//!
//! Those of the system's library differ in their last bits between versions and processors, and one bit of a drawn time can put two
//! events in another order. These give the same bits on every machine; they are right to a few units of the last place.

/// ln 2 in two parts: the first has so few bits that a product with any exponent is exact.
const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// Powers of the series of the logarithm; the first that is left out is below a quarter of the last place.
const LOG_TERMS: i32 = 12;

/// Powers of the series of the exponential, likewise.
const EXP_TERMS: i32 = 15;

/// Beyond this the exponential is cut off: it is far outside of what any time can be.
const EXP_MAX: f64 = 700.0;

/// Natural logarithm of a normal, positive number. Anything else gives nonsense, never a panic.
pub(crate) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), and the fraction is below 0.172.
    let fraction = (mantissa - 1.0) / (mantissa + 1.0);
    let square = fraction * fraction;
    let mut series = 0.0;
    for term in (0..LOG_TERMS).rev() {
        series = series * square + 1.0 / f64::from(2 * term + 1);
    }
    let exponent = f64::from(exponent);
    exponent * LN_2_HIGH + (2.0 * fraction * series + exponent * LN_2_LOW)
}

/// The exponential, cut off beyond `exp(+-700)`.
pub(crate) fn exp(x: f64) -> f64 {
    let x = x.clamp(-EXP_MAX, EXP_MAX);
    let doublings = (x * std::f64::consts::LOG2_E).round();
    let rest = (x - doublings * LN_2_HIGH) - doublings * LN_2_LOW;
    let mut series = 1.0;
    for term in (1..=EXP_TERMS).rev() {
        series = 1.0 + series * rest / f64::from(term);
    }
    // Within the cut the exponent is that of a normal number.
    series * f64::from_bits(((1023 + doublings as i64) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(ours: f64, theirs: f64) -> bool {
        (ours - theirs).abs() <= 4.0 * f64::EPSILON * theirs.abs().max(f64::MIN_POSITIVE)
    }

    proptest! {
        #[test]
        fn they_are_those_of_the_library(mantissa in 1.0..2.0_f64, exponent in -200..200_i32, x in -690.0..690.0_f64) {
            let number = mantissa * 2.0_f64.powi(exponent);
            prop_assert!(close(ln(number), number.ln()), "ln {} is {} not {}", number, ln(number), number.ln());
            prop_assert!(close(exp(x), x.exp()), "exp {} is {} not {}", x, exp(x), x.exp());
        }
    }

    #[test]
    fn the_corners_are_right() {
        assert_eq!([ln(1.0), exp(0.0)], [0.0, 1.0]);
        assert!(close(ln(2.0_f64.powi(-53)), -53.0 * std::f64::consts::LN_2));
        assert!(close(ln(1.0 - f64::EPSILON / 2.0), -f64::EPSILON / 2.0));
        assert!(exp(f64::INFINITY).is_finite() && exp(f64::NEG_INFINITY) > 0.0);
    }
}
