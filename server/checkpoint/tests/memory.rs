//! What writing and loading need beside the shard itself: counted by an allocator that notes the most that was held at once. In a process of
//! its own, since all of its threads count.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::{STAMP, manifest};
use slackline_checkpoint::{Array, Part, Stamp, Store};
use slackline_core::ids::{KeyRange, ShardId, Version};

const MIB: usize = 1 << 20;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; what is counted are plain numbers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What `run` returns, and the most MiB that were held in it beyond those that were held before.
async fn beside<T>(run: impl Future<Output = T>) -> (T, usize) {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = run.await;
    (result, PEAK.load(Relaxed).saturating_sub(before).div_ceil(MIB))
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
    let (entry, written) = beside(store.write_part(stamp, 1, &part)).await;
    assert!(written <= 2, "{written} MiB to write 128 MiB");
    let manifest = manifest(stamp, 1, vec![entry.unwrap()]);
    store.commit(&manifest, 1).await.unwrap();
    let half = KeyRange::new(5, keys.len / 2);
    let (loaded, taken) = beside(store.load(&manifest, half)).await;
    let loaded = loaded.unwrap();
    assert_eq!(loaded.arrays[0].values[..], values[half.as_indices()]);
    assert!((64..=64 + 13).contains(&taken), "{taken} MiB to load 64 MiB");
}
