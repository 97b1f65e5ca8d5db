//! A sweep laid over its base configuration: every point, every run, all of it checked before the first one starts.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use slackline_core::config::{Config, Layer, Problem as ConfigProblem, Resolved, Value};
use xxhash_rust::xxh3::xxh3_64;

use crate::axis::{Settings, names, select};
use crate::column::{Column, columns_of, is_threshold};
use crate::derived::Derived;
use crate::document::{self, Node};
use crate::expect::Expectation;
use crate::fields::label_of;
use crate::names::slug;
use crate::problem::{Fault, Problem, SweepError};
use crate::sweep::{self, Mode, Sweep};
use crate::{RUNS_MAX, judge};

/// Bytes of a sweep or a configuration; more than this is another file by mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Characters of a run's folder before its fingerprint.
const SLUG_CHARS_MAX: usize = 120;

/// What is said over a sweep file on the command line and in the environment.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    /// The scale to choose; none for the full one.
    pub scale: Option<String>,
    /// Layers over the base configuration and under the sweep's own keys: the environment.
    pub environment: Vec<Layer>,
    /// Layers over everything: `--set`.
    pub sets: Vec<Layer>,
}

/// A sweep that is ready to run.
#[derive(Debug)]
pub struct Plan {
    pub(crate) sweep: Sweep,
    pub(crate) file: PathBuf,
    /// The base, the environment, and the keys that all runs share.
    under: Vec<Layer>,
    over: Vec<Layer>,
    pub(crate) columns: Vec<Column>,
    /// Columns that are made of others; they are among the columns.
    pub(crate) derived: Vec<Derived>,
    pub(crate) expectations: Vec<Expectation>,
    /// Expectations that this scale does not judge, in words.
    pub(crate) not_judged: Vec<String>,
    /// For each point the point at which its choice is made.
    pub(crate) tuned_at: Vec<usize>,
}

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To choose tuned values.
    Tuning,
    /// To be reported.
    Reported,
}

/// One run.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// What it is for.
    pub purpose: Purpose,
    /// How it is made.
    pub mode: Mode,
    /// The axes with the labels of its point.
    pub labels: Vec<(String, String)>,
    /// Tuned keys with the values it takes.
    pub tuned: Vec<(String, Value)>,
    /// Its seed.
    pub seed: u64,
    /// Name of its folder: readable, and with the fingerprint of its configuration.
    pub slug: String,
    /// Its configuration.
    pub resolved: Resolved,
}

impl Plan {
    /// Reads the sweep file at `path` and its base, and checks every run of it.
    ///
    /// # Errors
    ///
    /// Files that cannot be read, or else everything that is wrong with them, each with file, line and what is allowed.
    pub fn read(path: &Path, overlay: &Overlay) -> Result<Self, SweepError> {
        let node = parse(
            path,
            read(path).map_err(|source| SweepError::Unreadable { path: path.to_owned(), source })?,
        )?;
        let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let mut problems = Vec::new();
        let sweep = sweep::read(&node, &stem, overlay.scale.as_deref(), &mut problems);
        let file = path.display().to_string();
        let Some(sweep) = sweep.filter(|_| problems.is_empty()) else {
            return Err(refused(&file, &problems));
        };
        Self::of(sweep, path, overlay)
    }

    /// Lays what the file at `path` says over its base, and checks every run of it.
    pub(crate) fn of(sweep: Sweep, path: &Path, overlay: &Overlay) -> Result<Self, SweepError> {
        let file = path.display().to_string();
        let base = path.parent().unwrap_or(Path::new("")).join(&sweep.base);
        let text = read(&base).map_err(|source| SweepError::NoBase {
            sweep: path.to_owned(),
            base: sweep.base.clone(),
            path: base.clone(),
            source,
        })?;
        let settings = parse(&base, text)?.settings();
        let mut under = vec![layer(&base.display().to_string(), &settings)];
        under.extend(overlay.environment.iter().cloned());
        under.push(layer(&file, &sweep.common));
        // Under its own name every key would have to have an effect at every point.
        let renamed = |set: &Layer| Layer { name: format!("{} (of all runs)", set.name), ..set.clone() };
        let over = overlay.sets.iter().map(renamed).collect();
        let mut plan = Self {
            sweep,
            file: path.to_owned(),
            under,
            over,
            columns: Vec::new(),
            derived: Vec::new(),
            expectations: Vec::new(),
            not_judged: Vec::new(),
            tuned_at: Vec::new(),
        };
        plan.check(&base.display().to_string(), &settings)?;
        Ok(plan)
    }

