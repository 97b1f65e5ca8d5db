//! What a part of a checkpoint says of its shard beside the arrays that every shard has, and what the coordinator is told of a part.

use std::sync::Arc;

use slackline_checkpoint::{Array, CheckpointError, Loaded, PartEntry, Store};
use slackline_core::ids::{Clock, ShardId};
use slackline_core::limits::PART_ENTRY_BYTES_MAX;
use slackline_server_core::shard::{FormerShard, Joined, ShardState, StateArray};

/// A shard's facts as a part has them: its clock, the facts, and the gradients that wait. Those are as many as there are slow workers, and so
/// not the same at all shards, which the arrays of a checkpoint must be.
type Facts = (u64, Vec<u8>, Vec<(String, Vec<f32>)>);

/// Parts the arrays that every shard has from those that wait, and packs the facts.
pub(super) fn packed(
    clock: Clock,
    facts: Vec<u8>,
    arrays: Vec<StateArray>,
) -> Result<(Vec<Array>, Vec<u8>), String> {
    let (waiting, own): (Vec<_>, Vec<_>) = arrays.into_iter().partition(|array| array.name.contains('.'));
    let own = own.into_iter().map(|StateArray { name, values }| Array { name, values }).collect();
    let waiting = waiting.into_iter().map(|StateArray { name, values }| (name, values.to_vec())).collect();
    let facts: Facts = (clock.0, facts, waiting);
    let facts = slackline_core::wire::encode_state(&facts).map_err(|error| error.to_string())?;
    Ok((own, facts))
}

/// A shard's state out of what was loaded for its keys. `is_same_run` keeps its members, where the shard is the same.
pub(super) fn state_of(shard: ShardId, loaded: Loaded, is_same_run: bool) -> Result<ShardState, String> {
    let Loaded { keys, arrays, sources, .. } = loaded;
    let arrays = arrays.into_iter().map(|Array { name, values }| StateArray { name, values }).collect();
    let mut former = Vec::new();
    for source in sources {
        let unreadable =
            |why: &dyn std::fmt::Display| format!("the facts of {} cannot be read: {why}", source.shard);
        let (clock, facts, waiting): Facts =
            slackline_core::wire::decode_state(&source.facts).map_err(|why| unreadable(&why))?;
        let waiting = waiting.into_iter();
        former.push(FormerShard {
            shard: source.shard,
            keys: source.keys,
            version: source.version,
            clock: Clock(clock),
            facts,
            waiting: waiting.map(|(name, values)| StateArray { name, values: Arc::new(values) }).collect(),
        });
    }
    let joined = ShardState::join((shard, keys), arrays, former, is_same_run);
    let Joined { state, lost } = joined.map_err(|error| error.to_string())?;
    if !lost.is_empty() {
        let names: Vec<_> = lost.iter().map(|(worker, clock)| format!("{worker}'s of {clock}")).collect();
        tracing::warn!(
            shard = shard.0,
            "gradients that waited at the cut were taken in by some of the shards that had the keys of {shard} only, and are \
             left out here: {}",
            names.join(", ")
        );
    }
    Ok(state)
}

/// What the coordinator is told of a part: its entry of the manifest, or, where that is too long for a message, the checksum of the file
/// beside the part that has it.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Told {
    Entry(PartEntry),
    Beside { number: u64, shard: ShardId, checksum: u64 },
}

/// The words for a part.
pub(super) async fn told(store: &Store, entry: PartEntry) -> Result<Vec<u8>, CheckpointError> {
    let (number, shard) = (entry.number, entry.shard);
    let text = |told: &Told| {
        serde_json::to_vec(told).map_err(|error| CheckpointError::Unfit { why: error.to_string() })
    };
    let told = Told::Entry(entry);
    let words = text(&told)?;
    let Told::Entry(entry) = told else { return Ok(words) };
    if words.len() <= PART_ENTRY_BYTES_MAX {
        return Ok(words);
    }
    let checksum = store.write_entry(&entry).await?;
    text(&Told::Beside { number, shard, checksum })
}

/// The entry that the words are of.
pub(super) async fn heard(store: &Store, shard: ShardId, words: &[u8]) -> Result<PartEntry, String> {
    match serde_json::from_slice(words) {
        Ok(Told::Entry(entry)) => Ok(entry),
        Ok(Told::Beside { number, shard, checksum }) => {
            store.entry(number, shard, checksum).await.map_err(|error| error.to_string())
        }
        Err(error) => Err(format!("the entry of {shard}: {error}")),
    }
}
