//! Columns that are made of others: a run's figure against that of the run with the same seed at another point.
//!
//! ```toml
//! [[derived]]
//! name = "extra_clocks"
//! column = "clocks_to_loss_0.4"
//! minus = { way = "no failure" }       # or over = {...}: their ratio
//! ```
//!
//! Of several columns, the first that both runs have a figure for counts. The other axes stay as they are. Only figures of one seed are compared, so what the two runs share cancels out. At a scale that leaves
//! the other point out there is no such column.

use crate::axis::{Axes, Choice, choice, select};
use crate::column::Column;
use crate::document::Node;
use crate::execute::Made;
use crate::fields::Fields;
use crate::problem::{Fault, Problem};

/// A column as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Written {
    pub(crate) line: u32,
    pub(crate) name: String,
    /// Of these the first that a run has.
    pub(crate) columns: Vec<String>,
    place: String,
    against: Choice,
    is_ratio: bool,
}

/// A column whose other point was found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Derived {
    pub(crate) name: String,
    columns: Vec<String>,
    /// The place of the other point along the axes; none where it is that of the run itself.
    against: Vec<Option<usize>>,
    is_ratio: bool,
}

const FIELDS: &[&str] = &["name", "column", "minus", "over"];

pub(crate) fn read(node: &Node, number: usize, problems: &mut Vec<Problem>) -> Option<Written> {
    let fields = Fields::open(node, format!("derived {number}"), FIELDS, problems);
    let name = fields.needed_text("name", "a name for the column", problems);
    let columns = fields.labels("column", problems);
    if columns.is_empty() {
        let expected = "the column that it is made of, or several of which the first counts that a run has";
        problems.push(fields.problem("column", Fault::Missing { expected }));
    }
    let is_ratio = fields.has("over");
    let kind = match (fields.has("minus"), is_ratio) {
        (true, true) => {
            let fault = Fault::TwoTests { first: "minus", second: "over" };
            problems.push(fields.problem("over", fault));
            return None;
        }
        (false, false) => {
            let expected = "the labels of the run to compare with, or the same as over for a ratio";
            problems.push(fields.problem("minus", Fault::Missing { expected }));
            return None;
        }
        (true, false) => "minus",
        (false, true) => "over",
    };
    let against = choice(&fields, kind, problems);
    for (axis, (_, line)) in against.iter().filter(|(_, (labels, _))| labels.len() > 1) {
        let fault = Fault::SeveralLabels { axis: axis.clone() };
        problems.push(Problem { line: *line, place: fields.path(kind), fault });
    }
    let place = fields.path(kind);
    Some(Written { line: node.line, name: name?, columns, place, against, is_ratio })
}

impl Written {
    /// Finds the other point; nothing where this scale leaves it out, or where a problem was noted.
    pub(crate) fn resolve(&self, axes: Axes<'_>, problems: &mut Vec<Problem>) -> Option<Derived> {
        let before = problems.len();
        let found = select(&self.against, axes, &self.place, problems);
        let is_left_out = found.iter().flatten().any(Vec::is_empty);
        (problems.len() == before && !is_left_out).then(|| Derived {
            name: self.name.clone(),
            columns: self.columns.clone(),
            against: found
                .iter()
                .map(|chosen| chosen.as_ref().and_then(|chosen| chosen.first().copied()))
                .collect(),
            is_ratio: self.is_ratio,
        })
    }
}

impl Derived {
    /// The column that it makes of one of these.
    pub(crate) fn made_of(&self, columns: &[Column]) -> Option<Column> {
        let is_one = |column: &&Column| self.columns.contains(&column.name);
        let of = columns.iter().find(is_one)?;
        let unit = if self.is_ratio { String::new() } else { of.unit.clone() };
        Some(Column { name: self.name.clone(), unit, better: of.better })
    }

    /// The places of the point that a point is compared with.
    pub(crate) fn other(&self, places: &[usize]) -> Vec<usize> {
        places.iter().zip(&self.against).map(|(own, other)| other.unwrap_or(*own)).collect()
    }

    /// The figure of a run against another; none where one of them has none.
    pub(crate) fn figure(&self, run: &Made, other: &Made) -> Option<f64> {
        let both = |column: &String| Some((run.figures.get(column)?, other.figures.get(column)?));
        let (own, other) = self.columns.iter().find_map(both)?;
        let figure = if self.is_ratio { own / other } else { own - other };
        figure.is_finite().then_some(figure)
    }
}
