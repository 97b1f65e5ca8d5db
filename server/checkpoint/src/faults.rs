//! What is left after a crash at any moment: every prefix of the operations that writing consists of is replayed, with the worst that a file
//! system may make of what was not synced.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use slackline_core::ids::{Clock, KeyRange, ShardId, Version};

use crate::disk::{Disk, DiskFile, RealDisk};
use crate::error::CheckpointError;
use crate::manifest::{Expect, FORMAT, Kind, Manifest, RunId, Stamp};
use crate::part::{Array, Part};
use crate::store::{Committed, Store};

const STAMP: Stamp = Stamp { run: RunId(1), config_hash: 2, layout_hash: 3, keys: 40 };
const EXPECT: Expect = Expect { run: Some(RunId(1)), config_hash: Some(2), layout_hash: 3, keys: 40 };

/// One operation, with paths below the folder of checkpoints.
#[derive(Clone, Debug)]
enum Step {
    MakeFolder,
    Create(PathBuf),
    Write(PathBuf, Vec<u8>),
    Sync(PathBuf),
    Rename(PathBuf, PathBuf),
    SyncFolder(PathBuf),
    Remove(PathBuf),
    RemoveFolder,
    /// The checkpoint of this number was reported as committed.
    Reported(u64),
}

/// A real disk that writes down what it is asked for, and is full after so many bytes.
#[derive(Clone, Debug)]
struct Recorder {
    root: PathBuf,
    steps: Arc<Mutex<Vec<Step>>>,
    room: Arc<AtomicUsize>,
}

struct RecordedFile {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    disk: Recorder,
}

impl Recorder {
    fn note(&self, step: Step) {
        self.steps.lock().unwrap().push(step);
    }

    fn below(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.root).unwrap().to_owned()
    }
}

