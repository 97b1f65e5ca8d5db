//! A comparison file: contestants, conditions, targets and the tuning budget, read and checked by itself.
//!
//! It becomes a sweep over the two axes "contestant" and "condition", so that runs are planned, made and resumed as those of any sweep.

use slackline_core::config::Value;

use super::expected::{self, Expected};
use crate::axis::{Axis, AxisPoint, Choice, Settings, settings};
use crate::document::{Content, Node};
use crate::fields::{Fields, number_of};
use crate::problem::{Fault, Problem};
use crate::sweep::{Mode, Sweep, check_tuning_seeds, scale_names};
use crate::tune::Tuning;

/// The axes of the sweep.
pub(crate) const CONTESTANT: &str = "contestant";
pub(crate) const CONDITION: &str = "condition";

/// The key that is tuned.
pub(crate) const RATE: &str = "optimizer.rate";

/// Ways in which an expectation can be too much, beside the scales.
const MODES: [&str; 2] = ["virtual", "real"];

/// What a file says, its scale applied.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    /// The axes are [`CONTESTANT`] and [`CONDITION`], in this order.
    pub(crate) sweep: Sweep,
    pub(crate) contestants: Vec<Contestant>,
    pub(crate) conditions: Vec<Condition>,
    /// The condition at which all rates are chosen, where the file names one.
    pub(crate) tune_at: Option<(String, u32)>,
    pub(crate) expectations: Vec<Expected>,
}

/// One that takes part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Contestant {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) settings: Settings,
    /// Conditions under which a run that fails is a result.
    pub(crate) may_fail: Vec<String>,
    pub(crate) line: u32,
}

/// What they are compared under.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Condition {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) settings: Settings,
    pub(crate) targets: Option<Targets>,
    /// The condition whose rates it takes.
    pub(crate) tune_at: Option<String>,
    pub(crate) line: u32,
}

/// What is to be reached; the first accuracy decides, or else the first loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Targets {
    accuracies: Vec<Value>,
    losses: Vec<Value>,
    line: u32,
}

impl Targets {
    /// What decides, as the end of a column's name: `accuracy_0.8`.
    pub(crate) fn deciding(&self) -> String {
        match (self.accuracies.first(), self.losses.first()) {
            (Some(value), _) => format!("accuracy_{}", number(value)),
            (None, Some(value)) => format!("loss_{}", number(value)),
            (None, None) => String::new(),
        }
    }

    fn settings(&self) -> Settings {
        let row = |key: &str, values: &[Value]| (key.to_owned(), Value::List(values.to_vec()), self.line);
        vec![row("evaluate.accuracies", &self.accuracies), row("evaluate.losses", &self.losses)]
    }
}

fn number(value: &Value) -> f64 {
    match value {
        Value::Int(number) => *number as f64,
        Value::Float(number) => *number,
        _ => f64::NAN,
    }
}

/// What a scale can change.
#[derive(Clone, Debug)]
struct Parts {
    seeds: Vec<u64>,
    common: Settings,
    contestants: Vec<Contestant>,
    conditions: Vec<Condition>,
    targets: Option<Targets>,
    tuning: Tuning,
}

const FIELDS: &[&str] = &[
    "name",
    "about",
    "base",
    "mode",
    "seeds",
    "set",
    "targets",
    "contestant",
    "condition",
    "tune",
    "expect",
    "scale",
];

