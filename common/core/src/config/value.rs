//! A value as it stands in a layer, and its TOML literal: written for people and files, read for the
//! defaults.

use std::fmt;

/// Characters of a value that a message shows; the rest is cut.
const SHOWN_CHARS: usize = 60;

/// One value of a layer, not yet held against the schema.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction; may be nan or infinite until the schema has seen it.
    Float(f64),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Self>),
    /// A table where a value belongs (its content does not matter: no key takes one).
    Table,
}

impl Value {
    /// Reads a literal: `true`, `-3`, `0.5`, `"text"` without escapes, or a list of these. The schema writes
    /// its defaults in this part of TOML; files are read by a whole parser, outside of this crate.
    #[must_use]
    pub fn from_literal(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Some(inside) = text.strip_prefix('[') {
            let inside = inside.strip_suffix(']')?.trim();
            if inside.is_empty() {
                return Some(Self::List(Vec::new()));
            }
            return inside.split(',').map(Self::from_literal).collect::<Option<Vec<_>>>().map(Self::List);
        }
        if let Some(inside) = text.strip_prefix('"') {
            let inside = inside.strip_suffix('"')?;
            return (!inside.contains(['"', '\\'])).then(|| Self::Text(inside.to_owned()));
        }
        match text {
            "true" => Some(Self::Bool(true)),
            "false" => Some(Self::Bool(false)),
            _ => text.parse().map(Self::Int).or_else(|_| text.parse().map(Self::Float)).ok(),
        }
    }

    /// The literal in at most some sixty characters, always on one line: for messages.
    #[must_use]
    pub fn shown(&self) -> String {
        cut(&self.to_string())
    }
}

/// The TOML literal, whole and on one line. A table is shown as `{..}`, which no file takes back.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) if value.is_nan() => f.write_str("nan"),
            // Debug keeps a fraction or an exponent, so that a float is read back as a float.
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Text(text) => write!(f, "\"{}\"", escaped(text)),
            Self::List(values) => {
                f.write_str("[")?;
                for (index, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Self::Table => f.write_str("{..}"),
        }
    }
}

/// `text` with everything escaped that cannot stand in a one-line TOML string.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            letter if breaks_a_line(letter) => out.push_str(&format!("\\u{:04X}", letter as u32)),
            letter => out.push(letter),
        }
    }
    out
}

/// A name of a layer as it may stand in a message: on one line.
pub(super) fn one_line(name: &str) -> String {
    name.chars().map(|letter| if breaks_a_line(letter) { '?' } else { letter }).collect()
}

/// A key that may be anything, as it may stand in a message: on one line and not too long.
pub(super) fn shown_key(key: &str) -> String {
    cut(&one_line(key))
}

fn breaks_a_line(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}')
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_is_read_and_written_the_same() {
        for literal in
            ["true", "-3", "0.5", "1e-9", "\"ssp\"", "[]", "[64, 32]", "[0.5, 0.9]", "[\"a:1\", \"[::1]:2\"]"]
        {
            assert_eq!(Value::from_literal(literal).unwrap().to_string(), literal);
        }
        for wrong in ["", "[1", "\"a", "\"a\\\"", "yes", "1 2", "[1,]"] {
            assert_eq!(Value::from_literal(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn text_stays_on_one_line() {
        let text = Value::Text("a\"\\\n\u{7}\u{2028}b".to_owned());
        assert_eq!(text.to_string(), r#""a\"\\\n\u0007\u2028b""#);
        assert_eq!(one_line("a\nb"), "a?b");
    }

    #[test]
    fn a_long_value_is_cut_in_messages() {
        let shown = Value::Text("\u{e9}".repeat(1000)).shown();
        assert!(shown.ends_with("...") && shown.chars().count() == SHOWN_CHARS + 3);
    }
}
