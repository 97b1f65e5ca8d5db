//! Makes the runs of a sweep: tuning first, then what is reported, so many at once; what has finished before is taken as it is.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;
use slackline_core::config::Value as Setting;

use crate::column::Column;
use crate::plan::{Plan, Purpose, RunSpec};
use crate::results::{AxisRow, CandidateRow, ChoiceRow, FORMAT, Point, Results, RunRow, Spread, TuningRow};
use crate::state::{self, Claim, LabError, make_folder, write_whole};
use crate::sweep::Mode;
use crate::tune::{Candidate, Tuning};

/// Makes single runs.
pub trait Runner: Sync {
    /// Makes the run and leaves its files in `folder`, `summary.json` last.
    ///
    /// # Errors
    ///
    /// Why it failed. A run that diverged has not failed.
    fn run(&self, run: &RunSpec, folder: &Path) -> Result<(), RunFailure>;
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct RunFailure {
    /// For the results.
    pub text: String,
}

/// Who watches a sweep.
pub trait Watch: Sync {
    /// So many runs are to be made or taken.
    fn planned(&self, runs: u64);
    /// A run is finished: taken from before, made now, or failed.
    fn finished(&self, slug: &str, taken: bool, failure: Option<&str>);
}

/// How a sweep is executed.
#[derive(Clone, Copy, Debug)]
pub struct Execution<'a> {
    /// Runs at once, at least one. The results do not depend on it.
    pub jobs: usize,
    /// Whether to go on with what the folder holds.
    pub resume: bool,
    /// The command that makes the sweep again, without the folder.
    pub command: &'a str,
    /// No run is begun once this is set.
    pub stop: &'a AtomicBool,
}

/// Executes a sweep in `folder`, and writes `results.json`, `results.csv` and `report.html` there.
///
/// # Errors
///
/// A folder that holds another sweep or an interrupted one, files that cannot be written, or being stopped. Runs that fail are in
/// the results.
pub fn execute(
    plan: &Plan,
    folder: &Path,
    execution: Execution<'_>,
    runner: &dyn Runner,
    watch: &dyn Watch,
) -> Result<Results, LabError> {
    let claim = Claim { kind: state::SWEEP, name: plan.name(), runs: plan.fingerprint() };
    state::take(folder, claim, execution.resume)?;
    let total = plan.run_count();
    watch.planned(total);
    let pool = Pool::new(plan, folder, execution, runner, watch, total);
    let (tuning, choices) = tune(&pool)?;
    let mut jobs = Vec::new();
    for point in 0..plan.points() {
        let tuned = choices.get(&plan.tuned_at(point)).cloned().unwrap_or_default();
        let job = |seed: &u64| Job { point, tuned: tuned.clone(), seed: *seed, purpose: Purpose::Reported };
        jobs.extend(plan.sweep.seeds.iter().map(job));
    }
    let mut made = pool.run_all(&jobs)?;
    derive(plan, &jobs, &mut made);
    let mut results = gather(plan, execution.command, &jobs, made, tuning);
    results.verdicts = plan.judge(&|point, column| results.points[point].mean(column));
    write_whole(&folder.join("results.json"), results.to_json().as_bytes())?;
    write_whole(&folder.join("results.csv"), results.to_csv().as_bytes())?;
    crate::report::report(folder)?;
    state::complete(folder, claim)?;
    Ok(results)
}

/// A run to make.
pub(crate) struct Job {
    pub(crate) point: usize,
    pub(crate) tuned: Vec<(String, Setting)>,
    pub(crate) seed: u64,
    pub(crate) purpose: Purpose,
}

/// A run that was made.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) slug: String,
    pub(crate) failure: Option<String>,
    pub(crate) figures: BTreeMap<String, f64>,
}

