//! Real workers that average among themselves: what comes out, who is lost, who is let in.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::by_hand::name_of;
use crate::cluster::{Cluster, configuration};
use crate::runs::{number, run_as};
use crate::stage::Stage;

const ALLREDUCE: (&str, &str) = ("sync.method", "\"allreduce\"");

/// A run that lasts until it is ended.
const LONG: (&str, &str) = ("train.epochs", "100000");

fn run(stage: &Stage, out: &str, over: &[(&str, &str)]) -> Value {
    run_as(stage, "run", out, over, &[])
}

#[test]
fn an_allreduce_is_bsp_bit_for_bit() {
    let stage = Stage::new();
    // A power of two everywhere, so that the sums of both go through one binary tree.
    let same =
        [("data.limit", "1024"), ("optimizer.kind", "\"momentum\""), ("optimizer.weight_decay", "0.001")];
    for workers in ["2", "4"] {
        let of = |name: &str, more: &[(&str, &str)]| {
            let out = format!("{name}-{workers}");
            let summary = run(&stage, &out, &[&same[..], &[("workers", workers)], more].concat());
            (summary["final"]["test_loss"].clone(), summary["final"]["test_accuracy"].clone())
        };
        let bsp = of("bsp", &[("consistency.policy", "\"bsp\"")]);
        assert!(bsp.0.is_f64(), "{bsp:?}");
        let halving = of("halving", &[ALLREDUCE, ("sync.topology", "\"halving-doubling\"")]);
        assert_eq!(bsp, halving, "{workers} workers");
        let buckets =
            [("sync.bucket_kib", "1"), ("sync.order", "\"forward\""), ("sync.topology", "\"doubling\"")];
        assert_eq!(bsp, of("doubling", &[&[ALLREDUCE], &buckets[..]].concat()), "{workers} workers");
    }
}

#[test]
fn every_topology_trains_and_counts_what_it_did() {
    let stage = Stage::new();
    let topologies = ["ring", "hierarchical(2)", "torus(2, 2)", "auto"];
    let mut losses = Vec::new();
    for (index, topology) in topologies.iter().enumerate() {
        let topology = format!("\"{topology}\"");
        let over = [ALLREDUCE, ("workers", "4"), ("sync.topology", topology.as_str())];
        let summary = run(&stage, &format!("out{index}"), &over);
        assert_eq!(number(&summary, "/epochs"), 4.0, "{summary}");
        assert_eq!(number(&summary, "/servers"), 1.0);
        assert_eq!(number(&summary, "/shards"), 0.0);
        assert!(summary["policy"].as_str().unwrap().starts_with("allreduce("), "{summary}");
        // 4 epochs of 1442 samples in clocks of 128: four workers push in each of 46.
        assert_eq!(number(&summary, "/pushes/applied"), 4.0 * 46.0, "{summary}");
        assert!(number(&summary, "/bytes/pushed") > 0.0, "{summary}");
        losses.push(number(&summary, "/final/test_loss"));
        if index == 3 {
            assert!(summary["topology_chosen"].as_str().is_some_and(|text| !text.is_empty()), "{summary}");
        }
    }
    assert!(losses.iter().all(|loss| (loss - losses[0]).abs() < 1e-3), "{losses:?}");
}

#[test]
fn a_lost_worker_ends_an_allreduce_with_its_name_within_a_lease() {
    // Case 3 of the allreduce list: killing one host took the survivors with it; at least they say whom they lost.
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[ALLREDUCE, LONG, ("workers", "3"), ("cluster.lease_s", "1.0")]);
    let workers: Vec<_> = (0..3).map(|index| cluster.worker(&format!("worker {index}"), &[])).collect();
    let victim = name_of(&workers[2]);
    cluster.servers[0].line("test accuracy");
    let killed = Instant::now();
    workers[2].kill();
    let ended = cluster.servers[0].end();
    let waited = killed.elapsed();
    assert_eq!(ended.code, 1, "{}", ended.error);
    let last = ended.error.lines().last().unwrap();
    assert!(last.contains(&victim) && last.contains("clock") && last.contains("sync.elastic"), "{last}");
    assert!(waited < Duration::from_secs(1 + 5), "{waited:?} until the run ended");
    for worker in &workers[..2] {
        let ended = worker.end();
        assert_eq!(ended.code, 1, "{}", ended.error);
        assert!(ended.error.lines().last().unwrap().contains(&victim), "{}", ended.error);
    }
}

