//! One part: a safetensors file with a shard's arrays, and how its bytes are laid out and read.
//!
//! The tensors, in this order: `blocks` (I64, the numbers of the blocks held; only in a partial part), the arrays (F32, one value for each
//! key held), `facts` (U8). The header's metadata has one entry, `slackline`: a JSON text with the stamp, shard, keys and version.

use std::collections::HashMap;
use std::sync::Arc;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use slackline_core::ids::{KeyRange, ShardId, Version};

use crate::blocks::{Blocks, block_count};
use crate::error::{CheckpointError, Damage};
use crate::hash::StateHash;
use crate::manifest::{FORMAT, PartEntry, Stamp};

/// Most bytes of a part's header; room for thousands of arrays. Less than a piece, so that the first piece holds it.
const HEADER_MAX: u64 = 1 << 20;
/// Bytes before the header: its length.
const LENGTH: u64 = 8;
const FACTS: &str = "facts";
const BLOCKS: &str = "blocks";
const LABEL: &str = "slackline";

/// One named array of a shard, with one value for each of its keys: `values`, an optimizer slot, gradients collected so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Its name. All parts of a checkpoint must hold arrays of the same names in the same order. `facts` and `blocks` are taken.
    pub name: String,
    /// The values, in order of the keys. Shared, so that a checkpoint can be written while the shard goes on with a copy.
    pub values: Arc<Vec<f32>>,
}

/// What is written for one shard. Cloning it copies no array.
#[derive(Clone, Debug)]
pub struct Part {
    /// The shard.
    pub shard: ShardId,
    /// Its keys; at least one.
    pub keys: KeyRange,
    /// Its version at the cut.
    pub version: Version,
    /// All of its arrays, each as long as the keys, also where only some blocks are to be written.
    pub arrays: Vec<Array>,
    /// Its clocks, windows, sequence numbers: bytes that are opaque here.
    pub facts: Arc<Vec<u8>>,
    /// The blocks to write; all where there is none.
    pub blocks: Option<Blocks>,
}

/// What a part's header says about it, in the JSON text under `slackline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Label {
    format: u32,
    pub(crate) number: u64,
    pub(crate) shard: ShardId,
    keys: KeyRange,
    version: Version,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block_len: Option<u32>,
    pub(crate) stamp: Stamp,
}

/// A place in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Its first byte, from the beginning of the file.
    pub at: u64,
    /// Bytes.
    pub len: u64,
}

/// An array within a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayPlace {
    /// Its name.
    pub name: String,
    /// Where its values lie, four bytes each, little-endian.
    pub span: Span,
}

/// A part's header, checked: every place lies within the file, and the places follow one another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartHeader {
    /// The run.
    pub stamp: Stamp,
    /// The checkpoint.
    pub number: u64,
    /// The shard.
    pub shard: ShardId,
    /// The shard's keys.
    pub keys: KeyRange,
    /// The shard's version at the cut.
    pub version: Version,
    /// Keys of a block, if the part holds some blocks only.
    pub block_len: Option<u32>,
    /// The arrays, in the order in which they lie in the file (any order where they have no values). All are of the same length: the keys,
    /// or the keys of the blocks held.
    pub arrays: Vec<ArrayPlace>,
    /// Where the numbers of the blocks held lie, eight bytes each, little-endian.
    pub index: Option<Span>,
    /// Where the facts lie.
    pub facts: Span,
}

/// The bytes of a part file, ready to be written without a copy of the arrays.
#[derive(Debug)]
pub(crate) struct Image {
    header: Vec<u8>,
    index: Vec<i64>,
    arrays: Vec<Array>,
    /// The shard's first key.
    start: u64,
    /// The keys whose values are written of each array.
    runs: Vec<KeyRange>,
    facts: Arc<Vec<u8>>,
    pub(crate) bytes: u64,
}

