//! What the threads of the shards, of their journals and of the saver tell the control loop.

use slackline_core::ids::{Generation, ServerId, ShardId};
use slackline_core::wire::Doubt;
use slackline_server_core::replica::HostEffect;

/// One word; few are said, each once, so that their queue needs no bound.
#[derive(Clone, Debug)]
pub(crate) enum Word {
    /// The shard has values now.
    HasValues(ShardId),
    /// The thread is at its end: nobody will answer for the shard any more.
    Ended(ShardId),
    /// What the host of a shard has to tell the coordinator, or control.
    Host(ShardId, HostEffect),
    /// A backup could not be reached for a lease.
    OutOfReach { shard: ShardId, generation: Generation, backup: ServerId },
    /// How far the steps of a worker that is gone are applied.
    Doubt(Doubt),
    /// A shard's part of a checkpoint is in the store, with its entry of the manifest.
    Saved { shard: ShardId, number: u64, entry: Vec<u8> },
    /// A shard has no part in a checkpoint.
    NotSaved { shard: ShardId, number: u64, why: String },
    /// A shard had passed the cut before it heard of it.
    CutMissed { shard: ShardId, number: u64 },
    /// The disk of a shard's journal takes nothing, in words; none when it does again.
    Trouble(ShardId, Option<String>),
    /// The same for the store of checkpoints.
    StoreTrouble(Option<String>),
    /// The manifest of a checkpoint is in the store, or why it is not.
    Committed { number: u64, outcome: Result<(), String> },
}
