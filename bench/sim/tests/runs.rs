//! Whole simulated runs: the same bytes again and again, the cost of links, and what befalls the processes.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;

use common::{number, resolved, run, timing};
use slackline_sim::{Options, simulate};

/// All files of a run's folder, the real time cut out of the summary.
fn files(folder: &Path) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let text = fs::read_to_string(path).unwrap();
            let is_kept = |line: &&str| name != "summary.json" || !line.starts_with("  \"wall_s\"");
            let kept = text.lines().filter(is_kept).collect::<Vec<_>>().join("\n");
            (name, kept)
        })
        .collect();
    files.sort();
    files
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let config = resolved(&[
        ("workers", "5"),
        ("model.kind", "\"mlp\""),
        ("model.widths", "[32]"),
        ("optimizer.kind", "\"momentum\""),
        ("consistency.policy", "\"ssp\""),
        ("consistency.staleness", "2"),
        ("stragglers.kind", "\"exp\""),
        ("evaluate.every_epochs", "0.5"),
        ("evaluate.accuracies", "[0.5, 0.8]"),
        ("metrics.every_s", "0.1"),
        ("simulation.bandwidth_mbps", "20.0"),
        ("simulation.latency_s", "0.001"),
        ("simulation.loss", "0.01"),
        ("simulation.apply_mbps", "200.0"),
        ("simulation.incidents", "[\"worker 1 crash at 0.3 for 0.2\", \"worker 2 pause at 0.4 for 0.1\"]"),
        ("cluster.lease_s", "0.5"),
    ]);
    let of = |threads| {
        let folder = tempfile::tempdir().unwrap();
        let out = Some(folder.path().to_owned());
        simulate(&config, &Options { threads, out, ..Options::default() }).unwrap();
        files(folder.path())
    };
    let once = of(1);
    let names: Vec<_> = once.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["config.toml", "metrics.jsonl", "summary.json", "timeline.jsonl"]);
    for threads in [1, 2, 4] {
        assert_eq!(of(threads), once, "{threads} threads");
    }
}

#[test]
fn timing_only_tells_the_time_of_the_run_with_gradients() {
    for more in [
        &[("consistency.policy", "\"bsp\""), ("stragglers.kind", "\"lognormal\"")][..],
        &[
            ("consistency.policy", "\"ssp\""),
            ("servers", "3"),
            ("cluster.shards_per_server", "2"),
            ("simulation.bandwidth_mbps", "5.0"),
            ("simulation.latency_s", "0.002"),
            ("simulation.loss", "0.05"),
            ("simulation.apply_mbps", "50.0"),
            ("evaluate.every_epochs", "0.5"),
        ],
    ] {
        let keys = [more, &[("workers", "4"), ("train.epochs", "8")]].concat();
        let (with, without) = (run(&keys).unwrap(), timing(&keys));
        for path in ["/virtual_s", "/samples_per_s", "/staleness", "/time", "/pushes", "/pulls", "/events"] {
            assert_eq!(with.summary.pointer(path), without.summary.pointer(path), "{path}");
        }
        assert_eq!(with.summary["bytes"], without.summary["bytes"], "the true sizes of the shards are told");
        assert!(with.summary["final"]["test_accuracy"].as_f64().unwrap() > 0.7);
        assert!(without.summary["final"]["test_accuracy"].is_null());
        assert!(without.summary["final"]["train_loss"].is_null());
    }
}

#[test]
fn a_budget_is_kept_to_with_and_without_gradients_whether_parts_leave_early_or_not() {
    for overlap in ["true", "false"] {
        let keys = [
            ("workers", "3"),
            ("servers", "2"),
            ("cluster.shards_per_server", "2"),
            ("train.overlap", overlap),
            ("codec.push", "\"relative-k\""),
            ("codec.budget_bytes", "400"),
        ];
        for outcome in [run(&keys).unwrap(), timing(&keys)] {
            let bytes = number(&outcome, "/bytes/pushed") / number(&outcome, "/iterations");
            // What is left of a shard's part is less than a value with its index, and what its words leave over.
            assert!(bytes <= 400.0 && bytes > 400.0 - 4.0 * 12.0, "{bytes} bytes an iteration");
        }
    }
}

