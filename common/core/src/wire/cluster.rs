//! What the servers of a run say to each other: every server to the coordinator, and its orders back.
//!
//! Orders say how things are to be, not what to change: an order that is lost is repaired by the next one of its kind, and one that comes
//! twice does nothing the second time.

use bincode::{Decode, Encode};

use super::message::Text;
use crate::ids::{Clock, Generation, Incarnation, Sequence, ServerId, ShardId, Version, WorkerId};

/// From a server to the coordinator.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum ServerWord {
    /// I am here: the first word of a session.
    Here(Here),
    /// I am alive.
    Alive,
    /// I have taken in the order of places with this number: what it says of me is so.
    Took {
        /// The order's number.
        number: u64,
    },
    /// A shard's backup holds all that its primary has; said by the primary.
    InStep {
        /// The shard.
        shard: ShardId,
        /// The primary's generation.
        generation: Generation,
        /// The backup.
        backup: ServerId,
    },
    /// A primary has not been able to reach its backup for a lease: it goes on alone when it is told so.
    OutOfReach {
        /// The shard.
        shard: ShardId,
        /// The primary's generation.
        generation: Generation,
        /// The backup.
        backup: ServerId,
    },
    /// A primary whose state had to be loaded has it.
    Restored {
        /// The shard.
        shard: ShardId,
        /// Its generation.
        generation: Generation,
        /// Updates in its values.
        version: Version,
        /// Its minimum clock, as it was saved.
        clock: Clock,
    },
    /// A primary's state could not be loaded.
    NotRestored {
        /// The shard.
        shard: ShardId,
        /// Its generation.
        generation: Generation,
        /// Why, with the name of the file.
        why: Text,
    },
    /// This shard's part of a checkpoint is in the store.
    Saved {
        /// Which checkpoint.
        number: u64,
        /// The shard.
        shard: ShardId,
        /// The part's entry in the manifest, as JSON; at most [`crate::limits::PART_ENTRY_BYTES_MAX`].
        entry: Vec<u8>,
    },
    /// This shard will have no part in a checkpoint: the marker came too late, or the store took nothing.
    NotSaved {
        /// Which checkpoint.
        number: u64,
        /// The shard.
        shard: ShardId,
        /// Why.
        why: Text,
    },
    /// A worker is gone while pieces of its steps wait for the word that all shards have theirs.
    Doubt(Doubt),
    /// Something that the user must know and that passes by itself or by the user's hand (a full disk): none when it is over.
    Trouble(Option<Text>),
    /// I was told to go, and stay until I hear a [`ServerOrder::Go`].
    Going,
}

/// See [`ServerWord::Here`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Here {
    /// Which server.
    pub server: ServerId,
    /// The number drawn when its process began.
    pub boot: u64,
    /// Fingerprint of the model's layout.
    pub layout_hash: u64,
    /// Fingerprint of the configuration.
    pub config_hash: u64,
    /// The shards whose state it has, in memory or on its disk.
    pub holds: Vec<Holding>,
}

/// A state that a server has of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Holding {
    /// The shard.
    pub shard: ShardId,
    /// The generation that it is of.
    pub generation: Generation,
    /// Whether it leads the shard in that generation, and so lacks nothing that was acknowledged; a backup says this once it is in step.
    pub is_whole: bool,
    /// Whether it lies on its disk and not in memory.
    pub on_disk: bool,
}

impl Holding {
    /// Whether it lies on a disk with all that was acknowledged since this generation began.
    #[must_use]
    pub fn is_from(&self, since: Generation) -> bool {
        self.is_whole && self.on_disk && self.generation >= since
    }
}

/// See [`ServerWord::Doubt`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Doubt {
    /// The shard that asks.
    pub shard: ShardId,
    /// The worker that is gone.
    pub worker: WorkerId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Up to here its steps are applied at this shard.
    pub applied: Sequence,
    /// Pieces that wait; at most [`crate::limits::PUSH_PENDING_MAX`].
    pub waiting: Vec<Sequence>,
}

/// From the coordinator to a server.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum ServerOrder {
    /// The places of all shards that concern this server. A shard that it has and that is not named belongs to others.
    Places {
        /// Counts the changes of the map of shards; an order with a lower number than the last is old.
        number: u64,
        /// Names the run, in checkpoints.
        run: u64,
        /// The checkpoint that the run went on from when it began: whoever loads that one has none of its workers.
        from: Option<u64>,
        /// At most [`crate::limits::PLACES_MAX`].
        places: Vec<Place>,
    },
    /// Make a checkpoint of the cut that these clocks describe.
    Mark(Mark),
    /// This incarnation of a worker is gone, whatever this server knows of it: remove it, and say a [`ServerWord::Doubt`] for every shard
    /// that this server leads. Only where steps are whole.
    Fence {
        /// The worker.
        worker: WorkerId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// What becomes of the pieces that wait for a worker that is gone: those up to this one are applied, the others left.
    Resolve {
        /// The worker.
        worker: WorkerId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The last step that is applied.
        through: Sequence,
    },
    /// I am alive too.
    Heard,
    /// The answer to [`ServerWord::Going`]: you may go.
    Go {
        /// The run cannot go on without this server, for nothing else has what it has: workers are to be told so.
        is_missed: bool,
    },
}

/// Who has a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Place {
    /// The shard.
    pub shard: ShardId,
    /// Rises whenever another server becomes its primary, or the primary goes on without its backup.
    pub generation: Generation,
    /// The server that answers for it.
    pub primary: ServerId,
    /// The server that holds a copy or is being given one.
    pub backup: Option<Backup>,
    /// Where the primary takes the state from if it does not have that of this generation or the one before.
    pub origin: Origin,
}

impl Place {
    /// Whether its primary has to load the state.
    #[must_use]
    pub const fn is_loaded(&self) -> bool {
        matches!(self.origin, Origin::Disk | Origin::Checkpoint { .. })
    }
}

/// See [`Place::backup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Backup {
    /// Which server.
    pub server: ServerId,
    /// Whether it counts: the primary answers nothing before this backup holds it too.
    pub in_step: bool,
}

/// Where a primary's state comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Origin {
    /// It begins without values: the run has just begun.
    Nothing,
    /// It has the state, as primary or as backup.
    Memory,
    /// From its own disk.
    Disk,
    /// From this checkpoint; what came after it is lost.
    Checkpoint {
        /// Its number.
        number: u64,
    },
}

/// See [`ServerOrder::Mark`]. A push belongs to the checkpoint if its clock is below its worker's; nothing of a worker that is not named
/// and has no `rest` does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Mark {
    /// Number of the checkpoint.
    pub number: u64,
    /// The clock at which each worker is cut; at most [`crate::limits::CUTS_MAX`].
    pub cuts: Vec<(WorkerId, Clock)>,
    /// The clock at which all workers are cut that are not named: the marker clock of policies that close clocks together.
    pub rest: Option<Clock>,
}

/// A shard that has moved, for the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Placed {
    /// The shard.
    pub shard: ShardId,
    /// Its generation.
    pub generation: Generation,
    /// The server that answers for it.
    pub server: ServerId,
}
