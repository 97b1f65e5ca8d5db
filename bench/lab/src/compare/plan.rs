//! A comparison that is ready to run: laid over its base, checked, without the conditions that cannot be made here.

use std::path::Path;

use slackline_core::config::Config;

use super::expected::Found;
use super::figures;
use super::file::{self, Condition, Contestant, Written};
use crate::column::{Column, is_threshold};
use crate::plan::{Overlay, Plan, Purpose, parse, read, refused};
use crate::problem::{Fault, Problem, SweepError};
use crate::sweep::Mode;

/// How a comparison is made.
#[derive(Clone, Copy)]
pub struct Ways<'a> {
    /// What was said over the file; none for what the file says, or else virtual time.
    pub mode: Option<Mode>,
    /// What this machine can do to links; asked only where real processes are to run.
    pub links: &'a dyn Fn() -> Links,
}

/// What real links cannot be given, with the reason.
#[derive(Clone, Debug, Default)]
pub struct Links {
    /// Why they cannot have a rate, if they cannot.
    pub no_rate: Option<String>,
    /// Why they cannot have delay and loss, if they cannot.
    pub no_delay: Option<String>,
}

/// A comparison that is ready to run.
#[derive(Debug)]
pub struct Comparison {
    pub(crate) plan: Plan,
    pub(crate) contestants: Vec<Contestant>,
    pub(crate) conditions: Vec<Condition>,
    /// The condition at which all rates are chosen.
    pub(crate) tune_at: Option<String>,
    /// Conditions that cannot be made, with the reason.
    pub(crate) skipped: Vec<(String, String)>,
    pub(crate) columns: Vec<Column>,
    pub(crate) expectations: Vec<Found>,
    pub(crate) not_judged: Vec<String>,
}

impl Comparison {
    /// Reads the file at `path` and its base, and checks every run of it.
    ///
    /// # Errors
    ///
    /// Files that cannot be read, or else everything that is wrong with them, each with file, line and what is allowed.
    pub fn read(path: &Path, overlay: &Overlay, ways: Ways<'_>) -> Result<Self, SweepError> {
        let text = read(path).map_err(|source| SweepError::Unreadable { path: path.to_owned(), source })?;
        let node = parse(path, text)?;
        let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let mut problems = Vec::new();
        let written = file::read(&node, &stem, overlay.scale.as_deref(), ways.mode, &mut problems);
        let file = path.display().to_string();
        let Some(mut written) = written.filter(|_| problems.is_empty()) else {
            return Err(refused(&file, &problems));
        };
        let mut plan = Plan::of(written.sweep.clone(), path, overlay)?;
        let skipped = impossible(&plan, &written, ways)?;
        if !skipped.is_empty() {
            written.without(|name| skipped.iter().any(|(skipped, _)| skipped == name));
            if written.conditions.is_empty() {
                let reason = &skipped[0].1;
                let text = format!("{file}: no condition is left to compare under ({reason}); use --virtual");
                return Err(SweepError::Problems(vec![text]));
            }
            plan = Plan::of(written.sweep.clone(), path, overlay)?;
        }
        plan.tuned_at = tuned_at(&plan, &written, &mut problems);
        if !problems.is_empty() {
            return Err(refused(&file, &problems));
        }
        let columns = figures::columns(&plan.columns);
        let tune_at = written.tune_at.as_ref().map(|(name, _)| name.clone());
        let (expectations, not_judged) = resolve(&plan, &written, &columns, &mut problems);
        if !problems.is_empty() {
            return Err(refused(&file, &problems));
        }
        let Written { contestants, conditions, .. } = written;
        Ok(Self { plan, contestants, conditions, tune_at, skipped, columns, expectations, not_judged })
    }

    /// How the runs are made.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.plan.mode()
    }

    /// Name of the comparison.
    #[must_use]
    pub fn name(&self) -> &str {
        self.plan.name()
    }

    /// The seeds that are compared.
    #[must_use]
    pub fn seeds(&self) -> &[u64] {
        &self.plan.sweep.seeds
    }

    /// Runs of the whole comparison, those for tuning among them.
    #[must_use]
    pub fn run_count(&self) -> u64 {
        let reported = self.plan.points() * self.seeds().len();
        let tried = if self.is_tuned() { self.plan.tuned_points().len() * self.tries() } else { 0 };
        (reported + tried) as u64
    }

    /// Whether there is more than one rate to choose from.
    pub(crate) fn is_tuned(&self) -> bool {
        self.plan.sweep.tuning.as_ref().is_some_and(|tuning| tuning.combination_count() > 1)
    }

    /// Runs of one choice.
    pub(crate) fn tries(&self) -> usize {
        let tuning = self.plan.sweep.tuning.as_ref();
        tuning.map_or(0, |tuning| tuning.combinations().len() * tuning.seeds.len())
    }

    /// What the comparison is, in a line, and a line for each condition that is skipped.
    #[must_use]
    pub fn shown(&self) -> String {
        let (contestants, conditions) = (self.contestants.len(), self.conditions.len());
        let seeds = self.seeds().len();
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let how = if self.mode() == Mode::Run { "real processes" } else { "virtual time" };
        let budget = match self.is_tuned() {
            true => format!(", {} of them to tune each contestant", self.tries()),
            false => ", one rate for all".to_owned(),
        };
        let mut text = format!(
            "{}: {contestants} contestants, {conditions} condition{}, {seeds} seed{}, {how}; {} runs{budget}{}",
            self.name(),
            plural(conditions),
            plural(seeds),
            self.run_count(),
            if self.is_tuned() && self.tune_at.is_none() { " under each condition" } else { "" }
        );
        for (name, reason) in &self.skipped {
            text += &format!("\nskipped: {name}: {reason}");
        }
        text
    }

    /// The point of a contestant under a condition.
    pub(crate) fn point(&self, contestant: usize, condition: usize) -> usize {
        self.plan.point_at(&[contestant, condition])
    }

    /// The configuration of the first contestant under a condition, at the first seed.
    pub(crate) fn config(&self, contestant: usize, condition: usize) -> Result<Config, SweepError> {
        config_of(&self.plan, self.point(contestant, condition))
    }
}

