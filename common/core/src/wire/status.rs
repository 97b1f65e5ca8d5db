//! What `slackline status` and the progress display are told.

use bincode::{Decode, Encode};

use super::message::Text;
use crate::consistency::HoldReason;
use crate::ids::{Clock, Incarnation, KeyRange, ServerId, ShardId, Version, WorkerId};

/// The state of one server, at most [`crate::limits::STATUS_ROWS_MAX`] rows of each kind.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Status {
    /// Which server.
    pub server: ServerId,
    /// Where the run is.
    pub phase: Phase,
    /// How far it is; only the coordinator knows.
    pub progress: Option<Progress>,
    /// The workers that are members.
    pub members: Vec<MemberRow>,
    /// Members beyond the rows.
    pub members_hidden: u32,
    /// Pulls that wait.
    pub held: Vec<HeldRow>,
    /// The shards.
    pub shards: Vec<ShardRow>,
    /// Peers and messages turned away.
    pub refused: RefusedCounts,
}

/// Where the run is.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Phase {
    /// Not all workers that it begins with are here.
    Waiting {
        /// Workers here.
        here: u32,
        /// Workers wanted.
        wanted: u32,
        /// Since when, in milliseconds.
        since_ms: u64,
    },
    /// Training.
    Running,
    /// All work is done.
    Finished,
    /// Stopped by a failure.
    Failed(Text),
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode)]
pub struct Progress {
    /// Samples used.
    pub samples: u64,
    /// Samples of the whole run.
    pub samples_total: u64,
    /// Milliseconds since the first work was handed out.
    pub wall_ms: u64,
    /// Samples per second, over the last seconds.
    pub samples_per_s: f64,
    /// Mean training loss since the last look, per sample.
    pub loss: f64,
    /// Mean clock lead so far.
    pub clock_lead: f64,
    /// Share of worker time spent waiting for clocks so far.
    pub waiting: f64,
    /// Newest test accuracy; negative before the first.
    pub accuracy: f64,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MemberRow {
    /// The worker.
    pub worker: WorkerId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Where it connects from.
    pub address: Text,
    /// Its clock, as far as this server knows.
    pub clock: Option<Clock>,
    /// Milliseconds since it was last heard.
    pub heard_ms: u64,
}

/// One pull that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct HeldRow {
    /// Who waits.
    pub worker: WorkerId,
    /// At which shard.
    pub shard: ShardId,
    /// Its clock.
    pub clock: Clock,
    /// For how long, in milliseconds.
    pub since_ms: u64,
    /// For what.
    pub reason: HoldReason,
}

/// One shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ShardRow {
    /// The shard.
    pub shard: ShardId,
    /// Its keys.
    pub keys: KeyRange,
    /// Its version.
    pub version: Version,
    /// Its minimum clock.
    pub minimum: Option<Clock>,
    /// Whether it has values.
    pub has_values: bool,
}

/// Peers and messages turned away since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct RefusedCounts {
    /// Handshakes that failed: no certificate, one of another authority, no QUIC at all.
    pub handshake: u64,
    /// Messages that the sender's role does not allow.
    pub role: u64,
    /// Bytes that were no message or transfer.
    pub malformed: u64,
    /// Messages of workers whose lease had run out.
    pub fenced: u64,
}
