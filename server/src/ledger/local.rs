//! What the coordinator's server keeps of the run on its own disk, so that a restart of its process goes on with it.
//!
//! Two things, by what each costs. Maps of shards and snapshots of control are rows of an embedded store, each durable before it counts:
//! they are rare. The events in between are appended to a file with one write each: whatever kills the process, the system has them (some
//! microseconds, where a commit of the store waits for the disk each time). They are brought to the disk with every map and every new member,
//! so that no power cut takes back a place or gives an incarnation twice; where pushes are kept on the disk, so is every event.
//!
//! ```text
//! FOLDER/control.redb                    table `run`: what run this is, the map, the snapshot and the number of its file of events
//! FOLDER/control-0000000003.events      frames as in a journal
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use redb::{Database, ReadableDatabase, TableDefinition};
use slackline_core::ids::Moment;
use slackline_server_core::ControlEvent;

use super::{Kept, LedgerError};
use crate::journal::{framing, make_folders};

const RUN: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("run");
const STAMP: &str = "stamp";
const MAP: &str = "map";
const SNAPSHOT: &str = "snapshot";
const FILE: &str = "file";

const STORE: &str = "control.redb";

/// Bytes of events after which a snapshot is due.
const LONG: u64 = 4 << 20;

/// See the module.
pub(crate) struct Local {
    folder: PathBuf,
    /// None after it took something back: it takes nothing more then before it is opened anew.
    store: Option<Database>,
    events: File,
    number: u64,
    length: u64,
    /// So much of it is on the disk for certain.
    durable: u64,
    /// Whether each event is brought to the disk.
    is_synced: bool,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local")
            .field("folder", &self.folder)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Local {
    /// Opens what is there, or begins. `stamp` says which run it is.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub(crate) fn open(
        folder: &Path,
        stamp: &[u8],
        is_synced: bool,
    ) -> Result<(Self, Option<Kept>), LedgerError> {
        make_folders(folder).map_err(|source| LedgerError::Io { path: folder.to_owned(), source })?;
        let path = folder.join(STORE);
        let failed = |source| failed(&path, source);
        let store = Database::create(&path).map_err(|error| failed(error.into()))?;
        let row = |key: &str| read_row(&store, key).map_err(failed);
        let found = row(STAMP)?;
        if found.as_ref().is_some_and(|found| found != stamp) {
            return Err(LedgerError::OtherRun { path: folder.to_owned() });
        }
        let number = row(FILE)?.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
        let events_path = folder.join(file_name(number));
        let kept = match found {
            Some(_) => {
                let snapshot = row(SNAPSHOT)?;
                let (events, length) = read_events(&events_path)?;
                Some((Kept { snapshot, events }, length))
            }
            None => None,
        };
        let length = kept.as_ref().map_or(0, |(_, length)| *length);
        let events = open_at(&events_path, length)?;
        let folder = folder.to_owned();
        let mut ledger =
            Self { folder, store: Some(store), events, number, length, durable: length, is_synced };
        ledger.put(&[(STAMP, stamp), (FILE, &number.to_le_bytes())])?;
        Ok((ledger, kept.map(|(kept, _)| kept)))
    }

    /// Adds events, all of them or none; on the disk at once where one must never be taken back.
    ///
    /// # Errors
    /// They could not be written; they are not there.
    pub(crate) fn append(
        &mut self,
        events: &[(Moment, ControlEvent)],
        is_lasting: bool,
    ) -> Result<(), LedgerError> {
        let failed = |source| LedgerError::Io { path: self.folder.join(file_name(self.number)), source };
        let mut frames = Vec::new();
        for (at, event) in events {
            let bytes = slackline_core::wire::encode_state(&(at.0, event))
                .map_err(|error| failed(io::Error::other(error)))?;
            frames.extend(framing::frame(&bytes, self.durable));
        }
        // By their place: what is half there after a failure is written over by the next attempt.
        self.events.write_all_at(&frames, self.length).map_err(failed)?;
        let length = self.length + frames.len() as u64;
        if self.is_synced || is_lasting {
            self.events.sync_data().map_err(failed)?;
            self.durable = length;
        }
        self.length = length;
        Ok(())
    }

