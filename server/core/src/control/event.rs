//! What can happen to control, and what it asks for.

use std::time::Duration;

use bincode::{Decode, Encode};
use slackline_core::ids::{Clock, Generation, Incarnation, ServerId, SessionId, ShardId, Version, WorkerId};
use slackline_core::role::Role;
use slackline_core::wire::{Doubt, Mark, Place, Refusal, ServerOrder, ServerWord, ToPeer, ToServer};

use super::cluster::MapRecord;
use crate::assign::Position;
use crate::notice::Notice;
use crate::shard::ShardEvent;

/// What can happen to control.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[expect(clippy::large_enum_variant, reason = "an event is made once and moved once; a box would cost more")]
pub enum ControlEvent {
    /// A peer has connected.
    Opened {
        /// Its session.
        session: SessionId,
        /// The role in its certificate.
        role: Role,
        /// Where it connects from.
        address: String,
    },
    /// A peer has sent a message.
    Message {
        /// Its session.
        session: SessionId,
        /// What.
        message: ToServer,
    },
    /// A session is over.
    Closed {
        /// Which.
        session: SessionId,
    },
    /// Bytes that were no message, or a handshake that failed.
    TurnedAway {
        /// Its address.
        address: String,
        /// Why, in words.
        text: String,
        /// Whether it failed in the handshake.
        handshake: bool,
    },
    /// A shard has values now.
    HasValues {
        /// Which.
        shard: ShardId,
    },
    /// A shard is led here from now on.
    Leads {
        /// Which.
        shard: ShardId,
        /// In which generation.
        generation: Generation,
        /// Whether it has values.
        has_values: bool,
        /// The members that its state has.
        members: Vec<(WorkerId, Incarnation)>,
    },
    /// A shard's backup has all that is here.
    InStep {
        /// The shard.
        shard: ShardId,
        /// In which generation.
        generation: Generation,
        /// The backup.
        backup: ServerId,
    },
    /// A shard's backup could not be reached for a lease.
    OutOfReach {
        /// The shard.
        shard: ShardId,
        /// In which generation.
        generation: Generation,
        /// The backup.
        backup: ServerId,
    },
    /// A shard's loaded state is in force.
    Restored {
        /// The shard.
        shard: ShardId,
        /// In which generation.
        generation: Generation,
        /// Updates in its values.
        version: Version,
        /// Its minimum clock, as it was saved.
        clock: Clock,
    },
    /// A shard's state could not be loaded.
    NotRestored {
        /// The shard.
        shard: ShardId,
        /// In which generation.
        generation: Generation,
        /// Why.
        why: String,
    },
    /// A shard says how far the steps of a worker that is gone are applied.
    Doubt(Doubt),
    /// A shard's part of a checkpoint is in the store.
    Saved {
        /// Which checkpoint.
        number: u64,
        /// The shard.
        shard: ShardId,
        /// The part's entry in the manifest.
        entry: Vec<u8>,
    },
    /// A shard's part of a checkpoint will not be in the store.
    NotSaved {
        /// Which checkpoint.
        number: u64,
        /// The shard.
        shard: ShardId,
        /// Why.
        why: String,
    },
    /// A shard had passed the cut of a checkpoint before it heard of it.
    CutMissed {
        /// Which checkpoint.
        number: u64,
        /// The shard.
        shard: ShardId,
    },
    /// Something that the user must know; none when it is over.
    Trouble(Option<String>),
    /// The session with the coordinator is open. Never on the coordinator's own server.
    CoordinatorOpened,
    /// The session with the coordinator is over.
    CoordinatorLost,
    /// The coordinator does not take this server in, and closes the session.
    CoordinatorRefused(Refusal),
    /// The coordinator orders something.
    Ordered(ServerOrder),
    /// The map with this number is stored.
    Persisted {
        /// Its number.
        number: u64,
    },
    /// The manifest of this checkpoint is in the store.
    Committed {
        /// Its number.
        number: u64,
    },
    /// The manifest of this checkpoint could not be written.
    NotCommitted {
        /// Its number.
        number: u64,
        /// Why.
        why: String,
    },
    /// Time has passed.
    Tick,
    /// This server was itself at a standstill (its process was stopped, its machine had no time for it): nobody could be heard.
    Late {
        /// For so long.
        by: Duration,
    },
    /// The process cannot go on: a shard of it has no thread.
    Broken {
        /// Why.
        why: String,
    },
    /// The process was asked to end: first the copies of its shards are to answer for them, so that the run goes on. A second one ends
    /// it at once.
    Leave {
        /// Why.
        reason: String,
    },
    /// So many more were turned away than there was room to say each of: while nothing is kept, nothing is heard.
    TurnedAwayUnheard {
        /// Handshakes that failed, or for which there was no room.
        handshakes: u64,
        /// Peers whose bytes were no message.
        malformed: u64,
    },
}

impl ControlEvent {
    /// Whether it decides nothing: most messages of a training run, and what strangers can do.
    #[must_use]
    pub(super) const fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::TurnedAway { .. }
                | Self::TurnedAwayUnheard { .. }
                | Self::Message {
                    message: ToServer::Pull(_)
                        | ToServer::PushNothing { .. }
                        | ToServer::Status
                        | ToServer::Commit { .. },
                    ..
                }
        )
    }
}

/// What control asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum ControlEffect {
    /// Send a message.
    Send {
        /// To whom.
        session: SessionId,
        /// What.
        message: ToPeer,
    },
    /// Close a session after what was sent.
    Close {
        /// Which.
        session: SessionId,
    },
    /// Tell all shards of this server.
    Shards(ShardEvent),
    /// Tell one shard.
    Shard {
        /// Which.
        shard: ShardId,
        /// What.
        event: ShardEvent,
    },
    /// Tell a shard's host its place, before anything that comes after.
    Place {
        /// The shard.
        shard: ShardId,
        /// Its place; none when it is no business of this server any more.
        place: Option<Place>,
        /// Members of this server, for a primary that has the state in its memory; none for one that loads it.
        members: Vec<(WorkerId, Incarnation, Clock)>,
        /// Whether the shards may serve pulls: the run has begun, and all its workers are known here.
        started: bool,
    },
    /// Send this to the coordinator, over the session that is open; with none it is dropped. Never on the coordinator's own server.
    Coordinator(ServerWord),
    /// Store this map; answered by [`ControlEvent::Persisted`]. Nobody is told of it before.
    Persist(MapRecord),
    /// Write the manifest of a checkpoint; answered by [`ControlEvent::Committed`] or [`ControlEvent::NotCommitted`].
    Commit(Box<Commit>),
    /// Send the status; the shards' rows are to be filled in.
    Status {
        /// To whom.
        session: SessionId,
    },
    /// An evaluation is in the record.
    Evaluated,
    /// For the log.
    Notice(Notice),
    /// The process has nothing more to do.
    End(End),
}

/// A checkpoint whose parts are all in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Commit {
    /// Its number.
    pub number: u64,
    /// The cut.
    pub cut: Mark,
    /// The entries of its parts.
    pub parts: Vec<(ShardId, Vec<u8>)>,
    /// Where the data stand.
    pub position: Position,
}

/// How a server ends.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum End {
    /// The run is complete.
    Complete,
    /// The coordinator or an admin said so, or a signal.
    Stopped(String),
    /// The run has failed.
    Failed(String),
    /// This process cannot be one of the run, which goes on without it: the coordinator says so, or is that of another run.
    Refused(String),
}
