//! The manifest: what a checkpoint consists of, and to which run it belongs.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use slackline_core::ids::{Clock, KeyRange, ShardId, Version};

use crate::blocks::Blocks;
use crate::cover::{all_of, take};
use crate::error::{CheckpointError, Damage};
use crate::hash::StateHash;
use crate::pieces::PIECE;
use crate::place::{manifest_file, part_file};

/// The format of parts and manifests that is written here, and the newest that is read.
pub const FORMAT: u32 = 1;

/// Most bytes of a manifest: that of a shard of 10^10 values in blocks of 256 with 32 files beneath it is still smaller.
pub(crate) const MANIFEST_MAX: u64 = 256 << 20;

/// A run, from its first beginning on: drawn at random once, and kept by every process that resumes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(#[serde(with = "crate::hex")] pub u64);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What every file of a checkpoint says about the run it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// The run.
    pub run: RunId,
    /// Fingerprint of its configuration.
    #[serde(with = "crate::hex")]
    pub config_hash: u64,
    /// Fingerprint of its model's layout.
    #[serde(with = "crate::hex")]
    pub layout_hash: u64,
    /// Values of the model.
    pub keys: u64,
}

/// What a checkpoint must belong to in order to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// The run, where it is known already. Who resumes takes it from the manifest.
    pub run: Option<RunId>,
    /// Fingerprint of the configuration; `None` where another one may take the run on.
    pub config_hash: Option<u64>,
    /// Fingerprint of the model's layout.
    pub layout_hash: u64,
    /// Values of the model.
    pub keys: u64,
}

impl Stamp {
    /// Refuses a file of `file`'s stamp where this one belongs.
    pub(crate) fn compare(&self, found: &Self, file: &str) -> Result<(), Damage> {
        let Self { run, config_hash, layout_hash, keys } = *self;
        Expect { run: Some(run), config_hash: Some(config_hash), layout_hash, keys }.compare(found, file)
    }
}

impl Expect {
    /// Refuses a manifest in the place `at` that is not of the run expected.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], with what it is of.
    pub fn check(&self, manifest: &Manifest, at: &str) -> Result<(), CheckpointError> {
        let file = format!("{}/{}", at.trim_end_matches('/'), manifest_file(manifest.number));
        self.compare(&manifest.stamp, &file)
            .map_err(|damage| CheckpointError::damaged(manifest.number, damage))
    }

    /// Refuses the file with the stamp `found`, if it is not of the run expected.
    pub(crate) fn compare(&self, found: &Stamp, file: &str) -> Result<(), Damage> {
        let file = || file.to_owned();
        if let Some(expected) = self.run.filter(|run| *run != found.run) {
            return Err(Damage::OtherRun { file: file(), expected, found: found.run });
        }
        if (self.layout_hash, self.keys) != (found.layout_hash, found.keys) {
            return Err(Damage::OtherLayout {
                file: file(),
                expected: self.layout_hash,
                expected_keys: self.keys,
                found: found.layout_hash,
                found_keys: found.keys,
            });
        }
        if let Some(expected) = self.config_hash.filter(|hash| *hash != found.config_hash) {
            return Err(Damage::OtherConfig { file: file(), expected, found: found.config_hash });
        }
        Ok(())
    }
}

/// Which blocks a checkpoint saved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Kind {
    /// All. It stands alone.
    Full,
    /// Those that moved furthest since they were last saved (SCAR, Qiao et al. 2019). What is loaded is of mixed age: each block as it was
    /// last saved.
    Priority {
        /// The share of each shard's blocks that was saved, 0 to 1.
        share: f64,
    },
    /// Those that changed at all since they were last saved. What is loaded is the exact state at the cut.
    Incremental,
}

