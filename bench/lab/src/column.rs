//! The columns of a sweep's tables: figures of `summary.json` under short names.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use slackline_core::config::Config;

/// Which end of a column is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// The least value wins.
    Least,
    /// The greatest value wins.
    Most,
    /// It describes and does not judge.
    Neither,
}

/// One column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Its name, in tables and in expectations.
    pub name: String,
    /// The unit; empty for counts and flags.
    pub unit: String,
    /// Who wins it.
    pub better: Better,
}

/// A column that every run has: name, unit, better end, and its place in `summary.json`.
type Fixed = (&'static str, &'static str, Better, &'static str);

use Better::{Least, Most, Neither};

/// The columns that every run has, in the order of the tables. A place that begins with `+` is a sum over everything below it.
const FIXED: &[Fixed] = &[
    ("test_accuracy", "share", Most, "/final/test_accuracy"),
    ("best_test_accuracy", "share", Most, "/best_test_accuracy"),
    ("test_loss", "", Least, "/final/test_loss"),
    ("train_loss", "", Least, "/final/train_loss"),
    ("time_s", "s", Least, "time"),
    ("samples_per_s", "samples/s", Most, "/samples_per_s"),
    ("iterations_per_s", "iterations/s", Most, "iterations/time"),
    ("iterations", "", Neither, "/iterations"),
    ("samples", "samples", Neither, "/samples"),
    ("epochs", "passes over the data", Neither, "/epochs"),
    ("staleness_mean", "versions", Least, "/staleness/version/mean"),
    ("staleness_p99", "versions", Least, "/staleness/version/p99"),
    ("staleness_max", "versions", Least, "/staleness/version/max"),
    ("lead_mean", "clocks", Neither, "/staleness/clock_lead/mean"),
    ("lead_p99", "clocks", Neither, "/staleness/clock_lead/p99"),
    ("lead_max", "clocks", Neither, "/staleness/clock_lead/max"),
    ("compute", "share of worker time", Most, "/time/compute"),
    ("waiting", "share of worker time", Least, "/time/wait_for_clock"),
    ("push", "share of worker time", Least, "/time/push"),
    ("busy", "share of worker time", Least, "/time/busy"),
    ("pull", "share of worker time", Least, "/time/pull"),
    ("data", "share of worker time", Neither, "/time/data"),
    ("evaluate", "share of worker time", Neither, "/time/evaluate"),
    ("bytes_pushed", "bytes", Least, "/bytes/pushed"),
    ("bytes_pulled", "bytes", Least, "/bytes/pulled"),
    ("pushes_sent", "", Neither, "/pushes/sent"),
    ("pushes_applied", "", Neither, "/pushes/applied"),
    ("pushes_dropped", "", Least, "/pushes/dropped"),
    ("batches_repeated", "", Least, "/batches_repeated"),
    ("gradients", "", Neither, "/gradients"),
    ("clocks_lost", "clocks", Least, "/clocks_lost"),
    ("bytes_copied", "bytes", Least, "/bytes_copied"),
    ("bytes_saved", "bytes", Least, "/bytes_saved"),
    ("decided_apply", "", Neither, "+/decisions/apply"),
    ("decided_down_weight", "", Neither, "+/decisions/down_weight"),
    ("decided_drop", "", Neither, "+/decisions/drop"),
    ("decided_hold", "", Neither, "+/decisions/hold"),
    ("diverged", "share of the seeds", Least, "diverged"),
    ("diverged_clock", "clocks", Neither, "/diverged/clock"),
];

/// Columns for each threshold of the configuration: prefix, unit, the list in the summary, what an entry names its threshold.
const TO_THRESHOLD: &[(&str, &str, &str, &str)] = &[
    ("time_to_accuracy_", "s", "/time_to_accuracy", "accuracy"),
    ("samples_to_accuracy_", "samples", "/time_to_accuracy", "accuracy"),
    ("clocks_to_accuracy_", "clocks", "/work_to_accuracy", "accuracy"),
    ("time_to_loss_", "s", "/time_to_loss", "loss"),
    ("samples_to_loss_", "samples", "/time_to_loss", "loss"),
    ("clocks_to_loss_", "clocks", "/work_to_loss", "loss"),
];

/// Every column that runs of these configurations have.
pub(crate) fn columns_of<'a>(configs: impl IntoIterator<Item = &'a Config>) -> Vec<Column> {
    let column = |name: String, unit: &str, better| Column { name, unit: unit.to_owned(), better };
    let mut columns: Vec<Column> =
        FIXED.iter().map(|(name, unit, better, _)| column((*name).to_owned(), unit, *better)).collect();
    let (mut accuracies, mut losses): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for config in configs {
        for threshold in thresholds(config) {
            let (list, value) = match threshold {
                Threshold::Accuracy(value) => (&mut accuracies, value),
                Threshold::Loss(value) => (&mut losses, value),
            };
            if !list.contains(&value) {
                list.push(value);
            }
        }
    }
    for (prefix, unit, _, what) in TO_THRESHOLD {
        for value in if *what == "accuracy" { &accuracies } else { &losses } {
            columns.push(column(format!("{prefix}{value}"), unit, Least));
        }
    }
    columns
}

