//! Runs that go on from a checkpoint: with the same bits, on other servers, and not at all from what is no checkpoint of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;
use slackline_checkpoint::Manifest;

use crate::cluster::{Cluster, PACED, configuration, free_address, list, resolved};
use crate::process::{Process, until};
use crate::runs::number;
use crate::stage::Stage;

/// Samples of one epoch of the digits.
pub(crate) const EPOCH: u64 = 1442;

/// A run of some seconds, all of whose bits are determined.
pub(crate) const BITS: &[(&str, &str)] = &[
    ("consistency.policy", "\"bsp\""),
    ("optimizer.kind", "\"momentum\""),
    ("optimizer.schedule", "\"cosine\""),
    ("train.epochs", "40"),
    ("evaluate.every_epochs", "4.0"),
    ("checkpoint.every_clocks", "40"),
];

pub(crate) fn start(stage: &Stage, out: &str, over: &[(&str, &str)], more: &[&str]) -> Process {
    let config = stage.write("run.toml", &configuration(over));
    let arguments = ["run", &config, "--log", "info", "--out", &stage.text_path(out)];
    stage.start(out, &[&arguments, more].concat())
}

/// The newest checkpoint of a run, every byte of it compared.
pub(crate) fn newest(stage: &Stage, out: &str, over: &[(&str, &str)]) -> Manifest {
    slackline_server::resume(&stage.text_path(&format!("{out}/checkpoints")), &resolved(over)).unwrap()
}

fn summary(stage: &Stage, out: &str) -> Value {
    serde_json::from_str(&stage.read(&format!("{out}/summary.json"))).unwrap()
}

/// What came out: the loss, the accuracy and the fingerprint of values and slots, to the last bit.
pub(crate) fn outcome(stage: &Stage, out: &str, over: &[(&str, &str)]) -> (String, String, u64) {
    let summary = summary(stage, out);
    let of = |figure: &str| summary["final"][figure].to_string();
    let manifest = newest(stage, out, over);
    assert_eq!(manifest.samples_done, 40 * EPOCH, "{summary}");
    (of("test_loss"), of("test_accuracy"), manifest.state_hash().unwrap().value())
}

