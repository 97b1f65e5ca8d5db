//! A network of dense layers: rectified hidden layers, then softmax with cross-entropy. With no hidden layer
//! it is softmax regression.
//!
//! Shapes: a layer maps rows of `inputs` values to rows of `outputs` values, `row * weight + bias`, with the
//! weight stored row-major as (inputs, outputs). All products run on the calling thread, one core a worker.

use std::ops::Range;

use ndarray::{ArrayView1, ArrayView2, ArrayViewMut1, ArrayViewMut2};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use slackline_core::codec::Factors;
use slackline_core::layout::Layout;
use slackline_core::model::ModelSpec;
use slackline_core::schedule::random_stream;

use super::loss;
use super::product::{Target, multiply};
use super::{Evaluation, Examples, Incoming, Model, Ready};

/// Random streams below this one belong to the epochs of the data order; tensor i draws from this plus i.
const INITIAL_STREAM: u64 = 1 << 32;

/// Where a layer's values lie, and its scratch memory.
struct Layer {
    inputs: usize,
    outputs: usize,
    weight: Range<usize>,
    bias: Range<usize>,
    /// What the layer gave forward, (samples, outputs): rectified for a hidden layer, logits for the last.
    activation: Vec<f32>,
    /// The loss's gradient by the layer's output before rectifying, (samples, outputs).
    delta: Vec<f32>,
}

impl Layer {
    fn weight<'a>(&self, values: &'a [f32]) -> ArrayView2<'a, f32> {
        matrix(&values[self.weight.clone()], self.inputs, self.outputs)
    }

    fn bias<'a>(&self, values: &'a [f32]) -> ArrayView1<'a, f32> {
        ArrayView1::from(&values[self.bias.clone()])
    }

    fn activation(&self, samples: usize) -> ArrayView2<'_, f32> {
        matrix(&self.activation, samples, self.outputs)
    }

    fn delta(&self, samples: usize) -> ArrayView2<'_, f32> {
        matrix(&self.delta, samples, self.outputs)
    }
}

/// The model; see the head of this file.
pub(crate) struct Dense {
    layout: Layout,
    layers: Vec<Layer>,
    /// Samples that the scratch memory has room for.
    room: usize,
}

impl Dense {
    pub(crate) fn new(spec: &ModelSpec, input_count: u64, class_count: u64, largest_batch: usize) -> Self {
        let layout = spec.layout(input_count, class_count);
        let range = |tensor: &slackline_core::layout::Tensor| {
            tensor.offset as usize..(tensor.offset + tensor.len()) as usize
        };
        let layers = layout
            .tensors()
            .chunks_exact(2)
            .map(|pair| Layer {
                inputs: pair[0].shape[0] as usize,
                outputs: pair[0].shape[1] as usize,
                weight: range(&pair[0]),
                bias: range(&pair[1]),
                activation: Vec::new(),
                delta: Vec::new(),
            })
            .collect();
        let mut model = Self { layout, layers, room: 0 };
        model.make_room(largest_batch);
        model
    }

    fn make_room(&mut self, samples: usize) {
        if samples > self.room {
            self.room = samples;
            for layer in &mut self.layers {
                layer.activation.resize(samples * layer.outputs, 0.0);
                layer.delta.resize(samples * layer.outputs, 0.0);
            }
        }
    }

    /// Fills the activations of all layers; the last one's are the logits.
    fn forward(&mut self, values: &mut dyn Incoming, examples: Examples<'_>) {
        assert_eq!(examples.input_count(), self.layers[0].inputs, "the examples are for this model");
        let samples = examples.samples();
        self.make_room(samples);
        let last = self.layers.len() - 1;
        for index in 0..self.layers.len() {
            let (before, from_here) = self.layers.split_at_mut(index);
            let layer = &mut from_here[0];
            let input = before.last().map_or_else(
                || matrix(examples.inputs(), samples, layer.inputs),
                |previous| previous.activation(samples),
            );
            let values = values.until(layer.weight.start..layer.bias.end);
            assert_eq!(values.len() as u64, self.layout.len(), "as many values as the layout has");
            let (weight, bias) = (layer.weight(values), layer.bias(values));
            let mut output = matrix_mut(&mut layer.activation, samples, layer.outputs);
            output.assign(&bias);
            multiply(input, weight, Target::Accumulate, output.view_mut());
            if index != last {
                // Written so that NaN passes through; f32::max would hide it.
                output.mapv_inplace(|value| if value < 0.0 { 0.0 } else { value });
            }
        }
    }

