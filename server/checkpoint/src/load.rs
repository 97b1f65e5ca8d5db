//! Reading: the values of any range of keys, put together from the parts that hold their newest copies.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use slackline_core::ids::{KeyRange, ShardId, Version};

use crate::cover::{all_of, both, take};
use crate::error::{CheckpointError, Damage};
use crate::hash::StateHash;
use crate::manifest::{Manifest, PartEntry, Stamp};
use crate::part::{Array, PartHeader, Span, check_label};
use crate::pieces::{PIECE, Pieces, extent};
use crate::place::Place;

/// Pieces that are fetched before they are needed.
const AHEAD: usize = 2;

/// What was loaded for a range of keys.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The keys.
    pub keys: KeyRange,
    /// The arrays, each with a value for each key.
    pub arrays: Vec<Array>,
    /// The shards that owned some of the keys when the checkpoint was made, by their first key, with their facts at the cut.
    pub sources: Vec<Source>,
    /// From which checkpoint each value is: sorted by keys, neighbours of one number joined. One entry in a full checkpoint.
    pub origins: Vec<Origin>,
}

/// A shard as it was at the cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The shard.
    pub shard: ShardId,
    /// All of its keys, also those that were not asked for.
    pub keys: KeyRange,
    /// Its version.
    pub version: Version,
    /// Its facts, as they were written.
    pub facts: Vec<u8>,
}

/// Keys whose values were last saved by one checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The keys.
    pub keys: KeyRange,
    /// The number of the checkpoint.
    pub number: u64,
}

impl Loaded {
    /// Fingerprint of the arrays.
    #[must_use]
    pub fn state_hash(&self) -> StateHash {
        let mut hash = StateHash::new();
        hash.add_arrays(self.keys.start, &self.arrays);
        hash
    }
}

/// Bytes of a file that go to some place in memory.
#[derive(Clone, Copy, Debug)]
struct Copy {
    at: u64,
    len: u64,
    /// Which of the buffers.
    buffer: usize,
    /// The byte in it where they begin.
    to: usize,
}

/// One reader of one checkpoint.
pub(crate) struct Reader<'a> {
    place: &'a Place,
    manifest: &'a Manifest,
    /// Sizes of the files, as they were listed.
    contents: &'a crate::place::Contents,
}

