//! The crate as a whole: sweep files in, runs by a runner that invents them, results out.

mod bad_files;
mod compare;
mod expectations;
mod reports;
mod shipped;
mod sweeps;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use tempfile::TempDir;

use crate::{
    Execution, LabError, Overlay, Plan, Results, RunFailure, RunSpec, Runner, SweepError, Watch, execute,
};

/// The base configuration of all tests.
const BASE: &str = "
[data]
dataset = \"digits\"
[model]
kind = \"softmax\"
[train]
epochs = 2
batch = 32
[optimizer]
kind = \"sgd\"
rate = 0.1
[evaluate]
accuracies = [0.8]
losses = [0.5]
";

/// A sweep over two axes.
const SWEEP: &str = "
name = \"fake\"
about = \"What a test shows.\"
base = \"base.toml\"
mode = \"sim\"
seeds = [1, 2]

[[axis]]
name = \"bound\"
points = [
    { label = \"0\", set = { \"consistency.policy\" = \"bsp\" } },
    { label = \"4\", set = { \"consistency.policy\" = \"ssp\", \"consistency.staleness\" = 4 } },
    { label = \"inf\", set = { \"consistency.policy\" = \"asp\" } },
]

[[axis]]
key = \"train.batch\"
values = [16, 64]
";

/// A folder with a sweep and its base.
struct Stage {
    folder: TempDir,
}

impl Stage {
    fn new(sweep: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("base.toml"), BASE).unwrap();
        fs::write(folder.path().join("sweep.toml"), sweep).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn plan(&self) -> Result<Plan, SweepError> {
        self.plan_at(&Overlay::default())
    }

    fn plan_at(&self, overlay: &Overlay) -> Result<Plan, SweepError> {
        Plan::read(&self.path("sweep.toml"), overlay)
    }

    /// The problems of the sweep, without its folder.
    fn problems(&self) -> String {
        self.problems_at(&Overlay::default())
    }

    fn problems_at(&self, overlay: &Overlay) -> String {
        let text = self.plan_at(overlay).unwrap_err().to_string();
        text.replace(&format!("{}/", self.folder.path().display()), "")
    }

    fn execute(&self, out: &str, runner: &Invented, jobs: usize, resume: bool) -> Result<Results, LabError> {
        let plan = self.plan().unwrap();
        let stop = &runner.stop;
        let execution = Execution { jobs, resume, command: "slackline sweep sweep.toml", stop };
        execute(&plan, &self.path(out), execution, runner, runner)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

/// Runs that are not run: their figures follow from their labels and seed.
#[derive(Default)]
struct Invented {
    /// Runs that were made, by slug.
    made: Mutex<Vec<String>>,
    /// Runs that were taken.
    taken: AtomicUsize,
    /// After so many runs somebody stops the sweep; none for never.
    stop_after: Option<usize>,
    stop: AtomicBool,
    /// Runs whose slug contains this fail.
    fails: Option<&'static str>,
}

impl Invented {
    fn made(&self) -> usize {
        self.made.lock().unwrap().len()
    }
}

impl Runner for Invented {
    fn run(&self, run: &RunSpec, folder: &Path) -> Result<(), RunFailure> {
        let mut made = self.made.lock().unwrap();
        if self.stop_after == Some(made.len()) {
            self.stop.store(true, Ordering::Relaxed);
            return Err(RunFailure { text: "stopped".to_owned() });
        }
        made.push(run.slug.clone());
        drop(made);
        if self.fails.is_some_and(|part| run.slug.contains(part)) {
            return Err(RunFailure { text: "the disk, \"full\"".to_owned() });
        }
        invent(run, folder);
        Ok(())
    }
}

impl Watch for Invented {
    fn planned(&self, _: u64) {}

    fn finished(&self, _: &str, taken: bool, _: Option<&str>) {
        self.taken.fetch_add(usize::from(taken), Ordering::Relaxed);
    }
}

/// Leaves the files of a run whose time falls with the bound and whose accuracy is best at bound 4 and a rate near 0.2.
fn invent(run: &RunSpec, folder: &Path) {
    let label = run.labels[0].1.as_str();
    let (time, gain) = match label {
        "0" => (40.0, 0.0),
        "4" => (20.0, 0.05),
        _ => (16.0, 0.02),
    };
    let config = &run.resolved.config;
    let rate = f64::from(config.optimizer.rate);
    let (time, seed) = (time + run.seed as f64, run.seed as f64);
    let accuracy = 0.8 + gain + seed * 1e-3 - (rate - 0.2).abs();
    let diverged = if rate > 0.9 { json!({ "clock": 7 }) } else { json!(null) };
    let summary = json!({
        "config_hash": format!("{:016x}", run.resolved.hash()), "wall_s": 0.25, "virtual_s": time, "iterations": 100,
        "final": { "test_accuracy": accuracy, "test_loss": 1.0 - accuracy }, "diverged": diverged,
        "time_to_accuracy": if accuracy > 0.8 { json!([{ "accuracy": 0.8, "virtual_s": time / 2.0, "samples": 9 }]) } else { json!([]) },
        "staleness": {
            "version": { "mean": 3.0, "p99": 9, "max": 11, "histogram": [[0, 5], [3, 10], [11, 1]] },
            "clock_lead": { "mean": 1.0, "p99": 2, "max": 4, "histogram": [[0, 5], [4, 1]] },
        },
        "time": { "compute": 0.6, "wait_for_clock": 0.3, "push": 0.05, "pull": 0.05, "data": 0.0, "evaluate": 0.0 },
    });
    let mut metrics = String::new();
    for step in 1..=5 {
        let share = f64::from(step) / 5.0;
        let line = json!({
            "event": "evaluate", "at_samples": 100 * step, "samples": 100 * step, "epochs": 2.0 * share,
            "virtual_s": time * share, "wall_s": null,
            "final": { "test_accuracy": accuracy * share, "test_loss": 1.0 / share },
        });
        metrics += &format!("{line}\n");
    }
    let span = |worker: u32, start: f64, what: &str| json!({ "worker": worker, "start_s": start, "end_s": start + 1.0, "what": what });
    let timeline =
        [span(0, 0.0, "compute"), span(1, 0.0, "compute"), span(0, 1.0, "wait"), span(1, 1.0, "pull")];
    let timeline: String = timeline.iter().map(|line| format!("{line}\n")).collect();
    fs::write(folder.join("metrics.jsonl"), metrics).unwrap();
    fs::write(folder.join("timeline.jsonl"), timeline).unwrap();
    fs::write(folder.join("summary.json"), summary.to_string()).unwrap();
}
