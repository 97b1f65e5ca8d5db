//! The journal of a shard on a disk that is slow, full or torn.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use slackline_core::ids::{Clock, KeyRange, Moment, ServerId, ShardId, Version, WorkerId};
use slackline_server_core::ShardEvent;
use slackline_server_core::replica::Entry;
use slackline_server_core::shard::{ShardState, StateArray};

use super::*;

const SHARD: ShardId = ShardId(3);
const KEYS: KeyRange = KeyRange::new(50, 1000);

fn opening() -> Opening {
    Opening { shard: SHARD, primary: ServerId(1), generation: Generation(2), config_hash: 77 }
}

fn state(index: u64) -> Frame {
    let values = Arc::new(vec![index as f32; KEYS.len as usize]);
    let arrays = vec![StateArray { name: "values".to_owned(), values }];
    let facts = index.to_le_bytes().to_vec();
    let state =
        ShardState { shard: SHARD, keys: KEYS, version: Version(index), clock: Clock(0), facts, arrays };
    Frame::State { index: Index(index), at: Moment(index), state: Arc::new(state) }
}

fn entry(index: u64) -> Frame {
    let event = match index % 2 {
        0 => ShardEvent::Finish { worker: WorkerId(index as u32) },
        _ => ShardEvent::Initialize(vec![index as f32; KEYS.len as usize]),
    };
    Frame::Entry(Arc::new(Entry { index: Index(index), at: Moment(index), event }))
}

/// A journal with what it tells.
struct Kept {
    journal: Journal,
    notes: mpsc::Receiver<Note>,
    words: mpsc::UnboundedReceiver<Word>,
}

fn journal(folder: &Path, disk: Arc<dyn Disk>) -> Kept {
    let (events, notes) = mpsc::channel(64);
    let (word_sender, words) = mpsc::unbounded_channel();
    let journal = Journal::start(folder.to_owned(), opening(), disk, events, word_sender).unwrap();
    Kept { journal, notes, words }
}

impl Kept {
    /// Waits until everything up to `index` is written.
    fn written(&mut self, index: u64) {
        loop {
            match self.notes.blocking_recv().unwrap() {
                Note::Host(HostEvent::Written { index: Index(written) }) if written >= index => return,
                Note::Host(HostEvent::Written { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

fn files(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn loaded(folder: &Path) -> Vec<u64> {
    let (_, kept) = load(folder, SHARD, KEYS).unwrap();
    let numbers = std::iter::once(kept.index.0).chain(kept.entries.iter().map(|entry| entry.index.0));
    numbers.collect()
}

fn written(folder: &Path, entries: std::ops::RangeInclusive<u64>) {
    let mut kept = journal(folder, Arc::new(Real));
    kept.journal.write(state(entries.start() - 1));
    kept.written(entries.start() - 1);
    for index in entries.clone() {
        kept.journal.write(entry(index));
        // Each in a batch of its own, so that each says of those before it that they are durable.
        kept.written(index);
    }
}

#[test]
fn what_lies_there_from_an_earlier_term_is_never_of_a_later_one() {
    // A server that led, was replaced and leads again: killed before its new state is on the disk, it has the one of before.
    let folder = tempfile::tempdir().unwrap();
    let mut kept = journal(folder.path(), Arc::new(Real));
    kept.journal.write(state(7));
    kept.written(7);
    kept.journal.begin(Generation(6));
    drop(kept);
    let before = find(folder.path()).unwrap()[&SHARD];
    assert_eq!(before.opening, opening());
    // With its state it is of the later term; what was being written when a process ended is removed.
    fs::write(folder.path().join("shard-00009-0000000009.unfinished"), "half").unwrap();
    let mut kept = journal(folder.path(), Arc::new(Real));
    kept.journal.begin(Generation(6));
    kept.journal.write(state(9));
    kept.written(9);
    drop(kept);
    let after = find(folder.path()).unwrap()[&SHARD];
    assert_eq!(after.opening, Opening { generation: Generation(6), ..opening() });
    assert_eq!(files(folder.path()).len(), 1);
}

#[test]
fn a_state_and_the_entries_after_it_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut kept = journal(folder.path(), Arc::new(Real));
    kept.journal.write(state(7));
    for index in 8..200 {
        kept.journal.write(entry(index));
    }
    kept.journal.term(Generation(5));
    kept.journal.write(entry(200));
    kept.written(200);
    drop(kept);
    let (generation, kept) = load(folder.path(), SHARD, KEYS).unwrap();
    let Frame::State { at, .. } = state(7) else { unreachable!() };
    assert_eq!((kept.index, kept.at, generation), (Index(7), at, Generation(5)));
    assert_eq!(kept.state.facts, 7_u64.to_le_bytes());
    assert_eq!(kept.entries.len(), 193);
    for (index, entry_back) in (8..).zip(&kept.entries) {
        let Frame::Entry(sent) = entry(index) else { unreachable!() };
        assert_eq!((entry_back.index, entry_back.at, &entry_back.event), (sent.index, sent.at, &sent.event));
    }
    let found = find(folder.path()).unwrap();
    assert_eq!(found[&SHARD].index, Index(200));
    assert_eq!(found[&SHARD].opening, Opening { generation: Generation(5), ..opening() });
}

#[test]
fn a_new_state_takes_the_place_of_the_journal_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut kept = journal(folder.path(), Arc::new(Real));
    for frame in [state(1), entry(2), state(2), entry(3)] {
        kept.journal.write(frame);
    }
    kept.written(3);
    assert_eq!(files(folder.path()), BTreeSet::from(["shard-00003-0000000001.journal".to_owned()]));
    drop(kept);
    assert_eq!(loaded(folder.path()), [2, 3]);
    // Another process goes on with the next number.
    written(folder.path(), 4..=4);
    assert_eq!(files(folder.path()), BTreeSet::from(["shard-00003-0000000002.journal".to_owned()]));
    assert_eq!(loaded(folder.path()), [3, 4]);
}

#[test]
fn a_torn_end_is_where_the_journal_ends_wherever_it_is_torn() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 1..=3);
    let path = folder.path().join("shard-00003-0000000000.journal");
    let whole = fs::read(&path).unwrap();
    let last = FRONT_BYTES + 4 * KEYS.len as usize;
    for cut in (1..last).step_by(97) {
        fs::write(&path, &whole[..whole.len() - cut]).unwrap();
        assert_eq!(loaded(folder.path()), [0, 1, 2], "{cut} bytes are missing");
    }
    // A page of the last frame that has never reached the disk.
    let mut holed = whole.clone();
    let length = holed.len();
    holed[length - 2000..length - 1000].fill(0);
    fs::write(&path, &holed).unwrap();
    assert_eq!(loaded(folder.path()), [0, 1, 2]);
}

#[test]
fn damage_before_the_end_is_named_with_its_file() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 1..=5);
    let path = folder.path().join("shard-00003-0000000000.journal");
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len() - 3 * 4 * KEYS.len as usize).step_by(501) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        let error = load(folder.path(), SHARD, KEYS).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, JournalError::Damaged { .. }), "byte {at}: {text}");
        assert!(text.contains("shard-00003-0000000000.journal"), "{text}");
        assert!(find(folder.path()).is_err());
    }
}

