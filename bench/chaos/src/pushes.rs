//! What the push logs of all workers say together: the pieces of every step, and what the shards answered.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use slackline_core::ids::{BatchIndex, Clock, Incarnation, Sequence, Version, WorkerId};

/// One step of one life of a worker. All shards know it under this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId {
    /// Who pushed.
    pub worker: WorkerId,
    /// In which of its lives.
    pub incarnation: Incarnation,
    /// Which push of that life.
    pub sequence: Sequence,
}

impl StepId {
    /// Whose life it belongs to.
    #[must_use]
    pub const fn life(&self) -> (WorkerId, Incarnation) {
        (self.worker, self.incarnation)
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "push {} of {} (incarnation {})", self.sequence.0, self.worker, self.incarnation.0)
    }
}

/// One shard's part of a step, as its worker has sent it.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Iterations that the worker had completed when it pulled.
    pub clock: Clock,
    /// The version that the gradient was computed on.
    pub pulled: Version,
    /// The batch that it is of.
    pub batch: BatchIndex,
    /// Samples of that batch.
    pub samples: u32,
    /// One value for each key of the shard.
    pub gradient: Vec<f32>,
}

/// What all logs say of one shard.
#[derive(Clone, Debug, Default)]
pub struct Pushes {
    pieces: BTreeMap<StepId, Piece>,
    made: BTreeMap<StepId, BTreeSet<Version>>,
    left_out: BTreeSet<StepId>,
}

impl Pushes {
    /// A worker has sent this. Sent again, it is the same.
    pub fn sent(&mut self, step: StepId, piece: Piece) {
        self.pieces.entry(step).or_insert(piece);
    }

    /// The shard has answered that the step made `version`.
    pub fn applied(&mut self, step: StepId, version: Version) {
        self.made.entry(step).or_default().insert(version);
    }

    /// The shard has answered that the step is not in its values.
    pub fn left_out(&mut self, step: StepId) {
        self.left_out.insert(step);
    }

    /// The piece of a step; none where no log has it.
    #[must_use]
    pub fn piece(&self, step: &StepId) -> Option<&Piece> {
        self.pieces.get(step)
    }

    /// The steps that were sent.
    pub fn pieces(&self) -> impl Iterator<Item = StepId> {
        self.pieces.keys().copied()
    }

    /// Number of pieces sent.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether nothing was sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Steps that were answered as applied, each with the versions that it is said to have made: one, if all is well.
    pub fn answered(&self) -> impl Iterator<Item = (&StepId, &BTreeSet<Version>)> {
        self.made.iter()
    }

    /// Steps that were sent and whose answer no log has: their worker was killed before it heard, or the run was over.
    pub fn unanswered(&self) -> impl Iterator<Item = (&StepId, &Piece)> {
        self.pieces.iter().filter(|(step, _)| !self.made.contains_key(step) && !self.left_out.contains(step))
    }
}
