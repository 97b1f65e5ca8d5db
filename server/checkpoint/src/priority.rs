//! Which blocks to save: those that moved furthest (SCAR), or those that changed at all. Pure.
//!
//! SCAR (Qiao, Aragam, Zhang and Xing, "Fault Tolerance in Iterative-Convergent Machine Learning", ICML 2019): instead of everything each C
//! clocks, save a share r of the blocks each r * C clocks, those whose values are furthest from their last *saved* values. The same bytes are
//! written, and what is restored is nearer to what was lost.
//!
//! How it goes on, per shard: a full checkpoint first, [`Moved::new`] on what it saved; at each later one [`Moved::choose`], a part with
//! these blocks, and once the checkpoint is committed [`Moved::saved`] with what it holds (if it failed, nothing: the blocks are still
//! unsaved). After a restart or a change of the shards' keys it begins again with a full one.
//!
//! # How many files stay beneath
//!
//! By the rule of the paper alone a block that never moves is never saved again, and the file of its first copy is needed for ever. With
//! `carry` = n, a block whose saved copy is n checkpoints old is saved too, beyond the share. So no file is needed longer than n
//! checkpoints, a manifest names at most n times as many files as there are shards, and the rest of a full checkpoint is carried over at
//! once, n checkpoints after it. Without `carry` it is the paper's rule, and the number of files is bounded by that of the blocks only.

use xxhash_rust::xxh3::Xxh3;

use crate::part::Array;

/// How far the blocks of a shard have moved since each was last saved. Holds a copy of the saved values.
#[derive(Clone, Debug)]
pub struct Moved {
    block_len: usize,
    saved: Vec<f32>,
    /// The checkpoint that saved each block last.
    saved_by: Vec<u64>,
}

impl Moved {
    /// After checkpoint `number` saved all of the shard's `values`. A block length of zero is taken as one.
    #[must_use]
    pub fn new(values: &[f32], block_len: u32, number: u64) -> Self {
        let block_len = block_len.max(1) as usize;
        Self { block_len, saved: values.to_vec(), saved_by: vec![number; values.len().div_ceil(block_len)] }
    }

    /// The Euclidean distance of each block's values from those last saved. Infinite where a value is not a number, so that such a block
    /// comes first. Values beyond those of the shard are left out.
    #[must_use]
    pub fn distances(&self, values: &[f32]) -> Vec<f64> {
        let distance = |(now, saved): (&[f32], &[f32])| {
            let square: f64 =
                now.iter().zip(saved).map(|(now, saved)| (f64::from(*now) - f64::from(*saved)).powi(2)).sum();
            if square.is_nan() { f64::INFINITY } else { square.sqrt() }
        };
        values.chunks(self.block_len).zip(self.saved.chunks(self.block_len)).map(distance).collect()
    }

    /// The blocks to save in checkpoint `number`, rising: the share `share` (0 to 1, rounded up) of all that moved furthest, of equal ones
    /// the one saved longest ago, then the lowest; and beyond the share those saved `carry` or more checkpoints ago.
    #[must_use]
    pub fn choose(&self, values: &[f32], share: f64, carry: Option<u64>, number: u64) -> Vec<u32> {
        let distances = self.distances(values);
        let count = (share.clamp(0.0, 1.0) * distances.len() as f64).ceil() as usize;
        let mut order: Vec<usize> = (0..distances.len()).collect();
        // A total order: no distance is NaN, and no two blocks have one index.
        order.sort_unstable_by(|&a, &b| {
            let by_distance = distances[b].total_cmp(&distances[a]);
            by_distance.then(self.saved_by[a].cmp(&self.saved_by[b])).then(a.cmp(&b))
        });
        let rest = order.split_off(count.min(order.len()));
        let is_old =
            |block: &usize| carry.is_some_and(|carry| number.saturating_sub(self.saved_by[*block]) >= carry);
        order.extend(rest.into_iter().filter(is_old));
        sorted(order)
    }