/// Makes runs of one plan, so many at once.
pub(crate) struct Pool<'a> {
    plan: &'a Plan,
    folder: &'a Path,
    execution: Execution<'a>,
    runner: &'a dyn Runner,
    watch: &'a dyn Watch,
    done: AtomicU64,
    total: u64,
}

impl<'a> Pool<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        folder: &'a Path,
        execution: Execution<'a>,
        runner: &'a dyn Runner,
        watch: &'a dyn Watch,
        total: u64,
    ) -> Self {
        Self { plan, folder, execution, runner, watch, done: AtomicU64::new(0), total }
    }

    /// Makes all jobs; the outcomes are in their order.
    pub(crate) fn run_all(&self, jobs: &[Job]) -> Result<Vec<Made>, LabError> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut made = Vec::new();
            while !self.execution.stop.load(Ordering::Relaxed) {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = jobs.get(place) else { break };
                match self.make(job) {
                    Ok(Some(run)) => made.push((place, run)),
                    Ok(None) => break,
                    Err(error) => {
                        // The others must not go on for hours beside a disk that is full.
                        next.store(jobs.len(), Ordering::Relaxed);
                        return Err(error);
                    }
                }
            }
            Ok(made)
        };
        let threads = self.execution.jobs.clamp(1, jobs.len().max(1));
        let outcomes: Vec<Result<Vec<(usize, Made)>, LabError>> = thread::scope(|scope| {
            let started: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            started
                .into_iter()
                .map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let mut made = Vec::with_capacity(jobs.len());
        for outcome in outcomes {
            made.extend(outcome?);
        }
        if made.len() < jobs.len() {
            let done = self.done.load(Ordering::Relaxed);
            return Err(LabError::Stopped { done, total: self.total });
        }
        made.sort_by_key(|(place, _)| *place);
        Ok(made.into_iter().map(|(_, run)| run).collect())
    }

    /// Makes one run, or takes the one that is there; nothing when it was stopped in the middle.
    fn make(&self, job: &Job) -> Result<Option<Made>, LabError> {
        let run = self.plan.run(job.point, &job.tuned, job.seed, job.purpose)?;
        let folder = self.folder.join("runs").join(&run.slug);
        let before = finished(&folder, &run);
        let taken = before.is_some();
        let (summary, failure) = match before {
            Some(summary) => (Some(summary), None),
            None => {
                begin(&folder, &run)?;
                let outcome = self.runner.run(&run, &folder);
                if outcome.is_err() && self.execution.stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                match (outcome, finished(&folder, &run)) {
                    (Ok(()), Some(summary)) => (Some(summary), None),
                    (Ok(()), None) => (None, Some("it left no whole summary.json".to_owned())),
                    (Err(failure), _) => (None, Some(failure.text)),
                }
            }
        };
        if let Some(text) = &failure {
            // A summary of a run that failed would be taken for a finished one.
            remove(&folder.join("summary.json"))?;
            write_whole(&folder.join("failure.txt"), format!("{text}\n").as_bytes())?;
        }
        self.done.fetch_add(1, Ordering::Relaxed);
        self.watch.finished(&run.slug, taken, failure.as_deref());
        let figure = |column: &Column| Some((column.name.clone(), column.figure(summary.as_ref()?)?));
        let figures = self.plan.columns.iter().filter_map(figure).collect();
        Ok(Some(Made { slug: run.slug, failure, figures }))
    }
}

/// The summary of a finished run of this configuration.
fn finished(folder: &Path, run: &RunSpec) -> Option<Value> {
    let text = fs::read_to_string(folder.join("summary.json")).ok()?;
    let summary: Value = serde_json::from_str(&text).ok()?;
    let hash = format!("{:016x}", run.resolved.hash());
    (summary.get("config_hash").and_then(Value::as_str) == Some(hash.as_str())).then_some(summary)
}

fn begin(folder: &Path, run: &RunSpec) -> Result<(), LabError> {
    make_folder(folder)?;
    remove(&folder.join("summary.json"))?;
    remove(&folder.join("failure.txt"))?;
    write_whole(&folder.join("config.toml"), run.resolved.to_toml().as_bytes())
}

