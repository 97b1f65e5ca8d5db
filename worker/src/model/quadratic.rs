//! The noisy quadratic: a model whose minimum, curvature and gradient noise are known, for questions about optimizers and staleness.
//!
//! ```text
//! loss of sample z at w    1/2 sum_k lambda_k w_k^2  +  noise sum_k sqrt(lambda_k) z_k w_k
//! its gradient             lambda_k w_k  +  noise sqrt(lambda_k) z_k
//! ```
//!
//! The samples are standard normal ([`DatasetSpec::Noise`](slackline_core::model::DatasetSpec::Noise)), so that the loss without noise
//! is the mean over all of them, and the gradient noise of a batch of n is `noise sqrt(lambda_k / n)`.

use slackline_core::layout::Layout;
use slackline_core::model::{ModelSpec, quadratic_eigenvalue};

use super::{Evaluation, Examples, Incoming, Model, Ready};

/// Where the values begin, in every direction.
const START: f32 = 1.0;

/// The model; see the head of this file.
pub(crate) struct Quadratic {
    layout: Layout,
    eigenvalues: Vec<f64>,
    /// `noise * sqrt(lambda_k)`.
    noise: Vec<f64>,
    /// The mean of a batch's samples.
    mean: Vec<f64>,
}

impl Quadratic {
    pub(crate) fn new(condition: f64, noise: f64, input_count: u64) -> Self {
        let eigenvalues: Vec<f64> =
            (0..input_count).map(|index| quadratic_eigenvalue(condition, index, input_count)).collect();
        Self {
            layout: ModelSpec::Quadratic { condition, noise }.layout(input_count, 1),
            noise: eigenvalues.iter().map(|eigenvalue| noise * eigenvalue.sqrt()).collect(),
            mean: vec![0.0; eigenvalues.len()],
            eigenvalues,
        }
    }

    fn check(&self, values: &[f32], examples: Examples<'_>) {
        assert_eq!(values.len(), self.eigenvalues.len(), "as many values as the layout has");
        assert_eq!(examples.input_count(), self.eigenvalues.len(), "the examples are for this model");
    }

    /// Half the sum of `lambda_k w_k^2`.
    fn bowl(&self, values: &[f32]) -> f64 {
        let terms = self.eigenvalues.iter().zip(values);
        terms.map(|(eigenvalue, value)| eigenvalue * f64::from(*value) * f64::from(*value)).sum::<f64>() / 2.0
    }
}

impl Model for Quadratic {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    /// One in every direction, whatever the seed.
    fn initialize(&self, _seed: u64, values: &mut [f32]) {
        assert_eq!(values.len(), self.eigenvalues.len(), "as many values as the layout has");
        values.fill(START);
    }

    fn gradient_of(
        &mut self,
        values: &mut dyn Incoming,
        examples: Examples<'_>,
        gradient: &mut [f32],
        ready: &mut Ready<'_>,
    ) -> f32 {
        let values = values.until(0..gradient.len());
        self.check(values, examples);
        assert_eq!(gradient.len(), values.len(), "as many gradients as values");
        let samples = examples.samples();
        if samples == 0 {
            gradient.fill(0.0);
            ready(gradient, 0..gradient.len());
            return 0.0;
        }
        self.mean.fill(0.0);
        for sample in examples.inputs().chunks_exact(values.len().max(1)) {
            for (sum, value) in self.mean.iter_mut().zip(sample) {
                *sum += f64::from(*value);
            }
        }
        let mut tilt = 0.0;
        for (key, (value, slope)) in values.iter().zip(gradient.iter_mut()).enumerate() {
            let noise = self.noise[key] * self.mean[key] / samples as f64;
            *slope = (self.eigenvalues[key] * f64::from(*value) + noise) as f32;
            tilt += noise * f64::from(*value);
        }
        ready(gradient, 0..gradient.len());
        (self.bowl(values) + tilt) as f32
    }

    /// Nothing is classified, so nothing is correct.
    fn evaluate(&mut self, values: &[f32], examples: Examples<'_>) -> Evaluation {
        self.check(values, examples);
        let mut loss_sum = self.bowl(values) * examples.samples() as f64;
        for sample in examples.inputs().chunks_exact(values.len().max(1)) {
            for (key, (value, noise)) in values.iter().zip(sample).enumerate() {
                loss_sum += self.noise[key] * f64::from(*noise) * f64::from(*value);
            }
        }
        Evaluation { loss_sum, correct: 0, samples: examples.samples() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(dimensions: usize, count: usize) -> (Vec<f32>, Vec<u32>) {
        ((0..dimensions * count).map(|index| (index as f32 * 1.3).sin()).collect(), vec![0; count])
    }

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let mut model = Quadratic::new(100.0, 0.3, 7);
        let (inputs, labels) = samples(7, 5);
        let examples = Examples::new(&inputs, &labels, 7);
        let values: Vec<f32> = (0..7).map(|key| (key as f32 - 3.0) / 4.0).collect();
        let mut gradient = vec![f32::NAN; 7];
        let loss = f64::from(model.gradient(&values, examples, &mut gradient));
        assert!((loss - model.evaluate(&values, examples).loss()).abs() < 1e-6);
        for key in 0..7 {
            // The steps are exact in f32, and a central difference of a quadratic has no error of its own.
            let mut at = |step: f32| {
                let mut moved = values.clone();
                moved[key] += step;
                model.evaluate(&moved, examples).loss()
            };
            let slope = (at(0.125) - at(-0.125)) / 0.25;
            assert!((slope - f64::from(gradient[key])).abs() < 1e-7, "{key}: {slope} {}", gradient[key]);
        }
    }

    #[test]
    fn a_sample_of_zeros_shows_the_loss_without_noise() {
        let mut model = Quadratic::new(4.0, 10.0, 3);
        let mut values = vec![0.0; 3];
        model.initialize(9, &mut values);
        assert_eq!(values, [1.0; 3]);
        let zeros = [0.0; 3];
        let evaluation = model.evaluate(&values, Examples::new(&zeros, &[0], 3));
        assert!((evaluation.loss() - (1.0 + 0.5 + 0.25) / 2.0).abs() < 1e-15);
        assert_eq!((evaluation.accuracy(), evaluation.samples), (0.0, 1));
        let mut gradient = [f32::NAN; 3];
        model.gradient(&values, Examples::new(&zeros, &[0], 3), &mut gradient);
        assert_eq!(gradient, [1.0, 0.5, 0.25]);
    }

    #[test]
    fn one_direction_has_the_eigenvalue_one_and_noise_adds_its_mean() {
        let mut model = Quadratic::new(50.0, 2.0, 1);
        let mut gradient = [0.0];
        let loss = model.gradient(&[3.0], Examples::new(&[1.0, 2.0], &[0, 0], 1), &mut gradient);
        assert_eq!((loss, gradient), (4.5 + 2.0 * 1.5 * 3.0, [3.0 + 2.0 * 1.5]));
        let nothing = Examples::new(&[], &[], 1);
        assert_eq!((model.gradient(&[3.0], nothing, &mut gradient), gradient), (0.0, [0.0]));
        assert_eq!(model.evaluate(&[3.0], nothing), Evaluation::default());
    }

    #[test]
    fn values_that_are_not_finite_show_in_the_loss() {
        let mut model = Quadratic::new(2.0, 1.0, 2);
        let zeros = [0.0; 2];
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(!model.evaluate(&[1.0, bad], Examples::new(&zeros, &[0], 2)).loss().is_finite());
        }
    }
}
