//! Values that matter: those that would move their parameter by more than a share of itself.
//!
//! Hsieh et al. 2017, "Gaia: geo-distributed machine learning approaching LAN speeds", section 4.1: what has gathered for a parameter is
//! sent when `|gathered / value| > v / sqrt(t)`, where `t` counts the steps, so that less is held back the longer a run goes on. Written as
//! [`super::sparse`]. What gathers here are gradients; with local steps they are moves, as in the paper.
//!
//! Error: what is held back is kept as it is, so `sent + kept` is the sum, exactly. It is at most `v / sqrt(t)` of the parameter, and
//! with `v = 0` everything that is not zero is sent.

use super::top_k::{accumulate, mark};

/// The share at step `t`, from 1.
pub(super) fn share(threshold: f32, t: u64) -> f32 {
    (f64::from(threshold) / (t as f64).sqrt()) as f32
}

/// Adds the gradient to what is kept, if anything is, and finds the sums above a share of their values, or all that are not zero
/// where there are no values. The indices rise.
///
/// # Errors
/// The first key of a chunk in which a sum is not below `limit`: from there on nothing has been added.
pub(super) fn select(
    share: f32,
    gradient: &[f32],
    values: Option<&[f32]>,
    kept: &mut [f32],
    limit: u32,
    indices: &mut Vec<u32>,
) -> Result<(), usize> {
    indices.clear();
    let mark_all = |above: bool| if above { u32::MAX } else { 0 };
    accumulate(gradient, kept, limit, |at, sum| match values {
        Some(values) => {
            let values = &values[at..at + sum.len()];
            mark(at, sum, values, indices, |sum, value| mark_all(sum.abs() > share * value.abs()));
        }
        None => mark(at, sum, sum, indices, |sum, _| mark_all(sum != 0.0)),
    })
}
