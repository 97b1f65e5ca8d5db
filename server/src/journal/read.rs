//! Reading journals: which shards a folder has, and a shard's state with the entries after it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use slackline_core::ids::{Generation, KeyRange, ShardId};
use slackline_core::wire;
use slackline_server_core::replica::{Frame, Index, Kept};

use super::framing::{FRONT_BYTES, is_damaged, is_whole, lengths};
use crate::frames::{Assembler, Content, FrameError, Head, Opening};

pub(super) const UNFINISHED: &str = "unfinished";
const FINISHED: &str = "journal";

/// A journal cannot be gone on from.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Bytes that were durable are not what was written.
    #[error("{} is damaged at byte {at}, before its end: the disk has lost what it had; start anew with --fresh", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        at: u64,
    },
    /// Its frames are whole and make no sense.
    #[error("{} is no journal of this shard: {source}", path.display())]
    Frame {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// There is none.
    #[error("{} has no journal of {shard}", folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// The shard.
        shard: ShardId,
    },
}

/// What a folder has of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// What its journal begins with, in the last generation that it was led in.
    pub(crate) opening: Opening,
    /// The last entry.
    pub(crate) index: Index,
}

pub(super) fn file_name(shard: ShardId, number: u64) -> String {
    format!("shard-{:05}-{number:010}.{FINISHED}", shard.0)
}

/// The shard and number of a file by its name; none for what is no journal.
fn parse(path: &Path) -> Option<(ShardId, u64)> {
    if path.extension()? != FINISHED {
        return None;
    }
    let (shard, number) = path.file_stem()?.to_str()?.strip_prefix("shard-")?.split_once('-')?;
    Some((ShardId(shard.parse().ok()?), number.parse().ok()?))
}

/// The files of a folder; none where it is not there.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}

/// The journals of a folder by shard and number.
fn all(folder: &Path) -> io::Result<BTreeMap<(ShardId, u64), PathBuf>> {
    Ok(files(folder)?.into_iter().filter_map(|path| Some((parse(&path)?, path))).collect())
}

/// Removes states that were being written when the process before ended.
fn remove_unfinished(folder: &Path) -> io::Result<()> {
    let is_unfinished = |path: &PathBuf| path.extension().is_some_and(|extension| extension == UNFINISHED);
    files(folder)?.iter().filter(|path| is_unfinished(path)).try_for_each(fs::remove_file)
}

pub(super) fn files_of(folder: &Path, shard: ShardId) -> io::Result<Vec<PathBuf>> {
    Ok(all(folder)?.into_iter().filter(|((of, _), _)| *of == shard).map(|(_, path)| path).collect())
}

pub(super) fn last_number(folder: &Path, shard: ShardId) -> Option<u64> {
    all(folder).ok()?.range((shard, 0)..=(shard, u64::MAX)).next_back().map(|((_, number), _)| *number)
}

/// The newest journal of each shard, read from its first byte to its last; states that were being written are removed.
pub(crate) fn find(folder: &Path) -> Result<BTreeMap<ShardId, Found>, JournalError> {
    let failed = |source| JournalError::Io { path: folder.to_owned(), source };
    remove_unfinished(folder).map_err(failed)?;
    let mut newest = BTreeMap::new();
    for ((shard, _), path) in all(folder).map_err(failed)? {
        newest.insert(shard, path);
    }
    let mut found = BTreeMap::new();
    for (shard, path) in newest {
        let mut frames = Frames::open(&path)?;
        let mut opening = frames.opening(shard)?;
        let mut index = Index(0);
        while let Some((head, _)) = frames.next()? {
            match head {
                Head::Term(generation) => opening.generation = generation,
                Head::Entry { index: last, .. } | Head::State { index: last, .. } => index = last,
                _ => {}
            }
        }
        found.insert(shard, Found { opening, index });
    }
    Ok(found)
}

