//! Tuning: for every point a grid of keys is tried on seeds of its own, and the best by a stated rule is taken.
//!
//! Comparisons at one common rate mislead in one direction or the other (a rate that suits bsp is too high for asp), so a sweep can
//! choose per point what its author would have chosen by hand. The tuning seeds are never those that are reported.

use slackline_core::config::Value;

use crate::axis::{Axis, Choice, choice};
use crate::document::{Content, Node};
use crate::fields::Fields;
use crate::problem::{Fault, Problem};

/// The section `[tune]`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tuning {
    pub(crate) line: u32,
    pub(crate) seeds: Vec<u64>,
    /// The first rule that tells two candidates apart decides; then the order of the grid.
    pub(crate) rule: Vec<Rule>,
    /// Keys with the values that are tried, each with its line.
    pub(crate) grid: Vec<(String, Vec<Value>, u32)>,
    /// Axes along which all points share the choice that is made at one label.
    pub(crate) at: Choice,
}

/// The least or the most of a column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) most: bool,
    pub(crate) column: String,
    pub(crate) line: u32,
}

const FIELDS: &[&str] = &["seeds", "rule", "grid", "at"];

pub(crate) fn read(node: &Node, axes: &[Axis], problems: &mut Vec<Problem>) -> Option<Tuning> {
    let fields = Fields::open(node, "tune", FIELDS, problems);
    for (name, expected) in [
        ("seeds", "seeds that are not reported, such as [101]"),
        ("rule", "what decides, such as [{ least = \"time_s\" }]"),
        ("grid", "keys with the values to try, such as { \"optimizer.rate\" = [0.01, 0.1] }"),
    ] {
        if !fields.has(name) {
            problems.push(fields.problem(name, Fault::Missing { expected }));
        }
    }
    let seeds = fields.seeds("seeds", problems).unwrap_or_default();
    let rules = fields.list("rule", problems).unwrap_or_default();
    if fields.has("rule") && rules.is_empty() {
        problems.push(fields.problem("rule", Fault::Empty));
    }
    let rule =
        rules.iter().enumerate().filter_map(|(number, node)| rule(node, number + 1, problems)).collect();
    let grid = grid(&fields, problems);
    for (key, _, line) in &grid {
        if let Some(axis) = axes.iter().find(|axis| axis.keys().any(|own| own == key)) {
            let fault = Fault::KeyTwice { key: key.clone(), first: format!("the axis {}", axis.name) };
            problems.push(Problem { line: *line, place: "tune.grid".to_owned(), fault });
        }
    }
    let at = choice(&fields, "at", problems);
    for (axis, (labels, line)) in &at {
        if labels.len() > 1 {
            let fault = Fault::SeveralLabels { axis: axis.clone() };
            problems.push(Problem { line: *line, place: "tune.at".to_owned(), fault });
        }
    }
    Some(Tuning { line: node.line, seeds, rule, grid, at })
}

fn rule(node: &Node, number: usize, problems: &mut Vec<Problem>) -> Option<Rule> {
    let fields = Fields::open(node, format!("tune.rule {number}"), &["least", "most"], problems);
    let rule =
        |most: bool, column: Option<String>| column.map(|column| Rule { most, column, line: node.line });
    match (fields.has("least"), fields.has("most")) {
        (true, false) => rule(false, fields.text("least", problems)),
        (false, true) => rule(true, fields.text("most", problems)),
        _ => {
            let fault = Fault::NoTest { tests: &["least", "most"] };
            problems.push(Problem { line: node.line, place: fields.place.clone(), fault });
            None
        }
    }
}

