//! How a comparison came out: a row for each condition with an entry for each contestant; as JSON and as CSV.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::figures::FAILED;
use crate::column::Column;
use crate::judge::Verdict;
use crate::results::{RunRow, csv_line};
use crate::state::LabError;
use crate::sweep::Mode;

/// The form of `results.json`.
pub(crate) const FORMAT: u32 = 1;

/// What tells a comparison from a sweep there.
pub(crate) const KIND: &str = "comparison";

/// The whole of `results.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// `comparison`.
    pub kind: String,
    /// The form of the file; 1.
    pub format: u32,
    /// Name of the comparison.
    pub name: String,
    /// What it shows.
    pub about: String,
    /// How its runs were made.
    pub mode: Mode,
    /// The scale; none for the full one.
    pub scale: Option<String>,
    /// The command that makes all of it again.
    pub command: String,
    /// The base configuration as the file names it.
    pub base: String,
    /// The seeds that are compared.
    pub seeds: Vec<u64>,
    /// What each contestant could try.
    pub budget: Budget,
    /// The contestants with what they are.
    pub contestants: Vec<(String, String)>,
    /// All columns.
    pub columns: Vec<Column>,
    /// The conditions in the order of the file.
    pub rows: Vec<Row>,
    /// Conditions that could not be made this way, with the reason.
    pub skipped: Vec<(String, String)>,
    /// What was expected, and whether it came.
    pub verdicts: Vec<Verdict>,
    /// Expectations that this scale or mode does not judge.
    pub not_judged: Vec<String>,
}

/// The tuning budget: the same for every contestant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// The rates that are tried.
    pub rates: Vec<String>,
    /// With these seeds, none of which is compared.
    pub seeds: Vec<u64>,
    /// The condition at which the choice is made for all; none for each condition by itself.
    pub at: Option<String>,
    /// Runs of each contestant for one choice.
    pub runs: usize,
}

/// One condition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// What it is.
    pub about: String,
    /// The target that decides, in words: `82 % accuracy`.
    pub target: String,
    /// The end of the names of its columns: `accuracy_0.82`.
    pub column: String,
    /// Passes over the data of every run.
    pub epochs: u64,
    /// Workers of every run.
    pub workers: u32,
    /// Evaluations of every run, about.
    pub evaluations: f64,
    /// The condition whose rates were taken, where it is not this one.
    pub tuned_at: Option<String>,
    /// A contestant each, then the peers from outside.
    pub entries: Vec<Entry>,
    /// Who is first: one, or those who tie; nobody where the target was not reached.
    pub first: Vec<String>,
    /// The same without peers from outside.
    pub first_of_ours: Vec<String>,
    /// Who wins, by how much, with what spread.
    pub sentence: String,
    /// What else is to be said, a line each: peers that were skipped, rates at an edge.
    pub notes: Vec<String>,
}

/// One contestant under one condition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub contestant: String,
    /// What it is made of.
    pub family: Family,
    /// The rate that was chosen, as it is written in a configuration.
    pub rate: String,
    /// Every rate that was tried, with its figures.
    pub tried: Vec<Try>,
    /// Whether the chosen rate lies at an end of what was tried, where a better one may lie beyond.
    pub at_edge: bool,
    /// Whether it is allowed to fail here.
    pub may_fail: bool,
    /// One run a seed.
    pub runs: Vec<RunRow>,
    /// Figures over the seeds, by column.
    pub figures: BTreeMap<String, Middle>,
    /// Curves of a peer, one a seed; those of the contestants are in the folders of their runs.
    pub curves: Vec<Vec<Evaluated>>,
}

/// What a contestant is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Parameters on servers.
    Server,
    /// An allreduce between the workers.
    Allreduce,
    /// Another program.
    Outside,
}

/// One rate that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Try {
    /// As it is written in a configuration.
    pub rate: String,
    /// Mean time to the target over the tuning seeds; none where one of them did not reach it, diverged or failed.
    pub time: Option<f64>,
    /// Mean loss on the test part at the end; none where one of them diverged or failed.
    pub loss: Option<f64>,
}

/// One measurement of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// Seconds.
    pub t: f64,
    /// Samples by then.
    pub samples: f64,
    /// Share of the test part that is right.
    pub accuracy: Option<f64>,
    /// Loss on the test part.
    pub loss: Option<f64>,
}

/// A figure over the seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Middle {
    /// Median; none unless every seed has a figure.
    pub median: Option<f64>,
    /// Least of those that have one.
    pub min: f64,
    /// Greatest of those that have one.
    pub max: f64,
    /// Seeds that have one.
    pub count: usize,
}

impl Middle {
    /// The middle of the figures of all seeds; none where no seed has one.
    #[must_use]
    pub fn of(figures: &[Option<f64>]) -> Option<Self> {
        let mut known: Vec<f64> = figures.iter().flatten().copied().collect();
        known.sort_by(f64::total_cmp);
        let (min, max, count) = (*known.first()?, *known.last()?, known.len());
        let median = f64::midpoint(known[(count - 1) / 2], known[count / 2]);
        Some(Self { median: (count == figures.len()).then_some(median), min, max, count })
    }
}

