//! Layers in, one checked configuration out: or every problem that any of them has.

use std::collections::{BTreeMap, BTreeSet};

use super::nearest::nearest;
use super::problem::{Fault, Problem};
use super::schema::{Absent, KEYS, Key, key_of};
use super::value::Value;
use super::{Config, rules};

/// The origin of a value that no layer gave.
pub const DEFAULT_LAYER: &str = "default";

/// The name of a layer made from `--set`. What is set there was set by hand, so it must have an effect.
pub const SET_LAYER: &str = "--set";

/// Values from one place. A later layer wins over an earlier one, and within a layer the later value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layer {
    /// Where they come from, as a message should say it.
    pub name: String,
    /// Dotted keys with their values, not checked yet.
    pub values: Vec<(String, Value)>,
}

/// A configuration that was checked, with the origin of every value.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The typed values.
    pub config: Config,
    pub(super) entries: Entries,
}

impl Resolved {
    /// The layer that a key's value comes from; nothing for an unknown key.
    #[must_use]
    pub fn origin(&self, path: &str) -> Option<&str> {
        self.entries.get(path).map(|entry| entry.origin.as_str())
    }

    /// The addresses of all servers, for a process that must reach them.
    ///
    /// # Errors
    ///
    /// The problem to print when the list is empty, as it may be for a run of one process.
    pub fn addresses(&self) -> Result<&[String], Problem> {
        if self.config.cluster.addresses.is_empty() {
            let fault = Fault::NoAddresses { servers: self.config.servers };
            return Err(self.entries.problem("cluster.addresses", fault));
        }
        Ok(&self.config.cluster.addresses)
    }
}

/// An admitted value and the layer it comes from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) value: Value,
    pub(super) origin: String,
}

/// The winning values. Each is of the kind that the schema gives its key, so the readers below cannot miss.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Entries(BTreeMap<&'static str, Entry>);

impl Entries {
    pub(super) fn get(&self, path: &str) -> Option<&Entry> {
        self.0.get(path)
    }

    /// The values that the schema gives by itself.
    fn defaults() -> Self {
        let default = |key: &'static Key| match key.absent {
            Absent::Required(_) => None,
            Absent::Default(literal) => {
                let value = Value::from_literal(literal).and_then(|value| key.kind.admit(&value));
                let value = value.expect("every default of the schema is admitted by its kind (tested)");
                Some((key.path, Entry { value, origin: DEFAULT_LAYER.to_owned() }))
            }
        };
        Self(KEYS.iter().filter_map(default).collect())
    }

    /// A problem with the value that a key has.
    pub(super) fn problem(&self, path: &str, fault: Fault) -> Problem {
        let entry = self.get(path);
        Problem {
            layer: entry.map_or(DEFAULT_LAYER, |entry| &entry.origin).to_owned(),
            line: None,
            key: path.to_owned(),
            given: entry.map(|entry| entry.value.clone()),
            fault,
        }
    }

    /// Whether a key has an effect beside the other values.
    pub(super) fn has_effect(&self, key: &Key) -> bool {
        match key.only_with {
            Some((on, needs)) => needs.contains(&self.text(on)),
            None => true,
        }
    }
}

/// Readers for keys whose kind is known; a wrong kind would be a mistake in the schema, which the tests read
/// whole.
impl Entries {
    pub(super) fn value(&self, path: &str) -> &Value {
        &self.0.get(path).expect("every key has a value once no problem was found").value
    }

    pub(super) fn flag(&self, path: &str) -> bool {
        matches!(self.value(path), Value::Bool(true))
    }

    /// The number of a key that also takes a word; nothing for the word.
    pub(super) fn number<T: TryFrom<i64>>(&self, path: &str) -> Option<T> {
        let Value::Int(number) = self.value(path) else { return None };
        Some(
            T::try_from(*number).ok().expect("the range of a key lies within the type of its field (tested)"),
        )
    }

    pub(super) fn int<T: TryFrom<i64>>(&self, path: &str) -> T {
        self.number(path).expect("a key of kind Int holds a whole number")
    }

    pub(super) fn float(&self, path: &str) -> f64 {
        if let Value::Float(number) = self.value(path) { Some(*number) } else { None }
            .expect("a key of kind Float holds a float")
    }

    /// The number of a key that also takes a word; nothing for the word.
    pub(super) fn float_or(&self, path: &str) -> Option<f64> {
        if let Value::Float(number) = self.value(path) { Some(*number) } else { None }
    }

    pub(super) fn text(&self, path: &str) -> &str {
        if let Value::Text(text) = self.value(path) { text } else { "" }
    }

    pub(super) fn list(&self, path: &str) -> &[Value] {
        if let Value::List(values) = self.value(path) { values } else { &[] }
    }
}

impl Config {
    /// Lays `layers` over the defaults, later ones over earlier ones, and checks everything.
    ///
    /// # Errors
    ///
    /// Every problem of every layer, also of values that a later layer replaces: unknown keys, wrong types,
    /// values out of range, missing keys, and values that do not fit each other (these only between keys
    /// that are right by themselves).
    pub fn resolve(layers: &[Layer]) -> Result<Resolved, Vec<Problem>> {
        let mut entries = Entries::defaults();
        let mut problems = Vec::new();
        let mut faulty = BTreeSet::new();
        for layer in layers {
            for (path, value) in &layer.values {
                let (key, fault) = match admit(path, value) {
                    Ok((key, value)) => {
                        entries.0.insert(key.path, Entry { value, origin: layer.name.clone() });
                        continue;
                    }
                    Err(refusal) => refusal,
                };
                faulty.extend(key.map(|key| key.path));
                let (layer, key) = (layer.name.clone(), path.clone());
                problems.push(Problem { layer, line: None, key, given: Some(value.clone()), fault });
            }
        }
        for key in KEYS.iter().filter(|key| entries.get(key.path).is_none()) {
            if faulty.insert(key.path) {
                let layer = layers.first().map_or("configuration", |layer| &layer.name).to_owned();
                let fault = Fault::Missing { key };
                problems.push(Problem { layer, line: None, key: key.path.to_owned(), given: None, fault });
            }
        }
        problems.extend(rules::check(&entries, &faulty));
        if problems.is_empty() {
            let config = Self::from_entries(&entries);
            Ok(Resolved { config, entries })
        } else {
            Err(problems)
        }
    }
}

/// The key and its canonical value, or what is wrong (with the key, if it is a known one).
fn admit(path: &str, value: &Value) -> Result<(&'static Key, Value), (Option<&'static Key>, Fault)> {
    if let Some(key) = key_of(path) {
        let fault = Fault::NotAllowed { key };
        return key.kind.admit(value).map(|value| (key, value)).ok_or((Some(key), fault));
    }
    let in_section: Vec<_> = KEYS.iter().filter(|key| key.section() == path).map(Key::name).collect();
    if !path.is_empty() && !in_section.is_empty() {
        return Err((None, Fault::Section { keys: in_section }));
    }
    Err((None, Fault::UnknownKey { nearest: nearest(path).map(|key| key.path) }))
}
