//! Slowness on purpose: how long each iteration of each worker takes, drawn from one seed.
//!
//! The simulator takes the drawn time as the time of a gradient; a real worker waits until its gradient has taken that long. One
//! configuration therefore describes the same slowness for both. Read in this order: this file, `draw.rs` (random numbers by place),
//! `exact.rs` (their logarithm and exponential), `recorded.rs` (times from a file).

mod draw;
pub(crate) mod exact;
mod recorded;

pub use draw::Draws;
pub use recorded::{RECORDED_HEADER, RecordedError};

use crate::ids::WorkerId;

/// Worker w draws from this stream plus w. The streams below belong to the order of samples and the initial values.
const WORKER_STREAM: u64 = 1 << 40;

/// The compute time of a worker's iterations.
#[derive(Clone, Debug, PartialEq)]
pub struct Stragglers {
    /// Seconds of a whole batch's gradient at a slowness of one. A batch of fewer samples takes its share. [`Slowness::Recorded`] has
    /// seconds of its own.
    pub compute_s: f64,
    /// Half-width of a uniform factor around one, as a share; in `[0, 1)`. It is laid over [`Slowness::None`],
    /// [`Slowness::Transient`], [`Slowness::Rotating`] and [`Slowness::Permanent`]; the others are drawn or recorded whole.
    pub jitter: f64,
    /// How the slowness is drawn.
    pub slowness: Slowness,
}

/// How slow one iteration of one worker is: a factor on [`Stragglers::compute_s`].
#[derive(Clone, Debug, PartialEq)]
pub enum Slowness {
    /// Always one. A real worker takes the time it takes.
    None,
    /// Exponential with mean one.
    Exponential,
    /// Lognormal with mean one.
    Lognormal {
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// Pareto with mean one: a heavy tail.
    Pareto {
        /// Tail index, above one.
        alpha: f64,
    },
    /// Each iteration is slow with a probability.
    Transient {
        /// Probability.
        probability: f64,
        /// Factor of a slow one.
        factor: f64,
    },
    /// The workers take turns in being slow for a burst of iterations: worker i is slow at iteration c when
    /// `(c / burst) mod workers == i mod workers`.
    Rotating {
        /// Factor of the slow one.
        factor: f64,
        /// Iterations of one turn.
        burst: u64,
    },
    /// The first workers are always slow.
    Permanent {
        /// Factor of the slow ones.
        factor: f64,
        /// How many are slow.
        count: u32,
    },
    /// Times that were recorded: seconds for each iteration of each worker, gone through again from the start when a run is longer.
    Recorded {
        /// One row a worker, in order; workers beyond the last row take the rows from the first again.
        seconds: Vec<Vec<f64>>,
    },
}

/// The share of an iteration's compute time after which `done` of the model's `total` gradients exist, the last layers' first: a third
/// goes forward, and two thirds go backward, evenly over the parameters (a layer's backward has two products where its forward has one).
#[must_use]
pub fn ready_share(done: u64, total: u64) -> f64 {
    1.0 / 3.0 + 2.0 / 3.0 * (done.min(total) as f64 / total.max(1) as f64)
}

/// The share of an iteration's compute time that the first `done` of the model's `total` values take forward; see [`ready_share`].
#[must_use]
pub fn forward_share(done: u64, total: u64) -> f64 {
    done.min(total) as f64 / total.max(1) as f64 / 3.0
}

impl Stragglers {
    /// Whether a real worker waits at all; with [`Slowness::None`] it takes the time it takes.
    #[must_use]
    pub const fn is_slow(&self) -> bool {
        !matches!(self.slowness, Slowness::None)
    }

    /// Seconds that the gradient of `worker` (one of `workers`) at `clock` takes. `share` is the number of its samples as a share of the
    /// configured batch: local steps make it larger than one.
    ///
    /// A pure function: it does not matter in which order, how often, or on which machine the times are asked for.
    #[must_use]
    pub fn seconds(&self, seed: u64, worker: WorkerId, clock: u64, workers: u32, share: f64) -> f64 {
        if let Slowness::Recorded { seconds } = &self.slowness
            && let Some(recorded) = recorded_time(seconds, worker, clock)
        {
            return recorded * share;
        }
        let mut draws = Draws::at(seed, WORKER_STREAM + u64::from(worker.0), clock);
        let steady = |draws: &mut Draws| 1.0 + self.jitter * (2.0 * draws.uniform() - 1.0);
        let slow_if = |slow: bool, factor: f64| if slow { factor } else { 1.0 };
        let slowness = match self.slowness {
            Slowness::None | Slowness::Recorded { .. } => steady(&mut draws),
            Slowness::Exponential => draws.exponential(),
            Slowness::Lognormal { sigma } => draws.lognormal(sigma),
            Slowness::Pareto { alpha } => draws.pareto(alpha),
            Slowness::Transient { probability, factor } => {
                slow_if(draws.uniform() < probability, factor) * steady(&mut draws)
            }
            Slowness::Rotating { factor, burst } => {
                let workers = u64::from(workers.max(1));
                let turn = clock / burst.max(1) % workers;
                slow_if(turn == u64::from(worker.0) % workers, factor) * steady(&mut draws)
            }
            Slowness::Permanent { factor, count } => slow_if(worker.0 < count, factor) * steady(&mut draws),
        };
        self.compute_s * slowness * share
    }
}

/// The recorded time; none when nothing is recorded for the worker.
fn recorded_time(rows: &[Vec<f64>], worker: WorkerId, clock: u64) -> Option<f64> {
    let row = rows.get((worker.0 as usize).checked_rem(rows.len())?)?;
    row.get(usize::try_from(clock.checked_rem(row.len() as u64)?).ok()?).copied()
}

#[cfg(test)]
mod tests;