/// One part file, as the writer answers it and as a manifest names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartEntry {
    /// The checkpoint that it was written for.
    pub number: u64,
    /// The shard.
    pub shard: ShardId,
    /// The shard's keys, whether or not all are held here.
    pub keys: KeyRange,
    /// The shard's version at the cut.
    pub version: Version,
    /// Its path below the folder of checkpoints.
    pub file: String,
    /// Its size.
    pub bytes: u64,
    /// xxh3 (64 bits) of the whole file, as `xxhsum -H3` prints it.
    #[serde(with = "crate::hex")]
    pub checksum: u64,
    /// xxh3 of each piece of [`PIECE`] bytes.
    #[serde(with = "crate::hex::list")]
    pub pieces: Vec<u64>,
    /// Names of the arrays held, in order.
    pub arrays: Vec<String>,
    /// [`StateHash`] of all of the shard's arrays at the cut, whether or not all blocks are held here.
    #[serde(with = "crate::hex")]
    pub state: u64,
    /// The blocks held; all where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Blocks>,
}

impl PartEntry {
    /// The keys whose values the file holds: sorted, neighbours joined.
    pub(crate) fn runs(&self) -> Box<dyn Iterator<Item = KeyRange> + '_> {
        match &self.blocks {
            Some(blocks) => Box::new(blocks.runs(self.keys)),
            None => Box::new(all_of(self.keys).into_iter()),
        }
    }

    /// Number of values that each array in the file has.
    pub(crate) fn held(&self) -> u64 {
        self.runs().map(|run| run.len).sum()
    }

    /// Why this cannot be an entry of checkpoint `number` of a model with `keys` values, if it cannot.
    fn fault(&self, number: u64, keys: u64) -> Option<&'static str> {
        if self.number > number {
            return Some("it names a part of a later checkpoint");
        }
        if self.file != part_file(self.number, self.shard) {
            return Some("a part's file does not have the name that belongs to it");
        }
        if self.keys.start.checked_add(self.keys.len).is_none_or(|end| end > keys) {
            return Some("a part reaches beyond the model");
        }
        if self.keys.is_empty() {
            return Some("a part has no keys");
        }
        if self.pieces.len() as u64 != self.bytes.div_ceil(PIECE) {
            return Some("a part does not have a checksum for each piece");
        }
        if self.blocks.as_ref().is_some_and(|blocks| !blocks.fits(self.keys)) {
            return Some("a part's blocks are not those of its keys");
        }
        let mut names = BTreeSet::new();
        if self.arrays.is_empty() || !self.arrays.iter().all(|name| names.insert(name)) {
            return Some("a part has no arrays, or two of one name");
        }
        // So that no more is made room for than the files hold.
        let values = u128::from(self.held()) * self.arrays.len() as u128 * 4;
        (values > u128::from(self.bytes)).then_some("a part is too short for its arrays")
    }
}

/// A whole checkpoint: the parts, and what is known about all of them. It is committed by [`Store::commit`](crate::Store::commit).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`] of the writer.
    pub format: u32,
    /// The number of the checkpoint; rises within a folder.
    pub number: u64,
    /// The run.
    pub stamp: Stamp,
    /// Which blocks it saved.
    pub kind: Kind,
    /// The run's seed.
    pub seed: u64,
    /// The clock of the marker that cut all shards.
    pub clock: Clock,
    /// Samples that the run has used up to the cut.
    pub samples_done: u64,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// Its own parts, one for each shard with keys, by their first key.
    pub parts: Vec<PartEntry>,
    /// Files of earlier checkpoints that still hold the newest copy of some block, newest first; see [`Manifest::bases_after`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bases: Vec<PartEntry>,
    /// What the coordinator needs to go on (schedule, data position); opaque here. Floating-point numbers come back bit for bit.
    pub coordinator: serde_json::Value,
}

/// The fields that every format keeps in this place, so that a newer one is recognised.
#[derive(Deserialize)]
struct AnyFormat {
    format: u32,
}

