//! Momentum (Polyak 1964) and Nesterov's form of it (Sutskever et al. 2013), with L2 decay.
//!
//! The rate multiplies the velocity, not the gradient (form A of Goyal et al. 2017, section 3), so a change of rate needs no
//! momentum correction:
//!
//! ```text
//! d <- weight * (g + decay * w)
//! v <- momentum * v + d
//! w <- w - rate * v                      heavy ball
//! w <- w - rate * (d + momentum * v)     Nesterov
//! ```
//!
//! On a server that applies each push alone, the velocity decays once a push: with P workers its time constant, counted in
//! clocks, is P times shorter than under bsp.

/// What does not change from key to key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// What the gradient, with its decay, is multiplied by.
    pub weight: f32,
    /// The rate.
    pub rate: f32,
    /// Share of the velocity that is kept.
    pub momentum: f32,
    /// L2 decay.
    pub decay: f32,
}

/// Value and velocity of one key after a heavy-ball step.
#[inline(always)]
#[must_use]
pub fn step(
    value: f32,
    velocity: f32,
    gradient: f32,
    Constants { weight, rate, momentum, decay }: Constants,
) -> (f32, f32) {
    let direction = weight * (gradient + decay * value);
    let velocity = momentum * velocity + direction;
    (value - rate * velocity, velocity)
}

/// Value and velocity of one key after a Nesterov step.
#[inline(always)]
#[must_use]
pub fn nesterov_step(
    value: f32,
    velocity: f32,
    gradient: f32,
    Constants { weight, rate, momentum, decay }: Constants,
) -> (f32, f32) {
    let direction = weight * (gradient + decay * value);
    let velocity = momentum * velocity + direction;
    (value - rate * (direction + momentum * velocity), velocity)
}