impl Image {
    /// Lays out `part`.
    pub(crate) fn new(stamp: Stamp, number: u64, part: &Part) -> Result<Self, CheckpointError> {
        check(&stamp, part)?;
        let label = Label {
            format: FORMAT,
            number,
            shard: part.shard,
            keys: part.keys,
            version: part.version,
            block_len: part.blocks.as_ref().map(Blocks::block_len),
            stamp,
        };
        let (index, runs) = match &part.blocks {
            None => (Vec::new(), vec![part.keys]),
            // The number of a block is below that of keys in memory.
            Some(blocks) => (
                blocks.chosen().map(|block| block as i64).collect(),
                blocks.runs(part.keys).collect::<Vec<_>>(),
            ),
        };
        let held = runs.iter().map(|run| run.len as usize).sum();
        let mut tensors = Vec::new();
        let mut end = 0;
        let mut add = |name: &str, dtype, count: usize, width: usize| {
            let data_offsets = (end, end + count * width);
            end = data_offsets.1;
            tensors.push((name.to_owned(), TensorInfo { dtype, shape: vec![count], data_offsets }));
        };
        if part.blocks.is_some() {
            add(BLOCKS, Dtype::I64, index.len(), 8);
        }
        for array in &part.arrays {
            add(&array.name, Dtype::F32, held, 4);
        }
        add(FACTS, Dtype::U8, part.facts.len(), 1);
        let header = header_bytes(&label, tensors)?;
        let bytes = header.len() as u64 + end as u64;
        let (start, arrays, facts) = (part.keys.start, part.arrays.clone(), Arc::clone(&part.facts));
        Ok(Self { header, index, arrays, start, runs, facts, bytes })
    }

    /// The file, slice after slice.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let place = |run: &KeyRange| KeyRange::new(run.start - self.start, run.len).as_indices();
        let arrays = self.arrays.iter().flat_map(move |array| {
            self.runs.iter().map(move |run| bytemuck::cast_slice(&array.values[place(run)]))
        });
        [self.header.as_slice(), bytemuck::cast_slice(&self.index)]
            .into_iter()
            .chain(arrays)
            .chain([self.facts.as_slice()])
    }
}

/// Whether `part` can be written.
fn check(stamp: &Stamp, part: &Part) -> Result<(), CheckpointError> {
    let unfit = |why: String| Err(CheckpointError::unfit(format!("{}: {why}", part.shard)));
    if part.keys.is_empty() || part.keys.start.checked_add(part.keys.len).is_none_or(|end| end > stamp.keys) {
        return unfit(format!("its {} keys do not lie within the model's {}", part.keys.len, stamp.keys));
    }
    if part.arrays.is_empty() {
        return unfit("it has no array".into());
    }
    for (at, array) in part.arrays.iter().enumerate() {
        if [FACTS, BLOCKS, "__metadata__"].contains(&array.name.as_str())
            || part.arrays[..at].iter().any(|other| other.name == array.name)
        {
            return unfit(format!("an array cannot be called {}, the name is taken", array.name));
        }
        if array.values.len() as u64 != part.keys.len {
            let (found, keys) = (array.values.len(), part.keys.len);
            return unfit(format!("array {} has {found} values for {keys} keys", array.name));
        }
    }
    match &part.blocks {
        Some(blocks) if !blocks.fits(part.keys) => unfit("the blocks are not those of its keys".into()),
        _ => Ok(()),
    }
}

/// Length, header, and spaces up to a multiple of eight, so that the values are aligned for readers that map the file.
fn header_bytes(label: &Label, tensors: Vec<(String, TensorInfo)>) -> Result<Vec<u8>, CheckpointError> {
    let unfit = |error: String| CheckpointError::unfit(error);
    // One entry only: several would be written in random order, and equal parts would differ in their checksums.
    let text = serde_json::to_string(label).map_err(|error| unfit(error.to_string()))?;
    let metadata = HashMap::from([(LABEL.to_owned(), text)]);
    let header = Metadata::new(Some(metadata), tensors).map_err(|error| unfit(error.to_string()))?;
    let mut json = serde_json::to_vec(&header).map_err(|error| unfit(error.to_string()))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    if json.len() as u64 > HEADER_MAX {
        return Err(unfit("its arrays have too many or too long names".into()));
    }
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    Ok(bytes)
}

/// [`StateHash`] of all of a part's arrays.
pub(crate) fn state_of(part: &Part) -> StateHash {
    let mut hash = StateHash::new();
    hash.add_arrays(part.keys.start, &part.arrays);
    hash
}

