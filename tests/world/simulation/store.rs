//! The store of checkpoints that all servers see: parts, and manifests that make them whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slackline_core::ids::{Incarnation, KeyRange, ShardId};
use slackline_core::wire::Mark;
use slackline_server_core::ShardState;
use slackline_server_core::assign::Position;
use slackline_server_core::shard::{FormerShard, StateArray};

/// One checkpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checkpoint {
    pub(crate) mark: Mark,
    /// Where the data stand.
    pub(crate) position: Position,
    pub(crate) parts: BTreeMap<ShardId, ShardState>,
    /// Its manifest is there, with the parts that it names.
    pub(crate) named: Option<BTreeSet<ShardId>>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    pub(crate) checkpoints: BTreeMap<u64, Checkpoint>,
}

/// What is in a checkpoint: pushes below the mark, of incarnations up to one.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) mark: Mark,
    pub(crate) upto: Incarnation,
}

/// A shard's state out of a checkpoint.
pub(crate) struct Part {
    pub(crate) state: ShardState,
    pub(crate) cut: Cut,
    /// Gradients that waited are given up, since not all shards that had the keys kept the same.
    pub(crate) is_lossy: bool,
}

impl Store {
    /// The state of a shard with these keys out of a checkpoint that is whole, whichever shards had them, as a server reads it: its members
    /// stay where they are of the same run.
    pub(crate) fn part(
        &self,
        number: u64,
        (shard, keys): (ShardId, KeyRange),
        is_same_run: bool,
    ) -> Result<Part, String> {
        let checkpoint =
            self.checkpoints.get(&number).ok_or_else(|| format!("there is no checkpoint {number}"))?;
        let named =
            checkpoint.named.as_ref().ok_or_else(|| format!("checkpoint {number} has no manifest"))?;
        let has_some = |part: &&ShardState| overlap(part.keys, keys).len > 0;
        let parts = checkpoint.parts.iter().filter(|(of, _)| named.contains(of)).map(|(_, part)| part);
        let mut parts: Vec<&ShardState> = parts.filter(has_some).collect();
        parts.sort_by_key(|part| part.keys.start);
        if parts.iter().map(|part| overlap(part.keys, keys).len).sum::<u64>() != keys.len {
            return Err(format!(
                "the parts that the manifest of checkpoint {number} names do not have all keys of {shard}"
            ));
        }
        let of_keys = |array: &&StateArray| !array.name.contains('.');
        let arrays = parts.first().into_iter().flat_map(|part| part.arrays.iter().filter(of_keys));
        let arrays = arrays.map(|array| joined(&array.name, &parts, keys)).collect::<Result<_, _>>()?;
        let former = |part: &&ShardState| FormerShard {
            shard: part.shard,
            keys: part.keys,
            version: part.version,
            clock: part.clock,
            facts: part.facts.clone(),
            waiting: part.arrays.iter().filter(|array| !of_keys(array)).cloned().collect(),
        };
        let former = parts.iter().map(former).collect();
        let joined = ShardState::join((shard, keys), arrays, former, is_same_run);
        let joined = joined.map_err(|error| error.to_string())?;
        let cut = Cut { mark: checkpoint.mark.clone(), upto: checkpoint.position.incarnation };
        Ok(Part { state: joined.state, cut, is_lossy: !joined.lost.is_empty() })
    }
}

fn overlap(left: KeyRange, right: KeyRange) -> KeyRange {
    let start = left.start.max(right.start);
    KeyRange::new(start, left.end().min(right.end()).saturating_sub(start))
}

/// One array over these keys, out of the parts that have them.
fn joined(name: &str, parts: &[&ShardState], keys: KeyRange) -> Result<StateArray, String> {
    let mut values = Vec::with_capacity(keys.len as usize);
    for part in parts {
        let array = part.array(name).ok_or_else(|| format!("the part of {} has no {name}", part.shard))?;
        let common = overlap(part.keys, keys);
        let from = (common.start - part.keys.start) as usize;
        values.extend_from_slice(&array[from..from + common.len as usize]);
    }
    Ok(StateArray { name: name.to_owned(), values: Arc::new(values) })
}
