//! What can be wrong with a configuration: one line each, that says where, what, and what is allowed.

use std::fmt;

use super::kind::quoted_words;
use super::schema::Key;
use super::value::{Value, one_line, shown_key};

/// One thing that is wrong with a configuration, for the user to put right.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The layer that gave the value: a file, an environment variable, `--set`.
    pub layer: String,
    /// Line of the file, from 1, where the reader of the file could tell.
    pub line: Option<u32>,
    /// The key as it was written.
    pub key: String,
    /// The value, where there is one.
    pub given: Option<Value>,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with one key.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// No such key.
    #[error("unknown key{}", meant(.nearest))]
    UnknownKey {
        /// The key that was probably meant.
        nearest: Option<&'static str>,
    },
    /// A value was given for a section.
    #[error("a section, not a key; its keys are {}", keys.join(", "))]
    Section {
        /// The names in the section.
        keys: Vec<&'static str>,
    },
    /// The type or the range is wrong.
    #[error("expected {}{}", key.kind, in_unit(key.unit))]
    NotAllowed {
        /// The key, which says what is allowed.
        key: &'static Key,
    },
    /// No layer gives a key that has no default.
    #[error(
        "missing, and it has no default; write it in the file, or give {} or --set {}={}",
        key.variable(), key.path, key.absent.literal()
    )]
    Missing {
        /// The key.
        key: &'static Key,
    },
    /// A key was set by hand that another setting makes void.
    #[error("has no effect, since {}", without_effect(key, is))]
    NoEffect {
        /// The key, which says what it needs.
        key: &'static Key,
        /// The present value of what it needs.
        is: String,
    },
    /// `train.microbatch` does not divide `train.batch`.
    #[error("must divide train.batch = {batch}, or be 0 for the whole batch")]
    NotADivisor {
        /// Samples of the batch.
        batch: i64,
    },
    /// Two settings do not fit each other.
    #[error("{rule}")]
    Unfit {
        /// What would fit.
        rule: &'static str,
    },
    /// `sync.topology` is none, or does not fit the workers.
    #[error("{problem}")]
    Topology {
        /// What is wrong, with what would fit.
        problem: String,
    },
    /// A timer is not shorter than one that it must end before.
    #[error(
        "too short: {inner} takes {inner_s} s (it follows from cluster.lease_s), and this must be longer; give more than that, or \
         \"auto\""
    )]
    Nesting {
        /// The timer that must fit in.
        inner: &'static str,
        /// How long it is.
        inner_s: f64,
    },
    /// An address of a store cannot be one.
    #[error("expected {expected}")]
    NotAStore {
        /// What would be.
        expected: &'static str,
    },
    /// A number is larger than what it counts.
    #[error("at most {most}: there are no more {of}")]
    TooMany {
        /// The most.
        most: i64,
        /// Of what.
        of: &'static str,
    },
    /// `codec.budget_bytes` leaves a shard without a value.
    #[error("does not hold a value of each of the {shards} shards; the least is {least}")]
    Budget {
        /// The least that does.
        least: u64,
        /// Shards that have keys.
        shards: usize,
    },
    /// An entry of `simulation.incidents` is none, or befalls nobody of this run.
    #[error(
        "entry {place} is no incident of this run; write \"worker 1 crash at 30 for 10\" or \"server 0 pause at 5 for 2\", with \
         a process that the run has"
    )]
    NotAnIncident {
        /// Which entry, from 0.
        place: usize,
    },
    /// `model.kind = "mlp"` without hidden layers.
    #[error("an mlp needs at least one hidden layer; give the widths, or model.kind = \"softmax\"")]
    NoWidths,
    /// `model.kind = "softmax"` with hidden layers.
    #[error("softmax has no hidden layers; give model.widths = [], or model.kind = \"mlp\"")]
    NeedlessWidths,
    /// The number of addresses is not the number of servers.
    #[error("{count} addresses for {servers} servers; give one for each server, in order, or none for `run`")]
    AddressCount {
        /// Addresses given.
        count: usize,
        /// Servers of the run.
        servers: i64,
    },
    /// One address cannot be one.
    #[error("address {place} is not host:port with a port from 1 to 65535 (IPv6 as [::1]:7000)")]
    NotAnAddress {
        /// Its place in the list, from 0: the server's number.
        place: usize,
    },
    /// One address stands for two servers.
    #[error("servers {first} and {second} have the same address")]
    RepeatedAddress {
        /// The server that has it first.
        first: usize,
        /// The server that has it again.
        second: usize,
    },
    /// The list of servers is needed and empty.
    #[error("needed by `server` and `worker`: host:port of each of the {servers} servers, server 0 first")]
    NoAddresses {
        /// Servers of the run.
        servers: u32,
    },
    /// The initial window holds not even one datagram.
    #[error(
        "must exceed one datagram, {}{datagram} bytes (transport.datagram_bytes)",
        if *found { "which auto may find to be " } else { "" }
    )]
    WindowUnderDatagram {
        /// Bytes of the largest datagram.
        datagram: i64,
        /// Whether the size is found rather than given.
        found: bool,
    },
    /// The window of the connection is smaller than that of one stream.
    #[error("must be at least transport.stream_window_bytes = {stream}")]
    WindowUnderStream {
        /// Bytes of a stream's window.
        stream: i64,
    },
    /// An argument of `--set` without an equals sign.
    #[error("expected KEY=VALUE, for example --set train.batch=64")]
    NotAnAssignment,
    /// An environment variable whose value is not text.
    #[error("the value is not valid UTF-8")]
    NotUnicode,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", one_line(&self.layer))?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", shown_key(&self.key))?;
        if let Some(given) = &self.given {
            write!(f, " = {}", given.shown())?;
        }
        write!(f, ": {}", self.fault)
    }
}

impl std::error::Error for Problem {}

fn meant(nearest: &Option<&'static str>) -> String {
    match nearest {
        Some(key) => format!("; did you mean {key}?"),
        None => "; `slackline config reference` lists all keys".to_owned(),
    }
}

fn in_unit(unit: &str) -> String {
    if unit.is_empty() { String::new() } else { format!(" ({unit})") }
}

fn without_effect(key: &Key, is: &str) -> String {
    let (on, needs) = key.only_with.unwrap_or(("another key", &[]));
    format!("{on} = \"{is}\" (it needs {})", quoted_words(needs))
}
