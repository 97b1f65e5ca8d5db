//! Which blocks of a shard a part holds, when it does not hold all.

use serde::{Deserialize, Serialize};
use slackline_core::ids::KeyRange;

/// Some blocks of a shard. Block `i` is keys `[i * block_len, (i + 1) * block_len)` counted from the shard's first key; the last block may be
/// shorter. In a manifest it takes one bit a block.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    block_len: u32,
    /// Bit `i % 8` of byte `i / 8` is block `i`.
    #[serde(with = "crate::hex::bytes")]
    bits: Vec<u8>,
}

impl std::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} blocks of {} keys", self.chosen().count(), self.block_len)
    }
}

impl Blocks {
    /// The blocks `chosen` of a shard with `keys`. A block length of zero is taken as one; blocks outside the shard are left out.
    #[must_use]
    pub fn new(keys: KeyRange, block_len: u32, chosen: &[u32]) -> Self {
        let block_len = block_len.max(1);
        let count = block_count(keys.len, block_len);
        let mut bits = vec![0; count.div_ceil(8) as usize];
        for &block in chosen.iter().filter(|&&block| u64::from(block) < count) {
            bits[block as usize / 8] |= 1 << (block % 8);
        }
        Self { block_len, bits }
    }

    /// Keys of a block.
    #[must_use]
    pub const fn block_len(&self) -> u32 {
        self.block_len
    }

    /// The blocks held, rising.
    pub fn chosen(&self) -> impl Iterator<Item = u64> + '_ {
        (0..).zip(&self.bits).flat_map(|(byte, bits)| {
            (0..8).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| byte * 8 + bit)
        })
    }

    /// The keys held, as sorted ranges, neighbours joined, of a shard with `keys`. Only for blocks that [`fit`](Self::fits) the shard.
    pub fn runs(&self, keys: KeyRange) -> impl Iterator<Item = KeyRange> + '_ {
        let mut chosen = self.chosen().peekable();
        let block_len = u64::from(self.block_len);
        std::iter::from_fn(move || {
            let first = chosen.next()?;
            let mut last = first;
            while let Some(next) = chosen.next_if_eq(&(last + 1)) {
                last = next;
            }
            let start = keys.start + first * block_len;
            Some(KeyRange::new(start, ((last + 1) * block_len).min(keys.len) - first * block_len))
        })
    }

    /// Number of keys held, of a shard with `keys`.
    #[must_use]
    pub fn held(&self, keys: KeyRange) -> u64 {
        self.runs(keys).map(|run| run.len).sum()
    }

    /// Whether these can be blocks of a shard with `keys`.
    #[must_use]
    pub fn fits(&self, keys: KeyRange) -> bool {
        if self.block_len == 0 {
            return false;
        }
        let count = block_count(keys.len, self.block_len);
        let spare = (count % 8) as u32;
        let clean = spare == 0 || self.bits.last().is_none_or(|last| u32::from(*last) >> spare == 0);
        self.bits.len() as u64 == count.div_ceil(8) && clean
    }
}

/// Number of blocks of `len` keys.
pub(crate) const fn block_count(len: u64, block_len: u32) -> u64 {
    len.div_ceil(block_len as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_join_and_the_last_block_is_shorter() {
        let keys = KeyRange::new(100, 10);
        let blocks = Blocks::new(keys, 4, &[2, 0, 1, 9]);
        assert_eq!(blocks.runs(keys).collect::<Vec<_>>(), [KeyRange::new(100, 10)]);
        let blocks = Blocks::new(keys, 4, &[0, 2]);
        assert_eq!(blocks.runs(keys).collect::<Vec<_>>(), [KeyRange::new(100, 4), KeyRange::new(108, 2)]);
        assert_eq!((blocks.held(keys), blocks.chosen().collect::<Vec<_>>()), (6, vec![0, 2]));
        assert!(blocks.fits(keys));
        assert!(!blocks.fits(KeyRange::new(100, 40)));
        assert!(!Blocks { block_len: 4, bits: vec![0b1000] }.fits(keys));
        assert!(!Blocks { block_len: 0, bits: vec![] }.fits(KeyRange::new(0, 0)));
    }
}
