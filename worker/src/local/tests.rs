//! The rules of local steps: what is pushed, what is kept, and that nothing counts twice or never.

use super::*;
use crate::model::{Examples, build};
use proptest::prelude::*;
use slackline_core::local::Outer;
use slackline_core::model::ModelSpec;
use slackline_core::optimizer::{Per, RateSchedule, Rule, Shape};

fn spec(steps: u64, fragments: u32, elastic: Option<f64>) -> LocalSpec {
    LocalSpec { steps, outer: Outer::Average, fragments, elastic }
}

fn inner(rule: Rule, rate: f32) -> OptimizerSpec {
    let schedule = RateSchedule { shape: Shape::Constant, warmup: 0.0, final_share: 1.0 };
    OptimizerSpec { rule, rate, weight_decay: 0.0, decay_per_clock: true, schedule }
}

const MOMENTUM: Rule = Rule::Momentum { momentum: 0.5, nesterov: false, per: Per::Push };

/// A solver over `keys` values in `shards` shards of sixteen, with steps of one sample.
fn solver(spec: LocalSpec, inner: OptimizerSpec, shards: u32) -> LocalSolver {
    let mut layout = Layout::new();
    layout.parameter("point", &[u64::from(shards) * 16], true);
    let partition = Partition::new(layout.len(), 1, shards);
    assert_eq!(partition.shards().count(), shards as usize);
    LocalSolver::new(spec, inner, 1, &layout, &partition)
}

/// Samples of one value each.
fn samples(count: usize) -> (Vec<f32>, Vec<u32>) {
    ((0..count).map(|index| index as f32).collect(), vec![0; count])
}

/// One iteration of `steps` samples of one value.
fn iterate(
    solver: &mut LocalSolver,
    (clock, steps): (u64, usize),
    (pulled, adopted): (&[f32], &[ShardId]),
    gradient_of: &mut GradientOf<'_>,
    is_wanted: &dyn Fn() -> bool,
) -> (Option<f64>, Vec<f32>) {
    let (inputs, labels) = samples(steps);
    let examples = Examples::new(&inputs, &labels, 1);
    let mut pushed = vec![f32::NAN; pulled.len()];
    let batch = BatchIndex(clock * steps as u64);
    let iteration =
        LocalIteration { pulled, adopted, clock: Clock(clock), examples, batch, batch_count: 100 };
    let loss = solver.iterate(&iteration, gradient_of, is_wanted, &mut pushed);
    (loss, pushed)
}

fn all(shards: u32) -> Vec<ShardId> {
    (0..shards).map(ShardId).collect()
}

#[test]
fn one_plain_step_pushes_the_rate_times_the_gradient() {
    // Numbers with few bits, so that no rounding hides a mistake.
    let mut solver = solver(spec(1, 1, None), inner(Rule::Sgd, 0.25), 2);
    let pulled: Vec<f32> = (0..32).map(|key| key as f32 * 0.5).collect();
    let slope: Vec<f32> = (0..32).map(|key| 8.0 - key as f32).collect();
    let mut gradient = |values: &[f32], _: Examples<'_>, out: &mut [f32]| {
        assert_eq!(values, pulled);
        out.copy_from_slice(&slope);
        0.75
    };
    for clock in 0..3 {
        let (loss, pushed) = iterate(&mut solver, (clock, 1), (&pulled, &all(2)), &mut gradient, &|| true);
        assert_eq!(loss, Some(0.75));
        assert!(pushed.iter().zip(&slope).all(|(pushed, slope)| *pushed == 0.25 * slope));
    }
}

