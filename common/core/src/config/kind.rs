//! What a key takes: its type, its range, and the words for both.

use std::fmt;

use super::value::Value;

/// Bytes of a text, such as a path or an address.
const SETTING_BYTES_MAX: usize = 4096;

/// The type and range of a key. Bounds are inclusive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Int {
        /// Least value.
        min: i64,
        /// Greatest value.
        max: i64,
    },
    /// A whole number, or one word that stands for "choose it yourself".
    IntOr {
        /// The word.
        word: &'static str,
        /// Least value.
        min: i64,
        /// Greatest value.
        max: i64,
    },
    /// A finite number.
    Float {
        /// Least value.
        min: f64,
        /// Greatest value.
        max: f64,
    },
    /// A finite number, or one word that stands for "choose it yourself".
    FloatOr {
        /// The word.
        word: &'static str,
        /// Least value.
        min: f64,
        /// Greatest value.
        max: f64,
    },
    /// A text that is not empty, on one line.
    Text,
    /// A text on one line; the empty one means that it is not given.
    OptionalText,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of whole numbers.
    IntList {
        /// Least value of an element.
        min: i64,
        /// Greatest value of an element.
        max: i64,
        /// Most elements.
        len_max: usize,
    },
    /// A list of finite numbers.
    FloatList {
        /// Least value of an element.
        min: f64,
        /// Greatest value of an element.
        max: f64,
        /// Most elements.
        len_max: usize,
    },
    /// A list of texts, none of them empty.
    TextList {
        /// Most elements.
        len_max: usize,
    },
}

impl Kind {
    /// The value in its canonical form (a whole number given for a float becomes a float, -0.0 becomes 0.0),
    /// or nothing where the type or the range is not this kind's.
    #[must_use]
    pub fn admit(&self, value: &Value) -> Option<Value> {
        match (self, value) {
            (Self::Bool, Value::Bool(_)) => Some(value.clone()),
            (Self::Int { min, max } | Self::IntOr { min, max, .. }, Value::Int(number)) => {
                (min..=max).contains(&number).then(|| value.clone())
            }
            (Self::IntOr { word, .. } | Self::FloatOr { word, .. }, Value::Text(text)) => {
                (text == word).then(|| value.clone())
            }
            (Self::Float { min, max } | Self::FloatOr { min, max, .. }, Value::Float(number)) => {
                float(*number, *min, *max)
            }
            // Every i64 is near enough to some f64 for a range check, and no range reaches past 2^53.
            (Self::Float { min, max } | Self::FloatOr { min, max, .. }, Value::Int(number)) => {
                float(*number as f64, *min, *max)
            }
            (Self::Text, Value::Text(text)) => (!text.is_empty() && is_plain(text)).then(|| value.clone()),
            (Self::OptionalText, Value::Text(text)) => is_plain(text).then(|| value.clone()),
            (Self::Choice(words), Value::Text(text)) => words.contains(&text.as_str()).then(|| value.clone()),
            (Self::IntList { min, max, len_max }, Value::List(values)) => {
                list(values, *len_max, &Self::Int { min: *min, max: *max })
            }
            (Self::FloatList { min, max, len_max }, Value::List(values)) => {
                list(values, *len_max, &Self::Float { min: *min, max: *max })
            }
            (Self::TextList { len_max }, Value::List(values)) => list(values, *len_max, &Self::Text),
            _ => None,
        }
    }

    /// Whether a bare word on the command line is a text for this kind, whatever else it could be read as.
    #[must_use]
    pub const fn is_text(&self) -> bool {
        matches!(self, Self::Text | Self::OptionalText | Self::Choice(_))
    }
}

fn float(number: f64, min: f64, max: f64) -> Option<Value> {
    // A nan is in no range. Adding 0.0 turns -0.0 into 0.0, so that one setting has one text.
    (min..=max).contains(&number).then_some(Value::Float(number + 0.0))
}

fn list(values: &[Value], len_max: usize, element: &Kind) -> Option<Value> {
    if values.len() > len_max {
        return None;
    }
    values.iter().map(|value| element.admit(value)).collect::<Option<Vec<_>>>().map(Value::List)
}

fn is_plain(text: &str) -> bool {
    text.len() <= SETTING_BYTES_MAX && !text.contains(char::is_control)
}

/// What is allowed, as the end of "expected ...".
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => f.write_str("true or false"),
            Self::Int { min, max } => write!(f, "a whole number from {min} to {max}"),
            Self::IntOr { word, min, max } => write!(f, "\"{word}\" or a whole number from {min} to {max}"),
            Self::Float { min, max } => write!(f, "a number from {min} to {max}"),
            Self::FloatOr { word, min, max } => write!(f, "\"{word}\" or a number from {min} to {max}"),
            Self::Text => f.write_str("a text that is not empty, without control characters"),
            Self::OptionalText => f.write_str("a text without control characters"),
            Self::Choice(words) => f.write_str(&quoted_words(words)),
            Self::IntList { min, max, len_max } => {
                write!(f, "a list of at most {len_max} whole numbers from {min} to {max}")
            }
            Self::FloatList { min, max, len_max } => {
                write!(f, "a list of at most {len_max} numbers from {min} to {max}")
            }
            Self::TextList { len_max } => {
                write!(f, "a list of at most {len_max} texts, none of them empty")
            }
        }
    }
}

/// `"a", "b" or "c"`.
pub(super) fn quoted_words(words: &[&str]) -> String {
    let mut out = String::new();
    for (index, word) in words.iter().enumerate() {
        let before = match index {
            0 => "",
            _ if index + 1 == words.len() => " or ",
            _ => ", ",
        };
        out.push_str(&format!("{before}\"{word}\""));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_float_is_canonical_or_refused() {
        let kind = Kind::Float { min: 0.0, max: 1.0 };
        assert_eq!(kind.admit(&Value::Int(1)), Some(Value::Float(1.0)));
        assert_eq!(kind.admit(&Value::Float(-0.0)).unwrap().to_string(), "0.0");
        for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.000_001] {
            assert_eq!(kind.admit(&Value::Float(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn a_whole_number_is_never_taken_from_a_float() {
        assert_eq!(Kind::Int { min: 0, max: 9 }.admit(&Value::Float(1.0)), None);
    }

    #[test]
    fn a_list_is_refused_for_one_bad_element_or_one_too_many() {
        let kind = Kind::IntList { min: 1, max: 9, len_max: 2 };
        assert!(kind.admit(&Value::List(vec![Value::Int(1), Value::Int(9)])).is_some());
        assert!(kind.admit(&Value::List(vec![Value::Int(1), Value::Int(10)])).is_none());
        assert!(kind.admit(&Value::List(vec![Value::Int(1); 3])).is_none());
        assert!(kind.admit(&Value::Int(1)).is_none());
    }
}
