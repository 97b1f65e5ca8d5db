//! What `slackline status` and the progress display are told.

use std::time::Duration;

use bincode::{Decode, Encode};

use super::message::Text;
use crate::consistency::HoldReason;
use crate::ids::{Clock, Generation, Incarnation, KeyRange, ServerId, ShardId, Version, WorkerId};
use crate::limits::WAIT_BYTES_MAX;

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
    /// The servers, those with trouble first; only the coordinator knows them. At most [`crate::limits::SERVER_ROWS_MAX`].
    pub servers: Vec<ServerRow>,
    /// Servers beyond the rows.
    pub servers_hidden: u32,
    /// Shards that lack something; only the coordinator knows them. At most [`crate::limits::PLACE_ROWS_MAX`].
    pub places: Vec<PlaceRow>,
    /// What is waited for, the longest wait first. At most [`crate::limits::WAIT_ROWS_MAX`].
    pub waits: Vec<WaitRow>,
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
    /// All samples are used, and no worker is there to make the final evaluation.
    Left(FinalValues),
}

/// Where the final values of a run are that nobody has evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum FinalValues {
    /// In the memory of the servers alone.
    Unkept,
    /// They are on their way to a checkpoint.
    Keeping,
    /// In a checkpoint.
    Kept {
        /// Its number.
        number: u64,
    },
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

/// One server, as the coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ServerRow {
    /// Which.
    pub server: ServerId,
    /// Where it connects from.
    pub address: Text,
    /// The number drawn when its process began; none before its first word.
    pub boot: Option<u64>,
    /// Milliseconds since it was last heard; none before its first word.
    pub heard_ms: Option<u64>,
    /// Whether it is within its lease.
    pub is_alive: bool,
    /// Shards that it is the primary of.
    pub primaries: u32,
    /// Shards that it is the backup of.
    pub backups: u32,
    /// What it needs a person for, such as a full disk; at most [`crate::limits::TROUBLE_BYTES_MAX`].
    pub trouble: Text,
}

/// One shard that is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PlaceRow {
    /// The shard.
    pub shard: ShardId,
    /// Its generation.
    pub generation: Generation,
    /// The server that answers for it, or that it waits for.
    pub primary: ServerId,
    /// What it lacks.
    pub lack: Lack,
    /// For how long, in milliseconds.
    pub since_ms: u64,
}

/// What a shard lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Lack {
    /// Its primary is gone and no copy is in step: it waits for that server to come back.
    Primary,
    /// Its primary is loading the state.
    State,
    /// It should have a backup, and no server is left for one.
    Backup,
    /// This server is being given a copy.
    Step {
        /// Which.
        backup: ServerId,
    },
    /// Its former primary was started again without the state: it waits for the server that has the copy to come back.
    Copy {
        /// The former primary.
        former: ServerId,
    },
    /// It should have a backup, and every server that is left has as many places as an order can name.
    Room,
}

/// One thing that is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WaitRow {
    /// For how long, in milliseconds.
    pub since_ms: u64,
    /// Who waits for whom, in words; at most [`crate::limits::WAIT_BYTES_MAX`].
    pub text: Text,
}

impl WaitRow {
    /// A wait that has lasted for so long; a text that is too long is cut.
    #[must_use]
    pub fn new(since: Duration, text: impl Into<String>) -> Self {
        Self { since_ms: milliseconds(since), text: cut(text.into(), WAIT_BYTES_MAX) }
    }
}

/// A text of at most so many bytes.
#[must_use]
pub fn cut(mut text: String, most: usize) -> Text {
    while text.len() > most {
        text.pop();
    }
    Text::new(text)
}

/// Whole milliseconds, as rows tell a duration.
#[must_use]
pub fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
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
