//! The control messages.
//!
//! A session begins with [`ToPeer::Welcome`] from the server. A worker joins at the coordinator (server 0), registers with every
//! server that holds a shard, then cycles: it asks the coordinator for work, pulls, pushes. The role of a peer comes from its
//! certificate, and its worker id from its registration: no message can speak for another worker.

use std::fmt;

use bincode::{Decode, Encode};

use super::cluster::{Placed, ServerOrder, ServerWord};
use super::group::{Group, Ready, Stepped, Trouble};
use super::report::Report;
use super::status::Status;
use crate::consistency::DropReason;
use crate::ids::{
    BatchIndex, Clock, Generation, Incarnation, Sequence, ServerId, ShardId, Version, WorkerId,
};
use crate::limits::TEXT_BYTES_MAX;

/// A text of bounded length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Text(String);

impl Text {
    /// The text, cut at a character border when it is over [`TEXT_BYTES_MAX`] bytes.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        let mut text = text.into();
        if text.len() > TEXT_BYTES_MAX {
            let mut end = TEXT_BYTES_MAX;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
        }
        Self(text)
    }

    /// The text, with control characters replaced: it came from a peer and goes to a terminal.
    #[must_use]
    pub fn shown(&self) -> String {
        let clean = self.0.chars().take(TEXT_BYTES_MAX);
        clean.map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

/// From a worker, an observer, an admin or another server.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum ToServer {
    /// Worker to coordinator: let me in.
    Join(Join),
    /// Worker to every server: this session speaks for this worker from now on.
    Register(Register),
    /// Worker: I am alive.
    Renew,
    /// Worker: I have work again; put me back into the clock table at this clock.
    Enter {
        /// The worker's clock.
        clock: Clock,
    },
    /// Worker: I have no work; take me out of the clock table.
    Finish,
    /// Worker to coordinator: give me work.
    Ask(Ask),
    /// Worker or observer: send me the values of a shard.
    Pull(Pull),
    /// Worker: my iteration has nothing for this shard, but it is complete.
    PushNothing {
        /// The shard.
        shard: ShardId,
        /// Number of the push.
        sequence: Sequence,
        /// Iterations completed before this one.
        clock: Clock,
        /// Number of the pull that it brings with it, as [`super::TransferHeader::reply`]; zero for none.
        reply: u64,
        /// What is known of that pull as [`Pull::have`].
        have: u64,
    },
    /// Worker to coordinator: the result of an evaluation.
    Evaluated(Evaluated),
    /// Worker: I go.
    Leave(Leave),
    /// Anyone with a role: what is the state of affairs?
    Status,
    /// Server or admin: end the process.
    Stop {
        /// Why.
        reason: Text,
    },
    /// Worker of an allreduce to coordinator: I am in no group and can be in the next.
    Ready(Ready),
    /// Worker of an allreduce to coordinator: the group cannot go on as it is.
    Trouble(Trouble),
    /// Worker of an allreduce to coordinator: how far I am.
    Stepped(Stepped),
    /// Worker, where steps are whole: every shard has its piece of all steps up to this one.
    Commit {
        /// The step.
        sequence: Sequence,
    },
    /// Server to coordinator.
    Cluster(ServerWord),
}

/// See [`ToServer::Join`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Join {
    /// Fingerprint of the model's layout.
    pub layout_hash: u64,
    /// Fingerprint of the configuration.
    pub config_hash: u64,
    /// Fingerprint of the training data.
    pub data_hash: u64,
    /// Training samples.
    pub sample_count: u64,
    /// A worker whose lease ran out comes back under its old id with a new incarnation.
    pub former: Option<(WorkerId, Incarnation)>,
    /// Where other workers reach it, in an allreduce: `host:port`, or `:port` at the address that it is seen at.
    pub peers_at: Option<Text>,
}

/// See [`ToServer::Register`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Register {
    /// The id that the coordinator gave.
    pub worker: WorkerId,
    /// The incarnation that the coordinator gave.
    pub incarnation: Incarnation,
    /// Fingerprint of the model's layout.
    pub layout_hash: u64,
    /// Fingerprint of the configuration.
    pub config_hash: u64,
    /// The clock to enter at.
    pub clock: Clock,
    /// Batches of the whole run: the schedule of the rate depends on it.
    pub batch_count: u64,
    /// The last push that every shard has answered: a shard whose state was restored expects the next one.
    pub answered: Sequence,
}

