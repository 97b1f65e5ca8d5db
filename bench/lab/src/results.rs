//! The results of a sweep: one row a run, figures over the seeds for each point, choices, verdicts; as JSON and as CSV.
//!
//! Everything here is a function of the sweep file and the runs: no time of day, no folder of this machine, no order of finishing.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::column::{Better, Column};
use crate::judge::Verdict;
use crate::state::LabError;
use crate::sweep::Mode;

/// The form of `results.json`.
pub(crate) const FORMAT: u32 = 1;

/// The whole of `results.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The form of the file; 1.
    pub format: u32,
    /// Name of the sweep.
    pub name: String,
    /// What it shows.
    pub about: String,
    /// How its runs were made.
    pub mode: Mode,
    /// The scale; none for the full one.
    pub scale: Option<String>,
    /// The command that makes all of it again.
    pub command: String,
    /// The base configuration as the sweep names it.
    pub base: String,
    /// Seeds of every point.
    pub seeds: Vec<u64>,
    /// The axes.
    pub axes: Vec<AxisRow>,
    /// All columns that any run has a figure for.
    pub columns: Vec<Column>,
    /// Names of the columns that the report shows.
    pub show: Vec<String>,
    /// The points, the last axis fastest.
    pub points: Vec<Point>,
    /// How tuned values were chosen.
    pub tuning: Option<TuningRow>,
    /// What was expected, and whether it came.
    pub verdicts: Vec<Verdict>,
    /// Expectations that this scale is too small to judge.
    pub not_judged: Vec<String>,
}

/// An axis in the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AxisRow {
    /// Its name.
    pub name: String,
    /// The unit of its labels, if they have one.
    pub unit: String,
    /// Its labels in order.
    pub labels: Vec<String>,
}

/// One point with its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// A label for each axis.
    pub labels: Vec<String>,
    /// Tuned keys with the values that were chosen, as they are written in a configuration.
    pub tuned: BTreeMap<String, String>,
    /// The command that repeats its first run.
    pub command: String,
    /// Its runs, one a seed.
    pub runs: Vec<RunRow>,
    /// The figures over its seeds, by column.
    pub figures: BTreeMap<String, Spread>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// Its seed.
    pub seed: u64,
    /// Its folder, below that of the sweep.
    pub folder: String,
    /// Why it failed; a run that diverged has not.
    pub failure: Option<String>,
    /// Its figures by column; those that it has.
    pub figures: BTreeMap<String, f64>,
}

/// A figure over the seeds of a point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Mean; none unless every seed has a figure, since a mean of the lucky ones would mislead.
    pub mean: Option<f64>,
    /// Least of those that have one.
    pub min: f64,
    /// Greatest of those that have one.
    pub max: f64,
    /// Sample standard deviation of those that have one; none of fewer than two.
    pub std: Option<f64>,
    /// Seeds that have one.
    pub count: usize,
}

/// How tuned values were chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningRow {
    /// The rule.
    pub rule: String,
    /// The seeds it was applied to.
    pub seeds: Vec<u64>,
    /// The columns of the rule, in order.
    pub columns: Vec<String>,
    /// One row for each point at which a choice was made.
    pub choices: Vec<ChoiceRow>,
}

/// One choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChoiceRow {
    /// A label for each axis.
    pub labels: Vec<String>,
    /// The candidates in the order of the grid.
    pub candidates: Vec<CandidateRow>,
    /// Place of the chosen one.
    pub chosen: usize,
    /// Whether the chosen value of a key lies at an end of its list, where a better one may lie beyond.
    pub at_edge: Vec<String>,
}

/// One candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateRow {
    /// Keys with values as they are written in a configuration.
    pub values: BTreeMap<String, String>,
    /// Its mean over the tuning seeds for each column of the rule; none where a seed has none or diverged.
    pub figures: Vec<Option<f64>>,
}

impl Spread {
    /// The spread of the figures of all seeds; none where no seed has one.
    #[must_use]
    pub fn of(figures: &[Option<f64>]) -> Option<Self> {
        let known: Vec<f64> = figures.iter().flatten().copied().collect();
        let first = *known.first()?;
        let count = known.len();
        let mean = known.iter().sum::<f64>() / count as f64;
        let squares: f64 = known.iter().map(|figure| (figure - mean).powi(2)).sum();
        Some(Self {
            mean: (count == figures.len()).then_some(mean),
            min: known.iter().copied().fold(first, f64::min),
            max: known.iter().copied().fold(first, f64::max),
            std: (count > 1).then(|| (squares / (count - 1) as f64).sqrt()),
            count,
        })
    }
}

