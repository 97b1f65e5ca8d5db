//! Traces of real runs, replayed against the definition of the policy.

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use serde_json::Value;
use slackline_core::ids::{Clock, Version};
use slackline_core::trace::{HEADER_BYTES, Header, RECORD_BYTES, Reading, Record, What};

use crate::by_hand::name_of;
use crate::cluster::{Cluster, configuration};
use crate::process::Ended;
use crate::stage::Stage;

/// Every fifth gradient takes ten times as long.
const STRAGGLERS: [(&str, &str); 4] = [
    ("stragglers.kind", "\"transient\""),
    ("stragglers.compute_s", "0.002"),
    ("stragglers.probability", "0.2"),
    ("stragglers.factor", "10.0"),
];

fn check(stage: &Stage, folder: &str) -> Ended {
    stage.run(&["check-trace", &stage.text_path(folder)])
}

/// A traced `slackline run` of the small configuration with `over` over it, into `out`.
fn run(stage: &Stage, over: &[(&str, &str)], more: &[&str]) {
    let config = stage.write("run.toml", &configuration(over));
    let ended = stage.run(&[&["run", &config, "--out", &stage.text_path("out"), "--trace"], more].concat());
    assert_eq!(ended.code, 0, "{}", ended.error);
}

fn trace(stage: &Stage, server: u32, shard: u32) -> PathBuf {
    stage.path(&format!("out/trace/server-{server}-shard-{shard}.trace"))
}

