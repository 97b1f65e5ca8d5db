//! Stale-synchronous parallel (Ho et al. 2013, section 3; the read rule of Bosen).
//!
//! A worker at clock c may read only values that include every live worker's first c - s iterations. It can thus be at
//! most s + 1 iterations ahead of the slowest, counted after its own push.

use super::{ClockTable, Policy, PullVerdict, PushVerdict};
use crate::ids::Clock;

/// The rule with its bound s.
#[derive(Clone, Copy, Debug)]
pub struct Ssp {
    /// The staleness bound, in iterations.
    pub staleness: u64,
}

impl Policy for Ssp {
    fn pull(&self, table: &ClockTable, clock: Clock) -> PullVerdict {
        let needs = Clock(clock.0.saturating_sub(self.staleness));
        match table.minimum() {
            Some(minimum) if minimum < needs => PullVerdict::Hold { needs },
            _ => PullVerdict::Serve,
        }
    }

    fn push(&self, _open: Clock, _clock: Clock) -> PushVerdict {
        PushVerdict::Apply
    }
}
