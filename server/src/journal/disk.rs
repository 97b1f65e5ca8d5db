//! What a journal asks of a disk, so that a test can put a full or slow one in its place.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A file that grows at its end.
pub(crate) trait File: Send {
    /// Writes all of `bytes` from `at` on.
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes it so long.
    fn cut(&mut self, length: u64) -> io::Result<()>;

    /// Returns when everything is on the disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// A place for files.
pub(crate) trait Disk: std::fmt::Debug + Send + Sync {
    /// A new file, in the place of one that is there.
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>>;

    /// Gives a file its name, durably.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
}

/// The real one.
#[derive(Debug)]
pub(crate) struct Real;

impl Disk for Real {
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        if let Some(folder) = path.parent() {
            make_folders(folder)?;
        }
        let file = OpenOptions::new().create(true).write(true).truncate(true).open(path)?;
        Ok(Box::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)?;
        match to.parent() {
            Some(folder) => fs::File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }
}

/// Makes a folder and those above it, durably.
pub(crate) fn make_folders(folder: &Path) -> io::Result<()> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    let above = folder.parent().filter(|above| !above.as_os_str().is_empty());
    above.map_or(Ok(()), make_folders)?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::File::open(above.unwrap_or(Path::new(".")))?.sync_all()
}

impl File for fs::File {
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}