    /// From the delta of the last layer, fills the gradients of all layers, the last layer's first.
    fn backward(
        &mut self,
        values: &[f32],
        examples: Examples<'_>,
        gradient: &mut [f32],
        ready: &mut Ready<'_>,
    ) {
        let samples = examples.samples();
        for index in (0..self.layers.len()).rev() {
            let (before, from_here) = self.layers.split_at_mut(index);
            let layer = &from_here[0];
            let delta = layer.delta(samples);
            let mut bias_gradient = ArrayViewMut1::from(&mut gradient[layer.bias.clone()]);
            bias_gradient.fill(0.0);
            for row in delta.rows() {
                bias_gradient += &row;
            }
            let weight_gradient =
                matrix_mut(&mut gradient[layer.weight.clone()], layer.inputs, layer.outputs);
            // The gradient by the input is needed by the layer before; the first layer has none, and skips
            // the product that would be its largest.
            let Some(previous) = before.last_mut() else {
                let input = matrix(examples.inputs(), samples, layer.inputs);
                multiply(input.t(), delta, Target::Overwrite, weight_gradient);
                ready(gradient, layer.weight.start..layer.bias.end);
                continue;
            };
            multiply(previous.activation(samples).t(), delta, Target::Overwrite, weight_gradient);
            ready(gradient, layer.weight.start..layer.bias.end);
            let mut below = matrix_mut(&mut previous.delta, samples, previous.outputs);
            multiply(delta, layer.weight(values).t(), Target::Overwrite, below.view_mut());
            let used = samples * previous.outputs;
            for (slope, output) in previous.delta[..used].iter_mut().zip(&previous.activation[..used]) {
                *slope = if *output > 0.0 { *slope } else { 0.0 };
            }
        }
    }
}

impl Model for Dense {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Weights of a rectified layer are uniform in +-sqrt(6 / inputs) (He et al. 2015), of the last layer in
    /// +-sqrt(3 / inputs), which keeps the variance where no half is cut off; biases are zero.
    fn initialize(&self, seed: u64, values: &mut [f32]) {
        assert_eq!(values.len() as u64, self.layout.len(), "as many values as the layout has");
        let last = self.layers.len() - 1;
        for (index, layer) in self.layers.iter().enumerate() {
            let gain = if index == last { 3.0 } else { 6.0 };
            let bound = (gain / layer.inputs.max(1) as f64).sqrt() as f32;
            let mut random = random_stream(seed, INITIAL_STREAM + 2 * index as u64);
            values[layer.weight.clone()].fill_with(|| uniform(&mut random) * bound);
            values[layer.bias.clone()].fill(0.0);
        }
    }

    fn gradient_of(
        &mut self,
        values: &mut dyn Incoming,
        examples: Examples<'_>,
        gradient: &mut [f32],
        ready: &mut Ready<'_>,
    ) -> f32 {
        assert_eq!(gradient.len() as u64, self.layout.len(), "as many gradients as the layout has values");
        let samples = examples.samples();
        if samples == 0 {
            gradient.fill(0.0);
            ready(gradient, 0..gradient.len());
            return 0.0;
        }
        self.forward(values, examples);
        let last = self.layers.last_mut().expect("a model has at least one layer");
        let logits = matrix(&last.activation, samples, last.outputs);
        let mut delta = matrix_mut(&mut last.delta, samples, last.outputs);
        delta.assign(&logits);
        let loss_sum = loss::into_gradient(delta, examples.labels(), 1.0 / samples as f32);
        self.backward(values.until(0..0), examples, gradient, ready);
        (loss_sum / samples as f64) as f32
    }

    /// The weight of layer `i` is tensor `2 i`; its gradient is the input of the layer, transposed, times its delta.
    fn factors<'a>(&'a self, examples: Examples<'a>) -> Vec<Factors<'a>> {
        let samples = examples.samples();
        let factors = |(index, layer): (usize, &'a Layer)| {
            let input = match index.checked_sub(1) {
                None => examples.inputs(),
                Some(before) => &self.layers[before].activation[..samples * layer.inputs],
            };
            let errors = &layer.delta[..samples * layer.outputs];
            Factors { tensor: 2 * index, samples, activations: input, errors }
        };
        self.layers.iter().enumerate().map(factors).collect()
    }

    fn evaluate(&mut self, mut values: &[f32], examples: Examples<'_>) -> Evaluation {
        if examples.samples() == 0 {
            return Evaluation::default();
        }
        self.forward(&mut values, examples);
        let last = self.layers.last_mut().expect("a model has at least one layer");
        let logits = matrix_mut(&mut last.activation, examples.samples(), last.outputs);
        loss::evaluate(logits, examples.labels())
    }
}

/// Uniform in [-1, 1), from the upper 24 bits of one draw: exact in f32, the same on every machine.
fn uniform(random: &mut ChaCha8Rng) -> f32 {
    (random.next_u32() >> 8) as f32 * (2.0 / (1 << 24) as f32) - 1.0
}

/// The first `rows` rows of `columns` values in `values`.
fn matrix(values: &[f32], rows: usize, columns: usize) -> ArrayView2<'_, f32> {
    ArrayView2::from_shape((rows, columns), &values[..rows * columns])
        .expect("the slice was cut to the shape")
}

