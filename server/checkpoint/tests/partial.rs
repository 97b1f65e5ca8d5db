//! Checkpoints of chosen blocks: what they hold, what lies beneath them, and what is loaded from both.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::BTreeMap;

use common::{EXPECT, KEYS, STAMP, State, manifest, save};
use proptest::prelude::*;
use slackline_checkpoint::priority::{Changed, Moved};
use slackline_checkpoint::{Blocks, Kind, Manifest, PartEntry, Store};
use slackline_core::ids::{KeyRange, ShardId};
use slackline_core::partition::Partition;

const BLOCK: u32 = 16;

fn shards() -> Vec<(ShardId, KeyRange)> {
    Partition::new(KEYS, 3, 1).shards().collect()
}

/// Writes and commits checkpoint `number` with the blocks that `choose` names for each shard.
async fn save_blocks(
    store: &Store,
    previous: &Manifest,
    kind: Kind,
    state: &State,
    keep: usize,
    mut choose: impl FnMut(usize, KeyRange) -> Vec<u32>,
) -> Manifest {
    let number = previous.number + 1;
    let mut parts: Vec<PartEntry> = Vec::new();
    for (at, (shard, keys)) in shards().into_iter().enumerate() {
        let blocks = Blocks::new(keys, BLOCK, &choose(at, keys));
        parts.push(store.write_part(STAMP, number, &state.part(shard, keys, Some(blocks))).await.unwrap());
    }
    let mut manifest = manifest(STAMP, number, parts);
    manifest.kind = kind;
    manifest.bases = Manifest::bases_after(previous, &manifest.parts);
    assert!(store.commit(&manifest, keep).await.unwrap().left.is_none());
    manifest
}

/// Some keys move, by their distance from a place that wanders.
fn moved(state: &mut State, step: u64) {
    for (key, (value, slot)) in (0_u64..).zip(state.values.iter_mut().zip(&mut state.slots)) {
        let far = (key + KEYS - step * 131 % KEYS) % KEYS;
        if far < 200 {
            *value += (200 - far) as f32;
            *slot -= 1.0;
        }
    }
}

async fn folder() -> (tempfile::TempDir, Store, State, Manifest) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::create(folder.path().to_str().unwrap()).unwrap();
    let state = State::after(0, KEYS);
    let full = save(&store, 1, &state, 3, 2).await;
    (folder, store, state, full)
}

// Qiao et al. 2019: a checkpoint of mixed age restores exactly the newest saved copy of each block.
#[tokio::test]
async fn a_priority_checkpoint_gives_each_block_as_it_was_last_saved() {
    let (folder, store, mut state, mut last) = folder().await;
    let carry = Some(6);
    let mut trackers: Vec<Moved> =
        shards().iter().map(|(_, keys)| Moved::new(&state.values[keys.as_indices()], BLOCK, 1)).collect();
    // The oracle: a copy of the state that takes over a block whenever it is saved.
    let mut oracle = (state.clone(), vec![1_u64; KEYS as usize]);
    for step in 2..30 {
        moved(&mut state, step);
        let kind = Kind::Priority { share: 0.125 };
        last = save_blocks(&store, &last, kind, &state, 2, |at, keys| {
            let values = &state.values[keys.as_indices()];
            let blocks = trackers[at].choose(values, 0.125, carry, step);
            let values = trackers[at].values_in(&blocks, values);
            trackers[at].saved(&blocks, &values, step);
            for run in Blocks::new(keys, BLOCK, &blocks).runs(keys) {
                let range = run.as_indices();
                oracle.0.values[range.clone()].copy_from_slice(&state.values[range.clone()]);
                oracle.0.slots[range.clone()].copy_from_slice(&state.slots[range.clone()]);
                oracle.1[range].fill(step);
            }
            blocks
        })
        .await;
        assert!(last.bases.len() <= 3 * 6, "carry bounds what lies beneath");
        assert_eq!(last.state_hash(), None);
        for keys in [KeyRange::new(0, KEYS), KeyRange::new(333, 250), KeyRange::new(700, 1)] {
            let loaded = store.load(&last, keys).await.unwrap();
            oracle.0.check(&loaded);
            let ages = loaded
                .origins
                .iter()
                .flat_map(|origin| origin.keys.as_indices().map(|key| (key, origin.number)));
            let ages: BTreeMap<_, _> = ages.collect();
            assert_eq!(ages, keys.as_indices().map(|key| (key, oracle.1[key])).collect());
        }
        let resumed = store.resume(&EXPECT).await.unwrap();
        assert_eq!(resumed, last);
    }
    // What neither of the two that are kept names is gone.
    let named: Vec<String> = [store.manifest(28).await.unwrap(), last].iter().flat_map(files_of).collect();
    let mut there = Vec::new();
    for number in std::fs::read_dir(folder.path()).unwrap() {
        for file in std::fs::read_dir(number.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            there.push(
                path.strip_prefix(folder.path().canonicalize().unwrap())
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned(),
            );
        }
    }
    assert!(there.iter().all(|file| named.contains(file) || file.ends_with("manifest.json")), "{there:?}");
    assert_eq!(there.iter().filter(|file| file.ends_with("manifest.json")).count(), 2);
    assert!(!folder.path().join("0000000001").exists());
}