#[test]
fn a_state_that_was_being_written_counts_for_nothing() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 1..=2);
    fs::write(folder.path().join("shard-00003-0000000001.unfinished"), b"half").unwrap();
    assert_eq!(loaded(folder.path()), [0, 1, 2]);
    assert!(matches!(load(folder.path(), ShardId(4), KEYS), Err(JournalError::Missing { .. })));
    assert!(find(&folder.path().join("nowhere")).unwrap().is_empty());
}

/// A disk that can be full, and counts how often it is asked to be durable.
#[derive(Debug, Default)]
struct Limited {
    is_full: Arc<AtomicBool>,
    syncs: Arc<AtomicUsize>,
    paths: Mutex<Vec<PathBuf>>,
}

struct LimitedFile(Box<dyn File>, Arc<AtomicBool>, Arc<AtomicUsize>);

impl Disk for Limited {
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
        Ok(Box::new(LimitedFile(Real.create(path)?, self.is_full.clone(), self.syncs.clone())))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Real.rename(from, to)
    }
}

impl File for LimitedFile {
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if self.1.load(Ordering::SeqCst) {
            // As a real one does: what fits is written.
            self.0.write_at(at, &bytes[..bytes.len() / 2])?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.write_at(at, bytes)
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.0.cut(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.2.fetch_add(1, Ordering::SeqCst);
        self.0.sync()
    }
}

// Nothing is answered while the disk takes nothing, one line says so, and nothing is lost when there is room again.
#[test]
fn a_full_disk_is_said_once_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(Limited::default());
    let mut kept = journal(folder.path(), disk.clone());
    kept.journal.write(state(0));
    kept.written(0);
    disk.is_full.store(true, Ordering::SeqCst);
    kept.journal.write(entry(1));
    let Some(Word::Trouble(SHARD, Some(text))) = kept.words.blocking_recv() else { panic!("no trouble") };
    assert!(text.contains("the disk of server 1 is full") && text.contains("shard-00003"), "{text}");
    kept.journal.write(entry(2));
    assert!(kept.notes.try_recv().is_err(), "nothing is written");
    disk.is_full.store(false, Ordering::SeqCst);
    kept.written(2);
    assert!(matches!(kept.words.try_recv(), Ok(Word::Trouble(SHARD, None))));
    assert!(kept.words.try_recv().is_err());
    drop(kept);
    assert_eq!(loaded(folder.path()), [0, 1, 2]);
}

#[test]
fn the_end_of_a_process_does_not_wait_for_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(Limited::default());
    disk.is_full.store(true, Ordering::SeqCst);
    let kept = journal(folder.path(), disk);
    kept.journal.write(state(0));
    drop(kept.notes);
    drop(kept.journal);
    assert!(find(folder.path()).unwrap().is_empty());
}

#[test]
fn what_gathers_is_brought_to_the_disk_together() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(Limited::default());
    let mut kept = journal(folder.path(), disk.clone());
    kept.journal.write(state(0));
    kept.written(0);
    disk.is_full.store(true, Ordering::SeqCst);
    kept.journal.write(entry(1));
    assert!(kept.words.blocking_recv().is_some());
    (2..=500).for_each(|index| kept.journal.write(entry(index)));
    let before = disk.syncs.load(Ordering::SeqCst);
    disk.is_full.store(false, Ordering::SeqCst);
    kept.written(500);
    let syncs = disk.syncs.load(Ordering::SeqCst) - before;
    assert!(syncs <= 3, "{syncs} times for 500 entries");
}
