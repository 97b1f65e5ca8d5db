//! What a part of a checkpoint says of its shard beside the arrays that every shard has, and what the coordinator is told of a part.

use std::sync::Arc;

use slackline_checkpoint::{Array, CheckpointError, Loaded, PartEntry, Store};
use slackline_core::ids::{Clock, ShardId};
use slackline_core::limits::PART_ENTRY_BYTES_MAX;
use slackline_server_core::shard::{FormerShard, Joined, ShardState, StateArray};

/// Before the gradients that wait: the shard's clock, its facts, and the name and length of each.
type Head = (u64, Vec<u8>, Vec<(String, u64)>);

/// Parts the arrays that every shard has from the gradients that wait, and packs those with the facts: they are as many as there are slow
/// workers, and so not the same at all shards, which the arrays of a checkpoint must be.
///
/// ```text
/// length of the head (u64, little endian) | head (bincode) | values of all that wait, one after another (f32, little endian)
/// ```
pub(super) fn packed(
    clock: Clock,
    facts: Vec<u8>,
    arrays: Vec<StateArray>,
) -> Result<(Vec<Array>, Vec<u8>), String> {
    let (waiting, own): (Vec<_>, Vec<_>) = arrays.into_iter().partition(|array| array.name.contains('.'));
    let own = own.into_iter().map(|StateArray { name, values }| Array { name, values }).collect();
    let lengths = waiting.iter().map(|array| (array.name.clone(), array.values.len() as u64)).collect();
    let head: Head = (clock.0, facts, lengths);
    let head = slackline_core::wire::encode_state(&head).map_err(|error| error.to_string())?;
    let values: usize = waiting.iter().map(|array| array.values.len()).sum();
    let mut packed = Vec::with_capacity(LENGTH + head.len() + values * size_of::<f32>());
    packed.extend_from_slice(&(head.len() as u64).to_le_bytes());
    packed.extend_from_slice(&head);
    waiting.iter().for_each(|array| packed.extend_from_slice(bytemuck::cast_slice(&array.values)));
    Ok((own, packed))
}

/// Bytes of the length of the head.
const LENGTH: usize = size_of::<u64>();

/// Facts that were packed: the clock, the facts, the gradients that wait.
fn unpacked(bytes: &[u8]) -> Result<(Clock, Vec<u8>, Vec<StateArray>), String> {
    let torn = || "they are shorter than they say".to_owned();
    let (length, rest) = bytes.split_first_chunk::<LENGTH>().ok_or_else(torn)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| torn())?;
    let (head, mut rest) = rest.split_at_checked(length).ok_or_else(torn)?;
    let (clock, facts, lengths): Head =
        slackline_core::wire::decode_state(head).map_err(|error| error.to_string())?;
    let mut waiting = Vec::new();
    for (name, values) in lengths {
        let bytes = usize::try_from(values).ok().and_then(|values| values.checked_mul(size_of::<f32>()));
        let (values, others) = bytes.and_then(|bytes| rest.split_at_checked(bytes)).ok_or_else(torn)?;
        // Not by a cast: they lie wherever the head ends.
        let values = values.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
        waiting.push(StateArray { name, values: Arc::new(values) });
        rest = others;
    }
    if !rest.is_empty() {
        return Err(format!("{} bytes of them belong to nothing", rest.len()));
    }
    Ok((Clock(clock), facts, waiting))
}

/// A shard's state out of what was loaded for its keys. `is_same_run` keeps its members, where the shard is the same.
pub(super) fn state_of(shard: ShardId, loaded: Loaded, is_same_run: bool) -> Result<ShardState, String> {
    let Loaded { keys, arrays, sources, .. } = loaded;
    let arrays = arrays.into_iter().map(|Array { name, values }| StateArray { name, values }).collect();
    let mut former = Vec::new();
    for source in sources {
        let (clock, facts, waiting) = unpacked(&source.facts)
            .map_err(|why| format!("the facts of {} cannot be read: {why}", source.shard))?;
        former.push(FormerShard {
            shard: source.shard,
            keys: source.keys,
            version: source.version,
            clock,
            facts,
            waiting,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn array(name: &str, values: &[f32]) -> StateArray {
        StateArray { name: name.to_owned(), values: Arc::new(values.to_vec()) }
    }

    #[test]
    fn gradients_that_wait_come_back_with_the_facts_and_no_damage_is_taken_for_them() {
        let arrays = vec![
            array("values", &[1.0, 2.0]),
            array("collected.0", &[3.0]),
            array("collected.1", &[4.0, 5.0]),
        ];
        let (own, bytes) = packed(Clock(7), vec![1, 2, 3], arrays.clone()).unwrap();
        assert_eq!(own.len(), 1);
        let (clock, facts, waiting) = unpacked(&bytes).unwrap();
        assert_eq!((clock, facts), (Clock(7), vec![1, 2, 3]));
        assert_eq!(waiting, arrays[1..]);
        for cut in 0..bytes.len() {
            assert!(unpacked(&bytes[..cut]).is_err(), "{cut} bytes of {}", bytes.len());
        }
        assert!(unpacked(&[&bytes[..], &[0]].concat()).is_err());
        assert!(unpacked(&[0xff; 64]).is_err());
    }
}