    /// The values of these blocks, one block after another.
    #[must_use]
    pub fn values_in(&self, blocks: &[u32], values: &[f32]) -> Vec<f32> {
        let of = |block: &u32| values.get(self.range(*block)).unwrap_or_default();
        blocks.iter().flat_map(of).copied().collect()
    }

    /// Notes that checkpoint `number`, which is committed, holds `blocks` with these values ([`Moved::values_in`]): those of the cut, not of
    /// now.
    pub fn saved(&mut self, blocks: &[u32], values: &[f32], number: u64) {
        let mut rest = values;
        for block in blocks {
            let range = self.range(*block);
            let Some((values, after)) = rest.split_at_checked(range.len()) else { return };
            let Some(saved_by) = self.saved_by.get_mut(*block as usize) else { return };
            (*saved_by, rest) = (number, after);
            self.saved[range].copy_from_slice(values);
        }
    }

    /// The places of a block's values.
    fn range(&self, block: u32) -> std::ops::Range<usize> {
        let (start, end) = (block as usize * self.block_len, self.saved.len());
        start.min(end)..(start + self.block_len).min(end)
    }

    /// The checkpoint that saved each block last.
    #[must_use]
    pub fn saved_by(&self) -> &[u64] {
        &self.saved_by
    }
}

/// Which blocks of a shard changed in any of its arrays since each was last saved: for sparse tables, of which few rows are touched. Holds
/// sixteen bytes a block.
#[derive(Clone, Debug)]
pub struct Changed {
    block_len: usize,
    /// Fingerprint of each block over all arrays, as it was last saved.
    saved: Vec<u64>,
    saved_by: Vec<u64>,
}

impl Changed {
    /// After checkpoint `number` saved all of `arrays`. A block length of zero is taken as one.
    #[must_use]
    pub fn new(arrays: &[Array], block_len: u32, number: u64) -> Self {
        let block_len = block_len.max(1) as usize;
        let saved = prints(arrays, block_len);
        let saved_by = vec![number; saved.len()];
        Self { block_len, saved, saved_by }
    }

    /// The blocks to save in checkpoint `number`, rising: those that changed by any bit, and those saved `carry` or more checkpoints ago.
    #[must_use]
    pub fn choose(&self, arrays: &[Array], carry: Option<u64>, number: u64) -> Vec<u32> {
        let now = prints(arrays, self.block_len);
        let is_old = |by: u64| carry.is_some_and(|carry| number.saturating_sub(by) >= carry);
        let compared = now.iter().zip(&self.saved).zip(&self.saved_by).enumerate();
        sorted(
            compared
                .filter(|(_, ((now, saved), by))| now != saved || is_old(**by))
                .map(|(block, _)| block)
                .collect(),
        )
    }

    /// The fingerprints of these blocks.
    #[must_use]
    pub fn prints_of(&self, blocks: &[u32], arrays: &[Array]) -> Vec<u64> {
        blocks.iter().map(|block| print(arrays, self.block_len, *block as usize)).collect()
    }

    /// Notes that checkpoint `number`, which is committed, holds `blocks` with these fingerprints ([`Changed::prints_of`]): those of the cut,
    /// not of now.
    pub fn saved(&mut self, blocks: &[u32], prints: &[u64], number: u64) {
        for (block, print) in blocks.iter().map(|block| *block as usize).zip(prints) {
            let Some(saved_by) = self.saved_by.get_mut(block) else { continue };
            (self.saved[block], *saved_by) = (*print, number);
        }
    }
}

/// Fingerprints of all blocks over all arrays.
fn prints(arrays: &[Array], block_len: usize) -> Vec<u64> {
    let len = arrays.iter().map(|array| array.values.len()).max().unwrap_or(0);
    (0..len.div_ceil(block_len)).map(|block| print(arrays, block_len, block)).collect()
}

fn print(arrays: &[Array], block_len: usize, block: usize) -> u64 {
    let mut hash = Xxh3::new();
    for array in arrays {
        let end = array.values.len();
        let from = (block * block_len).min(end);
        hash.update(bytemuck::cast_slice(&array.values[from..(from + block_len).min(end)]));
    }
    hash.digest()
}

