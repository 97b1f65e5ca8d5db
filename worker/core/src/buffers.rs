//! What lies in the buffers that pulls are read into, so that a pull can say what need not be sent again.

use std::collections::BTreeMap;

use slackline_core::ids::ShardId;

/// A buffer of the shell's, with a value for every key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Buffer {
    /// For training: what is computed on.
    #[default]
    First,
    /// The same. The two take turns where one is read into while the other is computed on.
    Second,
    /// For evaluations.
    Evaluation,
}

impl Buffer {
    /// The one that is read into while this one is computed on.
    #[must_use]
    pub const fn next(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
            Self::Evaluation => Self::Evaluation,
        }
    }
}

/// For each shard's part of each buffer, the number of the pull whose whole answer lies there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents(BTreeMap<(Buffer, ShardId), u64>);

impl Contents {
    /// What lies there; zero for nothing that has a number. It is read into from now on: until that is over, nothing does.
    pub(crate) fn take(&mut self, buffer: Buffer, shard: ShardId) -> u64 {
        self.0.remove(&(buffer, shard)).unwrap_or_default()
    }

    /// The whole answer to a pull lies there, and nothing is read into it.
    pub(crate) fn put(&mut self, buffer: Buffer, shard: ShardId, request: u64) {
        self.0.insert((buffer, shard), request);
    }
}
