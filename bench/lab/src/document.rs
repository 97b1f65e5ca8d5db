//! A TOML text as nodes that know their line, so that every message about a sweep file can name it.

use slackline_core::config::{SECTIONS, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value of the file with the line it stands in, from 1.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) line: u32,
    pub(crate) content: Content,
}

/// What a node holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    /// A value that is neither a list nor a table.
    Scalar(Value),
    List(Vec<Node>),
    /// Sorted by name.
    Table(Vec<(String, Node)>),
    /// A date or a time, which no field takes.
    Moment,
}

/// The file is not TOML: where, from 1, and what the parser says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Syntax {
    pub(crate) line: Option<u32>,
    pub(crate) message: String,
}

/// Reads a whole text; the node is a table.
pub(crate) fn read(text: &str) -> Result<Node, Syntax> {
    let lines = Lines::of(text);
    let table = DeTable::parse(text).map_err(|error| Syntax {
        line: error.span().map(|span| lines.at(span.start)),
        message: error.message().lines().collect::<Vec<_>>().join("; "),
    })?;
    Ok(Node { line: 1, content: table_of(table.into_inner(), &lines) })
}

/// The places at which lines begin.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at + 1).collect())
    }

    fn at(&self, offset: usize) -> u32 {
        let before = self.0.partition_point(|begin| *begin <= offset);
        u32::try_from(before + 1).unwrap_or(u32::MAX)
    }
}

fn table_of(table: DeTable<'_>, lines: &Lines) -> Content {
    let mut rows: Vec<(String, Node)> = table
        .into_iter()
        .map(|(name, value)| {
            let line = lines.at(name.span().start);
            // A table's own place is where its header stands, which is that of its name.
            let node = Node { line, ..node_of(value, lines) };
            (name.into_inner().into_owned(), node)
        })
        .collect();
    rows.sort_by(|(a, _), (b, _)| a.cmp(b));
    Content::Table(rows)
}

fn node_of(value: Spanned<DeValue<'_>>, lines: &Lines) -> Node {
    let line = lines.at(value.span().start);
    let content = match value.into_inner() {
        DeValue::Boolean(flag) => Content::Scalar(Value::Bool(flag)),
        DeValue::String(text) => Content::Scalar(Value::Text(text.into_owned())),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Content::Scalar(Value::Int(number)),
            // Beyond 64 bits it is no value of any field; as a text it is named in the message.
            Err(_) => Content::Scalar(Value::Text(number.as_str().to_owned())),
        },
        DeValue::Float(number) => Content::Scalar(Value::Float(number.as_str().parse().unwrap_or(f64::NAN))),
        DeValue::Array(values) => {
            Content::List(values.into_iter().map(|value| node_of(value, lines)).collect())
        }
        DeValue::Table(table) => table_of(table, lines),
        DeValue::Datetime(_) => Content::Moment,
    };
    Node { line, content }
}

impl Node {
    /// As a value of the configuration.
    pub(crate) fn value(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(nodes) => Value::List(nodes.iter().map(Self::value).collect()),
            Content::Table(_) | Content::Moment => Value::Table,
        }
    }

    /// The node as a message shows it.
    pub(crate) fn shown(&self) -> String {
        match &self.content {
            Content::Moment => "a date".to_owned(),
            _ => self.value().shown(),
        }
    }

    /// Dotted keys with their values and lines, as they stand in a configuration: `[train]` with `batch` inside and `"train.batch"`
    /// are the same.
    pub(crate) fn settings(&self) -> Vec<(String, Value, u32)> {
        let mut settings = Vec::new();
        self.flatten("", &mut settings);
        settings
    }

    fn flatten(&self, path: &str, settings: &mut Vec<(String, Value, u32)>) {
        match &self.content {
            // An empty section says nothing, unless there is no such section.
            Content::Table(rows) if rows.is_empty() && SECTIONS.iter().any(|(name, _)| *name == path) => {}
            Content::Table(rows) if !rows.is_empty() || path.is_empty() => {
                for (name, node) in rows {
                    let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    node.flatten(&inner, settings);
                }
            }
            _ => settings.push((path.to_owned(), self.value(), self.line)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_knows_its_line() {
        let node = read("a = 1_000\n[b]\nc = [0x10,\n 2.5]\n\n[[d]]\n\"e.f\" = \"x\"\n").unwrap();
        let settings = node.settings();
        let shown: Vec<_> =
            settings.iter().map(|(key, value, line)| format!("{line} {key} {value}")).collect();
        assert_eq!(shown, ["1 a 1000", "3 b.c [16, 2.5]", "6 d [{..}]"]);
        let Content::Table(rows) = &node.content else { panic!() };
        let Content::List(list) = &rows[2].1.content else { panic!() };
        assert_eq!(list[0].settings(), [("e.f".to_owned(), Value::Text("x".to_owned()), 7)]);
    }

    #[test]
    fn what_is_no_toml_is_told_with_its_line() {
        let error = read("a = 1\nb = = 2\n").unwrap_err();
        assert_eq!(error.line, Some(2), "{}", error.message);
        assert!(!error.message.contains('\n'));
    }

    #[test]
    fn a_huge_number_is_no_number() {
        let node = read("a = 99999999999999999999").unwrap();
        assert_eq!(node.settings()[0].1, Value::Text("99999999999999999999".to_owned()));
    }
}