/// Reads a comparison at the chosen scale, to be made in `mode` or else as it says; `stem` is the name of a file that gives none.
pub(crate) fn read(
    node: &Node,
    stem: &str,
    scale: Option<&str>,
    mode: Option<Mode>,
    problems: &mut Vec<Problem>,
) -> Option<Written> {
    let fields = Fields::open(node, "", FIELDS, problems);
    let name = fields.text("name", problems).unwrap_or_else(|| stem.to_owned());
    let about = fields.needed_text("about", "a paragraph that says what the comparison shows", problems);
    let base = fields.needed_text("base", "the configuration to build on, from this file's folder", problems);
    let written_mode = read_mode(&fields, problems);
    let seeds = fields.seeds("seeds", problems);
    if !fields.has("seeds") {
        problems.push(fields.problem("seeds", Fault::NoSeeds));
    }
    let common = common(&fields, problems);
    let (tuning, tune_at) = tuning(&fields, problems);
    let contestants = contestants(&fields, problems);
    let conditions = conditions(&fields, problems);
    let targets = fields.get("targets").and_then(|node| targets(node, "targets", problems));
    let scales = scale_names(&fields, problems);
    let whole =
        Parts { seeds: seeds.unwrap_or_default(), common, contestants, conditions, targets, tuning: tuning? };
    let mut parts = whole.clone();
    apply_scales(&fields, &scales, scale, &whole, &mut parts, problems);
    check(&fields, &whole, tune_at.as_ref(), problems);
    let mut ways = scales;
    ways.extend(MODES.map(str::to_owned));
    let nodes = fields.tables("expect", problems).iter().enumerate();
    let expectations: Vec<Expected> =
        nodes.filter_map(|(number, node)| expected::read(node, number + 1, &ways, problems)).collect();
    let sweep = Sweep {
        name,
        about: about?,
        base: base?,
        mode: mode.unwrap_or(written_mode),
        scale: scale.map(str::to_owned),
        seeds: parts.seeds.clone(),
        common: parts.common.clone(),
        whole: axes(&whole),
        axes: axes(&parts),
        tuning: Some(parts.tuning.clone()),
        derived: Vec::new(),
        expectations: Vec::new(),
        show: (Vec::new(), 1),
    };
    check_tuning_seeds(&sweep, problems);
    let Parts { contestants, mut conditions, targets, .. } = parts;
    for condition in &mut conditions {
        condition.targets = condition.targets.take().or_else(|| targets.clone());
    }
    Some(Written { sweep, contestants, conditions, tune_at, expectations })
}

impl Written {
    /// Leaves conditions out, as a scale would.
    pub(crate) fn without(&mut self, is_out: impl Fn(&str) -> bool) {
        self.conditions.retain(|condition| !is_out(&condition.name));
        self.sweep.axes[1].points.retain(|point| !is_out(&point.label));
    }
}

/// Keys that the comparison itself decides about, wherever they are set.
fn refuse_own(settings: &Settings, place: &str, problems: &mut Vec<Problem>) {
    for (key, _, line) in settings {
        let owner = match key.as_str() {
            "evaluate.accuracies" | "evaluate.losses" => "targets",
            RATE => "tune",
            _ => continue,
        };
        let fault = Fault::SetElsewhere { key: key.clone(), owner, because: "" };
        problems.push(Problem { line: *line, place: place.to_owned(), fault });
    }
}

