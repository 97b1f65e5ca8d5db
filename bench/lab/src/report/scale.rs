//! The scale of an axis: linear, logarithmic, or places with names; one type, so that every chart is drawn by the same code.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use crate::judge::short;

/// A scale.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scale {
    Linear {
        low: f64,
        high: f64,
    },
    /// Both ends above zero.
    Log {
        low: f64,
        high: f64,
    },
    /// One place for each name, at 0, 1, 2, ...
    Places(Vec<String>),
    /// The same from the top down.
    Rows(Vec<String>),
}

impl Scale {
    /// A linear scale around these values, from zero where they come near it.
    pub(crate) fn linear(values: impl IntoIterator<Item = f64>) -> Self {
        let Some((low, high)) = ends(values) else { return Self::Linear { low: 0.0, high: 1.0 } };
        let span = if high > low { high - low } else { high.abs().max(1.0) };
        let low_end = if low >= 0.0 && low < 1.5 * span { 0.0 } else { low - 0.05 * span };
        Self::Linear { low: low_end, high: high + 0.05 * span }
    }

    /// A scale around these values: logarithmic where they are positive and far apart.
    pub(crate) fn around(values: impl IntoIterator<Item = f64> + Clone) -> Self {
        const FAR: f64 = 30.0;
        match ends(values.clone()) {
            Some((low, high)) if low > 0.0 && high / low > FAR => {
                Self::Log { low: low / 1.3, high: high * 1.3 }
            }
            _ => Self::linear(values),
        }
    }

    /// Where a value lies between the ends, from 0 to 1 and a little beyond.
    fn share(&self, value: f64) -> f64 {
        match self {
            Self::Linear { low, high } => (value - low) / (high - low),
            Self::Log { low, high } => (value.max(low * 1e-3) / low).ln() / (high / low).ln(),
            Self::Places(names) => (value + 0.5) / names.len().max(1) as f64,
            Self::Rows(names) => 1.0 - (value + 0.5) / names.len().max(1) as f64,
        }
    }

    /// The marks on the axis, at most about so many.
    fn marks(&self, most: usize) -> Vec<f64> {
        match self {
            Self::Linear { low, high } => {
                let step = round_step((high - low) / most.clamp(2, 7) as f64);
                let first = (low / step).ceil() as i64;
                let marks = (first..first + 16).map(|number| number as f64 * step);
                marks.take_while(|mark| *mark <= *high).collect()
            }
            Self::Log { low, high } => {
                let decades = (high / low).log10();
                let within: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
                let stride = (decades / 8.0).ceil().max(1.0) as usize;
                let powers = (low.log10().floor() as i32..=high.log10().ceil() as i32).step_by(stride);
                let marks = powers.flat_map(|power| within.iter().map(move |part| part * 10_f64.powi(power)));
                marks.filter(|mark| low <= mark && mark <= high).collect()
            }
            Self::Places(names) | Self::Rows(names) => (0..names.len()).map(|place| place as f64).collect(),
        }
    }
}

/// The least and the greatest finite value.
pub(crate) fn ends(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().filter(|value| value.is_finite()).fold(None, |ends, value| match ends {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

/// The next of 1, 2, 5, 10, 20, ... from `least` on.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.max(1e-300).log10().floor());
    let part = least / power;
    let round = [1.0, 2.0, 5.0].into_iter().find(|round| part <= round * 1.000_001).unwrap_or(10.0);
    round * power
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        // A curve that leaves the chart leaves it by little, or the picture would hold absurd numbers.
        let share = self.share(*value).clamp(-0.05, 1.05);
        from + (f64::from(to - from) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        self.marks(hint.bold_points())
    }

    fn range(&self) -> Range<f64> {
        match self {
            Self::Linear { low, high } | Self::Log { low, high } => *low..*high,
            Self::Places(names) | Self::Rows(names) => -0.5..names.len() as f64 - 0.5,
        }
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, value: &f64) -> String {
        match self {
            Self::Places(names) | Self::Rows(names) => {
                names.get(value.round().max(0.0) as usize).cloned().unwrap_or_default()
            }
            _ => with_prefix(*value),
        }
    }
}

/// A number with k, M or G where it is large.
pub(crate) fn with_prefix(value: f64) -> String {
    let size = value.abs();
    for (unit, letter) in [(1e9, "G"), (1e6, "M"), (1e4, "k")] {
        if size >= unit {
            let unit = if letter == "k" { 1e3 } else { unit };
            return format!("{}{letter}", short(value / unit));
        }
    }
    // Sums of steps leave dust in the last digits.
    short((value * 1e9).round() / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_numbers_within_the_ends() {
        assert_eq!(Scale::Linear { low: 0.0, high: 10.4 }.marks(5), [0.0, 5.0, 10.0]);
        assert_eq!(
            Scale::Linear { low: -0.3, high: 0.9 }.marks(6),
            [-0.2, 0.0, 0.2, 0.4, 0.6000000000000001, 0.8]
        );
        let marks = Scale::Log { low: 0.8, high: 130.0 }.marks(5);
        assert_eq!(marks, [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(Scale::Places(vec!["a".to_owned(), "b".to_owned()]).marks(5), [0.0, 1.0]);
    }

    #[test]
    fn far_apart_values_get_a_logarithmic_scale() {
        assert!(matches!(Scale::around([1.0, 1000.0]), Scale::Log { .. }));
        assert!(matches!(Scale::around([0.0, 1000.0]), Scale::Linear { .. }));
        assert_eq!(Scale::around([5.0]), Scale::Linear { low: 0.0, high: 5.25 });
        assert_eq!(Scale::around([]), Scale::Linear { low: 0.0, high: 1.0 });
    }

    #[test]
    fn large_numbers_are_short() {
        assert_eq!(with_prefix(12_500.0), "12.5k");
        assert_eq!(with_prefix(2_500_000.0), "2.5M");
        assert_eq!(with_prefix(1_000.0), "1000");
        assert_eq!(with_prefix(0.1 + 0.2), "0.3");
    }
}
