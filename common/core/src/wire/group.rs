//! The messages of an allreduce between worker and coordinator: who belongs to a group, and how far it is.

use bincode::{Decode, Encode};

use super::message::Text;
use super::report::Report;
use crate::collective::Topology;
use crate::ids::{Clock, Generation, Incarnation, WorkerId};

/// See [`ToServer::Ready`](super::ToServer::Ready).
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub struct Ready {
    /// The group it was in last, and is in no more; zero for none.
    pub generation: Generation,
    /// Iterations whose sums are in its values.
    pub clock: Clock,
    /// Units of the run that those stand for; see [`crate::schedule::Cut`].
    pub units: u64,
    /// What it measured, where the group was made to measure.
    pub measured: Option<LinkFigures>,
}

/// What one worker measured of the way to its right neighbour, while all others did the same.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub struct LinkFigures {
    /// Seconds that a message of no size takes one way: alpha of the cost formulas.
    pub latency_s: f64,
    /// Bytes a second of a large transfer: one over beta.
    pub bytes_per_s: f64,
}

/// See [`ToServer::Trouble`](super::ToServer::Trouble).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Trouble {
    /// In which group.
    pub generation: Generation,
    /// With which other worker.
    pub worker: WorkerId,
    /// What, in a line.
    pub reason: Text,
}

/// See [`ToServer::Stepped`](super::ToServer::Stepped).
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Stepped {
    /// In which group.
    pub generation: Generation,
    /// Iterations whose sums are in its values.
    pub clock: Clock,
    /// Units of the run that those stand for.
    pub units: u64,
    /// What happened since the last report.
    pub report: Option<Report>,
}

/// See [`ToPeer::Group`](super::ToPeer::Group).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Group {
    /// The run: the number that the coordinator's process drew when it began.
    pub run: u64,
    /// Which group of the run; each is one more than the last.
    pub generation: Generation,
    /// Who sends what to whom; with [`Topology::Auto`] the group only measures.
    pub topology: Topology,
    /// Its workers by rising id: a worker's place in this list is its position. At most
    /// [`GROUP_COUNT_MAX`](crate::limits::GROUP_COUNT_MAX).
    pub members: Vec<GroupMember>,
    /// Iterations that are complete: the group begins with the next.
    pub clock: Clock,
    /// Units of the run that those stand for.
    pub units: u64,
    /// A member with the values after those iterations, for members who lack them; none where nobody does.
    pub source: Option<WorkerId>,
}

/// One worker of a group.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GroupMember {
    /// Who.
    pub worker: WorkerId,
    /// Which lifetime of it.
    pub incarnation: Incarnation,
    /// `host:port` to connect to; at most [`ADDRESS_BYTES_MAX`](crate::limits::ADDRESS_BYTES_MAX) bytes.
    pub address: Text,
}

impl Group {
    /// The position of a worker.
    #[must_use]
    pub fn position_of(&self, worker: WorkerId) -> Option<u32> {
        self.members.iter().position(|member| member.worker == worker).map(|position| position as u32)
    }

    /// The first unit of the batch that the member at a position takes in the iteration after `clock` complete ones: positions take
    /// units in order, so that an iteration takes the same samples as a clock under bsp. None where numbers of a peer overflow.
    #[must_use]
    pub fn unit_of(&self, clock: Clock, position: u32) -> Option<u64> {
        let steps = clock.0.checked_sub(self.clock.0)?;
        let before = steps.checked_mul(self.members.len() as u64)?;
        self.units.checked_add(before)?.checked_add(u64::from(position))
    }
}