    fn check(&mut self, base: &str, settings: &Settings) -> Result<(), SweepError> {
        let mut problems = Vec::new();
        let count = self.run_count();
        if count > RUNS_MAX {
            let fault = Fault::TooManyRuns { count };
            problems.push(Problem { line: 1, place: "axis".to_owned(), fault });
        }
        self.check_sets(&mut problems);
        self.tuned_at = self.find_tuned(&mut problems);
        let file = self.file.display().to_string();
        if !problems.is_empty() {
            return Err(refused(&file, &problems));
        }
        let configs = self.resolve_all(base, settings)?;
        self.columns = columns_of(&configs);
        let plain = self.columns.clone();
        self.derive(&plain, &mut problems);
        let scale = self.sweep.scale.clone();
        for written in &self.sweep.expectations {
            if scale.as_ref().is_some_and(|scale| written.not_in.contains(scale)) {
                self.not_judged.push(written.claim.clone());
                continue;
            }
            let before = problems.len();
            match written.resolve(self.sweep.both_axes(), &mut problems) {
                Some(_) if !self.has_column(&written.column) => self.not_judged.push(written.claim.clone()),
                Some(expectation) => self.expectations.push(expectation),
                None if problems.len() == before => self.not_judged.push(written.claim.clone()),
                None => {}
            }
        }
        self.check_columns(&plain, &mut problems);
        if problems.is_empty() { Ok(()) } else { Err(refused(&file, &problems)) }
    }

    /// Adds the columns that are made of `plain` ones.
    fn derive(&mut self, plain: &[Column], problems: &mut Vec<Problem>) {
        for written in &self.sweep.derived {
            if plain.iter().any(|column| column.name == written.name) {
                let fault = Fault::RepeatedName { name: written.name.clone() };
                problems.push(Problem { line: written.line, place: "derived".to_owned(), fault });
            }
            let Some(derived) = written.resolve(self.sweep.both_axes(), problems) else { continue };
            if let Some(column) = derived.made_of(plain) {
                self.columns.push(column);
                self.derived.push(derived);
            }
        }
    }

    /// Whatever names a column must name one that there is; what is chosen or made of columns, a plain one.
    fn check_columns(&self, plain: &[Column], problems: &mut Vec<Problem>) {
        let names = |columns: &[Column]| columns.iter().map(|column| column.name.clone()).collect();
        let (plain, columns): (Vec<String>, Vec<String>) = (names(plain), names(&self.columns));
        let is_scaled = self.sweep.scale.is_some();
        let (show, line) = &self.sweep.show;
        let show = show.iter().map(|name| (name, *line, "show".to_owned()));
        let rules = self.sweep.tuning.iter().flat_map(|tuning| &tuning.rule);
        let rules = rules.map(|rule| (&rule.column, rule.line, "tune.rule".to_owned()));
        let derived = self.sweep.derived.iter();
        let derived =
            derived.flat_map(|row| row.columns.iter().map(|column| (column, row.line, "derived".to_owned())));
        let expected = self.sweep.expectations.iter();
        let expected = expected.map(|row| (&row.column, row.line, format!("{}.column", row.place)));
        let all = show.chain(expected).map(|row| (row, &columns));
        for ((given, line, place), columns) in all.chain(rules.chain(derived).map(|row| (row, &plain))) {
            // A scale may ask for other thresholds than the whole sweep, and leave out what a column is made of.
            let is_derived = self.sweep.derived.iter().any(|row| row.name == *given);
            let is_left_out = is_scaled && (is_threshold(given) || is_derived);
            if !columns.contains(given) && !is_left_out {
                let fault = Fault::UnknownColumn { given: given.clone(), columns: columns.clone() };
                problems.push(Problem { line, place, fault });
            }
        }
    }

