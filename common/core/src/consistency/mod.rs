//! Consistency: who may read which values, and what becomes of a gradient.
//!
//! A shard asks its [`Policy`] about every pull and push, against its own [`ClockTable`]. The answer is a verdict with its
//! reason, never a bare yes or no.
//!
//! | policy | a worker at clock c may read when | a push is |
//! |---|---|---|
//! | [`bsp`] | every live worker has completed c iterations | collected; the mean of a clock is applied once |
//! | [`ssp`] | every live worker has completed c - s iterations | applied as it comes |
//! | [`asp`] | always | applied as it comes |
//!
//! Under all of them a worker reads its own pushes (read-my-writes, Ho et al. 2013, section 3). Only bsp divides by the
//! number of workers; under ssp and asp each push moves the values by the full rate.

pub mod asp;
pub mod bsp;
mod clock_table;
pub mod ssp;

use std::fmt;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

pub use clock_table::{ClockTable, Standing};

use crate::ids::{Clock, Sequence, WorkerId};

/// A policy as the configuration names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicySpec {
    /// Bulk-synchronous: see [`bsp`].
    Bsp,
    /// Stale-synchronous with a bound: see [`ssp`].
    Ssp {
        /// The staleness bound s, in iterations.
        staleness: u64,
    },
    /// Asynchronous: see [`asp`].
    Asp,
}

impl PolicySpec {
    /// The policy itself.
    #[must_use]
    pub fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::Bsp => Box::new(bsp::Bsp),
            Self::Ssp { staleness } => Box::new(ssp::Ssp { staleness }),
            Self::Asp => Box::new(asp::Asp),
        }
    }

    /// The staleness bound s; none under asp.
    #[must_use]
    pub const fn staleness(self) -> Option<u64> {
        match self {
            Self::Bsp => Some(0),
            Self::Ssp { staleness } => Some(staleness),
            Self::Asp => None,
        }
    }

    /// Most iterations that a worker's clock can lie above the minimum clock: s + 1, reached when it has pushed and the
    /// slowest has not.
    #[must_use]
    pub fn lead_bound(self) -> Option<u64> {
        self.staleness().map(|staleness| staleness.saturating_add(1))
    }

    /// Most versions that can pass between a pull and the apply of the gradient computed on it, for `workers` workers
    /// that stay: (P - 1)(2s + 1), and zero under bsp, whose version counts clocks.
    #[must_use]
    pub fn version_bound(self, workers: u64) -> Option<u64> {
        match self {
            Self::Bsp => Some(0),
            Self::Ssp { staleness } => {
                Some(workers.saturating_sub(1).saturating_mul(staleness.saturating_mul(2).saturating_add(1)))
            }
            Self::Asp => None,
        }
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bsp => write!(f, "bsp"),
            Self::Ssp { staleness } => write!(f, "ssp({staleness})"),
            Self::Asp => write!(f, "asp"),
        }
    }
}

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
}

impl fmt::Display for HoldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clock { slowest, at, needs } => write!(f, "waits for {slowest} at {at} to reach {needs}"),
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
    /// Wait until the minimum clock is `needs`; [`ClockTable::hold_reason`] says who it is that is slow.
    Hold {
        /// The clock that every live worker must reach.
        needs: Clock,
    },
}

/// Why a gradient is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub enum DropReason {
    /// Its clock has been closed without it (only a worker that joined or returned can be late).
    LateClock {
        /// The clock that is open now.
        open: Clock,
    },
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LateClock { open } => write!(f, "came after its clock was closed ({open} is open)"),
        }
    }
}

/// What becomes of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushVerdict {
    /// Apply it now, alone.
    Apply,
    /// Keep it until its clock closes, then apply the mean.
    Collect,
    /// Count it and leave it.
    Drop(DropReason),
}

/// A rule of consistency. It sees the clock table and nothing else.
pub trait Policy: Send {
    /// May a worker that has completed `clock` iterations read now?
    fn pull(&self, table: &ClockTable, clock: Clock) -> PullVerdict;

    /// What becomes of a gradient computed in iteration `clock`? `open` is the oldest clock that is not closed yet.
    fn push(&self, open: Clock, clock: Clock) -> PushVerdict;
}

#[cfg(test)]
mod tests;
