//! The files of a key directory: what they are called, and how they are read and written.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use slackline_core::role::Role;

use super::error::KeysError;

/// The authorities that are trusted, the newest first.
pub(super) const AUTHORITY: &str = "ca.pem";
/// Their keys, in any order. Only where certificates are made.
pub(super) const AUTHORITY_KEY: &str = "ca.key";
/// A revocation list of each authority.
pub(super) const REVOKED: &str = "revoked.pem";
/// Every certificate that was made, under its serial. Only where certificates are made.
pub(super) const ISSUED: &str = "issued";
/// The directories of machines that have certificates of their own, under their names.
pub(super) const MACHINES: &str = "machines";

/// The file of a role's certificate.
pub(super) fn certificate_file(directory: &Path, role: Role) -> PathBuf {
    directory.join(format!("{role}.pem"))
}

/// The file of a role's key.
pub(super) fn key_file(directory: &Path, role: Role) -> PathBuf {
    directory.join(format!("{role}.key"))
}

/// Reads a file that has to be there.
pub(super) fn read(directory: &Path, file: &Path) -> Result<Vec<u8>, KeysError> {
    fs::read(file).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => {
            KeysError::Missing { file: file.to_owned(), directory: directory.to_owned() }
        }
        _ => KeysError::File { file: file.to_owned(), source },
    })
}

/// Reads a file that may be missing.
pub(super) fn read_if_there(file: &Path) -> Result<Option<Vec<u8>>, KeysError> {
    match fs::read(file) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(KeysError::File { file: file.to_owned(), source }),
    }
}

/// Names of what is in a folder, sorted; nothing when it is not there.
pub(super) fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

/// Makes a folder, and those above it.
pub(super) fn make(folder: &Path) -> Result<(), KeysError> {
    fs::create_dir_all(folder).map_err(|source| KeysError::File { file: folder.to_owned(), source })
}

/// Who may read a file.
#[derive(Clone, Copy)]
pub(super) enum Access {
    Owner,
    All,
}

/// Writes a file whole or not at all.
pub(super) fn write(file: &Path, text: &str, access: Access) -> Result<(), KeysError> {
    let unfinished = file.with_added_extension("unfinished");
    let written = write_new(&unfinished, text, access).and_then(|()| fs::rename(&unfinished, file));
    written.map_err(|source| KeysError::File { file: file.to_owned(), source })
}

fn write_new(file: &Path, text: &str, access: Access) -> io::Result<()> {
    // What an interrupted start left may have other permissions: it is removed, never opened.
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(match access {
            Access::Owner => 0o600,
            Access::All => 0o644,
        });
    }
    #[cfg(not(unix))]
    let _ = access;
    let mut opened = options.open(file)?;
    opened.write_all(text.as_bytes())?;
    opened.sync_all()
}

/// What tells one state of a file from the next: when it was written, its length, and where it lies.
type Stamp = Option<(SystemTime, u64, u64)>;

/// The state of all files that a process of a role lives by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamps([Stamp; 4]);

impl Stamps {
    /// The present state.
    pub(super) fn of(directory: &Path, role: Role) -> Self {
        Self([
            stamp(&directory.join(AUTHORITY)),
            stamp(&directory.join(REVOKED)),
            stamp(&certificate_file(directory, role)),
            stamp(&key_file(directory, role)),
        ])
    }
}

fn stamp(file: &Path) -> Stamp {
    let found = fs::metadata(file).ok()?;
    #[cfg(unix)]
    let place = std::os::unix::fs::MetadataExt::ino(&found);
    #[cfg(not(unix))]
    let place = 0;
    Some((found.modified().ok()?, found.len(), place))
}
