//! The models a worker trains: what it computes on, what it answers, and the built-in kinds.
//!
//! A model sees one flat slice of values, cut by its [`Layout`], and nothing of shards, clocks or the
//! network. Read in this order: this file, `quadratic.rs` (a problem of which all is known), `dense.rs` (the
//! network), `loss.rs`, `product.rs` (the only unsafe code), [`pieces`] (one batch in several pieces, with the same bits as several workers).

mod dense;
mod loss;
pub mod parallel;
pub mod pieces;
mod product;
mod quadratic;

use std::ops::Range;

use slackline_core::codec::Factors;
use slackline_core::layout::Layout;
use slackline_core::model::ModelSpec;

/// Something that can be trained: a function from values and examples to a loss and its gradient.
pub trait Model: Send {
    /// Which tensor of the model lies where in the flat slice of values.
    fn layout(&self) -> &Layout;

    /// Fills `values` (as long as the layout) with the initial values for `seed`, the same on every machine.
    fn initialize(&self, seed: u64, values: &mut [f32]);

    /// The mean loss over `examples` at `values`; overwrites `gradient` with the gradient of that mean. No
    /// examples give a loss and a gradient of zero. Values that are not finite show up in the loss, never as
    /// a panic.
    ///
    /// # Panics
    ///
    /// When a slice is not as long as the layout, or `examples` are not of this model's input count: faults
    /// of the program, not of its input.
    fn gradient(&mut self, values: &[f32], examples: Examples<'_>, gradient: &mut [f32]) -> f32 {
        self.gradient_with(values, examples, gradient, &mut |_, _| ())
    }

    /// As [`Self::gradient`], and tells of each part of the gradient as soon as the model is done with it, while the rest is still
    /// being computed: `ready` gets the gradient so far and a range of it. The ranges cover the whole, each place once, whole tensors
    /// at a time. `ready` may change the values in its range: the model does not look at them again.
    ///
    /// # Panics
    ///
    /// As for [`Self::gradient`].
    fn gradient_with(
        &mut self,
        mut values: &[f32],
        examples: Examples<'_>,
        gradient: &mut [f32],
        ready: &mut Ready<'_>,
    ) -> f32 {
        self.gradient_of(&mut values, examples, gradient, ready)
    }

    /// As [`Self::gradient_with`], on values of which some may still be on their way: each layer waits for its own.
    ///
    /// # Panics
    ///
    /// As for [`Self::gradient`].
    fn gradient_of(
        &mut self,
        values: &mut dyn Incoming,
        examples: Examples<'_>,
        gradient: &mut [f32],
        ready: &mut Ready<'_>,
    ) -> f32;

    /// What the gradients of matrices were made of that were computed last, from the same `examples`; none where the model does not know.
    fn factors<'a>(&'a self, _examples: Examples<'a>) -> Vec<Factors<'a>> {
        Vec::new()
    }

    /// Losses and hits of `examples` at `values`.
    ///
    /// # Panics
    ///
    /// As for [`Self::gradient`].
    fn evaluate(&mut self, values: &[f32], examples: Examples<'_>) -> Evaluation;
}

/// The flat values of a model, of which some may still be on their way.
pub trait Incoming {
    /// Waits until the values of `keys` are here, and gives all values: those that are not here are old, or zero.
    fn until(&mut self, keys: Range<usize>) -> &[f32];
}

impl Incoming for &[f32] {
    fn until(&mut self, _: Range<usize>) -> &[f32] {
        self
    }
}

/// What is told of a part of a gradient that is final: see [`Model::gradient_with`].
pub type Ready<'a> = dyn FnMut(&mut [f32], Range<usize>) + 'a;

/// Builds the model of `spec`, with room for `largest_batch` samples. A larger batch works as well; the first
/// of that size allocates.
#[must_use]
pub fn build(spec: &ModelSpec, input_count: u64, class_count: u64, largest_batch: usize) -> Box<dyn Model> {
    match *spec {
        ModelSpec::Quadratic { condition, noise } => {
            Box::new(quadratic::Quadratic::new(condition, noise, input_count))
        }
        ModelSpec::Softmax | ModelSpec::Mlp { .. } => {
            Box::new(dense::Dense::new(spec, input_count, class_count, largest_batch))
        }
    }
}

/// Examples in borrowed memory: a batch, a piece of one, or a chunk of a split.
#[derive(Clone, Copy, Debug)]
pub struct Examples<'a> {
    inputs: &'a [f32],
    labels: &'a [u32],
    input_count: usize,
}

impl<'a> Examples<'a> {
    /// Views `inputs`, row-major (samples, `input_count`), and one label a row.
    ///
    /// # Panics
    ///
    /// When the two do not belong together.
    #[must_use]
    pub fn new(inputs: &'a [f32], labels: &'a [u32], input_count: usize) -> Self {
        assert_eq!(inputs.len(), labels.len() * input_count, "one row of inputs for each label");
        Self { inputs, labels, input_count }
    }

    /// Number of samples.
    #[must_use]
    pub const fn samples(self) -> usize {
        self.labels.len()
    }

