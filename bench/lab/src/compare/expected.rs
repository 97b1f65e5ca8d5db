//! Expectations of a comparison: those of a sweep, over medians, and who wins.
//!
//! `winner_among = [contestants]` with `at = { condition = ... }` holds when the winner is one of these, and in a tie when all who share
//! the first place are. A condition that is not chosen is gone through.

use super::file::{CONDITION, CONTESTANT};
use super::standing::Row;
use crate::axis::{Axes, Axis, Choice, choice, select};
use crate::document::{Content, Node};
use crate::expect::{self, Expectation};
use crate::fields::Fields;
use crate::judge::{Verdict, judge};
use crate::problem::{Fault, Problem};

/// An expectation as it is written.
#[derive(Clone, Debug)]
pub(crate) enum Expected {
    Column(expect::Written),
    Winner(Winner),
}

/// Who is expected to win.
#[derive(Clone, Debug)]
pub(crate) struct Winner {
    line: u32,
    place: String,
    claim: String,
    at: Choice,
    among: Vec<String>,
    not_in: Vec<String>,
}

/// An expectation whose names were found.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    Column(Expectation),
    /// Places of conditions, and names.
    Winner {
        claim: String,
        conditions: Vec<usize>,
        among: Vec<String>,
    },
}

const FIELD: &str = "winner_among";

/// Reads one; `ways` are the scales and modes that it can leave out.
pub(crate) fn read(
    node: &Node,
    number: usize,
    ways: &[String],
    problems: &mut Vec<Problem>,
) -> Option<Expected> {
    let has_winner =
        matches!(&node.content, Content::Table(rows) if rows.iter().any(|(name, _)| name == FIELD));
    if !has_winner {
        return expect::read(node, number, ways, problems).map(Expected::Column);
    }
    let fields = Fields::open(node, format!("expect {number}"), &["claim", "at", FIELD, "not_in"], problems);
    let claim = fields.needed_text("claim", "what is expected, in words", problems);
    let at = choice(&fields, "at", problems);
    if let Some((_, line)) = at.get(CONTESTANT) {
        let (expected, given) = ("a condition only".to_owned(), "a contestant".to_owned());
        let fault = Fault::NotAllowed { expected, given };
        problems.push(Problem { line: *line, place: fields.path("at"), fault });
    }
    let among = fields.labels(FIELD, problems);
    if among.is_empty() {
        problems.push(fields.problem(FIELD, Fault::Empty));
    }
    let not_in = fields.labels("not_in", problems);
    for given in not_in.iter().filter(|given| !ways.contains(given)) {
        let fault = Fault::UnknownScale { given: given.clone(), scales: ways.to_vec() };
        problems.push(fields.problem("not_in", fault));
    }
    let place = fields.place.clone();
    Some(Expected::Winner(Winner { line: node.line, place, claim: claim?, at, among, not_in }))
}

impl Expected {
    pub(crate) fn claim(&self) -> &str {
        match self {
            Self::Column(written) => &written.claim,
            Self::Winner(winner) => &winner.claim,
        }
    }

    /// Whether it says itself that it is not for this scale or mode.
    pub(crate) fn leaves_out(&self, way: &str) -> bool {
        let not_in = match self {
            Self::Column(written) => &written.not_in,
            Self::Winner(winner) => &winner.not_in,
        };
        not_in.iter().any(|name| name == way)
    }

    /// The column with its line and place.
    pub(crate) fn column(&self) -> Option<(&str, u32, &str)> {
        match self {
            Self::Column(written) => Some((&written.column, written.line, &written.place)),
            Self::Winner(_) => None,
        }
    }

    /// Finds contestants and conditions; nothing where one is missing that only the whole file has, or where a problem was noted.
    pub(crate) fn resolve(&self, axes: Axes<'_>, problems: &mut Vec<Problem>) -> Option<Found> {
        let before = problems.len();
        let found = match self {
            Self::Column(written) => written.resolve(axes, problems).map(Found::Column),
            Self::Winner(winner) => winner.resolve(axes, problems),
        };
        // An axis and its labels are contestants or conditions here.
        for problem in &mut problems[before..] {
            if let Fault::UnknownLabel { axis, given, labels } = &problem.fault {
                let kind = if axis.starts_with(CONTESTANT) { CONTESTANT } else { CONDITION };
                problem.fault = Fault::UnknownName { kind, given: given.clone(), names: labels.clone() };
            }
        }
        found
    }
}

impl Winner {
    fn resolve(&self, axes: Axes<'_>, problems: &mut Vec<Problem>) -> Option<Found> {
        let before = problems.len();
        let at = select(&self.at, axes, &format!("{}.at", self.place), problems);
        let among = Choice::from([(CONTESTANT.to_owned(), (self.among.clone(), self.line))]);
        let among = select(&among, axes, &format!("{}.{FIELD}", self.place), problems);
        let name = |place: &usize| axes.scaled[0].points[*place].label.clone();
        let among: Vec<String> = among.first()?.iter().flatten().map(name).collect();
        let conditions: Vec<usize> = match at.get(1)? {
            Some(chosen) => chosen.clone(),
            None => (0..axes.scaled[1].points.len()).collect(),
        };
        if problems.len() > before || among.is_empty() || conditions.is_empty() {
            return None;
        }
        Some(Found::Winner { claim: self.claim.clone(), conditions, among })
    }
}

/// Judges all of them by what came out.
pub(crate) fn verdicts(expectations: &[Found], axes: &[Axis], rows: &[Row]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for expectation in expectations {
        match expectation {
            Found::Column(expectation) => {
                let look = |places: &[usize]| {
                    let entry = rows.get(places[1]).and_then(|row| row.entries.get(places[0]));
                    entry.map_or_else(
                        || Err("no figure".to_owned()),
                        |entry| entry.median(&expectation.column),
                    )
                };
                verdicts.extend(judge(expectation, axes, &look));
            }
            Found::Winner { claim, conditions, among } => {
                let rows = conditions.iter().filter_map(|place| rows.get(*place));
                verdicts.extend(rows.map(|row| of_winner(claim, row, among)));
            }
        }
    }
    verdicts
}

fn of_winner(claim: &str, row: &Row, among: &[String]) -> Verdict {
    // Peers from outside are shown beside the contestants, and the file does not speak of them.
    let first = &row.first_of_ours;
    let found = match first.as_slice() {
        [] => format!("nobody reached {}", row.target),
        [one] => one.clone(),
        several => format!("a tie of {}", several.join(", ")),
    };
    Verdict {
        claim: claim.to_owned(),
        at: format!("{CONDITION} = {}", row.name),
        column: "time_to_target".to_owned(),
        expected: format!("the winner is {}", among.join(" or ")),
        found,
        short_by: None,
        holds: !first.is_empty() && first.iter().all(|name| among.contains(name)),
    }
}