/// See [`ToServer::Ask`].
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Ask {
    /// The clock of the iteration the work is for.
    pub clock: Clock,
    /// What became of the last batches of this incarnation, oldest first; at most [`crate::limits::ASK_RESULTS_MAX`]. Every ask says the
    /// last ones again: an ask can be lost, and no worker has more batches than these that the coordinator has not heard of.
    pub results: Vec<BatchResult>,
    /// What happened since the last report.
    pub report: Option<Report>,
}

/// What became of a batch that a worker was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BatchResult {
    /// Numbers the results of one incarnation, from 1, without gaps: each counts once, however often it is said.
    pub number: u64,
    /// The batch.
    pub batch: BatchIndex,
    /// The clock of the iteration that computed it: that of its pushes.
    pub clock: Clock,
    /// What.
    pub fate: Fate,
}

/// See [`BatchResult`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Fate {
    /// Every shard has answered its push.
    Done {
        /// Microseconds that its gradient took.
        compute_us: u64,
    },
    /// Its gradient was not used; it must be done again.
    Returned,
}

/// See [`ToServer::Pull`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Pull {
    /// The shard.
    pub shard: ShardId,
    /// Number of the pull, a new one each time; the answer carries it.
    pub request: u64,
    /// The number of an earlier pull of this shard whose whole answer lies where this one's is read into: what is still as it was then need
    /// not be sent. Zero for none.
    pub have: u64,
    /// Whether the clock gates it.
    pub kind: PullKind,
}

/// Whether the clock gates a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PullKind {
    /// For training: held until the policy allows it.
    Gated {
        /// The clock at which the values are used: they must include every live worker's first `clock` less the bound.
        clock: Clock,
        /// The last push of the reader that the values must include.
        after: Sequence,
        /// How many of these iterations the reader has not completed yet: it pulls ahead while it computes them.
        ahead: u64,
    },
    /// For evaluation: answered at once, no part of the clock.
    Snapshot,
    /// Gated as well, but answered only when the minimum clock has risen: fresher values for a reader that waits for other shards.
    Fresher {
        /// Iterations the reader has completed.
        clock: Clock,
        /// The last push of the reader that the values must include.
        after: Sequence,
        /// The minimum clock of the values that the reader has.
        seen: Clock,
    },
}

impl PullKind {
    /// Iterations that the reader has completed.
    #[must_use]
    pub const fn completed(self) -> Clock {
        match self {
            Self::Gated { clock, ahead, .. } => Clock(clock.0.saturating_sub(ahead)),
            Self::Fresher { clock, .. } => clock,
            Self::Snapshot => Clock(0),
        }
    }
}

/// See [`ToServer::Evaluated`].
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Evaluated {
    /// Samples that the run had handed out when the evaluation was asked for.
    pub at_samples: u64,
    /// Mean loss over the held-out examples.
    pub loss: f64,
    /// Share of them that were classified rightly.
    pub accuracy: f64,
    /// What happened since the last report.
    pub report: Option<Report>,
}

/// See [`ToServer::Leave`].
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Leave {
    /// How it ended.
    pub outcome: Outcome,
    /// What happened since the last report.
    pub report: Option<Report>,
}

/// How a worker ended.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Outcome {
    /// There was no more work.
    Done,
    /// It was told to go (a signal), and every shard had answered its last step, which is reported.
    Interrupted,
    /// It met a gradient that was not finite, and the run is to stop for that.
    BadGradient(Text),
    /// Something else.
    Failed(Text),
    /// It was told to go (a signal) before every shard had answered its last step.
    Unfinished {
        /// The batch of that step; of other batches that it was given no shard has anything.
        batch: BatchIndex,
    },
}

/// From a server.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum ToPeer {
    /// The first message of every session.
    Welcome {
        /// Protocol version of the server.
        protocol: u32,
        /// Which server it is.
        server: ServerId,
        /// A number drawn when the process began: another number means another process, without the state.
        boot: u64,
    },
    /// Answer to [`ToServer::Join`].
    Joined {
        /// The worker's id.
        worker: WorkerId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The clock to enter at.
        clock: Clock,
    },
    /// Answer to [`ToServer::Register`].
    Registered {
        /// Whether the server's shards have values; if not, the worker brings the initial ones.
        has_values: bool,
    },
    /// Answer to [`ToServer::Ask`].
    Work(Work),
    /// A push was answered.
    Pushed(Pushed),
    /// Answer to [`ToServer::Status`].
    Status(Box<Status>),
    /// The server will not do what was asked; the session ends.
    Refused(Refusal),
    /// Answer to [`ToServer::Leave`] and [`ToServer::Stop`]: heard.
    Goodbye,
    /// Answer to [`ToServer::Renew`]: the lease goes on. A worker that hears nothing for a lease takes the session for lost.
    Renewed,
    /// The worker's clock was closed without it: what it computes would be dropped.
    Overtaken {
        /// The clock that is open.
        open: Clock,
    },
    /// Answer to [`ToServer::Ready`]: the group that the worker belongs to from now on.
    Group(Group),
    /// The group of this generation is dissolved: drop the iteration under way, and say [`ToServer::Ready`].
    Regroup {
        /// Which.
        generation: Generation,
    },
    /// Where steps are whole: this shard has its piece of the step, and applies it when it hears [`ToServer::Commit`].
    Staged {
        /// The shard.
        shard: ShardId,
        /// The step.
        sequence: Sequence,
    },
    /// Coordinator to worker: these shards have moved. At most [`crate::limits::PLACED_MAX`] at once.
    Placed(Vec<Placed>),
    /// Coordinator to server.
    Cluster(ServerOrder),
}