    /// Values of one sample.
    #[must_use]
    pub const fn input_count(self) -> usize {
        self.input_count
    }

    /// The inputs, row-major (samples, inputs).
    #[must_use]
    pub const fn inputs(self) -> &'a [f32] {
        self.inputs
    }

    /// The class of each sample.
    #[must_use]
    pub const fn labels(self) -> &'a [u32] {
        self.labels
    }

    /// Consecutive pieces of at most `samples` (at least one) samples each.
    pub fn pieces(self, samples: usize) -> impl Iterator<Item = Self> {
        let samples = samples.max(1);
        (0..self.samples()).step_by(samples).map(move |start| {
            let end = self.samples().min(start + samples);
            Self {
                inputs: &self.inputs[start * self.input_count..end * self.input_count],
                labels: &self.labels[start..end],
                input_count: self.input_count,
            }
        })
    }
}

/// Examples in memory of their own, filled again and again by the loader.
#[derive(Clone, Debug)]
pub struct Batch {
    inputs: Vec<f32>,
    labels: Vec<u32>,
    input_count: usize,
}

impl Batch {
    /// An empty batch with room for `samples` rows of `input_count` values.
    #[must_use]
    pub fn with_capacity(samples: usize, input_count: usize) -> Self {
        Self {
            inputs: Vec::with_capacity(samples * input_count),
            labels: Vec::with_capacity(samples),
            input_count,
        }
    }

    /// Removes the samples; keeps the memory.
    pub fn clear(&mut self) {
        self.inputs.clear();
        self.labels.clear();
    }

    /// Appends one sample.
    ///
    /// # Panics
    ///
    /// When `inputs` is not of this batch's input count.
    pub fn push(&mut self, inputs: &[f32], label: u32) {
        assert_eq!(inputs.len(), self.input_count, "a row has one value for each input");
        self.inputs.extend_from_slice(inputs);
        self.labels.push(label);
    }

    /// The samples, as a model takes them.
    #[must_use]
    pub fn examples(&self) -> Examples<'_> {
        Examples { inputs: &self.inputs, labels: &self.labels, input_count: self.input_count }
    }

    /// Number of samples.
    #[must_use]
    pub const fn samples(&self) -> usize {
        self.labels.len()
    }
}

/// How a model did on some examples. Sums, so that chunks and workers can be added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Sum of the losses: cross-entropy in nats, or what the model calls its loss.
    pub loss_sum: f64,
    /// Samples whose class was the model's first choice.
    pub correct: u64,
    /// Samples looked at.
    pub samples: u64,
}

impl Evaluation {
    /// Adds the sums of `other`.
    pub const fn add(&mut self, other: Self) {
        self.loss_sum += other.loss_sum;
        self.correct += other.correct;
        self.samples += other.samples;
    }

    /// Mean loss; zero for no samples.
    #[must_use]
    pub const fn loss(&self) -> f64 {
        if self.samples == 0 { 0.0 } else { self.loss_sum / self.samples as f64 }
    }

    /// Share of correct answers, 0 to 1; zero for no samples.
    #[must_use]
    pub const fn accuracy(&self) -> f64 {
        if self.samples == 0 { 0.0 } else { self.correct as f64 / self.samples as f64 }
    }
}

/// Evaluates all `examples`, `chunk` at a time; the sums are added in the order of the chunks, so that the
/// result does not depend on threads.
pub fn evaluate_all(
    model: &mut dyn Model,
    values: &[f32],
    examples: Examples<'_>,
    chunk: usize,
) -> Evaluation {
    let mut total = Evaluation::default();
    for piece in examples.pieces(chunk) {
        total.add(model.evaluate(values, piece));
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_all_samples_in_order() {
        let mut batch = Batch::with_capacity(5, 2);
        for label in 0..5 {
            batch.push(&[label as f32, -(label as f32)], label);
        }
        let pieces: Vec<_> =
            batch.examples().pieces(2).map(|piece| (piece.labels(), piece.inputs()[0])).collect();
        assert_eq!(pieces, [(&[0, 1][..], 0.0), (&[2, 3][..], 2.0), (&[4][..], 4.0)]);
    }

    #[test]
    fn evaluation_does_not_depend_on_the_room_of_the_model() {
        let spec = ModelSpec::Mlp { widths: vec![5] };
        let inputs: Vec<f32> = (0..40).map(|i| (i as f32 * 0.7).sin()).collect();
        let labels: Vec<u32> = (0..10).map(|i| i % 3).collect();
        let examples = Examples::new(&inputs, &labels, 4);
        let mut small = build(&spec, 4, 3, 2);
        let mut large = build(&spec, 4, 3, 10);
        let mut values = vec![0.0; small.layout().len() as usize];
        small.initialize(3, &mut values);
        let expected = evaluate_all(small.as_mut(), &values, examples, 4);
        assert_eq!(evaluate_all(large.as_mut(), &values, examples, 4), expected);
        assert_eq!(expected.samples, 10);
    }
}
