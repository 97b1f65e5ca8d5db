//! The store: writing parts, committing and removing checkpoints, finding the one to go on from.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use object_store::ObjectStore;
use slackline_core::ids::{KeyRange, ShardId};

use crate::disk::RealDisk;
use crate::error::{CheckpointError, Damage};
use crate::load::{Loaded, Reader};
use crate::manifest::{Expect, MANIFEST_MAX, Manifest, PartEntry, Stamp, parse_manifest};
use crate::part::{Image, Part, state_of};
use crate::pieces::Pieces;
use crate::place::{Contents, MANIFEST, Place, blocking, entry_file, manifest_file, part_file};
use crate::remote;

/// Where a run's checkpoints are kept: a folder of a local (or mounted) file system, or a prefix of an object store. Cheap to clone.
///
/// One run to a place; several processes may write parts, one commits. Needs a tokio runtime.
#[derive(Clone, Debug)]
pub struct Store {
    place: Place,
}

/// What a commit did besides.
#[derive(Debug)]
pub struct Committed {
    /// Files of older or unfinished checkpoints that were removed.
    pub removed: usize,
    /// Why others, that should go, are still there. The new checkpoint is durable all the same.
    pub left: Option<CheckpointError>,
}

impl Store {
    /// The place `at`, a path or a URL (`file:///...`, `s3://BUCKET/PREFIX` with the feature `s3`), in order to read: a folder must be there.
    ///
    /// # Errors
    /// [`CheckpointError::Missing`] for a folder that is not there, [`CheckpointError::Address`] for what is no place.
    pub fn open(at: &str) -> Result<Self, CheckpointError> {
        Self::at(at, |folder| Place::local(folder, Arc::new(RealDisk)))
    }

    /// The same place in order to write: a folder is made if it is not there.
    ///
    /// # Errors
    /// As [`Store::open`]; or the folder cannot be made.
    pub fn create(at: &str) -> Result<Self, CheckpointError> {
        Self::at(at, Place::make_local)
    }

    /// A prefix of any object store; `at` is what errors call it.
    #[must_use]
    pub fn over(store: Arc<dyn ObjectStore>, prefix: &str, at: &str) -> Self {
        Self { place: Place::remote(store, prefix, at.to_owned()) }
    }

    fn at(
        at: &str,
        local: impl Fn(&Path) -> Result<Place, CheckpointError>,
    ) -> Result<Self, CheckpointError> {
        let address = |why: &str| CheckpointError::Address { at: at.to_owned(), why: why.to_owned() };
        let place = match at.split_once("://") {
            None if at.is_empty() => return Err(address("it is empty; name a folder")),
            None => local(Path::new(at))?,
            Some(("file", path)) if path.starts_with('/') && !path.contains('%') => local(Path::new(path))?,
            Some(("file", _)) => return Err(address("write a path instead of a file URL")),
            Some(("s3", _)) => {
                let (store, prefix) = remote::s3(at)?;
                Place::remote(store, &prefix, at.to_owned())
            }
            Some(_) => return Err(address("only file:// and s3:// are known")),
        };
        Ok(Self { place })
    }

    #[cfg(test)]
    pub(crate) fn on(folder: &Path, disk: Arc<dyn crate::disk::Disk>) -> Result<Self, CheckpointError> {
        Place::local(folder, disk).map(|place| Self { place })
    }

    /// A number above all that are there, also unfinished ones, so that parts of two attempts never meet under one number. From 1.
    ///
    /// # Errors
    /// The place cannot be read.
    pub async fn next_number(&self) -> Result<u64, CheckpointError> {
        let contents = self.place.contents().await?;
        Ok(contents.0.keys().last().map_or(1, |last| last.saturating_add(1)))
    }

    /// Writes the part of one shard for checkpoint `number`. Durable once this returns, but of no effect before the commit.
    ///
    /// The arrays are written from where they lie. Computes three fingerprints on the way, about a second for 10^9 bytes.
    ///
    /// # Errors
    /// The part does not fit together, or the place cannot be written to; then nothing of that name is left.
    pub async fn write_part(
        &self,
        stamp: Stamp,
        number: u64,
        part: &Part,
    ) -> Result<PartEntry, CheckpointError> {
        let part = part.clone();
        let file = part_file(number, part.shard);
        let name = file.clone();
        let (image, entry) = blocking(move || {
            let image = Image::new(stamp, number, &part)?;
            let mut sums = Pieces::new();
            image.slices().for_each(|slice| sums.add(slice));
            let (checksum, pieces) = sums.finish();
            let entry = PartEntry {
                number,
                shard: part.shard,
                keys: part.keys,
                version: part.version,
                file: name,
                bytes: image.bytes,
                checksum,
                pieces,
                arrays: part.arrays.iter().map(|array| array.name.clone()).collect(),
                state: state_of(&part).value(),
                blocks: part.blocks,
            };
            Ok((image, entry))
        })
        .await?;
        self.place.write_part(&file, Arc::new(image)).await?;
        Ok(entry)
    }

