//! The rules against scalar references, and cut against whole.

use super::*;
use crate::aggregate::Mean;
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
    Rule::Momentum { momentum: 0.9, nesterov: false, per: Per::Push },
    Rule::Momentum { momentum: 0.5, nesterov: true, per: Per::Push },
];

fn spec(rule: Rule) -> OptimizerSpec {
    let schedule = RateSchedule { shape: Shape::Linear, warmup: 0.1, final_share: 0.2 };
    OptimizerSpec { rule, rate: 0.1, weight_decay: 0.01, decay_per_clock: true, schedule }
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
        Rule::Momentum { momentum, nesterov, .. } => {
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
        let mut optimizer = Optimizer::new(spec, &layout, KeyRange::new(0, layout.len()), 1);
        let mut values: Vec<f32> = (0..layout.len()).map(|key| (key as f32).sin()).collect();
        let before = values.clone();
        let mut expected: Vec<(f64, f64)> = values.iter().map(|value| (f64::from(*value), 0.0)).collect();
        for step in 0..20 {
            let progress = f64::from(step) / 20.0;
            let gradient: Vec<f32> = (0..layout.len()).map(|key| (key as f32 + step as f32).cos()).collect();
            optimizer.apply(&mut values, &gradient, &Step::fresh(progress, step as u64));
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
            let mut optimizer = Optimizer::new(spec(rule), &layout, KeyRange::new(0, layout.len()), 1);
            for gradient in &gradients {
                optimizer.apply(&mut whole, gradient, &Step::fresh(0.3, 0));
            }
            let partition = Partition::new(layout.len(), servers, 1);
            prop_assert_eq!(partition.server_of(ShardId(0)), ServerId(0));
            for (_, range) in partition.shards() {
                let mut part = vec![0.5_f32; range.len as usize];
                let mut optimizer = Optimizer::new(spec(rule), &layout, range, 1);
                for gradient in &gradients {
                    optimizer.apply(&mut part, &gradient[range.as_indices()], &Step::fresh(0.3, 0));
                }
                prop_assert_eq!(&part[..], &whole[range.as_indices()]);
            }
        }
    }
}

