//! Expectations: what a sweep should show, as comparisons between columns that are judged when it has run.
//!
//! | fields | holds when |
//! |---|---|
//! | `at_least`, `at_most`, `within = [low, high]` | the column lies there; with `over = { axis = label }` its ratio to that point |
//! | `along`, `monotone = "rising"` or `"falling"` | no step along the axis goes the other way |
//! | `along`, `least_among` or `most_among = [labels]` | the best point along the axis is one of these |
//! | `ascending = [{ axis = label }, ...]` | the column does not fall from each of these points to the next |
//!
//! A column is its mean over the seeds; a point where a seed has no figure has none. `tolerance` is a share of the largest magnitude
//! that takes part. An axis that is not chosen is gone through: the expectation must hold at each of its labels. At a scale, labels
//! that it leaves out are left out here too, and an expectation that cannot do without one of them is not judged; `not_in` names
//! scales that are too small for what it says.

use crate::axis::{self, Axes, Choice, Selection, choice, choice_of, select};
use crate::document::{Content, Node};
use crate::fields::{Fields, number_of};
use crate::problem::{Fault, Problem};

/// An expectation as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Written {
    pub(crate) line: u32,
    pub(crate) place: String,
    pub(crate) claim: String,
    pub(crate) column: String,
    pub(crate) at: Choice,
    pub(crate) test: WrittenTest,
    /// Scales at which it is not judged.
    pub(crate) not_in: Vec<String>,
}

/// Its test as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WrittenTest {
    Bounds { low: Option<f64>, high: Option<f64>, over: Choice },
    Monotone { along: String, is_rising: bool, tolerance: f64 },
    Best { along: String, is_most: bool, among: Vec<String> },
    Ascending { points: Vec<Choice>, tolerance: f64 },
}

/// An expectation whose axes and labels were found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expectation {
    pub(crate) claim: String,
    pub(crate) column: String,
    /// What is chosen along each axis.
    pub(crate) at: Selection,
    pub(crate) test: Test,
}

/// Its test.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Test {
    Bounds { low: Option<f64>, high: Option<f64>, over: Selection },
    Monotone { along: usize, is_rising: bool, tolerance: f64 },
    Best { along: usize, is_most: bool, among: Vec<usize> },
    Ascending { points: Vec<Selection>, tolerance: f64 },
}

const FIELDS: &[&str] = &[
    "claim",
    "column",
    "at",
    "not_in",
    "at_least",
    "at_most",
    "within",
    "over",
    "along",
    "monotone",
    "least_among",
    "most_among",
    "ascending",
    "tolerance",
];

const TESTS: &[&str] =
    &["at_least", "at_most", "within", "monotone", "least_among", "most_among", "ascending"];

pub(crate) fn read(
    node: &Node,
    number: usize,
    scales: &[String],
    problems: &mut Vec<Problem>,
) -> Option<Written> {
    let fields = Fields::open(node, format!("expect {number}"), FIELDS, problems);
    let claim = fields.needed_text("claim", "what is expected, in words", problems);
    let column = fields.needed_text("column", "the column to look at", problems);
    let at = choice(&fields, "at", problems);
    let not_in = fields.labels("not_in", problems);
    for given in not_in.iter().filter(|given| !scales.contains(given)) {
        let fault = Fault::UnknownScale { given: given.clone(), scales: scales.to_vec() };
        problems.push(fields.problem("not_in", fault));
    }
    let test = test(&fields, problems)?;
    let place = fields.place.clone();
    Some(Written { line: node.line, place, claim: claim?, column: column?, at, test, not_in })
}

