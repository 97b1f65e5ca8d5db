//! Makes a comparison: every contestant's tries, then the runs that are compared, then what they say.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;

use slackline_core::config::Value as Setting;

use super::expected::verdicts;
use super::figures;
use super::peers::Invited;
use super::plan::Comparison;
use super::sentence::outcome;
use super::standing::{Budget, Entry, FORMAT, Family, KIND, Row, Standing, Try, target_text};
use crate::execute::{Execution, Job, Made, Pool, Runner, Watch};
use crate::fields::label_of;
use crate::plan::Purpose;
use crate::results::{RunRow, Spread};
use crate::state::{self, Claim, LabError, write_whole};
use crate::tune::Tuning;

/// Executes a comparison in `folder`, and writes `results.json`, `results.csv` and `report.html` there.
///
/// # Errors
///
/// A folder that holds something else or an interrupted comparison, files that cannot be written, or being stopped. Runs that fail are
/// in the results.
pub fn compare(
    comparison: &Comparison,
    folder: &Path,
    execution: Execution<'_>,
    runner: &dyn Runner,
    watch: &dyn Watch,
    invited: &Invited<'_>,
) -> Result<Standing, LabError> {
    let plan = &comparison.plan;
    let claim = Claim { kind: state::COMPARISON, name: plan.name(), runs: comparison.fingerprint() };
    state::take(folder, claim, execution.resume)?;
    let total = comparison.run_count();
    watch.planned(total);
    let pool = Pool::new(plan, folder, execution, runner, watch, total);
    let choices = tune(comparison, &pool)?;
    let made = run(comparison, &pool, &choices)?;
    let mut standing = gather(comparison, folder, execution.command, &choices, made)?;
    invited.join(comparison, folder, &mut standing)?;
    if execution.stop.load(Ordering::Relaxed) {
        return Err(LabError::Stopped { done: total, total });
    }
    conclude(comparison, &mut standing);
    write_whole(&folder.join("results.json"), standing.to_json().as_bytes())?;
    write_whole(&folder.join("results.csv"), standing.to_csv().as_bytes())?;
    super::page::write(&standing, folder)?;
    state::complete(folder, claim)?;
    Ok(standing)
}

/// What was chosen at a point.
pub(crate) struct Chosen {
    pub(crate) tuned: Vec<(String, Setting)>,
    tried: Vec<Try>,
    at_edge: bool,
}

/// The choices by the points at which they are made.
type Choices = BTreeMap<usize, Chosen>;

impl Comparison {
    /// The fingerprint of what is run: that of the sweep, with the conditions whose rates are taken elsewhere.
    fn fingerprint(&self) -> u64 {
        let text = format!("{:016x} {:?}", self.plan.fingerprint(), self.plan.tuned_at);
        xxhash_rust::xxh3::xxh3_64(text.as_bytes())
    }

    fn tuning(&self) -> Option<&Tuning> {
        self.plan.sweep.tuning.as_ref()
    }

    /// The end of the column of what decides at a point.
    fn target(&self, point: usize) -> String {
        let condition = self.plan.places(point)[1];
        self.conditions[condition].targets.as_ref().map(super::file::Targets::deciding).unwrap_or_default()
    }
}

/// Gives every contestant the same tries: each rate with each tuning seed, for as many epochs as count, at every point of choice.
fn tune(comparison: &Comparison, pool: &Pool<'_>) -> Result<Choices, LabError> {
    let Some(tuning) = comparison.tuning() else { return Ok(Choices::new()) };
    let (rates, seeds) = (tuning.combinations(), tuning.seeds.len().max(1));
    let points: Vec<usize> = comparison.plan.tuned_points().into_iter().collect();
    if !comparison.is_tuned() {
        let alone = rates.first().cloned().unwrap_or_default();
        let chosen = |point| (point, Chosen { tuned: alone.clone(), tried: Vec::new(), at_edge: false });
        return Ok(points.into_iter().map(chosen).collect());
    }
    let mut jobs = Vec::new();
    for point in &points {
        for tuned in &rates {
            let job = |seed: &u64| Job {
                point: *point,
                tuned: tuned.clone(),
                seed: *seed,
                purpose: Purpose::Tuning,
            };
            jobs.extend(tuning.seeds.iter().map(job));
        }
    }
    let made = pool.run_all(&jobs)?;
    let choose = |(point, runs): (&usize, &[Made])| {
        let target = comparison.target(*point);
        let tried: Vec<Try> =
            rates.iter().zip(runs.chunks(seeds)).map(|(rate, runs)| of_try(rate, runs, &target)).collect();
        let best = best(&tried);
        let numbers: Vec<f64> = rates.iter().map(|rate| rate_of(rate)).collect();
        let (least, most) = (numbers[best] <= min(&numbers), numbers[best] >= -min(&negated(&numbers)));
        // Where no rate came to anything there is no best one.
        let at_edge = (least || most) && tried[best].loss.is_some();
        (*point, Chosen { tuned: rates[best].clone(), tried, at_edge })
    };
    Ok(points.iter().zip(made.chunks(seeds * rates.len())).map(choose).collect())
}

