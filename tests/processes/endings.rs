//! How `slackline run` ends when it does not end by itself.

use std::fs;
use std::os::unix::fs::symlink;

use nix::sys::signal::{Signal, kill};

use crate::cluster::{PACED, configuration};
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
    let told = format!("{}: ending 4 processes", if code == 130 { "interrupted" } else { "terminated" });
    assert_eq!(ended.error.lines().filter(|line| *line == told).count(), 1, "{}", ended.error);
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
    // Nobody was left to remove its keys; the next run does.
    assert_eq!(stage.files_named("slackline-keys").len(), 1);
    start(&stage, &[]).end_well();
    nothing_is_left(&stage);
}

#[test]
fn a_run_whose_workers_were_all_told_to_go_has_failed() {
    let stage = Stage::new();
    let run = in_the_middle(&stage);
    for worker in stage.living().into_iter().filter(|living| living.is("worker")) {
        kill(worker.pid, Signal::SIGTERM).unwrap();
    }
    let ended = run.end();
    assert_eq!(ended.code, 1, "{}", ended.error);
    let last = ended.error.lines().last().unwrap();
    assert_eq!(last, "error: all workers ended before the work was done");
    nothing_is_left(&stage);
}

#[test]
fn a_run_goes_on_without_a_worker_that_was_told_to_go() {
    let stage = Stage::new();
    let run = start(&stage, &[("train.epochs", "40"), ("cluster.lease_s", "60.0")]);
    run.line("test accuracy");
    let worker = stage.living().into_iter().rfind(|living| living.is("worker")).unwrap();
    kill(worker.pid, Signal::SIGTERM).unwrap();
    run.line("left: it was told to go");
    let ended = run.end_well();
    assert!(ended.output.contains("accuracy"), "{}", ended.output);
    nothing_is_left(&stage);
}

#[test]
fn a_killed_child_is_named_and_its_signal_is_the_exit_code() {
    // Case 33 of the allreduce list: processes had failed, and the launcher returned 0.
    for (role, name) in [("worker", "worker "), ("server", "server ")] {
        let stage = Stage::new();
        let run = in_the_middle(&stage);
        // The run goes on without one worker, and not without both.
        let victims: Vec<_> = stage.living().into_iter().filter(|living| living.is(role)).collect();
        for victim in victims {
            let _ = kill(victim.pid, Signal::SIGKILL);
        }
        let ended = run.end();
        assert_eq!(ended.code, 137, "{}", ended.error);
        let error = ended.error.lines().find(|line| line.starts_with("error: ")).unwrap().to_owned();
        assert!(error.contains(name) && error.contains("signal 9"), "{error}");
        nothing_is_left(&stage);
    }
}

#[test]
fn a_run_goes_on_without_a_worker_that_was_killed_and_says_so() {
    let stage = Stage::new();
    let run = start(&stage, &[("train.epochs", "40"), ("workers", "3"), ("cluster.lease_s", "1.0")]);
    run.line("test accuracy");
    let victim = stage.living().into_iter().rfind(|living| living.is("worker")).unwrap();
    kill(victim.pid, Signal::SIGKILL).unwrap();
    run.line("ended (signal 9); the others go on without it");
    let ended = run.end_well();
    assert!(ended.output.contains("accuracy"), "{}", ended.output);
    assert!(stage.read("out/summary.json").contains("\"epochs\": 40.0"));
    nothing_is_left(&stage);
}

#[test]
fn servers_that_are_killed_are_started_again_where_their_shards_are_still_somewhere() {
    let survivals: [&[(&str, &str)]; 3] = [
        &[("cluster.replicas", "2"), ("cluster.durability", "\"replicated\"")],
        &[("cluster.durability", "\"disk\"")],
        &[("checkpoint.every_clocks", "20")],
    ];
    for over in survivals {
        for index in 0..2 {
            let stage = Stage::new();
            let long = [("train.epochs", "10"), ("cluster.lease_s", "1.0"), ("cluster.steps", "\"whole\"")];
            let run = start(&stage, &[&long, PACED, over].concat());
            // With a copy, or a checkpoint, there is something to go on from.
            match over[0].0 {
                "cluster.replicas" => drop(run.line("has an equal copy at")),
                "checkpoint.every_clocks" => drop(run.line("is in the store")),
                _ => {}
            }
            run.line("test accuracy");
            let is_victim = |arguments: &[String]| {
                arguments.windows(2).any(|pair| pair == ["--index".to_owned(), index.to_string()])
            };
            let victim = stage.living().into_iter().find(|living| is_victim(&living.arguments)).unwrap();
            kill(victim.pid, Signal::SIGKILL).unwrap();
            run.line(&format!("server {index} ended (signal 9) and is started again"));
            run.end_well();
            // A coordinator that is started again knows which run it is.
            assert!(!run.has_said("belongs to run"));
            assert!(stage.read("out/summary.json").contains("\"epochs\": "));
            assert!(!stage.path("out/state/server-1").exists(), "what only the run could go on with is left");
            nothing_is_left(&stage);
        }
    }
}

#[test]
fn a_worker_that_stands_still_past_the_end_does_not_hold_up_the_run() {
    let stage = Stage::new();
    let run = start(
        &stage,
        &[PACED, &[("workers", "3"), ("train.epochs", "8"), ("cluster.lease_s", "0.5")]].concat(),
    );
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
    assert!(error.contains("(exit code 2)") && error.contains("apt-get install"), "{error}");
    // Both workers say the same, and it is shown once.
    assert_eq!(ended.error.matches("apt-get install").count(), 1, "{}", ended.error);
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
    assert!(ended.error.contains("No space left") && ended.error.contains("free space"), "{}", ended.error);
    // What the run has brought is in the log at least.
    let figures = ended.error.split("which are in no file: ").nth(1).unwrap().lines().next().unwrap();
    let figures: serde_json::Value = serde_json::from_str(figures).unwrap();
    assert_eq!((&figures["epochs"], &figures["model"]), (&4.0.into(), &"softmax".into()), "{figures}");
    nothing_is_left(&stage);
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
fn metrics_on_a_disk_that_fills_up_keep_whole_lines() {
    let stage = Stage::new();
    let config = stage.write("run.toml", &configuration(&[("train.epochs", "60")]));
    // A file that may grow to 16 KiB takes the part of a line that still fits, as a full disk does.
    let full = "trap '' XFSZ; ulimit -f 32";
    let ended = stage.start_after("run", full, &["run", &config, "--out", &stage.text_path("out")]).end();
    assert_eq!(ended.code, 1, "{}", ended.error);
    assert!(ended.error.contains("metrics.jsonl cannot be written"), "{}", ended.error);
    let metrics = stage.read("out/metrics.jsonl");
    assert!(metrics.len() > 8 << 10 && metrics.ends_with('\n'), "{} bytes", metrics.len());
    for line in metrics.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
    assert!(stage.read("out/summary.json").contains("\"epochs\": 60.0"), "it trained to its end");
    nothing_is_left(&stage);
}

#[test]
fn a_folder_that_cannot_be_made_ends_the_run_before_it_begins() {
    let stage = Stage::new();
    let config = stage.write("run.toml", &configuration(&[]));
    let out = format!("{config}/out");
    let ended = stage.run(&["run", &config, "--out", &out]);
    assert_eq!(ended.code, 2, "{}", ended.error);
    assert!(ended.error.contains(&out) && !ended.error.contains("space"), "{}", ended.error);
    nothing_is_left(&stage);
}
