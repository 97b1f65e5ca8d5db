//! A shard's state out of a checkpoint, whose shards can have been others.
//!
//! A cut is one and the same for all shards, so they know the same clocks. Where the run is a new one all its workers are new: their windows
//! and clocks go with them, and the table begins at the cut. What waited for its clock (collected gradients) stays where all shards that had
//! some of the keys kept the same pushes; otherwise some of them have applied it, and it is given up by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use slackline_core::consistency::Memory;
use slackline_core::ids::{Clock, Incarnation, KeyRange, Moment, Sequence, ShardId, Version, WorkerId};
use slackline_core::wire;

use super::{FORMAT, Kept, StateError};
use crate::shard::{ShardState, StateArray};

/// A shard that had some of the keys, as it was at the cut.
#[derive(Clone, Debug)]
pub struct FormerShard {
    /// Which.
    pub shard: ShardId,
    /// All of its keys.
    pub keys: KeyRange,
    /// Updates in its values.
    pub version: Version,
    /// Its minimum clock.
    pub clock: Clock,
    /// Its facts, as [`ShardState::facts`] had them.
    pub facts: Vec<u8>,
    /// Its gradients that wait, `collected.N`, each with a value for each of its keys.
    pub waiting: Vec<StateArray>,
}

/// A state that was put together.
#[derive(Clone, Debug)]
pub struct Joined {
    /// The state.
    pub state: ShardState,
    /// Pushes that waited for their clock, and that not all former shards kept: they are in no state.
    pub lost: Vec<(WorkerId, Clock)>,
}

/// Gradients that wait, and pushes that are lost.
type Waiting = (Vec<StateArray>, Vec<(WorkerId, Clock)>);

/// What a push is known by.
type Name = (Clock, WorkerId, Incarnation, Sequence);

impl ShardState {
    /// The state of `shard` with `keys` out of a checkpoint: `arrays` are the values, slots and so on of these keys, `former` the shards that
    /// had them, by their first key. Members stay where the run goes on (`is_same_run`) and the one former shard is the same.
    ///
    /// # Errors
    /// [`StateError`], where facts cannot be read, or nobody had the keys.
    pub fn join(
        (shard, keys): (ShardId, KeyRange),
        mut arrays: Vec<StateArray>,
        former: Vec<FormerShard>,
        is_same_run: bool,
    ) -> Result<Joined, StateError> {
        let mut all = Vec::new();
        for part in former {
            let kept: Kept =
                wire::decode_state(&part.facts).map_err(|why| StateError::Unreadable { shard, why })?;
            if kept.format != FORMAT {
                return Err(StateError::Format { shard, theirs: kept.format });
            }
            all.push((part, kept));
        }
        let what = "no shard of the checkpoint has its keys";
        let (first, _) = all.first().ok_or(StateError::Contradiction { shard, what })?;
        let is_whole = all.len() == 1 && first.keys == keys;
        let stays = is_whole && is_same_run && first.shard == shard;
        let (waiting, mut lost) = waiting(shard, keys, &all)?;
        let version = all.iter().map(|(part, _)| part.version).max().unwrap_or_default();
        let mut clock = first.clock;
        let mut others = all.into_iter().map(|(_, kept)| kept);
        let Some(mut kept) = others.next() else {
            return Err(StateError::Contradiction { shard, what });
        };
        for other in others {
            kept.take_furthest(&other);
        }
        // What a moment meant is gone with the process that it was of.
        kept.forget_moments();
        if !stays {
            kept.forget_workers();
            clock = kept.open;
        }
        if lost.is_empty() {
            arrays.extend(waiting);
        } else {
            kept.collected = Vec::new();
        }
        lost.sort_unstable();
        lost.dedup();
        let state = Self { shard, keys, version, clock, facts: kept.encode(), arrays };
        Ok(Joined { state, lost })
    }
}

/// The gradients that wait, cut to the keys; and those that not all have, in which case none is of use: their numbers would be others.
fn waiting(shard: ShardId, keys: KeyRange, all: &[(FormerShard, Kept)]) -> Result<Waiting, StateError> {
    let names: Vec<Vec<Name>> = all.iter().map(|(_, kept)| kept.collected_names().collect()).collect();
    let is_same = names.windows(2).all(|pair| pair[0] == pair[1]);
    if !is_same {
        let lost = names.into_iter().flatten().map(|(clock, worker, ..)| (worker, clock));
        return Ok((Vec::new(), lost.collect()));
    }
    let count = names.first().map_or(0, Vec::len);
    let mut joined = Vec::new();
    for number in 0..count {
        let name = format!("collected.{number}");
        let mut values = vec![0.0; keys.len as usize];
        for (part, _) in all {
            let found = part.waiting.iter().find(|array| array.name == name);
            let Some(found) = found.filter(|array| array.values.len() as u64 == part.keys.len) else {
                return Err(StateError::Array { shard, name });
            };
            let (start, end) = (keys.start.max(part.keys.start), keys.end().min(part.keys.end()));
            if start < end {
                let from = (start - part.keys.start) as usize..(end - part.keys.start) as usize;
                let to = (start - keys.start) as usize..(end - keys.start) as usize;
                values[to].copy_from_slice(&found.values[from]);
            }
        }
        joined.push(StateArray { name, values: Arc::new(values) });
    }
    Ok((joined, Vec::new()))
}

/// A policy's memory without its workers and its moments.
fn without_workers(memory: &Memory) -> Memory {
    match without_moments(memory) {
        Memory::Paces(_) => Memory::Paces(Vec::new()),
        memory => memory,
    }
}

/// A policy's memory with every moment at the beginning.
fn without_moments(memory: &Memory) -> Memory {
    match memory {
        Memory::Nothing => Memory::Nothing,
        Memory::Paces(paces) => {
            let mut paces = paces.clone();
            paces.iter_mut().for_each(|(_, pace)| pace.last = None);
            Memory::Paces(paces)
        }
        Memory::Rounds { round, usual_ns } => {
            Memory::Rounds { round: round.map(|(clock, _)| (clock, Moment(0))), usual_ns: *usual_ns }
        }
    }
}

impl Kept {
    fn collected_names(&self) -> impl Iterator<Item = Name> + '_ {
        self.collected.iter().map(|(clock, kept)| {
            let facts = &kept.facts;
            (*clock, facts.worker, facts.incarnation, facts.sequence)
        })
    }

    /// Shards that cut at one clock can have come to it by another number of updates.
    fn take_furthest(&mut self, other: &Self) {
        self.open = self.open.max(other.open);
        self.batch_count = self.batch_count.max(other.batch_count);
        self.furthest = self.furthest.max(other.furthest);
    }

    fn forget_moments(&mut self) {
        self.collected_at = Moment(0);
        self.collected.iter_mut().for_each(|(_, kept)| kept.since = Moment(0));
        self.memory = without_moments(&self.memory);
        self.guarded = BTreeMap::new();
    }

    fn forget_workers(&mut self) {
        self.rows = Vec::new();
        self.members = Vec::new();
        self.doubts = Vec::new();
        (self.gone, self.departed) = (BTreeMap::new(), BTreeMap::new());
        (self.started, self.is_behind) = (false, false);
        self.memory = without_workers(&self.memory);
    }
}

#[cfg(test)]
mod tests;
