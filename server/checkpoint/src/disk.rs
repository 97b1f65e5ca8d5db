//! Writing to the local file system so that a crash at any moment leaves each file whole or not there.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::CheckpointError;

/// What is asked of a file system. Tests put one in its place that writes down every operation, or that is full.
pub(crate) trait Disk: Send + Sync + fmt::Debug {
    /// Makes a folder; one that is there is fine.
    fn make_folder(&self, path: &Path) -> io::Result<()>;
    /// Makes an empty file, or empties one.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Gives a file another name; one of that name is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes sure that names made, changed or removed in a folder stay so.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty folder.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;
}

/// A file that is being written.
pub(crate) trait DiskFile: Write {
    /// Makes sure that what was written stays.
    fn sync(&mut self) -> io::Result<()>;
}

/// The file system of this machine.
#[derive(Debug)]
pub(crate) struct RealDisk;

impl DiskFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

impl Disk for RealDisk {
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            other => other,
        }
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(File::create(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        // Only Unix can open a folder and sync it.
        if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }
}

/// Bytes that are gathered before they go to the file.
const BUFFER: usize = 1 << 20;

/// Adds where an operation failed.
pub(crate) fn at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |source| CheckpointError::Disk { doing, path, source }
}

/// Makes `folder` and all above it, each for good before the next.
pub(crate) fn make_folders(disk: &dyn Disk, folder: &Path) -> Result<(), CheckpointError> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = match folder.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Ok(()),
    };
    make_folders(disk, parent)?;
    make_folder(disk, parent, folder)
}

/// Makes the one folder `folder` in `parent`, for good. Synced also where it is there already, since another process may have made it just
/// now.
pub(crate) fn make_folder(disk: &dyn Disk, parent: &Path, folder: &Path) -> Result<(), CheckpointError> {
    disk.make_folder(folder).map_err(at("make the folder", folder))?;
    disk.sync_folder(parent).map_err(at("sync the folder", parent))
}

/// The name that a file has until it is whole.
pub(crate) fn unfinished(name: &str) -> String {
    format!(".{name}.unfinished")
}

/// Writes a file that is whole, and stays, once this returns; before that, nothing of that name is there. `slices` are its bytes.
pub(crate) fn write_whole<'a>(
    disk: &dyn Disk,
    folder: &Path,
    name: &str,
    slices: impl Iterator<Item = &'a [u8]>,
) -> Result<(), CheckpointError> {
    let path = folder.join(name);
    let draft = folder.join(unfinished(name));
    let write = || {
        let mut file = disk.create(&draft)?;
        let mut buffered = BufWriter::with_capacity(BUFFER, &mut file);
        for slice in slices {
            buffered.write_all(slice)?;
        }
        buffered.flush()?;
        drop(buffered);
        file.sync()?;
        disk.rename(&draft, &path)
    };
    if let Err(source) = write() {
        // Room is made on a full disk. Where the draft cannot be removed either, the first error says why.
        let _ = disk.remove(&draft);
        return Err(at("write", &path)(source));
    }
    disk.sync_folder(folder).map_err(at("sync the folder", folder))
}

/// Removes files, all in `folder`, for good. Those that are gone already are fine.
pub(crate) fn remove_all(disk: &dyn Disk, folder: &Path, names: &[String]) -> Result<(), CheckpointError> {
    for name in names {
        let path = folder.join(name);
        match disk.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at("remove", &path)(error)),
            _ => {}
        }
    }
    match disk.sync_folder(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at("sync the folder", folder)(error)),
        _ => Ok(()),
    }
}

/// The folder of a path below `root` that is written with `/`, and its last name.
pub(crate) fn split<'a>(root: &Path, file: &'a str) -> (PathBuf, &'a str) {
    match file.rsplit_once('/') {
        Some((folder, name)) => (root.join(folder), name),
        None => (root.to_owned(), file),
    }
}
