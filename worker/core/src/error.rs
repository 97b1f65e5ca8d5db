//! Why a worker ends without finishing its work.

use std::time::Duration;

use slackline_core::ids::{Clock, Sequence, ServerId, ShardId, WorkerId};
use slackline_core::wire::{PROTOCOL, RefusalCode};

/// A reason to give up; every message names the server and what to look at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// A server was looked for and not found.
    #[error(
        "{server} was not reached for {} s ({reason}); \
         look whether it runs and whether entry {} of cluster.addresses is its address",
        .waited.as_secs(),
        .server.0
    )]
    Unreachable {
        /// Which server.
        server: ServerId,
        /// How long it was looked for.
        waited: Duration,
        /// What the last attempt failed with.
        reason: String,
    },
    /// A connection was refused for good.
    #[error("{server} cannot be connected to: {reason}")]
    Connect {
        /// Which server.
        server: ServerId,
        /// Why.
        reason: String,
    },
    /// A server speaks another protocol.
    #[error(
        "{server} speaks protocol {theirs}, this worker {PROTOCOL}; use the same program on both machines"
    )]
    Protocol {
        /// Which server.
        server: ServerId,
        /// What it speaks.
        theirs: u32,
    },
    /// Another server answered at an address.
    #[error("{server} was called and {answered} answered; put cluster.addresses in the order of the servers")]
    WrongServer {
        /// Which was called.
        server: ServerId,
        /// Which answered.
        answered: ServerId,
    },
    /// A server has no values although the run has begun, and was given none for as long as a server is looked for.
    #[error("{server} was restarted and has no state; start the run again")]
    Restarted {
        /// Which server.
        server: ServerId,
    },
    /// A server will not go on with this worker.
    #[error("{server} refused: {text}")]
    Refused {
        /// Which server.
        server: ServerId,
        /// Who must act.
        code: RefusalCode,
        /// The server's words, without control characters.
        text: String,
    },
    /// A server could not take a push.
    #[error(
        "{server} could not take a push for {shard}: {what}; worker and server do not agree, look at both logs"
    )]
    PushRefused {
        /// Which server.
        server: ServerId,
        /// For which shard.
        shard: ShardId,
        /// What was wrong.
        what: &'static str,
    },
    /// A gradient was not finite, and the configuration says to stop for that.
    #[error(
        "{worker} computed a gradient at {clock} that is not finite (tensor {tensor}, key {key}); \
         lower optimizer.rate, or set consistency.on_bad_gradient = \"drop\""
    )]
    BadGradient {
        /// Which worker.
        worker: WorkerId,
        /// Iterations it had completed.
        clock: Clock,
        /// First key whose value is not finite.
        key: u64,
        /// The tensor that holds it.
        tensor: String,
    },
    /// The norm of this worker's gradient was beyond the limit of a server's guard, and the configuration says to stop for that.
    #[error(
        "the gradient of {worker} at {clock} ({sequence}) is beyond guard.norm_max at {shard}, whose log names the norm and the tensor; \
         lower optimizer.rate, raise guard.norm_max, or set guard.on_norm = \"drop\" or \"clip\""
    )]
    BeyondNorm {
        /// Which worker.
        worker: WorkerId,
        /// Iterations it had completed.
        clock: Clock,
        /// The push.
        sequence: Sequence,
        /// The shard whose guard says so.
        shard: ShardId,
    },
    /// The sum of all workers' gradients was not finite, and the configuration says to stop for that.
    #[error(
        "the sum of all gradients at {clock} is not finite (tensor {tensor}, key {key}); \
         lower optimizer.rate, or set consistency.on_bad_gradient = \"drop\""
    )]
    BadSum {
        /// Iterations complete.
        clock: Clock,
        /// First key whose value is not finite.
        key: u64,
        /// The tensor that holds it.
        tensor: String,
    },
    /// A server sent what it must not send.
    #[error("{server} sent {what}, which has no place here; the programs may be of different versions")]
    OutOfPlace {
        /// Which server.
        server: ServerId,
        /// What it sent.
        what: &'static str,
    },
    /// Another worker of the allreduce does not belong to this run.
    #[error("{reason}")]
    Peer {
        /// Who, what is wrong, and what to do.
        reason: String,
    },
    /// The process itself cannot go on.
    #[error("{reason}")]
    Broken {
        /// Which part of it is gone.
        reason: String,
    },
}
