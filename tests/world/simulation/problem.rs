//! What is trained: something small whose gradients depend on every value, so that a wrong value anywhere shows everywhere.

use slackline_core::aggregate::weighted_mean;
use slackline_core::layout::Layout;

/// Something with gradients.
pub(crate) trait Problem {
    /// The tensors.
    fn layout(&self) -> &Layout;

    /// The values that every worker would bring.
    fn initial(&self) -> Vec<f32>;

    /// The mean gradient of some samples, and their mean loss.
    fn gradient(&mut self, values: &[f32], samples: &[u32]) -> (Vec<f32>, f64);
}

/// A bowl for each sample: `sum of curvature_k / 2 * (w_k - x_ik)^2`, with a ripple that ties each value to its neighbour.
#[derive(Clone, Debug)]
pub(crate) struct Bowls {
    layout: Layout,
}

impl Bowls {
    pub(crate) fn new(keys: u64) -> Self {
        let mut layout = Layout::new();
        let first = keys / 3;
        layout.parameter("bowls.weight", &[first], true);
        layout.parameter("bowls.bias", &[keys - first], false);
        Self { layout }
    }

    fn of_sample(&self, values: &[f32], sample: u32) -> Vec<f32> {
        let count = values.len();
        let slope = |(key, value): (usize, &f32)| {
            let curvature = 0.2 + 0.1 * (key % 5) as f32;
            let bottom = ((key * 7 + sample as usize * 13) % 31) as f32 / 31.0 - 0.5;
            let neighbour = values[(key + count / 2 + 1) % count];
            curvature * (value - bottom) + 0.05 * neighbour * (1.0 - value * value)
        };
        values.iter().enumerate().map(slope).collect()
    }
}

impl Problem for Bowls {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn initial(&self) -> Vec<f32> {
        (0..self.layout.len()).map(|key| ((key * 11) % 17) as f32 / 17.0 - 0.4).collect()
    }

    fn gradient(&mut self, values: &[f32], samples: &[u32]) -> (Vec<f32>, f64) {
        // The tree over the samples is the one in which a server adds pushes: see `slackline_core::aggregate`.
        let mut parts: Vec<Vec<f32>> = samples.iter().map(|sample| self.of_sample(values, *sample)).collect();
        weighted_mean(&mut parts, &vec![1; samples.len()]);
        let loss = values.iter().map(|value| f64::from(value * value)).sum::<f64>();
        (parts.into_iter().next().unwrap_or_default(), loss)
    }
}