fn test(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Option<WrittenTest> {
    let given: Vec<&'static str> = TESTS.iter().copied().filter(|name| fields.has(name)).collect();
    let is_bounds = |name: &str| matches!(name, "at_least" | "at_most" | "within");
    let kind = match given.as_slice() {
        [] => {
            let fault = Fault::NoTest { tests: TESTS };
            problems.push(Problem { line: fields.line, place: fields.place.clone(), fault });
            return None;
        }
        [first, second, ..] if !(given.len() == 2 && [*first, *second] == ["at_least", "at_most"]) => {
            problems.push(fields.problem(second, Fault::TwoTests { first, second }));
            return None;
        }
        [first, ..] => *first,
    };
    for (name, needs, fits) in [
        ("over", "at_least, at_most or within", is_bounds(kind)),
        ("along", "monotone, least_among or most_among", !is_bounds(kind) && kind != "ascending"),
        ("tolerance", "monotone or ascending", matches!(kind, "monotone" | "ascending")),
    ] {
        if fields.has(name) && !fits {
            problems.push(fields.problem(name, Fault::NoEffect { needs }));
        }
    }
    let tolerance = fields.number("tolerance", problems).unwrap_or(0.0);
    if tolerance < 0.0 {
        let (expected, given) = ("a share from 0 on".to_owned(), tolerance.to_string());
        problems.push(fields.problem("tolerance", Fault::NotAllowed { expected, given }));
    }
    match kind {
        "at_least" | "at_most" => {
            let (low, high) = (fields.number("at_least", problems), fields.number("at_most", problems));
            Some(WrittenTest::Bounds { low, high, over: choice(fields, "over", problems) })
        }
        "within" => within(fields, problems),
        "ascending" => {
            let place = fields.path("ascending");
            let nodes = fields.list("ascending", problems)?;
            let points: Vec<Choice> = nodes.iter().map(|node| choice_of(node, &place, problems)).collect();
            if points.len() < 2 {
                let (expected, given) =
                    ("two points or more".to_owned(), format!("{} of them", points.len()));
                problems.push(fields.problem("ascending", Fault::NotAllowed { expected, given }));
            }
            Some(WrittenTest::Ascending { points, tolerance })
        }
        _ => along(fields, kind, tolerance, problems),
    }
}

fn within(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Option<WrittenTest> {
    let node = fields.get("within")?;
    let ends = match &node.content {
        Content::List(nodes) => nodes.iter().map(number_of).collect::<Option<Vec<f64>>>(),
        _ => None,
    };
    match ends.as_deref() {
        Some([low, high]) if low <= high => {
            let over = choice(fields, "over", problems);
            Some(WrittenTest::Bounds { low: Some(*low), high: Some(*high), over })
        }
        _ => {
            let (expected, given) = ("[low, high]".to_owned(), node.shown());
            problems.push(fields.problem("within", Fault::NotAllowed { expected, given }));
            None
        }
    }
}

fn along(
    fields: &Fields<'_>,
    kind: &str,
    tolerance: f64,
    problems: &mut Vec<Problem>,
) -> Option<WrittenTest> {
    let along = fields.needed_text("along", "the axis to walk along", problems)?;
    if kind == "monotone" {
        let word = fields.text("monotone", problems)?;
        if word != "rising" && word != "falling" {
            let (expected, given) = ("\"rising\" or \"falling\"".to_owned(), format!("\"{word}\""));
            problems.push(fields.problem("monotone", Fault::NotAllowed { expected, given }));
        }
        return Some(WrittenTest::Monotone { along, is_rising: word == "rising", tolerance });
    }
    let among = fields.labels(kind, problems);
    if among.is_empty() {
        problems.push(fields.problem(kind, Fault::Empty));
    }
    Some(WrittenTest::Best { along, is_most: kind == "most_among", among })
}

impl Written {
    /// Finds axes and labels; nothing where a label is missing that only the whole sweep has, or where a problem was noted.
    pub(crate) fn resolve(&self, axes: Axes<'_>, problems: &mut Vec<Problem>) -> Option<Expectation> {
        let before = problems.len();
        let place = &self.place;
        let mut at = select(&self.at, axes, &format!("{place}.at"), problems);
        let single = |choice: &Choice, name: &str, problems: &mut Vec<Problem>| {
            for (axis, (_, line)) in choice.iter().filter(|(_, (labels, _))| labels.len() > 1) {
                let fault = Fault::SeveralLabels { axis: axis.clone() };
                problems.push(Problem { line: *line, place: format!("{place}.{name}"), fault });
            }
            select(choice, axes, &format!("{place}.{name}"), problems)
        };
        let test = match &self.test {
            WrittenTest::Bounds { low, high, over } => {
                Test::Bounds { low: *low, high: *high, over: single(over, "over", problems) }
            }
            WrittenTest::Ascending { points, tolerance } => {
                let points = points.iter().map(|point| single(point, "ascending", problems)).collect();
                Test::Ascending { points, tolerance: *tolerance }
            }
            WrittenTest::Monotone { along, is_rising, tolerance } => {
                let along = self.walk(along, axes, &at, problems)?;
                Test::Monotone { along, is_rising: *is_rising, tolerance: *tolerance }
            }
            WrittenTest::Best { along, is_most, among } => {
                let along = self.walk(along, axes, &at, problems)?;
                let choice = Choice::from([(axes.scaled[along].name.clone(), (among.clone(), self.line))]);
                let mut found = select(&choice, axes, place, problems);
                Test::Best { along, is_most: *is_most, among: found.swap_remove(along).unwrap_or_default() }
            }
        };
        if problems.len() > before || test.is_left_out() || has_empty(&at) {
            return None;
        }
        if let Test::Ascending { points, .. } = &test {
            // What the points choose themselves is not gone through.
            for axis in 0..at.len() {
                if points.iter().any(|point| point[axis].is_some()) && at[axis].is_none() {
                    at[axis] = Some(vec![0]);
                }
            }
        }
        Some(Expectation { claim: self.claim.clone(), column: self.column.clone(), at, test })
    }

    fn walk(&self, name: &str, axes: Axes<'_>, at: &Selection, problems: &mut Vec<Problem>) -> Option<usize> {
        let mut fault = |fault| {
            problems.push(Problem { line: self.line, place: format!("{}.along", self.place), fault });
        };
        match axis::find(name, axes.scaled) {
            Ok((found, _)) if at[found].is_some() => {
                fault(Fault::AlongChosen { axis: name.to_owned() });
                None
            }
            Ok((found, _)) => Some(found),
            Err(unknown) => {
                fault(unknown);
                None
            }
        }
    }
}

fn has_empty(selection: &Selection) -> bool {
    selection.iter().flatten().any(Vec::is_empty)
}

impl Test {
    /// Whether a point that it needs is not in this scale.
    fn is_left_out(&self) -> bool {
        match self {
            Self::Bounds { over, .. } => has_empty(over),
            Self::Ascending { points, .. } => points.iter().any(has_empty),
            Self::Best { among, .. } => among.is_empty(),
            Self::Monotone { .. } => false,
        }
    }
}