#[test]
fn an_elastic_allreduce_goes_on_without_the_lost_and_takes_in_the_new() {
    let stage = Stage::new();
    let over = [ALLREDUCE, ("sync.elastic", "true"), ("workers", "3"), ("cluster.lease_s", "1.0")];
    // Slow enough that the newcomer comes in the middle.
    let slow = [("train.epochs", "30"), ("stragglers.kind", "\"exp\""), ("stragglers.compute_s", "0.01")];
    let cluster = Cluster::start(&stage, &[&over[..], &slow[..]].concat());
    let workers: Vec<_> = (0..3).map(|index| cluster.worker(&format!("worker {index}"), &[])).collect();
    let victim = name_of(&workers[1]);
    cluster.servers[0].line("test accuracy");
    workers[1].kill();
    assert!(cluster.servers[0].line("at work again").contains(&victim), "the lost one is named");
    let newcomer = cluster.worker("newcomer", &[]);
    for worker in [&workers[0], &workers[2], &newcomer] {
        worker.end_well();
    }
    cluster.end_well();
    let summary = cluster.summary();
    assert!(cluster.has_trained_for(30), "{summary}");
    let recoveries = summary["recoveries"].as_array().unwrap();
    assert_eq!(recoveries.len(), 1, "{summary}");
    assert!(number(&recoveries[0], "/seconds") > 0.9, "{summary}");
    assert!(number(&summary, "/final/test_accuracy") > 0.8, "{summary}");
    let shares = summary["workers_time"].as_array().unwrap();
    assert_eq!(shares.len(), 4, "the newcomer worked as well: {summary}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    let stage = Stage::new();
    type Case = (&'static [(&'static str, &'static str)], &'static [&'static str], &'static str);
    let cases: [Case; 4] = [
        (
            &[("workers", "6"), ("sync.topology", "\"torus(2, 2)\"")],
            &[],
            "these fit: torus(1, 6), torus(2, 3)",
        ),
        (&[("workers", "6"), ("sync.topology", "\"hierarchical(4)\"")], &[], "hierarchical(3)"),
        (&[], &["--trace"], "an allreduce has no shards to trace"),
        (&[("simulation.incidents", "[\"server 1 crash at 1\"]")], &[], "no incident of this run"),
    ];
    for (over, more, text) in cases {
        let config = stage.write("a.toml", &configuration(&[&[ALLREDUCE], over].concat()));
        let ended = stage.run(&[&["run", &config, "--out", &stage.text_path("no")], more].concat());
        assert_eq!(ended.code, 2, "{}", ended.error);
        assert!(ended.error.contains(text), "{}", ended.error);
        assert!(!stage.path("no").exists(), "nothing was started");
    }
}

#[test]
fn an_interrupted_worker_is_named_and_a_server_of_parameters_refuses_a_worker_without() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[ALLREDUCE, LONG]);
    // A worker of another method has another configuration.
    let stranger = cluster.worker("stranger", &["--set", "sync.method=server"]);
    let ended = stranger.end();
    assert_eq!(ended.code, 2, "{}", ended.error);
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    let leaver = name_of(&workers[0]);
    cluster.servers[0].line("test accuracy");
    workers[0].signal(Signal::SIGTERM);
    workers[0].end_well();
    let ended = cluster.servers[0].end();
    assert_eq!(ended.code, 1, "{}", ended.error);
    assert!(ended.error.lines().last().unwrap().contains(&leaver), "{}", ended.error);
    assert_eq!(workers[1].end().code, 1);
}

#[test]
fn a_run_whose_workers_are_elastic_outlives_one_of_them() {
    let stage = Stage::new();
    let over = [ALLREDUCE, ("sync.elastic", "true"), ("workers", "3"), ("cluster.lease_s", "1.0")];
    let slow = [("train.epochs", "20"), ("stragglers.kind", "\"exp\""), ("stragglers.compute_s", "0.01")];
    let config = stage.write("run.toml", &configuration(&[&over[..], &slow[..]].concat()));
    let run = stage.start("run", &["run", &config, "--out", &stage.text_path("out"), "--log", "info"]);
    run.line("test accuracy");
    let victim = stage.living().into_iter().find(|process| process.is("worker")).unwrap();
    kill(victim.pid, Signal::SIGKILL).unwrap();
    run.line("the others go on without it");
    run.end_well();
    let summary: Value = serde_json::from_str(&stage.read("out/summary.json")).unwrap();
    assert_eq!(number(&summary, "/epochs"), 20.0, "{summary}");
    assert_eq!(summary["recoveries"].as_array().map(Vec::len), Some(1), "{summary}");
}