/// What a step does to one key in f32, in the order in which the rule files write it.
fn in_f32(
    spec: &OptimizerSpec,
    steps_per_clock: u32,
    step: &Step,
    decay: f32,
    (mut value, mut velocity): (f32, f32),
    gradient: f32,
) -> (f32, f32) {
    let rate = spec.rate * spec.schedule.share(step.progress);
    let direction = step.weight * (gradient + decay * value);
    match spec.rule {
        Rule::Sgd => value -= rate * direction,
        Rule::Momentum { momentum, per: Per::Ordered, .. } => {
            let place = ordered::Place::of(step, steps_per_clock);
            let faded = momentum.powf(place.age as f32);
            if place.begins {
                velocity *= momentum;
                value -= rate * velocity;
            }
            velocity += faded * direction;
            value -= rate * ((1.0 - momentum * faded) / (1.0 - momentum)) * direction;
        }
        Rule::Momentum { momentum, nesterov, per } => {
            let kept = if per == Per::Clock { momentum.powf(1.0 / steps_per_clock as f32) } else { momentum };
            velocity = kept * velocity + direction;
            value -= rate * if nesterov { direction + kept * velocity } else { velocity };
        }
    }
    (value, velocity)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    // However a step is cut into blocks, wherever it writes and whatever its gradient comes from: the bits are those of key after key.
    #[test]
    fn a_step_in_blocks_has_the_bits_of_one_key_after_key(
        rule in prop_oneof![
            Just(Rule::Sgd),
            (any::<bool>(), prop_oneof![Just(Per::Push), Just(Per::Clock), Just(Per::Ordered)])
                .prop_map(|(nesterov, per)| Rule::Momentum { momentum: 0.9, nesterov, per }),
        ],
        weight_decay in prop_oneof![Just(0.0_f32), Just(0.01)],
        tensors in prop::collection::vec((1..1800_u64, 0..3_u8), 1..5),
        (from, workers) in (0..600_u64, 1..4_u32),
        // A block of gradients that are all zero, where one is named.
        steps in prop::collection::vec((any::<u32>(), 0..6_usize, 0.1_f32..1.0, 0..3_u64), 1..4),
    ) {
        let mut layout = Layout::new();
        for (index, (len, kind)) in tensors.iter().enumerate() {
            match kind {
                0 => layout.buffer(format!("{index}"), &[*len]),
                kind => layout.parameter(format!("{index}"), &[*len], *kind == 1),
            };
        }
        let from = from.min(layout.len() - 1);
        let range = KeyRange::new(from, layout.len() - from);
        let len = range.len as usize;
        let spec = OptimizerSpec { weight_decay, ..spec(rule) };
        let [mut in_place, mut beside] = [0, 1].map(|_| Optimizer::new(spec, &layout, range, workers));
        let mut values: Vec<f32> = (0..len).map(|key| (key as f32).sin()).collect();
        let mut old = values.clone();
        let mut expected: Vec<(f32, f32)> = values.iter().map(|value| (*value, 0.0)).collect();
        for (version, (seed, zero, weight, age)) in steps.into_iter().enumerate() {
            let version = version as u64;
            let step = Step { progress: 0.4, weight, version, pulled: version.saturating_sub(age) };
            let gradient: Vec<f32> = (0..len).map(|key| {
                if key / BLOCK == zero { 0.0 } else { (f64::from(seed) + key as f64).cos() as f32 }
            }).collect();
            let before: Vec<f32> = expected.iter().map(|(value, _)| *value).collect();
            for (key, state) in expected.iter_mut().enumerate() {
                let tensor = layout.tensor_of(range.start + key as u64).unwrap();
                if tensor.kind == TensorKind::Parameter {
                    let share = 1.0 / workers as f32;
                    let decay = if tensor.decay { spec.weight_decay * share } else { 0.0 };
                    *state = in_f32(&spec, workers, &step, decay, *state, gradient[key]);
                }
            }
            let after: Vec<f32> = expected.iter().map(|(value, _)| *value).collect();
            in_place.apply(&mut values, &gradient, &step);
            prop_assert_eq!(bits(&values), bits(&after));
            // Halves of the gradient as two parts of a mean are the gradient again.
            let halves = [1.0, 3.0].map(|factor| gradient.iter().map(|value| value * 0.5 * factor).collect::<Vec<_>>());
            let mut mean = Mean::new(halves.iter().map(|half| (PlainSource::from(&half[..]), 1.0, 7)));
            let (mut new, mut moved) = (vec![f32::NAN; len], Vec::new());
            let target = Target::Beside { old: &old, new: &mut new };
            beside.advance(target, &mut mean, &step, &mut |block| moved.push(block));
            prop_assert_eq!(bits(&new), bits(&after));
            prop_assert_eq!(in_place.slots(), beside.slots());
            let blocks = bits(&before).chunks(BLOCK).map(<[u32]>::to_vec).collect::<Vec<_>>();
            let changed: Vec<usize> = (0..blocks.len())
                .filter(|block| {
                    let end = len.min((block + 1) * BLOCK);
                    blocks[*block] != bits(&after[block * BLOCK..end])
                })
                .collect();
            prop_assert_eq!(moved, changed);
            old = new;
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

/// One value under a rule, with gradients of ones at staleness 0.
fn walk(rule: Rule, decay_per_clock: bool, workers: u32, steps: u64) -> f32 {
    let mut layout = Layout::new();
    layout.parameter("weight", &[1], true);
    let schedule = RateSchedule::CONSTANT;
    let spec = OptimizerSpec { rule, rate: 0.01, weight_decay: 0.1, decay_per_clock, schedule };
    let mut optimizer = Optimizer::new(spec, &layout, KeyRange::new(0, 1), workers);
    let mut value = [1.0];
    for version in 0..steps {
        optimizer.apply(&mut value, &[0.5], &Step::fresh(0.0, version));
    }
    value[0]
}

#[test]
fn with_one_worker_every_momentum_is_the_heavy_ball() {
    let of = |per| walk(Rule::Momentum { momentum: 0.9, nesterov: false, per }, true, 1, 40);
    assert_eq!(of(Per::Push), of(Per::Clock));
    assert!((of(Per::Push) - of(Per::Ordered)).abs() < 1e-5);
}

// Momentum per push fades workers times faster over the data than under bsp (papers: asynchrony and momentum).
#[test]
fn momentum_by_the_clock_leaves_as_much_after_a_clock_as_under_bsp() {
    let momentum = 0.81;
    let mut layout = Layout::new();
    layout.parameter("weight", &[1], false);
    for (per, expected) in [(Per::Clock, 0.81), (Per::Ordered, 0.81), (Per::Push, 0.81_f32.powi(4))] {
        let rule = Rule::Momentum { momentum, nesterov: false, per };
        let spec = OptimizerSpec { rule, ..spec(rule) };
        let mut optimizer = Optimizer::new(spec, &layout, KeyRange::new(0, 1), 4);
        let mut value = [0.0];
        optimizer.apply(&mut value, &[1.0], &Step::fresh(0.5, 0));
        for version in 1..5 {
            optimizer.apply(&mut value, &[0.0], &Step::fresh(0.5, version));
        }
        assert!((optimizer.slots()[0] - expected).abs() < 1e-6, "{per:?}: {}", optimizer.slots()[0]);
    }
}

#[test]
fn a_gradient_of_an_earlier_clock_counts_as_if_it_had_come_then() {
    let mut layout = Layout::new();
    layout.parameter("weight", &[1], false);
    let rule = Rule::Momentum { momentum: 0.5, nesterov: false, per: Per::Ordered };
    let spec = OptimizerSpec { schedule: RateSchedule::CONSTANT, ..spec(rule) };
    let walk = |order: [(f32, u64); 4]| {
        let mut optimizer = Optimizer::new(spec, &layout, KeyRange::new(0, 1), 2);
        let mut value = [0.0];
        for (version, (gradient, pulled)) in (0..).zip(order) {
            optimizer.apply(&mut value, &[gradient], &Step { progress: 0.0, weight: 1.0, version, pulled });
        }
        value[0]
    };
    // The second gradient of the first clock comes in the second one, in the place of one of nothing.
    let on_time = walk([(1.0, 0), (3.0, 0), (0.0, 2), (0.0, 2)]);
    let late = walk([(1.0, 0), (0.0, 0), (3.0, 0), (0.0, 2)]);
    assert!((on_time - late).abs() < 1e-6, "{on_time} {late}");
}

// Weight decay in full on every push shrinks the weights workers times as much over the data as under bsp.
#[test]
fn decay_by_the_clock_shrinks_over_a_clock_of_pushes_as_one_step_does() {
    let shrink =
        |per_clock, workers, steps| 1.0 - (walk(Rule::Sgd, per_clock, workers, steps) + 0.005 * steps as f32);
    let once = shrink(true, 1, 1);
    assert!((shrink(true, 4, 4) - once).abs() < 0.02 * once);
    assert!((shrink(false, 4, 4) - 4.0 * once).abs() < 0.08 * once);
}

#[test]
fn the_outer_average_takes_the_difference_as_it_is() {
    let mut layout = Layout::new();
    layout.parameter("weight", &[1], true);
    let mut optimizer = Optimizer::new(OptimizerSpec::outer(Outer::Average), &layout, KeyRange::new(0, 1), 1);
    let mut value = [5.0];
    optimizer.apply(&mut value, &[1.25], &Step::fresh(0.9, 3));
    assert_eq!(value, [3.75]);
}

// A stale gradient that is down-weighted must not come back in full through the velocity.
#[test]
fn a_weight_holds_for_all_that_a_gradient_ever_does() {
    let mut layout = Layout::new();
    layout.parameter("weight", &[1], false);
    for rule in
        RULES.into_iter().chain([Rule::Momentum { momentum: 0.9, nesterov: false, per: Per::Ordered }])
    {
        let walk = |first: f32, weight| {
            let spec = OptimizerSpec { schedule: RateSchedule::CONSTANT, ..spec(rule) };
            let mut optimizer = Optimizer::new(spec, &layout, KeyRange::new(0, 1), 2);
            let mut value = [0.0];
            optimizer.apply(&mut value, &[first], &Step { weight, ..Step::fresh(0.0, 0) });
            for version in 1..30 {
                optimizer.apply(&mut value, &[0.0], &Step::fresh(0.0, version));
            }
            value[0]
        };
        assert!((walk(1.0, 0.25) - walk(0.25, 1.0)).abs() < 1e-7, "{rule:?}");
    }
}