/// Numbers of blocks, rising. A shard has fewer blocks than a `u32` counts: it would not fit into memory.
fn sorted(mut blocks: Vec<usize>) -> Vec<u32> {
    blocks.sort_unstable();
    blocks.into_iter().filter_map(|block| u32::try_from(block).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    #[test]
    fn the_blocks_that_moved_furthest_are_chosen_and_then_rest() {
        let mut moved = Moved::new(&[0.0; 8], 2, 1);
        let values = [0.0, 1.0, 3.0, 4.0, 0.0, 0.0, 2.0, 0.0];
        assert_eq!(moved.distances(&values), [1.0, 5.0, 0.0, 2.0]);
        assert_eq!(moved.choose(&values, 0.5, None, 2), [1, 3]);
        moved.saved(&[1, 3], &moved.values_in(&[1, 3], &values), 2);
        assert_eq!(moved.distances(&values), [1.0, 0.0, 0.0, 0.0]);
        assert_eq!(moved.choose(&values, 0.5, None, 3), [0, 2], "of equal ones the one saved longest ago");
        assert_eq!(moved.choose(&values, 0.01, None, 3), [0], "a share is rounded up");
        assert_eq!(
            (moved.choose(&values, 0.0, None, 3).len(), moved.choose(&values, 9.0, None, 3).len()),
            (0, 4)
        );
    }

    #[test]
    fn a_value_that_is_no_number_comes_first() {
        let moved = Moved::new(&[0.0; 6], 2, 1);
        assert_eq!(moved.choose(&[1e30, 0.0, 0.0, -f32::NAN, 2e30, 0.0], 0.3, None, 2), [1]);
    }

    #[test]
    fn a_change_in_any_array_is_a_change() {
        let array =
            |name: &str, values: &[f32]| Array { name: name.into(), values: Arc::new(values.to_vec()) };
        let before = [array("values", &[0.0; 5]), array("slots", &[0.0; 5])];
        let after =
            [array("values", &[0.0, -0.0, 0.0, 0.0, 0.0]), array("slots", &[0.0, 0.0, 0.0, 0.0, 1.0])];
        let mut changed = Changed::new(&before, 2, 1);
        assert_eq!(changed.choose(&before, None, 2), [] as [u32; 0]);
        assert_eq!(changed.choose(&after, None, 2), [0, 2]);
        changed.saved(&[0, 2], &changed.prints_of(&[0, 2], &after), 2);
        assert_eq!(changed.choose(&after, None, 3), [] as [u32; 0]);
        assert_eq!(changed.choose(&after, Some(2), 3), [1]);
    }

    proptest! {
        // Qiao et al. 2019: no other choice of as many blocks leaves the saved state nearer to the present one.
        #[test]
        fn no_unsaved_block_moved_further_than_a_saved_one(
            values in prop::collection::vec(-100.0_f32..100.0, 1..80), share in 0.0..1.0_f64, block_len in 1..9_u32,
        ) {
            let moved = Moved::new(&vec![0.0; values.len()], block_len, 1);
            let distances = moved.distances(&values);
            let chosen = moved.choose(&values, share, None, 2);
            prop_assert_eq!(chosen.len(), (share * distances.len() as f64).ceil() as usize);
            let least = chosen.iter().map(|block| distances[*block as usize]).fold(f64::INFINITY, f64::min);
            for (block, distance) in distances.iter().enumerate() {
                prop_assert!(chosen.contains(&(block as u32)) || *distance <= least);
            }
        }

        #[test]
        fn no_block_stays_unsaved_for_longer_than_carry(steps in prop::collection::vec(0..10_usize, 1..40), carry in 1..6_u64) {
            let mut values = vec![0.0_f32; 20];
            let mut moved = Moved::new(&values, 2, 0);
            for (step, number) in steps.into_iter().zip(1..) {
                values[step] += 1.0;
                let blocks = moved.choose(&values, 0.1, Some(carry), number);
                moved.saved(&blocks, &moved.values_in(&blocks, &values), number);
                prop_assert!(moved.saved_by().iter().all(|by| number - by < carry));
            }
        }
    }
}