fn min(numbers: &[f64]) -> f64 {
    numbers.iter().copied().fold(f64::INFINITY, f64::min)
}

fn negated(numbers: &[f64]) -> Vec<f64> {
    numbers.iter().map(|number| -number).collect()
}

fn rate_of(tuned: &[(String, Setting)]) -> f64 {
    match tuned.first().map(|(_, value)| value) {
        Some(Setting::Int(number)) => *number as f64,
        Some(Setting::Float(number)) => *number,
        _ => f64::NAN,
    }
}

fn of_try(rate: &[(String, Setting)], runs: &[Made], target: &str) -> Try {
    let is_lost =
        |run: &Made| run.failure.is_some() || run.figures.get("diverged").is_some_and(|value| *value > 0.0);
    let mean = |column: &str| {
        let figures: Vec<Option<f64>> = runs.iter().map(|run| run.figures.get(column).copied()).collect();
        Spread::of(&figures).and_then(|spread| spread.mean).filter(|_| !runs.iter().any(is_lost))
    };
    let rate = rate.first().map_or_else(String::new, |(_, value)| label_of(value));
    Try { rate, time: mean(&format!("time_to_{target}")), loss: mean("test_loss") }
}

/// The place of the best: the shortest time to the target, then the least loss; one with a figure before one without; among equals the
/// first.
pub(crate) fn best(tried: &[Try]) -> usize {
    let key = |one: &Try| (one.time.unwrap_or(f64::INFINITY), one.loss.unwrap_or(f64::INFINITY));
    let better = |a: (f64, f64), b: (f64, f64)| a.0 < b.0 || (a.0 == b.0 && a.1 < b.1);
    (1..tried.len())
        .fold(0, |best, place| if better(key(&tried[place]), key(&tried[best])) { place } else { best })
}

/// Makes the runs that are compared: for every point its seeds.
fn run(comparison: &Comparison, pool: &Pool<'_>, choices: &Choices) -> Result<Vec<Made>, LabError> {
    let plan = &comparison.plan;
    let mut jobs = Vec::new();
    for point in 0..plan.points() {
        let tuned = choices.get(&plan.tuned_at(point)).map(|chosen| chosen.tuned.clone()).unwrap_or_default();
        let job = |seed: &u64| Job { point, tuned: tuned.clone(), seed: *seed, purpose: Purpose::Reported };
        jobs.extend(plan.sweep.seeds.iter().map(job));
    }
    pool.run_all(&jobs)
}

/// Everything but what follows from comparing.
fn gather(
    comparison: &Comparison,
    folder: &Path,
    command: &str,
    choices: &Choices,
    made: Vec<Made>,
) -> Result<Standing, LabError> {
    let plan = &comparison.plan;
    let seeds = plan.sweep.seeds.len().max(1);
    let mut points: Vec<Vec<Made>> = Vec::with_capacity(plan.points());
    let mut made = made.into_iter();
    for _ in 0..plan.points() {
        points.push(made.by_ref().take(seeds).collect());
    }
    let mut rows = Vec::with_capacity(comparison.conditions.len());
    for (place, condition) in comparison.conditions.iter().enumerate() {
        let config = comparison.config(0, place)?;
        let mut entries = Vec::with_capacity(comparison.contestants.len());
        for contestant in 0..comparison.contestants.len() {
            let point = comparison.point(contestant, place);
            entries.push(entry(comparison, folder, choices, point, std::mem::take(&mut points[point]))?);
        }
        let column = comparison.target(comparison.point(0, place));
        let tuned = plan.places(plan.tuned_at(comparison.point(0, place)))[1];
        rows.push(Row {
            name: condition.name.clone(),
            about: condition.about.clone(),
            target: target_text(&column),
            column,
            epochs: config.train.epochs,
            workers: config.workers,
            evaluations: config.train.epochs as f64 / config.evaluate.every_epochs.max(1e-9),
            tuned_at: (tuned != place).then(|| comparison.conditions[tuned].name.clone()),
            entries,
            first: Vec::new(),
            first_of_ours: Vec::new(),
            sentence: String::new(),
            notes: Vec::new(),
        });
    }
    let rates = comparison.tuning().map(|tuning| tuning.combinations()).unwrap_or_default();
    let label = |rate: &Vec<(String, Setting)>| rate.first().map_or_else(String::new, |row| label_of(&row.1));
    let has_figure = |name: &str| {
        let runs = rows.iter().flat_map(|row: &Row| &row.entries).flat_map(|entry| &entry.runs);
        runs.into_iter().any(|run| run.figures.contains_key(name))
    };
    let columns = comparison.columns.iter().filter(|column| has_figure(&column.name)).cloned().collect();
    Ok(Standing {
        kind: KIND.to_owned(),
        format: FORMAT,
        name: plan.name().to_owned(),
        about: plan.sweep.about.clone(),
        mode: plan.mode(),
        scale: plan.sweep.scale.clone(),
        command: command.to_owned(),
        base: plan.sweep.base.clone(),
        seeds: plan.sweep.seeds.clone(),
        budget: Budget {
            rates: rates.iter().map(label).collect(),
            seeds: comparison.tuning().map(|tuning| tuning.seeds.clone()).unwrap_or_default(),
            at: comparison.tune_at.clone(),
            runs: if comparison.is_tuned() { comparison.tries() } else { 0 },
        },
        contestants: comparison.contestants.iter().map(|row| (row.name.clone(), row.about.clone())).collect(),
        columns,
        rows,
        skipped: comparison.skipped.clone(),
        verdicts: Vec::new(),
        not_judged: comparison.not_judged.clone(),
    })
}

