//! Why a checkpoint cannot be written or read: each kind of fault by its own name, with the file and what to do.

use std::io;
use std::path::PathBuf;

use slackline_core::ids::ShardId;

use crate::manifest::RunId;

/// A checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// There is no such folder.
    #[error("there is no folder {at}; check the path, nothing was read")]
    Missing {
        /// The folder.
        at: String,
    },
    /// The folder holds no checkpoint at all.
    #[error("{at} holds no checkpoint; check the path, or start a run without resuming")]
    Empty {
        /// The folder.
        at: String,
    },
    /// There are parts, but not one manifest: the run ended before its first checkpoint was complete.
    #[error(
        "{at} holds an unfinished checkpoint only ({number:010}, no manifest.json); start the run afresh in another folder"
    )]
    Unfinished {
        /// The folder.
        at: String,
        /// The highest unfinished number.
        number: u64,
    },
    /// The checkpoint of the number that was asked for is not there.
    #[error(
        "{at} holds no checkpoint {number:010}; the numbers that are there are the names of its folders with a manifest.json"
    )]
    Absent {
        /// The folder.
        at: String,
        /// The number.
        number: u64,
    },
    /// A checkpoint is there, but cannot be used.
    #[error("checkpoint {number} cannot be used: {damage}{}", advice(*.number, *.whole))]
    Damaged {
        /// The number of the checkpoint.
        number: u64,
        /// What is wrong with which file.
        damage: Box<Damage>,
        /// The newest older checkpoint that was read and found whole.
        whole: Option<u64>,
    },
    /// The number, or a higher one, is committed already.
    #[error(
        "checkpoint {number} cannot be committed to {at}: {newest} is there already; does another run write to this folder?"
    )]
    Taken {
        /// The folder.
        at: String,
        /// The number that was to be committed.
        number: u64,
        /// The newest number that is there.
        newest: u64,
    },
    /// What was to be written or asked for does not fit together: a mistake of the caller.
    #[error("a checkpoint cannot be made or loaded like this: {why}")]
    Unfit {
        /// What does not fit.
        why: String,
    },
    /// A path or URL that is none.
    #[error("{at} is no place for checkpoints: {why}")]
    Address {
        /// The path or URL.
        at: String,
        /// Why, and what to do.
        why: String,
    },
    /// The local file system refused.
    #[error("cannot {doing} {}: {source}; {}", path.display(), disk_remedy(source))]
    Disk {
        /// What was attempted.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The object store refused.
    #[error(
        "cannot {doing} {file}: {source}; check the address, the credentials and that the store can be reached"
    )]
    Storage {
        /// What was attempted.
        doing: &'static str,
        /// The file.
        file: String,
        /// The reason.
        source: Box<object_store::Error>,
    },
}

