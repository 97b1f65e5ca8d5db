//! The gradient of every layer against an independent network in plain f64 loops, its values and its central
//! differences.

#![allow(clippy::unwrap_used, missing_docs)]

use slackline_core::model::ModelSpec;
use slackline_worker::model::{Examples, build};

/// The same network as the crate's, written again as simply as can be: the mean loss of all samples, in f64.
fn loss(widths: &[usize], values: &[f64], inputs: &[f64], labels: &[u32]) -> f64 {
    let mut sum = 0.0;
    for (row, label) in inputs.chunks(widths[0]).zip(labels) {
        let logits = logits(widths, values, row);
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let exponents: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        sum += exponents.ln() + largest - logits[*label as usize];
    }
    sum / labels.len() as f64
}

fn logits(widths: &[usize], values: &[f64], row: &[f64]) -> Vec<f64> {
    let mut current = row.to_vec();
    let mut offset = 0;
    for (layer, pair) in widths.windows(2).enumerate() {
        let (inputs, outputs) = (pair[0], pair[1]);
        let bias = offset + inputs * outputs;
        current = (0..outputs)
            .map(|output| {
                let products =
                    (0..inputs).map(|input| current[input] * values[offset + input * outputs + output]);
                let sum = values[bias + output] + products.sum::<f64>();
                if layer + 2 == widths.len() { sum } else { sum.max(0.0) }
            })
            .collect();
        offset = bias + outputs;
    }
    current
}

fn check(hidden: &[u64], input_count: usize, class_count: usize, samples: usize) {
    let spec =
        if hidden.is_empty() { ModelSpec::Softmax } else { ModelSpec::Mlp { widths: hidden.to_vec() } };
    let mut model = build(&spec, input_count as u64, class_count as u64, samples);
    let widths: Vec<usize> = spec
        .layer_widths(input_count as u64, class_count as u64)
        .iter()
        .map(|width| *width as usize)
        .collect();
    let mut values = vec![0.0; model.layout().len() as usize];
    model.initialize(11, &mut values);
    // Biases that are not zero, so that a mistake in them shows.
    for (index, value) in values.iter_mut().enumerate() {
        *value += 0.05 * (index as f32 * 1.7).sin();
    }
    let inputs: Vec<f32> = (0..samples * input_count).map(|i| (i as f32 * 0.83).sin()).collect();
    let labels: Vec<u32> = (0..samples).map(|i| ((i * 5 + i / 3) % class_count) as u32).collect();
    let mut gradient = vec![f32::NAN; values.len()];
    let got = model.gradient(&values, Examples::new(&inputs, &labels, input_count), &mut gradient);

    let exact_inputs: Vec<f64> = inputs.iter().map(|value| f64::from(*value)).collect();
    let mut exact: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
    let expected = loss(&widths, &exact, &exact_inputs, &labels);
    assert!((f64::from(got) - expected).abs() < 1e-6 * expected.max(1.0), "loss {got} not {expected}");

    for tensor in model.layout().tensors().to_vec() {
        let keys = tensor.offset as usize..(tensor.offset + tensor.len()) as usize;
        // Every value of a small tensor, every seventh of a large one.
        let step = if keys.len() < 500 { 1 } else { 7 };
        for key in keys.step_by(step) {
            const WIDTH: f64 = 1e-6;
            let value = exact[key];
            exact[key] = value + WIDTH;
            let above = loss(&widths, &exact, &exact_inputs, &labels);
            exact[key] = value - WIDTH;
            let below = loss(&widths, &exact, &exact_inputs, &labels);
            exact[key] = value;
            let slope = (above - below) / (2.0 * WIDTH);
            let error = (f64::from(gradient[key]) - slope).abs();
            assert!(
                error < 1e-6 + 1e-4 * slope.abs(),
                "{} key {key}: {} not {slope}",
                tensor.path,
                gradient[key]
            );
        }
    }
}

#[test]
fn softmax_regression_has_the_slope_of_its_loss() {
    check(&[], 9, 4, 7);
    check(&[], 1, 2, 1);
}

#[test]
fn every_layer_of_a_perceptron_has_the_slope_of_its_loss() {
    check(&[6], 8, 4, 5);
    check(&[7, 5], 9, 3, 6);
    check(&[20, 33, 17], 18, 10, 19);
}

#[test]
fn widths_of_one_work() {
    check(&[1, 1], 1, 2, 3);
}
