//! Bulk-synchronous parallel (Valiant 1990): the read rule of ssp with s = 0, and the mean of a clock's pushes applied once.
//!
//! The mean weighs each push by its samples, so P workers with batches of b samples are one worker with a batch of P * b.

use super::ssp::Ssp;
use super::{ClockTable, DropReason, Policy, PullVerdict, PushVerdict};
use crate::ids::Clock;

/// The rule.
#[derive(Clone, Copy, Debug)]
pub struct Bsp;

impl Policy for Bsp {
    fn pull(&self, table: &ClockTable, clock: Clock) -> PullVerdict {
        Ssp { staleness: 0 }.pull(table, clock)
    }

    fn push(&self, open: Clock, clock: Clock) -> PushVerdict {
        if clock < open { PushVerdict::Drop(DropReason::LateClock { open }) } else { PushVerdict::Collect }
    }
}