#[test]
fn several_steps_are_those_of_the_optimizer_alone_and_momentum_begins_at_rest() {
    let mut model = build(&ModelSpec::Quadratic { condition: 10.0, noise: 0.5 }, 16, 1, 4);
    let inputs: Vec<f32> = (0..16 * 10).map(|index| (index as f32).sin()).collect();
    let labels = vec![0; 10];
    let examples = Examples::new(&inputs, &labels, 16);
    let layout = model.layout().clone();
    let schedule = RateSchedule { shape: Shape::Linear, warmup: 0.0, final_share: 0.0 };
    let inner = OptimizerSpec { schedule, ..inner(MOMENTUM, 0.5) };
    let partition = Partition::new(16, 1, 1);
    // Ten samples in steps of four: the last has two.
    let mut solver = LocalSolver::new(spec(3, 1, None), inner, 4, &layout, &partition);
    let start = vec![1.0_f32; 16];
    let mut pushed = vec![0.0; 16];
    for first in [0, 3] {
        let (mut values, mut slope, mut loss_sum) = (start.clone(), vec![0.0; 16], 0.0);
        let mut optimizer = Optimizer::new(inner, &layout, KeyRange::new(0, 16), 1);
        for (step, piece) in (0..).zip(examples.pieces(4)) {
            loss_sum += f64::from(model.gradient(&values, piece, &mut slope)) * piece.samples() as f64;
            let progress = (first + step) as f64 / 6.0;
            optimizer.apply(&mut values, &slope, &Step::fresh(progress, step));
        }
        let iteration = LocalIteration {
            pulled: &start,
            adopted: &[],
            clock: Clock(first),
            examples,
            batch: BatchIndex(first),
            batch_count: 6,
        };
        let mut gradient =
            |values: &[f32], examples: Examples<'_>, out: &mut [f32]| model.gradient(values, examples, out);
        let loss = solver.iterate(&iteration, &mut gradient, &|| true, &mut pushed);
        assert_eq!(loss, Some(loss_sum / 10.0));
        assert_eq!(solver.values(), values);
        assert!(pushed.iter().zip(start.iter().zip(&values)).all(|(out, (from, to))| *out == from - to));
    }
}

#[test]
fn a_fragment_is_pushed_in_its_turn_with_all_that_was_done_since() {
    let mut solver = solver(spec(2, 3, None), inner(Rule::Sgd, 1.0), 4);
    let pulled = vec![0.0; 64];
    let mut gradient = |_: &[f32], _: Examples<'_>, out: &mut [f32]| {
        out.fill(1.0);
        0.0
    };
    // Shards 0 and 3 are fragment 0. Each iteration goes two down everywhere.
    for (clock, turn, come) in [(0, 0, 2.0), (1, 1, 4.0), (2, 2, 6.0), (3, 0, 6.0), (4, 1, 6.0)] {
        let (_, pushed) = iterate(&mut solver, (clock, 2), (&pulled, &[]), &mut gradient, &|| true);
        for (shard, part) in pushed.chunks(16).enumerate() {
            let wanted = if shard % 3 == turn { come } else { 0.0 };
            assert_eq!(part, [wanted; 16], "clock {clock}, shard {shard}");
        }
    }
}

#[test]
fn what_is_adopted_keeps_what_was_done_meanwhile_on_top_of_it() {
    let mut solver = solver(spec(1, 2, None), inner(Rule::Sgd, 1.0), 2);
    let mut gradient = |_: &[f32], _: Examples<'_>, out: &mut [f32]| {
        out.fill(1.0);
        0.0
    };
    let mut step = |clock, value: f32, adopted: &[ShardId]| {
        let pulled = vec![value; 32];
        let (_, pushed) = iterate(&mut solver, (clock, 1), (&pulled, adopted), &mut gradient, &|| true);
        (solver.values()[0], solver.values()[16], pushed[0], pushed[16])
    };
    assert_eq!(step(0, 10.0, &all(2)), (9.0, 9.0, 1.0, 0.0));
    // Shard 1 was not pushed: its one step stays on top of the new values, twice.
    assert_eq!(step(1, 20.0, &[ShardId(1)]), (8.0, 18.0, 0.0, 2.0));
    assert_eq!(step(2, 30.0, &all(2)), (28.0, 29.0, 2.0, 0.0));
    // An unknown shard is nobody's.
    assert_eq!(step(3, 40.0, &[ShardId(9)]), (27.0, 28.0, 0.0, 2.0));
}

#[test]
fn momentum_goes_on_over_fragments_and_ends_with_forgetting() {
    let mut solver = solver(spec(1, 2, None), inner(MOMENTUM, 1.0), 2);
    let mut gradient = |_: &[f32], _: Examples<'_>, out: &mut [f32]| {
        out.fill(1.0);
        0.0
    };
    let pulled = vec![0.0; 32];
    let mut step = |solver: &mut LocalSolver, clock| {
        iterate(solver, (clock, 1), (&pulled, &[]), &mut gradient, &|| true);
        solver.values()[0]
    };
    assert_eq!([step(&mut solver, 0), step(&mut solver, 1)], [-1.0, -2.5]);
    solver.forget();
    assert_eq!([step(&mut solver, 2), step(&mut solver, 3)], [-1.0, -2.5]);
}

