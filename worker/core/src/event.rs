//! What the shell tells the worker.

use slackline_core::codec::Encoding;
use slackline_core::ids::{BatchIndex, Clock, Generation, Sequence, ServerId, ShardId, WorkerId};
use slackline_core::wire::{LinkFigures, Served, ToPeer};

/// What stands against a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The next attempt can succeed.
    Passing,
    /// No attempt can succeed before somebody changes something (the server's certificate was revoked, its protocol is another).
    Lasting,
    /// The same, and the server holds it against this worker's own certificate: one of the two is wrong.
    Own,
}

/// How one shard's part of a gradient is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The shard.
    pub shard: ShardId,
    /// How.
    pub encoding: Encoding,
    /// Words of the payload.
    pub words: u64,
}

/// Something that happened.
///
/// A connection's events end with its `Lost`, or with the [`Effect::Disconnect`](crate::Effect::Disconnect)
/// that closed it: the shell delivers nothing of an older connection after that.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The connection that [`Effect::Connect`](crate::Effect::Connect) asked for stands.
    Connected {
        /// To which server.
        server: ServerId,
    },
    /// It could not be made.
    ConnectFailed {
        /// To which server.
        server: ServerId,
        /// Why, in a line.
        reason: String,
        /// What stands against it.
        obstacle: Obstacle,
    },
    /// A connection that stood is gone.
    Lost {
        /// To which server.
        server: ServerId,
    },
    /// A control message arrived.
    Message {
        /// From which server.
        server: ServerId,
        /// What it says.
        message: ToPeer,
    },
    /// All values of a pull have arrived and lie where [`Effect::ExpectValues`](crate::Effect::ExpectValues)
    /// said.
    ValuesArrived {
        /// From which server.
        server: ServerId,
        /// Of which shard.
        shard: ShardId,
        /// The number of the pull.
        request: u64,
        /// Version, clock and hold, from the transfer's header.
        served: Served,
        /// Bytes that came for it.
        bytes: u64,
    },
    /// A batch is in memory.
    BatchLoaded {
        /// Which.
        batch: BatchIndex,
    },
    /// A part of a gradient that is being computed is final, and finite: it can be sent before the rest. A shell need not tell; it does
    /// not where steps are whole, or of local steps.
    PartReady {
        /// The number that [`Effect::Compute`](crate::Effect::Compute) gave.
        sequence: Sequence,
        /// Which, and how it is written.
        part: Packed,
        /// Samples of the batch.
        samples: u32,
    },
    /// A gradient is computed; its buffer stays until
    /// [`Effect::ReleaseGradient`](crate::Effect::ReleaseGradient).
    GradientReady {
        /// The number that [`Effect::Compute`](crate::Effect::Compute) gave.
        sequence: Sequence,
        /// Key of the first value that is not a finite number, if there is one.
        bad_key: Option<u64>,
        /// Mean loss over the batch.
        loss: f64,
        /// Samples of the batch.
        samples: u32,
        /// Microseconds in which nothing was computed for want of values that were missing.
        waited_us: u64,
        /// The parts of it that are to be sent otherwise than as plain values.
        packed: Vec<Packed>,
    },
    /// An evaluation is finished.
    EvaluationReady {
        /// The number that [`Effect::Evaluate`](crate::Effect::Evaluate) gave.
        at_samples: u64,
        /// Mean loss over the held-out examples.
        loss: f64,
        /// Share of them that were classified rightly.
        accuracy: f64,
    },
    /// The connections that [`Effect::Form`](crate::Effect::Form) asked for stand.
    Met {
        /// In which group.
        generation: Generation,
    },
    /// The way to the right neighbour is measured.
    Measured {
        /// In which group.
        generation: Generation,
        /// What came out.
        figures: LinkFigures,
    },
    /// Values and optimizer state are taken over.
    StateArrived {
        /// In which group.
        generation: Generation,
    },
    /// This worker's gradient of the iteration is computed and handed over.
    StepComputed {
        /// In which group.
        generation: Generation,
        /// Iterations complete before this one.
        clock: Clock,
        /// Key of the first value of this worker's own gradient that is not a finite number, if there is one.
        bad_key: Option<u64>,
        /// Mean loss over the batch; zero without one.
        loss: f64,
        /// Samples of the batch; zero without one.
        samples: u32,
    },
    /// Everybody's gradient of the iteration is in: what is missing are sums that others have.
    Gathered {
        /// In which group.
        generation: Generation,
        /// Iterations complete before this one.
        clock: Clock,
    },
    /// All sums of the iteration are here.
    Reduced {
        /// In which group.
        generation: Generation,
        /// Iterations complete before this one.
        clock: Clock,
        /// Key of the first sum that is not a finite number, if there is one: the same at all members.
        bad_key: Option<u64>,
        /// Bytes of parts sent for it, headers left out.
        sent: u64,
        /// Bytes of parts received for it, headers left out.
        received: u64,
    },
    /// The group cannot go on as it is: a connection was lost, could not be made within a lease, or carried what does not belong there.
    PeerTrouble {
        /// In which group.
        generation: Generation,
        /// With whom.
        worker: WorkerId,
        /// What, in a line.
        reason: String,
    },
    /// Another worker does not belong to this run, and no new group can change that.
    PeerRefused {
        /// Who, and what is wrong, in a line.
        reason: String,
    },
    /// Time has passed: at the latest at [`Worker::next_deadline`](crate::Worker::next_deadline). The first
    /// one starts the worker.
    Tick {
        /// Bytes of datagrams sent since the process began.
        wire_sent: u64,
        /// Bytes of datagrams received since the process began.
        wire_received: u64,
    },
    /// The process was told to end. A second one ends it without waiting for the servers.
    Interrupt,
    /// A part of the process without which there is no worker (a thread that computes or loads) is gone.
    Broken {
        /// Which, in a line.
        reason: String,
    },
}