    /// Writes an entry beside its part, for a committer who cannot be told all of it; returns the checksum that he must be told. Once the
    /// checkpoint is committed it is of no use, and is removed with the next one.
    ///
    /// # Errors
    /// The place cannot be written to.
    pub async fn write_entry(&self, entry: &PartEntry) -> Result<u64, CheckpointError> {
        let bytes = serde_json::to_vec(entry).map_err(|error| CheckpointError::unfit(error.to_string()))?;
        let checksum = xxhash_rust::xxh3::xxh3_64(&bytes);
        self.place.write(&entry_file(entry.number, entry.shard), bytes).await?;
        Ok(checksum)
    }

    /// The entry that lies beside the part of a shard.
    ///
    /// # Errors
    /// It is not there, or is not what the checksum says.
    pub async fn entry(
        &self,
        number: u64,
        shard: ShardId,
        checksum: u64,
    ) -> Result<PartEntry, CheckpointError> {
        let file = entry_file(number, shard);
        let name = self.place.name(&file);
        let damaged = |damage| CheckpointError::damaged(number, damage);
        let Some(bytes) = self.place.read(&file, 0..MANIFEST_MAX).await? else {
            return Err(damaged(Damage::PartMissing { file: name }));
        };
        if xxhash_rust::xxh3::xxh3_64(&bytes) != checksum {
            return Err(damaged(Damage::Rotten { file: name, from: 0, to: bytes.len() as u64 }));
        }
        serde_json::from_slice(&bytes)
            .map_err(|error| damaged(Damage::NotAPart { file: name, why: error.to_string() }))
    }

    /// [`Self::put`], then [`Self::tidy`]: for whoever is the only one that commits here.
    ///
    /// # Errors
    /// As [`Self::put`]. What only keeps older ones from being removed is in [`Committed::left`].
    pub async fn commit(&self, manifest: &Manifest, keep: usize) -> Result<Committed, CheckpointError> {
        self.put(manifest).await?;
        Ok(self.tidy(manifest.number, keep).await)
    }

    /// Makes a checkpoint of parts that were written: from here on it exists. Doing so twice with the same manifest is fine.
    ///
    /// # Errors
    /// The manifest does not fit together; a part is missing or of another size; the place holds checkpoints of another run
    /// ([`Damage::OtherRun`]), or this number or a higher one ([`CheckpointError::Taken`]); or it cannot be written.
    pub async fn put(&self, manifest: &Manifest) -> Result<(), CheckpointError> {
        let number = manifest.number;
        let file = manifest_file(number);
        let bytes = manifest.encode(&self.place.name(&file))?;
        let contents = self.place.contents().await?;
        let newest = contents.committed().next();
        if let Some(newest) = newest {
            self.check_predecessor(manifest, newest).await?;
        }
        Reader::new(&self.place, manifest, &contents).check_sizes().await?;
        if !self.place.write_manifest(&file, bytes.clone()).await? {
            // Someone was first. Perhaps we were: an answer that was lost is asked for again.
            let there = self.place.read(&file, 0..MANIFEST_MAX).await?.unwrap_or_default();
            if there != bytes && !self.is_same(manifest, &file, &there) {
                return Err(self.taken(number, number));
            }
        }
        Ok(())
    }

    /// After checkpoint `newest`: removes older ones, so that the newest `keep` (at least one) are left, and whatever unfinished ones have
    /// left behind. Only for who is sure that everyone who goes on with the run knows of `newest`.
    pub async fn tidy(&self, newest: u64, keep: usize) -> Committed {
        let mut removed = 0;
        let left = self.remove_older(newest, keep, &mut removed).await.err();
        Committed { removed, left }
    }

