//! The configuration as text: shown with origins, saved with a run, fingerprinted, and the reference file.

use std::fmt::Write as _;

use xxhash_rust::xxh3::xxh3_64;

use super::resolve::Resolved;
use super::schema::{Absent, KEYS, Key, SECTIONS};
use super::value::one_line;

/// Columns of a comment in the reference file.
const WIDTH: usize = 100;

impl Resolved {
    /// One line a key, `key = value   # origin`, in the order of [`KEYS`], and the timers as comments. The text is TOML itself.
    #[must_use]
    pub fn show(&self) -> String {
        let mut out = String::new();
        for key in KEYS {
            let Some(entry) = self.entries.get(key.path) else { continue };
            let setting = format!("{} = {}", key.path, entry.value);
            let _ = write!(out, "{setting:<44} # {}", one_line(&entry.origin));
            if let (false, Some((on, _))) = (self.entries.has_effect(key), key.only_with) {
                let _ = write!(out, ", no effect with {on} = {}", self.entries.value(on));
            }
            out.push('\n');
        }
        out + &self.config.timers().comment()
    }

    /// The whole configuration, defaults included, as a file that resolves to the same one.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        for (section, _) in SECTIONS {
            if !section.is_empty() {
                let _ = writeln!(out, "\n[{section}]");
            }
            for key in KEYS.iter().filter(|key| key.section() == *section) {
                let _ = writeln!(out, "{} = {}", key.name(), self.entries.value(key.path));
            }
        }
        out
    }

    /// The fingerprint: equal for two configurations that ask for the same computation.
    ///
    /// xxh3 over the keys that may change the result, with defaults filled in. Paths, addresses and
    /// reporting are left out, and so is a key without effect (a staleness bound under bsp). No security
    /// measure.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash_of(|_| true)
    }

    /// The same without the keys that only say on which servers the state lies and what is kept of it: a run may go on from a checkpoint
    /// with others of those. No security measure.
    #[must_use]
    pub fn training_hash(&self) -> u64 {
        self.hash_of(is_of_training)
    }

    /// The keys that make [`Self::training_hash`] differ from another's: each with its value here and there.
    #[must_use]
    pub fn training_differences(&self, other: &Self) -> Vec<(&'static str, String, String)> {
        let value = |of: &Self, key: &Key| match of.counts(key) {
            true => of.entries.value(key.path).to_string(),
            false => "without effect".to_owned(),
        };
        let keys = KEYS.iter().filter(|key| is_of_training(key.path));
        keys.map(|key| (key.path, value(self, key), value(other, key)))
            .filter(|(_, here, there)| here != there)
            .collect()
    }

    fn hash_of(&self, is_meant: impl Fn(&str) -> bool) -> u64 {
        let mut text = String::new();
        for key in KEYS.iter().filter(|key| self.counts(key) && is_meant(key.path)) {
            let _ = writeln!(text, "{} = {}", key.path, self.entries.value(key.path));
        }
        xxh3_64(text.as_bytes())
    }

    /// Whether a key is in the fingerprint.
    fn counts(&self, key: &Key) -> bool {
        key.in_fingerprint && self.entries.has_effect(key)
    }
}

/// Whether a key says what is trained and how, and not only where the state lies and what is kept of it.
fn is_of_training(path: &str) -> bool {
    path != "servers" && !path.starts_with("cluster.") && !path.starts_with("checkpoint.")
}

/// The file `configs/reference.toml`: every key with its unit, default, range and effect, itself a
/// configuration.
#[must_use]
pub fn reference_toml() -> String {
    let mut out = String::new();
    let opening = "Every key of Slackline with its default. This file is printed by \
                   `slackline config reference`; do not edit it. A value is taken from the last of these \
                   that gives it: the default, the configuration file, the environment \
                   (SLACKLINE__TRAIN__BATCH=64 for train.batch), the command line (--set train.batch=64). \
                   An unknown key is an error everywhere. `slackline config show` prints what is in force, \
                   and where each value comes from.";
    comment(&mut out, opening);
    for (section, about) in SECTIONS {
        out.push('\n');
        comment(&mut out, about);
        if !section.is_empty() {
            let _ = writeln!(out, "[{section}]");
        }
        for key in KEYS.iter().filter(|key| key.section() == *section) {
            out.push('\n');
            describe(&mut out, key);
        }
    }
    out
}

fn describe(out: &mut String, key: &Key) {
    comment(out, key.effect);
    let mut facts = String::new();
    if !key.unit.is_empty() {
        let _ = write!(facts, "Unit: {}. ", key.unit);
    }
    let _ = write!(facts, "Takes {}. ", key.kind);
    let _ = match key.absent {
        Absent::Default(literal) => write!(facts, "Default: {literal}."),
        Absent::Required(_) => write!(facts, "Must be given; this is an example."),
    };
    if let Some((on, values)) = key.only_with {
        let _ = write!(facts, " Only with {on} = {}.", super::kind::quoted_words(values));
    }
    comment(out, &facts);
    let _ = writeln!(out, "{} = {}", key.name(), key.absent.literal());
}

/// Writes `text` as comment lines, broken between words.
fn comment(out: &mut String, text: &str) {
    let mut line = "#".to_owned();
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(out, "{line}");
            line = "#".to_owned();
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(out, "{line}");
}
