//! Checkpoints of a simulated run: in memory, with the choice of blocks that real ones are made by.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use slackline_checkpoint::{Array, Saved};
use slackline_core::ids::ShardId;
use slackline_server_core::ControlEvent;
use slackline_server_core::assign::Position;
use slackline_server_core::control::Commit;
use slackline_server_core::shard::{ShardState, StateArray};

use crate::disks::Done;
use crate::hosts::At;
use crate::world::World;

/// One checkpoint.
#[derive(Debug)]
struct Checkpoint {
    number: u64,
    position: Position,
    /// Each shard with the newest saved copy of each of its blocks.
    shards: BTreeMap<ShardId, Arc<ShardState>>,
}

/// Where checkpoints are kept.
#[derive(Debug, Default)]
pub(crate) struct Store {
    kept: VecDeque<Checkpoint>,
    /// Parts whose checkpoints are not committed.
    parts: BTreeMap<(u64, ShardId), Arc<ShardState>>,
    /// Bytes of all parts.
    pub(crate) bytes: u64,
}

/// What of a shard is saved, as its server knows it.
#[derive(Debug, Default)]
pub(crate) struct Saving {
    saved: Saved,
    /// The part that the disk is at: its number, and its blocks (none for all).
    writing: Option<(u64, Option<Vec<u32>>)>,
}

impl Store {
    /// The number of the newest checkpoint.
    fn newest(&self) -> Option<u64> {
        self.kept.back().map(|checkpoint| checkpoint.number)
    }

    /// Where the run stands in the newest checkpoint.
    pub(crate) fn position(&self) -> Option<&Position> {
        self.kept.back().map(|checkpoint| &checkpoint.position)
    }

    /// The state of a shard in a checkpoint.
    pub(crate) fn state(&self, shard: ShardId, number: u64) -> Result<ShardState, String> {
        let checkpoint = self.kept.iter().find(|checkpoint| checkpoint.number == number);
        let state = checkpoint.and_then(|checkpoint| checkpoint.shards.get(&shard));
        let state = state.ok_or_else(|| format!("checkpoint {number} has no state of {shard}"))?;
        Ok(ShardState::clone(state))
    }

    /// Takes a part: of partial ones the newest saved copy of each block.
    fn put(&mut self, number: u64, state: ShardState, blocks: Option<&[u32]>, block: usize) {
        let shard = state.shard;
        let before = self.kept.back().and_then(|checkpoint| checkpoint.shards.get(&shard));
        let state = match (blocks, before) {
            (Some(blocks), Some(before)) => over(before, state, blocks, block),
            _ => state,
        };
        self.parts.insert((number, shard), Arc::new(state));
    }

    fn commit(&mut self, commit: Commit, keep: usize) -> Result<(), String> {
        let Commit { number, parts, position, .. } = commit;
        let mut shards = BTreeMap::new();
        for (shard, _) in parts {
            let part = self
                .parts
                .get(&(number, shard))
                .ok_or_else(|| format!("the part of {shard} is not there"))?;
            shards.insert(shard, part.clone());
        }
        self.parts.retain(|(of, _), _| *of > number);
        self.kept.push_back(Checkpoint { number, position, shards });
        while self.kept.len() > keep {
            self.kept.pop_front();
        }
        Ok(())
    }
}

/// A state in whose arrays only these blocks are new.
fn over(before: &ShardState, new: ShardState, blocks: &[u32], block: usize) -> ShardState {
    let merge = |array: StateArray| {
        let Some(old) = before.array(&array.name).filter(|old| old.len() == array.values.len()) else {
            return array;
        };
        let mut values = Vec::clone(old);
        for start in blocks.iter().map(|chosen| *chosen as usize * block) {
            let end = (start + block).min(values.len());
            values[start..end].copy_from_slice(&array.values[start..end]);
        }
        StateArray { values: Arc::new(values), ..array }
    };
    ShardState { arrays: new.arrays.into_iter().map(merge).collect(), ..new }
}

impl World {
    /// Saves a shard's part of a checkpoint, which takes the server's disk its time.
    pub(crate) fn save(&mut self, at: At, number: u64, state: ShardState) {
        let shard = at.shard;
        let newest = self.store.newest();
        let checkpoint = &self.plan.config().checkpoint;
        let (kind, block) = (checkpoint.kind, u32::try_from(checkpoint.block).unwrap_or(u32::MAX));
        let Some(slot) = self.slot(at) else { return };
        if slot.saving.writing.is_some() {
            let why = "the store is still at the checkpoint before it".to_owned();
            return self.tell(at.server(), ControlEvent::NotSaved { number, shard, why });
        }
        let array = |array: &StateArray| Array { name: array.name.clone(), values: array.values.clone() };
        let arrays: Vec<Array> = state.arrays.iter().map(array).collect();
        let blocks = slot.saving.saved.choose(kind, newest, number, &arrays);
        let keys = self.plan.partition.range(shard).len;
        let held = blocks.as_ref().map_or(keys, |blocks| keys.min(blocks.len() as u64 * u64::from(block)));
        let share = held as f64 / keys.max(1) as f64;
        let values = self.plan.shard_bytes[shard.0 as usize] as f64;
        let bytes = (share * values * arrays.len() as f64) as u64;
        if let Some(slot) = self.slot(at) {
            slot.saving.writing = Some((number, blocks.clone()));
            slot.saving.saved.wrote(kind, block, number, blocks, &arrays);
        }
        self.store.bytes += bytes;
        self.disk(at, bytes, Done::Saved(number, state));
    }

    /// A part is in the store.
    pub(crate) fn is_saved(&mut self, at: At, number: u64, state: ShardState) {
        let block = usize::try_from(self.plan.config().checkpoint.block).unwrap_or(usize::MAX);
        let Some(slot) = self.slot(at) else { return };
        let Some((_, blocks)) = slot.saving.writing.take_if(|(of, _)| *of == number) else { return };
        self.store.put(number, state, blocks.as_deref(), block);
        let event = ControlEvent::Saved { number, shard: at.shard, entry: Vec::new() };
        self.control_event(at.server(), event);
    }

    /// The manifest of a checkpoint whose parts are in the store.
    pub(crate) fn commit(&mut self, server: usize, commit: Commit) {
        let (number, keep) = (commit.number, self.plan.config().checkpoint.keep);
        let event = match self.store.commit(commit, keep) {
            Ok(()) => ControlEvent::Committed { number },
            Err(why) => ControlEvent::NotCommitted { number, why },
        };
        self.tell(server, event);
    }
}
