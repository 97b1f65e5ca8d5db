//! The figures of one run in a comparison: what its summary says, and what is made of it, by the same formulas for all who take part.

use std::collections::BTreeMap;
use std::path::Path;

use slackline_core::config::Config;

use crate::column::{Better, Column};
use crate::report::runs;

/// What is made for every run: name, unit, better end, title of the table, what it is.
type Made = (&'static str, &'static str, Better, &'static str, &'static str);

use Better::{Least, Most, Neither};

/// In the order of the tables.
pub(crate) const MADE: [Made; 8] = [
    (
        "time_to_target",
        "s",
        Least,
        "time to target [s]",
        "from the beginning of the run to the first evaluation that reached the target (DAWNBench's metric)",
    ),
    ("samples_per_s", "samples/s", Most, "samples/s", "samples of the whole run over its time"),
    (
        "samples_to_target",
        "samples",
        Least,
        "samples to target",
        "statistical efficiency: samples that went into the values which reached the target",
    ),
    (
        "waiting",
        "share of worker time",
        Least,
        "waiting",
        "1 - computing, as shares of the workers' time: whatever is no gradient, on both sides",
    ),
    (
        "bytes_sent",
        "bytes a worker",
        Least,
        "sent a worker [MB]",
        "bytes of gradients (and of sums, in an allreduce) that a worker sent in the whole run, mean of the workers",
    ),
    (
        "bytes_received",
        "bytes a worker",
        Least,
        "received a worker [MB]",
        "bytes of values (and of others' gradients, in an allreduce) that a worker got in the whole run",
    ),
    (
        "cost",
        "worker seconds",
        Least,
        "cost [worker s]",
        "workers times the time to the target; machines of servers are not counted",
    ),
    (
        "recovery",
        "s",
        Least,
        "recovery [s]",
        "the longest time in which no sample was added, as metrics.jsonl of the run has it (no finer than metrics.every_s); only where \
         something befalls a process",
    ),
];

/// The column that says of every run whether it failed.
pub(crate) const FAILED: &str = "failed";

/// The columns of a comparison: what is made, then those of the runs that have another name.
pub(crate) fn columns(of_runs: &[Column]) -> Vec<Column> {
    let made = MADE.iter().map(|(name, unit, better, ..)| Column {
        name: (*name).to_owned(),
        unit: (*unit).to_owned(),
        better: *better,
    });
    let is_other = |column: &&Column| MADE.iter().all(|(name, ..)| *name != column.name);
    let names = |column: &Column| match column.name.as_str() {
        // The share that waits for clocks is one part of what is called waiting here.
        "bytes_pushed" | "bytes_pulled" => Column { better: Neither, ..column.clone() },
        _ => column.clone(),
    };
    let unit = "share of the seeds".to_owned();
    let failed = Column { name: FAILED.to_owned(), unit, better: Least };
    made.chain(of_runs.iter().filter(is_other).map(names)).chain([failed]).collect()
}

/// Puts what is made beside what the summary of the run in `folder` said. `target` is the end of a column's name.
pub(crate) fn complete(
    mut figures: BTreeMap<String, f64>,
    config: &Config,
    target: &str,
    folder: &Path,
) -> BTreeMap<String, f64> {
    let workers = f64::from(config.workers.max(1));
    let take = |figures: &BTreeMap<String, f64>, name: &str| figures.get(name).copied();
    let mut made: Vec<(&str, Option<f64>)> = Vec::new();
    let time = take(&figures, &format!("time_to_{target}"));
    made.push(("time_to_target", time));
    made.push(("samples_to_target", take(&figures, &format!("samples_to_{target}"))));
    made.push(("waiting", take(&figures, "compute").map(|compute| 1.0 - compute)));
    made.push(("bytes_sent", take(&figures, "bytes_pushed").map(|bytes| bytes / workers)));
    made.push(("bytes_received", take(&figures, "bytes_pulled").map(|bytes| bytes / workers)));
    made.push(("cost", time.map(|time| time * workers)));
    if !config.simulation.incidents.is_empty() && !figures.is_empty() {
        made.push(("recovery", longest_rest(&runs::progress(&folder.join("metrics.jsonl")))));
    }
    for (name, value) in made {
        // The summary's own figure of that name would be another.
        figures.remove(name);
        figures.extend(value.filter(|value| value.is_finite()).map(|value| (name.to_owned(), value)));
    }
    figures
}

/// The longest time without a new sample, from moments with the samples done by then.
pub(crate) fn longest_rest(progress: &[(f64, f64)]) -> Option<f64> {
    let (mut began, mut done) = *progress.first()?;
    let mut longest = 0.0_f64;
    for (moment, samples) in progress {
        if *samples > done {
            longest = longest.max(moment - began);
            (began, done) = (*moment, *samples);
        }
    }
    Some(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_rest_is_between_two_lines_with_new_samples() {
        let progress =
            [(0.0, 0.0), (1.0, 8.0), (2.0, 16.0), (3.0, 16.0), (6.5, 16.0), (7.0, 24.0), (8.0, 32.0)];
        assert_eq!(longest_rest(&progress), Some(5.0));
        assert_eq!(longest_rest(&[]), None);
    }

    #[test]
    fn waiting_is_whatever_is_no_gradient_on_both_sides() {
        let config = crate::compare::work::tests::config(&[]);
        let summary =
            [("compute", 0.75), ("waiting", 0.1), ("time_to_accuracy_0.8", 3.0), ("bytes_pushed", 100.0)];
        let figures = summary.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let figures = complete(figures, &config, "accuracy_0.8", Path::new("none"));
        let workers = f64::from(config.workers);
        assert_eq!(figures["waiting"], 0.25);
        assert_eq!(figures["cost"], 3.0 * workers);
        assert_eq!(figures["bytes_sent"], 100.0 / workers);
        assert!(!figures.contains_key("recovery") && !figures.contains_key("bytes_received"));
    }
}