fn common(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Settings {
    let common = settings(fields, "set", problems);
    refuse_own(&common, "set", problems);
    common
}

fn read_mode(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Mode {
    match fields.text("mode", problems).as_deref() {
        None | Some("virtual") => Mode::Sim,
        Some("real") => Mode::Run,
        Some(other) => {
            let (expected, given) = ("\"virtual\" or \"real\"".to_owned(), format!("\"{other}\""));
            problems.push(fields.problem("mode", Fault::NotAllowed { expected, given }));
            Mode::Sim
        }
    }
}

fn tuning(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> (Option<Tuning>, Option<(String, u32)>) {
    let Some(node) = fields.get("tune") else {
        let expected = "[tune] with rates and seeds: every contestant gets the same tries";
        problems.push(fields.problem("tune", Fault::Missing { expected }));
        return (None, None);
    };
    let inner = Fields::open(node, "tune", &["rates", "seeds", "at"], problems);
    for (name, expected) in [
        ("seeds", "seeds that are not compared, such as [101]"),
        ("rates", "the rates that each contestant tries, such as [0.01, 0.03, 0.1]"),
    ] {
        if !inner.has(name) {
            problems.push(inner.problem(name, Fault::Missing { expected }));
        }
    }
    let seeds = inner.seeds("seeds", problems).unwrap_or_default();
    let rates = numbers(&inner, "rates", problems).unwrap_or_default();
    let line = inner.get("rates").map_or(node.line, |node| node.line);
    let at = inner.text("at", problems).map(|at| (at, inner.get("at").map_or(node.line, |node| node.line)));
    let grid = vec![(RATE.to_owned(), rates, line)];
    (Some(Tuning { line: node.line, seeds, rule: Vec::new(), grid, at: Choice::new() }), at)
}

/// Numbers above zero, none of them twice.
fn numbers(fields: &Fields<'_>, name: &str, problems: &mut Vec<Problem>) -> Option<Vec<Value>> {
    let nodes = fields.list(name, problems)?;
    if nodes.is_empty() {
        problems.push(fields.problem(name, Fault::Empty));
    }
    let mut values: Vec<Value> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let value = node.value();
        let fault = match number_of(node).filter(|number| *number > 0.0) {
            None => {
                let expected = "numbers above 0".to_owned();
                Some(Fault::NotAllowed { expected, given: node.shown() })
            }
            Some(given) if values.iter().any(|known| number(known) == given) => {
                Some(Fault::RepeatedValue { value: node.shown() })
            }
            Some(_) => None,
        };
        match fault {
            Some(fault) => problems.push(Problem { line: node.line, place: fields.path(name), fault }),
            None => values.push(value),
        }
    }
    Some(values)
}

fn targets(node: &Node, place: &str, problems: &mut Vec<Problem>) -> Option<Targets> {
    let fields = Fields::open(node, place, &["accuracies", "losses"], problems);
    let mut list = |name: &str| {
        if fields.has(name) { numbers(&fields, name, problems).unwrap_or_default() } else { Vec::new() }
    };
    let (accuracies, losses) = (list("accuracies"), list("losses"));
    if accuracies.is_empty() && losses.is_empty() {
        let fault = Fault::NoTest { tests: &["accuracies", "losses"] };
        problems.push(Problem { line: node.line, place: place.to_owned(), fault });
        return None;
    }
    Some(Targets { accuracies, losses, line: node.line })
}

/// What must be the same for all who take part: sections by their prefix, keys by their name.
const EQUAL: [&str; 9] = [
    "data.",
    "model.",
    "evaluate.",
    "stragglers.",
    "simulation.",
    "workers",
    "train.epochs",
    "train.batch",
    "metrics.",
];

fn contestants(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Vec<Contestant> {
    let mut contestants: Vec<Contestant> = Vec::new();
    for (number, node) in fields.tables("contestant", problems).iter().enumerate() {
        let place = format!("contestant {}", number + 1);
        let fields = Fields::open(node, place, &["name", "about", "set", "may_fail"], problems);
        let name = fields.needed_text("name", "the name of the contestant", problems);
        let about = fields.text("about", problems).unwrap_or_default();
        let settings = settings(&fields, "set", problems);
        let place = fields.path("set");
        for (key, _, line) in &settings {
            let is_equal =
                |equal: &&str| if equal.ends_with('.') { key.starts_with(*equal) } else { key == equal };
            if EQUAL.iter().any(is_equal) {
                let because = ", so that all contestants do the same work; use set or a condition";
                let fault = Fault::SetElsewhere { key: key.clone(), owner: "the comparison", because };
                problems.push(Problem { line: *line, place: place.clone(), fault });
            }
        }
        refuse_own(&settings, &place, problems);
        let may_fail = fields.labels("may_fail", problems);
        contestants.extend(name.map(|name| Contestant { name, about, settings, may_fail, line: node.line }));
    }
    if contestants.len() < 2 && problems.is_empty() {
        let (expected, given) =
            ("two [[contestant]] or more".to_owned(), format!("{} of them", contestants.len()));
        problems.push(fields.problem("contestant", Fault::NotAllowed { expected, given }));
    }
    contestants
}

fn conditions(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Vec<Condition> {
    let mut conditions = Vec::new();
    for (number, node) in fields.tables("condition", problems).iter().enumerate() {
        let place = format!("condition {}", number + 1);
        let fields = Fields::open(node, place, &["name", "about", "set", "targets", "tune_at"], problems);
        let name = fields.needed_text("name", "the name of the condition", problems);
        let about = fields.text("about", problems).unwrap_or_default();
        let settings = settings(&fields, "set", problems);
        refuse_own(&settings, &fields.path("set"), problems);
        let targets = fields.get("targets").and_then(|node| targets(node, &fields.path("targets"), problems));
        let tune_at = fields.text("tune_at", problems);
        let condition = |name| Condition { name, about, settings, targets, tune_at, line: node.line };
        conditions.extend(name.map(condition));
    }
    if conditions.is_empty() && problems.is_empty() {
        let (expected, given) = ("one [[condition]] or more".to_owned(), "none of them".to_owned());
        problems.push(fields.problem("condition", Fault::NotAllowed { expected, given }));
    }
    conditions
}

/// What only the whole file can be held against: names that stand twice or nowhere, keys that two of them set.
fn check(fields: &Fields<'_>, parts: &Parts, tune_at: Option<&(String, u32)>, problems: &mut Vec<Problem>) {
    let mut fault = |line: u32, place: String, fault: Fault| problems.push(Problem { line, place, fault });
    let conditions: Vec<String> = parts.conditions.iter().map(|row| row.name.clone()).collect();
    let unknown = |given: &str| Fault::UnknownName {
        kind: CONDITION,
        given: given.to_owned(),
        names: conditions.clone(),
    };
    for (place, row) in parts.contestants.iter().enumerate() {
        let name = format!("contestant \"{}\"", row.name);
        if parts.contestants[..place].iter().any(|earlier| earlier.name == row.name) {
            fault(row.line, name.clone(), Fault::RepeatedName { name: row.name.clone() });
        }
        for given in row.may_fail.iter().filter(|given| !conditions.contains(given)) {
            fault(row.line, format!("{name}.may_fail"), unknown(given));
        }
    }
    for (place, row) in parts.conditions.iter().enumerate() {
        let name = format!("condition \"{}\"", row.name);
        if parts.conditions[..place].iter().any(|earlier| earlier.name == row.name) {
            fault(row.line, name.clone(), Fault::RepeatedName { name: row.name.clone() });
        }
        if let Some(given) = row.tune_at.as_ref().filter(|given| !conditions.contains(given)) {
            fault(row.line, format!("{name}.tune_at"), unknown(given));
        }
        if row.targets.is_none() && parts.targets.is_none() {
            let expected =
                "targets = { accuracies = [...] } or { losses = [...] }, here or for the whole file";
            fault(row.line, format!("{name}.targets"), Fault::Missing { expected });
        }
        for (key, _, line) in &row.settings {
            let sets = |contestant: &&Contestant| contestant.settings.iter().any(|(own, ..)| own == key);
            if let Some(first) = parts.contestants.iter().find(sets) {
                let first = format!("the contestant \"{}\"", first.name);
                fault(*line, name.clone(), Fault::KeyTwice { key: key.clone(), first });
            }
        }
    }
    if let Some((given, line)) = tune_at.filter(|(given, _)| !conditions.contains(given)) {
        fault(*line, "tune.at".to_owned(), unknown(given));
    }
    if let (Some(_), Some(targets)) = (fields.get("targets"), &parts.targets)
        && parts.conditions.iter().all(|row| row.targets.is_some())
    {
        fault(targets.line, "targets".to_owned(), Fault::NoEffect { needs: "a condition without targets" });
    }
}

const SCALE_FIELDS: &[&str] = &["seeds", "set", "targets", "contestants", "conditions", "tune"];

/// Reads every scale, so that all are right, and applies the chosen one.
fn apply_scales(
    fields: &Fields<'_>,
    names: &[String],
    chosen: Option<&str>,
    whole: &Parts,
    parts: &mut Parts,
    problems: &mut Vec<Problem>,
) {
    if let Some(given) = chosen.filter(|chosen| names.iter().all(|name| name != chosen)) {
        let fault = Fault::UnknownScale { given: given.to_owned(), scales: names.to_vec() };
        problems.push(Problem { line: 1, place: "--set scale".to_owned(), fault });
    }
    let Some(Content::Table(rows)) = fields.get("scale").map(|node| &node.content) else { return };
    for (name, node) in rows {
        let mut scaled = whole.clone();
        scale(node, name, &mut scaled, problems);
        if chosen == Some(name) {
            *parts = scaled;
        }
    }
}

fn scale(node: &Node, name: &str, parts: &mut Parts, problems: &mut Vec<Problem>) {
    let fields = Fields::open(node, format!("scale.{name}"), SCALE_FIELDS, problems);
    if let Some(seeds) = fields.seeds("seeds", problems) {
        parts.seeds = seeds;
    }
    let own = settings(&fields, "set", problems);
    refuse_own(&own, &fields.path("set"), problems);
    // Later values win where a key is set.
    parts.common.extend(own);
    if let Some(node) = fields.get("targets") {
        // They are those of every condition: a scale is another task.
        let targets = targets(node, &fields.path("targets"), problems);
        parts.conditions.iter_mut().for_each(|row| row.targets = None);
        parts.targets = targets;
    }
    let names: Vec<String> = parts.contestants.iter().map(|row| row.name.clone()).collect();
    if let Some(kept) = kept(&fields, "contestants", CONTESTANT, names, problems) {
        parts.contestants.retain(|row| kept.contains(&row.name));
    }
    let names: Vec<String> = parts.conditions.iter().map(|row| row.name.clone()).collect();
    if let Some(kept) = kept(&fields, "conditions", CONDITION, names, problems) {
        parts.conditions.retain(|row| kept.contains(&row.name));
    }
    if let Some(node) = fields.get("tune") {
        let inner = Fields::open(node, fields.path("tune"), &["rates", "seeds"], problems);
        if let Some(seeds) = inner.seeds("seeds", problems) {
            parts.tuning.seeds = seeds;
        }
        if let Some(rates) = numbers(&inner, "rates", problems) {
            parts.tuning.grid = vec![(RATE.to_owned(), rates, node.line)];
        }
    }
}

/// The names that a scale keeps.
fn kept(
    fields: &Fields<'_>,
    field: &str,
    kind: &'static str,
    names: Vec<String>,
    problems: &mut Vec<Problem>,
) -> Option<Vec<String>> {
    let line = fields.get(field)?.line;
    let kept = fields.labels(field, problems);
    if kept.is_empty() {
        problems.push(fields.problem(field, Fault::Empty));
    }
    for given in kept.iter().filter(|given| !names.contains(given)) {
        let fault = Fault::UnknownName { kind, given: given.clone(), names: names.clone() };
        problems.push(Problem { line, place: fields.path(field), fault });
    }
    Some(kept)
}

/// The two axes.
fn axes(parts: &Parts) -> Vec<Axis> {
    let contestant = |row: &Contestant| AxisPoint { label: row.name.clone(), settings: row.settings.clone() };
    let condition = |row: &Condition| {
        let mut settings = row.settings.clone();
        let targets = row.targets.as_ref().or(parts.targets.as_ref());
        settings.extend(targets.map(Targets::settings).unwrap_or_default());
        AxisPoint { label: row.name.clone(), settings }
    };
    let axis =
        |name: &str, points| Axis { name: name.to_owned(), unit: String::new(), key: None, points, line: 1 };
    vec![
        axis(CONTESTANT, parts.contestants.iter().map(contestant).collect()),
        axis(CONDITION, parts.conditions.iter().map(condition).collect()),
    ]
}
