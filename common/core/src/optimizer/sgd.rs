//! Stochastic gradient descent (Robbins and Monro 1951) with L2 decay.
//!
//! ```text
//! w <- w - rate * weight * (g + decay * w)
//! ```

/// One step over slices of equal length.
pub fn step(values: &mut [f32], gradient: &[f32], weight: f32, rate: f32, decay: f32) {
    for (value, gradient) in values.iter_mut().zip(gradient) {
        *value -= rate * (weight * (gradient + decay * *value));
    }
}
