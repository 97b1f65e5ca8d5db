//! What is to happen and when: ordered by time, then by the order in which it was decided.

use std::collections::BTreeMap;

use slackline_core::ids::{BatchIndex, Moment, ShardId};
use slackline_server_core::ShardEvent;

use super::network::{Inward, Outward};
use super::sight::PushKey;

/// Something that happens at a moment.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "it is made once and moved twice; a box would cost more")]
pub(crate) enum Happening {
    /// Something reaches the server's end of a connection.
    AtServer { connection: usize, what: Inward },
    /// Something reaches the worker's end of a connection.
    AtWorker { connection: usize, what: Outward },
    /// A shard's owner takes an event from its inbox; a push comes with its true name.
    AtShard { server: usize, boot: u64, shard: ShardId, event: ShardEvent, origin: Option<PushKey> },
    /// A shard has told control that it has values.
    HasValues { server: usize, boot: u64, shard: ShardId },
    /// The clock of a server's loop.
    ServerTick { server: usize, boot: u64 },
    /// The clock of a worker's loop; an older wake is void.
    WorkerTick { process: usize, wake: u64 },
    /// A batch is in memory.
    Loaded { process: usize, batch: BatchIndex },
    /// A gradient is computed.
    Computed { process: usize },
    /// An evaluation is done.
    Measured { process: usize, at_samples: u64 },
    /// The coordinator tells another server that the run is over.
    Stop { server: usize },
    /// A new worker process starts.
    Start,
    /// A server comes back without its state.
    Reboot { server: usize },
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
