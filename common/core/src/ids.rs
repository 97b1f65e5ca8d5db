//! One newtype for every identity and counter, so that a clock is never passed where a version is meant.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $letter:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The one after this one; the last one stays, since the number may come from a peer.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($letter, "{}"), self.0)
            }
        }
    };
}

number!(
    /// A worker of one run; handed out by the coordinator, counted from 0.
    WorkerId(u32), "worker "
);
number!(
    /// A server of one run: its place in the list of servers. Server 0 is the coordinator.
    ServerId(u32), "server "
);
number!(
    /// A shard: one contiguous range of keys with its values, optimizer state and one owner.
    ShardId(u32), "shard "
);
number!(
    /// One lifetime of a worker. Incarnations of one run come from one counter: a later one fences an earlier.
    Incarnation(u64), "incarnation "
);
number!(
    /// Iterations a worker has completed (Ho et al. 2013). Never wall time.
    Clock(u64), "clock "
);
number!(
    /// Updates a shard has applied; never decreases.
    Version(u64), "version "
);
number!(
    /// Which of several that follow each other: the groups of an allreduce, counted from 1, and the terms of a shard's primary, counted
    /// from 0. A later one fences an earlier.
    Generation(u64), "generation "
);
number!(
    /// Number of a push within one incarnation of a worker, from 1, the same on all shards.
    Sequence(u64), "push "
);
number!(
    /// Number of a batch within a run, from 0; see [`crate::schedule`] for the samples it holds.
    BatchIndex(u64), "batch "
);
number!(
    /// One session (connection) of a peer with one server, counted by that server.
    SessionId(u64), "session "
);

/// A half-open range of keys. A key is the place of one value in the flat parameter space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode, Serialize, Deserialize)]
pub struct KeyRange {
    /// First key.
    pub start: u64,
    /// Number of keys.
    pub len: u64,
}

impl KeyRange {
    /// The range `[start, start + len)`.
    #[must_use]
    pub const fn new(start: u64, len: u64) -> Self {
        Self { start, len }
    }

    /// One past the last key.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start + self.len
    }

    /// Whether there is no key in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Whether `key` lies in it.
    #[must_use]
    pub const fn contains(self, key: u64) -> bool {
        key >= self.start && key < self.end()
    }

    /// The indices of a buffer that holds the whole flat space.
    #[must_use]
    pub const fn as_indices(self) -> std::ops::Range<usize> {
        self.start as usize..self.end() as usize
    }
}

/// A moment, in nanoseconds since the process (or the simulated world) began. Cores are told the time; they never ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Moment(pub u64);

impl Moment {
    /// Time from `earlier` to this moment; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This moment and `duration` more.
    #[must_use]
    pub const fn after(self, duration: std::time::Duration) -> Self {
        Self(self.0.saturating_add(duration.as_nanos() as u64))
    }
}