    /// Removes all checkpoints and whatever unfinished ones have left behind: for a run that begins anew here. What else lies there stays.
    /// The manifests go first, so that nothing that is left half way passes for a checkpoint.
    ///
    /// # Errors
    /// The place cannot be read, or something cannot be removed.
    pub async fn clear(&self) -> Result<(), CheckpointError> {
        let contents = self.place.contents().await?;
        for number in contents.committed() {
            self.place.remove(number, vec![MANIFEST.to_owned()], false).await?;
        }
        for (&number, folder) in &contents.0 {
            let names = folder.files.keys().filter(|name| *name != MANIFEST).cloned().collect();
            self.place.remove(number, names, true).await?;
        }
        Ok(())
    }

    /// Whether a manifest that is there is of the same cut with the same parts. One who was killed before it knew, and begins again, says
    /// otherwise when it was made, what lies beneath, and how long the run has taken.
    fn is_same(&self, manifest: &Manifest, file: &str, there: &[u8]) -> bool {
        parse_manifest(&self.place.name(file), there).is_ok_and(|there| {
            let Manifest { created, bases, coordinator, .. } = manifest.clone();
            Manifest { created, bases, coordinator, ..there } == *manifest
        })
    }

    fn taken(&self, number: u64, newest: u64) -> CheckpointError {
        CheckpointError::Taken { at: self.place.to_string(), number, newest }
    }