/// Changes the first record that `change` says it has changed.
fn tamper(path: &Path, change: impl Fn(&mut Record) -> bool) {
    let mut bytes = std::fs::read(path).unwrap();
    let (_, records) = bytes.split_at_mut(HEADER_BYTES);
    let changed = records.as_chunks_mut::<RECORD_BYTES>().0.iter_mut().any(|bytes| {
        let mut record = Record::decode(bytes).unwrap();
        let is_changed = change(&mut record);
        *bytes = record.encode();
        is_changed
    });
    assert!(changed, "no record to change");
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn the_bound_holds_with_values_that_are_pulled_ahead() {
    let stage = Stage::new();
    let mut over = vec![
        ("workers", "3"),
        ("consistency.staleness", "1"),
        ("consistency.prefetch", "1"),
        ("train.epochs", "6"),
    ];
    over.extend(STRAGGLERS);
    run(&stage, &over, &[]);
    let checked = check(&stage, "out");
    assert_eq!(checked.code, 0, "{}", checked.output);
    assert!(checked.output.ends_with("bound held (ssp(1))\n"), "{}", checked.output);
    let ahead = |record: &Record| matches!(record.what, What::Pull { ahead: 1, .. });
    let path = trace(&stage, 0, 0);
    let bytes = std::fs::read(&path).unwrap();
    let records = bytes[HEADER_BYTES..].as_chunks::<RECORD_BYTES>().0.iter();
    let count = records.filter(|bytes| ahead(&Record::decode(bytes).unwrap())).count();
    assert!(count > 20, "{count} pulls were ahead");
    let summary: Value = serde_json::from_str(&stage.read("out/summary.json")).unwrap();
    assert_eq!(summary["policy"], "prefetch(1) + ssp(1)");
    assert_eq!(summary["staleness"]["version"]["bound"], 7);
    // Whoever pulls ahead where the run does not says that it misses its own push.
    let mut bytes = bytes;
    let mut header = Header::decode(bytes[..HEADER_BYTES].try_into().unwrap()).unwrap();
    header.prefetch = 0;
    bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
    std::fs::write(&path, bytes).unwrap();
    let checked = check(&stage, "out");
    assert!(checked.code == 1 && checked.output.contains("read-my-writes"), "{}", checked.output);
}

#[test]
fn the_bound_holds_with_stragglers_and_a_killed_worker() {
    let stage = Stage::new();
    let mut over = vec![
        ("workers", "3"),
        ("cluster.lease_s", "1.0"),
        ("consistency.staleness", "1"),
        ("train.epochs", "12"),
    ];
    over.extend(STRAGGLERS);
    let cluster = Cluster::start_with(&stage, &over, &["--trace"]);
    let workers: Vec<_> = (0..3).map(|index| cluster.worker(&format!("worker {index}"), &[])).collect();
    let victim = name_of(&workers[2]);
    cluster.servers[0].line("test accuracy");
    workers[2].kill();
    assert!(cluster.servers[0].line("its lease is over").contains(&victim));
    workers[0].end_well();
    workers[1].end_well();
    cluster.end_well();
    let checked = check(&stage, "out");
    assert_eq!(checked.code, 0, "{}", checked.output);
    assert!(checked.output.ends_with("bound held (ssp(1))\n"), "{}", checked.output);
    for part in ["server 0, shard 0: ", "server 1, shard 1: ", "lead at most 1"] {
        assert!(checked.output.contains(part), "{part} is not in\n{}", checked.output);
    }
    assert!(!checked.output.contains("cut off"), "{}", checked.output);
    // The same trace is proof that the replay sees what it should: a reader that was served too early does not pass.
    tamper(&trace(&stage, 1, 1), |record| {
        let is_served = matches!(record.what, What::Serve { reading: Reading::Gated, lead: 1 });
        record.clock.0 += u64::from(is_served);
        is_served
    });
    let checked = check(&stage, "out");
    assert_eq!(checked.code, 1, "{}", checked.output);
    assert!(checked.output.contains(", bound (server 1, shard 1): worker "), "{}", checked.output);
    assert!(!checked.output.contains("bound held"), "{}", checked.output);
}

#[test]
fn every_policy_keeps_its_laws_on_a_real_run() {
    for (policy, more) in [
        ("bsp", ""),
        ("essp", "consistency.staleness=1"),
        ("dssp", "consistency.low=1"),
        ("asp", "consistency.drop_at=4"),
        ("backup", "consistency.backup=1"),
        ("quorum", "consistency.quorum=2"),
        ("buffer", "consistency.quorum=2"),
    ] {
        let stage = Stage::new();
        let policy = format!("consistency.policy={policy}");
        let sets = ["--set", &policy, "--set", more];
        run(&stage, &[("workers", "3")], if more.is_empty() { &sets[..2] } else { &sets });
        let checked = check(&stage, "out");
        assert_eq!(checked.code, 0, "{policy}: {}", checked.output);
    }
}

#[test]
fn a_trace_is_of_the_last_run_only() {
    let stage = Stage::new();
    run(&stage, &[("cluster.shards_per_server", "2")], &[]);
    assert_eq!(stage.files_named(".trace").len(), 4);
    assert_eq!(check(&stage, "out/trace").code, 0);
    run(&stage, &[], &[]);
    assert_eq!(stage.files_named(".trace").len(), 2);
    assert_eq!(check(&stage, "out").code, 0);
    let config = stage.text_path("run.toml");
    let untraced = stage.run(&["run", &config, "--out", &stage.text_path("out")]);
    assert_eq!(untraced.code, 0, "{}", untraced.error);
    assert!(stage.files_named(".trace").is_empty());
    let checked = check(&stage, "out");
    assert_eq!(checked.code, 2);
    assert!(checked.error.contains("slackline run --trace"), "{}", checked.error);
}

#[test]
fn tampered_and_damaged_traces_do_not_pass() {
    let stage = Stage::new();
    run(&stage, &[("train.epochs", "1")], &[]);
    let path = trace(&stage, 0, 0);
    let whole = std::fs::read(&path).unwrap();
    let fails = |change: fn(&mut Record) -> bool, law: &str| {
        std::fs::write(&path, &whole).unwrap();
        tamper(&path, change);
        let checked = check(&stage, "out");
        assert_eq!(checked.code, 1, "{law}: {}", checked.output);
        assert!(checked.output.contains(law), "{law} is not in\n{}", checked.output);
    };
    let served: fn(&mut Record) -> bool = |record| {
        let is_served = matches!(record.what, What::Serve { reading: Reading::Gated, .. });
        record.clock = if is_served { Clock(99) } else { record.clock };
        is_served
    };
    fails(served, "bound (server 0, shard 0)");
    let stale: fn(&mut Record) -> bool = |record| {
        let is_push = matches!(record.what, What::Push { .. }) && record.pulled > Version(0);
        record.pulled.0 -= u64::from(is_push);
        is_push
    };
    fails(stale, "answered (server 0, shard 0)");
    let cut_out = |from: usize, to: usize| {
        let mut bytes = whole.clone();
        bytes.drain(HEADER_BYTES + from * RECORD_BYTES..HEADER_BYTES + to * RECORD_BYTES);
        std::fs::write(&path, bytes).unwrap();
        check(&stage, "out")
    };
    let hole = cut_out(20, 22);
    assert_eq!(hole.code, 2, "{}", hole.output);
    for part in ["server-0-shard-0.trace, record 20 at byte 2176", "number 22"] {
        assert!(hole.error.contains(part), "{part} is not in\n{}", hole.error);
    }
    std::fs::remove_file(&path).unwrap();
    let missing = check(&stage, "out");
    assert_eq!(missing.code, 2, "{}", missing.output);
    assert!(missing.error.contains("1 traces of a run of 2 shards over 2 servers"), "{}", missing.error);
}

#[test]
fn the_trace_of_a_killed_server_is_checked_as_far_as_it_goes() {
    let stage = Stage::new();
    let over = [("cluster.lease_s", "0.5"), ("train.epochs", "100000"), ("cluster.connect_timeout_s", "1.0")];
    let cluster = Cluster::start_with(&stage, &over, &["--trace"]);
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("test accuracy");
    cluster.servers[1].kill();
    cluster.servers[0].line("waits for server 1 to come back");
    cluster.servers[0].signal(Signal::SIGTERM);
    for worker in workers {
        worker.end();
    }
    cluster.servers[0].end();
    let checked = check(&stage, "out");
    assert_eq!(checked.code, 0, "{}{}", checked.output, checked.error);
    let killed = checked.output.lines().find(|line| line.starts_with("server 1")).unwrap();
    assert!(killed.ends_with("the server was killed or still runs"), "{killed}");
    let stopped = checked.output.lines().find(|line| line.starts_with("server 0")).unwrap();
    assert!(!stopped.contains("killed"), "{stopped}");
}

#[test]
fn a_timeline_of_a_real_run_has_every_iteration() {
    let stage = Stage::new();
    run(&stage, &STRAGGLERS, &[]);
    let exported = stage.run(&["trace-export", &stage.text_path("out")]);
    assert_eq!(exported.code, 0, "{}", exported.error);
    let timeline: Value = serde_json::from_str(&stage.read("out/trace/timeline.json")).unwrap();
    let events = timeline["traceEvents"].as_array().unwrap();
    let count = |name: &str| events.iter().filter(|event| event["name"] == name).count() as u64;
    let summary: Value = serde_json::from_str(&stage.read("out/summary.json")).unwrap();
    let iterations = summary["iterations"].as_u64().unwrap();
    assert_eq!((count("compute"), count("push")), (iterations, iterations));
    assert_eq!(count("apply"), summary["pushes"]["applied"].as_u64().unwrap());
    let thin = stage.text_path("thin.json");
    let exported = stage.run(&["trace-export", &stage.text_path("out"), "--out", &thin, "--megabytes", "1"]);
    assert_eq!(exported.code, 0, "{}", exported.error);
    let header = std::fs::read(trace(&stage, 0, 0)).unwrap();
    let header = Header::decode(header.first_chunk().unwrap()).unwrap();
    assert_eq!((header.servers, header.shards, header.policy.as_str()), (2, 2, "ssp(2)"));
}
