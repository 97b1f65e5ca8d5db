//! The place of checkpoints: a local folder or an object store, and which files lie where in it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};
use slackline_core::ids::ShardId;

use crate::disk::{self, Disk, RealDisk};
use crate::error::CheckpointError;
use crate::part::Image;
use crate::remote;

/// The name of a manifest within the folder of its checkpoint.
pub(crate) const MANIFEST: &str = "manifest.json";

/// The path of a checkpoint's manifest.
pub(crate) fn manifest_file(number: u64) -> String {
    format!("{number:010}/{MANIFEST}")
}

/// The path of a shard's part.
pub(crate) fn part_file(number: u64, shard: ShardId) -> String {
    format!("{number:010}/shard-{:05}.safetensors", shard.0)
}

/// The path of the entry of a shard's part, for one who has not been told it.
pub(crate) fn entry_file(number: u64, shard: ShardId) -> String {
    format!("{number:010}/shard-{:05}.entry.json", shard.0)
}

/// Whether a name within the folder of a checkpoint is one that is given here.
fn is_ours(name: &str) -> bool {
    let name = name.strip_prefix('.').and_then(|name| name.strip_suffix(".unfinished")).unwrap_or(name);
    let shard = name
        .strip_prefix("shard-")
        .and_then(|name| name.strip_suffix(".safetensors").or_else(|| name.strip_suffix(".entry.json")));
    name == MANIFEST
        || shard.is_some_and(|shard| shard.len() >= 5 && shard.bytes().all(|digit| digit.is_ascii_digit()))
}

/// The number that a folder's name spells, if it is one that is given here.
fn number_of(folder: &str) -> Option<u64> {
    let number = folder.parse().ok()?;
    (format!("{number:010}") == folder).then_some(number)
}

/// The files of one number.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    /// Whether it has a manifest.
    pub(crate) committed: bool,
    /// Names of its files that are named by rule, with their sizes.
    pub(crate) files: BTreeMap<String, u64>,
}

/// All numbers in a place.
#[derive(Debug, Default)]
pub(crate) struct Contents(pub(crate) BTreeMap<u64, Folder>);

impl Contents {
    /// Numbers of the checkpoints, newest first.
    pub(crate) fn committed(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().rev().filter(|(_, folder)| folder.committed).map(|(number, _)| *number)
    }

    /// Size of a file by its path.
    pub(crate) fn size(&self, file: &str) -> Option<u64> {
        let (folder, name) = file.split_once('/')?;
        self.0.get(&number_of(folder)?)?.files.get(name).copied()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Place {
    store: Arc<dyn ObjectStore>,
    /// Before every path in the store.
    prefix: String,
    /// The folder, if it is a local one; writing goes there directly.
    local: Option<(PathBuf, Arc<dyn Disk>)>,
    at: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.at)
    }
}

impl Place {
    /// A folder that is there.
    pub(crate) fn local(folder: &FsPath, disk: Arc<dyn Disk>) -> Result<Self, CheckpointError> {
        let at = folder.display().to_string();
        let folder = match folder.canonicalize() {
            Ok(whole) if whole.is_dir() => whole,
            Ok(_) => return Err(CheckpointError::Address { at, why: "it is a file; name a folder".into() }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(CheckpointError::Missing { at });
            }
            Err(error) => return Err(disk::at("read the folder", folder)(error)),
        };
        let store = LocalFileSystem::new_with_prefix(&folder).map_err(|source| CheckpointError::Storage {
            doing: "open",
            file: at.clone(),
            source: Box::new(source),
        })?;
        Ok(Self { store: Arc::new(store), prefix: String::new(), local: Some((folder, disk)), at })
    }

    /// A folder that is made if it is not there.
    pub(crate) fn make_local(folder: &FsPath) -> Result<Self, CheckpointError> {
        let disk = Arc::new(RealDisk);
        disk::make_folders(&*disk, folder)?;
        Self::local(folder, disk)
    }

    /// A prefix of an object store; `at` is what errors call it.
    pub(crate) fn remote(store: Arc<dyn ObjectStore>, prefix: &str, at: String) -> Self {
        let prefix = prefix.trim_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Self { store, prefix, local: None, at }
    }

    /// What errors call a file.
    pub(crate) fn name(&self, file: &str) -> String {
        format!("{}/{file}", self.at.trim_end_matches('/'))
    }

    fn path(&self, file: &str) -> Path {
        Path::from(format!("{}{file}", self.prefix))
    }

    fn failed(
        &self,
        doing: &'static str,
        file: &str,
    ) -> impl FnOnce(object_store::Error) -> CheckpointError + use<> {
        let file = self.name(file);
        move |source| CheckpointError::Storage { doing, file, source: Box::new(source) }
    }

