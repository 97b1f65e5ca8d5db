//! The shapes of the built-in models and datasets, so that a server knows the layout before any worker arrives.

use crate::layout::Layout;

/// A model named in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSpec {
    /// Softmax regression: one linear layer and cross-entropy.
    Softmax,
    /// Multi-layer perceptron with rectified hidden layers of these widths.
    Mlp {
        /// Width of each hidden layer, input side first.
        widths: Vec<u64>,
    },
}

impl ModelSpec {
    /// The widths of all layers: inputs, hidden ones, classes.
    #[must_use]
    pub fn layer_widths(&self, input_count: u64, class_count: u64) -> Vec<u64> {
        let hidden: &[u64] = match self {
            Self::Softmax => &[],
            Self::Mlp { widths } => widths,
        };
        [&[input_count][..], hidden, &[class_count][..]].concat()
    }

    /// The flat layout: for each layer `layerI.weight` of shape (inputs, outputs), then `layerI.bias` of shape
    /// (outputs). Biases leave weight decay out.
    #[must_use]
    pub fn layout(&self, input_count: u64, class_count: u64) -> Layout {
        let mut layout = Layout::new();
        for (index, pair) in self.layer_widths(input_count, class_count).windows(2).enumerate() {
            layout.parameter(format!("layer{index}.weight"), &[pair[0], pair[1]], true);
            layout.parameter(format!("layer{index}.bias"), &[pair[1]], false);
        }
        layout
    }

    /// Short name for people: `softmax` or `mlp-256-128`.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Softmax => "softmax".to_owned(),
            Self::Mlp { widths } => {
                widths.iter().fold("mlp".to_owned(), |name, width| format!("{name}-{width}"))
            }
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
}

impl DatasetSpec {
    /// Values of one example.
    #[must_use]
    pub const fn input_count(self) -> u64 {
        match self {
            Self::Digits => 64,
            Self::FashionMnist => 784,
        }
    }

    /// Classes of the label.
    #[must_use]
    pub const fn class_count(self) -> u64 {
        10
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
}
