//! What a simulated allreduce costs, against the formulas.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::Range;

use common::{number, timing};
use slackline_core::collective::cost::{self, Rates};
use slackline_core::collective::{Misfit, Topology};
use slackline_sim::Outcome;

type Keys<'a> = &'a [(&'a str, &'a str)];

/// Seconds a byte of a link of 10 Mbit/s.
const BETA: f64 = 8e-7;

/// The topologies for a number of workers, each grid and group size once.
fn topologies(workers: u32) -> Vec<Topology> {
    let sizes = || (2..workers).filter(|size| workers.is_multiple_of(*size));
    let tori = sizes().map(|x| Topology::Torus { x, y: workers / x });
    let groups = sizes().map(|group| Topology::Hierarchical { group });
    [Topology::Ring, Topology::HalvingDoubling, Topology::Doubling]
        .into_iter()
        .chain(tori)
        .chain(groups)
        .collect()
}

/// Runs a quadratic of `keys` values for so many steps of next to no computing.
fn steps(topology: Topology, workers: u32, keys: u32, latency: f64, steps: u32, more: Keys<'_>) -> Outcome {
    let [workers_, keys, samples] = [workers, keys, workers * steps].map(|number| number.to_string());
    let (topology, latency) = (format!("\"{topology}\""), format!("{latency:.9}"));
    let base = [
        ("sync.method", "\"allreduce\""),
        ("sync.topology", topology.as_str()),
        ("workers", workers_.as_str()),
        ("data.dataset", "\"noise\""),
        ("data.dimensions", keys.as_str()),
        ("data.samples", samples.as_str()),
        ("model.kind", "\"quadratic\""),
        ("train.batch", "1"),
        ("train.epochs", "1"),
        ("optimizer.rate", "0.1"),
        ("evaluate.every_epochs", "0.0"),
        ("stragglers.compute_s", "0.000001"),
        ("stragglers.jitter", "0.0"),
        ("simulation.bandwidth_mbps", "10.0"),
        ("simulation.latency_s", latency.as_str()),
    ];
    timing(&[&base[..], more].concat())
}

/// Seconds of one allreduce: what more steps cost. How the last word reaches the coordinator shifts the end by up to a round trip, which
/// counts for the less the more steps there are.
fn seconds(topology: Topology, workers: u32, keys: u32, latency: f64, more: Keys<'_>) -> f64 {
    let of = |count| number(&steps(topology, workers, keys, latency, count, more), "/virtual_s");
    let count = 240 / workers.max(3);
    (of(4 + count) - of(4)) / f64::from(count)
}

fn formula(topology: Topology, workers: u32, keys: u32, latency: f64, gamma: f64) -> Result<f64, Misfit> {
    let rates = Rates { alpha_s: latency, beta_s_per_byte: BETA, gamma_s_per_byte: gamma };
    cost::time(topology, workers, 4 * u64::from(keys), rates)
}

/// Between which times an allreduce lies. The formulas are of steps that all members take together. Here each goes on as soon as it has
/// what it needs, which changes nothing where all have the same to do.
fn bounds(topology: Topology, workers: u32, keys: u32, latency: f64) -> Range<f64> {
    let n = 4.0 * f64::from(keys) * BETA;
    let expected = formula(topology, workers, keys, latency, 0.0).unwrap();
    let bytes = formula(topology, workers, keys, 0.0, 0.0).unwrap();
    let (least, most) = match topology {
        // The two colours go side by side: one's latency can hide behind the other's bytes.
        Topology::Torus { .. } => (bytes.max(expected - bytes), expected),
        // Those who have nobody folded into them are a step ahead. Whoever has finds their messages there already, which saves it some
        // ways; but they can also stand before what it needs first.
        Topology::HalvingDoubling | Topology::Doubling if !workers.is_power_of_two() => {
            (bytes.max(2.0 * latency), expected + n)
        }
        // Steps within a group overlap: a leader takes what comes as it comes, and gives out all at once. What is left in any case is the
        // leaders' ring, and that their links carry the others' sums once in and once out. In large groups what overlaps also crowds
        // the leader's link, and the others wait for it.
        Topology::Hierarchical { group } => {
            let k = f64::from(group);
            let ring = formula(Topology::Ring, workers / group, keys, latency, 0.0).unwrap();
            (ring + 2.0 * latency + 2.0 * (k - 1.0) / k * n, expected + n)
        }
        _ => (expected, expected),
    };
    0.95 * least..1.05 * most
}

#[test]
fn an_allreduce_takes_the_time_of_the_alpha_beta_formula() {
    let mut misses = Vec::new();
    for workers in [2, 3, 4, 5, 6, 7, 8, 9, 12, 16] {
        // Blocks of 256 keys are dealt out in turn: such sizes give all parts as many, in both colours of a torus too.
        for keys in [2 * 256 * workers, 10 * 256 * workers] {
            for latency in [0.0001, 0.01, 1.0] {
                for topology in topologies(workers) {
                    let seconds = seconds(topology, workers, keys, latency, &[]);
                    let bounds = bounds(topology, workers, keys, latency);
                    if !bounds.contains(&seconds) {
                        misses.push(format!(
                            "{topology}, {workers} workers, {keys} keys, {latency} s: {seconds:.6} s is not in {bounds:?}"
                        ));
                    }
                }
            }
        }
    }
    assert!(misses.is_empty(), "{}", misses.join("\n"));
}

