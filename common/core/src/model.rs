//! The shapes of the built-in models and datasets, so that a server knows the layout before any worker arrives.

use crate::layout::Layout;
use crate::stragglers::exact::{exp, ln};

/// A model named in the configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelSpec {
    /// Softmax regression: one linear layer and cross-entropy.
    Softmax,
    /// Multi-layer perceptron with rectified hidden layers of these widths.
    Mlp {
        /// Width of each hidden layer, input side first.
        widths: Vec<u64>,
    },
    /// A noisy quadratic bowl, of which everything is known: `f(w) = 1/2 sum_k lambda_k w_k^2` with
    /// [eigenvalues](quadratic_eigenvalue) from 1 down to `1 / condition`, one for each input. A sample z adds
    /// `noise * sqrt(lambda_k) * z_k` to the gradient. Its dataset is [`DatasetSpec::Noise`].
    Quadratic {
        /// Ratio of the largest eigenvalue to the smallest, at least 1.
        condition: f64,
        /// Standard deviation of the gradient noise of one sample where the eigenvalue is 1.
        noise: f64,
    },
}

/// Eigenvalue `index` of the `count` of a quadratic: evenly spaced in the logarithm from 1 to `1 / condition`.
#[must_use]
pub fn quadratic_eigenvalue(condition: f64, index: u64, count: u64) -> f64 {
    match count.saturating_sub(1) {
        0 => 1.0,
        last => exp(-(index as f64 / last as f64) * ln(condition)),
    }
}

impl ModelSpec {
    /// The widths of all layers: inputs, hidden ones, classes. A quadratic has no layer, only its values.
    #[must_use]
    pub fn layer_widths(&self, input_count: u64, class_count: u64) -> Vec<u64> {
        let hidden: &[u64] = match self {
            Self::Quadratic { .. } => return vec![input_count],
            Self::Softmax => &[],
            Self::Mlp { widths } => widths,
        };
        [&[input_count][..], hidden, &[class_count][..]].concat()
    }

    /// The flat layout: for each layer `layerI.weight` of shape (inputs, outputs), then `layerI.bias` of shape
    /// (outputs). Biases leave weight decay out. A quadratic has one tensor, `point`, of one value for each input.
    #[must_use]
    pub fn layout(&self, input_count: u64, class_count: u64) -> Layout {
        let mut layout = Layout::new();
        if let Self::Quadratic { .. } = self {
            layout.parameter("point", &[input_count], true);
        }
        for (index, pair) in self.layer_widths(input_count, class_count).windows(2).enumerate() {
            layout.parameter(format!("layer{index}.weight"), &[pair[0], pair[1]], true);
            layout.parameter(format!("layer{index}.bias"), &[pair[1]], false);
        }
        layout
    }

    /// Short name for people: `softmax`, `mlp-256-128` or, with its condition, `quadratic-100`.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Softmax => "softmax".to_owned(),
            Self::Mlp { widths } => {
                widths.iter().fold("mlp".to_owned(), |name, width| format!("{name}-{width}"))
            }
            Self::Quadratic { condition, .. } => format!("quadratic-{condition}"),
        }
    }
}

/// A dataset named in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetSpec {
    /// UCI optical digits, bundled: 1,797 images of 8 x 8, ten classes.
    Digits,
    /// Fashion-MNIST: 60,000 + 10,000 images of 28 x 28, ten classes.
    FashionMnist,
    /// Standard normal numbers, the noise of [`ModelSpec::Quadratic`]: the same for every run. The held-out part is one sample of
    /// zeros, so that the loss there has no noise.
    Noise {
        /// Values of one sample.
        dimensions: u64,
        /// Training samples.
        samples: u64,
    },
}

impl DatasetSpec {
    /// Values of one example.
    #[must_use]
    pub const fn input_count(self) -> u64 {
        match self {
            Self::Digits => 64,
            Self::FashionMnist => 784,
            Self::Noise { dimensions, .. } => dimensions,
        }
    }

    /// Classes of the label; noise has one.
    #[must_use]
    pub const fn class_count(self) -> u64 {
        match self {
            Self::Digits | Self::FashionMnist => 10,
            Self::Noise { .. } => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mlp_of_the_records_has_its_known_size() {
        let mlp = ModelSpec::Mlp { widths: vec![512, 256] };
        assert_eq!(mlp.layout(784, 10).len(), 535_818);
        assert_eq!(ModelSpec::Softmax.layout(784, 10).len(), 7_850);
    }

    #[test]
    fn the_quadratic_has_one_value_an_input_and_eigenvalues_down_to_one_over_its_condition() {
        let quadratic = ModelSpec::Quadratic { condition: 100.0, noise: 0.5 };
        let layout = quadratic.layout(10, 1);
        let paths: Vec<&str> = layout.tensors().iter().map(|tensor| tensor.path.as_str()).collect();
        assert_eq!((paths, layout.len()), (vec!["point"], 10));
        assert_eq!(quadratic.name(), "quadratic-100");
        let eigenvalues: Vec<f64> = (0..3).map(|index| quadratic_eigenvalue(100.0, index, 3)).collect();
        assert!(eigenvalues.iter().zip([1.0, 0.1, 0.01]).all(|(left, right)| (left - right).abs() < 1e-15));
        assert_eq!([quadratic_eigenvalue(100.0, 0, 1), quadratic_eigenvalue(100.0, 0, 0)], [1.0; 2]);
    }
}
