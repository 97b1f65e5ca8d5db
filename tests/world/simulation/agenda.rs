//! What is to happen and when: ordered by time, then by the order in which it was decided.

use std::collections::BTreeMap;
use std::time::Duration;

use slackline_core::ids::{BatchIndex, Moment, Sequence, ShardId};
use slackline_core::wire::Place;
use slackline_server_core::replica::Index;
use slackline_server_core::{ControlEvent, HostEvent, ShardState};

use super::feeds::Moved;
use super::network::{Inward, Outward};
use super::sight::PushKey;

/// Something that happens at a moment.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    /// Something reaches the server's end of a connection.
    AtServer { connection: usize, what: Inward },
    /// Something reaches the worker's end of a connection.
    AtWorker { connection: usize, what: Outward },
    /// A host takes an event from its inbox; a push comes with its true name.
    AtHost { server: usize, boot: u64, shard: ShardId, event: HostEvent, origin: Option<PushKey> },
    /// A host or its shard tells control something.
    Said { server: usize, boot: u64, event: Box<ControlEvent> },
    /// Something moves on a way between two copies.
    Feed { feed: usize, what: Moved },
    /// A disk has a shard's journal up to some record.
    Written { server: usize, boot: u64, shard: ShardId, index: Index, upto: (u64, usize) },
    /// The same, for what the host need not know.
    Synced { server: usize, boot: u64, shard: ShardId, upto: (u64, usize) },
    /// A host's state is fetched.
    Load { server: usize, boot: u64, shard: ShardId, place: Place },
    /// A shard's part of a checkpoint reaches the store.
    Saved { server: usize, boot: u64, number: u64, state: Box<ShardState> },
    /// What the coordinator has heard is on its disk, up to so many events.
    Noted { boot: u64, upto: usize },
    /// The map with this number is on its disk.
    Kept { boot: u64, number: u64 },
    /// A checkpoint's manifest is in the store.
    Sealed { boot: u64, number: u64 },
    /// A server other than the coordinator's looks for the coordinator.
    Report { server: usize, boot: u64 },
    /// A server's process begins.
    Begin { server: usize, boot: u64 },
    /// The clock of a server's loop.
    ServerTick { server: usize, boot: u64 },
    /// The clock of a worker's loop; an older wake is void.
    WorkerTick { process: usize, wake: u64 },
    /// A batch is in memory.
    Loaded { process: usize, batch: BatchIndex },
    /// A shard's part of a gradient is final.
    Part { process: usize, sequence: Sequence, shard: ShardId },
    /// A gradient is computed.
    Computed { process: usize },
    /// An evaluation is done.
    Measured { process: usize, at_samples: u64 },
    /// An observer does something at a server.
    Look { observer: usize, server: usize },
    /// The coordinator tells another server that the run is over.
    Stop { server: usize },
    /// A new worker process starts.
    Start,
    /// A server crashes, or comes back without its memory.
    Reboot { server: usize },
    /// A server freezes for so long, and what it is connected to stays so.
    Freeze { server: usize, length: Duration },
    /// Something goes wrong.
    Mishap,
    /// From here on nothing goes wrong any more.
    Calm,
}

/// All that is to happen.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    due: BTreeMap<(Moment, u64), Happening>,
    number: u64,
}

impl Agenda {
    pub(crate) fn at(&mut self, when: Moment, what: Happening) {
        self.number += 1;
        self.due.insert((when, self.number), what);
    }

    pub(crate) fn pop(&mut self) -> Option<(Moment, Happening)> {
        self.due.pop_first().map(|((when, _), what)| (when, what))
    }
}
