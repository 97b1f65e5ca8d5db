//! Workers that all go while the final evaluation is still to be made: the run ends by name, and what was trained is kept.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::process::{Process, until};
use crate::resume::{EPOCH, newest, start};
use crate::stage::Stage;

/// Two batches, one for each worker, of which the first takes three seconds. So the other one, which is idle by then, makes the evaluation.
const TWO_BATCHES: &[(&str, &str)] = &[
    ("train.epochs", "1"),
    ("train.batch", "721"),
    ("stragglers.kind", "\"permanent\""),
    ("stragglers.slow", "1"),
    ("stragglers.factor", "300.0"),
    ("stragglers.compute_s", "0.01"),
    ("metrics.every_s", "0.05"),
    ("cluster.lease_s", "8.0"),
];

/// Only what is made at the end.
const CHECKPOINTS: &[(&str, &str)] = &[("checkpoint.every_clocks", "1000")];

/// The process that is this worker of the run.
fn process_of(stage: &Stage, run: &Process, worker: u32) -> Pid {
    let line = run.line(&format!("joined as worker {worker} "));
    let name = line.split_once("[worker ").unwrap().1.split_once(']').unwrap().0.to_owned();
    let push_log = format!("worker-{name}.pushes");
    let is_it = |arguments: &[String]| arguments.iter().any(|argument| argument.ends_with(&push_log));
    let found = stage.living().into_iter().find(|living| living.is("worker") && is_it(&living.arguments));
    found.unwrap().pid
}

fn until_done(stage: &Stage, samples: u64) {
    until("the batches", || {
        let metrics = fs::read_to_string(stage.path("out/metrics.jsonl")).unwrap_or_default();
        let last: Value = serde_json::from_str(metrics.lines().last()?).ok()?;
        (last["samples"].as_u64()? >= samples).then_some(())
    });
}

/// A run whose samples are all used, and whose evaluation lies with a worker that stands still, the only one that is left.
fn left_alone(stage: &Stage, over: &[(&str, &str)]) -> (Process, Pid) {
    let logs = stage.text_path("logs");
    let run = start(stage, "out", &[TWO_BATCHES, over].concat(), &["--push-log", &logs]);
    let [slow, fast] = [0, 1].map(|worker| process_of(stage, &run, worker));
    until_done(stage, EPOCH / 2);
    kill(fast, Signal::SIGSTOP).unwrap();
    until_done(stage, EPOCH);
    kill(slow, Signal::SIGTERM).unwrap();
    run.line("left: it was told to go");
    // Until the run has taken note of its end, so that the other one is the last.
    until("its end", || (!Path::new("/proc").join(slow.to_string()).exists()).then_some(()));
    (run, fast)
}

/// Whether the checkpoint has all that was trained, and a run that goes on from it has only the evaluation to make.
fn is_kept(stage: &Stage) {
    let over = [TWO_BATCHES, CHECKPOINTS].concat();
    let kept = newest(stage, "out", &over);
    assert_eq!(kept.samples_done, EPOCH);
    let resumed = start(stage, "out", &over, &["--resume", &stage.text_path("out")]);
    let ended = resumed.end_well();
    assert!(ended.output.contains("accuracy"), "{}", ended.output);
    let last = newest(stage, "out", &over);
    assert_eq!(last.state_hash().unwrap(), kept.state_hash().unwrap(), "nothing was trained once more");
    assert!(last.number > kept.number);
}

// Found by reading: such a run was given up after 330 seconds, and without what was trained since the last checkpoint.
#[test]
fn workers_that_are_told_to_go_before_the_final_evaluation_leave_what_they_have_trained_in_a_checkpoint() {
    let stage = Stage::new();
    let (run, last) = left_alone(&stage, CHECKPOINTS);
    // It goes as soon as it thaws, with the evaluation before it.
    kill(last, Signal::SIGTERM).unwrap();
    kill(last, Signal::SIGCONT).unwrap();
    let ended = run.end();
    assert_eq!(ended.code, 1, "{}", ended.error);
    let error = ended.error.lines().last().unwrap();
    let words = "error: all workers ended before the final evaluation was made; checkpoint 1 has what they have trained";
    assert!(error.starts_with(words), "{error}");
    is_kept(&stage);
}

#[test]
fn a_worker_that_is_killed_in_the_final_evaluation_leaves_what_was_trained_in_a_checkpoint() {
    let stage = Stage::new();
    let (run, last) = left_alone(&stage, CHECKPOINTS);
    kill(last, Signal::SIGKILL).unwrap();
    let ended = run.end();
    assert_eq!(ended.code, 137, "{}", ended.error);
    let error = ended.error.lines().last().unwrap();
    for words in ["ended (signal 9) before the run was over; ", "final evaluation", "checkpoint 1 has what"] {
        assert!(error.contains(words), "{words}: {error}");
    }
    is_kept(&stage);
}

#[test]
fn without_checkpoints_a_run_that_nobody_is_there_to_evaluate_ends_at_once() {
    let stage = Stage::new();
    let (run, last) = left_alone(&stage, &[]);
    kill(last, Signal::SIGTERM).unwrap();
    kill(last, Signal::SIGCONT).unwrap();
    let ended = run.end();
    let error = ended.error.lines().last().unwrap();
    assert_eq!((ended.code, error), (1, "error: all workers ended before the final evaluation was made"));
}