/// See [`ToPeer::Work`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Work {
    /// Compute the gradient of a batch.
    Batch {
        /// Its first unit.
        batch: BatchIndex,
        /// How many units it has.
        units: u32,
        /// Evaluate a snapshot beside it; the number of samples handed out so far.
        evaluate: Option<u64>,
        /// Set for a worker that had finished: enter the clock table again at this clock.
        enter: Option<Clock>,
    },
    /// No batch now; finish, and wait for more work.
    Idle,
    /// Evaluate the final values.
    Evaluate {
        /// Samples of the run.
        at_samples: u64,
    },
    /// The run is over: leave.
    Done,
}

/// See [`ToPeer::Pushed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Pushed {
    /// The shard.
    pub shard: ShardId,
    /// Number of the push.
    pub sequence: Sequence,
    /// Whether the push had been answered before; the outcome is the first one.
    pub duplicate: bool,
    /// The worker's clock at that shard now. It can lie above what the worker counted: a joiner is moved up to the minimum.
    pub clock: Clock,
    /// What became of it.
    pub outcome: PushOutcome,
    /// Microseconds from its arrival to its answer, spent waiting for other workers.
    pub held_us: u64,
    /// Microseconds that it lay at the server before the shard took it up: how busy the shard was.
    pub busy_us: u64,
}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PushOutcome {
    /// It is in the values.
    Applied {
        /// The version it made.
        version: Version,
        /// Versions that passed between its pull and its apply.
        staleness: u64,
        /// Whether that took it some of its rate.
        down_weighted: bool,
    },
    /// Counted and left out, by the policy.
    Dropped(DropReason),
    /// It had nothing for the shard; the clock went on.
    Nothing,
    /// Left out: its value for `key` is not a finite number.
    NotFinite {
        /// Key of the first such value.
        key: u64,
    },
    /// The worker is not a member here (its lease ran out, or a later incarnation took its place).
    Fenced,
    /// It is further ahead than the window of pushes, or older than the server remembers.
    OutOfWindow,
    /// Its keys are not the shard's.
    WrongKeys,
    /// Left out by a guard of the server.
    Guarded(Guarded),
    /// It is in the buffer whose mean makes the next version.
    Gathered {
        /// Versions that passed since its pull; none will pass before its apply.
        staleness: u64,
        /// Whether that took it some of its rate.
        down_weighted: bool,
    },
}

/// Which guard left a push out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Guarded {
    /// Its norm is beyond the largest that is allowed. It is not computed again.
    Norm,
    /// Its worker pushes more often than is allowed. It is computed again.
    Rate,
}

/// The facts of a served pull, beside its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// The shard's version.
    pub version: Version,
    /// The shard's minimum clock.
    pub minimum: Clock,
    /// How far the reader's clock lay above the minimum.
    pub lead: u64,
    /// Microseconds for which other workers' clocks held it.
    pub held_us: u64,
}

/// See [`ToPeer::Refused`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Refusal {
    /// Who must act.
    pub code: RefusalCode,
    /// What is wrong, in a line.
    pub text: Text,
}

/// Who must act on a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub enum RefusalCode {
    /// The certificate's role does not allow the message. Fatal.
    Role,
    /// Layout, configuration or data differ. Fatal.
    Mismatch,
    /// The worker's lease ran out or a later incarnation took its place: join again.
    Fenced,
    /// The message is not for this server or not for this moment. Fatal.
    OutOfPlace,
    /// A bound of the server is reached. Fatal.
    Full,
    /// The bytes were not a message. Fatal.
    Malformed,
    /// The run is over. Fatal.
    RunOver,
    /// The run was stopped because something failed. Fatal.
    Stopped,
    /// The server does not know yet which shards it has: come again.
    NotReady,
}

impl RefusalCode {
    /// Whether joining again can help.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Fenced | Self::NotReady)
    }
}