fn entry(
    comparison: &Comparison,
    folder: &Path,
    choices: &Choices,
    point: usize,
    made: Vec<Made>,
) -> Result<Entry, LabError> {
    let plan = &comparison.plan;
    let places = plan.places(point);
    let config = comparison.config(places[0], places[1])?;
    let target = comparison.target(point);
    let mut runs = Vec::with_capacity(made.len());
    for (run, seed) in made.into_iter().zip(&plan.sweep.seeds) {
        let place = format!("runs/{}", run.slug);
        let mut figures = figures::complete(run.figures, &config, &target, &folder.join(&place));
        figures.insert(figures::FAILED.to_owned(), f64::from(u8::from(run.failure.is_some())));
        runs.push(RunRow { seed: *seed, folder: place, failure: run.failure, figures });
    }
    let chosen = choices.get(&plan.tuned_at(point));
    let contestant = &comparison.contestants[places[0]];
    Ok(Entry {
        contestant: contestant.name.clone(),
        family: if config.sync.is_some() { Family::Allreduce } else { Family::Server },
        rate: chosen.and_then(|chosen| chosen.tuned.first()).map_or_else(String::new, |row| label_of(&row.1)),
        tried: chosen.map(|chosen| chosen.tried.clone()).unwrap_or_default(),
        at_edge: chosen.is_some_and(|chosen| chosen.at_edge),
        may_fail: contestant.may_fail.contains(&comparison.conditions[places[1]].name),
        figures: Entry::middle(&runs, &comparison.columns),
        runs,
        curves: Vec::new(),
    })
}

/// Winners, notes and verdicts.
fn conclude(comparison: &Comparison, standing: &mut Standing) {
    let seeds = standing.seeds.len();
    for row in &mut standing.rows {
        let all = outcome(&row.entries, &row.target, seeds, row.evaluations);
        let ours: Vec<Entry> =
            row.entries.iter().filter(|entry| entry.family != Family::Outside).cloned().collect();
        row.first_of_ours = outcome(&ours, &row.target, seeds, row.evaluations).first;
        (row.first, row.sentence) = (all.first, all.sentence);
        let edge = row.entries.iter().filter(|entry| entry.at_edge);
        let edge: Vec<String> = edge.map(|entry| format!("{} {}", entry.contestant, entry.rate)).collect();
        if !edge.is_empty() && row.tuned_at.is_none() {
            let names = edge.join(", ");
            row.notes.push(format!(
                "best rates at the edge of what was tried, so that better ones may lie beyond: {names}"
            ));
        }
        for entry in &row.entries {
            let failed = entry.runs.iter().find_map(|run| run.failure.as_ref());
            row.notes.extend(failed.map(|why| format!("{}: {why}", entry.contestant)));
        }
    }
    standing.verdicts = verdicts(&comparison.expectations, &comparison.plan.sweep.axes, &standing.rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_rate_is_the_soonest_then_the_one_of_least_loss() {
        let tried = |rows: &[(Option<f64>, Option<f64>)]| {
            let one = |(time, loss): &(Option<f64>, Option<f64>)| Try {
                rate: String::new(),
                time: *time,
                loss: *loss,
            };
            rows.iter().map(one).collect::<Vec<_>>()
        };
        assert_eq!(best(&tried(&[(Some(3.0), Some(0.1)), (Some(2.0), Some(0.9)), (None, Some(0.0))])), 1);
        assert_eq!(best(&tried(&[(Some(2.0), Some(0.3)), (Some(2.0), Some(0.2))])), 1);
        assert_eq!(best(&tried(&[(None, Some(0.3)), (None, Some(0.2)), (None, None)])), 1);
        assert_eq!(best(&tried(&[(None, None), (None, None)])), 0);
    }
}
