//! What the policies must be equal to, and what each of them is for, on simulated runs with the real cores.
#![allow(clippy::unwrap_used)]

mod common;

use common::{number, run, timing};
use slackline_sim::Outcome;

type Keys<'a> = &'a [(&'a str, &'a str)];

fn figures(outcome: &Outcome) -> [f64; 3] {
    ["/final/test_loss", "/final/test_accuracy", "/iterations"].map(|path| number(outcome, path))
}

fn with(base: Keys<'_>, more: Keys<'_>) -> [f64; 3] {
    figures(&run(&[base, more].concat()).unwrap_or_else(|failure| panic!("{failure}")))
}

/// Four workers in step, whose inner optimizer is plain.
const IN_STEP: Keys<'_> =
    &[("workers", "4"), ("consistency.policy", "\"bsp\""), ("optimizer.rate", "0.1"), ("train.epochs", "4")];

#[test]
fn one_local_step_with_plain_averaging_is_bsp() {
    let bsp = with(IN_STEP, &[]);
    let local = with(IN_STEP, &[("local.mode", "\"difference\""), ("local.steps", "1")]);
    // The difference of two values is rounded where the gradient is not.
    assert!((bsp[0] - local[0]).abs() < 1e-5 && bsp[2] == local[2], "{bsp:?} {local:?}");
    let sgd = with(
        IN_STEP,
        &[
            ("local.mode", "\"difference\""),
            ("local.steps", "1"),
            ("local.outer", "\"sgd\""),
            ("local.outer_rate", "1.0"),
        ],
    );
    assert_eq!(local, sgd, "a step of rate 1 is the average");
}

#[test]
fn local_steps_under_a_quorum_of_all_without_grace_in_one_fragment_are_local_steps() {
    let local: Keys<'_> = &[("local.mode", "\"difference\""), ("local.steps", "5")];
    let bsp = with(IN_STEP, local);
    let quorum =
        with(IN_STEP, &[local, &[("consistency.policy", "\"quorum\""), ("local.fragments", "1")]].concat());
    assert_eq!(bsp, quorum);
}

#[test]
fn without_stragglers_a_quorum_of_all_is_bsp_and_so_is_a_backup_of_nobody() {
    let bsp = with(IN_STEP, &[]);
    assert_eq!(bsp, with(IN_STEP, &[("consistency.policy", "\"quorum\"")]));
    assert_eq!(bsp, with(IN_STEP, &[("consistency.policy", "\"backup\""), ("consistency.backup", "0")]));
}

#[test]
fn equal_speeds_get_equal_shares() {
    let steady: Keys<'_> = &[("stragglers.jitter", "0.0"), ("train.epochs", "4"), ("workers", "4")];
    let of = |proportional| {
        let outcome = timing(&[steady, &[("train.proportional", proportional)]].concat());
        ["/iterations", "/virtual_s"].map(|path| number(&outcome, path))
    };
    assert_eq!(of("true"), of("false"));
}

/// Eight workers, one of them always four times slower.
const ONE_SLOW: Keys<'_> = &[
    ("workers", "8"),
    ("servers", "1"),
    ("train.batch", "16"),
    ("train.epochs", "60"),
    ("stragglers.kind", "\"permanent\""),
    ("stragglers.factor", "4.0"),
    ("stragglers.compute_s", "1.0"),
    ("evaluate.every_epochs", "0.0"),
];

// Finite bounds do nothing for a worker that is always slow; work in proportion, a backup and a quorum do.
#[test]
fn a_permanent_straggler_is_helped_by_work_in_proportion_a_backup_and_a_quorum_and_not_by_a_bound() {
    let speed = |more: Keys<'_>| number(&timing(&[ONE_SLOW, more].concat()), "/samples_per_s");
    let bsp = speed(&[("consistency.policy", "\"bsp\"")]);
    let ssp = speed(&[("consistency.policy", "\"ssp\""), ("consistency.staleness", "4")]);
    assert!((ssp / bsp - 1.0).abs() < 0.05, "a bound gives {:.3}", ssp / bsp);
    // Seven whole speeds and a quarter, against eight times the quarter.
    let proportional = speed(&[("consistency.policy", "\"bsp\""), ("train.proportional", "true")]);
    assert!(proportional / bsp > 0.9 * 7.25 / 2.0, "work in proportion gives {:.3}", proportional / bsp);
    // A round takes as long as the longest of seven times that differ by a twentieth.
    let backup = speed(&[("consistency.policy", "\"backup\"")]);
    assert!(backup / bsp > 0.92 * 7.0 / 2.0, "a backup gives {:.3}", backup / bsp);
    let quorum = speed(&[("consistency.policy", "\"quorum\""), ("consistency.quorum", "7")]);
    assert!(quorum / bsp > 0.9 * 7.0 / 2.0, "a quorum of seven gives {:.3}", quorum / bsp);
}

