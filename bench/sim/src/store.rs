//! Checkpoints of a simulated run: in memory, with the choice of blocks that real ones are made by.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use slackline_checkpoint::{Array, Saved};
use slackline_core::config::CheckpointKind;
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

/// What a server saves: one part after another. Of each shard one cut at most waits meanwhile, the newest.
#[derive(Debug, Default)]
pub(crate) struct Saver {
    /// What of each shard is saved, as the server knows it.
    saved: BTreeMap<ShardId, Saved>,
    waiting: BTreeMap<ShardId, (u64, ShardState)>,
    writing: Option<Writing>,
}

/// The part that a server's disk is at.
#[derive(Debug)]
struct Writing {
    shard: ShardId,
    number: u64,
    /// None for all.
    blocks: Option<Vec<u32>>,
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

fn arrays_of(state: &ShardState) -> Vec<Array> {
    let array = |array: &StateArray| Array { name: array.name.clone(), values: array.values.clone() };
    state.arrays.iter().map(array).collect()
}

impl World {
    /// Saves a shard's part of a checkpoint, as soon as the server's disk is done with those before it.
    pub(crate) fn save(&mut self, at: At, number: u64, state: ShardState) {
        let shard = at.shard;
        let before = self.servers[at.server()].saver.waiting.insert(shard, (number, state));
        if let Some((number, _)) = before {
            let why = "the store was at the checkpoint before it until the next was begun".to_owned();
            self.tell(at.server(), ControlEvent::NotSaved { number, shard, why });
        }
        self.save_next(at.server());
    }

    /// The next part, if none is being written, takes the server's disk its time.
    fn save_next(&mut self, server: usize) {
        let newest = self.store.newest();
        let (kind, block) = self.checkpoint_kind();
        let saver = &mut self.servers[server].saver;
        if saver.writing.is_some() {
            return;
        }
        let Some((shard, (number, state))) = saver.waiting.pop_first() else { return };
        let blocks = saver.saved.entry(shard).or_default().choose(kind, newest, number, &arrays_of(&state));
        let keys = self.plan.partition.range(shard).len;
        let held = blocks.as_ref().map_or(keys, |blocks| keys.min(blocks.len() as u64 * u64::from(block)));
        let share = held as f64 / keys.max(1) as f64;
        let values = self.plan.shard_bytes[shard.0 as usize] as f64;
        let bytes = (share * values * state.arrays.len() as f64) as u64;
        saver.writing = Some(Writing { shard, number, blocks });
        self.store.bytes += bytes;
        self.disk(At::new(server, shard), bytes, Done::Saved(number, state));
    }

    /// A part is in the store.
    pub(crate) fn is_saved(&mut self, at: At, number: u64, state: ShardState) {
        let (kind, block) = self.checkpoint_kind();
        let saver = &mut self.servers[at.server()].saver;
        let written = saver.writing.take_if(|part| (part.shard, part.number) == (at.shard, number));
        let Some(Writing { blocks, .. }) = written else { return };
        let saved = saver.saved.entry(at.shard).or_default();
        saved.wrote(kind, block, number, blocks.clone(), &arrays_of(&state));
        self.store.put(number, state, blocks.as_deref(), block as usize);
        self.save_next(at.server());
        let event = ControlEvent::Saved { number, shard: at.shard, entry: Vec::new() };
        self.control_event(at.server(), event);
    }

    /// How checkpoints are made, and the keys of a block.
    fn checkpoint_kind(&self) -> (CheckpointKind, u32) {
        let checkpoint = &self.plan.config().checkpoint;
        (checkpoint.kind, u32::try_from(checkpoint.block).unwrap_or(u32::MAX))
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