fn config_of(plan: &Plan, point: usize) -> Result<Config, SweepError> {
    let seed = plan.sweep.seeds.first().copied().unwrap_or(0);
    Ok(plan.run(point, &[], seed, Purpose::Reported)?.resolved.config)
}

/// The conditions that real processes on this machine cannot be put under, with the reason.
fn impossible(plan: &Plan, written: &Written, ways: Ways<'_>) -> Result<Vec<(String, String)>, SweepError> {
    let mut skipped = Vec::new();
    if plan.mode() != Mode::Run {
        return Ok(skipped);
    }
    let links = (ways.links)();
    for (place, condition) in written.conditions.iter().enumerate() {
        let simulation = config_of(plan, plan.point_at(&[0, place]))?.simulation;
        let reason = if !simulation.incidents.is_empty() {
            Some("what befalls a process (simulation.incidents) happens in virtual time only".to_owned())
        } else if simulation.apply_bytes_per_s.is_some() {
            Some("simulation.apply_mbps has an effect in virtual time only".to_owned())
        } else if simulation.latency_s > 0.0 || simulation.loss > 0.0 {
            links.no_delay.clone()
        } else {
            links.no_rate.clone().filter(|_| simulation.bandwidth.is_some())
        };
        skipped.extend(reason.map(|reason| (condition.name.clone(), reason)));
    }
    Ok(skipped)
}

/// For each point the one whose rate it takes.
fn tuned_at(plan: &Plan, written: &Written, problems: &mut Vec<Problem>) -> Vec<usize> {
    let place = |name: &str| written.conditions.iter().position(|condition| condition.name == name);
    let mut at: Vec<usize> = Vec::new();
    for (own, condition) in written.conditions.iter().enumerate() {
        let of_file = written.tune_at.as_ref().map(|(name, line)| (name, *line, "tune.at".to_owned()));
        let named = condition
            .tune_at
            .as_ref()
            .map(|name| (name, condition.line, format!("condition \"{}\".tune_at", condition.name)));
        let chosen = match named.or(of_file) {
            None => Some(own),
            Some((name, line, field)) => {
                let found = place(name);
                if found.is_none() {
                    // The whole file has it, or it would have been refused.
                    let names = written.conditions.iter().map(|row| row.name.clone()).collect();
                    let kind = "condition of this scale and mode";
                    let fault = Fault::UnknownName { kind, given: name.clone(), names };
                    problems.push(Problem { line, place: field, fault });
                }
                found
            }
        };
        at.push(chosen.unwrap_or(own));
    }
    let moved = |point: usize| {
        let places = plan.places(point);
        plan.point_at(&[places[0], at[places[1]]])
    };
    (0..plan.points()).map(moved).collect()
}

/// Expectations that are judged, and the claims of those that are not.
fn resolve(
    plan: &Plan,
    written: &Written,
    columns: &[Column],
    problems: &mut Vec<Problem>,
) -> (Vec<Found>, Vec<String>) {
    let mode = if plan.mode() == Mode::Run { "real" } else { "virtual" };
    let (mut judged, mut not_judged) = (Vec::new(), Vec::new());
    for expected in &written.expectations {
        let before = problems.len();
        let known = |name: &str| columns.iter().any(|column| column.name == name);
        if let Some((given, line, place)) = expected.column().filter(|(given, ..)| !known(given)) {
            // A scale may ask for other thresholds than the whole file.
            if !(plan.sweep.scale.is_some() && is_threshold(given)) {
                let names = columns.iter().map(|column| column.name.clone()).collect();
                let fault = Fault::UnknownColumn { given: given.to_owned(), columns: names };
                problems.push(Problem { line, place: format!("{place}.column"), fault });
            }
            not_judged.push(expected.claim().to_owned());
            continue;
        }
        let found = expected.resolve(plan.sweep.both_axes(), problems);
        let is_left_out = expected.leaves_out(mode)
            || plan.sweep.scale.as_ref().is_some_and(|scale| expected.leaves_out(scale));
        match found.filter(|_| !is_left_out) {
            Some(found) => judged.push(found),
            None if problems.len() == before => not_judged.push(expected.claim().to_owned()),
            None => {}
        }
    }
    (judged, not_judged)
}