impl Manifest {
    /// The `bases` of a checkpoint with these `parts` that follows `previous`: of the files that `previous` names, newest first, those that
    /// hold a block which no newer file holds. A file whose blocks have all been saved again is left out, and with the last manifest that
    /// names it it is removed. Empty when the parts hold all.
    ///
    /// The division into shards need not be that of `previous`, but the model must be.
    #[must_use]
    pub fn bases_after(previous: &Self, parts: &[PartEntry]) -> Vec<PartEntry> {
        let mut open = all_of(KeyRange::new(0, previous.stamp.keys));
        for part in parts {
            take(&mut open, part.runs());
        }
        let mut older: Vec<&PartEntry> = previous.parts.iter().chain(&previous.bases).collect();
        // The sort keeps the order among files of one checkpoint, which have no key in common.
        older.sort_by_key(|entry| std::cmp::Reverse(entry.number));
        older.retain(|entry| !take(&mut open, entry.runs()).is_empty());
        older.into_iter().cloned().collect()
    }

    /// Fingerprint of the whole model's arrays as loading gives them. `None` for a priority checkpoint, whose blocks are of mixed age.
    #[must_use]
    pub fn state_hash(&self) -> Option<StateHash> {
        if matches!(self.kind, Kind::Priority { .. }) {
            return None;
        }
        let mut hash = StateHash::new();
        for part in &self.parts {
            hash.merge(StateHash::from_value(part.state));
        }
        Some(hash)
    }

    /// All files that loading may read, newest first.
    pub fn files(&self) -> impl Iterator<Item = &PartEntry> {
        self.parts.iter().chain(&self.bases)
    }

    /// The bytes of the file, or why there can be none.
    pub(crate) fn encode(&self, file: &str) -> Result<Vec<u8>, CheckpointError> {
        self.check(file).map_err(|damage| CheckpointError::unfit(damage.to_string()))?;
        let mut bytes =
            serde_json::to_vec_pretty(self).map_err(|error| CheckpointError::unfit(error.to_string()))?;
        // The closing bracket and the line end before it make room for the checksum, the last field.
        bytes.truncate(bytes.len().saturating_sub(2));
        let checksum = xxhash_rust::xxh3::xxh3_64(&bytes);
        bytes.extend_from_slice(SEAL_BEFORE);
        bytes.extend_from_slice(format!("{checksum:016x}").as_bytes());
        bytes.extend_from_slice(SEAL_AFTER);
        if bytes.len() as u64 > MANIFEST_MAX {
            return Err(CheckpointError::unfit("the manifest is too long; choose larger blocks"));
        }
        Ok(bytes)
    }

    /// Whether its parts belong together and cover the model.
    pub(crate) fn check(&self, file: &str) -> Result<(), Damage> {
        let not = |why: &str| Damage::NotAManifest { file: file.to_owned(), why: why.to_owned() };
        let keys = self.stamp.keys;
        for entry in self.files() {
            if let Some(why) = entry.fault(self.number, keys) {
                return Err(not(why));
            }
            if self.parts.first().is_some_and(|first| first.arrays != entry.arrays) {
                return Err(not("its parts hold different arrays"));
            }
        }
        if self.parts.iter().any(|part| part.number != self.number) {
            return Err(not("one of its own parts is of another checkpoint"));
        }
        if self.bases.windows(2).any(|pair| pair[0].number < pair[1].number)
            || self.bases.first().is_some_and(|base| base.number >= self.number)
        {
            return Err(not("the files beneath it are not in order"));
        }
        if matches!(self.kind, Kind::Full) && self.files().any(|entry| entry.blocks.is_some()) {
            return Err(not("it is called full, but a part holds blocks only"));
        }
        self.check_shards(file)?;
        let mut open = all_of(KeyRange::new(0, keys));
        for entry in self.files() {
            take(&mut open, entry.runs());
        }
        match open.first() {
            Some(left) => Err(Damage::Gap { file: file.to_owned(), key: left.start }),
            None => Ok(()),
        }
    }