fn files_of(manifest: &Manifest) -> Vec<String> {
    manifest.files().map(|entry| entry.file.clone()).collect()
}

// Sparse tables: few rows change between two checkpoints, and yet what is loaded is the state at the cut.
#[tokio::test]
async fn an_incremental_checkpoint_is_the_exact_state_in_fewer_bytes() {
    let (_folder, store, mut state, mut last) = folder().await;
    let full: u64 = last.parts.iter().map(|part| part.bytes).sum();
    let mut trackers: Vec<Changed> =
        shards().iter().map(|(_, keys)| Changed::new(&state.arrays(*keys), BLOCK, 1)).collect();
    for step in 2..12 {
        moved(&mut state, step);
        last = save_blocks(&store, &last, Kind::Incremental, &state, 1, |at, keys| {
            let blocks = trackers[at].choose(&state.arrays(keys), None, step);
            let prints = trackers[at].prints_of(&blocks, &state.arrays(keys));
            trackers[at].saved(&blocks, &prints, step);
            blocks
        })
        .await;
        let loaded = store.load(&last, KeyRange::new(0, KEYS)).await.unwrap();
        state.check(&loaded);
        assert_eq!(last.state_hash(), Some(state.hash()));
        assert_eq!(loaded.state_hash(), state.hash());
        assert!(last.parts.iter().map(|part| part.bytes).sum::<u64>() < full / 2);
    }
    store.verify(&last).await.unwrap();
}

#[tokio::test]
async fn a_checkpoint_whose_file_beneath_is_lost_or_rotten_is_refused() {
    let (folder, store, state, full) = folder().await;
    let last = save_blocks(&store, &full, Kind::Incremental, &state, 1, |_, _| vec![0, 3]).await;
    assert!(!folder.path().join("0000000001/manifest.json").exists(), "it is one checkpoint no longer");
    let path = folder.path().join(&full.parts[1].file);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() - 100;
    bytes[at] ^= 4;
    std::fs::write(&path, &bytes).unwrap();
    assert!(store.resume(&EXPECT).await.unwrap_err().to_string().contains(path.to_str().unwrap()));
    std::fs::remove_file(&path).unwrap();
    assert!(store.newest(&EXPECT).await.unwrap_err().to_string().contains("is missing"));
    assert!(
        store.load(&last, KeyRange::new(0, 8)).await.is_err(),
        "all members refuse alike, also those that need another file"
    );
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        at in any::<prop::sample::Index>(),
        text in "[{}\\[\\]\":,a-z0-9_ ]{0,120}",
    ) {
        let _ = slackline_checkpoint::parse_part("part", &bytes);
        let mut framed = (text.len() as u64).to_le_bytes().to_vec();
        framed.extend(text.bytes());
        let _ = slackline_checkpoint::parse_part("part", &framed);
        let good = good_part();
        let mut bad = good.to_vec();
        let at = at.index(good.len());
        for (offset, byte) in bytes.iter().take(4).enumerate() {
            if let Some(place) = bad.get_mut(at + offset) {
                *place = *byte;
            }
        }
        let _ = slackline_checkpoint::parse_part("part", &bad);
        prop_assert!(slackline_checkpoint::parse_part("part", &good[..at]).is_err());
    }
}

/// The bytes of a partial part.
fn good_part() -> &'static [u8] {
    static BYTES: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    BYTES.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::create(folder.path().to_str().unwrap()).unwrap();
        let keys = KeyRange::new(0, 90);
        let part = State::after(1, KEYS).part(ShardId(0), keys, Some(Blocks::new(keys, BLOCK, &[1, 2, 5])));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let entry = runtime.block_on(store.write_part(STAMP, 1, &part)).unwrap();
        let bytes = std::fs::read(folder.path().join(entry.file)).unwrap();
        assert_eq!(
            slackline_checkpoint::parse_part("part", &bytes).unwrap().values("values").unwrap().len(),
            42
        );
        bytes
    })
}
