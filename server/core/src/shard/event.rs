//! What can happen to a shard, and what it asks for.

use slackline_core::codec::Payload;
use slackline_core::consistency::Standing;
use slackline_core::ids::{BatchIndex, Clock, Incarnation, Sequence, SessionId, Version, WorkerId};
use slackline_core::wire::{Doubt, Mark, PullKind, Pushed, Served};

use super::{ShardState, Snapshot};
use crate::notice::Notice;

/// What can happen to a shard.
#[derive(Clone, Debug, PartialEq)]
pub enum ShardEvent {
    /// A worker became a member.
    Enter {
        /// The worker.
        worker: WorkerId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Its clock.
        clock: Clock,
        /// Active for those that the run begins with, joining for later ones.
        standing: Standing,
        /// Batches of the run.
        batch_count: u64,
        /// The last push that every shard has answered: the next one is new here.
        answered: Sequence,
    },
    /// A member that had finished has work again.
    Reenter {
        /// The worker.
        worker: WorkerId,
        /// Its clock.
        clock: Clock,
    },
    /// A member has no work: out of the clock table, still a member.
    Finish {
        /// The worker.
        worker: WorkerId,
    },
    /// A worker is no member any more.
    Remove {
        /// The worker.
        worker: WorkerId,
    },
    /// All workers that the run begins with are members.
    Start,
    /// A worker brought the initial values; only the first time counts.
    Initialize(Vec<f32>),
    /// A push has arrived.
    Push(Push),
    /// Time has passed: at the latest at `Shard::next_deadline`.
    Tick,
    /// A pull has arrived.
    Pull {
        /// The session to answer.
        session: SessionId,
        /// The worker that reads; none for an observer.
        reader: Option<(WorkerId, Incarnation)>,
        /// Number of the pull.
        request: u64,
        /// That of an earlier one whose answer lies where this one's is read into; zero for none. A copy that does not lead need not know it.
        have: u64,
        /// Gated or not.
        kind: PullKind,
    },
    /// Every shard has its piece of this worker's steps up to this one: they are applied.
    Commit {
        /// The worker.
        worker: WorkerId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The last of these steps.
        sequence: Sequence,
    },
    /// What becomes of the pieces of a worker that is gone: those up to this one are applied, the others left.
    Resolve {
        /// The worker.
        worker: WorkerId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The last step that is applied.
        through: Sequence,
    },
    /// This incarnation of a worker is gone, whatever the shard knows of it. Where steps are whole, a [`ShardEffect::Doubt`] follows in any
    /// case, also with nothing that waits.
    Fence {
        /// The worker.
        worker: WorkerId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// Make a cut for a checkpoint. Whoever enters or reenters while a checkpoint is being made must do so at its cut or above: then
    /// what is in the cut does not depend on when the shards hear of it.
    Mark(Mark),
    /// This copy is the primary from now on: sessions of the former one are gone. Members that the shard does not know enter at the clock
    /// given, joining where the run has begun; those that it knows and that are not named stay, since they may still come: whoever keeps
    /// leases removes them. A worker whose acknowledged pushes this copy may lack (a checkpoint, or a backup that did not count) must
    /// be entered anew with what it was answered.
    Lead {
        /// The members of this server.
        members: Vec<(WorkerId, Incarnation, Clock)>,
        /// Whether the run has begun, as this server knows it: a run that is resumed waits for its workers again.
        started: bool,
    },
}

impl ShardEvent {
    /// Whether anything can follow from it but an answer. What an observer reads changes nothing, whatever time it is: copies need not hear of it.
    #[must_use]
    pub const fn changes(&self) -> bool {
        !matches!(self, Self::Pull { reader: None, .. })
    }

    /// The worker that it is about, if it is about one.
    #[must_use]
    pub const fn worker(&self) -> Option<WorkerId> {
        match self {
            Self::Enter { worker, .. }
            | Self::Reenter { worker, .. }
            | Self::Finish { worker }
            | Self::Remove { worker }
            | Self::Fence { worker, .. }
            | Self::Commit { worker, .. }
            | Self::Resolve { worker, .. }
            | Self::Push(Push { worker, .. })
            | Self::Pull { reader: Some((worker, _)), .. } => Some(*worker),
            Self::Start
            | Self::Initialize(_)
            | Self::Tick
            | Self::Pull { reader: None, .. }
            | Self::Mark(_)
            | Self::Lead { .. } => None,
        }
    }
}

/// A push with its facts.
#[derive(Clone, Debug, PartialEq)]
pub struct Push {
    /// The session to answer.
    pub session: SessionId,
    /// Who pushed.
    pub worker: WorkerId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Number of the push.
    pub sequence: Sequence,
    /// Iterations the worker had completed before this one.
    pub clock: Clock,
    /// The version the gradient was computed on.
    pub pulled: Version,
    /// The batch it is of.
    pub batch: BatchIndex,
    /// Samples it is the mean of.
    pub samples: u32,
    /// Number of the pull that it brings with it, for the iteration after its own; zero for none. It is taken once, with the push: whoever
    /// sends that again pulls anew.
    pub reply: u64,
    /// That of an earlier pull, as in [`ShardEvent::Pull`].
    pub have: u64,
    /// The gradient, as it came; none when the iteration has nothing for this shard.
    pub gradient: Option<Payload>,
}

/// What a shard asks for.
#[derive(Clone, Debug)]
pub enum ShardEffect {
    /// Tell a worker what became of its push.
    Answer {
        /// The session to tell.
        session: SessionId,
        /// What.
        pushed: Pushed,
    },
    /// Send values.
    Serve {
        /// The session that pulled.
        session: SessionId,
        /// The worker that reads; none for an observer.
        reader: Option<(WorkerId, Incarnation)>,
        /// Number of the pull.
        request: u64,
        /// That of the earlier one that it named.
        have: u64,
        /// Its kind, so that it can be asked again where there is no room to send what it brought.
        kind: PullKind,
        /// The values, or what has changed of those that the earlier pull brought: all who pull one version share one buffer.
        values: Snapshot,
        /// The facts beside them.
        served: Served,
    },
    /// Tell a worker that its clock was closed without it.
    Overtaken {
        /// The session it pulled over.
        session: SessionId,
        /// The clock that is open.
        open: Clock,
    },
    /// Tell a worker that its piece of a step is here and waits for those of the other shards.
    Staged {
        /// The session it came over.
        session: SessionId,
        /// The step.
        sequence: Sequence,
    },
    /// Pieces of a worker that is gone wait: the coordinator must say what becomes of them.
    Doubt(Doubt),
    /// The cut of a checkpoint is complete.
    Cut {
        /// The checkpoint.
        number: u64,
        /// What it holds of this shard: owns or shares its arrays, so the shard goes on.
        state: Box<ShardState>,
    },
    /// A push that the cut should not have has been applied before the marker came.
    CutMissed {
        /// The checkpoint.
        number: u64,
    },
    /// The shard has values now.
    HasValues,
    /// A gradient's buffer is free again.
    Recycle(Vec<f32>),
    /// For the log.
    Notice(Notice),
}
