//! How `slackline run` ends when it does not end by itself.

use std::fs;
use std::os::unix::fs::symlink;

use nix::sys::signal::{Signal, kill};

use crate::cluster::configuration;
use crate::process::{Process, until};
use crate::stage::Stage;

/// A run that would go on for hours.
const LONG: &[(&str, &str)] =
    &[("train.epochs", "1000000"), ("metrics.every_s", "0.02"), ("cluster.lease_s", "60.0")];

fn start(stage: &Stage, over: &[(&str, &str)]) -> Process {
    let config = stage.write("run.toml", &configuration(over));
    stage.start("run", &["run", &config, "--log", "info", "--out", &stage.text_path("out")])
}

/// Starts the long run, and waits until it is in the middle.
fn in_the_middle(stage: &Stage) -> Process {
    let run = start(stage, LONG);
    run.line("test accuracy");
    until("lines of metrics", || {
        let text = fs::read_to_string(stage.path("out/metrics.jsonl")).unwrap_or_default();
        (text.lines().count() > 3).then_some(())
    });
    run
}

fn nothing_is_left(stage: &Stage) {
    assert!(stage.living().is_empty(), "{:?}", stage.living());
    for part in ["unfinished", "slackline-keys"] {
        assert!(stage.files_named(part).is_empty(), "{:?}", stage.files_named(part));
    }
}

fn a_signal_ends_all(signal: Signal, code: i32) {
    let stage = Stage::new();
    let run = in_the_middle(&stage);
    run.signal(signal);
    let ended = run.end();
    assert_eq!(ended.code, code, "{}", ended.error);
    nothing_is_left(&stage);
    assert!(stage.read("out/metrics.jsonl").ends_with('\n'), "a line was cut");
    assert!(!stage.path("out/summary.json").exists(), "a run that was broken off has no summary");
}

#[test]
fn an_interrupt_ends_all_processes_and_leaves_whole_files() {
    a_signal_ends_all(Signal::SIGINT, 130);
}

#[test]
fn a_termination_ends_all_processes_and_leaves_whole_files() {
    a_signal_ends_all(Signal::SIGTERM, 143);
}

#[test]
fn an_interrupt_while_workers_are_awaited_ends_all_processes() {
    let stage = Stage::new();
    // So many that the run has not begun when the first is seen.
    let run = start(&stage, &[LONG, &[("workers", "12")]].concat());
    until("a worker", || stage.living().into_iter().find(|living| living.is("worker")));
    run.signal(Signal::SIGINT);
    assert_eq!(run.end().code, 130);
    nothing_is_left(&stage);
}

#[test]
fn processes_do_not_outlive_a_run_that_was_killed() {
    // Case 34 of the allreduce list: a killed launcher left its processes behind.
    let stage = Stage::new();
    let run = in_the_middle(&stage);
    assert_eq!(stage.living().len(), 1 + 2 + 2);
    run.kill();
    until("the end of servers and workers", || stage.living().is_empty().then_some(()));
    assert!(stage.read("out/metrics.jsonl").ends_with('\n'), "a line was cut");
}

#[test]
fn a_killed_child_is_named_and_its_signal_is_the_exit_code() {
    // Case 33 of the allreduce list: processes had failed, and the launcher returned 0.
    for (role, name) in [("worker", "worker "), ("server", "server ")] {
        let stage = Stage::new();
        let run = in_the_middle(&stage);
        let victim = stage.living().into_iter().rfind(|living| living.is(role)).unwrap();
        kill(victim.pid, Signal::SIGKILL).unwrap();
        let ended = run.end();
        assert_eq!(ended.code, 137, "{}", ended.error);
        let error = ended.error.lines().find(|line| line.starts_with("error: ")).unwrap().to_owned();
        assert!(error.contains(name) && error.contains("signal 9"), "{error}");
        nothing_is_left(&stage);
    }
}

#[test]
fn a_worker_that_stands_still_past_the_end_does_not_hold_up_the_run() {
    let stage = Stage::new();
    let run = start(&stage, &[("workers", "3"), ("train.epochs", "40"), ("cluster.lease_s", "0.5")]);
    run.line("test accuracy");
    let frozen = stage.living().into_iter().rfind(|living| living.is("worker")).unwrap();
    kill(frozen.pid, Signal::SIGSTOP).unwrap();
    let ended = run.end();
    assert_eq!(ended.code, 0, "{}", ended.error);
    assert!(ended.error.contains("did not end with the run"), "{}", ended.error);
    assert!(ended.output.contains("accuracy"), "{}", ended.output);
    nothing_is_left(&stage);
}

#[test]
fn a_child_that_fails_is_heard_and_its_code_is_the_exit_code() {
    let stage = Stage::new();
    fs::create_dir(stage.path("empty")).unwrap();
    let config = stage.write("run.toml", &configuration(&[("data.dataset", "\"fashion-mnist\"")]));
    let dir = format!("data.dir={}", stage.text_path("empty"));
    let ended = stage.run(&["run", &config, "--set", &dir]);
    assert_eq!(ended.code, 2, "{}", ended.error);
    let error = &ended.error[ended.error.find("error: worker ").unwrap()..];
    assert!(error.contains("its last words") && error.contains(&stage.text_path("empty")), "{error}");
    nothing_is_left(&stage);
}

#[test]
fn a_full_disk_at_the_end_is_an_error_with_the_path() {
    let stage = Stage::new();
    fs::create_dir(stage.path("out")).unwrap();
    // The file that becomes summary.json is the device that is always full.
    symlink("/dev/full", stage.path("out/summary.unfinished")).unwrap();
    let ended = start(&stage, &[]).end();
    assert_eq!(ended.code, 1, "{}", ended.error);
    assert!(ended.error.contains(&stage.text_path("out/summary.json")), "{}", ended.error);
    assert!(ended.error.contains("No space left") && ended.error.contains("--out"), "{}", ended.error);
    assert!(stage.living().is_empty(), "{:?}", stage.living());
}

#[test]
fn a_disk_that_fills_up_does_not_stop_the_training_but_fails_the_run() {
    let stage = Stage::new();
    fs::create_dir(stage.path("out")).unwrap();
    symlink("/dev/full", stage.path("out/metrics.jsonl")).unwrap();
    let ended = start(&stage, &[]).end();
    assert_eq!(ended.code, 1, "{}", ended.error);
    assert!(ended.error.contains(&stage.text_path("out/metrics.jsonl")), "{}", ended.error);
    assert!(stage.read("out/summary.json").contains("\"epochs\": 4.0"), "it trained to its end");
    nothing_is_left(&stage);
}

#[test]
fn a_folder_that_cannot_be_made_ends_the_run_before_it_begins() {
    let stage = Stage::new();
    let config = stage.write("run.toml", &configuration(&[]));
    let out = format!("{config}/out");
    let ended = stage.run(&["run", &config, "--out", &out]);
    assert_eq!(ended.code, 1, "{}", ended.error);
    assert!(ended.error.contains(&out), "{}", ended.error);
    nothing_is_left(&stage);
}
