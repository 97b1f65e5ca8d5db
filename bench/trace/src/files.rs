//! The traces of a run as files: which there are, whether they belong together, and their records one by one.

use std::fs::{self, File};
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use slackline_core::ids::{Moment, ShardId};
use slackline_core::trace::{Damage, FOLDER, HEADER_BYTES, Header, RECORD_BYTES, Record, What};

/// Why traces cannot be read. Each says which file and where in it.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A file or folder cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no trace.
    #[error("{} holds no trace: name the folder of a run that was made with `slackline run --trace`", folder.display())]
    None {
        /// The folder.
        folder: PathBuf,
    },
    /// A file ends within its header.
    #[error("{}: it ends after {bytes} bytes, within its header of {HEADER_BYTES}", path.display())]
    HeaderCut {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        bytes: usize,
    },
    /// A header that is none.
    #[error("{}, at byte 0: {damage}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// Why.
        damage: Damage,
    },
    /// Bytes that are no record.
    #[error("{}, record {place} at byte {}: {damage}", path.display(), byte_of(*place))]
    Record {
        /// The file.
        path: PathBuf,
        /// The record's place, from 0.
        place: u64,
        /// Why.
        damage: Damage,
    },
    /// Records are missing, or stand at another place.
    #[error(
        "{}, record {place} at byte {}: it has the number {found}, so records are missing or in disorder",
        path.display(), byte_of(*place)
    )]
    Hole {
        /// The file.
        path: PathBuf,
        /// The record's place, from 0.
        place: u64,
        /// The number it has.
        found: u32,
    },
    /// A record is earlier than the one before.
    #[error("{}, record {place} at byte {}: it is earlier than the record before it", path.display(), byte_of(*place))]
    Backwards {
        /// The file.
        path: PathBuf,
        /// The record's place, from 0.
        place: u64,
    },
    /// Something follows the last record.
    #[error("{}, at byte {}: bytes follow the record that ends the trace", path.display(), byte_of(*place))]
    AfterEnd {
        /// The file.
        path: PathBuf,
        /// The place behind the last record.
        place: u64,
    },
    /// Files of two runs lie together.
    #[error("{} and {} are not of one run: {what} differ", first.display(), second.display())]
    Mixed {
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// Two files are of one shard.
    #[error("{} and {} are both of {shard}", first.display(), second.display())]
    Twice {
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
        /// The shard.
        shard: ShardId,
    },
    /// A shard's trace is not there.
    #[error(
        "{} has {found} traces of a run of {shards} shards over {servers} servers, and none of the keys from {key} on: bring the \
         files of all servers together",
        folder.display()
    )]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// Traces that are there.
        found: usize,
        /// The first key without one.
        key: u64,
        /// Shards of the run.
        shards: u32,
        /// Servers of the run.
        servers: u32,
    },
    /// The result cannot be written.
    #[error("{} cannot be written: {source}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

const fn byte_of(place: u64) -> u64 {
    HEADER_BYTES as u64 + place.saturating_mul(RECORD_BYTES as u64)
}

/// How a trace ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// In order.
    Well,
    /// At its largest size; the run went on.
    Full,
    /// Without a last word: the server was killed, or still runs.
    Cut {
        /// Bytes of a record that was not written to its end.
        partial: usize,
    },
}

/// The trace of one shard, read record by record.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) path: PathBuf,
    pub(crate) header: Header,
    source: BufReader<File>,
    /// Records read.
    place: u64,
    last: Moment,
    ending: Option<Ending>,
}

impl Trace {
    fn open(path: PathBuf) -> Result<Self, TraceError> {
        let unreadable = |source| TraceError::Unreadable { path: path.clone(), source };
        let mut source = BufReader::with_capacity(1 << 18, File::open(&path).map_err(unreadable)?);
        let mut bytes = [0; HEADER_BYTES];
        let found = fill(&mut source, &mut bytes).map_err(unreadable)?;
        if found < HEADER_BYTES {
            return Err(TraceError::HeaderCut { path, bytes: found });
        }
        match Header::decode(&bytes) {
            Ok(header) => Ok(Self { path, header, source, place: 0, last: Moment(0), ending: None }),
            Err(damage) => Err(TraceError::Header { path, damage }),
        }
    }

