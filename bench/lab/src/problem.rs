//! What can be wrong with a sweep file: one line each, that says where, what, and what is allowed.

use std::fmt;
use std::path::PathBuf;

use crate::RUNS_MAX;
use crate::names::{hint, listed};

/// Why there is no sweep. All of these are for the user to put right.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The sweep file cannot be read.
    #[error("{}: cannot read the sweep: {source} (configs/experiments/ has some to begin with)", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The configuration that the sweep builds on cannot be read.
    #[error("{}: base = \"{base}\": cannot read {}: {source}; the path is taken from the folder of the sweep file",
        sweep.display(), path.display())]
    NoBase {
        /// The sweep file.
        sweep: PathBuf,
        /// What it names.
        base: String,
        /// Where that was looked for.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not TOML.
    #[error("{}{}: not valid TOML: {message}", path.display(), at(.line))]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Its line, where the parser could tell.
        line: Option<u32>,
        /// What the parser says.
        message: String,
    },
    /// The content is wrong; one line each.
    #[error("{}", .0.join("\n"))]
    Problems(Vec<String>),
}

fn at(line: &Option<u32>) -> String {
    line.map_or_else(String::new, |line| format!(":{line}"))
}

/// One thing that is wrong with a sweep file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    pub(crate) line: u32,
    /// The field, as a path.
    pub(crate) place: String,
    pub(crate) fault: Fault,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.fault)
    }
}

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("unknown field{}", hint(.given, .allowed))]
    UnknownField { given: String, allowed: &'static [&'static str] },
    #[error("missing; give {expected}")]
    Missing { expected: &'static str },
    #[error("expected {expected}, and it is {given}")]
    NotAllowed { expected: String, given: String },
    #[error("no axis; a sweep needs at least one [[axis]], or points in [[list]]")]
    NoAxis,
    #[error("both [[axis]] and [[list]]: axes are multiplied with each other, a list stands alone")]
    AxisAndList,
    #[error("empty; give at least one value")]
    Empty,
    #[error("needs either key and values, or points, each with label and set")]
    NeitherKeyNorPoints,
    #[error("the label \"{label}\" stands twice")]
    RepeatedLabel { label: String },
    #[error("the name \"{name}\" stands twice")]
    RepeatedName { name: String },
    #[error("{value} stands twice")]
    RepeatedValue { value: String },
    #[error("no seeds; give at least one, such as seeds = [1, 2, 3]")]
    NoSeeds,
    #[error("seed {seed} is among the reported seeds; choices made on a run must not be judged by it")]
    TuningSeedReported { seed: u64 },
    #[error("{key} is also set by {first}; one of them would have no effect")]
    KeyTwice { key: String, first: String },
    #[error("{key} is for the sweep to set{}", if key == "seed" { "; list the seeds in seeds" } else { "; leave it out" })]
    OwnKey { key: String },
    #[error("{count} runs, and {RUNS_MAX} are the most; take fewer points, seeds or tuning values")]
    TooManyRuns { count: u64 },
    #[error("no axis \"{given}\"{}", hint(.given, &refs(.axes)))]
    UnknownAxis { given: String, axes: Vec<String> },
    #[error("the axis {axis} has no label \"{given}\"{}", hint(.given, &refs(.labels)))]
    UnknownLabel { axis: String, given: String, labels: Vec<String> },
    #[error("no {kind} \"{given}\"{}", hint(.given, &refs(.names)))]
    UnknownName { kind: &'static str, given: String, names: Vec<String> },
    #[error("{key} is for {owner} to set{because}")]
    SetElsewhere { key: String, owner: &'static str, because: &'static str },
    #[error("no column \"{given}\"{}", column_hint(.given, .columns))]
    UnknownColumn { given: String, columns: Vec<String> },
    #[error("no scale \"{given}\"; {}", match scales.len() {
        0 => "this file names none".to_owned(),
        _ => format!("this file has {}", listed(&refs(.scales))),
    })]
    UnknownScale { given: String, scales: Vec<String> },
    #[error("needs one of {}", listed(.tests))]
    NoTest { tests: &'static [&'static str] },
    #[error("{first} and {second} cannot stand together; write two expectations")]
    TwoTests { first: &'static str, second: &'static str },
    #[error("has no effect without {needs}")]
    NoEffect { needs: &'static str },
    #[error("{axis} must name one label here, not several")]
    SeveralLabels { axis: String },
    #[error("the axis {axis} cannot stand both in at and in along")]
    AlongChosen { axis: String },
    #[error("--set {key}: the axis {axis} sets this key; choose points with a scale, or change the file")]
    SetOverAxis { key: String, axis: String },
}

pub(crate) fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// Thresholds are named when it was one of them that was asked for.
fn column_hint(given: &str, columns: &[String]) -> String {
    for (family, key) in [("_to_accuracy_", "evaluate.accuracies"), ("_to_loss_", "evaluate.losses")] {
        if given.contains(family) {
            let known: Vec<&str> =
                columns.iter().map(String::as_str).filter(|name| name.contains(family)).collect();
            return format!("; {key} of the configuration gives {}", listed(&known));
        }
    }
    hint(given, &refs(columns))
}