#[test]
fn gradients_that_are_no_numbers_do_not_stay_with_the_worker() {
    for spec in [spec(1, 2, None), spec(1, 1, Some(0.5))] {
        let mut solver = solver(spec, inner(Rule::Sgd, 1.0), 2);
        let pulled = vec![3.0; 32];
        let slope = std::cell::Cell::new(f32::NAN);
        let mut gradient = |_: &[f32], _: Examples<'_>, out: &mut [f32]| {
            out.fill(slope.get());
            0.0
        };
        let mut has_told = false;
        for clock in 0..4 {
            let (_, pushed) = iterate(&mut solver, (clock, 1), (&pulled, &[]), &mut gradient, &|| true);
            has_told |= first_not_finite(&pushed).is_some();
            slope.set(1.0);
        }
        assert!(has_told, "the servers can see it");
        assert!(solver.values().iter().all(|value| value.is_finite()));
    }
}

proptest! {
    /// The bits too: with one fragment nothing is kept, so the pulled values are the whole beginning.
    #[test]
    fn fragments_that_adopt_all_at_each_turn_walk_as_plain_local_steps(
        pulls in prop::collection::vec(prop::collection::vec(-2.0_f32..2.0, 16), 1..6),
    ) {
        let mut plain = solver(spec(3, 1, None), inner(Rule::Sgd, 0.1), 1);
        // One shard is in turn at each even clock only; what is between is skipped.
        let mut kept = solver(spec(3, 2, None), inner(Rule::Sgd, 0.1), 1);
        let mut gradient = |values: &[f32], examples: Examples<'_>, out: &mut [f32]| {
            for (out, value) in out.iter_mut().zip(values) { *out = value.sin() + examples.inputs()[0]; }
            0.0
        };
        for (clock, pulled) in (0..).zip(&pulls) {
            let given = (&pulled[..], &all(1)[..]);
            let (_, left) = iterate(&mut plain, (2 * clock, 3), given, &mut gradient, &|| true);
            let (_, right) = iterate(&mut kept, (2 * clock, 3), given, &mut gradient, &|| true);
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&left), bits(&right));
            prop_assert_eq!(bits(plain.values()), bits(kept.values()));
        }
    }

    /// Whole numbers, so that sums are exact: what was pushed and what is left to push is all that was walked.
    #[test]
    fn every_step_is_pushed_exactly_once(
        fragments in 2..5_u32,
        turns in prop::collection::vec(
            (1..4_usize, prop::collection::vec((0..5_u32, -50..50_i32), 0..4), 0..6_u32), 1..30),
    ) {
        const SHARDS: u32 = 5;
        let mut solver = solver(spec(3, fragments, None), inner(Rule::Sgd, 1.0), SHARDS);
        let mut theirs = vec![0.0_f32; 80];
        let (mut walked, mut arrived) = (vec![0.0_f32; 80], vec![0.0_f32; 80]);
        for (clock, (steps, news, fate)) in (0..).zip(turns) {
            let adopted: Vec<ShardId> = news.iter().map(|(shard, _)| ShardId(*shard)).collect();
            for (shard, value) in &news {
                let start = *shard as usize * 16;
                theirs[start..start + 16].fill(*value as f32);
            }
            // One fate in six breaks off after the first step, another takes back what was ready.
            let asked = std::cell::Cell::new(0);
            let is_wanted = || { asked.set(asked.get() + 1); fate != 0 || asked.get() < 2 };
            let mut gradient = |_: &[f32], examples: Examples<'_>, out: &mut [f32]| {
                for (key, (out, walked)) in out.iter_mut().zip(&mut walked).enumerate() {
                    *out = ((key as f32 + examples.inputs()[0] + clock as f32) % 7.0) - 3.0;
                    *walked += *out;
                }
                1.0
            };
            let (loss, pushed) =
                iterate(&mut solver, (clock, steps), (&theirs, &adopted), &mut gradient, &is_wanted);
            prop_assert_eq!(loss.is_none(), fate == 0 && steps > 1);
            match (loss, fate) {
                (None, _) => prop_assert!(pushed.iter().all(|value| *value == 0.0)),
                (Some(_), 1) => solver.abandon(),
                (Some(_), _) => arrived.iter_mut().zip(&pushed).for_each(|(sum, part)| *sum += part),
            }
        }
        solver.settle();
        for key in 0..80 {
            let left = solver.base[key] - solver.values[key];
            prop_assert_eq!(arrived[key] + left, walked[key], "key {}", key);
        }
    }
}

