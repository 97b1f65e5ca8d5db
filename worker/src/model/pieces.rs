//! The gradient of one batch, computed in pieces that are added in a fixed tree.
//!
//! A server adds the gradients of several workers with [`slackline_core::aggregate::weighted_mean`]: each
//! scaled by its share of the samples, then neighbours added, then neighbours of those sums. Here one worker
//! does the same over pieces of its own batch. So one worker of batch P * m in pieces of m, and P workers of
//! batch m each, go through the same float operations; with sizes that are powers of two the results are
//! equal bit for bit. A small piece also bounds the memory for activations.

use std::ops::Range;

use slackline_core::aggregate::{add, scale};

use super::{Examples, Incoming, Model, Ready};

/// Computes gradients in pieces; owns the memory for the partial sums, one flat gradient for each level of
/// the tree.
#[derive(Debug)]
pub struct PairwiseGradient {
    microbatch: usize,
    parameter_count: usize,
    levels: Vec<Vec<f32>>,
}

impl PairwiseGradient {
    /// Pieces of `microbatch` samples (at least one; the last piece of a batch may be shorter) of a model
    /// with `parameter_count` values. The memory is for batches of up to `largest_batch` samples; larger ones
    /// work as well, the first of that size allocates.
    #[must_use]
    pub fn new(microbatch: usize, parameter_count: usize, largest_batch: usize) -> Self {
        let mut pieces = Self { microbatch: microbatch.max(1), parameter_count, levels: Vec::new() };
        pieces.make_room(largest_batch);
        pieces
    }

    /// Whether a batch of so many samples is computed as one piece.
    #[must_use]
    pub const fn is_one_piece(&self, samples: usize) -> bool {
        samples <= self.microbatch
    }

    fn make_room(&mut self, samples: usize) {
        // While piece n is computed, the partial sums that wait are the one bits of n.
        let last_piece = samples.div_ceil(self.microbatch).saturating_sub(1);
        let levels = (usize::BITS - last_piece.leading_zeros()) as usize;
        while self.levels.len() < levels {
            self.levels.push(vec![0.0; self.parameter_count]);
        }
    }

    /// As [`Model::gradient`], in pieces. A batch of one piece is computed exactly as without this.
    ///
    /// # Panics
    ///
    /// As [`Model::gradient`], or when `model` is not of the size given to [`Self::new`].
    pub fn gradient(
        &mut self,
        model: &mut dyn Model,
        values: &[f32],
        examples: Examples<'_>,
        gradient: &mut [f32],
    ) -> f32 {
        self.gradient_of(model, &mut { values }, examples, gradient, &mut |_, _| ())
    }

