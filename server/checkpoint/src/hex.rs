//! Fingerprints in JSON: sixteen hexadecimal digits, since many readers of JSON lose the low bits of a large number.

use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:016x}"))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    number(text.as_bytes()).ok_or_else(|| D::Error::custom("a fingerprint has sixteen hexadecimal digits"))
}

/// The number that exactly sixteen lower-case digits spell.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    if digits.len() != 16 {
        return None;
    }
    digits.iter().try_fold(0, |number, &digit| Some(number << 4 | u64::from(value_of(digit)?)))
}

/// The value of one lower-case digit.
pub(crate) const fn value_of(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Many fingerprints as one text, without anything between them.
pub(crate) mod list {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(values: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
        use std::fmt::Write as _;
        let mut text = String::with_capacity(values.len() * 16);
        for value in values {
            // Writing to a text cannot fail.
            let _ = write!(text, "{value:016x}");
        }
        serializer.serialize_str(&text)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let numbers: Option<Vec<u64>> = text.as_bytes().chunks(16).map(super::number).collect();
        numbers.ok_or_else(|| D::Error::custom("fingerprints have sixteen hexadecimal digits each"))
    }
}

/// Bytes, two digits each.
pub(crate) mod bytes {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(values: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        use std::fmt::Write as _;
        let mut text = String::with_capacity(values.len() * 2);
        for value in values {
            // Writing to a text cannot fail.
            let _ = write!(text, "{value:02x}");
        }
        serializer.serialize_str(&text)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let byte = |pair: &[u8]| match *pair {
            [high, low] => Some(super::value_of(high)? << 4 | super::value_of(low)?),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
        bytes.ok_or_else(|| D::Error::custom("bytes have two hexadecimal digits each"))
    }
}
