//! Stochastic gradient descent (Robbins and Monro 1951) with L2 decay.
//!
//! ```text
//! w <- w - rate * weight * (g + decay * w)
//! ```

/// What does not change from key to key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// What the gradient, with its decay, is multiplied by.
    pub weight: f32,
    /// The rate.
    pub rate: f32,
    /// L2 decay.
    pub decay: f32,
}

/// The value of one key after a step.
#[inline(always)]
#[must_use]
pub fn step(value: f32, gradient: f32, Constants { weight, rate, decay }: Constants) -> f32 {
    value - rate * (weight * (gradient + decay * value))
}