    /// Whether a snapshot is due.
    pub(crate) const fn is_long(&self) -> bool {
        self.length > LONG
    }

    /// Keeps a snapshot, which stands for all events so far.
    ///
    /// # Errors
    /// It could not be kept; what was kept before still is.
    pub(crate) fn snapshot(&mut self, snapshot: &[u8]) -> Result<(), LedgerError> {
        let old = self.folder.join(file_name(self.number));
        let number = self.number + 1;
        let events = open_at(&self.folder.join(file_name(number)), 0)?;
        self.put(&[(SNAPSHOT, snapshot), (FILE, &number.to_le_bytes())])?;
        (self.number, self.events, self.length, self.durable) = (number, events, 0, 0);
        // Where it cannot be removed, nobody reads it any more.
        let _ = fs::remove_file(old);
        Ok(())
    }

    /// Keeps the map of shards, durably, with the events that it follows from: those say it again after a restart.
    ///
    /// # Errors
    /// It could not be kept.
    pub(crate) fn map(&mut self, map: &[u8]) -> Result<(), LedgerError> {
        let path = self.folder.join(file_name(self.number));
        self.events.sync_data().map_err(|source| LedgerError::Io { path, source })?;
        self.durable = self.length;
        self.put(&[(MAP, map)])
    }

    fn put(&mut self, rows: &[(&str, &[u8])]) -> Result<(), LedgerError> {
        let path = self.folder.join(STORE);
        let store = match self.store.take() {
            Some(store) => Ok(store),
            None => Database::create(&path).map_err(redb::Error::from),
        };
        let put = |store: &Database| -> Result<(), redb::Error> {
            let transaction = store.begin_write()?;
            {
                let mut table = transaction.open_table(RUN)?;
                for (key, value) in rows {
                    table.insert(*key, *value)?;
                }
            }
            transaction.commit()?;
            Ok(())
        };
        let done = store.and_then(|store| put(&store).map(|()| store));
        self.store = Some(done.map_err(|source| failed(&path, source))?);
        Ok(())
    }
}

/// What cannot be done with the store: a disk that is full or broken passes, what the store has to say of itself does not.
fn failed(path: &Path, source: redb::Error) -> LedgerError {
    let path = path.to_owned();
    match source {
        redb::Error::Io(source) => LedgerError::Io { path, source },
        source => LedgerError::Store { path, source: Box::new(source) },
    }
}

