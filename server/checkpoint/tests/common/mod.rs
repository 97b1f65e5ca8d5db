//! A small model, cut into any number of shards, for the tests of this folder.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::sync::Arc;

use slackline_checkpoint::{
    Array, Blocks, Expect, FORMAT, Kind, Loaded, Manifest, Part, PartEntry, RunId, Stamp, StateHash, Store,
};
use slackline_core::ids::{Clock, KeyRange, ShardId, Version};
use slackline_core::partition::Partition;

/// Values of the model.
pub const KEYS: u64 = 1_000;
pub const STAMP: Stamp = Stamp { run: RunId(0xabc), config_hash: 0xc0, layout_hash: 0x1a, keys: KEYS };
pub const EXPECT: Expect = Expect { run: None, config_hash: Some(0xc0), layout_hash: 0x1a, keys: KEYS };

/// The whole state of a run after some steps: values and one slot.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub values: Vec<f32>,
    pub slots: Vec<f32>,
}

impl State {
    pub fn after(steps: u64, keys: u64) -> Self {
        let value = |key: u64, salt: u64| ((key * 31 + steps * 7 + salt) % 1_009) as f32 / 17.0;
        Self {
            values: (0..keys).map(|key| value(key, 1)).collect(),
            slots: (0..keys).map(|key| value(key, 5)).collect(),
        }
    }

    pub fn arrays(&self, keys: KeyRange) -> Vec<Array> {
        let array = |name: &str, all: &[f32]| Array {
            name: name.into(),
            values: Arc::new(all[keys.as_indices()].to_vec()),
        };
        vec![array("values", &self.values), array("slots", &self.slots)]
    }

    pub fn hash(&self) -> StateHash {
        let mut hash = StateHash::new();
        hash.add("values", 0, &self.values);
        hash.add("slots", 0, &self.slots);
        hash
    }

    pub fn check(&self, loaded: &Loaded) {
        let arrays = self.arrays(loaded.keys);
        assert_eq!(loaded.arrays, arrays);
    }

    pub fn part(&self, shard: ShardId, keys: KeyRange, blocks: Option<Blocks>) -> Part {
        let facts = Arc::new(format!("facts of {shard}").into_bytes());
        Part { shard, keys, version: Version(9), arrays: self.arrays(keys), facts, blocks }
    }
}

pub fn manifest(stamp: Stamp, number: u64, parts: Vec<PartEntry>) -> Manifest {
    Manifest {
        format: FORMAT,
        number,
        stamp,
        kind: Kind::Full,
        seed: 7,
        clock: Clock(number * 10),
        samples_done: number * 640,
        created: 1_800_000_000,
        parts,
        bases: Vec::new(),
        coordinator: serde_json::json!({ "epoch": number, "rate": 0.1 }),
    }
}

/// Writes the parts of a full checkpoint at `servers` servers.
pub async fn write_parts(
    store: &Store,
    stamp: Stamp,
    number: u64,
    state: &State,
    servers: u32,
) -> Vec<PartEntry> {
    let mut parts = Vec::new();
    for (shard, keys) in Partition::new(stamp.keys, servers, 1).shards() {
        parts.push(store.write_part(stamp, number, &state.part(shard, keys, None)).await.unwrap());
    }
    parts
}

/// Writes and commits a full checkpoint.
pub async fn save(store: &Store, number: u64, state: &State, servers: u32, keep: usize) -> Manifest {
    let manifest = manifest(STAMP, number, write_parts(store, STAMP, number, state, servers).await);
    let committed = store.commit(&manifest, keep).await.unwrap();
    assert!(committed.left.is_none());
    manifest
}

/// Loads all keys as `servers` servers would, each its own.
pub async fn load_at(store: &Store, manifest: &Manifest, servers: u32) -> (State, StateHash) {
    let mut state = State { values: Vec::new(), slots: Vec::new() };
    let mut hash = StateHash::new();
    for (_, keys) in Partition::new(manifest.stamp.keys, servers, 1).shards() {
        let loaded = store.load(manifest, keys).await.unwrap();
        hash.merge(loaded.state_hash());
        state.values.extend_from_slice(&loaded.arrays[0].values);
        state.slots.extend_from_slice(&loaded.arrays[1].values);
    }
    (state, hash)
}
