//! Figures that were measured several times.

use serde_json::{Value, json};

/// The middle, the least and the greatest of some figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Half lie below.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// One in a hundred lies above.
    pub p99: f64,
}

impl Spread {
    /// The spread of `figures`; none without any.
    #[must_use]
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (below, above) = ((sorted.len() - 1) / 2, sorted.len() / 2);
        let p99 = sorted[(sorted.len() * 99).div_ceil(100) - 1];
        Some(Self { median: f64::midpoint(sorted[below], sorted[above]), min, max, p99 })
    }

    /// All of it, times a factor.
    pub(crate) const fn times(self, factor: f64) -> Self {
        let Self { median, min, max, p99 } = self;
        Self { median: median * factor, min: min * factor, max: max * factor, p99: p99 * factor }
    }

    pub(crate) fn show(this: Option<Self>, decimals: usize) -> String {
        let show = |Self { median, min, max, .. }| {
            format!("{median:.decimals$} [{min:.decimals$}..{max:.decimals$}]")
        };
        this.map_or_else(|| "-".to_owned(), show)
    }

    pub(crate) fn json(this: Option<Self>) -> Value {
        this.map_or(
            Value::Null,
            |Self { median, min, max, p99 }| json!({"median": median, "min": min, "max": max, "p99": p99}),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_lies_between_the_middle_ones() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([3.0]), Some(Spread { median: 3.0, min: 3.0, max: 3.0, p99: 3.0 }));
        let four = Spread { median: 3.0, min: 1.0, max: 9.0, p99: 9.0 };
        assert_eq!(Spread::of([9.0, 1.0, 2.0, 4.0]), Some(four));
    }

    #[test]
    fn one_in_a_hundred_lies_above_the_99th_percentile() {
        let p99 = |count: u32| Spread::of((1..=count).map(f64::from)).unwrap().p99;
        assert_eq!((p99(99), p99(100), p99(200), p99(1000)), (99.0, 99.0, 198.0, 990.0));
    }
}