#[test]
fn dssp_waits_less_than_its_low_bound_and_never_exceeds_its_high_one() {
    let rotating: Keys<'_> = &[
        ("workers", "8"),
        ("train.batch", "1"),
        ("train.epochs", "8"),
        ("stragglers.kind", "\"rotating\""),
        ("stragglers.compute_s", "1.0"),
        ("evaluate.every_epochs", "0.0"),
    ];
    let of = |more: Keys<'_>| timing(&[rotating, more].concat());
    let ssp = |bound| of(&[("consistency.policy", "\"ssp\""), ("consistency.staleness", bound)]);
    let dssp =
        of(&[("consistency.policy", "\"dssp\""), ("consistency.low", "1"), ("consistency.high", "12")]);
    let waiting = |outcome: &Outcome| number(outcome, "/time/wait_for_clock");
    let (low, high) = (ssp("1"), ssp("12"));
    assert!(waiting(&dssp) < waiting(&low), "{} {}", waiting(&dssp), waiting(&low));
    assert!(waiting(&dssp) > 0.5 * waiting(&high));
    let lead = number(&dssp, "/staleness/clock_lead/max");
    assert!(lead > 1.0 && lead <= 12.0, "{lead}");
}

#[test]
fn essp_reads_no_staler_than_ssp_at_the_same_bound_and_pays_in_bytes() {
    // Servers that are reached at different times: a narrow link on which the shards of one pull queue behind each other.
    let slow_links: Keys<'_> = &[
        ("workers", "8"),
        ("servers", "4"),
        ("train.batch", "4"),
        ("train.epochs", "12"),
        ("stragglers.kind", "\"exp\""),
        ("stragglers.compute_s", "0.05"),
        ("simulation.bandwidth_mbps", "0.5"),
        ("simulation.latency_s", "0.005"),
        ("evaluate.every_epochs", "0.0"),
    ];
    for bound in ["0", "1", "3"] {
        let of = |policy| {
            let policy: Keys<'_> = &[("consistency.policy", policy), ("consistency.staleness", bound)];
            timing(&[slow_links, policy].concat())
        };
        let (ssp, essp) = (of("\"ssp\""), of("\"essp\""));
        for measure in ["/staleness/version/mean", "/staleness/clock_lead/max"] {
            let (ssp, essp) = (number(&ssp, measure), number(&essp, measure));
            assert!(essp <= 1.02 * ssp, "s = {bound}: {measure} is {essp} under essp, {ssp} under ssp");
        }
        assert_eq!(number(&essp, "/staleness/clock_lead/bound"), number(&ssp, "/staleness/clock_lead/bound"));
        assert!(number(&essp, "/bytes/pulled") >= number(&ssp, "/bytes/pulled"), "s = {bound}");
    }
}

#[test]
fn a_gradient_that_is_too_stale_is_dropped_and_its_batch_done_again() {
    let keys: Keys<'_> = &[
        ("workers", "8"),
        ("consistency.policy", "\"asp\""),
        ("consistency.drop_at", "8"),
        ("stragglers.kind", "\"pareto\""),
        ("stragglers.alpha", "1.2"),
        ("train.epochs", "6"),
    ];
    let outcome = run(keys).unwrap();
    let dropped = number(&outcome, "/decisions/drop/stale");
    assert!(dropped > 0.0);
    assert!(number(&outcome, "/staleness/version/max") < 8.0);
    assert_eq!(number(&outcome, "/epochs"), 6.0, "every sample is in the values");
    assert_eq!(number(&outcome, "/pushes/dropped"), dropped);
}

#[test]
fn a_treatment_of_delay_is_counted() {
    let keys: Keys<'_> =
        &[("workers", "4"), ("consistency.policy", "\"asp\""), ("consistency.delay", "\"inverse\"")];
    let outcome = run(keys).unwrap();
    let [apply, down] = ["apply", "down_weight"].map(|name| number(&outcome, &format!("/decisions/{name}")));
    assert!(down > apply, "with four workers most gradients are three versions stale: {apply} {down}");
    assert_eq!(apply + down, number(&outcome, "/pushes/applied"));
}

