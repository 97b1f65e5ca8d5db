//! What staleness does to a gradient, beside any policy: nothing, a smaller rate, a correction, or dropping it.
//!
//! The staleness tau of a gradient is the number of versions that passed between its pull and its apply. Without staleness every
//! treatment leaves the gradient as it is.
//!
//! | treatment | effect | source |
//! |---|---|---|
//! | inverse | rate / max(1, tau) | Zhang et al. 2016 |
//! | inverse root | rate / sqrt(1 + tau) | FedBuff, Nguyen et al. 2022 |
//! | compensate | g + lambda g g (w - w_read) | DC-ASGD, Zheng et al. 2017, equation 10 |
//! | compensate adaptive | the same with lambda / sqrt(mean square of g + epsilon) | the same, section 4 |
//! | drop at R | dropped when tau >= R | Ringmaster, Maranjyan et al. 2025 |

use std::sync::Arc;

/// What becomes of a stale gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DelaySpec {
    /// How it is treated.
    pub treatment: Treatment,
    /// The staleness at which it is dropped instead (R); none drops nothing.
    pub drop_at: Option<u64>,
}

/// How a stale gradient is treated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Treatment {
    /// Like any other.
    #[default]
    None,
    /// Its rate is divided by its staleness.
    Inverse,
    /// Its rate is divided by the root of one more than its staleness.
    InverseRoot,
    /// It is corrected for what the values moved, with this strength (lambda).
    Compensate {
        /// Lambda.
        strength: f32,
    },
    /// It is corrected with a strength that follows the gradients' mean square.
    CompensateAdaptive {
        /// Lambda before the division.
        strength: f32,
    },
}

/// Share of the mean square that is kept each time (m of the paper).
const MEAN_SQUARE_KEPT: f32 = 0.95;

/// Keeps the division finite (epsilon of the paper).
const EPSILON: f32 = 1e-7;

impl Treatment {
    /// Share of its rate that a gradient of this staleness is applied with.
    #[must_use]
    pub fn weight(self, staleness: u64) -> f32 {
        match self {
            Self::Inverse => 1.0 / staleness.max(1) as f32,
            Self::InverseRoot => 1.0 / (1.0 + staleness as f32).sqrt(),
            Self::None | Self::Compensate { .. } | Self::CompensateAdaptive { .. } => 1.0,
        }
    }

    /// Whether it must know the values that a gradient was computed on.
    #[must_use]
    pub const fn compensates(self) -> bool {
        matches!(self, Self::Compensate { .. } | Self::CompensateAdaptive { .. })
    }
}

/// The treatment with its memory, for one range of keys.
#[derive(Clone, Debug, Default)]
pub struct Delay {
    spec: DelaySpec,
    /// Of the adaptive correction: a moving mean of the squares of the gradients, one value a key.
    mean_square: Arc<Vec<f32>>,
}

impl Delay {
    /// The treatment for `len` keys.
    #[must_use]
    pub fn new(spec: DelaySpec, len: usize) -> Self {
        let is_adaptive = matches!(spec.treatment, Treatment::CompensateAdaptive { .. });
        Self { spec, mean_square: Arc::new(if is_adaptive { vec![0.0; len] } else { Vec::new() }) }
    }

    /// Which treatment it is.
    #[must_use]
    pub const fn spec(&self) -> DelaySpec {
        self.spec
    }

    /// The memory, one value a key, or nothing. It is shared: whoever keeps it makes the next change copy it.
    #[must_use]
    pub fn memory(&self) -> Arc<Vec<f32>> {
        self.mean_square.clone()
    }

    /// Takes over the memory of another one with the same treatment and range; false, and nothing changed, if it is not of that length.
    pub fn restore(&mut self, memory: Arc<Vec<f32>>) -> bool {
        let fits = memory.len() == self.mean_square.len();
        if fits {
            self.mean_square = memory;
        }
        fits
    }

    /// Corrects `gradient` for the way from the values `read`, which it was computed on, to those of `now`.
    pub fn compensate(&mut self, gradient: &mut [f32], now: &[f32], read: &[f32]) {
        match self.spec.treatment {
            Treatment::Compensate { strength } => {
                for ((gradient, now), read) in gradient.iter_mut().zip(now).zip(read) {
                    *gradient += strength * *gradient * *gradient * (now - read);
                }
            }
            Treatment::CompensateAdaptive { strength } => {
                let places = gradient.iter_mut().zip(now).zip(read).zip(Arc::make_mut(&mut self.mean_square));
                for (((gradient, now), read), mean_square) in places {
                    // One that overflows must not stay in the memory for ever.
                    let square = (*gradient * *gradient).min(f32::MAX);
                    *mean_square = MEAN_SQUARE_KEPT * *mean_square + (1.0 - MEAN_SQUARE_KEPT) * square;
                    *gradient += strength / (*mean_square + EPSILON).sqrt() * square * (now - read);
                }
            }
            Treatment::None | Treatment::Inverse | Treatment::InverseRoot => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_staleness_every_treatment_is_none() {
        for treatment in [
            Treatment::None,
            Treatment::Inverse,
            Treatment::InverseRoot,
            Treatment::Compensate { strength: 0.5 },
            Treatment::CompensateAdaptive { strength: 2.0 },
        ] {
            assert_eq!(treatment.weight(0), 1.0, "{treatment:?}");
            let mut gradient = [1.0, -2.0];
            let mut delay = Delay::new(DelaySpec { treatment, drop_at: None }, 2);
            delay.compensate(&mut gradient, &[0.25, 0.5], &[0.25, 0.5]);
            assert_eq!(gradient, [1.0, -2.0], "{treatment:?}");
        }
    }

    #[test]
    fn weights_are_those_of_their_papers() {
        assert_eq!(Treatment::Inverse.weight(1), 1.0);
        assert_eq!(Treatment::Inverse.weight(4), 0.25);
        assert_eq!(Treatment::InverseRoot.weight(3), 0.5);
    }

    // On f(w) = w^2 / 2 with the square of the gradient standing for the curvature, a gradient of one is corrected to the fresh one.
    #[test]
    fn the_correction_is_exact_where_the_squared_gradient_is_the_curvature() {
        let mut delay =
            Delay::new(DelaySpec { treatment: Treatment::Compensate { strength: 1.0 }, drop_at: None }, 1);
        let mut gradient = [1.0];
        delay.compensate(&mut gradient, &[0.75], &[1.0]);
        assert_eq!(gradient, [0.75]);
    }

    #[test]
    fn the_adaptive_strength_falls_as_gradients_grow() {
        let correction = |gradient: f32| {
            let treatment = Treatment::CompensateAdaptive { strength: 1.0 };
            let mut delay = Delay::new(DelaySpec { treatment, drop_at: None }, 1);
            let mut corrected = [gradient];
            delay.compensate(&mut corrected, &[1.0], &[0.0]);
            (corrected[0] - gradient) / (gradient * gradient)
        };
        assert!(correction(2.0) < 0.6 * correction(1.0));
    }
}
