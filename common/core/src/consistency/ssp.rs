//! Stale-synchronous parallel (Ho et al. 2013, section 3; the read rule of Bosen).
//!
//! A worker at clock c may read only values that include every live worker's first c - s iterations. It can thus be at
//! most s + 1 iterations ahead of the slowest, counted after its own push.

use super::{Needs, Policy, PullVerdict, PushVerdict, Reader, Room};
use crate::ids::{Clock, Moment, WorkerId};

/// The rule with its bound s.
#[derive(Clone, Copy, Debug)]
pub struct Ssp {
    /// The staleness bound, in iterations.
    pub staleness: u64,
}

/// The rule for one read under the bound `staleness`.
pub(super) fn read(room: &Room<'_>, clock: Clock, staleness: u64) -> PullVerdict {
    let needs = Clock(clock.0.saturating_sub(staleness));
    match room.table.minimum() {
        Some(minimum) if minimum < needs => PullVerdict::Hold(Needs::Minimum(needs)),
        _ => PullVerdict::Serve,
    }
}

impl Policy for Ssp {
    fn copy(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }

    fn pull(&mut self, _now: Moment, room: &Room<'_>, reader: Reader) -> PullVerdict {
        read(room, reader.clock, self.staleness)
    }

    fn push(&mut self, _now: Moment, _room: &Room<'_>, _worker: WorkerId, _clock: Clock) -> PushVerdict {
        PushVerdict::Apply
    }
}
