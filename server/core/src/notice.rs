//! What the log says, each thing once, where it happened.

use std::fmt;
use std::time::Duration;

use slackline_core::collective::Topology;
use slackline_core::ids::{Clock, Generation, Incarnation, Sequence, ShardId, WorkerId};
use slackline_core::role::Role;

use crate::assign::Repeat;
use crate::guard::Beyond;

use crate::control::ClusterNotice;

/// Something a person should be able to read about.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A worker became a member.
    Joined {
        /// The worker.
        worker: WorkerId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The clock it enters at.
        clock: Clock,
        /// Where it connects from.
        address: String,
    },
    /// The workers that the run begins with are here.
    Started {
        /// How many.
        workers: u32,
        /// How many are wanted.
        wanted: u32,
    },
    /// A worker was not heard for a whole lease.
    Expired {
        /// The worker.
        worker: WorkerId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Its last clock, as far as this server knows.
        clock: Option<Clock>,
        /// Since when it was silent.
        silent: Duration,
    },
    /// A worker said goodbye.
    Left {
        /// The worker.
        worker: WorkerId,
        /// How, in words.
        how: String,
    },
    /// A gradient was refused.
    BadGradient {
        /// The worker that computed it.
        worker: WorkerId,
        /// The shard.
        shard: ShardId,
        /// The iteration.
        clock: Clock,
        /// The push.
        sequence: Sequence,
        /// Versions that passed since the values that it was computed on.
        staleness: u64,
        /// The tensor that holds the first bad value.
        tensor: String,
    },
    /// A gradient was beyond a guard's limit.
    Guarded {
        /// The worker that computed it.
        worker: WorkerId,
        /// The shard.
        shard: ShardId,
        /// The iteration.
        clock: Clock,
        /// The push.
        sequence: Sequence,
        /// Versions that passed since the values that it was computed on.
        staleness: u64,
        /// The tensor with the largest share of its norm.
        tensor: String,
        /// What was beyond which limit, and what was done.
        beyond: Beyond,
    },
    /// Samples are given out again, since their worker is gone.
    Repeated(Repeat),
    /// Every shard was restored from one checkpoint: the data have gone back to it as well.
    WentBack {
        /// Which.
        checkpoint: u64,
        /// Samples that are done again.
        samples: u64,
    },
    /// A peer asked for what its role does not allow.
    WrongRole {
        /// Its role.
        role: Role,
        /// Its address.
        address: String,
        /// What it asked for.
        message: &'static str,
    },
    /// A peer was turned away.
    Refused {
        /// Its address.
        address: String,
        /// Why.
        text: String,
    },
    /// The coordinator does not take this server in for now.
    NotTaken {
        /// Why.
        text: String,
    },
    /// The held-out examples were evaluated.
    Evaluated {
        /// Samples handed out by then.
        at_samples: u64,
        /// Mean loss.
        loss: f64,
        /// Share classified rightly.
        accuracy: f64,
    },
    /// A group of an allreduce begins.
    Grouped {
        /// Which.
        generation: Generation,
        /// How many workers it has.
        members: u32,
        /// How they are arranged.
        topology: Topology,
        /// Iterations that are complete.
        clock: Clock,
        /// Who has the values, where somebody lacks them.
        source: Option<WorkerId>,
    },
    /// A group of an allreduce cannot go on.
    Trouble {
        /// Which.
        generation: Generation,
        /// Who says so.
        worker: WorkerId,
        /// With whom.
        with: WorkerId,
        /// What, in words.
        reason: String,
    },
    /// The configured topology does not fit the workers that are left.
    Misfit {
        /// What is configured.
        wanted: Topology,
        /// Why not, in words.
        text: String,
    },
    /// A topology was chosen.
    Chosen {
        /// Which and why, in words.
        text: String,
    },
    /// Something happened to the servers, their shards or the checkpoints.
    Cluster(ClusterNotice),
    /// The others are at work again.
    Recovered {
        /// The worker that was lost.
        worker: WorkerId,
        /// Where the others went on.
        clock: Clock,
        /// Time since its last word.
        after: Duration,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { worker, incarnation, clock, address } => {
                write!(f, "{worker} joined from {address} ({incarnation}, {clock})")
            }
            Self::Started { workers, wanted } if workers < wanted => {
                write!(f, "{workers} of {wanted} workers are here, which is enough: the run begins")
            }
            Self::Started { workers, .. } => write!(f, "all {workers} workers are here, the run begins"),
            Self::Expired { worker, incarnation, clock, silent } => {
                write!(f, "{worker} ({incarnation}")?;
                if let Some(clock) = clock {
                    write!(f, ", {clock}")?;
                }
                let seconds = silent.as_secs_f64();
                write!(
                    f,
                    ") was not heard for {seconds:.1} s: its lease is over, nobody waits for it any more"
                )
            }
            Self::Cluster(notice) => write!(f, "{notice}"),
            Self::Left { worker, how } => write!(f, "{worker} left: {how}"),
            Self::BadGradient { worker, shard, clock, sequence, staleness, tensor } => {
                write!(
                    f,
                    "refused a gradient that is not finite: {worker}, {clock}, tensor {tensor} ({shard}, "
                )?;
                write!(f, "{sequence}, staleness {staleness})")
            }
            Self::Guarded { worker, shard, clock, sequence, staleness, tensor, beyond } => {
                write!(
                    f,
                    "a gradient of {worker} at {clock} ({sequence}, staleness {staleness}) is beyond a limit: {beyond}"
                )?;
                write!(f, " (most of it is in tensor {tensor}, {shard})")
            }
            Self::Repeated(repeat) => write!(f, "{repeat}"),
            Self::WentBack { checkpoint, samples } => {
                write!(
                    f,
                    "all shards were restored from checkpoint {checkpoint}, and nothing newer is left: the data go back to it too, \
                     {samples} samples are done again, and the workers join anew"
                )
            }
            Self::WrongRole { role, address, message } => {
                write!(f, "refused {message} from {address}: the role {role} does not allow it")
            }
            Self::Refused { address, text } => write!(f, "turned {address} away: {text}"),
            Self::NotTaken { text } => write!(f, "{text}; it is tried again"),
            Self::Grouped { generation, members, topology, clock, source } => {
                match topology {
                    Topology::Auto => write!(f, "{generation}: {members} workers measure")?,
                    _ => write!(f, "{generation}: {members} workers, {topology}, from {clock} on")?,
                }
                match source {
                    Some(source) => write!(f, "; who lacks the values gets them from {source}"),
                    None => Ok(()),
                }
            }
            Self::Trouble { generation, worker, with, reason } => {
                write!(f, "{generation} is dissolved: {worker} has trouble with {with}: {reason}")
            }
            Self::Misfit { wanted, text } => write!(f, "{wanted} is not used, ring is: {text}"),
            Self::Chosen { text } => write!(f, "{text}"),
            Self::Recovered { worker, clock, after } => {
                let seconds = after.as_secs_f64();
                write!(
                    f,
                    "at work again without {worker}, which was lost at {clock}: {seconds:.2} s after its last word"
                )
            }
            Self::Evaluated { at_samples, loss, accuracy } => {
                write!(
                    f,
                    "after {at_samples} samples: test loss {loss:.4}, test accuracy {:.2} %",
                    100.0 * accuracy
                )
            }
        }
    }
}
