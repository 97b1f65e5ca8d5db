//! The results as the charts look at them: points in groups, each group with what its runs left.
//!
//! The first axis is what is compared: its labels are the lines of a chart and the rows of a table. A group holds the points that
//! agree on all other axes.

use std::path::Path;

use super::runs::{Band, Evaluation, Run, read};
use crate::results::Results;
use crate::sweep::Mode;

/// Timelines that are drawn.
pub(crate) const TIMELINES_MAX: usize = 8;

/// Groups that charts are drawn for; tables show all.
pub(crate) const GROUPS_MAX: usize = 12;

/// Points with the same labels on all axes but the first.
pub(crate) struct Group {
    /// Those labels: `kind = exp`; empty for a sweep along one axis.
    pub(crate) name: String,
    /// Places of its points, in the order of the first axis.
    pub(crate) points: Vec<usize>,
}

/// The results with the runs.
pub(crate) struct View<'a> {
    pub(crate) results: &'a Results,
    /// The runs of each point.
    pub(crate) runs: Vec<Vec<Run>>,
    pub(crate) groups: Vec<Group>,
}

/// How wrong a model is: by its share of errors where the task has one, else by its loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    Error,
    Loss,
}

impl<'a> View<'a> {
    pub(crate) fn new(results: &'a Results, folder: &Path) -> Self {
        let groups = groups(results);
        // One timeline for each label of the first axis, then for those of the next group.
        let drawn: Vec<usize> =
            groups.iter().flat_map(|group| group.points.iter().copied()).take(TIMELINES_MAX).collect();
        let of = |(place, point): (usize, &crate::results::Point)| {
            let runs = point.runs.iter().enumerate();
            runs.map(|(seed, run)| read(&folder.join(&run.folder), seed == 0 && drawn.contains(&place)))
                .collect()
        };
        let runs = results.points.iter().enumerate().map(of).collect();
        Self { results, runs, groups }
    }

    /// The label of a point on the first axis.
    pub(crate) fn label(&self, point: usize) -> &str {
        self.results.points[point].labels.first().map_or("", String::as_str)
    }

    /// The place of a point on the first axis: its colour.
    pub(crate) fn place(&self, point: usize) -> usize {
        let labels = self.results.axes.first().map(|axis| axis.labels.as_slice()).unwrap_or_default();
        labels.iter().position(|label| label == self.label(point)).unwrap_or(0)
    }

    /// Labels of the first axis.
    pub(crate) fn count(&self) -> usize {
        self.results.axes.first().map_or(1, |axis| axis.labels.len())
    }

    /// The first axis with its unit.
    pub(crate) fn first_axis(&self) -> String {
        self.results.axes.first().map_or_else(String::new, |axis| titled(&axis.name, &axis.unit))
    }

    /// The groups that charts are drawn for.
    pub(crate) fn drawn(&self) -> &[Group] {
        &self.groups[..self.groups.len().min(GROUPS_MAX)]
    }

    /// How the time of this sweep is called.
    pub(crate) const fn time_title(&self) -> &'static str {
        match self.results.mode {
            Mode::Run => "wall time [s]",
            Mode::Sim | Mode::Timing => "virtual time [s]",
        }
    }

    /// What the evaluations measured; none where there are none.
    pub(crate) fn measure(&self) -> Option<Measure> {
        let all = || self.runs.iter().flatten().flat_map(|run| &run.evaluations);
        if all().any(|evaluation| evaluation.error.is_some()) {
            return Some(Measure::Error);
        }
        all().any(|evaluation| evaluation.loss.is_some()).then_some(Measure::Loss)
    }

    /// The measured curve of a point over its seeds, along `x`.
    pub(crate) fn band(&self, point: usize, measure: Measure, x: fn(&Evaluation) -> f64) -> Band {
        let value = |evaluation: &Evaluation| match measure {
            Measure::Error => evaluation.error,
            Measure::Loss => evaluation.loss,
        };
        let curve = |run: &Run| {
            let at = |evaluation: &Evaluation| Some((x(evaluation), value(evaluation)?));
            let mut curve: Vec<(f64, f64)> = run.evaluations.iter().filter_map(at).collect();
            curve.sort_by(|a, b| a.0.total_cmp(&b.0));
            curve
        };
        let curves: Vec<Vec<(f64, f64)>> = self.runs[point].iter().map(curve).collect();
        Band::over(&curves)
    }
}

impl Measure {
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Error => "test error [share]",
            Self::Loss => "test loss",
        }
    }
}

pub(crate) fn titled(name: &str, unit: &str) -> String {
    if unit.is_empty() { name.to_owned() } else { format!("{name} [{unit}]") }
}

fn groups(results: &Results) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (place, point) in results.points.iter().enumerate() {
        let others = results.axes.iter().zip(&point.labels).skip(1);
        let name =
            others.map(|(axis, label)| format!("{} = {label}", axis.name)).collect::<Vec<_>>().join(", ");
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.points.push(place),
            None => groups.push(Group { name, points: vec![place] }),
        }
    }
    groups
}