/// One worker and one server: an iteration is a pull, a gradient and a push, one after another.
#[test]
fn an_iteration_costs_its_gradient_two_transfers_and_their_ways() {
    let outcome = timing(&[
        ("workers", "1"),
        ("servers", "1"),
        ("train.batch", "1442"),
        ("train.epochs", "50"),
        ("stragglers.jitter", "0.0"),
        ("stragglers.compute_s", "0.1"),
        ("simulation.bandwidth_mbps", "1.04"),
        ("simulation.latency_s", "0.01"),
        ("simulation.apply_mbps", "0.52"),
    ]);
    // 650 values are 2,600 bytes: 20 ms at 130 kB/s, and 40 ms to apply. The ask for a pull takes its way too, and the first of the
    // fifty gradients waits for nothing but that; the last one's answer comes back, and with the next ask the last batch is told.
    let (gradient, transfer, way, apply) = (0.1, 0.02, 0.01, 0.04);
    // A pull goes out with the push: while that is on its way and applied, it waits at the server.
    let round = gradient + (transfer + way) + apply + (transfer + way);
    let (seconds, iterations) = (number(&outcome, "/virtual_s"), number(&outcome, "/iterations"));
    assert_eq!(iterations, 50.0);
    assert!((seconds / (iterations * round) - 1.0).abs() < 0.01, "{seconds} s for {iterations} of {round} s");
}

#[test]
fn a_link_shared_by_many_workers_bounds_their_throughput() {
    let outcome = timing(&[
        ("workers", "16"),
        ("servers", "1"),
        ("train.batch", "1"),
        ("consistency.policy", "\"asp\""),
        ("stragglers.compute_s", "0.001"),
        ("simulation.bandwidth_mbps", "2.08"),
    ]);
    // 2,600 bytes each way at 260 kB/s are 10 ms: 100 iterations a second go through the server's link, whoever makes them.
    let rate = number(&outcome, "/samples_per_s");
    assert!((rate / 100.0 - 1.0).abs() < 0.02, "{rate}");
    assert_eq!(number(&outcome, "/bytes/pushed"), 2600.0 * number(&outcome, "/pushes/sent"));
}

#[test]
fn a_worker_that_is_killed_costs_the_others_a_lease_at_most() {
    let keys = |incidents| {
        vec![
            ("workers", "4"),
            ("consistency.policy", "\"bsp\""),
            ("train.epochs", "20"),
            ("stragglers.compute_s", "0.5"),
            ("stragglers.jitter", "0.0"),
            ("cluster.lease_s", "5.0"),
            ("simulation.incidents", incidents),
        ]
    };
    let calm = timing(&keys("[]"));
    let killed = timing(&keys("[\"worker 2 crash at 20.1\"]"));
    let (before, after) = (number(&calm, "/virtual_s"), number(&killed, "/virtual_s"));
    // The work that is left is done by three instead of four, in rounds of half a second. What a lease is over by is a tick.
    let rounds = (before - 20.0) / 0.5;
    let expected = 20.0 + (4.0 / 3.0 * rounds).ceil() * 0.5;
    let cost = after - expected;
    assert!(
        (4.0..=5.0 + 0.25 + 0.5).contains(&cost),
        "{before} s became {after} s: {cost} s beyond {expected} s"
    );
    assert_eq!(number(&killed, "/refused/fenced"), 0.0);
    assert!(number(&killed, "/batches_repeated") >= 1.0);
    assert_eq!(number(&killed, "/samples"), number(&calm, "/samples"));
}

#[test]
fn a_worker_that_comes_back_joins_again_and_one_that_slept_goes_on() {
    let base = [
        ("workers", "4"),
        ("consistency.policy", "\"ssp\""),
        ("train.epochs", "20"),
        ("stragglers.compute_s", "0.5"),
        ("cluster.lease_s", "4.0"),
    ];
    let of = |incidents| timing(&[&base[..], &[("simulation.incidents", incidents)]].concat());
    let calm = number(&of("[]"), "/virtual_s");
    let back = of("[\"worker 2 crash at 20.1 for 1.0\"]");
    assert!(number(&back, "/virtual_s") < calm + 7.0);
    assert_eq!(back.summary["workers_time"].as_array().unwrap().len(), 5, "it is a new worker");
    let short = of("[\"worker 1 pause at 20.1 for 2.0\"]");
    assert!(number(&short, "/virtual_s") < calm + 3.0);
    assert_eq!(number(&short, "/refused/fenced"), 0.0, "it slept for less than a lease");
    let long = of("[\"worker 1 pause at 20.1 for 9.0\"]");
    assert!(number(&long, "/refused/fenced") >= 1.0, "it was given up, and came back under its old name");
    assert_eq!(long.summary["workers_time"].as_array().unwrap().len(), 4);
}

#[test]
fn a_server_that_stands_still_blames_nobody() {
    let outcome = timing(&[
        ("workers", "4"),
        ("train.epochs", "20"),
        ("stragglers.compute_s", "0.5"),
        ("cluster.lease_s", "4.0"),
        ("simulation.incidents", "[\"server 0 pause at 20.0 for 3.0\", \"server 1 pause at 40.0 for 3.0\"]"),
    ]);
    assert_eq!(number(&outcome, "/refused/fenced"), 0.0);
    assert_eq!(number(&outcome, "/batches_repeated"), 0.0);
}

