//! What must be equal: a run over servers and workers against the plain loop on one machine, and clusters of one size against another.
//!
//! The runs are those of the simulated world without faults, so that the cores are the real ones and the order in which messages arrive
//! changes with the seed. Equal means equal in every bit, except where a test says how far apart and why.
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[path = "../world/invariants/mod.rs"]
#[allow(dead_code, reason = "the laws are watched here too; not everything of the harness is used")]
mod invariants;
mod network;
#[path = "../world/simulation/mod.rs"]
#[allow(dead_code, reason = "not everything of the harness is used")]
mod simulation;

use std::time::Duration;

use network::Digits;
use simulation::problem::Bowls;
use simulation::resume::Former;
use simulation::trace::Trace;
use simulation::{Problem, Scenario, Weather, World};
use slackline_core::consistency::PolicySpec;
use slackline_core::ids::{BatchIndex, KeyRange};
use slackline_core::optimizer::{Optimizer, OptimizerSpec, Per, RateSchedule, Rule, Shape, Step};
use slackline_core::schedule::DataOrder;

const SSP: PolicySpec = PolicySpec::Ssp { staleness: 2 };

/// One of each policy.
const ALL: [PolicySpec; 8] = [
    PolicySpec::Bsp,
    SSP,
    PolicySpec::Essp { staleness: 2 },
    PolicySpec::Dssp { low: 1, high: 3 },
    PolicySpec::Asp,
    PolicySpec::Backup { late: 1 },
    PolicySpec::Quorum { count: Some(3), grace: Duration::from_millis(1), holds: true },
    PolicySpec::Buffer { count: None },
];

fn momentum() -> OptimizerSpec {
    let schedule = RateSchedule { shape: Shape::Cosine, warmup: 0.1, final_share: 0.0 };
    OptimizerSpec {
        rule: Rule::Momentum { momentum: 0.9, nesterov: false, per: Per::Push },
        rate: 0.05,
        weight_decay: 0.001,
        decay_per_clock: true,
        schedule,
    }
}

/// A run whose messages overtake each other, but in which nothing is lost.
fn scenario(
    policy: PolicySpec,
    (workers, servers): (u32, u32),
    samples: u64,
    batch: u64,
    epochs: u64,
) -> Scenario {
    let weather = Weather { delay: 10_000, transfer_delay: 60_000, ..Weather::CALM };
    Scenario {
        optimizer: momentum(),
        workers,
        servers,
        samples,
        batch,
        epochs,
        compute: 50_000,
        evaluate_every_epochs: 0.5,
        shards_per_server: 2,
        keys: 200,
        weather,
        ..Scenario::calm(7, policy)
    }
}

/// Final values of a run; `timing` changes when messages arrive and nothing else.
fn run(scenario: &Scenario, problem: Box<dyn Problem>, timing: u64) -> Vec<f32> {
    let mut world = World::new(scenario.clone(), problem, Trace::Off);
    world.chance = simulation::chance::Chance::new(timing);
    let outcome =
        world.run().unwrap_or_else(|violation| panic!("timing {timing}: {violation}\n{scenario:?}"));
    assert!(outcome.repeated == 0, "nothing goes wrong: {outcome:?}");
    outcome.values
}

