//! Values that are pulled while the gradient before is computed: what that saves, what it costs, and that the bound is what it was.
#![allow(clippy::unwrap_used)]

mod common;

use common::{number, run, timing};

type Keys<'a> = &'a [(&'a str, &'a str)];

const AHEAD: (&str, &str) = ("consistency.prefetch", "1");

#[test]
fn a_pull_that_is_shorter_than_the_gradient_takes_no_time() {
    // 650 values take 0.02 s each way, so a cycle has 0.05 s of computing and, in turn, a push and a pull.
    let link: Keys<'_> = &[
        ("workers", "1"),
        ("servers", "1"),
        ("consistency.policy", "\"asp\""),
        ("stragglers.compute_s", "0.05"),
        ("stragglers.jitter", "0.0"),
        ("simulation.bandwidth_mbps", "1.04"),
        ("evaluate.every_epochs", "0.0"),
    ];
    let (plain, ahead) = (timing(link), timing(&[link, &[AHEAD]].concat()));
    let speed = |outcome| number(outcome, "/samples_per_s");
    let ratio = speed(&ahead) / speed(&plain);
    assert!((ratio / (0.09 / 0.05) - 1.0).abs() < 0.03, "{ratio:.3} times as fast");
    assert!(number(&plain, "/time/pull") > 0.2 && number(&ahead, "/time/pull") < 0.02);
    assert!(number(&ahead, "/time/push") < 0.02, "the answer comes while the next gradient is computed");
    let staleness = |outcome| number(outcome, "/staleness/version/max");
    assert_eq!((staleness(&plain), staleness(&ahead)), (0.0, 1.0));
}

#[test]
fn a_pull_that_takes_longer_is_waited_for_and_booked_as_one() {
    // A push and a pull take 0.08 s in turn, so that every other gradient waits for its values.
    let link: Keys<'_> = &[
        ("workers", "1"),
        ("servers", "1"),
        ("consistency.policy", "\"asp\""),
        ("stragglers.compute_s", "0.05"),
        ("stragglers.jitter", "0.0"),
        ("simulation.bandwidth_mbps", "0.52"),
        ("evaluate.every_epochs", "0.0"),
        AHEAD,
    ];
    let outcome = timing(link);
    let share = |path| number(&outcome, path);
    let (compute, pull) = (share("/time/compute"), share("/time/pull"));
    assert!(pull > 0.15 && compute + pull > 0.97, "{compute} {pull}");
}

// The gate judges a pull by the clock at which its values are used: no worker comes to a clock earlier or later than without.
#[test]
fn where_the_network_takes_no_time_nobody_is_held_longer_or_shorter() {
    for staleness in ["1", "2", "5"] {
        let keys: Keys<'_> = &[
            ("workers", "8"),
            ("train.batch", "1"),
            ("stragglers.kind", "\"exp\""),
            ("stragglers.compute_s", "1.0"),
            ("consistency.staleness", staleness),
            ("evaluate.every_epochs", "0.0"),
        ];
        let of = |more: Keys<'_>| {
            let outcome = timing(&[keys, more].concat());
            ["/virtual_s", "/time/wait_for_clock", "/iterations"].map(|path| number(&outcome, path))
        };
        let (plain, ahead) = (of(&[]), of(&[AHEAD]));
        assert_eq!(plain[2], ahead[2]);
        assert!((plain[0] / ahead[0] - 1.0).abs() < 1e-9, "s = {staleness}: {plain:?} {ahead:?}");
        // Which of the workers has the last batches is decided by the order of events of one moment.
        assert!((plain[1] - ahead[1]).abs() < 2e-3, "s = {staleness}: {plain:?} {ahead:?}");
    }
}

#[test]
fn the_staleness_is_that_of_all_iterations_in_flight_and_one_more_than_without_at_most() {
    for (workers, staleness, bound) in [("2", "1", 4.0), ("3", "2", 11.0), ("5", "1", 13.0)] {
        let keys: Keys<'_> = &[
            ("workers", workers),
            ("servers", "1"),
            ("train.batch", "1"),
            ("train.epochs", "3"),
            ("stragglers.kind", "\"pareto\""),
            ("stragglers.alpha", "1.1"),
            ("stragglers.compute_s", "1.0"),
            ("consistency.staleness", staleness),
            ("evaluate.every_epochs", "0.0"),
            AHEAD,
        ];
        let outcome = timing(keys);
        assert_eq!(number(&outcome, "/staleness/version/bound"), bound);
        let most = number(&outcome, "/staleness/version/max");
        assert!(
            most <= bound && most >= bound - 3.0,
            "{workers} workers, s = {staleness}: {most} of {bound}"
        );
        let lead = number(&outcome, "/staleness/clock_lead/max");
        assert_eq!(lead.to_string(), staleness, "at the clock at which it is used");
        let applied = number(&outcome, "/pushes/applied");
        let sum = number(&outcome, "/staleness/version/mean") * applied;
        assert_eq!(sum.round() as u64, outcome.in_flight);
    }
}

// A worker alone then learns with a delay of one, whose limit of stability is known: a rate of one, where it is two without.
#[test]
fn one_worker_that_pulls_ahead_is_stable_exactly_below_the_limit_of_a_delay_of_one() {
    let loss_at = |rate: &str| {
        let outcome = run(&[
            ("data.dataset", "\"noise\""),
            ("data.dimensions", "1"),
            ("data.samples", "3000"),
            ("model.kind", "\"quadratic\""),
            ("model.noise", "0.0"),
            ("train.batch", "1"),
            ("train.epochs", "1"),
            ("optimizer.rate", rate),
            ("workers", "1"),
            ("servers", "1"),
            ("consistency.policy", "\"asp\""),
            ("evaluate.every_epochs", "0.0"),
            AHEAD,
        ])
        .unwrap();
        let loss = outcome.summary.pointer("/final/test_loss").and_then(serde_json::Value::as_f64);
        (loss.unwrap_or(f64::INFINITY), outcome.diverged.is_some())
    };
    assert!(loss_at("0.98").0 < 1e-6);
    let (above, diverged) = loss_at("1.02");
    assert!(above > 1e3 || diverged, "{above}");
}