    /// As [`Model::gradient_of`], in pieces: a part is ready when the last piece's is there and the sums of all pieces are made.
    ///
    /// # Panics
    ///
    /// As [`Self::gradient`].
    pub fn gradient_of(
        &mut self,
        model: &mut dyn Model,
        values: &mut dyn Incoming,
        examples: Examples<'_>,
        gradient: &mut [f32],
        ready: &mut Ready<'_>,
    ) -> f32 {
        assert_eq!(gradient.len(), self.parameter_count, "the model is of the size announced");
        let total = examples.samples();
        if self.is_one_piece(total) {
            return model.gradient_of(values, examples, gradient, ready);
        }
        self.make_room(total);
        let last = total.div_ceil(self.microbatch) - 1;
        let mut loss = 0.0;
        for (index, piece) in examples.pieces(self.microbatch).enumerate() {
            let share = piece.samples() as f64 / total as f64;
            // Counting pieces in binary: each trailing one bit of the index is a finished subtree of the same
            // size just to the left. After the last piece, all subtrees that still wait are further left and
            // larger.
            let finished = if index == last { self.levels.len() } else { index.trailing_ones() as usize };
            let levels = &self.levels;
            // Value by value it is the same whether a tensor is added at a time or everything at once.
            let add_up = |gradient: &mut [f32], keys: Range<usize>| {
                let sum = &mut gradient[keys.clone()];
                scale(sum, share as f32);
                for level in (0..finished).filter(|level| index >> level & 1 == 1) {
                    // Addition of two floats commutes, so it does not matter which side is added to which.
                    add(sum, &levels[level][keys.clone()]);
                }
            };
            let of_piece = model.gradient_of(values, piece, gradient, &mut |gradient, keys| {
                add_up(gradient, keys.clone());
                if index == last {
                    ready(gradient, keys);
                }
            });
            loss += share * f64::from(of_piece);
            if index < last {
                self.levels[finished].copy_from_slice(gradient);
            }
        }
        loss as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::build;
    use slackline_core::aggregate::weighted_mean;
    use slackline_core::model::ModelSpec;

    fn inputs(samples: usize) -> (Vec<f32>, Vec<u32>) {
        (
            (0..samples * 12).map(|i| (i as f32 * 0.91).sin()).collect(),
            (0..samples as u32).map(|i| i * 7 % 5).collect(),
        )
    }

    /// The gradient in pieces, and the server's mean of the gradients of workers that hold one piece each.
    fn both(samples: usize, microbatch: usize) -> (Vec<f32>, Vec<f32>) {
        let mut model = build(&ModelSpec::Mlp { widths: vec![20] }, 12, 5, microbatch);
        let size = model.layout().len() as usize;
        let mut values = vec![0.0; size];
        model.initialize(5, &mut values);
        let (inputs, labels) = inputs(samples);
        let examples = Examples::new(&inputs, &labels, 12);
        let mut whole = vec![f32::NAN; size];
        PairwiseGradient::new(microbatch, size, samples).gradient(
            model.as_mut(),
            &values,
            examples,
            &mut whole,
        );
        let mut counts = Vec::new();
        let mut parts: Vec<Vec<f32>> = examples
            .pieces(microbatch)
            .map(|piece| {
                counts.push(piece.samples() as u32);
                let mut gradient = vec![0.0; size];
                model.gradient(&values, piece, &mut gradient);
                gradient
            })
            .collect();
        weighted_mean(&mut parts, &counts);
        (whole, parts.swap_remove(0))
    }

    #[test]
    fn a_batch_in_pieces_has_the_bits_of_workers_with_one_piece_each() {
        for pieces in 1..=17 {
            let (whole, server) = both(pieces * 8, 8);
            assert_eq!(whole, server, "{pieces} pieces");
        }
        for (samples, microbatch) in [(13, 4), (9, 8), (3, 16), (1, 1), (7, 1)] {
            let (whole, server) = both(samples, microbatch);
            assert_eq!(whole, server, "{samples} samples in pieces of {microbatch}");
        }
    }

    #[test]
    fn what_is_ready_early_has_the_bits_of_the_end() {
        let mut model = build(&ModelSpec::Mlp { widths: vec![20, 9] }, 12, 5, 8);
        let size = model.layout().len() as usize;
        let mut values = vec![0.0; size];
        model.initialize(5, &mut values);
        for samples in [0, 3, 8, 13, 24, 40, 56, 64] {
            let (inputs, labels) = inputs(samples);
            let examples = Examples::new(&inputs, &labels, 12);
            let mut pieces = PairwiseGradient::new(8, size, 64);
            let (mut whole, mut told, mut gradient) =
                (vec![f32::NAN; size], vec![f32::NAN; size], vec![f32::NAN; size]);
            let loss = pieces.gradient(model.as_mut(), &values, examples, &mut whole);
            let mut keys_left = size;
            let mut ready = |gradient: &mut [f32], keys: Range<usize>| {
                keys_left -= keys.len();
                told[keys.clone()].copy_from_slice(&gradient[keys]);
            };
            let again = pieces.gradient_of(
                model.as_mut(),
                &mut values.as_slice(),
                examples,
                &mut gradient,
                &mut ready,
            );
            assert_eq!((again.to_bits(), keys_left), (loss.to_bits(), 0), "{samples} samples");
            assert_eq!(told, whole);
            assert_eq!(gradient, whole);
        }
    }

    #[test]
    fn two_workers_with_two_pieces_each_have_the_bits_of_one_worker_with_four() {
        let mut model = build(&ModelSpec::Softmax, 12, 5, 8);
        let size = model.layout().len() as usize;
        let mut values = vec![0.0; size];
        model.initialize(5, &mut values);
        let (inputs, labels) = inputs(32);
        let examples = Examples::new(&inputs, &labels, 12);
        let mut pieces = PairwiseGradient::new(8, size, 32);
        let mut whole = vec![0.0; size];
        let loss = pieces.gradient(model.as_mut(), &values, examples, &mut whole);
        let mut losses = 0.0;
        let mut halves: Vec<Vec<f32>> = examples
            .pieces(16)
            .map(|half| {
                let mut gradient = vec![0.0; size];
                losses += pieces.gradient(model.as_mut(), &values, half, &mut gradient) / 2.0;
                gradient
            })
            .collect();
        weighted_mean(&mut halves, &[16, 16]);
        assert_eq!(halves[0], whole);
        assert!((losses - loss).abs() < 1e-6);
    }
}