/// What is wrong with a file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The manifest names a file that is not there.
    #[error("{file} is missing; do all servers write to the same folder, and was it copied as a whole?")]
    PartMissing {
        /// The file.
        file: String,
    },
    /// A file is shorter or longer than it was written.
    #[error("{file} is torn: {found} bytes where {expected} were written; copy it again from its source")]
    Torn {
        /// The file.
        file: String,
        /// Bytes that belong there.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// Bytes differ from those that were written.
    #[error(
        "{file} is damaged: its bytes from {from} to {to} do not have the checksum they were written with; check the disk"
    )]
    Rotten {
        /// The file.
        file: String,
        /// First byte of the piece with a wrong checksum.
        from: u64,
        /// One past its last byte.
        to: u64,
    },
    /// A file called manifest is none.
    #[error("{file} is no manifest: {why}")]
    NotAManifest {
        /// The file.
        file: String,
        /// Why.
        why: String,
    },
    /// A file called part is none.
    #[error("{file} is no part of a checkpoint: {why}")]
    NotAPart {
        /// The file.
        file: String,
        /// Why.
        why: String,
    },
    /// The file belongs to another run.
    #[error("{file} belongs to run {found}, not to run {expected}; give each run a folder of its own")]
    OtherRun {
        /// The file.
        file: String,
        /// The run it should belong to.
        expected: RunId,
        /// The run it belongs to.
        found: RunId,
    },
    /// The file was written under another configuration.
    #[error(
        "{file} was written under configuration {found:016x}, not {expected:016x}; resume with the configuration it was made with"
    )]
    OtherConfig {
        /// The file.
        file: String,
        /// The fingerprint that was expected.
        expected: u64,
        /// The fingerprint it carries.
        found: u64,
    },
    /// The file holds another model.
    #[error(
        "{file} holds a model of layout {found:016x} with {found_keys} values, not {expected:016x} with {expected_keys}; resume with the same model"
    )]
    OtherLayout {
        /// The file.
        file: String,
        /// The fingerprint that was expected.
        expected: u64,
        /// Values of the model that was expected.
        expected_keys: u64,
        /// The fingerprint it carries.
        found: u64,
        /// Values of its model.
        found_keys: u64,
    },
    /// A part of the same run lies in the place of another part.
    #[error(
        "{file} is of checkpoint {found_number}, {found_shard}, not of {number}, {shard}; copy the folder again as a whole"
    )]
    Misplaced {
        /// The file.
        file: String,
        /// The shard whose part should be there.
        shard: ShardId,
        /// The checkpoint whose part should be there.
        number: u64,
        /// The shard it is of.
        found_shard: ShardId,
        /// The checkpoint it is of.
        found_number: u64,
    },
    /// No part holds a key.
    #[error("{file} names parts that leave key {key} out; the checkpoint is not complete")]
    Gap {
        /// The manifest.
        file: String,
        /// The first key left out.
        key: u64,
    },
    /// Two parts hold one key.
    #[error("{file} names two parts that hold key {key}; only one shard can have owned it")]
    Overlap {
        /// The manifest.
        file: String,
        /// The first key held twice.
        key: u64,
    },
    /// The file was written by a later version of this program.
    #[error(
        "{file} has format {format}, this program knows up to {known}; use the version of Slackline that wrote it"
    )]
    Newer {
        /// The file.
        file: String,
        /// Its format.
        format: u32,
        /// The newest format known here.
        known: u32,
    },
}

impl CheckpointError {
    /// Whether there is simply nothing to resume from, in distinction to something that is damaged or cannot be reached.
    #[must_use]
    pub const fn is_absence(&self) -> bool {
        matches!(
            self,
            Self::Missing { .. } | Self::Empty { .. } | Self::Unfinished { .. } | Self::Absent { .. }
        )
    }

    /// What is wrong with which file, where that is the fault.
    #[must_use]
    pub fn damage(&self) -> Option<&Damage> {
        match self {
            Self::Damaged { damage, .. } => Some(damage),
            _ => None,
        }
    }

    /// Whether the disk had no room.
    #[must_use]
    pub fn is_full_disk(&self) -> bool {
        matches!(self, Self::Disk { source, .. } if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }

    pub(crate) fn damaged(number: u64, damage: Damage) -> Self {
        Self::Damaged { number, damage: Box::new(damage), whole: None }
    }

    pub(crate) fn unfit(why: impl Into<String>) -> Self {
        Self::Unfit { why: why.into() }
    }
}

fn advice(number: u64, whole: Option<u64>) -> String {
    match whole {
        Some(whole) => format!(
            "\ncheckpoint {whole} before it is whole: to go on from there, move the folder {number:010} and any newer one away"
        ),
        None => String::new(),
    }
}

fn disk_remedy(source: &io::Error) -> &'static str {
    use io::ErrorKind as Kind;
    match source.kind() {
        Kind::StorageFull | Kind::QuotaExceeded => "free space, or keep fewer checkpoints",
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => "choose a folder that can be written to",
        _ => "check the folder and the disk",
    }
}