    fn has_column(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column.name == name)
    }

    /// What is set by hand must not be set again by an axis.
    fn check_sets(&self, problems: &mut Vec<Problem>) {
        for (key, _) in self.over.iter().flat_map(|layer| &layer.values) {
            let mut fault = |fault| problems.push(Problem { line: 1, place: "--set".to_owned(), fault });
            if key == "seed" || key == "out" {
                fault(Fault::OwnKey { key: key.clone() });
            } else if let Some(axis) = self.sweep.axes.iter().find(|axis| axis.keys().any(|own| own == key)) {
                fault(Fault::SetOverAxis { key: key.clone(), axis: axis.name.clone() });
            } else if self.sweep.tuning.iter().any(|tuning| tuning.grid.iter().any(|row| row.0 == *key)) {
                fault(Fault::KeyTwice { key: key.clone(), first: "tune.grid".to_owned() });
            }
        }
    }

    fn find_tuned(&self, problems: &mut Vec<Problem>) -> Vec<usize> {
        let Some(tuning) = &self.sweep.tuning else { return Vec::new() };
        let at = select(&tuning.at, self.sweep.both_axes(), "tune.at", problems);
        for (axis, _) in
            self.sweep.axes.iter().zip(&at).filter(|(_, chosen)| chosen.as_ref().is_some_and(Vec::is_empty))
        {
            let given =
                tuning.at.get(&axis.name).and_then(|(labels, _)| labels.first()).cloned().unwrap_or_default();
            let fault = Fault::UnknownLabel { axis: axis.name.clone(), given, labels: axis.labels() };
            problems.push(Problem { line: tuning.line, place: "tune.at".to_owned(), fault });
        }
        let pinned: Vec<Option<usize>> =
            at.iter().map(|chosen| chosen.as_ref().and_then(|chosen| chosen.first().copied())).collect();
        let count = usize::try_from(self.point_count().min(RUNS_MAX)).unwrap_or(0);
        let moved = |point: usize| {
            let places = self.places(point);
            let places: Vec<usize> =
                places.iter().zip(&pinned).map(|(own, pinned)| pinned.unwrap_or(*own)).collect();
            self.point_at(&places)
        };
        (0..count).map(moved).collect()
    }

    /// Resolves every point with every tuned value; the first configuration of each point.
    fn resolve_all(&self, base: &str, settings: &Settings) -> Result<Vec<Config>, SweepError> {
        let mut texts = BTreeSet::new();
        let mut configs = Vec::new();
        let seed = self.sweep.seeds.first().copied().unwrap_or(0);
        let tried =
            self.sweep.tuning.as_ref().map_or_else(|| vec![Vec::new()], |tuning| tuning.combinations());
        for point in 0..self.points() {
            for (place, tuned) in tried.iter().enumerate() {
                match self.resolve(point, tuned, seed) {
                    Ok(resolved) if place == 0 => configs.push(resolved.config),
                    Ok(_) => {}
                    Err(found) => {
                        let text = |problem| self.located(problem, point, base, settings);
                        texts.extend(found.into_iter().map(text));
                    }
                }
            }
        }
        if texts.is_empty() { Ok(configs) } else { Err(SweepError::Problems(texts.into_iter().collect())) }
    }

    /// A problem of a configuration with the line that set the key.
    fn located(&self, mut problem: ConfigProblem, point: usize, base: &str, settings: &Settings) -> String {
        let line_in = |settings: &Settings, key: &str| {
            settings.iter().rev().find(|row| row.0 == key).map(|(_, _, line)| *line)
        };
        if problem.layer == base {
            problem.line = line_in(settings, &problem.key);
        } else if problem.layer == self.file.display().to_string() {
            let axes = self.sweep.axes.iter().zip(self.places(point));
            let own = axes.flat_map(|(axis, at)| &axis.points[at].settings);
            let own: Settings = self.sweep.common.iter().chain(own).cloned().collect();
            let tuned = self.sweep.tuning.iter().flat_map(|tuning| &tuning.grid);
            let tuned = tuned.filter(|row| row.0 == problem.key).map(|row| row.2).next();
            problem.line = tuned.or_else(|| line_in(&own, &problem.key));
        }
        problem.to_string()
    }

    fn resolve(
        &self,
        point: usize,
        tuned: &[(String, Value)],
        seed: u64,
    ) -> Result<Resolved, Vec<ConfigProblem>> {
        let file = self.file.display().to_string();
        let mut layers = self.under.clone();
        for (axis, at) in self.sweep.axes.iter().zip(self.places(point)) {
            layers.push(layer(&file, &axis.points[at].settings));
        }
        layers.push(Layer { name: file.clone(), values: tuned.to_vec() });
        // Seeds are read from TOML's own whole numbers, which have 63 bits.
        let seed = Value::Int(i64::try_from(seed).unwrap_or(i64::MAX));
        layers.push(Layer { name: file, values: vec![("seed".to_owned(), seed)] });
        layers.extend(self.over.iter().cloned());
        Config::resolve(&layers)
    }

    /// One run: of a point, with these tuned values and this seed.
    pub(crate) fn run(
        &self,
        point: usize,
        tuned: &[(String, Value)],
        seed: u64,
        purpose: Purpose,
    ) -> Result<RunSpec, SweepError> {
        let resolved = self
            .resolve(point, tuned, seed)
            .map_err(|problems| SweepError::Problems(problems.iter().map(ToString::to_string).collect()))?;
        let labels = self.labels(point);
        let part = |(name, label): &(String, String)| format!("{}-{}", slug(name), slug(label));
        let mut parts: Vec<String> = labels.iter().map(part).collect();
        if purpose == Purpose::Tuning {
            parts.insert(0, "tuning".to_owned());
            let short = |key: &str| key.rsplit('.').next().unwrap_or(key).to_owned();
            parts.extend(tuned.iter().map(|(key, value)| part(&(short(key), label_of(value)))));
        }
        let mut slug: String = parts.join("_").chars().take(SLUG_CHARS_MAX).collect();
        slug += &format!("_seed-{seed}_{:016x}", resolved.hash());
        let mode = self.sweep.mode;
        Ok(RunSpec { purpose, mode, labels, tuned: tuned.to_vec(), seed, slug, resolved })
    }

    /// The axes with the labels of a point.
    pub(crate) fn labels(&self, point: usize) -> Vec<(String, String)> {
        let axes = self.sweep.axes.iter().zip(self.places(point));
        axes.map(|(axis, at)| (axis.name.clone(), axis.points[at].label.clone())).collect()
    }

    /// The places of a point along the axes; the last axis runs fastest.
    pub(crate) fn places(&self, point: usize) -> Vec<usize> {
        let mut rest = point;
        let mut places: Vec<usize> = Vec::with_capacity(self.sweep.axes.len());
        for axis in self.sweep.axes.iter().rev() {
            let count = axis.points.len().max(1);
            places.push(rest % count);
            rest /= count;
        }
        places.reverse();
        places
    }

    /// The point at these places.
    pub(crate) fn point_at(&self, places: &[usize]) -> usize {
        self.sweep.axes.iter().zip(places).fold(0, |point, (axis, at)| point * axis.points.len() + at)
    }

    fn point_count(&self) -> u64 {
        self.sweep.axes.iter().fold(1, |count: u64, axis| count.saturating_mul(axis.points.len() as u64))
    }

    /// Points of the sweep.
    pub(crate) fn points(&self) -> usize {
        usize::try_from(self.point_count()).unwrap_or(usize::MAX)
    }

    /// The point at which the choice for this one is made.
    pub(crate) fn tuned_at(&self, point: usize) -> usize {
        self.tuned_at.get(point).copied().unwrap_or(point)
    }

    /// The points at which choices are made, each once.
    pub(crate) fn tuned_points(&self) -> BTreeSet<usize> {
        self.tuned_at.iter().copied().collect()
    }

    /// Runs of the whole sweep, those for tuning among them.
    #[must_use]
    pub fn run_count(&self) -> u64 {
        let reported = self.point_count().saturating_mul(self.sweep.seeds.len() as u64);
        let Some(tuning) = &self.sweep.tuning else { return reported };
        let pinned = |name: &String| tuning.at.contains_key(name);
        let chosen = self.sweep.axes.iter().filter(|axis| !pinned(&axis.name));
        let chosen = chosen.fold(1, |count: u64, axis| count.saturating_mul(axis.points.len() as u64));
        let tried = tuning.combination_count().saturating_mul(tuning.seeds.len() as u64);
        reported.saturating_add(chosen.saturating_mul(tried))
    }

    /// How the runs are made.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.sweep.mode
    }

    /// Name of the sweep.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.sweep.name
    }

    /// What the sweep is, in a line: `staleness: 35 points along bound, kind; 3 seeds; 129 runs`.
    #[must_use]
    pub fn shown(&self) -> String {
        let (points, seeds) = (self.points(), self.sweep.seeds.len());
        let tuning = if self.sweep.tuning.is_some() { ", tuning among them" } else { "" };
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        format!(
            "{}: {points} point{} along {}, {seeds} seed{}, {} runs{tuning}",
            self.sweep.name,
            plural(points),
            names(&self.sweep.axes),
            plural(seeds),
            self.run_count()
        )
    }

    /// The fingerprint of what is run; expectations, texts and shown columns are not part of it.
    #[must_use]
    pub(crate) fn fingerprint(&self) -> u64 {
        let Sweep { name, mode, seeds, axes, tuning, common, .. } = &self.sweep;
        let tuning = tuning.as_ref().map(|tuning| (&tuning.seeds, &tuning.grid, tuning.shown()));
        // Lines are left out: they move with every edit.
        let settings = |settings: &Settings| {
            settings.iter().map(|(key, value, _)| format!("{key} = {value}")).collect::<Vec<_>>()
        };
        let tuning = tuning.map(|(seeds, grid, rule)| {
            let row = |(key, values, _): &(String, Vec<Value>, u32)| format!("{key} = {values:?}");
            (seeds, grid.iter().map(row).collect::<Vec<_>>(), rule)
        });
        let axes: Vec<_> = axes
            .iter()
            .map(|axis| {
                let points = axis.points.iter().map(|point| (&point.label, settings(&point.settings)));
                (&axis.name, points.collect::<Vec<_>>())
            })
            .collect();
        let layers: Vec<_> = self.under.iter().chain(&self.over).map(|layer| &layer.values).collect();
        xxh3_64(
            format!("{name} {mode:?} {seeds:?} {axes:?} {tuning:?} {:?} {layers:?}", settings(common))
                .as_bytes(),
        )
    }

    /// Judges every expectation by the means that `look` gives for a point and a column.
    pub(crate) fn judge(&self, look: &dyn Fn(usize, &str) -> Result<f64, String>) -> Vec<judge::Verdict> {
        let judged = |expectation: &Expectation| {
            let look = |places: &[usize]| look(self.point_at(places), &expectation.column);
            judge::judge(expectation, &self.sweep.axes, &look)
        };
        self.expectations.iter().flat_map(judged).collect()
    }
}