    async fn check_predecessor(&self, manifest: &Manifest, newest: u64) -> Result<(), CheckpointError> {
        let stamp = manifest.stamp;
        match self.manifest(newest).await {
            Ok(there) => {
                // Another configuration may take a run on; its model and its name stay.
                let expect = Expect {
                    run: Some(stamp.run),
                    config_hash: None,
                    layout_hash: stamp.layout_hash,
                    keys: stamp.keys,
                };
                expect
                    .compare(&there.stamp, &self.place.name(&manifest_file(newest)))
                    .map_err(|damage| CheckpointError::damaged(newest, damage))?;
            }
            // Who went on from an older one may write newer ones beside one that is damaged.
            Err(CheckpointError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        if newest > manifest.number { Err(self.taken(manifest.number, newest)) } else { Ok(()) }
    }

    /// Removes what checkpoint `newest` makes superfluous: first the manifests of the checkpoints before the last `keep`, then files that no
    /// manifest that is left names.
    async fn remove_older(
        &self,
        newest: u64,
        keep: usize,
        removed: &mut usize,
    ) -> Result<(), CheckpointError> {
        let contents = self.place.contents().await?;
        let kept: BTreeSet<u64> = contents.committed().take(keep.max(1)).collect();
        // All are read before anything is removed: what one that cannot be read needs is not known.
        let mut named = BTreeSet::new();
        for &number in &kept {
            let manifest = self.manifest(number).await?;
            named.extend(manifest.files().map(|entry| entry.file.clone()));
            named.insert(manifest_file(number));
        }
        let old: Vec<u64> = contents.committed().filter(|number| !kept.contains(number)).collect();
        for &number in old.iter().rev() {
            self.place.remove(number, vec![MANIFEST.to_owned()], false).await?;
            *removed += 1;
        }
        for (&number, folder) in contents.0.range(..newest) {
            let is_named = |name: &str| named.contains(&format!("{number:010}/{name}"));
            let gone = old.contains(&number);
            let names: Vec<String> = folder
                .files
                .keys()
                .filter(|name| !(is_named(name) || gone && *name == MANIFEST))
                .cloned()
                .collect();
            let folder_too = !folder.files.keys().any(|name| is_named(name));
            if !names.is_empty() || folder_too {
                *removed += names.len();
                self.place.remove(number, names, folder_too).await?;
            }
        }
        Ok(())
    }

    /// The manifest of checkpoint `number`, checked for itself; its files are not looked at.
    ///
    /// # Errors
    /// [`CheckpointError::Absent`], or it is damaged.
    pub async fn manifest(&self, number: u64) -> Result<Manifest, CheckpointError> {
        let file = manifest_file(number);
        // One byte more than is allowed, so that more than that is noticed and no more is read.
        let Some(bytes) = self.place.read(&file, 0..MANIFEST_MAX + 1).await? else {
            return Err(CheckpointError::Absent { at: self.place.to_string(), number });
        };
        let name = self.place.name(&file);
        let damaged = |damage| CheckpointError::damaged(number, damage);
        if bytes.len() as u64 > MANIFEST_MAX {
            return Err(damaged(Damage::NotAManifest { file: name, why: "it is too long".into() }));
        }
        let manifest = parse_manifest(&name, &bytes).map_err(damaged)?;
        if manifest.number != number {
            let why = format!("it is that of checkpoint {}", manifest.number);
            return Err(damaged(Damage::NotAManifest { file: name, why }));
        }
        Ok(manifest)
    }

    /// The newest checkpoint, if there is any: for a run that writes here itself. Its manifest is read and the sizes of its files are
    /// compared; [`Store::load`] compares the checksums of what it reads, [`Store::verify`] all.
    ///
    /// # Errors
    /// The newest one is damaged or belongs to another run. It is never passed over: the error names an older one that is whole.
    pub async fn newest(&self, expect: &Expect) -> Result<Option<Manifest>, CheckpointError> {
        let contents = self.place.contents().await?;
        match contents.committed().next() {
            None => Ok(None),
            Some(number) => self.checked(number, expect, &contents, false).await.map(Some),
        }
    }

    /// The newest checkpoint, every byte of it compared with its checksums: for a run that goes on from here.
    ///
    /// # Errors
    /// As [`Store::newest`]; and [`CheckpointError::Empty`] or [`CheckpointError::Unfinished`] where there is none.
    pub async fn resume(&self, expect: &Expect) -> Result<Manifest, CheckpointError> {
        let contents = self.place.contents().await?;
        let at = || self.place.to_string();
        match (
            contents.committed().next(),
            contents.0.iter().rev().find(|(_, folder)| !folder.files.is_empty()),
        ) {
            (Some(number), _) => self.checked(number, expect, &contents, true).await,
            (None, Some((&number, _))) => Err(CheckpointError::Unfinished { at: at(), number }),
            (None, None) => Err(CheckpointError::Empty { at: at() }),
        }
    }

    async fn checked(
        &self,
        number: u64,
        expect: &Expect,
        contents: &Contents,
        whole: bool,
    ) -> Result<Manifest, CheckpointError> {
        let one = self.checked_alone(number, expect, contents, whole).await;
        self.with_advice(one, number, Some(expect), contents).await
    }

    async fn checked_alone(
        &self,
        number: u64,
        expect: &Expect,
        contents: &Contents,
        whole: bool,
    ) -> Result<Manifest, CheckpointError> {
        let manifest = self.manifest(number).await?;
        expect
            .compare(&manifest.stamp, &self.place.name(&manifest_file(number)))
            .map_err(|damage| CheckpointError::damaged(number, damage))?;
        let reader = Reader::new(&self.place, &manifest, contents);
        reader.check_sizes().await?;
        if whole {
            reader.verify().await?;
        }
        Ok(manifest)
    }

    /// Adds to a damage the newest older checkpoint that is whole, after reading it.
    async fn with_advice<T>(
        &self,
        result: Result<T, CheckpointError>,
        number: u64,
        expect: Option<&Expect>,
        contents: &Contents,
    ) -> Result<T, CheckpointError> {
        let Err(CheckpointError::Damaged { number: of, damage, .. }) = result else { return result };
        let mut whole = None;
        for older in contents.committed().filter(|older| *older < number) {
            let good = match expect {
                Some(expect) => self.checked_alone(older, expect, contents, true).await.is_ok(),
                None => match self.manifest(older).await {
                    Ok(manifest) => Reader::new(&self.place, &manifest, contents).verify().await.is_ok(),
                    Err(_) => false,
                },
            };
            if good {
                whole = Some(older);
                break;
            }
        }
        Err(CheckpointError::Damaged { number: of, damage, whole })
    }

    /// The arrays of any range of keys, and the facts of the shards that owned them: as many servers as you like may each load theirs, and
    /// read only about as much as they need. Every piece that is read is compared with its checksum.
    ///
    /// # Errors
    /// A file is damaged, or the keys are not the model's.
    pub async fn load(&self, manifest: &Manifest, keys: KeyRange) -> Result<Loaded, CheckpointError> {
        let contents = self.place.contents().await?;
        let loaded = Reader::new(&self.place, manifest, &contents).load(keys).await;
        self.with_advice(loaded, manifest.number, None, &contents).await
    }

    /// Reads all files of a checkpoint and compares all checksums.
    ///
    /// # Errors
    /// A file is damaged.
    pub async fn verify(&self, manifest: &Manifest) -> Result<(), CheckpointError> {
        let contents = self.place.contents().await?;
        let verified = Reader::new(&self.place, manifest, &contents).verify().await;
        self.with_advice(verified, manifest.number, None, &contents).await
    }
}