/// The generation in which a shard was led last, its state, and the entries after that up to the first that is torn.
pub(crate) fn load(
    folder: &Path,
    shard: ShardId,
    keys: KeyRange,
) -> Result<(Generation, Kept), JournalError> {
    let failed = |source| JournalError::Io { path: folder.to_owned(), source };
    let path = files_of(folder, shard).map_err(failed)?.pop();
    let path = path.ok_or_else(|| JournalError::Missing { folder: folder.to_owned(), shard })?;
    let no_sense = |source: FrameError| JournalError::Frame { path: path.clone(), source: source.into() };
    let mut frames = Frames::open(&path)?;
    let mut generation = frames.opening(shard)?.generation;
    let mut assembler = Assembler::new(shard, keys);
    let mut state = None;
    let mut entries = Vec::new();
    while let Some((head, payload)) = frames.next()? {
        if let Head::Term(term) = head {
            generation = term;
            continue;
        }
        let mut content = assembler.place(&head, payload.len() as u64).map_err(no_sense)?;
        match &mut content {
            Content::Values(values) => bytemuck::cast_slice_mut(values).copy_from_slice(payload),
            Content::Bytes(bytes) => bytes.copy_from_slice(payload),
        }
        match assembler.take(head, content).map_err(no_sense)? {
            Some(Frame::State { index, at, state: whole }) => {
                state = Some((index, at, std::sync::Arc::unwrap_or_clone(whole)));
                entries.clear();
            }
            Some(Frame::Entry(entry)) => entries.push(std::sync::Arc::unwrap_or_clone(entry)),
            None => {}
        }
    }
    let (index, at, state) = state.ok_or_else(|| no_sense(FrameError::Order("it has no whole state")))?;
    Ok((generation, Kept { index, at, state, entries }))
}

/// The frames of a file, one after another.
struct Frames {
    path: PathBuf,
    file: BufReader<File>,
    at: u64,
    length: u64,
    head: Vec<u8>,
    payload: Vec<u8>,
}

impl Frames {
    fn open(path: &Path) -> Result<Self, JournalError> {
        let failed = |source| JournalError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let file = BufReader::with_capacity(1 << 20, file);
        Ok(Self { path: path.to_owned(), file, at: 0, length, head: Vec::new(), payload: Vec::new() })
    }

    fn opening(&mut self, shard: ShardId) -> Result<Opening, JournalError> {
        let path = self.path.clone();
        match self.next()? {
            Some((Head::Opening(opening), _)) if opening.shard == shard => Ok(opening),
            _ => {
                let source = FrameError::Order("it does not begin as one");
                Err(JournalError::Frame { path, source: source.into() })
            }
        }
    }

    /// The next whole frame; none at the end, or where the end is torn.
    fn next(&mut self) -> Result<Option<(Head, &[u8])>, JournalError> {
        let began = self.at;
        if !self.fill().map_err(|source| JournalError::Io { path: self.path.clone(), source })? {
            self.torn_only(began)?;
            return Ok(None);
        }
        match wire::decode(&self.head) {
            Ok(head) => Ok(Some((head, &self.payload))),
            Err(error) => Err(JournalError::Frame { path: self.path.clone(), source: error.into() }),
        }
    }

    /// Reads one frame; false when there is no whole one.
    fn fill(&mut self) -> io::Result<bool> {
        let left = self.length - self.at;
        if left < FRONT_BYTES as u64 {
            return Ok(false);
        }
        let mut front = [0; FRONT_BYTES];
        self.file.read_exact(&mut front)?;
        let Some((head, payload, _)) = lengths(&front, left) else { return Ok(false) };
        self.head.resize(head, 0);
        self.payload.resize(payload, 0);
        self.file.read_exact(&mut self.head)?;
        self.file.read_exact(&mut self.payload)?;
        self.at += (FRONT_BYTES + head + payload) as u64;
        Ok(is_whole(&front, &self.head, &self.payload))
    }

    /// After a frame at `bad` that is not whole: whether it is the end that a crash leaves. It is not, if a later frame was begun when
    /// that one was on the disk already.
    fn torn_only(&self, bad: u64) -> Result<(), JournalError> {
        let failed = |source| JournalError::Io { path: self.path.clone(), source };
        // Only what a crash can have left: some batches. A journal that is damaged early is read whole here, once.
        let bytes = fs::read(&self.path).map_err(failed)?;
        match is_damaged(&bytes, bad) {
            true => Err(JournalError::Damaged { path: self.path.clone(), at: bad }),
            false => Ok(()),
        }
    }
}
