//! The largest values beside the parameters that they change, as many as a budget of bytes holds: those of the largest
//! `|x| / max(|value|, floor)`. Of equal ones the first are taken.
//!
//! Wei et al. 2015 (Bosen), "Managed communication and consistency for fast data-parallel iterative analytics": where bandwidth is given
//! out, updates are sent in the order of their relative magnitude, `|delta / value|`. The paper sends more whenever its budget allows; here
//! each push has its budget. A value near zero would make anything large, and one that is zero has no such magnitude at all, hence the
//! floor: above all values it makes this [`super::top_k`]. Written as [`super::sparse`].
//!
//! A budget is that of a whole gradient. A range has a part of it by its keys, rounded down to whole words, so that all together never
//! take more. What plain values fit into sends everything.
//!
//! Error: what is not sent is kept as it is, so `sent + kept` is the sum, exactly.

use super::sparse::{self, HEAD};
use super::top_k::{Selection, magnitude};

/// Words of a payload with one value.
const LEAST: usize = HEAD + 2;

/// Words that a range of `keys` out of `all` may take of a budget in bytes.
pub(super) fn share(budget: u64, keys: u64, all: u64) -> usize {
    let bytes = u128::from(budget) * u128::from(keys) / u128::from(all.max(1));
    usize::try_from(bytes / 4).unwrap_or(usize::MAX)
}

/// The least budget, in bytes of a whole gradient of `all` keys, that holds a value of a range of `keys`.
#[must_use]
pub fn least_budget(keys: u64, all: u64) -> u64 {
    let bytes = 4 * u128::from(keys.min(LEAST as u64)) * u128::from(all);
    u64::try_from(bytes.div_ceil(u128::from(keys.max(1)))).unwrap_or(u64::MAX)
}

/// Adds the gradient to what is kept, if anything is, and finds those of the sums that `words` hold: the largest beside their values, or by
/// themselves where there are no values. The indices rise.
///
/// # Errors
/// The first key of a chunk in which a sum is not below `limit`: from there on nothing has been added.
pub(super) fn select(
    words: usize,
    floor: f32,
    gradient: &[f32],
    values: Option<&[f32]>,
    kept: &mut [f32],
    limit: u32,
    selection: &mut Selection,
) -> Result<(), usize> {
    match values {
        Some(values) => {
            let weigh = |sum, value| weight(sum, value, floor);
            select_by(weigh, words, gradient, values, kept, limit, selection)
        }
        None => select_by(|sum, _| magnitude(sum), words, gradient, gradient, kept, limit, selection),
    }
}

fn select_by(
    weigh: impl Fn(f32, f32) -> u32 + Copy,
    words: usize,
    gradient: &[f32],
    beside: &[f32],
    kept: &mut [f32],
    limit: u32,
    selection: &mut Selection,
) -> Result<(), usize> {
    let keys = gradient.len();
    if words >= keys {
        return selection.candidates(keys, gradient, beside, kept, limit, weigh);
    }
    let words = words.max(LEAST);
    selection.candidates(count_most(words, keys), gradient, beside, kept, limit, weigh)?;
    let sum = if kept.is_empty() { gradient } else { &*kept };
    selection.fit(words, sum, beside, weigh, |indices| sparse::words(indices, keys));
    Ok(())
}

/// More values than this no payload of so many words has: each takes a word, and a byte of a gap or a bit of every key.
fn count_most(words: usize, keys: usize) -> usize {
    let gaps = words.saturating_sub(HEAD).saturating_mul(4) / 5;
    let bitmap = words.saturating_sub(HEAD + keys.div_ceil(32));
    gaps.max(bitmap).min(keys)
}

/// The relative magnitude as bits, which are in order as it is; zero for a sum of zero alone, also where the quotient is rounded to it.
fn weight(sum: f32, value: f32, floor: f32) -> u32 {
    let relative = sum.abs() / value.abs().max(floor);
    relative.to_bits().max(u32::from(sum != 0.0))
}
