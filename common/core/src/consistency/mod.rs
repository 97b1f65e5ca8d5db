//! Consistency: who may read which values, and what becomes of a gradient.
//!
//! A shard asks its [`Policy`] about every pull and push, against its own [`ClockTable`]. The answer is a verdict with its
//! reason, never a bare yes or no. [`PolicySpec`] names the policies.
//!
//! | policy | a worker at clock c may read when | a push is |
//! |---|---|---|
//! | [`ssp`]`(s)` | every live worker has completed c - s iterations | applied as it comes |
//! | essp(s) | the same; values come anew when a clock completes while it still waits for other shards | applied as it comes |
//! | [`dssp`]`(low, high)` | as ssp, with a bound that moves between the two | applied as it comes |
//! | [`asp`] | always | applied as it comes |
//! | [`backup`]`(b)` | all but the b slowest have completed c iterations | collected by clock; the mean is applied once; late ones are dropped |
//! | bsp | the same with b = 0 | the same; nobody is late |
//! | [`quorum`]`(K, grace)` | its own last push is in the values | collected; the mean of K or more is applied once |
//! | buffer(K) | always | the same |
//!
//! Under all of them a worker reads its own pushes (read-my-writes, Ho et al. 2013, section 3; under buffer they may still be in
//! the buffer), all but the last `prefetch` of them where it reads ahead: c is the clock at which the values are used, so what a worker reads
//! ahead is within the same bound, its own iterations included. Those that apply a push as it comes move the values by the full rate each time; the others divide by the number of
//! gradients in the mean. What staleness does to a gradient beside that is [`delay`]'s.

pub mod asp;
pub mod backup;
mod clock_table;
pub mod delay;
pub mod dssp;
mod memory;
pub mod quorum;
mod spec;
pub mod ssp;

use std::fmt;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

pub use clock_table::{ClockTable, Standing};
pub use delay::{DelaySpec, Treatment};
pub use memory::{Memory, Pace};
pub use spec::PolicySpec;

use crate::ids::{Clock, Moment, Sequence, WorkerId};

/// Why a pull waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum HoldReason {
    /// The slowest worker has not come far enough.
    Clock {
        /// The worker with the smallest clock.
        slowest: WorkerId,
        /// Its clock.
        at: Clock,
        /// The clock it must reach.
        needs: Clock,
    },
    /// The reader's own push has not arrived yet.
    OwnPush {
        /// The push it must include.
        needs: Sequence,
    },
    /// Not all workers that the run begins with are here.
    NotStarted,
    /// No worker has brought the initial values yet.
    NoValues,
    /// Too few workers have completed a clock for it to close.
    Round {
        /// The clock that is open.
        open: Clock,
        /// The clock that must be open.
        needs: Clock,
    },
    /// The mean that the reader's own push belongs to is not complete.
    Quorum {
        /// Gradients in it.
        have: u32,
        /// Gradients that it needs.
        needs: u32,
    },
}

impl fmt::Display for HoldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clock { slowest, at, needs } => write!(f, "waits for {slowest} at {at} to reach {needs}"),
            Self::Round { open, needs } => write!(f, "waits for {open} to close, and for {needs} to be open"),
            Self::Quorum { have, needs } => {
                write!(f, "waits for a quorum of {needs} gradients, {have} are in")
            }
            Self::OwnPush { needs } => write!(f, "waits for its own {needs} to arrive"),
            Self::NotStarted => write!(f, "waits for the run to begin"),
            Self::NoValues => write!(f, "waits for the initial values"),
        }
    }
}

/// What becomes of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullVerdict {
    /// Answer now.
    Serve,
    /// Wait.
    Hold(Needs),
}

/// What a pull that is held waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// The minimum clock must reach this one; [`ClockTable::hold_reason`] says who is slow.
    Minimum(Clock),
    /// This clock must be open: all before it are closed.
    Open(Clock),
    /// The reader's own pushes must be in the values, or dropped.
    Settled,
}

/// Why a gradient is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub enum DropReason {
    /// Its clock has been closed without it (under bsp only a worker that joined or returned can be late).
    LateClock {
        /// The clock that is open now.
        open: Clock,
    },
    /// Too many versions have passed since its pull.
    TooStale {
        /// Versions that have passed.
        staleness: u64,
    },
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LateClock { open } => write!(f, "came after its clock was closed ({open} is open)"),
            Self::TooStale { staleness } => write!(f, "is {staleness} versions old"),
        }
    }
}

/// What becomes of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushVerdict {
    /// Apply it now, alone.
    Apply,
    /// Keep it until this clock (or round) closes, then apply the mean.
    Collect {
        /// Which.
        at: Clock,
    },
    /// Count it and leave it.
    Drop(DropReason),
}

/// What a policy sees of its shard.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// The clocks of the live workers.
    pub table: &'a ClockTable,
    /// The oldest clock (or round) that is not closed.
    pub open: Clock,
    /// Pushes collected for it.
    pub gathered: u32,
    /// When the last of them came.
    pub gathered_at: Moment,
    /// The last clock (or round) for which a push is collected.
    pub last: Option<Clock>,
}

/// Whoever wants to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Who.
    pub worker: WorkerId,
    /// The clock at which it uses what it reads: more than it has completed where it reads ahead.
    pub clock: Clock,
    /// Whether all its pushes are in the values or dropped.
    pub settled: bool,
}

/// A rule of consistency.
pub trait Policy: Send + Sync {
    /// The same rule with the same memory.
    fn copy(&self) -> Box<dyn Policy>;

    /// What the rule remembers beyond what a [`Room`] shows.
    fn memory(&self) -> Memory {
        Memory::Nothing
    }

    /// Takes over what another one of the same kind remembered; false, and nothing changed, where it is of another kind.
    fn recall(&mut self, memory: &Memory) -> bool {
        *memory == Memory::Nothing
    }

    /// May this reader read now? Asked again whenever what it needs has come to pass.
    fn pull(&mut self, now: Moment, room: &Room<'_>, reader: Reader) -> PullVerdict;

    /// What becomes of a gradient that a worker computed at `clock`?
    fn push(&mut self, now: Moment, room: &Room<'_>, worker: WorkerId, clock: Clock) -> PushVerdict;

    /// The oldest clock (or round) that is to stay open; all before it are closed now.
    fn border(&self, now: Moment, room: &Room<'_>) -> Clock {
        let _ = now;
        room.table.minimum().unwrap_or(room.open)
    }

    /// When [`Policy::border`] must be asked again although nothing has happened.
    fn deadline(&self, room: &Room<'_>) -> Option<Moment> {
        let _ = room;
        None
    }

    /// Gradients that the open round needs.
    fn needed(&self, room: &Room<'_>) -> u32 {
        let _ = room;
        1
    }

    /// Whether a worker that comes late to a clock goes on at the one that is open.
    fn moves_up(&self) -> bool {
        false
    }

    /// Whether a worker whose clock was closed without it is told to leave what it computes.
    fn abandons(&self) -> bool {
        false
    }

    /// Whether a collected push is answered only once it is in the values.
    fn withholds(&self) -> bool {
        true
    }
}

impl Clone for Box<dyn Policy> {
    fn clone(&self) -> Self {
        (**self).copy()
    }
}

#[cfg(test)]
mod tests;