fn remove(path: &Path) -> Result<(), LabError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(LabError::File { path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

/// The values chosen for each point at which a choice is made.
type Choices = BTreeMap<usize, Vec<(String, Setting)>>;

/// Tries every candidate at every point, and chooses.
fn tune(pool: &Pool<'_>) -> Result<(Option<TuningRow>, Choices), LabError> {
    let plan = pool.plan;
    let Some(tuning) = &plan.sweep.tuning else { return Ok((None, Choices::new())) };
    let combinations = tuning.combinations();
    let mut jobs = Vec::new();
    for point in plan.tuned_points() {
        for tuned in &combinations {
            let job = |seed: &u64| Job { point, tuned: tuned.clone(), seed: *seed, purpose: Purpose::Tuning };
            jobs.extend(tuning.seeds.iter().map(job));
        }
    }
    let made = pool.run_all(&jobs)?;
    let mut rows = made.chunks(tuning.seeds.len().max(1)).map(|runs| candidate(tuning, runs));
    let (mut choices, mut shown) = (Choices::new(), Vec::new());
    for point in plan.tuned_points() {
        let candidates: Vec<Candidate> = rows.by_ref().take(combinations.len()).collect();
        let chosen = tuning.choose(&candidates);
        choices.insert(point, combinations[chosen].clone());
        let row = |(values, figures): (&Vec<(String, Setting)>, &Candidate)| CandidateRow {
            values: written(values),
            figures: figures.clone(),
        };
        shown.push(ChoiceRow {
            labels: plan.labels(point).into_iter().map(|(_, label)| label).collect(),
            candidates: combinations.iter().zip(&candidates).map(row).collect(),
            chosen,
            at_edge: at_edge(tuning, &combinations[chosen]),
        });
    }
    let columns = tuning.rule.iter().map(|rule| rule.column.clone()).collect();
    let row = TuningRow { rule: tuning.shown(), seeds: tuning.seeds.clone(), columns, choices: shown };
    Ok((Some(row), choices))
}

/// The figures of the rule, over the tuning seeds of one candidate.
fn candidate(tuning: &Tuning, runs: &[Made]) -> Candidate {
    let is_lost =
        |run: &Made| run.failure.is_some() || run.figures.get("diverged").is_some_and(|value| *value > 0.0);
    if runs.iter().any(is_lost) {
        return vec![None; tuning.rule.len()];
    }
    let mean = |column: &String| {
        let figures: Vec<Option<f64>> = runs.iter().map(|run| run.figures.get(column).copied()).collect();
        Spread::of(&figures).and_then(|spread| spread.mean)
    };
    tuning.rule.iter().map(|rule| mean(&rule.column)).collect()
}

/// The keys whose chosen number is the least or the greatest of three or more that were tried.
fn at_edge(tuning: &Tuning, chosen: &[(String, Setting)]) -> Vec<String> {
    let number = |value: &Setting| match value {
        Setting::Int(number) => Some(*number as f64),
        Setting::Float(number) => Some(*number),
        _ => None,
    };
    let mut keys = Vec::new();
    for ((key, values, _), (_, value)) in tuning.grid.iter().zip(chosen) {
        let numbers: Option<Vec<f64>> = values.iter().map(number).collect();
        let (Some(numbers), Some(own)) = (numbers, number(value)) else { continue };
        let inside = numbers.iter().any(|other| *other < own) && numbers.iter().any(|other| *other > own);
        if numbers.len() > 2 && !inside {
            keys.push(key.clone());
        }
    }
    keys
}

fn written(values: &[(String, Setting)]) -> BTreeMap<String, String> {
    values.iter().map(|(key, value)| (key.clone(), value.to_string())).collect()
}

/// The columns that are made of others, for every run that was made. The runs of a point lie together, a seed each.
fn derive(plan: &Plan, jobs: &[Job], made: &mut [Made]) {
    let seeds = plan.sweep.seeds.len();
    for derived in &plan.derived {
        let against = |(place, job): (usize, &Job)| {
            let other = plan.point_at(&derived.other(&plan.places(job.point))) * seeds + place % seeds.max(1);
            derived.figure(made.get(place)?, made.get(other)?)
        };
        let figures: Vec<Option<f64>> = jobs.iter().enumerate().map(against).collect();
        for (run, figure) in made.iter_mut().zip(figures) {
            run.figures.extend(figure.map(|figure| (derived.name.clone(), figure)));
        }
    }
}

/// The results without verdicts.
fn gather(plan: &Plan, command: &str, jobs: &[Job], made: Vec<Made>, tuning: Option<TuningRow>) -> Results {
    let sweep = &plan.sweep;
    let is_known = |column: &&Column| made.iter().any(|run| run.figures.contains_key(&column.name));
    let columns: Vec<Column> = plan.columns.iter().filter(is_known).cloned().collect();
    let seeds = sweep.seeds.len();
    let rows: Vec<RunRow> = jobs
        .iter()
        .zip(made)
        .map(|(job, run)| RunRow {
            seed: job.seed,
            folder: format!("runs/{}", run.slug),
            failure: run.failure,
            figures: run.figures,
        })
        .collect();
    let point = |(point, runs): (usize, &[RunRow])| {
        let spread = |column: &Column| {
            let figures: Vec<Option<f64>> =
                runs.iter().map(|run| run.figures.get(&column.name).copied()).collect();
            Some((column.name.clone(), Spread::of(&figures)?))
        };
        Point {
            labels: plan.labels(point).into_iter().map(|(_, label)| label).collect(),
            tuned: written(&jobs[point * seeds].tuned),
            command: repeat(sweep.mode, &runs[0]),
            figures: columns.iter().filter_map(spread).collect(),
            runs: runs.to_vec(),
        }
    };
    let axis = |axis: &crate::axis::Axis| AxisRow {
        name: axis.name.clone(),
        unit: axis.unit.clone(),
        labels: axis.labels(),
    };
    Results {
        format: FORMAT,
        name: sweep.name.clone(),
        about: sweep.about.clone(),
        mode: sweep.mode,
        scale: sweep.scale.clone(),
        command: command.to_owned(),
        base: sweep.base.clone(),
        seeds: sweep.seeds.clone(),
        axes: sweep.axes.iter().map(axis).collect(),
        show: shown(&sweep.show.0, &columns),
        points: rows.chunks(seeds.max(1)).enumerate().map(point).collect(),
        columns,
        tuning,
        verdicts: Vec::new(),
        not_judged: plan.not_judged.clone(),
    }
}

/// The columns that the sweep names, or the usual ones; only those that there are figures for.
fn shown(named: &[String], columns: &[Column]) -> Vec<String> {
    const USUAL: [&str; 8] = [
        "test_accuracy",
        "test_loss",
        "time_s",
        "samples_per_s",
        "staleness_mean",
        "lead_max",
        "waiting",
        "diverged",
    ];
    let wanted: Vec<&str> =
        if named.is_empty() { USUAL.to_vec() } else { named.iter().map(String::as_str).collect() };
    let is_there = |name: &&str| columns.iter().any(|column| column.name == **name);
    wanted.into_iter().filter(is_there).map(str::to_owned).collect()
}

/// The command that repeats a run, given in the folder of the sweep.
fn repeat(mode: Mode, run: &RunRow) -> String {
    let (command, timing) = match mode {
        Mode::Sim => ("sim", ""),
        Mode::Timing => ("sim", " --timing-only"),
        Mode::Run => ("run", ""),
    };
    format!("slackline {command} {}/config.toml{timing} --seed {} --out again", run.folder, run.seed)
}