/// A file whose header was read.
struct Opened<'a> {
    entry: &'a PartEntry,
    header: PartHeader,
    first: Bytes,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(
        place: &'a Place,
        manifest: &'a Manifest,
        contents: &'a crate::place::Contents,
    ) -> Self {
        Self { place, manifest, contents }
    }

    fn damaged(&self, damage: Damage) -> CheckpointError {
        CheckpointError::damaged(self.manifest.number, damage)
    }

    /// Whether all files are there and as long as they were written.
    pub(crate) async fn check_sizes(&self) -> Result<(), CheckpointError> {
        for entry in self.manifest.files() {
            self.check_size(entry).await?;
        }
        Ok(())
    }

    async fn check_size(&self, entry: &PartEntry) -> Result<(), CheckpointError> {
        let file = self.place.name(&entry.file);
        match self.contents.size(&entry.file) {
            None => Err(self.damaged(Damage::PartMissing { file })),
            Some(found) if found != entry.bytes => {
                // A part of another run is usually of another size, too: that is the better thing to say.
                let prefix = self.place.read(&entry.file, 0..found.min(PIECE)).await?.unwrap_or_default();
                self.check_stranger(entry, &prefix)?;
                Err(self.damaged(Damage::Torn { file, expected: entry.bytes, found }))
            }
            Some(_) => Ok(()),
        }
    }

    /// Refuses bytes that are not those of `entry` where they are recognised as another part's.
    fn check_stranger(&self, entry: &PartEntry, prefix: &[u8]) -> Result<(), CheckpointError> {
        let file = self.place.name(&entry.file);
        match check_label(&file, prefix, &self.manifest.stamp, entry, entry.number == self.manifest.number) {
            // What has no readable label is torn or rotten, as the caller will say.
            Err(Damage::NotAPart { .. }) | Ok(()) => Ok(()),
            Err(damage) => Err(self.damaged(damage)),
        }
    }

    /// Fetches piece `index` and compares its checksum.
    async fn piece(&self, entry: &PartEntry, index: u64) -> Result<Bytes, CheckpointError> {
        let range = extent(index, entry.bytes);
        let file = || self.place.name(&entry.file);
        let Some(bytes) = self.place.read(&entry.file, range.clone()).await? else {
            return Err(self.damaged(Damage::PartMissing { file: file() }));
        };
        if bytes.len() as u64 != range.end - range.start {
            let found = range.start + bytes.len() as u64;
            return Err(self.damaged(Damage::Torn { file: file(), expected: entry.bytes, found }));
        }
        let expected = entry.pieces.get(index as usize);
        if expected != Some(&xxhash_rust::xxh3::xxh3_64(&bytes)) {
            if index == 0 {
                self.check_stranger(entry, &bytes)?;
            }
            return Err(self.damaged(Damage::Rotten { file: file(), from: range.start, to: range.end }));
        }
        Ok(bytes)
    }

    async fn open(&self, entry: &'a PartEntry) -> Result<Opened<'a>, CheckpointError> {
        self.check_size(entry).await?;
        let file = self.place.name(&entry.file);
        let first = self.piece(entry, 0).await?;
        let stamp: &Stamp = &self.manifest.stamp;
        check_label(&file, &first, stamp, entry, entry.number == self.manifest.number)
            .map_err(|damage| self.damaged(damage))?;
        let header = PartHeader::parse(&file, &first, entry.bytes).map_err(|damage| self.damaged(damage))?;
        if !header.matches(entry) {
            let why = "it holds other arrays, keys or blocks than the manifest says".to_owned();
            return Err(self.damaged(Damage::NotAPart { file, why }));
        }
        Ok(Opened { entry, header, first })
    }

    /// Reads the pieces of `opened` that `copies` need, or all, and fills the buffers. `copies` rise by their place in the file.
    async fn fill(
        &self,
        opened: &Opened<'_>,
        copies: &[Copy],
        all: bool,
        buffers: &mut [&mut [u8]],
    ) -> Result<(), CheckpointError> {
        let entry = opened.entry;
        let wanted: Vec<u64> = if all { (0..entry.pieces.len() as u64).collect() } else { pieces_of(copies) };
        let mut sums = all.then(Pieces::new);
        let fetch = |index| async move {
            let bytes = if index == 0 { opened.first.clone() } else { self.piece(entry, index).await? };
            Ok::<_, CheckpointError>((index, bytes))
        };
        let mut pieces = stream::iter(wanted).map(fetch).buffered(AHEAD);
        let mut left = copies;
        while let Some(piece) = pieces.next().await {
            let (index, bytes) = piece?;
            if let Some(sums) = &mut sums {
                sums.add(&bytes);
            }
            left = spread(left, extent(index, entry.bytes), &bytes, buffers);
        }
        if sums.is_some_and(|sums| sums.finish().0 != entry.checksum) {
            let file = self.place.name(&entry.file);
            return Err(self.damaged(Damage::Rotten { file, from: 0, to: entry.bytes }));
        }
        Ok(())
    }

    /// Reads every byte of every file, and compares the index of blocks with that of the manifest.
    pub(crate) async fn verify(&self) -> Result<(), CheckpointError> {
        for entry in self.manifest.files() {
            let opened = self.open(entry).await?;
            let index = opened.header.index.unwrap_or_default();
            let mut bytes = vec![0; index.len as usize];
            let copy = Copy { at: index.at, len: index.len, buffer: 0, to: 0 };
            self.fill(&opened, &[copy], true, &mut [&mut bytes]).await?;
            let Some(blocks) = &entry.blocks else { continue };
            let held = opened.header.blocks_of(&bytes);
            if !held.is_some_and(|held| held.into_iter().map(u64::from).eq(blocks.chosen())) {
                let why = "it holds other blocks than the manifest says".to_owned();
                return Err(self.damaged(Damage::NotAPart { file: self.place.name(&entry.file), why }));
            }
        }
        Ok(())
    }

    /// The arrays of `keys`.
    pub(crate) async fn load(&self, keys: KeyRange) -> Result<Loaded, CheckpointError> {
        let total = self.manifest.stamp.keys;
        let len = usize::try_from(keys.len).ok();
        let Some(len) = len.filter(|_| keys.start.checked_add(keys.len).is_some_and(|end| end <= total))
        else {
            let KeyRange { start, len } = keys;
            return Err(CheckpointError::unfit(format!("{len} keys from {start} of a model with {total}")));
        };
        // Before room is made: the manifest was checked against the sizes of its files, these are the files.
        self.check_sizes().await?;
        let names = self.manifest.parts.first().map_or(&[][..], |part| &part.arrays);
        let mut values: Vec<Vec<f32>> = names.iter().map(|_| vec![0.0; len]).collect();
        let (mut sources, mut origins) = (Vec::new(), Vec::new());
        let mut open = all_of(keys);
        for entry in self.manifest.files() {
            let own = entry.number == self.manifest.number;
            let runs = entry.runs().map(|run| both(run, keys)).filter(|run| !run.is_empty());
            let taken = take(&mut open, runs);
            let facts_too = own && !both(entry.keys, keys).is_empty();
            if taken.is_empty() && !facts_too {
                continue;
            }
            let opened = self.open(entry).await?;
            let span = if facts_too { opened.header.facts } else { Span::default() };
            let mut facts = vec![0; span.len as usize];
            let mut copies = copies_of(&opened, &taken, keys.start);
            copies.push(Copy { at: span.at, len: span.len, buffer: values.len(), to: 0 });
            copies.sort_by_key(|copy| copy.at);
            let mut buffers: Vec<&mut [u8]> =
                values.iter_mut().map(|values| bytemuck::cast_slice_mut(values.as_mut_slice())).collect();
            buffers.push(&mut facts);
            self.fill(&opened, &copies, false, &mut buffers).await?;
            origins.extend(taken.into_iter().map(|keys| Origin { keys, number: entry.number }));
            if facts_too {
                let PartEntry { shard, keys, version, .. } = *entry;
                sources.push(Source { shard, keys, version, facts });
            }
        }
        let arrays = names.iter().zip(values);
        let arrays =
            arrays.map(|(name, values)| Array { name: name.clone(), values: Arc::new(values) }).collect();
        Ok(Loaded { keys, arrays, sources, origins: joined(origins) })
    }
}

