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
    order: Vec<u64>,
}

/// How many keys a share is; at least one.
pub(super) fn count_of(share: f32, keys: usize) -> usize {
    ((f64::from(share) * keys as f64).ceil() as usize).clamp(usize::from(keys > 0), keys)
}

/// A magnitude as bits, which are in order as it is.
pub(super) const fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// Larger weights first, and of equal ones those that come first: the greater, the earlier.
const fn rank(weight: u32, index: u32) -> u64 {
    (weight as u64) << 32 | !index as u64
}

impl Selection {
    /// Adds the gradient to what is kept, if anything is, and finds the `count` largest of those sums.
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
        let weigh = |sum, _| magnitude(sum);
        self.candidates(count, gradient, gradient, kept, limit, weigh)?;
        if self.indices.len() > count {
            let sum = if kept.is_empty() { gradient } else { kept };
            self.rank(sum, sum, weigh);
            let (_, last, _) = self.order.select_nth_unstable_by(count - 1, |left, right| right.cmp(left));
            let last = *last;
            self.take_from(last);
        }
        Ok(())
    }

    /// Adds the gradient to what is kept, if anything is, and finds at least the `count` largest of those sums, as `weigh` has it, and all
    /// others that are as large as one that it finds. A weight is made of a sum and of the value `beside` it; it is a number below 2^31, and
    /// zero for a sum of zero alone.
    ///
    /// # Errors
    /// The first key of a chunk in which a sum is not below `limit`: from there on nothing has been added.
    pub(super) fn candidates(
        &mut self,
        count: usize,
        gradient: &[f32],
        beside: &[f32],
        kept: &mut [f32],
        limit: u32,
        weigh: impl Fn(f32, f32) -> u32 + Copy,
    ) -> Result<(), usize> {
        let mut least = guess(count, gradient, beside, kept, weigh);
        self.indices.clear();
        let indices = &mut self.indices;
        accumulate(gradient, kept, limit, |at, sum| {
            mark_from(least, at, sum, &beside[at..at + sum.len()], indices, weigh);
        })?;
        let sum = if kept.is_empty() { gradient } else { &*kept };
        if self.indices.len() < count && least > 1 {
            least = 1;
            self.indices.clear();
            mark_from(least, 0, sum, beside, &mut self.indices, weigh);
        }
        Ok(())
    }

    /// Leaves as many of the largest as have a `size` of at most `most`; a size grows with every index.
    pub(super) fn fit(
        &mut self,
        most: usize,
        sum: &[f32],
        beside: &[f32],
        weigh: impl Fn(f32, f32) -> u32,
        size: impl Fn(&[u32]) -> usize,
    ) {
        let (mut fits, mut exceeds) = ((0, size(&[])), (self.indices.len(), size(&self.indices)));
        if exceeds.1 <= most {
            return;
        }
        self.rank(sum, beside, weigh);
        let mut has_halved = true;
        while exceeds.0 - fits.0 > 1 && fits.1 < most {
            let between = exceeds.0 - fits.0;
            let count = if has_halved {
                // Sizes are nearly on a line.
                let steps = between as f64 * (most - fits.1) as f64 / (exceeds.1 - fits.1) as f64;
                (fits.0 + steps as usize).clamp(fits.0 + 1, exceeds.0 - 1)
            } else {
                usize::midpoint(fits.0, exceeds.0)
            };
            // Those before `fits` are larger than all of these, and those from `exceeds` on are smaller.
            let within = &mut self.order[fits.0..exceeds.0];
            let (_, last, _) =
                within.select_nth_unstable_by(count - 1 - fits.0, |left, right| right.cmp(left));
            let last = *last;
            self.take_from(last);
            let probed = (count, size(&self.indices));
            if probed.1 <= most {
                fits = probed;
            } else {
                exceeds = probed;
            }
            has_halved = exceeds.0 - fits.0 <= between / 2;
        }
        self.take_from(self.order[..fits.0].iter().copied().min().unwrap_or(u64::MAX));
    }

    /// The rank of each index, in their order and to be put in another.
    fn rank(&mut self, sum: &[f32], beside: &[f32], weigh: impl Fn(f32, f32) -> u32) {
        let of = |index: &u32| rank(weigh(sum[*index as usize], beside[*index as usize]), *index);
        self.ranks.clear();
        self.ranks.extend(self.indices.iter().map(of));
        self.order.clone_from(&self.ranks);
    }

    /// The indices of a rank of at least `least`, rising.
    fn take_from(&mut self, least: u64) {
        self.indices.resize(self.ranks.len(), 0);
        let mut len = 0;
        // Without branches, as half of them would be taken.
        for rank in &self.ranks {
            self.indices[len] = !(*rank as u32);
            len += usize::from(*rank >= least);
        }
        self.indices.truncate(len);
    }
}

/// A weight from which on a few more than `count` sums lie, by a sample of them; never zero.
fn guess(
    count: usize,
    gradient: &[f32],
    beside: &[f32],
    kept: &[f32],
    weigh: impl Fn(f32, f32) -> u32,
) -> u32 {
    // Odd, so that it does not stay in one column of a matrix.
    let stride = (gradient.len() / SAMPLE) | 1;
    let parts = gradient.iter().step_by(stride).zip(beside.iter().step_by(stride));
    let mut sample: Vec<u32> = if kept.is_empty() {
        parts.map(|(value, beside)| weigh(*value, *beside)).collect()
    } else {
        let sums = parts.zip(kept.iter().step_by(stride));
        sums.map(|((value, beside), kept)| weigh(value + kept, *beside)).collect()
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

/// Adds the keys of sums of at least the weight `least`, which is not zero.
fn mark_from(
    least: u32,
    at: usize,
    sum: &[f32],
    beside: &[f32],
    found: &mut Vec<u32>,
    weigh: impl Fn(f32, f32) -> u32,
) {
    // The difference is negative, so all its upper bits are set, where the weight reaches the least.
    let test = |sum, beside| ((least as i32 - 1).wrapping_sub(weigh(sum, beside) as i32) >> 31) as u32;
    mark(at, sum, beside, found, test);
}

/// Adds the keys of sums for which `test`, with the value `beside` each, gives ones in all bits; for the others it gives zero.
#[inline]
pub(super) fn mark(
    at: usize,
    sum: &[f32],
    beside: &[f32],
    found: &mut Vec<u32>,
    test: impl Fn(f32, f32) -> u32,
) {
    for (index, (sums, beside)) in sum.chunks(32).zip(beside.chunks(32)).enumerate() {
        let mut mask: u32 = match (<&[f32; 32]>::try_from(sums), <&[f32; 32]>::try_from(beside)) {
            // Of fixed length, this is a few vector operations.
            (Ok(sums), Ok(beside)) => {
                (0..32).fold(0, |mask, bit| mask | (test(sums[bit], beside[bit]) & 1 << bit))
            }
            _ => (0..sums.len()).fold(0, |mask, bit| mask | (test(sums[bit], beside[bit]) & 1 << bit)),
        };
        while mask != 0 {
            found.push((at + index * 32) as u32 + mask.trailing_zeros());
            mask &= mask - 1;
        }
    }
}