#[test]
fn a_server_that_crashes_fails_the_run_as_it_would_for_real() {
    for (incident, expected) in [
        ("server 1 crash at 5.0 for 1.0", "server 1 was restarted"),
        ("server 0 crash at 5.0 for 1.0", "server 0 was restarted"),
        ("server 1 crash at 5.0", "server 1 is gone and none comes back"),
    ] {
        let incidents = format!("[\"{incident}\"]");
        let keys = [
            ("stragglers.compute_s", "0.5"),
            ("cluster.connect_timeout_s", "20.0"),
            ("simulation.incidents", incidents.as_str()),
        ];
        let failure = run(&keys).unwrap_err();
        assert!(failure.to_string().contains(expected), "{incident}: {failure}");
        assert!(!failure.is_users());
    }
    let nobody = [("simulation.incidents", "[\"worker 0 crash at 0.1\", \"worker 1 crash at 0.1\"]")];
    let failure = run(&nobody).unwrap_err().to_string();
    assert!(failure.contains("no worker is left"), "{failure}");
}

#[test]
fn a_run_that_diverges_has_a_summary_and_says_when() {
    for on_bad_gradient in ["\"drop\"", "\"stop\""] {
        let outcome = run(&[
            ("optimizer.rate", "1000.0"),
            ("consistency.on_bad_gradient", on_bad_gradient),
            ("train.epochs", "1"),
        ])
        .unwrap();
        let clock = outcome.diverged.unwrap();
        assert!(clock < 20, "{clock}");
        assert_eq!(outcome.summary["diverged"]["clock"], clock, "{on_bad_gradient}");
    }
    assert_eq!(run(&[]).unwrap().diverged, None);
}

#[test]
fn every_policy_learns_in_virtual_time_and_tells_the_same_time_without_gradients() {
    let base = [
        ("workers", "4"),
        ("train.epochs", "8"),
        ("cluster.shards_per_server", "2"),
        ("stragglers.kind", "\"exp\""),
        ("simulation.bandwidth_mbps", "20.0"),
        ("simulation.latency_s", "0.001"),
    ];
    let local = [("local.mode", "\"difference\""), ("local.steps", "3")];
    let matrix: [&[(&str, &str)]; 12] = [
        &[("consistency.policy", "\"bsp\"")],
        &[("consistency.policy", "\"ssp\""), ("consistency.staleness", "2")],
        &[("consistency.policy", "\"essp\""), ("consistency.staleness", "2")],
        &[("consistency.policy", "\"dssp\""), ("consistency.low", "1"), ("consistency.high", "4")],
        &[("consistency.policy", "\"asp\"")],
        &[("consistency.policy", "\"backup\""), ("consistency.backup", "1")],
        &[
            ("consistency.policy", "\"quorum\""),
            ("consistency.quorum", "2"),
            ("consistency.grace_s", "0.005"),
        ],
        &[("consistency.policy", "\"buffer\""), ("consistency.quorum", "3")],
        &[("consistency.policy", "\"bsp\""), local[0], local[1]],
        &[
            ("consistency.policy", "\"quorum\""),
            ("consistency.quorum", "3"),
            local[0],
            local[1],
            ("local.fragments", "2"),
        ],
        &[("local.mode", "\"elastic\""), ("local.steps", "3")],
        &[("train.proportional", "true")],
    ];
    for more in matrix {
        let keys = [&base[..], more].concat();
        let (with, without) = (run(&keys).unwrap(), timing(&keys));
        assert_eq!(number(&with, "/samples"), 8.0 * 1442.0, "{more:?}");
        let accuracy = number(&with, "/final/test_accuracy");
        assert!(accuracy > 0.75, "{more:?}: {accuracy}");
        assert_eq!(with.summary["virtual_s"], without.summary["virtual_s"], "{more:?}");
        assert_eq!(with.summary["decisions"], without.summary["decisions"], "{more:?}");
    }
}

#[test]
fn bsp_workers_learn_what_one_worker_with_all_their_samples_learns() {
    let of = |workers, batch| {
        let keys = [
            ("workers", workers),
            ("train.batch", batch),
            ("train.microbatch", "8"),
            ("consistency.policy", "\"bsp\""),
            ("stragglers.kind", "\"exp\""),
        ];
        run(&keys).unwrap().summary["final"]["test_loss"].clone()
    };
    let alone = of("1", "64");
    assert!(alone.is_number());
    assert_eq!(of("4", "16"), alone);
    assert_eq!(of("8", "8"), alone);
}