/// Reads the label and the table of tensors from the first bytes of a file; also answers where the tensors begin.
fn read_header(file: &str, prefix: &[u8]) -> Result<(Label, Metadata, u64), Damage> {
    let not = |why: String| Damage::NotAPart { file: file.to_owned(), why };
    let Some((length, rest)) = prefix.split_first_chunk::<8>() else {
        return Err(not("it is shorter than the length of its header".into()));
    };
    let length = u64::from_le_bytes(*length);
    if length > HEADER_MAX {
        return Err(not(format!("its header would have {length} bytes")));
    }
    let Some(json) = rest.get(..length as usize) else {
        return Err(not("it ends within its header".into()));
    };
    let header: Metadata = serde_json::from_slice(json).map_err(|error| not(error.to_string()))?;
    let label = header.metadata().as_ref().and_then(|entries| entries.get(LABEL));
    let Some(label) = label else {
        return Err(not("it is a safetensors file, but not one of Slackline's checkpoints".into()));
    };
    #[derive(Deserialize)]
    struct AnyFormat {
        format: u32,
    }
    let any: AnyFormat = serde_json::from_str(label).map_err(|error| not(error.to_string()))?;
    if any.format > FORMAT {
        return Err(Damage::Newer { file: file.to_owned(), format: any.format, known: FORMAT });
    }
    let label = serde_json::from_str(label).map_err(|error| not(error.to_string()))?;
    Ok((label, header, LENGTH + length))
}

/// Refuses a file that is another part than `entry` says, or of another run. `own` is false for a file beneath the manifest's own, which
/// may have been written under another configuration of the same run.
pub(crate) fn check_label(
    file: &str,
    prefix: &[u8],
    stamp: &Stamp,
    entry: &PartEntry,
    own: bool,
) -> Result<(), Damage> {
    let (label, ..) = read_header(file, prefix)?;
    let mut expected = *stamp;
    if !own {
        expected.config_hash = label.stamp.config_hash;
    }
    expected.compare(&label.stamp, file)?;
    if (label.shard, label.number) != (entry.shard, entry.number) {
        return Err(Damage::Misplaced {
            file: file.to_owned(),
            shard: entry.shard,
            number: entry.number,
            found_shard: label.shard,
            found_number: label.number,
        });
    }
    Ok(())
}

impl PartHeader {
    /// Reads the header from the first bytes of a file that has `total` bytes; `file` is what errors call it. Pure, made for untrusted bytes.
    ///
    /// # Errors
    /// It is no part, of a newer format, or longer or shorter than its header says.
    pub fn parse(file: &str, prefix: &[u8], total: u64) -> Result<Self, Damage> {
        let (label, table, begin) = read_header(file, prefix)?;
        let not = |why: &str| Damage::NotAPart { file: file.to_owned(), why: why.to_owned() };
        let expected = begin.saturating_add(table.data_len() as u64);
        if expected != total {
            return Err(Damage::Torn { file: file.to_owned(), expected, found: total });
        }
        if label.keys.is_empty() || label.keys.start.checked_add(label.keys.len).is_none() {
            return Err(not("its range of keys is none"));
        }
        let (mut arrays, mut index, mut facts) = (Vec::new(), None, None);
        for name in table.offset_keys() {
            let Some(tensor) = table.info(&name) else { continue };
            let (from, to) = tensor.data_offsets;
            let span = Span { at: begin.saturating_add(from as u64), len: (to - from) as u64 };
            match (name.as_str(), tensor.dtype) {
                (BLOCKS, Dtype::I64) => index = Some(span),
                (FACTS, Dtype::U8) => facts = Some(span),
                (BLOCKS | FACTS, _) => return Err(not("its blocks or facts are of another kind")),
                (_, Dtype::F32) if span.at.is_multiple_of(4) => arrays.push(ArrayPlace { name, span }),
                _ => return Err(not("an array of it is not of aligned 32-bit floating-point values")),
            }
        }
        let Some(facts) = facts else { return Err(not("it has no facts")) };
        let header = Self {
            stamp: label.stamp,
            number: label.number,
            shard: label.shard,
            keys: label.keys,
            version: label.version,
            block_len: label.block_len,
            arrays,
            index,
            facts,
        };
        header.check().map_or(Ok(header), |why| Err(not(why)))
    }

