//! Copies of a shard on two servers, or on a server and its disk: the same numbered inputs in the same order.
//!
//! Every event that a shard takes in is an *entry* of its journal, with a number and the moment at which it was taken. The primary hands its
//! entries to the backup (as [`Frame`]s) or to its disk, and lets none of the effects of an entry out before those that count have it:
//! whatever was answered, served or told survives the loss of the primary. (Output commit, Strom and Yemini 1985.) Nothing but the events
//! and their order is copied: the core is deterministic, so the copies are equal bit for bit, which is checked by
//! hash while they go on: every few entries both hash the same slice of what they have, in turns.
//!
//! `host.rs` is the machine of one shard on one server: it leads, follows or has nothing. `places.rs` says how it comes to that,
//! `journal.rs` keeps entries and effects, `feed.rs` knows how far the backup is.

mod feed;
mod host;
mod journal;
mod places;

use std::sync::Arc;

use bincode::{Decode, Encode};
use slackline_core::ids::{Clock, Generation, Incarnation, Moment, ServerId, ShardId, Version, WorkerId};
use slackline_core::wire::Place;

pub use host::{Host, HostRow, HostSettings, Role};

use crate::shard::{ShardEffect, ShardEvent, ShardState};

/// Number of an entry in the journal of a shard, from 1; the same at all its copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Index(pub u64);

/// What a primary gives to its backup, in order, over one stream. A state goes first, then every entry after it.
#[derive(Clone, Debug)]
pub enum Frame {
    /// The state after the entry `index`. The shell cuts it into pieces.
    State {
        /// The last entry in it.
        index: Index,
        /// When the primary made it.
        at: Moment,
        /// The state; its arrays are shared with the shard, which goes on.
        state: Arc<ShardState>,
    },
    /// One entry.
    Entry(Arc<Entry>),
}

/// A state that was kept somewhere, with what the disk has after it.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The last entry in the state.
    pub index: Index,
    /// The moment of the state: the shard's time goes on from here.
    pub at: Moment,
    /// The state.
    pub state: ShardState,
    /// The entries after it, in order.
    pub entries: Vec<Entry>,
}

impl From<ShardState> for Kept {
    /// Of a checkpoint, which says of no moment when it was: its time begins with the last push that waits in it.
    fn from(state: ShardState) -> Self {
        Self { index: Index(0), at: Moment(0), state, entries: Vec::new() }
    }
}

/// One event with its number and moment.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its number.
    pub index: Index,
    /// The moment at which the primary took it.
    pub at: Moment,
    /// What happened.
    pub event: ShardEvent,
}

/// What can happen to a host.
#[derive(Clone, Debug)]
pub enum HostEvent {
    /// Something for the shard; only a primary takes it.
    Shard(ShardEvent),
    /// How things are to be; with the members of this server, for a primary that takes over.
    Place {
        /// The shard's place; none when it is no business of this server any more.
        place: Option<Place>,
        /// Members of this server with their incarnations and clocks.
        members: Vec<(WorkerId, Incarnation, Clock)>,
        /// Whether the run has begun, as this server knows it.
        started: bool,
    },
    /// The state that [`HostEffect::Load`] asked for.
    Loaded {
        /// For which generation it was asked.
        generation: Generation,
        /// The state; or why there is none.
        loaded: Result<Kept, String>,
    },
    /// As a backup: a frame of the primary of this generation. A host that has had no place in this process takes those of any
    /// generation, so the shell passes on only what comes from the primary and in the generation of the last place: a primary that was
    /// replaced must not have its effects confirmed by a server that does not know it yet.
    Frame {
        /// The primary's generation.
        generation: Generation,
        /// The frame.
        frame: Frame,
    },
    /// As a primary: the backup holds everything up to this entry.
    Held {
        /// Which backup.
        backup: ServerId,
        /// In which generation.
        generation: Generation,
        /// The last entry that it holds.
        index: Index,
        /// The hash of a slice of its state after that entry, where the copies are compared.
        hash: Option<u64>,
    },
    /// As a primary: the stream to the backup is open (again), and nothing was sent over it yet.
    FeedOpen {
        /// To whom.
        backup: ServerId,
    },
    /// As a primary: the stream to the backup is gone; what was sent and not held is lost.
    FeedLost {
        /// To whom.
        backup: ServerId,
    },
    /// The disk has everything up to this entry.
    Written {
        /// The last entry.
        index: Index,
    },
    /// Time has passed.
    Tick,
}

/// What a host asks for.
#[derive(Clone, Debug)]
pub enum HostEffect {
    /// An effect of the shard that may leave now.
    Shard(ShardEffect),
    /// Open a stream to the backup; answered by `FeedOpen`, and by `FeedLost` whenever it is gone (the shell then tries again by itself
    /// until the place changes).
    OpenFeed {
        /// To whom.
        backup: ServerId,
        /// The primary's generation.
        generation: Generation,
    },
    /// Close the stream to a former backup.
    CloseFeed,
    /// Send this over the stream.
    Feed(Frame),
    /// As a backup: tell the primary that everything up to this entry is held.
    Hold {
        /// The primary's generation.
        generation: Generation,
        /// The last entry; 0 where there is nothing, and a state is needed.
        index: Index,
        /// The hash of a slice of the state after that entry, where the copies are compared.
        hash: Option<u64>,
    },
    /// Append to the disk's journal; answered by `Written`. A state begins a new journal.
    Write(Frame),
    /// Fetch the state from its origin; answered by `Loaded`.
    Load {
        /// The place that asks for it.
        place: Place,
    },
    /// The backup is in step: the coordinator is to be told.
    InStep {
        /// In which generation.
        generation: Generation,
        /// Which backup.
        backup: ServerId,
    },
    /// The shard is led here from now on; of one that begins without a state, once the disk that counts has that.
    Leads {
        /// In which generation.
        generation: Generation,
        /// Whether it has values.
        has_values: bool,
        /// All members that the shard has: control takes up those that it does not know.
        members: Vec<(WorkerId, Incarnation)>,
    },
    /// The loaded state is in force.
    Restored {
        /// In which generation.
        generation: Generation,
        /// What it is.
        version: Version,
        /// Its minimum clock.
        clock: Clock,
    },
    /// The state could not be loaded.
    NotRestored {
        /// In which generation.
        generation: Generation,
        /// Why.
        why: String,
    },
    /// Two copies that should be equal are not: a fault of the program; the backup is given the state anew.
    Differs {
        /// The shard.
        shard: ShardId,
        /// At which entry.
        index: Index,
    },
}

#[cfg(test)]
mod tests;
