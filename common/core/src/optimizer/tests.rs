//! The rules against scalar references, and cut against whole.

use super::*;
use crate::ids::{ServerId, ShardId};
use crate::partition::Partition;
use proptest::prelude::*;

fn layout() -> Layout {
    let mut layout = Layout::new();
    layout.parameter("weight", &[7, 9], true);
    layout.parameter("bias", &[9], false);
    layout.buffer("mean", &[5]);
    layout.parameter("last", &[40], true);
    layout
}

const RULES: [Rule; 3] = [
    Rule::Sgd,
    Rule::Momentum { momentum: 0.9, nesterov: false },
    Rule::Momentum { momentum: 0.5, nesterov: true },
];

fn spec(rule: Rule) -> OptimizerSpec {
    let schedule = RateSchedule { shape: Shape::Linear, warmup: 0.1, final_share: 0.2 };
    OptimizerSpec { rule, rate: 0.1, weight_decay: 0.01, schedule }
}

/// The formulas of the rule files, value by value, in f64.
fn reference(
    spec: &OptimizerSpec,
    decay: f64,
    value: f64,
    velocity: f64,
    gradient: f64,
    progress: f64,
) -> (f64, f64) {
    let rate = f64::from(spec.rate) * f64::from(spec.schedule.share(progress));
    let direction = gradient + decay * value;
    match spec.rule {
        Rule::Sgd => (value - rate * direction, 0.0),
        Rule::Momentum { momentum, nesterov } => {
            let momentum = f64::from(momentum);
            let velocity = momentum * velocity + direction;
            let ahead = if nesterov { direction + momentum * velocity } else { velocity };
            (value - rate * ahead, velocity)
        }
    }
}

#[test]
fn the_rules_follow_their_formulas_and_leave_buffers_alone() {
    let layout = layout();
    for rule in RULES {
        let spec = spec(rule);
        let mut optimizer = Optimizer::new(spec, &layout, KeyRange::new(0, layout.len()));
        let mut values: Vec<f32> = (0..layout.len()).map(|key| (key as f32).sin()).collect();
        let before = values.clone();
        let mut expected: Vec<(f64, f64)> = values.iter().map(|value| (f64::from(*value), 0.0)).collect();
        for step in 0..20 {
            let progress = f64::from(step) / 20.0;
            let gradient: Vec<f32> = (0..layout.len()).map(|key| (key as f32 + step as f32).cos()).collect();
            optimizer.apply(&mut values, &gradient, progress);
            for (key, (value, velocity)) in expected.iter_mut().enumerate() {
                let decay = if layout.tensor_of(key as u64).unwrap().decay {
                    f64::from(spec.weight_decay)
                } else {
                    0.0
                };
                (*value, *velocity) =
                    reference(&spec, decay, *value, *velocity, f64::from(gradient[key]), progress);
            }
        }
        for (key, value) in values.iter().enumerate() {
            if layout.tensor_of(key as u64).unwrap().kind == TensorKind::Buffer {
                assert_eq!(*value, before[key]);
            } else {
                assert!((f64::from(*value) - expected[key].0).abs() < 1e-5, "{rule:?} key {key}");
            }
        }
    }
}

proptest! {
    #[test]
    fn cutting_into_shards_changes_no_bit(servers in 1..9_u32, gradients in prop::collection::vec(prop::collection::vec(-1.0_f32..1.0, 117), 1..5)) {
        let layout = layout();
        for rule in RULES {
            let mut whole = vec![0.5_f32; layout.len() as usize];
            let mut optimizer = Optimizer::new(spec(rule), &layout, KeyRange::new(0, layout.len()));
            for gradient in &gradients {
                optimizer.apply(&mut whole, gradient, 0.3);
            }
            let partition = Partition::new(layout.len(), servers, 1);
            prop_assert_eq!(partition.server_of(ShardId(0)), ServerId(0));
            for (_, range) in partition.shards() {
                let mut part = vec![0.5_f32; range.len as usize];
                let mut optimizer = Optimizer::new(spec(rule), &layout, range);
                for gradient in &gradients {
                    optimizer.apply(&mut part, &gradient[range.as_indices()], 0.3);
                }
                prop_assert_eq!(&part[..], &whole[range.as_indices()]);
            }
        }
    }
}

#[test]
fn the_schedule_rises_and_falls_as_said() {
    let linear = RateSchedule { shape: Shape::Linear, warmup: 0.2, final_share: 0.1 };
    let cosine = RateSchedule { shape: Shape::Cosine, warmup: 0.0, final_share: 0.0 };
    let close = |left: f32, right: f32| assert!((left - right).abs() < 1e-6, "{left} {right}");
    close(linear.share(0.1), 0.5);
    close(linear.share(0.2), 1.0);
    close(linear.share(0.6), 0.55);
    close(linear.share(1.0), 0.1);
    close(cosine.share(0.5), 0.5);
    close(cosine.share(1.0), 0.0);
    close(RateSchedule::CONSTANT.share(0.7), 1.0);
}
