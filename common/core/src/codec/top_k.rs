//! The largest values: exactly `k = ceil(share * keys)` of them, or all that are not zero where these are fewer. Of equal ones the
//! first are taken.
//!
//! Aji and Heafield 2017, "Sparse communication for distributed gradient descent"; Lin et al. 2018 (DGC). Written as
//! [`super::sparse`].
//!
//! Error: what is not sent is kept as it is, so `sent + kept` is the sum, exactly. `|x - C(x)|^2 <= (1 - k/n) |x|^2` (Stich et al. 2018,
//! lemma A.1), and taking the top of what was taken changes nothing.
//!
//! The `k` largest are found in one pass: a sample says above which magnitude a few more than `k` lie, and of those the largest are
//! selected. Where the sample misled, everything that is not zero is looked at.

use super::blocks::{CHUNK, add_below, all_below};

/// Values of a sample, about.
const SAMPLE: usize = 16_384;

/// The selection, with what it works in.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    /// What was found, rising.
    pub(super) indices: Vec<u32>,
    ranks: Vec<u64>,
}

/// How many keys a share is; at least one.
pub(super) fn count_of(share: f32, keys: usize) -> usize {
    ((f64::from(share) * keys as f64).ceil() as usize).clamp(usize::from(keys > 0), keys)
}

const fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

impl Selection {
    /// Adds the gradient to what is kept, if anything is, and finds the largest of those sums.
    ///
    /// # Errors
    /// The first key of a chunk in which a sum is not below `limit`: from there on nothing has been added.
    pub(super) fn largest(
        &mut self,
        count: usize,
        gradient: &[f32],
        kept: &mut [f32],
        limit: u32,
    ) -> Result<(), usize> {
        let mut least = self.guess(count, gradient, kept);
        self.indices.clear();
        let indices = &mut self.indices;
        accumulate(gradient, kept, limit, |at, sum| mark_from(least, at, sum, indices))?;
        let sum = if kept.is_empty() { gradient } else { &*kept };
        if self.indices.len() < count && least > 1 {
            least = 1;
            self.indices.clear();
            mark_from(least, 0, sum, &mut self.indices);
        }
        if self.indices.len() > count {
            self.cut(count, sum);
        }
        Ok(())
    }

    /// A magnitude, as bits, from which on a few more than `count` sums lie, by a sample of them; never zero.
    fn guess(&mut self, count: usize, gradient: &[f32], kept: &[f32]) -> u32 {
        // Odd, so that it does not stay in one column of a matrix.
        let stride = (gradient.len() / SAMPLE) | 1;
        let mut sample: Vec<u32> = if kept.is_empty() {
            gradient.iter().step_by(stride).map(|value| magnitude(*value)).collect()
        } else {
            let sums = gradient.iter().step_by(stride).zip(kept.iter().step_by(stride));
            sums.map(|(value, kept)| magnitude(value + kept)).collect()
        };
        // So many of the sample are expected, and three standard deviations more.
        let expected = count as f64 * sample.len() as f64 / gradient.len().max(1) as f64;
        let rank = (expected + 3.0 * expected.sqrt()) as usize + 4;
        if rank >= sample.len() {
            return 1;
        }
        let (_, least, _) = sample.select_nth_unstable_by(rank, |left, right| right.cmp(left));
        (*least).max(1)
    }

    /// Leaves the `count` largest; they rise as before.
    fn cut(&mut self, count: usize, sum: &[f32]) {
        // Larger ones first, and of equal ones those that come first.
        let rank = |index: &u32| u64::from(magnitude(sum[*index as usize])) << 32 | u64::from(!index);
        self.ranks.clear();
        self.ranks.extend(self.indices.iter().map(rank));
        let (_, last, _) = self.ranks.select_nth_unstable_by(count - 1, |left, right| right.cmp(left));
        let last = *last;
        self.indices.retain(|index| rank(index) >= last);
    }
}

/// Adds the gradient to what is kept, if anything is, and shows the sums chunk by chunk, with the first key of each.
///
/// # Errors
/// The first key of a chunk in which a sum is not below `limit`: from there on nothing has been added.
pub(super) fn accumulate(
    gradient: &[f32],
    kept: &mut [f32],
    limit: u32,
    mut see: impl FnMut(usize, &[f32]),
) -> Result<(), usize> {
    let mut sums = [0.0; CHUNK];
    for (index, gradient) in gradient.chunks(CHUNK).enumerate() {
        let at = index * CHUNK;
        if kept.is_empty() {
            if !all_below(gradient, limit) {
                return Err(at);
            }
            see(at, gradient);
            continue;
        }
        let (kept, sums) = (&mut kept[at..at + gradient.len()], &mut sums[..gradient.len()]);
        if !add_below(gradient, kept, limit, sums) {
            return Err(at);
        }
        kept.copy_from_slice(sums);
        see(at, kept);
    }
    Ok(())
}

/// Adds the keys of values whose magnitude has at least the bits `least`, which are not zero.
fn mark_from(least: u32, at: usize, sum: &[f32], found: &mut Vec<u32>) {
    // The difference is negative, so all its upper bits are set, where the magnitude reaches the least.
    mark(at, sum, found, |_, value| ((least as i32 - 1).wrapping_sub(magnitude(value) as i32) >> 31) as u32);
}

/// Adds the keys of values for which `test` gives ones in all bits; for the others it gives zero.
#[inline]
pub(super) fn mark(at: usize, sum: &[f32], found: &mut Vec<u32>, test: impl Fn(usize, f32) -> u32) {
    for (index, values) in sum.chunks(32).enumerate() {
        let begin = index * 32;
        let mask = match <&[f32; 32]>::try_from(values) {
            Ok(values) => {
                // Of fixed length, this is a few vector operations.
                (0..32).fold(0, |mask, bit| mask | (test(begin + bit, values[bit]) & 1 << bit))
            }
            Err(_) => {
                (0..values.len()).fold(0, |mask, bit| mask | (test(begin + bit, values[bit]) & 1 << bit))
            }
        };
        let mut mask: u32 = mask;
        while mask != 0 {
            found.push((at + begin) as u32 + mask.trailing_zeros());
            mask &= mask - 1;
        }
    }
}
