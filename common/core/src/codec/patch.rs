//! What of a run of values is another than in an earlier one that the reader has.
//!
//! ```text
//! a bit a block, in words of 32 bits, the first block's lowest | the values of the blocks whose bit is set, in order
//! ```
//!
//! A block is [`BLOCK`] keys, the last one perhaps fewer. Without a word nothing is another.

use bytemuck::{cast_slice, cast_slice_mut};

use super::encoding::Encoding;
use super::payload::CodecError;

/// Keys of a block: those of which a step says whether it has changed any. A bit for every four KiB of values costs nothing, and few rows of an
/// embedding share a block.
pub use crate::optimizer::BLOCK;

/// Blocks of a run of values, with their bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    keys: usize,
    words: Vec<f32>,
}

impl Patch {
    /// Takes a foreign patch of a run of `keys` values. It is looked through: afterwards no use of it can fail.
    ///
    /// # Errors
    /// A [`CodecError`] that says what is wrong.
    pub fn new(keys: usize, words: Vec<f32>) -> Result<Self, CodecError> {
        let encoding = Encoding::Blocks;
        let patch = Self { keys, words };
        if patch.words.is_empty() {
            return Ok(patch);
        }
        let length = CodecError::Length { encoding, keys, words: patch.words.len() };
        if patch.words.len() < map_words(keys) {
            return Err(length);
        }
        if patch.blocks().any(|block| block >= keys.div_ceil(BLOCK)) {
            return Err(CodecError::Unsound { encoding, what: "it has a block beyond the last key" });
        }
        let values: usize = patch.blocks().map(|block| block_len(keys, block)).sum();
        if patch.words.len() - map_words(keys) != values { Err(length) } else { Ok(patch) }
    }

    /// The patch that makes `values` of a run that differs from it in these blocks at most, which are in order and exist. `words` is a
    /// buffer to use again.
    #[must_use]
    pub fn of(values: &[f32], blocks: &[usize], mut words: Vec<f32>) -> Self {
        let keys = values.len();
        words.clear();
        if !blocks.is_empty() {
            words.resize(map_words(keys), 0.0);
            let map: &mut [u32] = cast_slice_mut(&mut words);
            blocks.iter().for_each(|block| map[block / 32] |= 1 << (block % 32));
            for block in blocks {
                let start = block * BLOCK;
                words.extend_from_slice(&values[start..start + block_len(keys, *block)]);
            }
        }
        Self { keys, words }
    }

    /// Words of a patch of so many values with these blocks.
    #[must_use]
    pub fn words_of(keys: usize, blocks: &[usize]) -> usize {
        if blocks.is_empty() {
            return 0;
        }
        map_words(keys) + blocks.iter().map(|block| block_len(keys, *block)).sum::<usize>()
    }

    /// Makes the earlier run the present one. Where it is shorter than it was, what has room is written.
    pub fn write_to(&self, values: &mut [f32]) {
        let mut rest = &self.words[map_words(self.keys).min(self.words.len())..];
        for block in self.blocks() {
            let (now, after) = rest.split_at(block_len(self.keys, block).min(rest.len()));
            rest = after;
            let places = values.iter_mut().skip(block * BLOCK);
            places.zip(now).for_each(|(value, now)| *value = *now);
        }
    }

    /// Its storage.
    #[must_use]
    pub fn into_words(self) -> Vec<f32> {
        self.words
    }

    /// The blocks whose bit is set, in order.
    fn blocks(&self) -> impl Iterator<Item = usize> + '_ {
        let map: &[u32] = cast_slice(&self.words[..map_words(self.keys).min(self.words.len())]);
        let bits = |word: u32| (0..32).filter(move |bit| word >> bit & 1 == 1);
        map.iter().enumerate().flat_map(move |(place, word)| bits(*word).map(move |bit| 32 * place + bit))
    }
}

/// Words of the bits of so many keys.
const fn map_words(keys: usize) -> usize {
    keys.div_ceil(BLOCK).div_ceil(32)
}

/// Keys of a block of a run of so many.
fn block_len(keys: usize, block: usize) -> usize {
    keys.saturating_sub(block * BLOCK).min(BLOCK)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    proptest! {
        #[test]
        fn a_patch_makes_the_later_values_of_the_earlier_ones(
            keys in 0..40_000_usize, changed in prop::collection::btree_set(0..40_usize, 0..12), odd in any::<u32>()
        ) {
            let blocks: Vec<usize> = changed.into_iter().filter(|block| *block < keys.div_ceil(BLOCK)).collect();
            let mut before: Vec<f32> = (0..keys).map(|key| key as f32).collect();
            let mut after = before.clone();
            for block in &blocks {
                // Whatever the bits are, those of signalling NaNs too.
                after[block * BLOCK] = f32::from_bits(odd);
                after[(block * BLOCK + BLOCK).min(keys) - 1] = -1.0;
            }
            let patch = Patch::of(&after, &blocks, vec![9.0; 3]);
            prop_assert_eq!(patch.words.len(), Patch::words_of(keys, &blocks));
            prop_assert!(blocks.len() == keys.div_ceil(BLOCK) || patch.words.len() <= keys);
            let read = Patch::new(keys, patch.into_words()).unwrap();
            read.write_to(&mut before);
            prop_assert_eq!(bits(&before), bits(&after));
        }

        // What is accepted is written without a panic, and only to its keys.
        #[test]
        fn any_words_are_a_patch_or_none(
            keys in 0..3000_usize, map in any::<u32>(), more in 0..3000_usize, room in 0..3000_usize
        ) {
            let mut words = vec![f32::from_bits(map)];
            words.resize(1 + more, 1.0);
            if let Ok(patch) = Patch::new(keys, words) {
                prop_assert!(patch.words.len() == map_words(keys) + more);
                let mut values = vec![0.0; room];
                patch.write_to(&mut values);
                prop_assert!(values.iter().filter(|value| **value != 0.0).count() <= more);
            }
        }
    }

    #[test]
    fn what_contradicts_itself_is_named() {
        let map = |bits: u32, values: usize| {
            let mut words = vec![f32::from_bits(bits)];
            words.resize(1 + values, 0.5);
            Patch::new(1500, words)
        };
        assert!(map(0b10, 476).is_ok() && map(0b11, 1500).is_ok() && Patch::new(1500, Vec::new()).is_ok());
        let error = |patch: Result<Patch, CodecError>| patch.unwrap_err().to_string();
        assert_eq!(error(map(0b10, 475)), "a payload of 1500 keys in blocks cannot have 476 words");
        assert_eq!(
            error(map(0b100, 0)),
            "a payload in blocks is not sound: it has a block beyond the last key"
        );
        let none = Patch::new(40 * BLOCK, vec![0.0]);
        assert_eq!(error(none), "a payload of 40960 keys in blocks cannot have 1 words");
    }
}