fn read_row(store: &Database, key: &str) -> Result<Option<Vec<u8>>, redb::Error> {
    let transaction = store.begin_read()?;
    match transaction.open_table(RUN) {
        Ok(table) => Ok(table.get(key)?.map(|value| value.value().to_vec())),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn file_name(number: u64) -> String {
    format!("control-{number:010}.events")
}

fn open_at(path: &Path, length: u64) -> Result<File, LedgerError> {
    let open = || {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        // A torn end would have whole frames behind it.
        file.set_len(length)?;
        file.sync_all()?;
        path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())?;
        Ok(file)
    };
    open().map_err(|source| LedgerError::Io { path: path.to_owned(), source })
}

/// The events up to the first that is torn, and the length of all of them. A file that is named is there: it is made before it is named.
pub(crate) fn read_events(path: &Path) -> Result<(Vec<(Moment, ControlEvent)>, u64), LedgerError> {
    let bytes = fs::read(path).map_err(|source| LedgerError::Io { path: path.to_owned(), source })?;
    let damaged = |at: usize| LedgerError::Damaged { path: path.to_owned(), at: at as u64 };
    let (mut events, mut length) = (Vec::new(), 0);
    while let Some((payload, used)) = framing::next(&bytes[length..]) {
        let (moment, event) = slackline_core::wire::decode_state(payload).map_err(|_| damaged(length))?;
        events.push((Moment(moment), event));
        length += used;
    }
    if framing::is_damaged(&bytes, length as u64) {
        Err(damaged(length))
    } else {
        Ok((events, length as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64) -> ControlEvent {
        ControlEvent::Persisted { number }
    }

    fn kept(folder: &Path) -> (Local, Kept) {
        let (ledger, kept) = Local::open(folder, b"this run", false).unwrap();
        (ledger, kept.unwrap())
    }

    #[test]
    fn events_come_back_after_the_last_snapshot_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let (mut ledger, nothing) = Local::open(folder.path(), b"this run", false).unwrap();
        assert!(nothing.is_none());
        for number in 0..5 {
            ledger.append(&[(Moment(number), event(number))], false).unwrap();
        }
        drop(ledger);
        let (mut ledger, found) = kept(folder.path());
        assert!(found.snapshot.is_none());
        let expected: Vec<_> = (0..5).map(|number| (Moment(number), event(number))).collect();
        assert_eq!(found.events, expected);
        ledger.map(b"map").unwrap();
        ledger.snapshot(b"all of it").unwrap();
        ledger.append(&[(Moment(9), event(9))], false).unwrap();
        drop(ledger);
        let (_ledger, found) = kept(folder.path());
        assert_eq!(found.snapshot.as_deref(), Some(&b"all of it"[..]));
        assert_eq!(found.events, [(Moment(9), event(9))]);
    }

    #[test]
    fn a_torn_end_is_cut_and_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let (mut ledger, _) = Local::open(folder.path(), b"this run", false).unwrap();
        ledger.append(&[(Moment(1), event(1))], false).unwrap();
        let whole = ledger.length;
        ledger.append(&[(Moment(2), event(2))], false).unwrap();
        drop(ledger);
        let path = folder.path().join(file_name(0));
        OpenOptions::new().write(true).open(&path).unwrap().set_len(whole + 7).unwrap();
        let (mut ledger, found) = kept(folder.path());
        assert_eq!(found.events, [(Moment(1), event(1))]);
        ledger.append(&[(Moment(3), event(3))], false).unwrap();
        drop(ledger);
        assert_eq!(kept(folder.path()).1.events, [(Moment(1), event(1)), (Moment(3), event(3))]);
    }

    #[test]
    fn a_byte_that_rots_among_durable_events_is_no_torn_end() {
        let folder = tempfile::tempdir().unwrap();
        let (mut ledger, _) = Local::open(folder.path(), b"this run", false).unwrap();
        let mut ends = Vec::new();
        for number in 0..4 {
            ledger.append(&[(Moment(number), event(number))], number == 1).unwrap();
            ends.push(ledger.length as usize);
        }
        ledger.map(b"map").unwrap();
        ledger.append(&[(Moment(4), event(4))], false).unwrap();
        drop(ledger);
        let path = folder.path().join(file_name(0));
        let whole = fs::read(&path).unwrap();
        for at in 0..ends[3] {
            let mut rotten = whole.clone();
            rotten[at] ^= 1;
            fs::write(&path, rotten).unwrap();
            let error = Local::open(folder.path(), b"this run", false).unwrap_err();
            assert!(matches!(error, LedgerError::Damaged { .. }), "byte {at}: {error}");
        }
        // What was not brought to the disk yet may be gone.
        let mut torn = whole;
        torn[ends[3]] ^= 1;
        fs::write(&path, torn).unwrap();
        assert_eq!(kept(folder.path()).1.events.len(), 4);
        fs::remove_file(&path).unwrap();
        let error = Local::open(folder.path(), b"this run", false).unwrap_err();
        assert!(error.to_string().contains("control-0000000000.events"), "{error}");
    }

    #[test]
    fn the_memory_of_another_run_is_refused_by_the_name_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        drop(Local::open(folder.path(), b"that run", false).unwrap());
        let error = Local::open(folder.path(), b"this run", false).unwrap_err().to_string();
        assert!(error.contains(&folder.path().display().to_string()) && error.contains("--fresh"), "{error}");
    }
}