impl Point {
    /// The mean of a column, or why there is none.
    pub(crate) fn mean(&self, column: &str) -> Result<f64, String> {
        let seeds = self.runs.len();
        if let Some(failed) = self.runs.iter().find(|run| run.failure.is_some()) {
            return Err(format!("no figure: the run of seed {} failed", failed.seed));
        }
        match self.figures.get(column) {
            Some(Spread { mean: Some(mean), .. }) => Ok(*mean),
            Some(spread) => Err(format!("no figure: {} of {seeds} seeds have one", spread.count)),
            None => Err("no figure at any seed".to_owned()),
        }
    }
}

impl Results {
    /// Runs that failed, with their texts.
    pub fn failures(&self) -> impl Iterator<Item = (&RunRow, &str)> {
        let runs = self.points.iter().flat_map(|point| &point.runs);
        runs.filter_map(|run| run.failure.as_deref().map(|text| (run, text)))
    }

    /// Expectations that do not hold.
    pub fn failed(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter().filter(|verdict| !verdict.holds)
    }

    /// Those of these points that win a column: the best mean, and all that equal it. None where all are equal or nothing is judged.
    #[must_use]
    pub fn winners(&self, column: &Column, among: &[usize]) -> Vec<usize> {
        let mean = |place: &usize| self.points.get(*place).and_then(|point| point.mean(&column.name).ok());
        let means: Vec<Option<f64>> = among.iter().map(mean).collect();
        let known = || means.iter().flatten().copied();
        let (least, most) = (known().reduce(f64::min), known().reduce(f64::max));
        let best = match column.better {
            Better::Least => least,
            Better::Most => most,
            Better::Neither => None,
        };
        if best.is_none() || least == most {
            return Vec::new();
        }
        among.iter().zip(&means).filter(|(_, mean)| **mean == best).map(|(place, _)| *place).collect()
    }

    /// The column of this name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The text of `results.json`.
    #[must_use]
    pub fn to_json(&self) -> String {
        // A value made of plain numbers, texts, lists and maps can always be written as JSON.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Reads `results.json` of a sweep's folder.
    ///
    /// # Errors
    ///
    /// No such file, or one that this program has not written.
    pub fn read(folder: &Path) -> Result<Self, LabError> {
        let path = folder.join("results.json");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(LabError::NoResults { folder: folder.to_owned() });
            }
            Err(source) => return Err(LabError::File { path, source }),
        };
        let damaged = |reason: String| LabError::Damaged { path: path.clone(), reason };
        let results: Self = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if results.format != FORMAT {
            return Err(damaged(format!("its format is {}, and {FORMAT} is known", results.format)));
        }
        Ok(results)
    }

    /// The text of `results.csv`: one row a run; axes, tuned keys, seed, figures, folder, failure. Empty where there is none.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let tuned: Vec<&String> =
            self.points.first().map(|point| point.tuned.keys().collect()).unwrap_or_default();
        let mut header: Vec<String> = self.axes.iter().map(|axis| axis.name.clone()).collect();
        header.extend(tuned.iter().map(|key| (*key).clone()));
        header.push("seed".to_owned());
        header.extend(self.columns.iter().map(|column| column.name.clone()));
        header.extend(["folder".to_owned(), "failure".to_owned()]);
        let mut text = csv_line(&header);
        for point in &self.points {
            for run in &point.runs {
                let mut row = point.labels.clone();
                row.extend(tuned.iter().map(|key| point.tuned.get(*key).cloned().unwrap_or_default()));
                row.push(run.seed.to_string());
                let figure = |column: &Column| run.figures.get(&column.name).map(f64::to_string);
                row.extend(self.columns.iter().map(|column| figure(column).unwrap_or_default()));
                row.extend([run.folder.clone(), run.failure.clone().unwrap_or_default()]);
                text += &csv_line(&row);
            }
        }
        text
    }
}

/// One line, quoted where RFC 4180 asks for it.
pub(crate) fn csv_line(row: &[String]) -> String {
    let cell = |text: &String| {
        if text.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", text.replace('"', "\"\""))
        } else {
            text.clone()
        }
    };
    row.iter().map(cell).collect::<Vec<_>>().join(",") + "\r\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_needs_every_seed() {
        let spread = Spread::of(&[Some(1.0), Some(3.0)]).unwrap();
        assert_eq!((spread.mean, spread.min, spread.max, spread.count), (Some(2.0), 1.0, 3.0, 2));
        assert_eq!(spread.std, Some(2.0_f64.sqrt()));
        let spread = Spread::of(&[Some(1.0), None]).unwrap();
        assert_eq!((spread.mean, spread.count, spread.std), (None, 1, None));
        assert_eq!(Spread::of(&[None, None]), None);
    }

    #[test]
    fn a_cell_with_a_comma_is_quoted() {
        assert_eq!(csv_line(&["a,b".to_owned(), "say \"x\"".to_owned()]), "\"a,b\",\"say \"\"x\"\"\"\r\n");
    }
}