#[test]
fn the_formulas_are_those_of_the_papers() {
    let (p, n, alpha) = (8.0_f64, 4.0 * 20_480.0 * BETA, 0.01);
    for (topology, expected) in [
        (Topology::Ring, 2.0 * (p - 1.0) * alpha + 2.0 * (p - 1.0) / p * n),
        (Topology::HalvingDoubling, 2.0 * p.log2() * alpha + 2.0 * (p - 1.0) / p * n),
        (Topology::Doubling, p.log2() * (alpha + n)),
    ] {
        let seconds = seconds(topology, 8, 20_480, alpha, &[]);
        assert!((seconds / expected - 1.0).abs() < 0.05, "{topology}: {seconds} s, not {expected} s");
    }
}

#[test]
fn adding_and_applying_cost_what_a_shard_of_a_server_pays() {
    let gamma = 8.0 / 40.0 / 1e6;
    for topology in [Topology::Ring, Topology::HalvingDoubling, Topology::Doubling] {
        let keys = 20_480;
        let seconds = seconds(topology, 8, keys, 0.001, &[("simulation.apply_mbps", "40.0")]);
        let expected = formula(topology, 8, keys, 0.001, gamma).unwrap() + gamma * 4.0 * f64::from(keys);
        assert!((seconds / expected - 1.0).abs() < 0.05, "{topology}: {seconds} s, not {expected} s");
    }
}

#[test]
fn doubling_gives_way_to_the_ring_where_the_formula_says() {
    for workers in [4_u32, 8, 16] {
        let keys = 40 * 256 * workers / 4;
        let bytes = 4.0 * f64::from(keys) * BETA;
        let p = f64::from(workers);
        // log2 p (alpha + n beta) = 2(p - 1) alpha + 2(p - 1)/p n beta.
        let expected = bytes * (p.log2() - 2.0 * (p - 1.0) / p) / (2.0 * (p - 1.0) - p.log2());
        let is_ring = |latency| {
            let of = |topology| seconds(topology, workers, keys, latency, &[]);
            of(Topology::Ring) < of(Topology::Doubling)
        };
        let (mut low, mut high) = (expected / 2.0, expected * 2.0);
        assert!(is_ring(low) && !is_ring(high), "{workers} workers");
        while high / low > 1.01 {
            let middle = (low * high).sqrt();
            *(if is_ring(middle) { &mut low } else { &mut high }) = middle;
        }
        assert!((low / expected - 1.0).abs() < 0.05, "{workers} workers: at {low} s, not at {expected} s");
    }
}

#[test]
fn auto_measures_and_takes_what_the_formula_says() {
    let keys = 20_480;
    for (latency, expected) in [(0.00001, "halving-doubling"), (1.0, "doubling")] {
        let outcome = steps(Topology::Auto, 8, keys, latency, 10, &[]);
        let chosen = outcome.summary["topology_chosen"].as_str().unwrap();
        assert!(chosen.starts_with(expected), "{latency} s: {chosen}");
    }
}

#[test]
fn each_worker_sends_and_receives_as_many_bytes_as_the_algorithm_says() {
    let (workers, keys, count) = (8, 20_480, 10);
    for topology in topologies(workers) {
        let outcome = steps(topology, workers, keys, 0.001, count, &[]);
        let n = 4.0 * f64::from(keys * workers * count);
        let expected = match topology {
            Topology::Doubling => 3.0 * n,
            // Within a group all but the leader send their share of two phases; leaders more. Counted by the schedule's own test.
            Topology::Hierarchical { .. } => number(&outcome, "/bytes/pulled"),
            _ => 2.0 * 7.0 / 8.0 * n,
        };
        assert_eq!(number(&outcome, "/bytes/pushed"), expected, "{topology}");
        assert_eq!(number(&outcome, "/bytes/pulled"), expected, "{topology}");
    }
}

/// A chain of layers whose gradients are 2.2 MB together, over links on which they take about as long as the computing.
fn overlapped(bucket: &str, order: &str) -> f64 {
    let outcome = timing(&[
        ("sync.method", "\"allreduce\""),
        ("sync.topology", "\"ring\""),
        ("sync.bucket_kib", bucket),
        ("sync.order", order),
        ("workers", "4"),
        ("data.dataset", "\"fashion-mnist\""),
        ("data.limit", "6400"),
        ("model.kind", "\"mlp\""),
        ("model.widths", "[256, 256, 256, 256, 256, 256]"),
        ("train.batch", "16"),
        ("train.epochs", "1"),
        ("stragglers.compute_s", "0.1"),
        ("stragglers.jitter", "0.0"),
        ("simulation.bandwidth_mbps", "264.0"),
        ("evaluate.every_epochs", "0.0"),
    ]);
    number(&outcome, "/virtual_s") / 100.0
}

#[test]
fn buckets_hide_their_way_behind_the_backward_as_much_as_the_schedule_allows() {
    let bytes = 4.0 * (784.0 * 256.0 + 5.0 * 256.0 * 256.0 + 256.0 * 10.0 + 6.0 * 256.0 + 10.0);
    let (compute, link) = (0.1, 1.5 * bytes / 33e6);
    let whole = overlapped("0", "\"backward\"");
    assert!((whole / (compute + link) - 1.0).abs() < 0.02, "{whole} s, not {} s", compute + link);
    // The front layers go first, and nothing goes before all are computed.
    assert!((overlapped("256", "\"forward\"") / whole - 1.0).abs() < 0.02);
    let hidden = overlapped("256", "\"backward\"");
    // The last bucket is the first layer, three eighths of the gradient, which exists at the end: its way cannot be hidden. And all
    // that the links do cannot begin before the first bucket exists, a bit after a third of the time.
    let first_layer = 4.0 * 785.0 * 256.0;
    let least = compute + 1.5 * first_layer / 33e6;
    assert!(hidden > 0.99 * least && hidden < 1.05 * least, "{hidden} s, not {least} s; {whole} s at once");
    assert!(hidden < 0.8 * whole);
}
