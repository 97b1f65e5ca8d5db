//! The gradient of one batch, its pieces computed side by side on several threads.
//!
//! Each piece has a model and a gradient of its own; they are added by [`slackline_core::aggregate::weighted_mean`] in the order of the
//! pieces, so the number of threads changes no bit. It costs one flat gradient for each piece.

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use slackline_core::aggregate::weighted_mean;

use super::{Examples, Model, Ready};

/// What one piece is computed with.
struct Lane {
    model: Box<dyn Model>,
    gradient: Vec<f32>,
    loss: f64,
    samples: u32,
}

/// Computes pieces side by side.
pub struct ParallelGradient {
    pool: ThreadPool,
    microbatch: usize,
    lanes: Vec<Lane>,
    build: Box<dyn Fn() -> Box<dyn Model> + Send>,
}

impl std::fmt::Debug for ParallelGradient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParallelGradient").field("microbatch", &self.microbatch).finish_non_exhaustive()
    }
}

impl ParallelGradient {
    /// `threads` threads for pieces of `microbatch` samples, each with a model that `build` makes.
    ///
    /// # Errors
    /// The system gives no threads.
    pub fn new(
        threads: usize,
        microbatch: usize,
        build: impl Fn() -> Box<dyn Model> + Send + 'static,
    ) -> Result<Self, ThreadPoolBuildError> {
        let name = |index| format!("gradient {index}");
        let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build()?;
        Ok(Self { pool, microbatch: microbatch.max(1), lanes: Vec::new(), build: Box::new(build) })
    }

    /// As [`Model::gradient_with`], in pieces; all is ready at once, at the end.
    ///
    /// # Panics
    /// As [`Model::gradient`].
    pub fn gradient_with(
        &mut self,
        values: &[f32],
        examples: Examples<'_>,
        gradient: &mut [f32],
        ready: &mut Ready<'_>,
    ) -> f32 {
        let loss = self.gradient(values, examples, gradient);
        ready(gradient, 0..gradient.len());
        loss
    }

    /// As [`Model::gradient`], in pieces.
    ///
    /// # Panics
    /// As [`Model::gradient`].
    pub fn gradient(&mut self, values: &[f32], examples: Examples<'_>, gradient: &mut [f32]) -> f32 {
        let pieces: Vec<Examples<'_>> = examples.pieces(self.microbatch).collect();
        while self.lanes.len() < pieces.len() {
            let gradient = vec![0.0; gradient.len()];
            self.lanes.push(Lane { model: (self.build)(), gradient, loss: 0.0, samples: 0 });
        }
        let lanes = &mut self.lanes[..pieces.len()];
        self.pool.install(|| {
            lanes.par_iter_mut().zip(&pieces).for_each(|(lane, piece)| {
                lane.loss = f64::from(lane.model.gradient(values, *piece, &mut lane.gradient));
                lane.samples = piece.samples() as u32;
            });
        });
        let samples: Vec<u32> = lanes.iter().map(|lane| lane.samples).collect();
        let loss: f64 = lanes.iter().map(|lane| lane.loss * f64::from(lane.samples)).sum();
        let mut parts: Vec<&mut [f32]> = lanes.iter_mut().map(|lane| lane.gradient.as_mut_slice()).collect();
        weighted_mean(&mut parts, &samples);
        match parts.first() {
            Some(mean) => gradient.copy_from_slice(mean),
            None => gradient.fill(0.0),
        }
        (loss / examples.samples().max(1) as f64) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::build;
    use crate::model::pieces::PairwiseGradient;
    use slackline_core::model::ModelSpec;

    #[test]
    fn threads_change_no_bit() {
        let make = || build(&ModelSpec::Mlp { widths: vec![20] }, 12, 5, 8);
        let mut model = make();
        let size = model.layout().len() as usize;
        let mut values = vec![0.0; size];
        model.initialize(5, &mut values);
        for samples in [0, 1, 8, 16, 29, 64] {
            let inputs: Vec<f32> = (0..samples * 12).map(|i| (i as f32 * 0.91).sin()).collect();
            let labels: Vec<u32> = (0..samples as u32).map(|i| i * 7 % 5).collect();
            let examples = Examples::new(&inputs, &labels, 12);
            let mut alone = vec![f32::NAN; size];
            PairwiseGradient::new(8, size, 64).gradient(model.as_mut(), &values, examples, &mut alone);
            for threads in [1, 2, 3] {
                let mut together = vec![f32::NAN; size];
                let mut parallel = ParallelGradient::new(threads, 8, make).unwrap();
                parallel.gradient(&values, examples, &mut together);
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert!(bits(&alone) == bits(&together), "{samples} samples, {threads} threads");
            }
        }
    }
}