impl Entry {
    /// The figures of its runs, over the seeds.
    pub(crate) fn middle(runs: &[RunRow], columns: &[Column]) -> BTreeMap<String, Middle> {
        let of = |column: &Column| {
            let figures: Vec<Option<f64>> =
                runs.iter().map(|run| run.figures.get(&column.name).copied()).collect();
            Some((column.name.clone(), Middle::of(&figures)?))
        };
        columns.iter().filter_map(of).collect()
    }

    /// The median of a column, or why there is none.
    pub(crate) fn median(&self, column: &str) -> Result<f64, String> {
        let failed = self.runs.iter().find(|run| run.failure.is_some());
        if let Some(failed) = failed.filter(|_| column != FAILED) {
            return Err(format!("no figure: the run of seed {} failed", failed.seed));
        }
        match self.figures.get(column) {
            Some(Middle { median: Some(median), .. }) => Ok(*median),
            Some(middle) => Err(format!("no figure: {} of {} seeds have one", middle.count, self.runs.len())),
            None => Err("no figure at any seed".to_owned()),
        }
    }

    /// The time to the target over the seeds, where every seed reached it.
    pub(crate) fn time(&self) -> Option<Middle> {
        self.figures.get("time_to_target").filter(|middle| middle.median.is_some()).copied()
    }

    /// Seeds that reached the target.
    pub(crate) fn reached(&self) -> usize {
        self.figures.get("time_to_target").map_or(0, |middle| middle.count)
    }
}

impl Standing {
    /// Runs that failed where they may not, with their texts.
    pub fn failures(&self) -> impl Iterator<Item = (&RunRow, &str)> {
        let entries = self.rows.iter().flat_map(|row| &row.entries).filter(|entry| !entry.may_fail);
        let runs = entries.flat_map(|entry| &entry.runs);
        runs.filter_map(|run| run.failure.as_deref().map(|text| (run, text)))
    }

    /// Expectations that do not hold.
    pub fn failed(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter().filter(|verdict| !verdict.holds)
    }

    /// The text of `results.json`.
    #[must_use]
    pub fn to_json(&self) -> String {
        // A value made of plain numbers, texts, lists and maps can always be written as JSON.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Reads `results.json` of a comparison's folder; nothing where it is that of a sweep.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>, LabError> {
        let path = folder.join("results.json");
        // Whoever reads sweeps says what is wrong with a file that is none of ours.
        let Ok(text) = fs::read_to_string(&path) else { return Ok(None) };
        let Ok(value) = serde_json::from_str::<serde_json::Value>(&text) else { return Ok(None) };
        if value.get("kind").and_then(serde_json::Value::as_str) != Some(KIND) {
            return Ok(None);
        }
        let damaged = |reason: String| LabError::Damaged { path: path.clone(), reason };
        let standing: Self = serde_json::from_value(value).map_err(|error| damaged(error.to_string()))?;
        if standing.format != FORMAT {
            return Err(damaged(format!("its format is {}, and {FORMAT} is known", standing.format)));
        }
        Ok(Some(standing))
    }

    /// The text of `results.csv`: one row a run; condition, contestant, rate, seed, figures, folder, failure. Empty where there is none.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut header = ["condition", "contestant", "rate", "seed"].map(str::to_owned).to_vec();
        header.extend(self.columns.iter().map(|column| column.name.clone()));
        header.extend(["folder".to_owned(), "failure".to_owned()]);
        let mut text = csv_line(&header);
        for row in &self.rows {
            for entry in &row.entries {
                for run in &entry.runs {
                    let mut cells = vec![row.name.clone(), entry.contestant.clone(), entry.rate.clone()];
                    cells.push(run.seed.to_string());
                    let figure = |column: &Column| run.figures.get(&column.name).map(f64::to_string);
                    cells.extend(self.columns.iter().map(|column| figure(column).unwrap_or_default()));
                    cells.extend([run.folder.clone(), run.failure.clone().unwrap_or_default()]);
                    text += &csv_line(&cells);
                }
            }
        }
        text
    }
}

/// A target in words: `82 % accuracy`, `a loss of 0.5`. `column` is the end of a column's name.
pub(crate) fn target_text(column: &str) -> String {
    let number = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
    match (column.strip_prefix("accuracy_"), column.strip_prefix("loss_")) {
        (Some(share), _) => format!("{} % accuracy", crate::judge::short(100.0 * number(share))),
        (_, Some(loss)) => format!("a loss of {}", crate::judge::short(number(loss))),
        _ => "the target".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_needs_every_seed() {
        let middle = Middle::of(&[Some(3.0), Some(1.0), Some(2.0)]).unwrap();
        assert_eq!((middle.median, middle.min, middle.max, middle.count), (Some(2.0), 1.0, 3.0, 3));
        assert_eq!(Middle::of(&[Some(3.0), Some(1.0)]).unwrap().median, Some(2.0));
        let middle = Middle::of(&[Some(3.0), None]).unwrap();
        assert_eq!((middle.median, middle.count), (None, 1));
        assert_eq!(Middle::of(&[None]), None);
    }

    #[test]
    fn a_target_is_told_as_people_say_it() {
        assert_eq!(target_text("accuracy_0.82"), "82 % accuracy");
        assert_eq!(target_text("loss_0.5"), "a loss of 0.5");
    }
}