/// Where the values of the `taken` keys lie, for buffers that begin at key `start`. The file's runs hold all of `taken`.
fn copies_of(opened: &Opened<'_>, taken: &[KeyRange], start: u64) -> Vec<Copy> {
    // Of each taken range: how many values of the array come before it in the file.
    let mut before = Vec::with_capacity(taken.len());
    let mut runs = opened.entry.runs();
    let (mut passed, mut run) = (0, KeyRange::default());
    for range in taken {
        while run.end() <= range.start {
            passed += run.len;
            let Some(next) = runs.next() else { return Vec::new() };
            run = next;
        }
        before.push(passed + (range.start - run.start));
    }
    let mut copies = Vec::with_capacity(taken.len() * opened.header.arrays.len());
    for array in &opened.header.arrays {
        let Some(buffer) = opened.entry.arrays.iter().position(|name| *name == array.name) else { continue };
        for (range, before) in taken.iter().zip(&before) {
            let (at, to) = (array.span.at + before * 4, (range.start - start) as usize * 4);
            copies.push(Copy { at, len: range.len * 4, buffer, to });
        }
    }
    copies
}

/// The pieces that hold the bytes of `copies`, rising.
fn pieces_of(copies: &[Copy]) -> Vec<u64> {
    let mut pieces: Vec<u64> = Vec::new();
    for copy in copies.iter().filter(|copy| copy.len > 0) {
        let next = pieces.last().map_or(0, |last| last + 1);
        pieces.extend((copy.at / PIECE).max(next)..=(copy.at + copy.len - 1) / PIECE);
    }
    pieces
}

/// Copies what `extent` of the file holds; answers the copies that are not complete yet.
fn spread<'c>(copies: &'c [Copy], extent: Range<u64>, bytes: &[u8], buffers: &mut [&mut [u8]]) -> &'c [Copy] {
    let mut done = 0;
    for copy in copies {
        let end = copy.at + copy.len;
        let (from, to) = (copy.at.max(extent.start), end.min(extent.end));
        if from < to {
            let source = &bytes[(from - extent.start) as usize..(to - extent.start) as usize];
            let place = copy.to + (from - copy.at) as usize;
            buffers[copy.buffer][place..place + source.len()].copy_from_slice(source);
        }
        if end > extent.end {
            break;
        }
        done += 1;
    }
    &copies[done..]
}

/// Sorts origins by their keys and joins neighbours of one number.
fn joined(mut origins: Vec<Origin>) -> Vec<Origin> {
    origins.sort_by_key(|origin| origin.keys.start);
    let mut joined: Vec<Origin> = Vec::new();
    for origin in origins {
        match joined.last_mut() {
            Some(last) if last.number == origin.number && last.keys.end() == origin.keys.start => {
                last.keys.len += origin.keys.len;
            }
            _ => joined.push(origin),
        }
    }
    joined
}
