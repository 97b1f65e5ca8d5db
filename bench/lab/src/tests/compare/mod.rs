//! Comparisons: files in, runs by a runner that invents them, who wins out.

mod bad_files;
mod made;
mod outcomes;
mod peers;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tempfile::TempDir;

use super::BASE;
use crate::compare::{Comparison, Invited, Links, Standing, Ways, compare};
use crate::{Execution, LabError, Mode, Overlay, RunFailure, RunSpec, Runner, SweepError, Watch};

/// Three contestants under two conditions.
const FILE: &str = "
name = \"fake\"
about = \"What a test compares.\"
base = \"base.toml\"
seeds = [1, 2, 3]
targets = { accuracies = [0.8] }

[[contestant]]
name = \"bsp\"
set = { \"consistency.policy\" = \"bsp\" }

[[contestant]]
name = \"ssp 4\"
set = { \"consistency.policy\" = \"ssp\", \"consistency.staleness\" = 4 }

[[contestant]]
name = \"ring\"
set = { \"sync.method\" = \"allreduce\" }

[[condition]]
name = \"even\"

[[condition]]
name = \"slow\"
set = { \"stragglers.kind\" = \"permanent\" }

[tune]
rates = [0.05, 0.1, 0.5]
seeds = [101, 102]
";

/// A folder with a comparison and its base.
struct Stage {
    folder: TempDir,
}

impl Stage {
    fn new(file: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let base = BASE.replace("accuracies = [0.8]\nlosses = [0.5]\n", "every_epochs = 0.02\n");
        fs::write(folder.path().join("base.toml"), base).unwrap();
        fs::write(folder.path().join("compare.toml"), file).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read_as(&self, scale: Option<&str>, mode: Option<Mode>) -> Result<Comparison, SweepError> {
        let overlay = Overlay { scale: scale.map(str::to_owned), ..Overlay::default() };
        let none = || Some("no namespaces here".to_owned());
        let ways = Ways { mode, links: &|| Links { no_rate: none(), no_delay: none() } };
        Comparison::read(&self.path("compare.toml"), &overlay, ways)
    }

    fn comparison(&self) -> Comparison {
        self.read_as(None, None).unwrap_or_else(|error| panic!("{error}"))
    }

    /// What is wrong with the file, without its folder.
    fn problems(&self) -> String {
        let text = self.read_as(None, None).unwrap_err().to_string();
        text.replace(&format!("{}/", self.folder.path().display()), "")
    }

    fn execute(
        &self,
        out: &str,
        world: &World,
        (jobs, resume): (usize, bool),
        invited: &Invited<'_>,
        mode: Option<Mode>,
    ) -> Result<Standing, LabError> {
        let comparison = self.read_as(None, mode).unwrap_or_else(|error| panic!("{error}"));
        let execution =
            Execution { jobs, resume, command: "slackline compare compare.toml", stop: &world.stop };
        compare(&comparison, &self.path(out), execution, world, world, invited)
    }

    fn standing(&self, world: &World) -> Standing {
        self.execute("out", world, (2, false), &Invited::Nobody, None).unwrap()
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

/// Runs that are not run: their times are those of `times` by contestant and condition, a hundredth longer for each seed, and longer the
/// farther the rate is from 0.1.
#[derive(Default)]
struct World {
    times: BTreeMap<(&'static str, &'static str), f64>,
    /// Contestants, with the condition and the seed at which they do not reach the target.
    misses: Vec<(&'static str, &'static str, u64)>,
    /// A contestant and the condition under which it fails.
    fails: Option<(&'static str, &'static str)>,
    /// After so many runs somebody stops it.
    stop_after: Option<usize>,
    stop: AtomicBool,
    made: Mutex<Vec<RunSpec>>,
}

impl World {
    fn of(times: &[(&'static str, &'static str, f64)]) -> Self {
        let times = times.iter().map(|(who, at, time)| ((*who, *at), *time)).collect();
        Self { times, ..Self::default() }
    }

    /// Bsp takes 40 s, ssp 20 s, the ring 30 s; where a worker is slow, ssp takes as long as bsp.
    fn usual() -> Self {
        Self::of(&[
            ("bsp", "even", 40.0),
            ("ssp 4", "even", 20.0),
            ("ring", "even", 30.0),
            ("bsp", "slow", 80.0),
            ("ssp 4", "slow", 80.0),
            ("ring", "slow", 60.0),
        ])
    }

    fn made(&self) -> usize {
        self.made.lock().unwrap().len()
    }
}

impl Watch for World {
    fn planned(&self, _: u64) {}

    fn finished(&self, _: &str, _: bool, _: Option<&str>) {}
}

impl Runner for World {
    fn run(&self, run: &RunSpec, folder: &Path) -> Result<(), RunFailure> {
        let (who, at) = (run.labels[0].1.as_str(), run.labels[1].1.as_str());
        let mut made = self.made.lock().unwrap();
        if self.stop_after == Some(made.len()) {
            self.stop.store(true, Ordering::Relaxed);
            return Err(RunFailure { text: "stopped".to_owned() });
        }
        made.push(run.clone());
        drop(made);
        if self.fails == Some((who, at)) {
            return Err(RunFailure { text: "worker 1 was lost at clock 7".to_owned() });
        }
        let is_own = |(own, there): &(&str, &str)| (*own, *there) == (who, at);
        let base = self.times.iter().find(|(key, _)| is_own(key)).map_or(10.0, |(_, time)| *time);
        let config = &run.resolved.config;
        let time =
            base * (1.0 + 0.01 * run.seed as f64) * (1.0 + (f64::from(config.optimizer.rate) - 0.1).abs());
        let misses = self.misses.iter().any(|(own, there, seed)| is_own(&(own, there)) && *seed == run.seed);
        leave(run, folder, time, misses);
        Ok(())
    }
}

/// Leaves the files of a run.
fn leave(run: &RunSpec, folder: &Path, time: f64, misses: bool) {
    let reached = json!([{ "accuracy": 0.8, "virtual_s": time, "samples": 900 }]);
    let summary = json!({
        "config_hash": format!("{:016x}", run.resolved.hash()), "wall_s": 0.1, "virtual_s": 2.0 * time, "samples": 2000,
        "samples_per_s": 1000.0 / time, "diverged": null, "final": { "test_accuracy": 0.85, "test_loss": 0.5 },
        "time_to_accuracy": if misses { json!([]) } else { reached },
        "bytes": { "pushed": 4_000_000, "pulled": 6_000_000 },
        "time": { "compute": 0.8, "wait_for_clock": 0.05, "push": 0.05, "pull": 0.1 },
    });
    let line = |step: f64| {
        let samples = 500.0 * step;
        json!({
            "event": "evaluate", "at_samples": samples, "samples": samples, "epochs": step / 2.0, "virtual_s": time * step / 2.0,
            "final": { "test_accuracy": 0.85 * step / 4.0, "test_loss": 2.0 / step },
        })
    };
    let metrics: String = (1..=4).map(|step| format!("{}\n", line(f64::from(step)))).collect();
    fs::write(folder.join("metrics.jsonl"), metrics).unwrap();
    fs::write(folder.join("summary.json"), summary.to_string()).unwrap();
}
