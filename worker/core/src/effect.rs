//! What the worker asks of the shell.

use slackline_core::ids::{BatchIndex, Clock, Generation, Sequence, ServerId, ShardId, WorkerId};
use slackline_core::wire::{Group, ToServer, TransferHeader};

use crate::buffers::Buffer;
use crate::error::WorkerError;
use crate::notice::Notice;

/// Something to do. Effects are performed in the order they are given.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "an effect is made once and moved once; a box would cost more")]
pub enum Effect {
    /// Open a connection; answered by `Connected` or `ConnectFailed`.
    Connect {
        /// To which server.
        server: ServerId,
    },
    /// Close the connection, or give up the attempt, and deliver nothing more of it.
    Disconnect {
        /// To which server.
        server: ServerId,
    },
    /// Send a control message.
    Send {
        /// To which server.
        server: ServerId,
        /// What to say.
        message: ToServer,
    },
    /// The answer to this pull goes to the shard's keys in a buffer, which keep what was read into them before: it can be a patch of that.
    /// It replaces an earlier number for the same shard and purpose (training or evaluation), of whatever server: what still arrives for
    /// that one is thrown away.
    ExpectValues {
        /// From which server.
        server: ServerId,
        /// Of which shard.
        shard: ShardId,
        /// The number of the pull.
        request: u64,
        /// To which buffer: never to values that are computed on.
        buffer: Buffer,
    },
    /// Send the shard's part of the gradient with number `header.sequence`; the shell cuts it into stripes.
    /// It can come again after a reconnection, until the gradient is released.
    SendPush {
        /// To which server.
        server: ServerId,
        /// The facts, written as one stripe.
        header: TransferHeader,
    },
    /// Send the initial values of a shard.
    SendInitial {
        /// To which server.
        server: ServerId,
        /// The facts, written as one stripe.
        header: TransferHeader,
    },
    /// The answer to this pull goes to a place of its own, beside the training buffers; answered by `ValuesArrived`. It replaces an
    /// earlier one for the same shard.
    ExpectFresher {
        /// From which server.
        server: ServerId,
        /// Of which shard.
        shard: ShardId,
        /// The number of the pull.
        request: u64,
    },
    /// What came in answer to an [`Effect::ExpectFresher`] replaces the shard's values in the training buffer
    /// that is computed on next.
    AdoptFresher {
        /// Of which shard.
        shard: ShardId,
    },
    /// Read a batch into memory, beside the one that is being computed with; answered by `BatchLoaded`.
    LoadBatch {
        /// Its first unit.
        batch: BatchIndex,
        /// How many units it has.
        units: u32,
    },
    /// Compute the gradient of a loaded batch on a training buffer, which keeps its values; answered by `GradientReady`. Neither the buffer
    /// nor the batch is asked for again before that: what is pulled ahead meanwhile goes to the other one. What is missing of the values
    /// still goes to this one.
    Compute {
        /// Number of the push that the gradient will be.
        sequence: Sequence,
        /// Which batch.
        batch: BatchIndex,
        /// Iterations completed before this one.
        clock: Clock,
        /// On which buffer.
        buffer: Buffer,
        /// The shards whose values in the training buffer were pulled for this iteration and are newer than those that the worker
        /// computed on before. With local steps, the others keep what the worker made of them.
        adopted: Vec<ShardId>,
        /// The shards that their parts of the gradient will be sent to.
        pushed: Vec<ShardId>,
        /// The shards whose values are still on their way: see [`Effect::Deliver`]. Never with local steps.
        missing: Vec<ShardId>,
    },
    /// The values of a shard that was missing are in the training buffer. Computing waits for them where it needs them, unless it is abandoned.
    Deliver {
        /// Of which shard.
        shard: ShardId,
    },
    /// Nobody wants this gradient any more although it is being computed: answer `GradientReady` as soon as can be, whatever is in
    /// the buffer. Without local steps a gradient that is ready anyway is no fault.
    Abandon {
        /// Its number.
        sequence: Sequence,
    },
    /// This gradient is not needed any more. At most two are kept at once.
    ReleaseGradient {
        /// Its number.
        sequence: Sequence,
        /// The shards whose parts of it are in no values: what was kept of earlier gradients and sent with those is kept again.
        unused: Vec<ShardId>,
    },
    /// Measure the values in the evaluation buffer on the held-out examples, beside the training; answered by
    /// `EvaluationReady`. One at a time.
    Evaluate {
        /// Samples that the run had handed out.
        at_samples: u64,
        /// Whether these are the final values of the run.
        last: bool,
    },
    /// Connect to all members of the group that this one exchanges anything with, and to the source if it lacks the values; answered
    /// by `Met`, or by `PeerTrouble`. All before it is gone: a group replaces its forerunner.
    Form {
        /// The group.
        group: Group,
        /// This worker's place in it.
        position: u32,
    },
    /// The group is over: close the connections to other workers, drop what was being reduced, and deliver nothing more of it. A
    /// gradient that is being computed is to end as soon as can be; it is not answered.
    Dissolve {
        /// Which group.
        generation: Generation,
    },
    /// Measure the way to the right neighbour; answered by `Measured`.
    Probe {
        /// In which group.
        generation: Generation,
    },
    /// Take over values and optimizer state of another member; answered by `StateArrived`.
    FetchState {
        /// In which group.
        generation: Generation,
        /// From whom.
        source: WorkerId,
        /// Iterations that are to be in them.
        clock: Clock,
    },
    /// One iteration of the allreduce: compute the gradient of a loaded batch on the worker's own values (with all that was to be applied
    /// before), multiply it by its share, and hand each bucket to the reduction as soon as it exists. Without a batch, zeros are handed
    /// over. Answered by `StepComputed`, then `Gathered`, then `Reduced`.
    Step {
        /// In which group.
        generation: Generation,
        /// Iterations complete before this one.
        clock: Clock,
        /// The batch (one unit), if there is one for this position.
        batch: Option<BatchIndex>,
        /// Its share of the iteration's samples.
        share: f32,
    },
    /// Apply the sums of an iteration to the worker's own values. What is asked for afterwards sees them applied.
    Apply {
        /// In which group.
        generation: Generation,
        /// Iterations complete before this one.
        clock: Clock,
        /// The share of the run that was done before it, in `[0, 1]`; see [`Step`](slackline_core::optimizer::Step).
        progress: f64,
    },
    /// The sums of an iteration are not used: they are not finite.
    Skip {
        /// In which group.
        generation: Generation,
        /// Iterations complete before this one.
        clock: Clock,
    },
    /// Something that the user should know.
    Notice(Notice),
    /// The worker has ended. Nothing follows.
    Exit(Result<(), WorkerError>),
}
