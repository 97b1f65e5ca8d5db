//! All that one shard is, in a form that can be kept, sent and restored: facts and arrays.
//!
//! The core is deterministic, so a shard that is restored from its state and given the same events afterwards is the same shard, bit for
//! bit. Two copies of one shard are compared slice by slice ([`Shard::slice_hash`]). Sessions, pulls that wait and an open cut are no part
//! of the state: they belong to the process.
//!
//! Making a state copies facts only: all arrays are shared with the shard, whose next step copies values and slots once if the state is
//! still kept then (for a million keys some 2 ms). Copying them at once would cost the owner's thread the same, but always.

use std::collections::BTreeMap;
use std::sync::Arc;

use slackline_core::ids::{Clock, KeyRange, ShardId, Version};

use super::Shard;
use super::facts::Kept;

/// Slices that a shard is compared in. A comparison reads so small a part of the values that no push waits for it noticeably: of a million
/// values with two slots each, 16 thousand, some 5 microseconds.
pub const SLICE_COUNT: u64 = 64;

/// One array of a shard: a value for each of its keys.
#[derive(Clone, Debug, PartialEq)]
pub struct StateArray {
    /// `values`, `slots`, `delay`; `collected.N` and `staged.N` for gradients that wait, and `read.N` for values that workers have read,
    /// where gradients are corrected by them.
    pub name: String,
    /// One value a key.
    pub values: Arc<Vec<f32>>,
}

/// The state of one shard at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardState {
    /// The shard.
    pub shard: ShardId,
    /// Its keys.
    pub keys: KeyRange,
    /// Updates in the values.
    pub version: Version,
    /// Its minimum clock; the open one while nobody counts.
    pub clock: Clock,
    /// Everything that is not an array (clock table, members, windows of answers, what is collected and staged without the gradients,
    /// the policy's memory), in the wire's encoding.
    pub facts: Vec<u8>,
    /// The arrays; `values` first, which is absent while the shard has none.
    pub arrays: Vec<StateArray>,
}

impl ShardState {
    /// Fingerprint of facts and arrays (xxh3), some 0.1 ms for a million values: against faults of programs and disks, not against malice.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        let numbers = [
            u64::from(self.shard.0),
            self.keys.start,
            self.keys.len,
            self.version.0,
            self.clock.0,
            self.facts.len() as u64,
        ];
        numbers.iter().for_each(|number| hash.update(&number.to_le_bytes()));
        hash.update(&self.facts);
        for StateArray { name, values } in &self.arrays {
            hash.update(&(name.len() as u64).to_le_bytes());
            hash.update(name.as_bytes());
            hash.update(&(values.len() as u64).to_le_bytes());
            hash.update(bytemuck::cast_slice(values));
        }
        hash.digest()
    }

    /// The array of a name.
    #[must_use]
    pub fn array(&self, name: &str) -> Option<&Arc<Vec<f32>>> {
        self.arrays.iter().find(|array| array.name == name).map(|array| &array.values)
    }

    /// Bytes of facts and arrays.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.facts.len() as u64 + self.arrays.iter().map(|array| 4 * array.values.len() as u64).sum::<u64>()
    }
}

impl Shard {
    /// All that the shard is now. Cheap: see the module.
    #[must_use]
    pub fn state(&self) -> ShardState {
        ShardState {
            shard: self.id,
            keys: self.keys,
            version: self.version,
            clock: self.least_clock(),
            facts: Kept::of(self).encode(),
            arrays: self.arrays(),
        }
    }

    /// Fingerprint of one slice of the shard, of [`SLICE_COUNT`]: what two copies are compared by while they go on. The slices together
    /// are everything: each has the numbers and its part of every array, the first one the facts too.
    #[must_use]
    pub fn slice_hash(&self, slice: u64) -> u64 {
        let slice = slice % SLICE_COUNT;
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        for number in [slice, self.version.0, self.least_clock().0] {
            hash.update(&number.to_le_bytes());
        }
        if slice == 0 {
            hash.update(&Kept::of(self).encode());
        }
        for StateArray { name, values } in self.arrays() {
            let border = |slice: u64| (values.len() as u64 * slice / SLICE_COUNT) as usize;
            hash.update(name.as_bytes());
            hash.update(bytemuck::cast_slice(&values[border(slice)..border(slice + 1)]));
        }
        hash.digest()
    }

    fn least_clock(&self) -> Clock {
        self.table.minimum().unwrap_or(self.open)
    }

    /// All arrays, shared with the shard.
    fn arrays(&self) -> Vec<StateArray> {
        let mut arrays = Vec::new();
        let mut put = |name: String, values: Arc<Vec<f32>>| arrays.push(StateArray { name, values });
        if let Some(values) = self.values.snapshot() {
            put("values".to_owned(), values);
        }
        for (name, values) in [("slots", self.optimizer.shared_slots()), ("delay", self.delay.memory())] {
            if !values.is_empty() {
                put(name.to_owned(), values);
            }
        }
        for (number, kept) in self.collected.values().flatten().enumerate() {
            put(format!("collected.{number}"), kept.gradient.clone());
        }
        let staged = self.everyone().flat_map(|member| member.staged.values());
        for (number, gradient) in staged.filter_map(|piece| piece.gradient.as_ref()).enumerate() {
            put(format!("staged.{number}"), gradient.clone());
        }
        for (number, (_, values)) in self.reads().into_iter().enumerate() {
            put(format!("read.{number}"), values);
        }
        arrays
    }

    /// Members, and workers that are gone while their pieces wait: the order of what is kept of them.
    pub(super) fn everyone(&self) -> impl Iterator<Item = &super::member::Member> {
        self.members.values().chain(self.doubts.values())
    }

    /// The values that workers have read, one for each version: all who read one version share them.
    fn reads(&self) -> BTreeMap<Version, Arc<Vec<f32>>> {
        self.everyone().filter_map(|member| member.read.clone()).collect()
    }
}