/// The plain loop on one machine.
fn local(scenario: &Scenario, problem: &mut dyn Problem) -> Vec<f32> {
    let Scenario { seed, samples, batch, epochs, .. } = *scenario;
    let mut order = DataOrder::new(seed, samples, batch, epochs);
    let whole = KeyRange::new(0, problem.layout().len());
    let mut optimizer = Optimizer::new(scenario.optimizer, problem.layout(), whole, 1);
    let mut values = problem.initial();
    let mut line = Vec::new();
    for index in 0..order.batch_count() {
        order.samples(BatchIndex(index), 1, &mut line);
        let (gradient, _) = problem.gradient(&values, &line);
        let progress = index as f64 / order.batch_count() as f64;
        optimizer.apply(&mut values, &gradient, &Step::fresh(progress, index));
    }
    values
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn bowls(scenario: &Scenario) -> Box<dyn Problem> {
    Box::new(Bowls::new(scenario.keys))
}

// Case 22 (bytedance/byteps#357, #142) and case 41 of the allreduce list: the asynchronous mode crashed, or gave wrong numbers. Case 36
// (PaddlePaddle/Paddle#7923): a cluster of one worker was worse than one machine.
#[test]
fn asp_with_one_worker_is_the_local_loop_over_any_number_of_servers() {
    for servers in [1, 2, 5] {
        let scenario = scenario(PolicySpec::Asp, (1, servers), 100, 3, 4);
        assert!(scenario.batch_count() > 100);
        let expected = local(&scenario, bowls(&scenario).as_mut());
        for timing in 0..5 {
            assert_eq!(bits(&run(&scenario, bowls(&scenario), timing)), bits(&expected), "{servers} servers");
        }
    }
}

#[test]
fn with_one_worker_every_policy_is_the_local_loop() {
    for policy in ALL {
        let scenario = scenario(policy, (1, 2), 60, 4, 2);
        let expected = local(&scenario, bowls(&scenario).as_mut());
        assert_eq!(bits(&run(&scenario, bowls(&scenario), 3)), bits(&expected), "{policy}");
    }
}

/// The plain loop whose gradients are computed on the values before its last step: all but the first two, since nothing is pulled ahead of
/// the first push.
fn delayed(scenario: &Scenario, problem: &mut dyn Problem) -> Vec<f32> {
    let Scenario { seed, samples, batch, epochs, .. } = *scenario;
    let mut order = DataOrder::new(seed, samples, batch, epochs);
    let whole = KeyRange::new(0, problem.layout().len());
    let mut optimizer = Optimizer::new(scenario.optimizer, problem.layout(), whole, 1);
    let mut values = problem.initial();
    let (mut before, mut line) = (values.clone(), Vec::new());
    for index in 0..order.batch_count() {
        order.samples(BatchIndex(index), 1, &mut line);
        let delay = u64::from(index >= 2);
        let (gradient, _) = problem.gradient(if delay == 1 { &before } else { &values }, &line);
        let progress = index as f64 / order.batch_count() as f64;
        before.copy_from_slice(&values);
        optimizer.apply(
            &mut values,
            &gradient,
            &Step { pulled: index - delay, ..Step::fresh(progress, index) },
        );
    }
    values
}

#[test]
fn one_worker_that_pulls_ahead_is_the_local_loop_with_a_delay_of_one() {
    let ordered = Rule::Momentum { momentum: 0.9, nesterov: false, per: Per::Ordered };
    for policy in ALL.into_iter().filter(|policy| policy.prefetch_max() > 0) {
        // A mean has no one pull that its place among the clocks could follow from.
        let rules = [(1, momentum().rule), (3, momentum().rule), (2, ordered)];
        for (servers, rule) in rules.into_iter().take(if policy.takes_means() { 2 } else { 3 }) {
            // A gradient takes longer than everything between a push and the next work.
            let plain = Scenario { compute: 2_000_000, ..scenario(policy, (1, servers), 60, 4, 2) };
            let scenario = Scenario { prefetch: 1, ..plain };
            let scenario = Scenario { optimizer: OptimizerSpec { rule, ..momentum() }, ..scenario };
            let expected = delayed(&scenario, bowls(&scenario).as_mut());
            assert_ne!(bits(&expected), bits(&local(&scenario, bowls(&scenario).as_mut())));
            for timing in 0..4 {
                let values = run(&scenario, bowls(&scenario), timing);
                assert_eq!(bits(&values), bits(&expected), "{policy}, {servers} servers, timing {timing}");
            }
        }
    }
}

/// Final values of a run, with its workers and timing.
type Cut = (u32, u64, Vec<f32>);

/// Runs over the same samples cut for one, two and four workers, and the local loop with the whole batch.
///
/// Only the schedule of the rate may not be cut: with P workers a clock is P batches of the run.
fn cut(whole: u64, samples: u64, servers: u32) -> (Vec<f32>, Vec<Cut>) {
    let constant = OptimizerSpec { schedule: RateSchedule::CONSTANT, ..momentum() };
    let of = |workers: u32| {
        let batch = whole / u64::from(workers);
        Scenario { optimizer: constant, ..scenario(PolicySpec::Bsp, (workers, servers), samples, batch, 3) }
    };
    let expected = local(&of(1), bowls(&of(1)).as_mut());
    let mut runs = Vec::new();
    for workers in [1, 2, 4] {
        for timing in 0..6 {
            runs.push((workers, timing, run(&of(workers), bowls(&of(workers)), timing)));
        }
    }
    (expected, runs)
}

#[test]
fn bsp_with_one_two_and_four_workers_is_one_large_batch_whatever_the_timing() {
    for servers in [1, 3] {
        let (expected, runs) = cut(16, 64, servers);
        for (workers, timing, values) in runs {
            assert_eq!(
                bits(&values),
                bits(&expected),
                "{workers} workers, {servers} servers, timing {timing}"
            );
        }
    }
}

// The degenerate laws: a policy at the end of its range is another one, bit for bit.
#[test]
fn backup_of_nobody_and_a_quorum_of_all_are_bsp() {
    let grace = Duration::ZERO;
    for workers in [2, 3, 4] {
        let of = |policy| scenario(policy, (workers, 2), 60, 4, 2);
        let bsp = run(&of(PolicySpec::Bsp), bowls(&of(PolicySpec::Bsp)), 0);
        for policy in [PolicySpec::Backup { late: 0 }, PolicySpec::Quorum { count: None, grace, holds: true }]
        {
            for timing in 0..4 {
                let values = run(&of(policy), bowls(&of(policy)), timing);
                assert_eq!(bits(&values), bits(&bsp), "{policy}, {workers} workers, timing {timing}");
            }
        }
    }
}

#[test]
fn dssp_between_equal_bounds_is_ssp_in_every_message() {
    let trace = |policy| {
        let scenario = scenario(policy, (4, 2), 120, 3, 2);
        let world = World::new(scenario.clone(), bowls(&scenario), Trace::Kept(Vec::new()));
        world.run().unwrap()
    };
    let [ssp, dssp] = [PolicySpec::Ssp { staleness: 1 }, PolicySpec::Dssp { low: 1, high: 1 }].map(trace);
    assert_eq!(bits(&ssp.values), bits(&dssp.values));
    assert_eq!(ssp.lines.len(), dssp.lines.len());
    assert!(ssp.lines.iter().eq(&dssp.lines));
}

#[test]
fn without_staleness_no_delay_treatment_changes_a_bit() {
    use slackline_core::consistency::{DelaySpec, Treatment};
    let of = |treatment, drop_at| Scenario {
        delay: DelaySpec { treatment, drop_at },
        ..scenario(PolicySpec::Asp, (1, 2), 60, 4, 2)
    };
    let plain = of(Treatment::None, None);
    let expected = run(&plain, bowls(&plain), 0);
    for treatment in [
        Treatment::Inverse,
        Treatment::InverseRoot,
        Treatment::Compensate { strength: 0.5 },
        Treatment::CompensateAdaptive { strength: 2.0 },
        Treatment::None,
    ] {
        let treated = of(treatment, Some(1));
        assert_eq!(bits(&run(&treated, bowls(&treated), 1)), bits(&expected), "{treatment:?}");
    }
}

// Case 44 (apache/mxnet#15923): what the optimizer had gathered was lost with a restart. Case 43 (tensorflow#6551): a checkpoint could be
// loaded on as many servers as it was made on only. Case 27 of the allreduce list: the rate began anew.
#[test]
fn bsp_from_a_checkpoint_is_the_run_that_was_not_interrupted_on_any_number_of_servers() {
    for (workers, servers) in [(1, 1), (3, 2), (4, 5)] {
        let whole = scenario(PolicySpec::Bsp, (workers, servers), 61, 5, 3);
        let expected = run(&whole, bowls(&whole), 0);
        for (servers, shards_per_server, checkpoints) in [(1, 1, 1), (2, 2, 2), (5, 1, 1), (3, 2, 3)] {
            let former = Former { servers, shards_per_server, every: 2, checkpoints };
            let resumed = Scenario { former: Some(former), ..whole.clone() };
            let values = run(&resumed, bowls(&resumed), u64::from(servers));
            assert_eq!(bits(&values), bits(&expected), "{workers} workers, {former:?}");
        }
    }
}

#[test]
fn bsp_does_not_depend_on_timing_when_nothing_is_a_power_of_two() {
    let scenario = scenario(PolicySpec::Bsp, (3, 2), 61, 5, 3);
    let first = run(&scenario, bowls(&scenario), 0);
    for timing in 1..8 {
        assert_eq!(bits(&run(&scenario, bowls(&scenario), timing)), bits(&first), "timing {timing}");
    }
}

#[test]
fn sizes_that_are_no_powers_of_two_are_equal_up_to_rounding() {
    // Shares such as 1/3 are not exact, and the tree over 12 samples is not the one over 2 x 6 or 4 x 3: each step can differ by a few
    // parts in 2^24, and 15 steps add up to less than one in 10^5.
    let (expected, runs) = cut(12, 60, 2);
    for (workers, timing, values) in runs {
        let furthest =
            values.iter().zip(&expected).map(|(left, right)| (left - right).abs()).fold(0.0, f32::max);
        assert!(furthest < 1e-5, "{workers} workers, timing {timing}: {furthest} apart");
    }
}

#[test]
fn the_number_of_servers_changes_no_bit() {
    for (policy, workers) in [(PolicySpec::Bsp, 3), (PolicySpec::Bsp, 4), (PolicySpec::Asp, 1), (SSP, 1)] {
        let of = |servers| scenario(policy, (workers, servers), 48, 4, 2);
        let expected = run(&of(1), bowls(&of(1)), 0);
        for servers in [2, 5] {
            let values = run(&of(servers), bowls(&of(servers)), u64::from(servers));
            assert_eq!(bits(&values), bits(&expected), "{policy}, {workers} workers, {servers} servers");
        }
    }
}

#[test]
fn a_network_on_digits_gives_the_same_bits_over_servers_and_workers() {
    let constant = OptimizerSpec { schedule: RateSchedule::CONSTANT, ..momentum() };
    let of = |policy, workers: u32, servers| Scenario {
        optimizer: constant,
        ..scenario(policy, (workers, servers), 512, 32 / u64::from(workers), 2)
    };
    let problem = || Box::new(Digits::new(8));
    let expected = local(&of(PolicySpec::Bsp, 1, 1), problem().as_mut());
    let runs = [
        (PolicySpec::Asp, 1, 1),
        (PolicySpec::Asp, 1, 5),
        (PolicySpec::Bsp, 1, 2),
        (PolicySpec::Bsp, 2, 2),
        (PolicySpec::Bsp, 4, 5),
    ];
    for (policy, workers, servers) in runs {
        let values = run(&of(policy, workers, servers), problem(), u64::from(servers));
        assert_eq!(bits(&values), bits(&expected), "{policy}, {workers} workers, {servers} servers");
    }
}
