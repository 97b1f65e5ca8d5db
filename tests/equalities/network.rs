//! A real problem for the simulated world: a network of the worker's own kind, on the digits that come with it.

use slackline_core::layout::Layout;
use slackline_core::model::{DatasetSpec, ModelSpec};
use slackline_worker::dataset::{DataSettings, Dataset, load};
use slackline_worker::model::pieces::PairwiseGradient;
use slackline_worker::model::{Batch, Model, build};

use crate::simulation::Problem;

/// Samples of the largest batch of these tests.
const LARGEST: usize = 64;

/// A network with one hidden layer on the first samples of the digits.
pub(crate) struct Digits {
    dataset: Dataset,
    model: Box<dyn Model>,
    layout: Layout,
    pieces: PairwiseGradient,
}

impl Digits {
    /// Gradients are computed in pieces of `microbatch` samples.
    pub(crate) fn new(microbatch: usize) -> Self {
        let settings = DataSettings { spec: DatasetSpec::Digits, dir: None, limit: None };
        let dataset = load(&settings).unwrap();
        let spec = ModelSpec::Mlp { widths: vec![32] };
        let model = build(&spec, dataset.input_count, dataset.class_count, LARGEST);
        let layout = model.layout().clone();
        let pieces = PairwiseGradient::new(microbatch, layout.len() as usize, LARGEST);
        Self { dataset, model, layout, pieces }
    }
}

impl Problem for Digits {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn initial(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.layout.len() as usize];
        self.model.initialize(3, &mut values);
        values
    }

    fn gradient(&mut self, values: &[f32], samples: &[u32]) -> (Vec<f32>, f64) {
        let mut batch = Batch::with_capacity(samples.len(), self.dataset.input_count as usize);
        for (inputs, label) in samples.iter().filter_map(|sample| self.dataset.train_sample(*sample)) {
            batch.push(inputs, label);
        }
        let mut gradient = vec![0.0; values.len()];
        let loss = self.pieces.gradient(self.model.as_mut(), values, batch.examples(), &mut gradient);
        (gradient, f64::from(loss))
    }
}