fn grid(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Vec<(String, Vec<Value>, u32)> {
    let Some(node) = fields.get("grid") else { return Vec::new() };
    let mut grid = Vec::new();
    let is_table = matches!(node.content, Content::Table(_));
    for (key, value, line) in if is_table { node.settings() } else { Vec::new() } {
        let place = fields.path("grid");
        match value {
            Value::List(values) if !values.is_empty() => grid.push((key, values, line)),
            Value::List(_) => {
                problems.push(Problem { line, place: format!("{place}.{key}"), fault: Fault::Empty })
            }
            other => {
                let (expected, given) = ("a list of values to try".to_owned(), other.shown());
                let fault = Fault::NotAllowed { expected, given };
                problems.push(Problem { line, place: format!("{place}.{key}"), fault });
            }
        }
    }
    if grid.is_empty() && problems.is_empty() {
        problems.push(fields.problem("grid", Fault::Empty));
    }
    grid
}

/// What a scale says in its `tune`.
pub(crate) fn scale(node: &Node, name: &str, tuning: Option<&mut Tuning>, problems: &mut Vec<Problem>) {
    let fields = Fields::open(node, format!("scale.{name}.tune"), &["seeds", "grid"], problems);
    let Some(tuning) = tuning else {
        let fault = Fault::NoEffect { needs: "[tune]" };
        problems.push(Problem { line: node.line, place: fields.place.clone(), fault });
        return;
    };
    if let Some(seeds) = fields.seeds("seeds", problems) {
        tuning.seeds = seeds;
    }
    for (key, values, line) in grid(&fields, problems) {
        match tuning.grid.iter_mut().find(|row| row.0 == key) {
            Some(row) => *row = (key, values, line),
            None => tuning.grid.push((key, values, line)),
        }
    }
}

/// One candidate: for each rule its mean figure over the tuning seeds; none where a seed has none or diverged.
pub(crate) type Candidate = Vec<Option<f64>>;

impl Tuning {
    /// Every combination of the grid, the last key fastest.
    pub(crate) fn combinations(&self) -> Vec<Vec<(String, Value)>> {
        let mut all = vec![Vec::new()];
        for (key, values, _) in &self.grid {
            let longer = |row: &Vec<(String, Value)>| {
                let row = row.clone();
                let with = move |value: &Value| [row.clone(), vec![(key.clone(), value.clone())]].concat();
                values.iter().map(with).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(longer).collect();
        }
        all
    }

    /// Number of combinations.
    pub(crate) fn combination_count(&self) -> u64 {
        self.grid.iter().fold(1, |count, (_, values, _)| count.saturating_mul(values.len() as u64))
    }

    /// The place of the best candidate: by the first rule that tells, one with a figure before one without, and among equals the
    /// first.
    pub(crate) fn choose(&self, candidates: &[Candidate]) -> usize {
        let mut best = 0;
        for (place, candidate) in candidates.iter().enumerate().skip(1) {
            if self.is_better(candidate, &candidates[best]) {
                best = place;
            }
        }
        best
    }

    fn is_better(&self, one: &Candidate, other: &Candidate) -> bool {
        for (rule, (a, b)) in self.rule.iter().zip(one.iter().zip(other)) {
            match (a, b) {
                (Some(a), Some(b)) if a == b => {}
                (Some(a), Some(b)) => return (a > b) == rule.most,
                (Some(_), None) => return true,
                (None, Some(_)) => return false,
                (None, None) => {}
            }
        }
        false
    }

    /// The rule in words.
    pub(crate) fn shown(&self) -> String {
        let rule = |rule: &Rule| format!("{} {}", if rule.most { "most" } else { "least" }, rule.column);
        let rules: Vec<String> = self.rule.iter().map(rule).collect();
        let mut text = rules.join(", then ");
        if !self.at.is_empty() {
            let at = |(axis, (labels, _)): (&String, &(Vec<String>, u32))| {
                format!("{axis} = {}", labels.join(", "))
            };
            text += &format!("; chosen at {}", self.at.iter().map(at).collect::<Vec<_>>().join(", "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuning(rules: &[(bool, &str)]) -> Tuning {
        let rule =
            |(most, column): &(bool, &str)| Rule { most: *most, column: (*column).to_owned(), line: 1 };
        Tuning {
            line: 1,
            seeds: vec![9],
            rule: rules.iter().map(rule).collect(),
            grid: vec![
                ("a".to_owned(), vec![Value::Int(1), Value::Int(2)], 1),
                ("b".to_owned(), vec![Value::Int(3), Value::Int(4)], 1),
            ],
            at: Choice::new(),
        }
    }

    #[test]
    fn every_combination_is_tried_once() {
        let tuning = tuning(&[]);
        let shown = |row: &Vec<(String, Value)>| {
            row.iter().map(|(key, value)| format!("{key}{value}")).collect::<String>()
        };
        let shown: Vec<String> = tuning.combinations().iter().map(shown).collect();
        assert_eq!(shown, ["a1b3", "a1b4", "a2b3", "a2b4"]);
        assert_eq!(tuning.combination_count(), 4);
    }

    #[test]
    fn the_rule_chooses() {
        let tuning = tuning(&[(false, "time"), (true, "accuracy")]);
        // Least of the first.
        assert_eq!(tuning.choose(&[vec![Some(3.0), None], vec![Some(1.0), None], vec![Some(2.0), None]]), 1);
        // A figure before none, whatever the second rule says.
        assert_eq!(tuning.choose(&[vec![None, Some(0.9)], vec![Some(5.0), Some(0.1)]]), 1);
        // Where the first does not tell, the second does.
        assert_eq!(tuning.choose(&[vec![None, Some(0.2)], vec![None, Some(0.3)]]), 1);
        // Among equals the first.
        assert_eq!(tuning.choose(&[vec![None, None], vec![None, None]]), 0);
        assert_eq!(tuning.shown(), "least time, then most accuracy");
    }
}