/// Kills every process of the stage at once, without a word.
pub(crate) fn kill_all(stage: &Stage, run: &Process) {
    for process in stage.living() {
        let _ = kill(process.pid, Signal::SIGKILL);
    }
    run.kill();
    until("the end of all", || stage.living().is_empty().then_some(()));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn bsp_from_a_checkpoint_is_the_uninterrupted_run_bit_for_bit_on_any_number_of_servers() {
    // Case 44: the optimizer's state could not be saved in a distributed run.
    let stage = Stage::new();
    start(&stage, "whole", BITS, &[]).end_well();
    let expected = outcome(&stage, "whole", BITS);
    let run = start(&stage, "broken", BITS, &[]);
    run.line("checkpoint 3 of clock");
    kill_all(&stage, &run);
    let saved = newest(&stage, "broken", BITS);
    assert!((1..40 * EPOCH).contains(&saved.samples_done), "{} samples", saved.samples_done);
    for servers in ["2", "1", "3"] {
        let out = format!("on-{servers}");
        copy(&stage.path("broken"), &stage.path(&out));
        let other = [BITS, &[("servers", servers)]].concat();
        start(&stage, &out, &other, &["--resume", &stage.text_path(&out)]).end_well();
        assert_eq!(outcome(&stage, &out, &other), expected, "{servers} servers");
        assert_eq!(newest(&stage, &out, &other).stamp.run, saved.stamp.run, "it is the same run");
    }
    assert_ne!(newest(&stage, "whole", BITS).stamp.run, saved.stamp.run, "two runs of one configuration");
}

#[test]
fn a_run_that_goes_on_elsewhere_leaves_the_former_results_as_they_are() {
    let stage = Stage::new();
    let run = start(&stage, "broken", BITS, &[]);
    run.line("checkpoint 2 of clock");
    kill_all(&stage, &run);
    let saved = newest(&stage, "broken", BITS);
    let resumed = start(&stage, "new", BITS, &["--resume", &stage.text_path("broken")]);
    // All shards have the same checkpoint, and nobody has gone on without it.
    let restored = resumed.line("shard 1 is restored from checkpoint ");
    let whole = format!("checkpoint {} at {}; nothing is lost", saved.number, saved.clock);
    assert!(restored.contains(&whole), "{whole:?} is not in {restored}");
    resumed.end_well();
    assert_eq!(newest(&stage, "broken", BITS), saved);
    let (wall_s, before) = (number(&summary(&stage, "new"), "/wall_s"), &saved.coordinator["wall_ns"]);
    assert!(wall_s > before.as_u64().unwrap() as f64 / 1e9, "{wall_s} s, with {before} ns before");
    assert_eq!(newest(&stage, "new", BITS).samples_done, 40 * EPOCH);
    // Begun anew in a folder with checkpoints, a run could not tell them from its own.
    let ended = start(&stage, "broken", BITS, &[]).end();
    assert_eq!(ended.code, 2, "{}", ended.error);
    assert!(ended.error.contains("--resume") && ended.error.contains("--fresh"), "{}", ended.error);
    // Nor is a checkpoint of one run taken on in the folder of another.
    let short = [BITS, &[("data.limit", "720")]].concat();
    start(&stage, "other", &short, &[]).end_well();
    let ended = start(&stage, "other", BITS, &["--resume", &stage.text_path("broken")]).end();
    assert_eq!(ended.code, 2, "{}", ended.error);
    assert!(ended.error.contains("other/checkpoints"), "{}", ended.error);
    // Found by reading: servers that were started by hand were refused once, and let in at the second try.
    assert_eq!(stage.run(&["keys", "init", "keys"]).code, 0);
    let (config, addresses) =
        (stage.write("run.toml", &configuration(BITS)), list(&[free_address(), free_address()]));
    let (out, from) = (stage.text_path("other"), stage.text_path("broken/checkpoints"));
    let by_hand = ["server", &config, "--index", "0", "--set", &addresses, "--out", &out, "--resume", &from];
    for _ in 0..2 {
        let ended = stage.run(&by_hand);
        assert_eq!(ended.code, 2, "{}", ended.error);
        assert!(ended.error.contains("other/checkpoints"), "{}", ended.error);
    }
}

/// A short run with checkpoints.
const SHORT: &[(&str, &str)] = &[("checkpoint.every_clocks", "20")];

/// What is wrong with a folder: how it is made so, and what the refusal names.
type Fault = (&'static str, fn(&Path, &Path), &'static [&'static str]);

/// A part of the newest checkpoint.
fn part(folder: &Path) -> PathBuf {
    let numbers = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    numbers.max().unwrap().join("shard-00001.safetensors")
}

const FAULTS: &[Fault] = &[
    ("missing", |folder, _| fs::remove_dir_all(folder).unwrap(), &["checkpoints"]),
    (
        "empty",
        |folder, _| {
            fs::remove_dir_all(folder).unwrap();
            fs::create_dir(folder).unwrap();
        },
        &["checkpoints"],
    ),
    (
        "torn",
        |folder, _| {
            let file = fs::OpenOptions::new().write(true).open(part(folder)).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        },
        &["shard-00001.safetensors", "bytes"],
    ),
    (
        "rotten",
        |folder, _| {
            let mut bytes = fs::read(part(folder)).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
            fs::write(part(folder), bytes).unwrap();
        },
        &["shard-00001.safetensors"],
    ),
    (
        "mixed",
        |folder, other| {
            fs::copy(part(other), part(folder)).unwrap();
        },
        &["shard-00001.safetensors", "run"],
    ),
    ("lacking", |folder, _| fs::remove_file(part(folder)).unwrap(), &["shard-00001.safetensors"]),
];

// Cases Bösen 47, mxnet#15923, tensorflow#6551: runs that went on from a mistyped folder began anew; parts of two runs were loaded together.
#[test]
fn what_is_no_whole_checkpoint_of_the_run_is_refused_by_name_by_every_member() {
    let stage = Stage::new();
    for out in ["good", "other"] {
        start(&stage, out, SHORT, &[]).end_well();
    }
    assert_eq!(stage.run(&["keys", "init", "keys"]).code, 0);
    let config = stage.text_path("run.toml");
    let addresses = list(&[free_address(), free_address()]);
    for (name, spoil, named) in FAULTS {
        copy(&stage.path("good/checkpoints"), &stage.path(&format!("{name}/checkpoints")));
        let at = stage.text_path(&format!("{name}/checkpoints"));
        spoil(Path::new(&at), &stage.path("other/checkpoints"));
        let out = stage.text_path("new");
        let mut members = vec![stage.run(&["run", &config, "--out", &out, "--resume", &at])];
        for index in ["0", "1"] {
            let server = ["server", &config, "--index", index, "--set", &addresses, "--resume", &at];
            members.push(stage.run(&server));
        }
        for ended in members {
            assert_eq!(ended.code, 2, "{name}: {}", ended.error);
            let last = ended.error.split("error: ").last().unwrap();
            assert!(named.iter().all(|part| last.contains(part)), "{name}: {last}");
        }
        assert!(!stage.path("new").exists() && stage.living().is_empty(), "{name}: something was started");
    }
    // A worker of such a cluster finds nobody, and says whom it looked for.
    let few = ["--set", &addresses, "--set", "cluster.connect_timeout_s=1"];
    let ended = stage.run(&[&["worker", &config], &few[..]].concat());
    assert_eq!(ended.code, 1, "{}", ended.error);
    assert!(ended.error.contains("server 0"), "{}", ended.error);
}

#[test]
fn a_checkpoint_of_another_configuration_is_refused_and_names_that() {
    let stage = Stage::new();
    start(&stage, "good", SHORT, &[]).end_well();
    let faster = [SHORT, &[("optimizer.rate", "0.04")]].concat();
    let ended = start(&stage, "new", &faster, &["--resume", &stage.text_path("good")]).end();
    assert_eq!(ended.code, 2, "{}", ended.error);
    assert!(
        ended.error.contains("configuration") && ended.error.contains("manifest.json"),
        "{}",
        ended.error
    );
}

/// All that a complete run has left: its summary, its metrics and its newest checkpoint.
fn results(stage: &Stage) -> (String, String, Manifest) {
    let file = |name: &str| stage.read(&format!("out/{name}"));
    (file("summary.json"), file("metrics.jsonl"), newest(stage, "out", SHORT))
}

#[test]
fn a_run_that_is_complete_is_called_so_and_keeps_its_results() {
    let stage = Stage::new();
    start(&stage, "out", SHORT, &[]).end_well();
    let before = results(&stage);
    for at in ["out", "out/checkpoints"] {
        let again = start(&stage, "out", SHORT, &["--resume", &stage.text_path(at)]).end_well();
        let first = again.output.lines().next().unwrap();
        let number = before.2.number;
        assert!(first.starts_with(&format!("The run is complete with checkpoint {number} in ")), "{first}");
        assert!(again.output.contains("4.0 epochs") && again.error.is_empty(), "{again:?}");
        assert_eq!(results(&stage), before);
    }
    // Servers do not know before their workers come, and end with them.
    let cluster = Cluster::start_with(&stage, SHORT, &["--resume"]);
    cluster.servers[0].line("the run was complete before: its results in out stay as they are");
    for worker in ["a", "b"].map(|name| cluster.worker(name, &[])) {
        worker.end_well();
    }
    cluster.end_well();
    let after = results(&stage);
    assert_eq!((after.0, after.1), (before.0, before.1));
    assert_eq!(after.2.state_hash(), before.2.state_hash());
}

#[test]
fn a_complete_run_in_another_folder_has_the_same_figures_there() {
    let stage = Stage::new();
    start(&stage, "out", SHORT, &[]).end_well();
    start(&stage, "new", SHORT, &["--resume", &stage.text_path("out")]).end_well();
    let figures = ["/final/test_loss", "/final/test_accuracy", "/wall_s", "/samples_per_s", "/epochs"];
    let of = |out: &str| figures.map(|figure| number(&summary(&stage, out), figure));
    assert_eq!(of("new"), of("out"));
}

#[test]
fn a_run_of_more_epochs_is_another_one_and_the_refusal_says_which_keys_differ() {
    let stage = Stage::new();
    start(&stage, "out", SHORT, &[]).end_well();
    let before = results(&stage);
    let longer = [SHORT, &[("train.epochs", "8"), ("optimizer.rate", "0.04"), ("servers", "1")]].concat();
    let ended = start(&stage, "out", &longer, &["--resume", &stage.text_path("out")]).end();
    assert_eq!(ended.code, 2, "{}", ended.error);
    let named = "(train.epochs is 8, and was 4; optimizer.rate is 0.04, and was 0.03)";
    assert!(ended.error.contains(named), "{named:?} is not in {}", ended.error);
    assert_eq!(results(&stage), before);
}

// Case Paddle#44395: a server hung at the end of the training while it saved.
#[test]
fn when_the_training_is_over_all_end_within_five_seconds_and_the_last_checkpoint_has_all_of_it() {
    let stage = Stage::new();
    let over = [("checkpoint.every_clocks", "25"), ("train.epochs", "10")];
    let cluster = Cluster::start(&stage, &over);
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    for worker in &workers {
        worker.end_well();
    }
    let trained = Instant::now();
    cluster.end_well();
    assert!(trained.elapsed() < Duration::from_secs(5), "{:?}", trained.elapsed());
    let manifest = newest(&stage, "out", &over);
    assert_eq!(manifest.samples_done, 10 * EPOCH);
    assert_eq!(manifest.parts.len(), 2);
}

#[test]
fn a_priority_checkpoint_of_many_blocks_is_made_and_gone_on_from() {
    let stage = Stage::new();
    let over = [
        ("checkpoint.every_clocks", "20"),
        ("checkpoint.kind", "\"priority\""),
        ("checkpoint.block", "16"),
        ("model.kind", "\"mlp\""),
        ("model.widths", "[256, 128]"),
        ("train.epochs", "30"),
    ];
    let run = start(&stage, "out", &over, &[]);
    run.line("checkpoint 3 of clock");
    kill_all(&stage, &run);
    assert!(!run.has_said("was given up"), "one was given up");
    let resumed = start(&stage, "out", &over, &["--resume", &stage.text_path("out")]);
    resumed.end_well();
    let summary = summary(&stage, "out");
    assert!(number(&summary, "/final/test_accuracy") > 0.8, "{summary}");
}

// Found by reading: a server that was started again by the command that it was first started by threw away what it had kept since, and went
// back to a checkpoint; and a coordinator counted its data from the newest checkpoint on, not from the one that the run had gone on from.
#[test]
fn servers_of_a_resumed_run_that_die_go_on_with_what_they_have_by_the_same_command() {
    let stage = Stage::new();
    let over = [
        ("cluster.lease_s", "1.0"),
        ("train.epochs", "12"),
        ("cluster.steps", "\"whole\""),
        ("cluster.durability", "\"disk\""),
        ("checkpoint.every_clocks", "40"),
    ];
    let over = [&over[..], PACED].concat();
    let cluster = Cluster::start(&stage, &over);
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("checkpoint 1 of clock");
    workers.iter().chain(&cluster.servers).for_each(Process::kill);
    // What lies there is of before the checkpoint that they go on from.
    let start = |index| cluster.start_server(index, &["--resume"]);
    let servers = [start(0), start(1)];
    let workers = ["c", "d"].map(|name| cluster.worker(name, &[]));
    servers[0].line("shard 1 is restored from checkpoint");
    // A newer one than that, and a good part of the data.
    servers[0].line("checkpoint 3 of clock");
    servers[1].kill();
    let second = start(1);
    servers[0].line("shard 1 is restored from its disk");
    servers[0].kill();
    let first = start(0);
    first.line("shard 0 is restored from its disk");
    for process in workers.iter().chain([&first, &second]) {
        process.end_well();
    }
    assert!(cluster.has_trained_for(12));
}
