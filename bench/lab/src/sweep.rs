//! A sweep file: what it says, read and checked by itself. [`crate::plan`] lays it over configurations.

use serde::{Deserialize, Serialize};

use crate::axis::{self, Axes, Axis, Settings, settings};
use crate::derived;
use crate::document::{Content, Node};
use crate::expect::{self, Written};
use crate::fields::{Fields, inner};
use crate::problem::{Fault, Problem};
use crate::tune::{self, Tuning};

/// How the runs of a sweep are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Simulated: real gradients in virtual time.
    Sim,
    /// Simulated without gradients: throughput, waiting, staleness and bytes only.
    Timing,
    /// Real processes on this machine.
    Run,
}

/// Whatever the file says, its scales applied.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sweep {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) base: String,
    pub(crate) mode: Mode,
    pub(crate) scale: Option<String>,
    pub(crate) seeds: Vec<u64>,
    /// Keys that all runs share.
    pub(crate) common: Settings,
    pub(crate) axes: Vec<Axis>,
    /// The axes before a scale took its part.
    pub(crate) whole: Vec<Axis>,
    pub(crate) tuning: Option<Tuning>,
    /// Columns that are made of others.
    pub(crate) derived: Vec<derived::Written>,
    pub(crate) expectations: Vec<Written>,
    /// Columns of the report, the first of which decides.
    pub(crate) show: Choices,
}

/// Names with the line they are written in.
pub(crate) type Choices = (Vec<String>, u32);

const FIELDS: &[&str] = &[
    "name", "about", "base", "mode", "seeds", "show", "set", "axis", "list", "tune", "derived", "expect",
    "scale",
];

const SCALE_FIELDS: &[&str] = &["seeds", "set", "axis", "tune"];

/// Reads a sweep at the chosen scale; `stem` is the name of a file that gives none.
pub(crate) fn read(
    node: &Node,
    stem: &str,
    scale: Option<&str>,
    problems: &mut Vec<Problem>,
) -> Option<Sweep> {
    let fields = Fields::open(node, "", FIELDS, problems);
    let name = fields.text("name", problems).unwrap_or_else(|| stem.to_owned());
    let about = fields.needed_text("about", "a paragraph that says what the sweep shows", problems);
    let base = fields.needed_text("base", "the configuration to build on, from this file's folder", problems);
    let mode = mode(&fields, problems);
    let seeds = fields.seeds("seeds", problems);
    if !fields.has("seeds") {
        problems.push(fields.problem("seeds", Fault::NoSeeds));
    }
    let show = (fields.labels("show", problems), fields.get("show").map_or(1, |node| node.line));
    let common = settings(&fields, "set", problems);
    let axes = axis::read(&fields, problems);
    let tuning = fields.get("tune").and_then(|node| tune::read(node, &axes, problems));
    let scales = scale_names(&fields, problems);
    let expectations: Vec<Written> = fields
        .tables("expect", problems)
        .iter()
        .enumerate()
        .filter_map(|(number, node)| expect::read(node, number + 1, &scales, problems))
        .collect();
    let nodes = fields.tables("derived", problems).iter().enumerate();
    let derived: Vec<derived::Written> =
        nodes.filter_map(|(number, node)| derived::read(node, number + 1, problems)).collect();
    for (place, row) in derived.iter().enumerate() {
        if derived[..place].iter().any(|earlier| earlier.name == row.name) {
            let fault = Fault::RepeatedName { name: row.name.clone() };
            problems.push(Problem { line: row.line, place: format!("derived {}.name", place + 1), fault });
        }
    }
    let mut sweep = Sweep {
        name,
        about: about?,
        base: base?,
        mode: mode?,
        scale: scale.map(str::to_owned),
        seeds: seeds.unwrap_or_default(),
        common,
        whole: axes.clone(),
        axes,
        tuning,
        derived,
        expectations,
        show,
    };
    apply_scales(&fields, &scales, &mut sweep, problems);
    check_tuning_seeds(&sweep, problems);
    Some(sweep)
}