    /// The next record; none at the end, of which [`Trace::ending`] then knows how it is.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, TraceError> {
        if self.ending.is_some() {
            return Ok(None);
        }
        let mut bytes = [0; RECORD_BYTES];
        let found = self.fill(&mut bytes)?;
        if found < RECORD_BYTES {
            self.ending = Some(Ending::Cut { partial: found });
            return Ok(None);
        }
        let (path, place) = (|| self.path.clone(), self.place);
        let record =
            Record::decode(&bytes).map_err(|damage| TraceError::Record { path: path(), place, damage })?;
        if u64::from(record.number) != place {
            return Err(TraceError::Hole { path: path(), place, found: record.number });
        }
        if record.at < self.last {
            return Err(TraceError::Backwards { path: path(), place });
        }
        self.place += 1;
        self.last = record.at;
        self.ending = match record.what {
            What::End => Some(Ending::Well),
            What::Full => Some(Ending::Full),
            _ => None,
        };
        if self.ending.is_some() && self.fill(&mut [0])? > 0 {
            return Err(TraceError::AfterEnd { path: self.path.clone(), place: self.place });
        }
        Ok(Some(record))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<usize, TraceError> {
        fill(&mut self.source, bytes)
            .map_err(|source| TraceError::Unreadable { path: self.path.clone(), source })
    }

    /// How it ends; before its end was read, as if it were cut there.
    pub(crate) fn ending(&self) -> Ending {
        self.ending.unwrap_or(Ending::Cut { partial: 0 })
    }
}

/// Reads until the buffer is full or the source is at its end; returns the bytes read.
fn fill(source: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match source.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Opens the traces of a run, in the order of the shards. `folder` is the run's folder, or that of the traces itself.
pub(crate) fn open(folder: &Path) -> Result<Vec<Trace>, TraceError> {
    let folder = place_of(folder);
    let mut traces = Vec::new();
    for path in paths(&folder)? {
        traces.push(Trace::open(path)?);
    }
    let traces = without_idle_copies(traces)?;
    let Some(first) = traces.first() else { return Err(TraceError::None { folder }) };
    for pair in traces.windows(2) {
        same_run(&pair[0], &pair[1])?;
    }
    let Header { shards, servers, key_count, .. } = first.header;
    let mut key = 0;
    for range in traces.iter().map(|trace| trace.header.keys) {
        if range.start == key {
            key = key.saturating_add(range.len);
        }
    }
    if key != key_count || traces.len() != shards as usize {
        return Err(TraceError::Missing { folder, found: traces.len(), key, shards, servers });
    }
    Ok(traces)
}

/// A server that kept a copy of a shard and never led it leaves a trace in which nothing happens. It is left out where another one tells of the
/// shard.
fn without_idle_copies(traces: Vec<Trace>) -> Result<Vec<Trace>, TraceError> {
    let mut kept: Vec<(bool, Trace)> = Vec::new();
    for mut trace in traces {
        let is_idle = trace.next()?.is_none_or(|first| first.what == What::End);
        // From the beginning again: the first record may be of the run.
        kept.push((is_idle, Trace::open(trace.path)?));
    }
    // Those that tell something come first.
    kept.sort_by_key(|(is_idle, trace)| (trace.header.shard, *is_idle));
    let mut told: Option<ShardId> = None;
    kept.retain(|(is_idle, trace)| {
        let is_superfluous = *is_idle && told == Some(trace.header.shard);
        told = Some(trace.header.shard);
        !is_superfluous
    });
    Ok(kept.into_iter().map(|(_, trace)| trace).collect())
}

/// The folder of the traces.
pub(crate) fn place_of(folder: &Path) -> PathBuf {
    let within = folder.join(FOLDER);
    if within.is_dir() { within } else { folder.to_owned() }
}

fn paths(folder: &Path) -> Result<Vec<PathBuf>, TraceError> {
    let unreadable = |source| TraceError::Unreadable { path: folder.to_owned(), source };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "trace") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn same_run(first: &Trace, second: &Trace) -> Result<(), TraceError> {
    let (one, other) = (&first.header, &second.header);
    let paths = || (first.path.clone(), second.path.clone());
    if one.shard == other.shard {
        let (first, second) = paths();
        return Err(TraceError::Twice { first, second, shard: one.shard });
    }
    let differences = [
        ("the fingerprints of their configurations", one.config_hash != other.config_hash),
        ("their policies", one.rule != other.rule),
        (
            "their counts of shards, servers or workers",
            (one.shards, one.servers, one.workers, one.key_count)
                != (other.shards, other.servers, other.workers, other.key_count),
        ),
    ];
    match differences.into_iter().find(|(_, differs)| *differs) {
        Some((what, _)) => {
            let (first, second) = paths();
            Err(TraceError::Mixed { first, second, what })
        }
        None => Ok(()),
    }
}