/// Whether this is the name of a column for some threshold.
pub(crate) fn is_threshold(name: &str) -> bool {
    let number = |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.parse::<f64>().is_ok());
    TO_THRESHOLD.iter().any(|(prefix, ..)| number(prefix))
}

enum Threshold {
    Accuracy(f64),
    Loss(f64),
}

fn thresholds(config: &Config) -> impl Iterator<Item = Threshold> {
    let accuracies = config.evaluate.accuracies.iter().copied().map(Threshold::Accuracy);
    accuracies.chain(config.evaluate.losses.iter().copied().map(Threshold::Loss))
}

impl Column {
    /// The figure of one run; nothing where the run has none.
    pub(crate) fn figure(&self, summary: &Value) -> Option<f64> {
        let figure = match FIXED.iter().find(|(name, ..)| *name == self.name) {
            Some((.., place)) => fixed(summary, place),
            None => TO_THRESHOLD.iter().find_map(|family| threshold(summary, &self.name, family)),
        };
        figure.filter(|figure| figure.is_finite())
    }

    /// The name with the unit.
    #[must_use]
    pub fn titled(&self) -> String {
        if self.unit.is_empty() { self.name.clone() } else { format!("{} [{}]", self.name, self.unit) }
    }
}

fn fixed(summary: &Value, place: &str) -> Option<f64> {
    let number = |pointer: &str| summary.pointer(pointer).and_then(Value::as_f64);
    match place {
        "time" => time_of(summary),
        "iterations/time" => {
            let time = time_of(summary).filter(|time| *time > 0.0)?;
            Some(number("/iterations")? / time)
        }
        "diverged" => summary.get("diverged").map(|diverged| f64::from(u8::from(!diverged.is_null()))),
        _ => match place.strip_prefix('+') {
            Some(pointer) => summary.pointer(pointer).map(sum),
            None => number(place),
        },
    }
}

/// Virtual seconds of a simulated run, else those of the wall.
fn time_of(entry: &Value) -> Option<f64> {
    ["virtual_s", "wall_s"].into_iter().find_map(|name| entry.get(name).and_then(Value::as_f64))
}

fn sum(value: &Value) -> f64 {
    match value {
        Value::Object(rows) => rows.values().map(sum).sum(),
        other => other.as_f64().unwrap_or(0.0),
    }
}

fn threshold(summary: &Value, name: &str, family: &(&str, &str, &str, &str)) -> Option<f64> {
    let (prefix, unit, list, what) = family;
    let wanted: f64 = name.strip_prefix(prefix)?.parse().ok()?;
    let entries = summary.pointer(list)?.as_array()?;
    let of = |entry: &&Value| entry.get(*what).and_then(Value::as_f64) == Some(wanted);
    let entry = entries.iter().find(of)?;
    // What is not a time stands in the entry under the name of its unit.
    if *unit == "s" { time_of(entry) } else { entry.get(*unit).and_then(Value::as_f64) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn figure(name: &str, summary: &Value) -> Option<f64> {
        Column { name: name.to_owned(), unit: String::new(), better: Neither }.figure(summary)
    }

    #[test]
    fn a_column_is_read_from_its_place() {
        let summary = json!({
            "virtual_s": 20.0, "wall_s": 0.1, "iterations": 50, "diverged": null,
            "final": { "test_accuracy": 0.9, "test_loss": null },
            "time_to_accuracy": [{ "accuracy": 0.85, "virtual_s": 3.0, "wall_s": 0.5, "samples": 640 }],
            "work_to_loss": [{ "loss": 0.5, "clocks": 21.25, "virtual_s": 4.0 }],
            "decisions": { "drop": { "late": 2, "old": 3 }, "apply": 7 },
        });
        for (name, expected) in [
            ("time_s", Some(20.0)),
            ("iterations_per_s", Some(2.5)),
            ("test_accuracy", Some(0.9)),
            ("test_loss", None),
            ("diverged", Some(0.0)),
            ("diverged_clock", None),
            ("time_to_accuracy_0.85", Some(3.0)),
            ("samples_to_accuracy_0.85", Some(640.0)),
            ("time_to_accuracy_0.9", None),
            ("clocks_to_loss_0.5", Some(21.25)),
            ("clocks_to_accuracy_0.85", None),
            ("decided_drop", Some(5.0)),
            ("decided_apply", Some(7.0)),
            ("decided_hold", None),
            ("nonsense", None),
        ] {
            assert_eq!(figure(name, &summary), expected, "{name}");
        }
        assert_eq!(figure("diverged", &json!({ "diverged": { "clock": 4 } })), Some(1.0));
        assert_eq!(figure("time_s", &json!({ "virtual_s": null, "wall_s": 2.0 })), Some(2.0));
    }
}