impl Sweep {
    /// The axes, whole and at this scale.
    pub(crate) fn both_axes(&self) -> Axes<'_> {
        Axes { whole: &self.whole, scaled: &self.axes }
    }
}

fn mode(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Option<Mode> {
    let text = fields.needed_text("mode", "\"sim\", \"timing\" or \"run\"", problems)?;
    match text.as_str() {
        "sim" => Some(Mode::Sim),
        "timing" => Some(Mode::Timing),
        "run" => Some(Mode::Run),
        _ => {
            let (expected, given) = ("\"sim\", \"timing\" or \"run\"".to_owned(), format!("\"{text}\""));
            problems.push(fields.problem("mode", Fault::NotAllowed { expected, given }));
            None
        }
    }
}

pub(crate) fn scale_names(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Vec<String> {
    let Some(node) = fields.get("scale") else { return Vec::new() };
    match &node.content {
        Content::Table(rows) => rows.iter().map(|(name, _)| name.clone()).collect(),
        _ => {
            let (expected, given) = ("tables such as [scale.small]".to_owned(), node.shown());
            problems.push(fields.problem("scale", Fault::NotAllowed { expected, given }));
            Vec::new()
        }
    }
}

/// Reads every scale, so that all are right, and applies the chosen one.
fn apply_scales(fields: &Fields<'_>, names: &[String], sweep: &mut Sweep, problems: &mut Vec<Problem>) {
    let plain = sweep.clone();
    let chosen = sweep.scale.clone();
    if let Some(given) = chosen.as_ref().filter(|chosen| !names.contains(*chosen)) {
        let fault = Fault::UnknownScale { given: given.clone(), scales: names.to_vec() };
        problems.push(Problem { line: 1, place: "--set scale".to_owned(), fault });
    }
    let Some(Content::Table(rows)) = fields.get("scale").map(|node| &node.content) else { return };
    for (name, node) in rows {
        let mut scaled = plain.clone();
        scale(node, name, &mut scaled, problems);
        if chosen.as_ref() == Some(name) {
            *sweep = scaled;
        }
    }
}

fn scale(node: &Node, name: &str, sweep: &mut Sweep, problems: &mut Vec<Problem>) {
    let fields = Fields::open(node, format!("scale.{name}"), SCALE_FIELDS, problems);
    if let Some(seeds) = fields.seeds("seeds", problems) {
        sweep.seeds = seeds;
    }
    // Later values win where a key is set.
    sweep.common.extend(settings(&fields, "set", problems));
    if let Some(node) = fields.get("axis") {
        let place = fields.path("axis");
        if let Content::Table(rows) = &node.content {
            for (axis, node) in rows {
                let place = inner(&place, axis);
                match axis::find(axis, &sweep.axes) {
                    Ok((at, found)) => {
                        let points = found.limited(node, &place, name, problems);
                        sweep.axes[at].points = points;
                    }
                    Err(fault) => problems.push(Problem { line: node.line, place, fault }),
                }
            }
        } else {
            let (expected, given) = ("a table of axes".to_owned(), node.shown());
            problems.push(fields.problem("axis", Fault::NotAllowed { expected, given }));
        }
    }
    if let Some(node) = fields.get("tune") {
        tune::scale(node, name, sweep.tuning.as_mut(), problems);
    }
}

/// What is reported must not have been chosen on the same seeds.
pub(crate) fn check_tuning_seeds(sweep: &Sweep, problems: &mut Vec<Problem>) {
    let Some(tuning) = &sweep.tuning else { return };
    if let Some(seed) = tuning.seeds.iter().find(|seed| sweep.seeds.contains(seed)) {
        let fault = Fault::TuningSeedReported { seed: *seed };
        problems.push(Problem { line: tuning.line, place: "tune.seeds".to_owned(), fault });
    }
}
