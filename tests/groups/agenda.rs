//! What is to happen and when: ordered by time, then by the order in which it was decided.

use std::collections::BTreeMap;

use slackline_core::ids::{Clock, Generation, Moment};
use slackline_core::wire::{ToPeer, ToServer};
use slackline_worker_core::Event;

use crate::replica::State;

/// What reaches the coordinator.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "it is made once and moved twice; a box would cost more")]
pub(crate) enum Inward {
    /// A worker connects.
    Dial,
    /// A message.
    Message(ToServer),
    /// The connection is over.
    Gone,
}

/// What reaches a worker from the coordinator.
#[derive(Clone, Debug)]
pub(crate) enum Outward {
    /// The connection stands.
    Connected,
    /// It could not be made.
    Failed,
    /// A message.
    Message(ToPeer),
    /// The connection is over.
    Lost,
}

/// What goes from one worker to another within a group.
#[derive(Clone, Debug)]
pub(crate) enum Packet {
    /// It has formed the group.
    Hello,
    /// Partial or whole sums of a bucket.
    Part { clock: Clock, bucket: u32, number: u32, values: Vec<f32> },
    /// It wants values and optimizer state.
    Want { clock: Clock },
    /// It gets them.
    State(Box<State>),
}

/// Something that happens at a moment.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "it is made once and moved twice; a box would cost more")]
pub(crate) enum Happening {
    /// Something reaches the coordinator's end of a link.
    AtCoordinator { link: usize, what: Inward },
    /// Something reaches the worker's end of a link.
    AtWorker { link: usize, what: Outward },
    /// Something reaches a worker from another.
    AtPeer { from: usize, to: usize, generation: Generation, what: Packet },
    /// A worker learns that its connection to another is over.
    PeerLost { process: usize, other: usize, generation: Generation },
    /// A worker has waited for the others of its group for long enough, or for those of them that it calls.
    MeetLate { process: usize, generation: Generation, is_for_called: bool },
    /// The shell of a worker has something to say.
    Local { process: usize, event: Event },
    /// A bucket of a gradient is ready to be reduced.
    Bucket { process: usize, generation: Generation, clock: Clock, bucket: u32 },
    /// The whole gradient is handed over.
    Computed { process: usize, generation: Generation, clock: Clock },
    /// The clock of the coordinator's loop.
    CoordinatorTick,
    /// The clock of a worker's loop; an older wake is void.
    WorkerTick { process: usize, wake: u64 },
    /// A new worker process starts.
    Start,
    /// One starts that reaches the coordinator and no other worker.
    StartUnreachable,
    /// Something goes wrong.
    Mishap,
    /// From here on nothing goes wrong any more.
    Calm,
}

impl Happening {
    /// The process that must be awake for it.
    pub(crate) const fn process(&self) -> Option<usize> {
        match self {
            Self::AtPeer { to: process, .. }
            | Self::PeerLost { process, .. }
            | Self::MeetLate { process, .. }
            | Self::Local { process, .. }
            | Self::Bucket { process, .. }
            | Self::Computed { process, .. }
            | Self::WorkerTick { process, .. } => Some(*process),
            _ => None,
        }
    }
}

/// All that is to happen.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    due: BTreeMap<(Moment, u64), Happening>,
    number: u64,
}

impl Agenda {
    pub(crate) fn at(&mut self, when: Moment, what: Happening) {
        self.number += 1;
        self.due.insert((when, self.number), what);
    }

    pub(crate) fn pop(&mut self) -> Option<(Moment, Happening)> {
        self.due.pop_first().map(|((when, _), what)| (when, what))
    }
}