/// As [`matrix`], to write to.
fn matrix_mut(values: &mut [f32], rows: usize, columns: usize) -> ArrayViewMut2<'_, f32> {
    ArrayViewMut2::from_shape((rows, columns), &mut values[..rows * columns])
        .expect("the slice was cut to the shape")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mlp() -> Dense {
        Dense::new(&ModelSpec::Mlp { widths: vec![200] }, 100, 10, 4)
    }

    #[test]
    fn initial_values_depend_on_the_seed_alone_and_have_the_variance_of_he() {
        let model = mlp();
        let values = |seed| {
            let mut values = vec![f32::NAN; model.layout.len() as usize];
            model.initialize(seed, &mut values);
            values
        };
        let first = values(1);
        assert_eq!(first, values(1));
        assert_ne!(first, values(2));
        for (layer, variance) in [(0, 2.0 / 100.0), (1, 1.0 / 200.0)] {
            let weights = ArrayView1::from(&first[model.layers[layer].weight.clone()]);
            assert!((weights.var(0.0) / variance - 1.0).abs() < 0.1);
            assert!(weights.mean().unwrap().abs() < 0.1 * variance.sqrt());
            assert!(model.layers[layer].bias(&first).iter().all(|bias| *bias == 0.0));
        }
    }

    #[test]
    fn factors_make_up_the_gradients_of_all_weights() {
        let mut model = mlp();
        let size = model.layout.len() as usize;
        let (mut values, mut gradient) = (vec![0.0; size], vec![0.0; size]);
        model.initialize(3, &mut values);
        let inputs: Vec<f32> = (0..4 * 100).map(|index| (index as f32 * 0.7).sin()).collect();
        let examples = Examples::new(&inputs, &[1, 0, 9, 4], 100);
        model.gradient(&values, examples, &mut gradient);
        let all = model.factors(examples);
        assert_eq!(all.iter().map(|factors| factors.tensor).collect::<Vec<_>>(), [0, 2]);
        for (factors, layer) in all.iter().zip(&model.layers) {
            let inputs = matrix(factors.activations, factors.samples, layer.inputs);
            let made = inputs.t().dot(&matrix(factors.errors, factors.samples, layer.outputs));
            let difference = &made - &matrix(&gradient[layer.weight.clone()], layer.inputs, layer.outputs);
            assert!(difference.iter().all(|off| off.abs() < 1e-5), "tensor {}", factors.tensor);
        }
    }

    #[test]
    fn no_examples_give_a_gradient_of_zero() {
        let mut model = mlp();
        let values = vec![1.0; model.layout.len() as usize];
        let mut gradient = vec![7.0; values.len()];
        assert_eq!(model.gradient(&values, Examples::new(&[], &[], 100), &mut gradient), 0.0);
        assert!(gradient.iter().all(|value| *value == 0.0));
        assert_eq!(model.evaluate(&values, Examples::new(&[], &[], 100)), Evaluation::default());
    }

    #[test]
    fn a_value_that_is_not_a_number_shows_in_the_loss() {
        let mut model = mlp();
        let mut values = vec![0.01; model.layout.len() as usize];
        values[5] = f32::NAN;
        let mut gradient = vec![0.0; values.len()];
        assert!(model.gradient(&values, Examples::new(&[1.0; 200], &[3, 4], 100), &mut gradient).is_nan());
    }

    #[test]
    fn the_last_layer_is_ready_first_and_each_key_once() {
        let mut model = Dense::new(&ModelSpec::Mlp { widths: vec![7, 5] }, 6, 4, 3);
        let size = model.layout.len() as usize;
        let mut values = vec![0.0; size];
        model.initialize(1, &mut values);
        let inputs: Vec<f32> = (0..18).map(|i| (i as f32).cos()).collect();
        for examples in [Examples::new(&inputs, &[0, 1, 3], 6), Examples::new(&[], &[], 6)] {
            let samples = examples.samples();
            let (mut expected, mut gradient) = (vec![f32::NAN; size], vec![f32::NAN; size]);
            let loss = model.gradient(&values, examples, &mut expected);
            let (mut told, mut left) = (vec![f32::NAN; size], size);
            let again = model.gradient_with(&values, examples, &mut gradient, &mut |gradient, keys| {
                assert_eq!(keys.end, left, "backwards, without gaps");
                let rest = &gradient[..keys.start];
                assert!(rest.iter().all(|value| value.is_nan()) || samples == 0, "nothing else exists yet");
                left = keys.start;
                told[keys.clone()].copy_from_slice(&gradient[keys.clone()]);
                gradient[keys].fill(7.0);
            });
            assert_eq!((again, left), (loss, 0));
            assert_eq!(told, expected);
            assert!(gradient.iter().all(|value| *value == 7.0), "nobody looks at it again");
        }
    }

    #[test]
    fn a_gradient_overwrites_what_was_there_and_repeats_bit_for_bit() {
        let mut model = mlp();
        let mut values = vec![0.0; model.layout.len() as usize];
        model.initialize(1, &mut values);
        let inputs: Vec<f32> = (0..900).map(|i| (i as f32).cos()).collect();
        let examples = Examples::new(&inputs, &[0, 1, 2, 3, 4, 5, 6, 7, 8], 100);
        let (mut first, mut second) = (vec![f32::NAN; values.len()], vec![1e9; values.len()]);
        let loss = model.gradient(&values, examples, &mut first);
        assert_eq!(model.gradient(&values, examples, &mut second), loss);
        assert_eq!(first, second);
        assert!(first.iter().all(|value| value.is_finite()));
    }
}