impl Disk for Recorder {
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.note(Step::MakeFolder);
        RealDisk.make_folder(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.note(Step::Create(self.below(path)));
        let file = RealDisk.create(path)?;
        Ok(Box::new(RecordedFile { path: self.below(path), file, disk: self.clone() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note(Step::Rename(self.below(from), self.below(to)));
        RealDisk.rename(from, to)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.note(Step::SyncFolder(self.below(path)));
        RealDisk.sync_folder(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.note(Step::Remove(self.below(path)));
        RealDisk.remove(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_folder(path)?;
        self.note(Step::RemoveFolder);
        Ok(())
    }
}

impl Write for RecordedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.disk.room.load(Ordering::Relaxed);
        if room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // In small portions, so that a crash falls between them.
        let some = &bytes[..bytes.len().min(room).min(300)];
        self.disk.room.fetch_sub(some.len(), Ordering::Relaxed);
        self.disk.note(Step::Write(self.path.clone(), some.to_vec()));
        self.file.write(some)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl DiskFile for RecordedFile {
    fn sync(&mut self) -> io::Result<()> {
        self.disk.note(Step::Sync(self.path.clone()));
        self.file.sync()
    }
}

/// What a file system does at a crash to that which was not synced.
#[derive(Clone, Copy, Debug)]
enum Crash {
    /// Everything was written by luck.
    KeepsAll,
    /// Files have only the bytes that were synced, names are as they were last changed.
    LosesBytes,
    /// Names are as they were when their folder was synced; bytes are all there.
    LosesNames,
    /// Both are lost.
    LosesBoth,
}

/// The bytes of a file, and how many of them are safe.
#[derive(Clone, Default)]
struct Inode {
    bytes: Vec<u8>,
    safe: usize,
}

/// A file system in memory, as it is seen and as it is on the disk.
#[derive(Default)]
struct Model {
    files: Vec<Inode>,
    seen: BTreeMap<PathBuf, usize>,
    durable: BTreeMap<PathBuf, usize>,
}

impl Model {
    fn apply(&mut self, step: &Step) {
        match step {
            Step::Create(path) => {
                self.files.push(Inode::default());
                self.seen.insert(path.clone(), self.files.len() - 1);
            }
            Step::Write(path, bytes) => self.files[self.seen[path]].bytes.extend_from_slice(bytes),
            Step::Sync(path) => {
                let file = &mut self.files[self.seen[path]];
                file.safe = file.bytes.len();
            }
            Step::Rename(from, to) => {
                let file = self.seen.remove(from).unwrap();
                self.seen.insert(to.clone(), file);
            }
            Step::SyncFolder(folder) => {
                let inside = |path: &PathBuf| path.parent() == Some(folder.as_path());
                self.durable.retain(|path, _| !inside(path));
                let now = self.seen.iter().filter(|(path, _)| inside(path));
                self.durable.extend(now.map(|(path, file)| (path.clone(), *file)));
            }
            Step::Remove(path) => {
                self.seen.remove(path);
            }
            // Folders are there when a file in them is: an empty one means nothing. That a folder's own name is synced is looked at below.
            Step::MakeFolder | Step::RemoveFolder | Step::Reported(_) => {}
        }
    }

    /// Puts what is left after `crash` into an empty folder.
    fn write_out(&self, crash: Crash, to: &Path) {
        let names = match crash {
            Crash::KeepsAll | Crash::LosesBytes => &self.seen,
            Crash::LosesNames | Crash::LosesBoth => &self.durable,
        };
        for (path, file) in names {
            let file = &self.files[*file];
            let bytes = match crash {
                Crash::KeepsAll | Crash::LosesNames => &file.bytes[..],
                Crash::LosesBytes | Crash::LosesBoth => &file.bytes[..file.safe],
            };
            let path = to.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }
}

fn value(number: u64, key: u64) -> f32 {
    (number * 1_000 + key) as f32
}

async fn save(store: &Store, number: u64, keep: usize) -> Result<Committed, CheckpointError> {
    let mut parts = Vec::new();
    for (shard, start) in [(0, 0), (1, 20)] {
        let keys = KeyRange::new(start, 20);
        let values = Arc::new((start..start + 20).map(|key| value(number, key)).collect());
        let arrays = vec![Array { name: "values".into(), values }];
        let facts = Arc::new(vec![7; 10]);
        let part =
            Part { shard: ShardId(shard), keys, version: Version(number), arrays, facts, blocks: None };
        parts.push(store.write_part(STAMP, number, &part).await?);
    }
    let manifest = Manifest {
        format: FORMAT,
        number,
        stamp: STAMP,
        kind: Kind::Full,
        seed: 1,
        clock: Clock(number),
        samples_done: number,
        created: 0,
        parts,
        bases: Vec::new(),
        coordinator: serde_json::Value::Null,
    };
    store.commit(&manifest, keep).await
}

/// The number of the newest checkpoint, after all of it and of every older one was read and compared.
async fn newest(folder: &Path) -> Option<u64> {
    let store = Store::open(folder.to_str().unwrap()).unwrap();
    let manifest = store.newest(&EXPECT).await.unwrap()?;
    for number in 1..=manifest.number {
        match store.manifest(number).await {
            Ok(there) => store.verify(&there).await.unwrap(),
            Err(error) => assert!(matches!(error, CheckpointError::Absent { .. }), "{error}"),
        }
    }
    let loaded = store.load(&manifest, KeyRange::new(0, 40)).await.unwrap();
    let expected: Vec<f32> = (0..40).map(|key| value(manifest.number, key)).collect();
    assert_eq!(*loaded.arrays[0].values, expected);
    Some(manifest.number)
}

fn recorder(folder: &Path, room: usize) -> (Recorder, Store) {
    let root = folder.canonicalize().unwrap();
    let disk = Recorder { root, steps: Arc::default(), room: Arc::new(AtomicUsize::new(room)) };
    let store = Store::on(folder, Arc::new(disk.clone())).unwrap();
    (disk, store)
}

// tracel-ai/burn issue 5479: saving truncates the last good file first, and a crash leaves none.
#[tokio::test]
async fn a_crash_at_any_moment_leaves_the_last_checkpoint_that_was_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, store) = recorder(folder.path(), usize::MAX);
    for number in 1..=4 {
        save(&store, number, 2).await.unwrap();
        disk.note(Step::Reported(number));
    }
    let steps = disk.steps.lock().unwrap().clone();
    let mut model = Model::default();
    let mut reported = None;
    for (done, step) in steps.iter().enumerate() {
        model.apply(step);
        if let Step::Reported(number) = step {
            reported = Some(*number);
        }
        for crash in [Crash::KeepsAll, Crash::LosesBytes, Crash::LosesNames, Crash::LosesBoth] {
            let left = tempfile::tempdir().unwrap();
            model.write_out(crash, left.path());
            let found = newest(left.path()).await;
            let next = reported.map_or(1, |number| number + 1);
            assert!(
                found == reported || found == Some(next),
                "{done} steps, {crash:?}: {found:?} after {reported:?}"
            );
        }
    }
    assert_eq!(reported, Some(4));
}

#[tokio::test]
async fn the_name_of_a_new_folder_is_synced_before_a_file_in_it_counts() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, store) = recorder(folder.path(), usize::MAX);
    save(&store, 1, 2).await.unwrap();
    let steps = disk.steps.lock().unwrap().clone();
    let mut safe = false;
    for (before, step) in steps.iter().zip(&steps[1..]) {
        safe |= matches!((before, step), (Step::MakeFolder, Step::SyncFolder(root)) if root.as_os_str().is_empty());
        assert!(safe || !matches!(step, Step::Create(_)));
    }
    assert!(safe);
}

#[tokio::test]
async fn after_a_crash_the_run_goes_on_and_what_was_left_behind_goes() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, store) = recorder(folder.path(), usize::MAX);
    for number in 1..=2 {
        save(&store, number, 1).await.unwrap();
    }
    let steps = disk.steps.lock().unwrap().clone();
    let mut model = Model::default();
    for step in &steps {
        model.apply(step);
        let left = tempfile::tempdir().unwrap();
        model.write_out(Crash::LosesBytes, left.path());
        let store = Store::open(left.path().to_str().unwrap()).unwrap();
        let number = store.next_number().await.unwrap();
        assert!(save(&store, number, 1).await.unwrap().left.is_none());
        assert_eq!(newest(left.path()).await, Some(number));
        let names: Vec<_> =
            fs::read_dir(left.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [format!("{number:010}").as_str()]);
        assert_eq!(fs::read_dir(left.path().join(&names[0])).unwrap().count(), 3);
    }
}

#[tokio::test]
async fn a_disk_that_fills_up_at_any_byte_costs_the_new_checkpoint_only() {
    for room in (0..6_000).step_by(250) {
        let folder = tempfile::tempdir().unwrap();
        let (disk, store) = recorder(folder.path(), usize::MAX);
        save(&store, 1, 1).await.unwrap();
        disk.room.store(room, Ordering::Relaxed);
        match save(&store, 2, 1).await {
            Ok(committed) => {
                assert!(committed.left.is_none());
                assert_eq!(newest(folder.path()).await, Some(2));
            }
            Err(error) => {
                assert!(error.is_full_disk() && error.to_string().contains("0000000002"), "{error}");
                assert_eq!(newest(folder.path()).await, Some(1));
                let drafts = fs::read_dir(folder.path().join("0000000002")).unwrap();
                let unfinished = drafts.filter(|entry| {
                    entry.as_ref().unwrap().file_name().to_str().unwrap().ends_with("unfinished")
                });
                assert_eq!(unfinished.count(), 0, "the draft makes room");
            }
        }
    }
}
