//! Asynchronous parallel: no bound (Dean et al. 2012, Downpour SGD).

use super::{Policy, PullVerdict, PushVerdict, Reader, Room};
use crate::ids::{Clock, Moment, WorkerId};

/// The rule that never waits.
#[derive(Clone, Copy, Debug)]
pub struct Asp;

impl Policy for Asp {
    fn copy(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }

    fn pull(&mut self, _now: Moment, _room: &Room<'_>, _reader: Reader) -> PullVerdict {
        PullVerdict::Serve
    }

    fn push(&mut self, _now: Moment, _room: &Room<'_>, _worker: WorkerId, _clock: Clock) -> PushVerdict {
        PushVerdict::Apply
    }
}
