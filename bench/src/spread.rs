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
}

impl Spread {
    /// The spread of `figures`; none without any.
    #[must_use]
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (below, above) = ((sorted.len() - 1) / 2, sorted.len() / 2);
        Some(Self { median: f64::midpoint(sorted[below], sorted[above]), min, max })
    }

    /// All of it, times a factor.
    pub(crate) const fn times(self, factor: f64) -> Self {
        Self { median: self.median * factor, min: self.min * factor, max: self.max * factor }
    }

    pub(crate) fn show(this: Option<Self>, decimals: usize) -> String {
        let show =
            |Self { median, min, max }| format!("{median:.decimals$} [{min:.decimals$}..{max:.decimals$}]");
        this.map_or_else(|| "-".to_owned(), show)
    }

    pub(crate) fn json(this: Option<Self>) -> Value {
        this.map_or(
            Value::Null,
            |Self { median, min, max }| json!({"median": median, "min": min, "max": max}),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_lies_between_the_middle_ones() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([3.0]), Some(Spread { median: 3.0, min: 3.0, max: 3.0 }));
        assert_eq!(Spread::of([9.0, 1.0, 2.0, 4.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
    }
}
