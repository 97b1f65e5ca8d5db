//! The one table of all keys. Checking, the reference file, `config show` and the fingerprint are read off
//! it.

mod codec;
mod keeping;
mod learning;
mod run;
mod sync;
mod transport;
mod world;

use super::kind::Kind;

/// One key of the configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// `section.name`, or a bare name for the run itself.
    pub path: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// What stands where no layer gives it.
    pub absent: Absent,
    /// The unit, empty for words and flags.
    pub unit: &'static str,
    /// What it does, and what a wrong value does.
    pub effect: &'static str,
    /// Another key, and those of its values with which this key has an effect at all.
    pub only_with: Option<(&'static str, &'static [&'static str])>,
    /// Whether it may change what a run computes, and so belongs to the run's fingerprint.
    pub in_fingerprint: bool,
}

/// What stands for a key that no layer gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// This literal.
    Default(&'static str),
    /// Nothing: it must be given. The literal is an example.
    Required(&'static str),
}

impl Absent {
    /// The literal of the default or of the example.
    #[must_use]
    pub const fn literal(self) -> &'static str {
        match self {
            Self::Default(literal) | Self::Required(literal) => literal,
        }
    }
}

impl Key {
    const fn new(
        path: &'static str,
        kind: Kind,
        absent: Absent,
        unit: &'static str,
        effect: &'static str,
    ) -> Self {
        Self { path, kind, absent, unit, effect, only_with: None, in_fingerprint: true }
    }

    const fn only_with(mut self, path: &'static str, values: &'static [&'static str]) -> Self {
        self.only_with = Some((path, values));
        self
    }

    const fn beside_the_result(mut self) -> Self {
        self.in_fingerprint = false;
        self
    }

    /// The section, empty for the run itself.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.path.split_once('.').map_or("", |(section, _)| section)
    }

    /// The name within the section.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_, name)| name)
    }

    /// The environment variable that sets it.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("{VARIABLE_PREFIX}__{}", self.path.to_uppercase().replace('.', "__"))
    }
}

/// What the names of environment variables begin with, two underscores following.
pub const VARIABLE_PREFIX: &str = "SLACKLINE";

/// The sections in the order of the reference file, each with what it is about.
pub const SECTIONS: &[(&str, &str)] = &[
    ("", "The run."),
    ("cluster", "Who belongs to the run and how long they wait for each other."),
    ("data", "What is trained on."),
    ("model", "What is trained."),
    ("train", "How much of it, and in which pieces."),
    ("optimizer", "What a gradient does to the parameters."),
    ("local", "Local steps: workers that walk on their own for a while before they push."),
    ("consistency", "How far workers may run apart."),
    ("sync", "How gradients come together: on parameter servers, or by an allreduce between the workers."),
    ("codec", "How gradients and values are written on their way."),
    ("guard", "What a server does not let in."),
    ("checkpoint", "What is kept for the day that something is lost."),
    ("evaluate", "When the model is measured on the test set."),
    ("metrics", "What is recorded while it trains."),
    ("stragglers", "Slowness on purpose, the same for real workers and in virtual time."),
    (
        "simulation",
        "What `slackline sim` puts in the place of machines and links; no other command reads it.",
    ),
    ("transport", "QUIC. The defaults suit machines of one site; raise the windows for long fast links."),
];

const KIB: i64 = 1 << 10;
const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;
/// A day: longer waits are mistakes of unit.
const DAY_S: f64 = 86_400.0;

/// Every key, section by section in the order of [`SECTIONS`].
pub const KEYS: &[Key] = &joined();

const COUNT: usize = run::RUN.len()
    + learning::LEARNING.len()
    + sync::SYNC.len()
    + codec::CODEC.len()
    + keeping::KEEPING.len()
    + world::WORLD.len()
    + transport::TRANSPORT.len();

const fn joined() -> [Key; COUNT] {
    let parts: [&[Key]; 7] = [
        run::RUN,
        learning::LEARNING,
        sync::SYNC,
        codec::CODEC,
        keeping::KEEPING,
        world::WORLD,
        transport::TRANSPORT,
    ];
    let mut all = [run::RUN[0]; COUNT];
    let (mut part, mut count) = (0, 0);
    while part < parts.len() {
        let mut index = 0;
        while index < parts[part].len() {
            all[count] = parts[part][index];
            (count, index) = (count + 1, index + 1);
        }
        part += 1;
    }
    all
}

/// The key of this path.
#[must_use]
pub fn key_of(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}
