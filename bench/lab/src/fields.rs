//! The fields of one table of a sweep file, taken one by one; what is missing, unknown or of the wrong kind is noted.

use slackline_core::config::Value;

use crate::document::{Content, Node};
use crate::problem::{Fault, Problem};

/// The fields of a table.
pub(crate) struct Fields<'n> {
    rows: &'n [(String, Node)],
    pub(crate) line: u32,
    pub(crate) place: String,
}

impl<'n> Fields<'n> {
    /// Opens a table, and notes every field that is not `allowed`.
    pub(crate) fn open(
        node: &'n Node,
        place: impl Into<String>,
        allowed: &'static [&'static str],
        problems: &mut Vec<Problem>,
    ) -> Self {
        let place = place.into();
        let rows: &[(String, Node)] = match &node.content {
            Content::Table(rows) => rows,
            _ => {
                let (expected, given) = ("a table".to_owned(), node.shown());
                let fault = Fault::NotAllowed { expected, given };
                problems.push(Problem { line: node.line, place: place.clone(), fault });
                &[]
            }
        };
        for (name, row) in rows.iter().filter(|(name, _)| !allowed.contains(&name.as_str())) {
            let fault = Fault::UnknownField { given: name.clone(), allowed };
            problems.push(Problem { line: row.line, place: inner(&place, name), fault });
        }
        Self { rows, line: node.line, place }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'n Node> {
        self.rows.iter().find(|(known, _)| known == name).map(|(_, node)| node)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The path of a field.
    pub(crate) fn path(&self, name: &str) -> String {
        inner(&self.place, name)
    }

    /// A problem with a field, at its line where it is there.
    pub(crate) fn problem(&self, name: &str, fault: Fault) -> Problem {
        let line = self.get(name).map_or(self.line, |node| node.line);
        Problem { line, place: self.path(name), fault }
    }

    fn refused(&self, name: &str, expected: &str, node: &Node, problems: &mut Vec<Problem>) {
        let fault = Fault::NotAllowed { expected: expected.to_owned(), given: node.shown() };
        problems.push(Problem { line: node.line, place: self.path(name), fault });
    }

    /// A text of at least one letter.
    pub(crate) fn text(&self, name: &str, problems: &mut Vec<Problem>) -> Option<String> {
        let node = self.get(name)?;
        match &node.content {
            Content::Scalar(Value::Text(text)) if !text.trim().is_empty() => Some(text.trim().to_owned()),
            _ => {
                self.refused(name, "a text that is not empty", node, problems);
                None
            }
        }
    }

    /// The same, which must be there.
    pub(crate) fn needed_text(
        &self,
        name: &str,
        expected: &'static str,
        problems: &mut Vec<Problem>,
    ) -> Option<String> {
        if !self.has(name) {
            problems.push(self.problem(name, Fault::Missing { expected }));
        }
        self.text(name, problems)
    }

    /// A finite number.
    pub(crate) fn number(&self, name: &str, problems: &mut Vec<Problem>) -> Option<f64> {
        let node = self.get(name)?;
        let number = number_of(node);
        if number.is_none() {
            self.refused(name, "a number", node, problems);
        }
        number
    }

    /// A list.
    pub(crate) fn list(&self, name: &str, problems: &mut Vec<Problem>) -> Option<&'n [Node]> {
        let node = self.get(name)?;
        match &node.content {
            Content::List(nodes) => Some(nodes),
            _ => {
                self.refused(name, "a list", node, problems);
                None
            }
        }
    }

    /// A list of labels or names, or one alone.
    pub(crate) fn labels(&self, name: &str, problems: &mut Vec<Problem>) -> Vec<String> {
        let Some(node) = self.get(name) else { return Vec::new() };
        let labels = labels_of(node);
        if labels.is_none() {
            self.refused(name, "a label or a list of labels", node, problems);
        }
        labels.unwrap_or_default()
    }

    /// Whole numbers that seeds can be.
    pub(crate) fn seeds(&self, name: &str, problems: &mut Vec<Problem>) -> Option<Vec<u64>> {
        let nodes = self.list(name, problems)?;
        let mut seeds = Vec::with_capacity(nodes.len());
        for node in nodes {
            match &node.content {
                Content::Scalar(Value::Int(seed)) if *seed >= 0 && !seeds.contains(&seed.unsigned_abs()) => {
                    seeds.push(seed.unsigned_abs());
                }
                Content::Scalar(Value::Int(seed)) if *seed >= 0 => {
                    let fault = Fault::RepeatedValue { value: seed.to_string() };
                    problems.push(Problem { line: node.line, place: self.path(name), fault });
                }
                _ => self.refused(name, "whole numbers from 0 on", node, problems),
            }
        }
        if nodes.is_empty() {
            problems.push(self.problem(name, Fault::NoSeeds));
        }
        Some(seeds)
    }

    /// The tables of an array of tables.
    pub(crate) fn tables(&self, name: &str, problems: &mut Vec<Problem>) -> &'n [Node] {
        self.list(name, problems).unwrap_or_default()
    }
}

/// The path of a field in a table.
pub(crate) fn inner(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") }
}

/// A finite number.
pub(crate) fn number_of(node: &Node) -> Option<f64> {
    match &node.content {
        Content::Scalar(Value::Int(number)) => Some(*number as f64),
        Content::Scalar(Value::Float(number)) if number.is_finite() => Some(*number),
        _ => None,
    }
}

/// The label of a value: a text as it is, anything else as it is written.
pub(crate) fn label_of(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The labels of a list, or the one label.
pub(crate) fn labels_of(node: &Node) -> Option<Vec<String>> {
    match &node.content {
        Content::Scalar(value) => Some(vec![label_of(value)]),
        Content::List(nodes) => nodes
            .iter()
            .map(|node| match &node.content {
                Content::Scalar(_) | Content::List(_) => Some(label_of(&node.value())),
                _ => None,
            })
            .collect(),
        Content::Table(_) | Content::Moment => None,
    }
}
