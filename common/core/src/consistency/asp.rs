//! Asynchronous parallel: no bound (Dean et al. 2012, Downpour SGD).

use super::{ClockTable, Policy, PullVerdict, PushVerdict};
use crate::ids::Clock;

/// The rule that never waits.
#[derive(Clone, Copy, Debug)]
pub struct Asp;

impl Policy for Asp {
    fn pull(&self, _table: &ClockTable, _clock: Clock) -> PullVerdict {
        PullVerdict::Serve
    }

    fn push(&self, _open: Clock, _clock: Clock) -> PushVerdict {
        PushVerdict::Apply
    }
}
