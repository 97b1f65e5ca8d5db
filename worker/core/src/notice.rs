//! What the user should know while a worker runs.

use std::fmt;
use std::time::Duration;

use slackline_core::collective::Topology;
use slackline_core::ids::{
    BatchIndex, Clock, Generation, Incarnation, Sequence, ServerId, ShardId, WorkerId,
};
use slackline_core::wire::Guarded;

/// Shards that are named in one line; of more, the number is told.
const SHARDS_NAMED_MAX: usize = 4;

/// What a worker waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitKind {
    /// A connection, or its first message.
    Connection,
    /// To be let in by the coordinator.
    Join,
    /// To be registered.
    Registration,
    /// Values for training.
    Pulls,
    /// Values for an evaluation.
    Snapshots,
    /// Answers to pushes.
    Answers,
    /// That the other shards have their pieces of a step, as this server's shards have.
    Steps,
    /// That it knows which shards it has, and has their values.
    Readiness,
    /// Work.
    Work,
    /// To be put into a group with the other workers of an allreduce.
    Group,
}

/// What a worker of an allreduce waits for from the others of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerWait {
    /// Connections.
    Connections,
    /// Figures of the way to the right neighbour.
    Figures,
    /// Values and optimizer state.
    State,
    /// Gradients of the iteration.
    Gradients,
    /// Sums of the iteration.
    Sums,
}

/// Something worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The coordinator has let the worker in.
    Joined {
        /// Its id.
        worker: WorkerId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The clock it enters at.
        clock: Clock,
    },
    /// An attempt to connect has failed; there will be another.
    ConnectFailed {
        /// To which server.
        server: ServerId,
        /// Why.
        reason: String,
    },
    /// A connection is gone; it is made again.
    Lost {
        /// To which server.
        server: ServerId,
    },
    /// A connection stands and nothing has come over it for a whole lease; it is given up and made again.
    Silent {
        /// To which server.
        server: ServerId,
        /// For how long.
        silent: Duration,
    },
    /// A lost connection stands again, and what had no answer was sent again.
    Resumed {
        /// To which server.
        server: ServerId,
    },
    /// The lease has run out; the worker joins again and forgets its present batch.
    Fenced {
        /// The server that said so.
        server: ServerId,
    },
    /// A gradient was not finite and was left out.
    BadGradient {
        /// Which worker.
        worker: WorkerId,
        /// Iterations it had completed.
        clock: Clock,
        /// Number of the push.
        sequence: Sequence,
        /// First key whose value is not finite.
        key: u64,
        /// The tensor that holds it.
        tensor: String,
        /// The server that found it; none if the worker did.
        found_by: Option<ServerId>,
    },
    /// A guard of a server left a part of a gradient out.
    Guarded {
        /// Which worker.
        worker: WorkerId,
        /// Iterations it had completed.
        clock: Clock,
        /// Number of the push.
        sequence: Sequence,
        /// The shard that left it out.
        shard: ShardId,
        /// The first and the last tensor of which the shard has keys.
        tensors: (String, String),
        /// Which guard.
        guard: Guarded,
        /// The shard's server.
        server: ServerId,
    },
    /// A shard has moved to another server; what it had not answered goes there.
    Moved {
        /// Which.
        shard: ShardId,
        /// The server that answered for it before.
        from: ServerId,
        /// The server that does now.
        to: ServerId,
        /// The generation of its primary.
        generation: Generation,
    },
    /// A server is another process than before; the worker registers again, and what has no answer is sent again.
    Restarted {
        /// Which server.
        server: ServerId,
    },
    /// Something takes long.
    Waiting {
        /// For what.
        what: WaitKind,
        /// From which server.
        server: ServerId,
        /// For which shards; empty where it is not about shards.
        shards: Vec<ShardId>,
        /// For how long already.
        waited: Duration,
        /// When anything came from the server last; none while the worker is not registered there.
        heard: Option<Duration>,
    },
    /// Other workers of an allreduce take long.
    WaitingForPeers {
        /// With what.
        what: PeerWait,
        /// In which group.
        generation: Generation,
        /// For how long already.
        waited: Duration,
    },
    /// The worker belongs to a group from now on.
    Grouped {
        /// Which.
        generation: Generation,
        /// Who sends what to whom in it.
        topology: Topology,
        /// Its size.
        members: u32,
        /// Iterations complete before it.
        clock: Clock,
    },
    /// A group is over; the next one is waited for.
    Dissolved {
        /// Which.
        generation: Generation,
    },
    /// One gradient takes long.
    Computing {
        /// Of which batch.
        batch: BatchIndex,
        /// For how long already.
        lasted: Duration,
    },
}

