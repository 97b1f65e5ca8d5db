//! What the log says of servers, shards and checkpoints.

use std::fmt;
use std::time::Duration;

use bincode::{Decode, Encode};
use slackline_core::ids::{Clock, Generation, ServerId, ShardId};
use slackline_core::wire::Origin;

/// Something that happened to the servers of a run.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum ClusterNotice {
    /// A server was not heard for a whole lease.
    Lost {
        /// Which.
        server: ServerId,
        /// Since when it was silent.
        silent: Duration,
    },
    /// A server came back as another process: what it had in memory is gone.
    Restarted {
        /// Which.
        server: ServerId,
    },
    /// A server that was lost is here again, as the same process.
    Back {
        /// Which.
        server: ServerId,
    },
    /// A server that was told to go may do so.
    Goes {
        /// Which.
        server: ServerId,
        /// Shards that nobody answers for until it is back.
        waiting: u64,
    },
    /// A server that was told to go takes with it what nothing else has.
    Missed {
        /// Which.
        server: ServerId,
    },
    /// A backup answers for a shard from now on.
    Promoted {
        /// The shard.
        shard: ShardId,
        /// Its former primary.
        from: ServerId,
        /// Its primary.
        to: ServerId,
        /// The new generation.
        generation: Generation,
    },
    /// A server was started again without a shard, and the one that has the copy is away.
    WaitsForCopy {
        /// The shard.
        shard: ShardId,
        /// Its former primary.
        from: ServerId,
        /// The server that is waited for.
        to: ServerId,
        /// How long it is waited for, and the checkpoint that is loaded then; none where there is none.
        until: Option<(Duration, u64)>,
    },
    /// A copy was waited for long enough: a checkpoint is loaded.
    CopyStaysAway {
        /// The shard.
        shard: ShardId,
        /// The server that was waited for.
        server: ServerId,
        /// How long.
        after: Duration,
    },
    /// A server took a shard over and was lost before it had acknowledged anything: the one before it has all that was.
    GoesBack {
        /// The shard.
        shard: ShardId,
        /// The server that had nothing on its disk yet.
        from: ServerId,
        /// The server that has it on its disk.
        to: ServerId,
    },
    /// A shard has no second copy for now.
    Alone {
        /// The shard.
        shard: ShardId,
        /// Its primary.
        primary: ServerId,
        /// The backup that it does without.
        backup: ServerId,
    },
    /// A shard has two equal copies.
    InStep {
        /// The shard.
        shard: ShardId,
        /// Where the second one is.
        backup: ServerId,
    },
    /// A shard's state is being loaded.
    Loads {
        /// The shard.
        shard: ShardId,
        /// By whom.
        server: ServerId,
        /// Where from.
        origin: Origin,
    },
    /// A shard's state was loaded.
    Restored {
        /// The shard.
        shard: ShardId,
        /// Where from.
        origin: Origin,
        /// Its minimum clock, as it was saved.
        clock: Clock,
        /// Clocks that the others have and it lost.
        lost: u64,
    },
    /// A state that should be there could not be loaded; there is another one.
    NotRestored {
        /// The shard.
        shard: ShardId,
        /// Why.
        why: String,
    },
    /// A checkpoint is in the store.
    Saved {
        /// Its number.
        number: u64,
        /// Its marker clock.
        clock: Clock,
        /// How long it took.
        after: Duration,
    },
    /// A checkpoint was given up; another will be made.
    NotSaved {
        /// Its number.
        number: u64,
        /// Why.
        why: String,
    },
    /// A server says what troubles it; none when that is over.
    Trouble {
        /// Which.
        server: ServerId,
        /// What.
        what: Option<String>,
    },
}

/// Where a state is from, in words.
pub(super) fn from(origin: Origin) -> String {
    match origin {
        Origin::Nothing => "nothing".to_owned(),
        Origin::Memory => "memory".to_owned(),
        Origin::Disk => "its disk".to_owned(),
        Origin::Checkpoint { number } => format!("checkpoint {number}"),
    }
}

impl fmt::Display for ClusterNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { server, silent } => {
                write!(f, "{server} was not heard for {:.1} s: its lease is over", silent.as_secs_f64())
            }
            Self::Goes { server, waiting: 0 } => {
                write!(f, "{server} was told to go: the run goes on without it")
            }
            Self::Goes { server, waiting } => {
                write!(f, "{server} was told to go: {waiting} of its shards wait until it is started again")
            }
            Self::Missed { server } => {
                write!(f, "{server} was told to go, and nothing else has what it has: the run ends with it")
            }
            Self::Restarted { server } => write!(f, "{server} was restarted: its memory is gone"),
            Self::Back { server } => write!(f, "{server} is back, with all that it had"),
            Self::Promoted { shard, from, to, generation } => {
                write!(f, "{to} answers for {shard} now, in place of {from} ({generation}); nothing is lost")
            }
            Self::WaitsForCopy { shard, from, to, until } => {
                write!(f, "{from} was restarted without {shard}; {to}, which has an equal copy, is away: ")?;
                match until {
                    None => write!(f, "it is waited for, since nothing else has it"),
                    Some((patience, number)) => {
                        let seconds = patience.as_secs_f64();
                        write!(f, "it is waited for for {seconds:.1} s, then checkpoint {number} is loaded")
                    }
                }
            }
            Self::CopyStaysAway { shard, server, after } => {
                let seconds = after.as_secs_f64();
                write!(f, "{server}, which has the copy of {shard}, has not come back for {seconds:.1} s")
            }
            Self::GoesBack { shard, from, to } => {
                write!(
                    f,
                    "{from} had nothing of {shard} on its disk yet: it goes back to {to}, whose disk has all of it"
                )
            }
            Self::Alone { shard, primary, backup } => {
                write!(f, "{shard} goes on at {primary} without its copy at {backup}")
            }
            Self::InStep { shard, backup } => write!(f, "{shard} has an equal copy at {backup}"),
            Self::Loads { shard, server, origin } => {
                write!(f, "{server} loads {shard} from {}", from(*origin))
            }
            Self::Restored { shard, origin, clock, lost: 0 } => {
                write!(f, "{shard} is restored from {} at {clock}; nothing is lost", from(*origin))
            }
            Self::Restored { shard, origin, clock, lost } => write!(
                f,
                "{shard} is restored from {} at {clock}: {lost} clocks of it are lost",
                from(*origin)
            ),
            Self::NotRestored { shard, why } => write!(f, "{shard} could not be restored: {why}"),
            Self::Saved { number, clock, after } => {
                write!(
                    f,
                    "checkpoint {number} of {clock} is in the store, after {:.1} s",
                    after.as_secs_f64()
                )
            }
            Self::NotSaved { number, why } => write!(f, "checkpoint {number} was given up: {why}"),
            Self::Trouble { server, what: Some(what) } => write!(f, "{server}: {what}"),
            Self::Trouble { server, what: None } => write!(f, "{server}: the trouble is over"),
        }
    }
}