    /// Looks what is there.
    pub(crate) async fn contents(&self) -> Result<Contents, CheckpointError> {
        let root = (!self.prefix.is_empty()).then(|| Path::from(self.prefix.as_str()));
        let listed = self.store.list_with_delimiter(root.as_ref()).await.map_err(self.failed("list", ""))?;
        let mut contents = Contents::default();
        for folder in listed.common_prefixes {
            let Some(number) = folder.filename().and_then(number_of) else { continue };
            let listed = self
                .store
                .list_with_delimiter(Some(&folder))
                .await
                .map_err(self.failed("list", folder.as_ref()))?;
            let names = listed.objects.iter().filter_map(|object| {
                let name = object.location.filename().filter(|name| is_ours(name))?;
                Some((name.to_owned(), object.size))
            });
            let files: BTreeMap<_, _> = names.collect();
            contents.0.insert(number, Folder { committed: files.contains_key(MANIFEST), files });
        }
        Ok(contents)
    }

    /// Some bytes of a file. `None` if it is not there; fewer than asked for if it is shorter.
    pub(crate) async fn read(&self, file: &str, range: Range<u64>) -> Result<Option<Bytes>, CheckpointError> {
        if range.is_empty() {
            return Ok(Some(Bytes::new()));
        }
        let path = self.path(file);
        match self.store.get_range(&path, range.clone()).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            // A range beyond the end is an error like any other, and an empty file has no other ranges.
            Err(error) => match self.store.head(&path).await {
                Ok(found) if found.size <= range.start => Ok(Some(Bytes::new())),
                _ => Err(self.failed("read", file)(error)),
            },
        }
    }

    /// Writes a part. One of that name is replaced: it is of an attempt that was not committed.
    pub(crate) async fn write_part(&self, file: &str, image: Arc<Image>) -> Result<(), CheckpointError> {
        let Some((root, disk)) = self.local.clone() else {
            let slices = image.slices();
            return remote::upload(&*self.store, &self.path(file), image.bytes, slices)
                .await
                .map_err(self.failed("write", file));
        };
        let file = file.to_owned();
        blocking(move || {
            let (folder, name) = disk::split(&root, &file);
            disk::make_folder(&*disk, &root, &folder)?;
            disk::write_whole(&*disk, &folder, name, image.slices())
        })
        .await
    }

    /// Writes a small file. One of that name is replaced.
    pub(crate) async fn write(&self, file: &str, bytes: Vec<u8>) -> Result<(), CheckpointError> {
        let Some((root, disk)) = self.local.clone() else {
            let (length, slices) = (bytes.len() as u64, [bytes.as_slice()].into_iter());
            return remote::upload(&*self.store, &self.path(file), length, slices)
                .await
                .map_err(self.failed("write", file));
        };
        let file = file.to_owned();
        blocking(move || {
            let (folder, name) = disk::split(&root, &file);
            disk::make_folder(&*disk, &root, &folder)?;
            disk::write_whole(&*disk, &folder, name, [bytes.as_slice()].into_iter())
        })
        .await
    }

    /// Writes a manifest. `false` if one is there already.
    pub(crate) async fn write_manifest(&self, file: &str, bytes: Vec<u8>) -> Result<bool, CheckpointError> {
        let Some((root, disk)) = self.local.clone() else {
            return remote::put_new(&*self.store, &self.path(file), bytes)
                .await
                .map_err(self.failed("write", file));
        };
        let file = file.to_owned();
        blocking(move || {
            let (folder, name) = disk::split(&root, &file);
            disk::make_folder(&*disk, &root, &folder)?;
            if folder.join(name).exists() {
                return Ok(false);
            }
            disk::write_whole(&*disk, &folder, name, [bytes.as_slice()].into_iter()).map(|()| true)
        })
        .await
    }

    /// Removes files of one number for good, then its folder if it is empty and `folder_too`.
    pub(crate) async fn remove(
        &self,
        number: u64,
        names: Vec<String>,
        folder_too: bool,
    ) -> Result<(), CheckpointError> {
        let folder = format!("{number:010}");
        let Some((root, disk)) = self.local.clone() else {
            for name in names {
                let file = format!("{folder}/{name}");
                match self.store.delete(&self.path(&file)).await {
                    Err(object_store::Error::NotFound { .. }) | Ok(()) => {}
                    Err(error) => return Err(self.failed("remove", &file)(error)),
                }
            }
            return Ok(());
        };
        blocking(move || {
            let path = root.join(folder);
            disk::remove_all(&*disk, &path, &names)?;
            // A folder with something else in it stays.
            if folder_too && disk.remove_folder(&path).is_ok() {
                disk.sync_folder(&root).map_err(disk::at("sync the folder", &root))?;
            }
            Ok(())
        })
        .await
    }
}

/// Runs `work` where it may wait for the disk.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CheckpointError> + Send + 'static,
) -> Result<T, CheckpointError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(CheckpointError::unfit(format!("the work was stopped: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_by_rule_are_taken_for_files_of_a_checkpoint() {
        assert!(is_ours("manifest.json") && is_ours("shard-00001.safetensors"));
        assert!(is_ours("shard-00001.entry.json") && !is_ours("entry.json"));
        assert!(is_ours(".shard-00001.safetensors.unfinished") && is_ours("shard-123456.safetensors"));
        assert!(
            !is_ours("notes.txt") && !is_ours("shard-.safetensors") && !is_ours("shard-0000x.safetensors")
        );
        assert_eq!(number_of("0000000042"), Some(42));
        assert_eq!((number_of("42"), number_of("+000000042"), number_of("00000000042")), (None, None, None));
    }
}