/// Elastic averaging of workers in turn on the unit quadratic: how far from zero all are after many exchanges.
fn distance_after(workers: usize, rate: f32, share: f64) -> f32 {
    let mut solvers: Vec<LocalSolver> =
        (0..workers).map(|_| solver(spec(1, 1, Some(share)), inner(Rule::Sgd, rate), 1)).collect();
    let mut center = vec![1.0_f32; 16];
    for exchange in 0..6000 * workers {
        let mut gradient = |values: &[f32], _: Examples<'_>, out: &mut [f32]| {
            out.copy_from_slice(values);
            0.0
        };
        let place = ((exchange / workers) as u64, 1);
        let (_, pushed) =
            iterate(&mut solvers[exchange % workers], place, (&center, &[]), &mut gradient, &|| true);
        center.iter_mut().zip(&pushed).for_each(|(center, pushed)| *center -= pushed);
        if center[0].abs() > 1e6 || !center[0].is_finite() {
            return f32::INFINITY;
        }
    }
    solvers.iter().map(|solver| solver.values()[0].abs()).fold(center[0].abs(), f32::max)
}

/// Zhang, Choromanska and LeCun 2015: stable for `0 <= rate <= 2` and `share <= (4 - 2 rate) / (4 - rate)`. For one worker exactly there;
/// for more, each exchange for itself shrinks there, so all of them do, but what is beyond is not always unstable.
#[test]
fn elastic_averaging_is_stable_in_its_region_and_for_one_worker_nowhere_else() {
    for rate in [0.1, 0.5, 1.0, 1.5, 1.9] {
        let border = (4.0 - 2.0 * f64::from(rate)) / (4.0 - f64::from(rate));
        for workers in [1, 2, 3] {
            let inside = distance_after(workers, rate, 0.97 * border);
            assert!(inside < 1e-3, "{workers} workers at rate {rate}: {inside} inside");
        }
        let outside = distance_after(1, rate, 1.03 * border);
        assert!(outside > 1e3, "rate {rate}: {outside} outside");
    }
    for workers in [1, 2, 3] {
        assert!(distance_after(workers, 2.05, 0.01) > 1e3, "no share helps beyond a rate of two");
    }
}

#[test]
fn an_elastic_move_is_the_same_on_both_sides_and_can_be_taken_back() {
    let mut solver = solver(spec(2, 1, Some(0.25)), inner(Rule::Sgd, 1.0), 1);
    let mut gradient = |_: &[f32], _: Examples<'_>, out: &mut [f32]| {
        out.fill(1.0);
        0.0
    };
    let mut center = vec![8.0_f32; 16];
    let (_, pushed) = iterate(&mut solver, (0, 2), (&center, &[]), &mut gradient, &|| true);
    assert_eq!((pushed[0], solver.values()[0]), (0.0, 6.0), "the first begins at the servers' values");
    let (_, pushed) = iterate(&mut solver, (1, 2), (&center, &[]), &mut gradient, &|| true);
    // The distance was -2: both move half a unit towards each other, beside the two steps.
    assert_eq!((pushed[0], solver.values()[0]), (0.5, 6.0 + 0.5 - 2.0));
    solver.abandon();
    solver.abandon();
    assert_eq!(solver.values()[0], 4.0, "the move is taken back, the steps are not");
    center.fill(4.0);
    let asked = std::cell::Cell::new(0);
    let once = || asked.replace(1) == 0;
    let (loss, pushed) = iterate(&mut solver, (1, 2), (&[8.0; 16], &[]), &mut gradient, &once);
    assert_eq!((loss, pushed[0], solver.values()[0]), (None, 0.0, 3.0), "broken off after one step");
    let (_, pushed) = iterate(&mut solver, (1, 0), (&[7.0; 16], &[]), &mut gradient, &|| true);
    assert_eq!((pushed[0], solver.values()[0]), (1.0, 4.0), "without samples only the move is left");
}
