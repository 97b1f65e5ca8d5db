//! Runs that keep their checkpoints in an object store, as real processes with a real S3 server.
//!
//! Where no `s3s-fs` is installed, each test says so and has nothing to show.
#![allow(clippy::unwrap_used)]

mod bucket;
#[path = "../processes/cluster.rs"]
#[allow(dead_code, reason = "the tests of the other target use the rest")]
mod cluster;
#[path = "../processes/process.rs"]
#[allow(dead_code, reason = "the tests of the other target use the rest")]
mod process;
#[path = "../processes/stage.rs"]
#[allow(dead_code, reason = "the tests of the other target use the rest")]
mod stage;

use nix::sys::signal::{Signal, kill};
use slackline_checkpoint::Manifest;

use bucket::Bucket;
use cluster::{PACED, configuration, resolved};
use process::{Process, until};
use stage::Stage;

/// Samples of one epoch of the digits.
const EPOCH: u64 = 1442;

/// A run of some seconds, all of whose bits are determined.
const BITS: &[(&str, &str)] = &[
    ("consistency.policy", "\"bsp\""),
    ("optimizer.kind", "\"momentum\""),
    ("train.epochs", "20"),
    ("evaluate.every_epochs", "4.0"),
    ("checkpoint.every_clocks", "40"),
];

/// Starts a run whose checkpoints go to `prefix` of the bucket.
fn start(stage: &Stage, bucket: &Bucket, prefix: &str, over: &[(&str, &str)], more: &[&str]) -> Process {
    let config = stage.write("run.toml", &configuration(&[BITS, over].concat()));
    let at = format!("checkpoint.at={}", bucket.url(prefix));
    let out = stage.text_path("out");
    let arguments = ["run", &config, "--log", "info", "--out", &out, "--set", &at];
    stage.start_with(prefix, &[&arguments, more].concat(), |command| bucket.tell(command))
}

/// The newest checkpoint in the bucket, every byte of it compared, as the server has it on its disk.
fn newest(bucket: &Bucket, prefix: &str, over: &[(&str, &str)]) -> Manifest {
    slackline_server::resume(&bucket.folder(prefix), &resolved(&[BITS, over].concat())).unwrap()
}

fn kill_all(stage: &Stage, run: &Process) {
    for process in stage.living() {
        let _ = kill(process.pid, Signal::SIGKILL);
    }
    run.kill();
    until("the end of all", || stage.living().is_empty().then_some(()));
}

#[test]
fn a_run_that_was_killed_goes_on_from_the_object_store_bit_for_bit_on_other_servers() {
    let Some(bucket) = Bucket::start() else { return };
    let stage = Stage::new();
    start(&stage, &bucket, "runs/whole", &[], &[]).end_well();
    let whole = newest(&bucket, "runs/whole", &[]);
    assert_eq!(whole.samples_done, 20 * EPOCH);
    let run = start(&stage, &bucket, "runs/broken", &[], &[]);
    run.line("checkpoint 3 of clock");
    kill_all(&stage, &run);
    let saved = newest(&bucket, "runs/broken", &[]);
    assert!((1..20 * EPOCH).contains(&saved.samples_done), "{} samples", saved.samples_done);
    let other = [("servers", "3")];
    let url = bucket.url("runs/broken");
    start(&stage, &bucket, "runs/broken", &other, &["--resume", &url]).end_well();
    let last = newest(&bucket, "runs/broken", &other);
    assert_eq!((last.samples_done, last.stamp.run), (20 * EPOCH, saved.stamp.run));
    assert_eq!(last.state_hash(), whole.state_hash());
    // Begun anew in a place with checkpoints, a run could not tell them from its own.
    let ended = start(&stage, &bucket, "runs/broken", &[], &[]).end();
    assert_eq!(ended.code, 2, "{}", ended.error);
    assert!(ended.error.contains(&url) && ended.error.contains("--resume"), "{}", ended.error);
    start(&stage, &bucket, "runs/broken", &[], &["--fresh"]).end_well();
    let anew = newest(&bucket, "runs/broken", &[]);
    assert_ne!(anew.stamp.run, saved.stamp.run, "it is another run");
    assert_eq!(anew.state_hash(), whole.state_hash());
}

#[test]
fn a_store_that_goes_away_is_named_and_the_run_is_trained_to_its_end() {
    let Some(mut bucket) = Bucket::start() else { return };
    let stage = Stage::new();
    let run = start(&stage, &bucket, "runs/lost", PACED, &[]);
    run.line("checkpoint 2 of clock");
    bucket.kill();
    let ended = run.end_well();
    let named = ended.error.lines().find(|line| line.contains(" was given up: ")).unwrap();
    assert!(named.contains(&bucket.url("runs/lost")), "{named}");
    assert!(stage.read("out/summary.json").contains("\"epochs\": 20.0"), "it trained to its end");
}
