//! Loss, gradient and fifty steps of SGD with momentum against PyTorch in double precision.
//!
//! `golden/mlp.py` wrote the numbers. Tolerance: 1e-6 for one gradient; 2e-5 after fifty steps, since the
//! rounding of f32 (6e-8 a value and step) grows along the way. A wrong sign, layout, mean or momentum is off
//! by over 1e-2.

#![allow(clippy::unwrap_used, missing_docs)]

use serde_json::Value;
use slackline_core::model::ModelSpec;
use slackline_worker::model::{Examples, build};

fn numbers(golden: &Value, name: &str) -> Vec<f64> {
    golden[name].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn assert_near(got: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(*got) - expected).abs();
        assert!(error <= tolerance, "{what} {index}: {got} not {expected}");
    }
}

fn check(text: &str) {
    let golden: Value = serde_json::from_str(text).unwrap();
    let widths: Vec<u64> =
        golden["widths"].as_array().unwrap().iter().map(|width| width.as_u64().unwrap()).collect();
    let samples = golden["samples"].as_u64().unwrap() as usize;
    let (rate, momentum) =
        (golden["rate"].as_f64().unwrap() as f32, golden["momentum"].as_f64().unwrap() as f32);
    let (input_count, class_count) = (widths[0], *widths.last().unwrap());
    let hidden = widths[1..widths.len() - 1].to_vec();
    let spec = if hidden.is_empty() { ModelSpec::Softmax } else { ModelSpec::Mlp { widths: hidden } };
    let mut model = build(&spec, input_count, class_count, samples);

    let mut values: Vec<f32> =
        (0..model.layout().len()).map(|key| (0.6 * (1.3 * key as f64 + 0.2).sin()) as f32).collect();
    let inputs: Vec<f32> =
        (0..samples as u64 * input_count).map(|index| (0.7 * index as f64).sin() as f32).collect();
    let labels: Vec<u32> = (0..samples as u64).map(|i| ((i * 7 + i / 4) % class_count) as u32).collect();
    let examples = Examples::new(&inputs, &labels, input_count as usize);

    let mut gradient = vec![0.0; values.len()];
    let mut velocity = vec![0.0; values.len()];
    let mut losses = Vec::new();
    for step in 0..numbers(&golden, "losses").len() {
        losses.push(model.gradient(&values, examples, &mut gradient));
        if step == 0 {
            assert_near(&gradient, &numbers(&golden, "gradient"), 1e-6, "gradient");
        }
        for ((value, velocity), gradient) in values.iter_mut().zip(&mut velocity).zip(&gradient) {
            *velocity = momentum * *velocity + gradient;
            *value -= rate * *velocity;
        }
    }
    assert_near(&losses[..1], &numbers(&golden, "losses")[..1], 1e-6, "first loss");
    assert_near(&losses, &numbers(&golden, "losses"), 2e-5, "loss of step");
    assert_near(&values, &numbers(&golden, "values"), 2e-5, "value");
}

#[test]
fn softmax_regression_trains_as_in_pytorch() {
    check(include_str!("golden/softmax.json"));
}

#[test]
fn a_perceptron_trains_as_in_pytorch() {
    check(include_str!("golden/mlp.json"));
}