impl fmt::Display for WaitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connection => "a connection to",
            Self::Join => "being let in by",
            Self::Registration => "being registered by",
            Self::Pulls => "values from",
            Self::Snapshots => "values to evaluate from",
            Self::Answers => "answers to pushes from",
            Self::Steps => "the other shards' pieces of a step, beside those of",
            Self::Readiness => "its shards and their values to be ready at",
            Self::Work => "work from",
            Self::Group => "being put into a group by",
        })
    }
}

impl fmt::Display for PeerWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connections => "connections to the other workers",
            Self::Figures => "the measuring of the way to the next worker",
            Self::State => "values and optimizer state of another worker",
            Self::Gradients => "the other workers' gradients",
            Self::Sums => "the rest of the sums",
        })
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { worker, incarnation, clock } => {
                write!(f, "joined as {worker} ({incarnation}) at {clock}")
            }
            Self::ConnectFailed { server, reason } => write!(f, "{server} is not reached yet: {reason}"),
            Self::Lost { server } => write!(f, "the connection to {server} is lost"),
            Self::Silent { server, silent } => {
                write!(f, "{server} has said nothing for {:.1} s; connecting again", silent.as_secs_f64())
            }
            Self::Resumed { server } => write!(f, "the connection to {server} stands again"),
            Self::Fenced { server } => {
                write!(
                    f,
                    "{server} had not heard this worker for a lease; joining again, the batch is given up"
                )
            }
            Self::BadGradient { worker, clock, sequence, key, tensor, found_by } => {
                write!(f, "the gradient of {worker} at {clock} ({sequence}) is not finite")?;
                write!(f, " (tensor {tensor}, key {key})")?;
                found_by.map_or(Ok(()), |server| write!(f, ", found by {server}"))?;
                f.write_str("; it is left out")
            }
            Self::Guarded { worker, clock, sequence, shard, tensors: (first, last), guard, server } => {
                let why = match guard {
                    Guarded::Norm => "is beyond guard.norm_max; it is left out",
                    Guarded::Rate => "came beyond guard.pushes_per_s; it is left out and computed again",
                };
                write!(
                    f,
                    "the gradient of {worker} at {clock} ({sequence}) for {shard} of {server} (tensor {first}"
                )?;
                if first != last {
                    write!(f, " to {last}")?;
                }
                write!(f, ") {why}")
            }
            Self::Moved { shard, from, to, generation } => {
                write!(
                    f,
                    "{shard} has moved from {from} to {to} ({generation}); what it has not answered goes there"
                )
            }
            Self::Restarted { server } => {
                write!(
                    f,
                    "{server} was restarted; registering again, and what it has not answered goes there again"
                )
            }
            Self::Waiting { what, server, shards, waited, heard } => {
                write!(f, "waiting for {what} {server} for {:.1} s", waited.as_secs_f64())?;
                let (named, unnamed) = shards.split_at(shards.len().min(SHARDS_NAMED_MAX));
                if let Some((first, rest)) = named.split_first() {
                    write!(f, " ({first}")?;
                    rest.iter().try_for_each(|shard| write!(f, ", {shard}"))?;
                    if !unnamed.is_empty() {
                        write!(f, " and {} more", unnamed.len())?;
                    }
                    f.write_str(")")?;
                }
                match heard {
                    Some(heard) => write!(f, ", last heard {:.1} s ago", heard.as_secs_f64()),
                    None => Ok(()),
                }
            }
            Self::WaitingForPeers { what, generation, waited } => {
                write!(f, "waiting for {what} ({generation}) for {:.1} s", waited.as_secs_f64())
            }
            Self::Grouped { generation, topology: Topology::Auto, members, .. } => {
                write!(f, "{generation}: {members} workers measure the ways between them")
            }
            Self::Grouped { generation, topology, members, clock } => {
                write!(f, "{generation}: {members} workers ({topology}) from {clock}")
            }
            Self::Dissolved { generation } => write!(f, "{generation} is over; waiting for the next"),
            Self::Computing { batch, lasted } => {
                write!(f, "computing {batch} for {:.1} s", lasted.as_secs_f64())
            }
        }
    }
}
