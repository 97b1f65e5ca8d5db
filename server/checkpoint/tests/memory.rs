//! What writing and loading need beside the shard itself. In a process of its own, since it is the process that is measured.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::sync::Arc;

use common::{STAMP, manifest};
use slackline_checkpoint::{Array, Part, Stamp, Store};
use slackline_core::ids::{KeyRange, ShardId, Version};

/// The most memory that this process ever held, in MiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[tokio::test]
async fn a_shard_is_written_without_a_second_copy_of_it() {
    let keys = KeyRange::new(0, 32 << 20);
    let stamp = Stamp { keys: keys.len, ..STAMP };
    let folder = tempfile::tempdir().unwrap();
    let store = Store::create(folder.path().to_str().unwrap()).unwrap();
    let values = Arc::new((0..keys.len).map(|key| key as f32).collect());
    let arrays = vec![Array { name: "values".into(), values: Arc::clone(&values) }];
    let facts = Arc::new(Vec::new());
    let part = Part { shard: ShardId(0), keys, version: Version(1), arrays, facts, blocks: None };
    let before = peak();
    let entry = store.write_part(stamp, 1, &part).await.unwrap();
    let written = peak();
    assert!(written - before < 12, "{before} MiB before, {written} MiB after");
    let manifest = manifest(stamp, 1, vec![entry]);
    store.commit(&manifest, 1).await.unwrap();
    let half = KeyRange::new(5, keys.len / 2);
    let loaded = store.load(&manifest, half).await.unwrap();
    assert_eq!(loaded.arrays[0].values[..], values[half.as_indices()]);
    let after = peak();
    assert!(after - written < 64 + 24, "{written} MiB before, {after} MiB after 64 MiB were loaded");
}
