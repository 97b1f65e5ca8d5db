//! Ordered momentum (OrMo, Shi, Yang and Li 2024): momentum that fades once a clock, whatever comes when.
//!
//! With K pushes a clock, the velocity fades at the first push of each clock. A gradient that was computed on values of d clocks ago
//! counts as if it had come then: its part of the velocity has faded d times, and the steps that it would have made meanwhile are made
//! up for at once. With K = 1 and no staleness that is the heavy ball (see [`super::momentum`]).
//!
//! ```text
//! first of a clock:  w <- w - rate * mu * v,  v <- mu * v
//! each gradient:     v <- v + mu^d * g         (g with its weight and decay)
//!                    w <- w - rate * (1 + mu + ... + mu^d) * g
//! ```

use super::{Step, momentum};

/// The place of one step in the order of clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whether it is the first of its clock, and not of the run.
    pub begins: bool,
    /// Clocks between its pull and now (d).
    pub age: u64,
}

impl Place {
    /// The place of a step where a clock has `steps_per_clock` of them.
    #[must_use]
    pub const fn of(step: &Step, steps_per_clock: u32) -> Self {
        let clock = steps_per_clock as u64;
        let age = (step.version / clock).saturating_sub(step.pulled / clock);
        Self { begins: step.version > 0 && step.version.is_multiple_of(clock), age }
    }
}

/// What does not change from key to key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// What the gradient, with its decay, is multiplied by.
    weight: f32,
    rate: f32,
    momentum: f32,
    decay: f32,
    begins: bool,
    /// mu^d
    faded: f32,
    /// 1 + mu + ... + mu^d
    made_up: f32,
}

impl Constants {
    /// Those of a step of the heavy ball that has its place in the order of clocks.
    #[must_use]
    pub fn new(
        place: Place,
        momentum::Constants { weight, rate, momentum, decay }: momentum::Constants,
    ) -> Self {
        let faded = momentum.powf(place.age as f32);
        let made_up = (1.0 - momentum * faded) / (1.0 - momentum);
        Self { weight, rate, momentum, decay, begins: place.begins, faded, made_up }
    }
}

/// Value and velocity of one key after a step.
#[inline(always)]
#[must_use]
pub fn step(value: f32, velocity: f32, gradient: f32, constants: Constants) -> (f32, f32) {
    let Constants { weight, rate, momentum, decay, begins, faded, made_up } = constants;
    let direction = weight * (gradient + decay * value);
    let (value, velocity) = if begins {
        let velocity = velocity * momentum;
        (value - rate * velocity, velocity)
    } else {
        (value, velocity)
    };
    (value - rate * made_up * direction, velocity + faded * direction)
}
