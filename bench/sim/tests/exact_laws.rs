//! Simulated runs against what is known exactly: laws of bounded staleness, and throughputs of an independent program.
#![allow(clippy::unwrap_used)]

mod common;

use common::{number, timing};

/// Keys of a run of `workers` workers with one sample a batch, `iterations` each, that compute for about a second.
fn keys<'a>(workers: &'a str, epochs: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let base = [
        ("workers", workers),
        ("servers", "1"),
        ("train.batch", "1"),
        ("train.epochs", epochs),
        ("stragglers.compute_s", "1.0"),
        ("evaluate.every_epochs", "0.0"),
    ];
    base.iter().chain(more).copied().collect()
}

fn samples_per_s(keys: &[(&str, &str)]) -> f64 {
    number(&timing(keys), "/samples_per_s")
}

fn policy(staleness: Option<&str>) -> Vec<(&'static str, String)> {
    match staleness {
        None => vec![("consistency.policy", "\"asp\"".to_owned())],
        Some(bound) => {
            vec![("consistency.policy", "\"ssp\"".to_owned()), ("consistency.staleness", bound.to_owned())]
        }
    }
}

#[test]
fn exponential_times_make_asp_as_many_times_faster_than_bsp_as_the_harmonic_number_says() {
    for (workers, epochs, harmonic) in [("4", "10", 2.0833), ("8", "20", 2.7179), ("16", "40", 3.3807)] {
        let of = |policy| {
            samples_per_s(&keys(
                workers,
                epochs,
                &[("stragglers.kind", "\"exp\""), ("consistency.policy", policy)],
            ))
        };
        let ratio = of("\"asp\"") / of("\"bsp\"");
        assert!((ratio / harmonic - 1.0).abs() < 0.03, "{workers} workers: {ratio:.3}, not {harmonic:.3}");
    }
}

/// Keys of a kind of straggler, and throughputs.
type Row = (&'static [(&'static str, &'static str)], [f64; 5]);

/// Throughput at s = 0, 1, 4, 8 and without a bound, as a multiple of that at s = 0, for eight workers.
///
/// They come from tests/golden/ssp_throughput.py, an independent program in Python that has no events, no servers and no protocol: it
/// reckons when each iteration ends from the rule alone, "begin iteration c when everybody has completed c - s", over 4,000 iterations of
/// each worker and four seeds.
const GOLDEN: [Row; 6] = [
    (&[("stragglers.kind", "\"exp\"")], [1.000, 1.520, 2.098, 2.350, 2.721]),
    (
        &[("stragglers.kind", "\"lognormal\""), ("stragglers.sigma", "0.5")],
        [1.000, 1.445, 1.724, 1.800, 1.884],
    ),
    (
        &[
            ("stragglers.kind", "\"transient\""),
            ("stragglers.probability", "0.05"),
            ("stragglers.factor", "10.0"),
        ],
        [1.000, 1.275, 1.834, 2.182, 2.800],
    ),
    (
        &[("stragglers.kind", "\"permanent\""), ("stragglers.factor", "2.0")],
        [1.000, 1.000, 1.001, 1.002, 1.876],
    ),
    (
        &[("stragglers.kind", "\"permanent\""), ("stragglers.factor", "4.0")],
        [1.000, 1.000, 1.001, 1.002, 3.626],
    ),
    (
        &[("stragglers.kind", "\"rotating\""), ("stragglers.factor", "4.0"), ("stragglers.burst", "5")],
        [1.000, 1.245, 1.902, 2.720, 2.909],
    ),
];

#[test]
fn ssp_is_as_fast_as_an_independent_program_says_for_every_kind_of_straggler() {
    for (stragglers, golden) in GOLDEN {
        let of = |staleness| {
            let policy = policy(staleness);
            let policy: Vec<_> = policy.iter().map(|(key, value)| (*key, value.as_str())).collect();
            samples_per_s(&keys("8", "16", &[stragglers, &policy].concat()))
        };
        let base = of(Some("0"));
        for (staleness, expected) in [Some("1"), Some("4"), Some("8"), None].into_iter().zip(&golden[1..]) {
            let ratio = of(staleness) / base;
            assert!(
                (ratio / expected - 1.0).abs() < 0.03,
                "{stragglers:?} s={staleness:?}: {ratio:.3}, not {expected}"
            );
        }
    }
}

#[test]
fn version_staleness_never_exceeds_its_bound_and_comes_close_to_it() {
    for (workers, staleness, bound) in [("2", "1", 3.0), ("3", "2", 10.0), ("5", "1", 12.0), ("8", "0", 7.0)]
    {
        let policy = policy(Some(staleness));
        let mut more: Vec<_> = policy.iter().map(|(key, value)| (*key, value.as_str())).collect();
        more.extend([("stragglers.kind", "\"pareto\""), ("stragglers.alpha", "1.1")]);
        let outcome = timing(&keys(workers, "4", &more));
        assert_eq!(number(&outcome, "/staleness/version/bound"), bound);
        let most = number(&outcome, "/staleness/version/max");
        assert!(
            most <= bound && most >= bound - 2.0,
            "{workers} workers, s = {staleness}: {most} of {bound}"
        );
        assert!(number(&outcome, "/staleness/clock_lead/max") <= staleness.parse().unwrap());
    }
}

#[test]
fn all_version_staleness_together_is_that_of_the_workers_in_flight() {
    for staleness in [Some("0"), Some("1"), Some("4"), None] {
        let policy = policy(staleness);
        let mut more: Vec<_> = policy.iter().map(|(key, value)| (*key, value.as_str())).collect();
        more.push(("stragglers.kind", "\"exp\""));
        let outcome = timing(&keys("8", "4", &more));
        let applied = number(&outcome, "/pushes/applied");
        let sum = number(&outcome, "/staleness/version/mean") * applied;
        assert_eq!(sum.round() as u64, outcome.in_flight, "s = {staleness:?}");
        if staleness.is_none() {
            // All others are in flight all the time.
            assert!((sum / applied - 7.0).abs() < 0.02, "{}", sum / applied);
        }
    }
}

#[test]
fn backup_workers_make_a_round_as_long_as_the_order_statistic() {
    // Of nine exponential times the (9 - b)th is on average the sum of 1/k for k from b + 1 to 9.
    for (late, count) in [("0", 9.0), ("1", 8.0), ("3", 6.0)] {
        let policy = [("consistency.policy", "\"backup\""), ("consistency.backup", late)];
        let outcome = timing(&keys("9", "20", &[&policy[..], &[("stragglers.kind", "\"exp\"")]].concat()));
        let first = late.parse::<u32>().unwrap() + 1;
        let expected: f64 = (first..=9).map(|rank| 1.0 / f64::from(rank)).sum();
        let round = count / number(&outcome, "/samples_per_s");
        assert!((round / expected - 1.0).abs() < 0.03, "b = {late}: {round:.3} s, not {expected:.3} s");
    }
}
