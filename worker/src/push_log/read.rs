//! Reading a push log.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use slackline_core::ids::{Incarnation, ServerId, WorkerId};
use slackline_core::wire::{self, HEADER_BYTES, ToPeer, TransferHeader};
use xxhash_rust::xxh3::xxh3_64;

use super::{ANSWER, MAGIC, PREFIX_BYTES, PUSH, PushRecord};

/// Why a push log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PushLogError {
    /// The system.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// The file begins with other bytes.
    #[error("{path} is not a push log of this version")]
    NotALog {
        /// The file.
        path: PathBuf,
    },
    /// A record in the middle of the file is not what was written.
    #[error(
        "{path} is damaged at byte {at}: the record there does not fit its checksum, and others follow it"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the record begins.
        at: u64,
    },
}

/// The records of a push log, in the order in which they were written. It ends where the last whole record does: what a process that was
/// killed has half written is left out.
#[derive(Debug)]
pub struct PushLog {
    path: PathBuf,
    file: BufReader<File>,
    /// Bytes of the file when it was opened.
    len: u64,
    /// Where the next record begins.
    at: u64,
    is_over: bool,
}

impl PushLog {
    /// Opens a log. An empty file is a log without records.
    ///
    /// # Errors
    /// The file cannot be read, or is something else.
    pub fn open(path: &Path) -> Result<Self, PushLogError> {
        let io = |source| PushLogError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let mut file = BufReader::new(file);
        let mut magic = [0; MAGIC.len()];
        // A process can be killed before it has written even that.
        let has_magic = len >= MAGIC.len() as u64;
        if has_magic {
            file.read_exact(&mut magic).map_err(io)?;
        }
        if has_magic && magic != MAGIC {
            return Err(PushLogError::NotALog { path: path.to_owned() });
        }
        Ok(Self { path: path.to_owned(), file, len, at: MAGIC.len() as u64, is_over: !has_magic })
    }

    /// Opens a log that is still being written, to read what stands behind `at`, where an earlier reader was ([`PushLog::whole`]); 0 for the
    /// beginning.
    ///
    /// # Errors
    /// As [`PushLog::open`].
    pub fn open_at(path: &Path, at: u64) -> Result<Self, PushLogError> {
        let mut log = Self::open(path)?;
        if at > log.at && !log.is_over {
            let seek = log.file.seek(SeekFrom::Start(at));
            seek.map_err(|source| PushLogError::Io { path: path.to_owned(), source })?;
            log.at = at;
        }
        Ok(log)
    }

    /// Where the last whole record ends, once all are read.
    #[must_use]
    pub const fn whole(&self) -> u64 {
        self.at
    }

    /// The next record.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged before its end.
    pub fn next_record(&mut self) -> Result<Option<PushRecord>, PushLogError> {
        if self.is_over {
            return Ok(None);
        }
        self.is_over = true;
        let left = self.len.saturating_sub(self.at);
        let mut prefix = [0; PREFIX_BYTES];
        if left < PREFIX_BYTES as u64 {
            return Ok(None);
        }
        self.fill(&mut prefix)?;
        let (length, sum) = (u64_of(&prefix[..8]), u64_of(&prefix[8..]));
        let end = (self.at + PREFIX_BYTES as u64).checked_add(length).filter(|end| *end <= self.len);
        let Some(end) = end else { return Ok(None) };
        // The length is at most that of the file.
        let mut body = vec![0; length as usize];
        self.fill(&mut body)?;
        let record = if xxh3_64(&body) == sum { record(&body) } else { None };
        match record {
            Some(record) => {
                (self.at, self.is_over) = (end, false);
                Ok(Some(record))
            }
            None if end == self.len => Ok(None),
            None => Err(PushLogError::Damaged { path: self.path.clone(), at: self.at }),
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), PushLogError> {
        let path = &self.path;
        self.file.read_exact(bytes).map_err(|source| PushLogError::Io { path: path.clone(), source })
    }
}

impl Iterator for PushLog {
    type Item = Result<PushRecord, PushLogError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_record().transpose()
    }
}

/// What a body says, if it says anything.
fn record(body: &[u8]) -> Option<PushRecord> {
    let (kind, rest) = body.split_first()?;
    match *kind {
        PUSH => {
            let (header, values) = rest.split_first_chunk::<HEADER_BYTES>()?;
            let header = TransferHeader::from_bytes(header).ok()?;
            let (values, odd) = values.as_chunks::<4>();
            let is_whole = odd.is_empty() && values.len() as u64 == header.keys.len;
            let gradient = values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            is_whole.then_some(PushRecord::Push { header, gradient })
        }
        ANSWER => {
            let (server, rest) = rest.split_first_chunk::<4>()?;
            let (worker, rest) = rest.split_first_chunk::<4>()?;
            let (incarnation, message) = rest.split_first_chunk::<8>()?;
            let ToPeer::Pushed(pushed) = wire::decode::<ToPeer>(message).ok()? else { return None };
            Some(PushRecord::Answer {
                server: ServerId(u32::from_le_bytes(*server)),
                worker: WorkerId(u32::from_le_bytes(*worker)),
                incarnation: Incarnation(u64::from_le_bytes(*incarnation)),
                pushed,
            })
        }
        _ => None,
    }
}

fn u64_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
