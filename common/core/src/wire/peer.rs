//! The messages between two workers of an allreduce.
//!
//! One connection joins two workers: the one at the higher position dials. The listening side opens the control stream and sends
//! [`PeerMessage::Hello`] first; the dialling side answers with its own. Whoever finds the other's wrong says so with
//! [`PeerMessage::Refused`], names the worker, and closes. Gradients travel as transfers of kind
//! [`Part`](super::TransferKind::Part), values and optimizer state as [`State`](super::TransferKind::State).

use bincode::{Decode, Encode};

use super::message::Text;
use crate::ids::{Clock, Generation, Incarnation, WorkerId};

/// From one worker to another.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PeerMessage {
    /// Who I am, and what I take us to be doing.
    Hello(Hello),
    /// We do not belong together.
    Refused(Text),
    /// Send me your values and optimizer state; they are to be those after so many iterations.
    WantState {
        /// Iterations complete.
        clock: Clock,
    },
    /// Answer at once, for measuring.
    Ping(u64),
    /// The answer, with the same number; also to a transfer of kind [`Probe`](super::TransferKind::Probe) when it is complete.
    Pong(u64),
}

/// See [`PeerMessage::Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Hello {
    /// Protocol version.
    pub protocol: u32,
    /// The run: see [`Group::run`](super::Group::run).
    pub run: u64,
    /// The group that this connection is for.
    pub generation: Generation,
    /// Fingerprint of the model's layout.
    pub layout_hash: u64,
    /// Fingerprint of the configuration.
    pub config_hash: u64,
    /// Who says this.
    pub worker: WorkerId,
    /// In which lifetime.
    pub incarnation: Incarnation,
}

/// What two workers who meet do not agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stranger {
    /// Another version of the program.
    #[error(
        "{worker} speaks protocol {theirs}, this worker {}; use the same program on all machines",
        super::PROTOCOL
    )]
    Protocol {
        /// Who.
        worker: WorkerId,
        /// What it speaks.
        theirs: u32,
    },
    /// Another run.
    #[error(
        "{worker} belongs to another run ({theirs:016x}, this one is {ours:016x}); something listens at its address that should not"
    )]
    Run {
        /// Who.
        worker: WorkerId,
        /// Its run.
        theirs: u64,
        /// Ours.
        ours: u64,
    },
    /// Another model.
    #[error(
        "{worker} has another model (layout {theirs:016x}, this worker {ours:016x}); give all workers the same configuration"
    )]
    Layout {
        /// Who.
        worker: WorkerId,
        /// Its layout.
        theirs: u64,
        /// Ours.
        ours: u64,
    },
    /// Another configuration.
    #[error(
        "{worker} has another configuration ({theirs:016x}, this worker {ours:016x}); give all workers the same one"
    )]
    Config {
        /// Who.
        worker: WorkerId,
        /// Its fingerprint.
        theirs: u64,
        /// Ours.
        ours: u64,
    },
    /// Another group.
    #[error("{worker} is in group {theirs}, this worker in {ours}")]
    Generation {
        /// Who.
        worker: WorkerId,
        /// Its group.
        theirs: Generation,
        /// Ours.
        ours: Generation,
    },
    /// Somebody else.
    #[error("{expected} was called and {answered} answered; look at sync.advertise of both")]
    Other {
        /// Who was called, in which lifetime.
        expected: WorkerId,
        /// Who answered.
        answered: WorkerId,
    },
    /// A former or later lifetime of the right worker.
    #[error("{worker} answered in another lifetime ({theirs}, the group has {ours})")]
    Incarnation {
        /// Who.
        worker: WorkerId,
        /// Its lifetime.
        theirs: Incarnation,
        /// The one that belongs to the group.
        ours: Incarnation,
    },
}

impl Stranger {
    /// Whether a new group can help. Else somebody must mend something.
    #[must_use]
    pub const fn is_passing(self) -> bool {
        matches!(self, Self::Generation { .. } | Self::Incarnation { .. })
    }
}

impl Hello {
    /// Checks what the other side says, who is to be `worker` in that lifetime; `self` is what this side says.
    ///
    /// # Errors
    /// The first thing that differs, in the order of who must act.
    pub fn check(&self, theirs: &Self, worker: WorkerId, incarnation: Incarnation) -> Result<(), Stranger> {
        let said = theirs.worker;
        if theirs.protocol != self.protocol {
            return Err(Stranger::Protocol { worker: said, theirs: theirs.protocol });
        }
        if theirs.run != self.run {
            return Err(Stranger::Run { worker: said, theirs: theirs.run, ours: self.run });
        }
        if said != worker {
            return Err(Stranger::Other { expected: worker, answered: said });
        }
        if theirs.layout_hash != self.layout_hash {
            return Err(Stranger::Layout { worker, theirs: theirs.layout_hash, ours: self.layout_hash });
        }
        if theirs.config_hash != self.config_hash {
            return Err(Stranger::Config { worker, theirs: theirs.config_hash, ours: self.config_hash });
        }
        if theirs.generation != self.generation {
            return Err(Stranger::Generation { worker, theirs: theirs.generation, ours: self.generation });
        }
        if theirs.incarnation != incarnation {
            return Err(Stranger::Incarnation { worker, theirs: theirs.incarnation, ours: incarnation });
        }
        Ok(())
    }
}
