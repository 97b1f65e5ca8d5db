//! Bulk-synchronous parallel (Valiant 1990) with backup workers (Chen et al. 2016).
//!
//! A clock closes once all but the b slowest workers have completed it: the mean of its pushes is applied once, and those
//! that come later are dropped and their workers go on at the clock that is open. Nobody reads before the clock before is closed.
//! With b = 0 that is bsp, where nobody is late but a worker that joined or returned.
//!
//! The mean weighs each push by its samples, so P workers with batches of b samples are one worker with a batch of P * b. With times
//! that are exponential with mean one, a clock of N workers takes H_N - H_b: the (N - b)-th order statistic.

use super::{DropReason, Needs, Policy, PullVerdict, PushVerdict, Reader, Room};
use crate::ids::{Clock, Moment, WorkerId};

/// The rule.
#[derive(Clone, Copy, Debug)]
pub struct Backup {
    /// Workers that a clock closes without (b).
    pub late: u32,
}

impl Policy for Backup {
    fn copy(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }

    fn pull(&mut self, _now: Moment, room: &Room<'_>, reader: Reader) -> PullVerdict {
        // The open clock never lies below the minimum, and nobody waits for a table that is empty.
        if reader.clock <= room.open || room.table.minimum().is_none() {
            PullVerdict::Serve
        } else if self.late == 0 {
            PullVerdict::Hold(Needs::Minimum(reader.clock))
        } else {
            PullVerdict::Hold(Needs::Open(reader.clock))
        }
    }

    fn push(&mut self, _now: Moment, room: &Room<'_>, _worker: WorkerId, clock: Clock) -> PushVerdict {
        if clock < room.open {
            PushVerdict::Drop(DropReason::LateClock { open: room.open })
        } else if self.late == 0 {
            PushVerdict::Collect { at: clock }
        } else {
            // Another shard has moved the worker up further than this one: its values here are those of the open clock.
            PushVerdict::Collect { at: room.open }
        }
    }

    fn border(&self, _now: Moment, room: &Room<'_>) -> Clock {
        match room.table.minimum_without(self.late) {
            Some(border) => border,
            // Nobody is left whom the others could wait for, and whoever joins pushes nothing below where it joins: a checkpoint's cut can
            // have lifted it above the clock that the others left open.
            None => room.last.map_or(room.open, Clock::next).max(room.table.joining().unwrap_or_default()),
        }
    }

    fn moves_up(&self) -> bool {
        self.late > 0
    }

    fn abandons(&self) -> bool {
        self.late > 0
    }
}