/// The loss of plain SGD on `w^2 / 2` from w = 1, where every gradient is `delay` versions stale.
fn loss_at(delay: u32, rate: f64) -> (f64, bool) {
    let workers = (delay + 1).to_string();
    let rate = format!("{rate:.6}");
    let outcome = run(&[
        ("data.dataset", "\"noise\""),
        ("data.dimensions", "1"),
        ("data.samples", "6000"),
        ("model.kind", "\"quadratic\""),
        ("model.noise", "0.0"),
        ("train.batch", "1"),
        ("train.epochs", "1"),
        ("optimizer.rate", &rate),
        ("workers", &workers),
        ("servers", "1"),
        ("consistency.policy", "\"asp\""),
        ("stragglers.jitter", "0.0"),
        ("evaluate.every_epochs", "0.0"),
    ])
    .unwrap_or_else(|failure| panic!("{failure}"));
    let mean = number(&outcome, "/staleness/version/mean");
    assert!((mean - f64::from(delay)).abs() < 0.05, "the delay is {mean}");
    let loss = outcome.summary.pointer("/final/test_loss").and_then(serde_json::Value::as_f64);
    (loss.unwrap_or(f64::INFINITY), outcome.diverged.is_some())
}

// With workers of one pace under asp, each gradient is as many versions stale as there are other workers.
#[test]
fn sgd_with_a_fixed_delay_is_stable_exactly_below_its_limit() {
    for delay in [0_u32, 1, 3, 7] {
        let limit = 2.0 * (std::f64::consts::PI / (2.0 * (2.0 * f64::from(delay) + 1.0))).sin();
        let (below, _) = loss_at(delay, 0.98 * limit);
        assert!(below < 1e-6, "delay {delay}, 2 % below {limit:.4}: {below}");
        let (above, diverged) = loss_at(delay, 1.02 * limit);
        assert!(above > 1e3 || diverged, "delay {delay}, 2 % above {limit:.4}: {above}");
    }
}

// Shards close clocks with different workers: what one had taken was done again for the other, for ever (found by a review).
#[test]
fn backup_over_several_shards_ends_and_no_shard_takes_a_batch_twice() {
    let narrow: Keys<'_> = &[
        ("consistency.policy", "\"backup\""),
        ("simulation.bandwidth_mbps", "0.5"),
        ("simulation.latency_s", "0.05"),
        ("stragglers.kind", "\"permanent\""),
        ("evaluate.every_epochs", "0.0"),
    ];
    let shapes: [Keys<'_>; 3] = [
        &[("workers", "6"), ("servers", "2"), ("local.mode", "\"difference\""), ("local.steps", "8")],
        &[("workers", "3"), ("servers", "3"), ("cluster.shards_per_server", "3"), ("seed", "46571")],
        &[
            ("workers", "6"),
            ("servers", "4"),
            ("consistency.policy", "\"buffer\""),
            ("consistency.quorum", "3"),
            ("consistency.drop_at", "1"),
        ],
    ];
    for shape in shapes {
        let outcome = timing(&[narrow, shape].concat());
        assert_eq!(number(&outcome, "/epochs"), 2.0);
        let parts = number(&outcome, "/iterations") * number(&outcome, "/shards");
        let applied = number(&outcome, "/pushes/applied");
        assert!(applied <= parts, "{shape:?}: {applied} parts of {parts} were applied");
    }
}

// All samples were in, and a worker that was dead or came back too late made a failure of it (found by a review).
#[test]
fn a_run_whose_samples_are_all_in_is_complete_whoever_is_dead() {
    let outcome = timing(&[
        ("workers", "7"),
        ("cluster.shards_per_server", "2"),
        ("servers", "1"),
        ("consistency.policy", "\"asp\""),
        ("seed", "91927"),
        ("stragglers.kind", "\"pareto\""),
        ("stragglers.compute_s", "0.3"),
        ("simulation.latency_s", "0.001"),
        ("simulation.loss", "0.1"),
        ("cluster.lease_s", "2.0"),
        ("local.mode", "\"difference\""),
        ("local.steps", "3"),
        ("simulation.incidents", "[\"worker 3 crash at 3.51\", \"server 0 pause at 0.89 for 1.2\"]"),
    ]);
    assert_eq!(number(&outcome, "/epochs"), 2.0);
}