    fn check(&self) -> Option<&'static str> {
        let len = self.arrays.first().map(|array| array.span.len);
        if len.is_none() || self.arrays.iter().any(|array| Some(array.span.len) != len) {
            return Some("its arrays are not of one length");
        }
        let held = u128::from(len.unwrap_or(0) / 4);
        let fits = match (self.block_len, self.index) {
            (None, None) => held == u128::from(self.keys.len),
            (Some(1..), Some(_)) => held <= u128::from(self.keys.len),
            _ => return Some("it says only half of which blocks it holds"),
        };
        (!fits).then_some("its arrays do not have one value a key")
    }

    /// Whether the manifest's entry describes this part.
    pub(crate) fn matches(&self, entry: &PartEntry) -> bool {
        self.keys == entry.keys
            && self.version == entry.version
            && self.block_len == entry.blocks.as_ref().map(Blocks::block_len)
            // Arrays without values all lie in one place, and come in any order.
            && self.arrays.len() == entry.arrays.len()
            && self.arrays.iter().all(|array| entry.arrays.contains(&array.name))
            && self.arrays.iter().all(|array| array.span.len == entry.held() * 4)
    }

    /// The blocks that an index of raw bytes names, if they rise and lie within the shard.
    pub(crate) fn blocks_of(&self, index: &[u8]) -> Option<Vec<u32>> {
        let count = block_count(self.keys.len, self.block_len?);
        let mut numbers = Vec::with_capacity(index.len() / 8);
        for bytes in index.chunks(8) {
            let block = u64::try_from(i64::from_le_bytes(bytes.try_into().ok()?)).ok()?;
            if block >= count || numbers.last().is_some_and(|last| u64::from(*last) >= block) {
                return None;
            }
            numbers.push(u32::try_from(block).ok()?);
        }
        Some(numbers)
    }
}

/// A part file in memory, checked.
#[derive(Clone, Debug)]
pub struct ParsedPart<'a> {
    /// Its header.
    pub header: PartHeader,
    bytes: &'a [u8],
}

impl<'a> ParsedPart<'a> {
    /// The raw bytes of a place that the header names.
    #[must_use]
    pub fn bytes(&self, span: Span) -> &'a [u8] {
        let end = span.at.saturating_add(span.len);
        usize::try_from(span.at)
            .ok()
            .zip(usize::try_from(end).ok())
            .map_or(&[], |(at, end)| self.bytes.get(at..end).unwrap_or(&[]))
    }

    /// The shard's facts.
    #[must_use]
    pub fn facts(&self) -> &'a [u8] {
        self.bytes(self.header.facts)
    }

    /// The values of an array, if there is one of that name.
    #[must_use]
    pub fn values(&self, name: &str) -> Option<Vec<f32>> {
        let place = self.header.arrays.iter().find(|array| array.name == name)?;
        let four = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Some(self.bytes(place.span).chunks_exact(4).map(four).collect())
    }
}

/// Reads a whole part file; `file` is what errors call it. Pure, made for untrusted bytes. Checksums are the manifest's affair.
///
/// # Errors
/// As [`PartHeader::parse`], and where the numbers of its blocks do not rise, lie outside the shard or do not fit the arrays.
pub fn parse_part<'a>(file: &str, bytes: &'a [u8]) -> Result<ParsedPart<'a>, Damage> {
    let header = PartHeader::parse(file, bytes, bytes.len() as u64)?;
    let parsed = ParsedPart { header, bytes };
    if let (Some(index), Some(block_len)) = (parsed.header.index, parsed.header.block_len) {
        let held = parsed.header.arrays.first().map_or(0, |array| array.span.len / 4);
        let keys = u128::from(parsed.header.keys.len);
        let good = parsed.header.blocks_of(parsed.bytes(index)).is_some_and(|blocks| {
            let block_len = u128::from(block_len);
            let end = blocks.last().map_or(0, |last| (u128::from(*last) + 1) * block_len);
            // The shard's last block may be shorter than the others.
            u128::from(held) == blocks.len() as u128 * block_len - end.saturating_sub(keys)
        });
        if !good {
            let why = "its blocks are not in order or do not fit its arrays".to_owned();
            return Err(Damage::NotAPart { file: file.to_owned(), why });
        }
    }
    Ok(parsed)
}
