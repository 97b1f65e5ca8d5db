//! The store of checkpoints that all servers see: parts, and manifests that make them whole.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::ids::ShardId;
use slackline_core::wire::Mark;
use slackline_server_core::ShardState;

/// One checkpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checkpoint {
    pub(crate) mark: Mark,
    pub(crate) parts: BTreeMap<ShardId, ShardState>,
    /// Its manifest is there, with the parts that it names.
    pub(crate) named: Option<BTreeSet<ShardId>>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    pub(crate) checkpoints: BTreeMap<u64, Checkpoint>,
}

impl Store {
    /// A shard's part of a checkpoint that is whole, with its mark.
    pub(crate) fn part(&self, number: u64, shard: ShardId) -> Result<(ShardState, Mark), String> {
        let checkpoint =
            self.checkpoints.get(&number).ok_or_else(|| format!("there is no checkpoint {number}"))?;
        if !checkpoint.named.as_ref().is_some_and(|named| named.contains(&shard)) {
            return Err(format!("the manifest of checkpoint {number} is missing or does not name {shard}"));
        }
        let part = checkpoint.parts.get(&shard).cloned();
        let part = part.ok_or_else(|| format!("checkpoint {number} has no part of {shard}"))?;
        Ok((part, checkpoint.mark.clone()))
    }
}