fn layer(name: &str, settings: &Settings) -> Layer {
    let values = settings.iter().map(|(key, value, _)| (key.clone(), value.clone())).collect();
    Layer { name: name.to_owned(), values }
}

/// The problems with the file and their lines, in the order of the lines.
pub(crate) fn refused(file: &str, problems: &[Problem]) -> SweepError {
    let mut problems: Vec<&Problem> = problems.iter().collect();
    problems.sort_by_key(|problem| problem.line);
    let text = |problem: &&Problem| {
        // What was said on the command line has no line of the file.
        if problem.place.starts_with("--set") {
            format!("{file}: {problem}")
        } else {
            format!("{file}:{}: {problem}", problem.line)
        }
    };
    SweepError::Problems(problems.iter().map(text).collect())
}

pub(crate) fn parse(path: &Path, text: String) -> Result<Node, SweepError> {
    document::read(&text).map_err(|syntax| SweepError::Syntax {
        path: path.to_owned(),
        line: syntax.line,
        message: syntax.message,
    })
}

pub(crate) fn read(path: &Path) -> io::Result<String> {
    if fs::metadata(path)?.len() > FILE_BYTES_MAX {
        let text = format!("over {FILE_BYTES_MAX} bytes, which is no configuration");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    fs::read_to_string(path)
}