    /// Whether the shards of its own parts follow one another without gap or overlap.
    fn check_shards(&self, file: &str) -> Result<(), Damage> {
        let mut next = 0;
        let mut shards = BTreeSet::new();
        for part in &self.parts {
            if part.keys.start > next {
                break;
            }
            if part.keys.start < next {
                return Err(Damage::Overlap { file: file.to_owned(), key: part.keys.start });
            }
            if !shards.insert(part.shard) {
                let why = format!("it names two parts of {}", part.shard);
                return Err(Damage::NotAManifest { file: file.to_owned(), why });
            }
            next = part.keys.end();
        }
        if next == self.stamp.keys { Ok(()) } else { Err(Damage::Gap { file: file.to_owned(), key: next }) }
    }
}

const SEAL_BEFORE: &[u8] = b",\n  \"checksum\": \"";
const SEAL_AFTER: &[u8] = b"\"\n}\n";
const SEAL_LEN: usize = SEAL_BEFORE.len() + 16 + SEAL_AFTER.len();

/// Reads a manifest from its bytes; `file` is what errors call it. Pure, made for untrusted bytes.
///
/// # Errors
/// It is none, of a newer format, has a wrong checksum, or its parts do not cover the model exactly once.
pub fn parse_manifest(file: &str, bytes: &[u8]) -> Result<Manifest, Damage> {
    let not = |why: String| Damage::NotAManifest { file: file.to_owned(), why };
    // The format comes first: another one may be sealed in another way.
    let format = serde_json::from_slice::<AnyFormat>(bytes).map(|any| any.format);
    if let Ok(format) = format
        && format > FORMAT
    {
        return Err(Damage::Newer { file: file.to_owned(), format, known: FORMAT });
    }
    let sealed = bytes.len().checked_sub(SEAL_LEN).map(|at| bytes.split_at(at));
    let checksum = sealed
        .and_then(|(_, seal)| crate::hex::number(seal.strip_prefix(SEAL_BEFORE)?.strip_suffix(SEAL_AFTER)?));
    let (Some((body, _)), Some(checksum)) = (sealed, checksum) else {
        let why = match format {
            Ok(_) => "it does not end in its checksum; was it edited?".to_owned(),
            Err(error) => format!("{error}; it may have been cut short"),
        };
        return Err(not(why));
    };
    if xxhash_rust::xxh3::xxh3_64(body) != checksum {
        return Err(Damage::Rotten { file: file.to_owned(), from: 0, to: body.len() as u64 });
    }
    let manifest: Manifest = serde_json::from_slice(bytes).map_err(|error| not(error.to_string()))?;
    manifest.check(file)?;
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(number: u64, shard: u32, keys: KeyRange, blocks: Option<&[u32]>) -> PartEntry {
        PartEntry {
            number,
            shard: ShardId(shard),
            keys,
            version: Version(3),
            file: part_file(number, ShardId(shard)),
            bytes: 4096,
            checksum: 1,
            pieces: vec![u64::MAX],
            arrays: vec!["values".into()],
            state: 7,
            blocks: blocks.map(|blocks| Blocks::new(keys, 4, blocks)),
        }
    }

    fn manifest(number: u64, parts: Vec<PartEntry>) -> Manifest {
        let kind =
            if parts.iter().any(|part| part.blocks.is_some()) { Kind::Incremental } else { Kind::Full };
        Manifest {
            format: FORMAT,
            number,
            stamp: Stamp { run: RunId(1), config_hash: 2, layout_hash: 3, keys: 32 },
            kind,
            seed: u64::MAX,
            clock: Clock(9),
            samples_done: 12,
            created: 0,
            parts,
            bases: Vec::new(),
            coordinator: serde_json::json!({ "rate": 0.1_f64 + 0.2, "position": [1, 2] }),
        }
    }

    fn two() -> Manifest {
        manifest(1, vec![entry(1, 0, KeyRange::new(0, 16), None), entry(1, 1, KeyRange::new(16, 16), None)])
    }

    #[test]
    fn a_manifest_comes_back_and_is_plain_json() {
        let bytes = two().encode("m").unwrap();
        assert_eq!(parse_manifest("m", &bytes).unwrap(), two());
        let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(value["stamp"]["run"], "0000000000000001");
        assert_eq!(value["coordinator"]["rate"].as_f64(), Some(0.1 + 0.2));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let bytes = two().encode("m").unwrap();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(parse_manifest("m", &bad).is_err(), "bit in byte {at}");
            assert!(parse_manifest("m", &bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn shards_must_follow_one_another() {
        let parts = |second: KeyRange| {
            manifest(1, vec![entry(1, 0, KeyRange::new(0, 16), None), entry(1, 1, second, None)]).check("m")
        };
        assert_eq!(parts(KeyRange::new(16, 16)), Ok(()));
        let file = "m".to_owned();
        assert_eq!(parts(KeyRange::new(15, 17)), Err(Damage::Overlap { file: file.clone(), key: 15 }));
        assert_eq!(parts(KeyRange::new(17, 15)), Err(Damage::Gap { file: file.clone(), key: 16 }));
        assert_eq!(parts(KeyRange::new(16, 15)), Err(Damage::Gap { file: file.clone(), key: 31 }));
        assert_eq!(manifest(1, vec![]).check("m"), Err(Damage::Gap { file, key: 0 }));
    }

    #[test]
    fn a_file_beneath_stays_named_until_all_its_blocks_are_saved_again() {
        let keys = KeyRange::new(0, 32);
        let full = manifest(1, vec![entry(1, 0, keys, None)]);
        let next = |number, previous: &Manifest, blocks: &[u32]| {
            let mut next = manifest(number, vec![entry(number, 0, keys, Some(blocks))]);
            next.bases = Manifest::bases_after(previous, &next.parts);
            next.check("m").unwrap();
            next
        };
        let numbers = |manifest: &Manifest| manifest.bases.iter().map(|base| base.number).collect::<Vec<_>>();
        let second = next(2, &full, &[0, 1, 2]);
        let third = next(3, &second, &[2, 3, 4]);
        assert_eq!((numbers(&second), numbers(&third)), (vec![1], vec![2, 1]));
        let fourth = next(4, &third, &[0, 1, 7]);
        assert_eq!(numbers(&fourth), [3, 1], "all that the second held is held by the third and fourth");
        let fifth = next(5, &fourth, &[5, 6]);
        assert_eq!(numbers(&fifth), [4, 3], "nothing is left of the full one");
    }

    #[test]
    fn partial_parts_without_anything_beneath_leave_a_gap() {
        let lone = manifest(2, vec![entry(2, 0, KeyRange::new(0, 32), Some(&[0, 2]))]);
        assert_eq!(lone.check("m"), Err(Damage::Gap { file: "m".into(), key: 4 }));
    }

    #[test]
    fn a_part_that_would_be_read_from_elsewhere_is_refused() {
        let mut escaping = two();
        escaping.parts[0].file = "../../secret".into();
        assert!(matches!(escaping.check("m"), Err(Damage::NotAManifest { .. })));
        let mut huge = two();
        (huge.stamp.keys, huge.parts[1].keys.len) = (1 << 60, (1 << 60) - 16);
        assert!(
            matches!(huge.check("m"), Err(Damage::NotAManifest { .. })),
            "no room is made for what no file holds"
        );
        huge.parts[1].keys.len = u64::MAX;
        assert!(huge.check("m").is_err());
    }

    #[test]
    fn a_newer_format_is_called_that() {
        let text = br#"{ "format": 2, "anything": "else" }"#;
        assert_eq!(parse_manifest("m", text), Err(Damage::Newer { file: "m".into(), format: 2, known: 1 }));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[{}\\[\\]\",:a-f0-9 ]{0,80}") {
            let _ = parse_manifest("m", &bytes);
            let _ = parse_manifest("m", text.as_bytes());
        }
    }
}
