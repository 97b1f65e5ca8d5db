//! The pace of the gradient thread: how long a gradient must take, what has come that it is computed on, and that nobody waits for it any more.
//!
//! Slowness on purpose ([`Stragglers`]) is a wait after the computing, which the driver can end at once: a gradient that is abandoned,
//! or a process that ends, never sits out its delay.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slackline_core::config::Config;
use slackline_core::ids::{Clock, Sequence, ShardId, WorkerId};
use slackline_core::stragglers::Stragglers;

use crate::coming::ByShard;

/// The longest that one wait for a signal lasts before the time is looked at again: the system's timeouts have bounds.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// How long gradients must take.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    stragglers: Stragglers,
    seed: u64,
    workers: u32,
    batch: u64,
}

impl Pace {
    /// That of the configuration; none if gradients take the time they take.
    pub(crate) fn of(config: &Config) -> Option<Self> {
        config.stragglers.is_slow().then(|| Self {
            stragglers: config.stragglers.clone(),
            seed: config.seed,
            workers: config.workers,
            batch: config.train.batch,
        })
    }

    /// The least time of a gradient.
    pub(crate) fn time(&self, worker: WorkerId, clock: Clock, samples: usize) -> Duration {
        let share = samples as f64 / self.batch.max(1) as f64;
        let seconds = self.stragglers.seconds(self.seed, worker, clock.0, self.workers, share);
        // Too long for a duration is for ever.
        Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
    }
}

/// A share of a time; what is too long for a duration is for ever.
pub(crate) fn share_of(time: Duration, share: f64) -> Duration {
    Duration::try_from_secs_f64(time.as_secs_f64() * share).unwrap_or(Duration::MAX)
}

#[derive(Debug, Default)]
struct State {
    /// The gradient that was handed over last.
    current: Sequence,
    abandoned: bool,
    ended: bool,
    /// Values that were not there when it was handed over.
    arrived: ByShard,
}

impl State {
    fn wants(&self, sequence: Sequence) -> bool {
        self.current == sequence && !self.abandoned && !self.ended
    }
}

/// What the driver tells the gradient thread while that computes.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    state: Mutex<State>,
    changed: Condvar,
}

impl Watch {
    /// Nothing is left half-done in a state of plain values, so a panic elsewhere spoils nothing.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A gradient is handed over.
    pub(crate) fn begin(&self, sequence: Sequence) {
        let mut state = self.state();
        (state.current, state.abandoned) = (sequence, false);
        self.changed.notify_all();
    }

    /// Nobody wants a gradient any more; one that was handed over before the last is finished long since.
    pub(crate) fn abandon(&self, sequence: Sequence) {
        let mut state = self.state();
        if state.current == sequence {
            state.abandoned = true;
            self.changed.notify_all();
        }
    }

    /// The process ends.
    pub(crate) fn end(&self) {
        self.state().ended = true;
        self.changed.notify_all();
    }

    /// Nobody wants any gradient that was handed over until now.
    pub(crate) fn abandon_all(&self) {
        self.state().abandoned = true;
        self.changed.notify_all();
    }

    /// Values have come for the gradient that was handed over last.
    pub(crate) fn deliver(&self, shard: ShardId, values: Vec<f32>) {
        self.state().arrived.insert(shard, values);
        self.changed.notify_all();
    }

    /// Takes the values of a shard, as soon as they have come; none when nobody wants the gradient any more.
    pub(crate) fn arrival(&self, sequence: Sequence, shard: ShardId) -> Option<Vec<f32>> {
        let mut state = self.state();
        while state.wants(sequence) && !state.arrived.contains_key(&shard) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.arrived.remove(&shard)
    }

    /// What came for a gradient that is done, and was not taken.
    pub(crate) fn leftover(&self) -> ByShard {
        std::mem::take(&mut self.state().arrived)
    }

    /// Whether somebody waits for a gradient. One after which another was handed over has long been forgotten.
    pub(crate) fn is_wanted(&self, sequence: Sequence) -> bool {
        self.state().wants(sequence)
    }

    /// Waits until `time` has passed since `began`, or nobody wants the gradient any more.
    pub(crate) fn wait(&self, sequence: Sequence, began: Instant, time: Duration) {
        let mut state = self.state();
        while state.wants(sequence) {
            let left = time.saturating_sub(began.elapsed());
            if left.is_zero() {
                return;
            }
            let woken = self.changed.wait_timeout(state, left.min(WAIT_MAX));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_core::stragglers::Slowness;

    #[test]
    fn a_time_is_that_of_the_worker_and_its_share_of_a_batch() {
        let slowness = Slowness::Permanent { factor: 3.0, count: 1 };
        let stragglers = Stragglers { compute_s: 0.5, jitter: 0.0, slowness };
        let pace = Pace { stragglers, seed: 1, workers: 2, batch: 4 };
        let time = |worker, samples| pace.time(WorkerId(worker), Clock(7), samples).as_secs_f64();
        assert_eq!([time(0, 4), time(1, 4), time(1, 2), time(1, 16)], [1.5, 0.5, 0.25, 2.0]);
    }

    #[test]
    fn what_was_handed_over_before_cannot_be_abandoned() {
        let watch = Watch::default();
        watch.begin(Sequence(1));
        watch.begin(Sequence(2));
        watch.abandon(Sequence(1));
        assert!(watch.is_wanted(Sequence(2)) && !watch.is_wanted(Sequence(1)));
        watch.abandon(Sequence(2));
        assert!(!watch.is_wanted(Sequence(2)));
        watch.begin(Sequence(2));
        assert!(watch.is_wanted(Sequence(2)), "the number comes again in another life of the worker");
        watch.abandon_all();
        assert!(!watch.is_wanted(Sequence(2)));
    }

    #[test]
    fn a_wait_ends_with_its_time_its_gradient_or_the_process() {
        let watch = Watch::default();
        let began = Instant::now();
        watch.wait(Sequence(0), began, Duration::from_millis(3));
        assert!(began.elapsed() >= Duration::from_millis(3));
        watch.abandon(Sequence(0));
        watch.wait(Sequence(0), began, Duration::MAX);
        watch.begin(Sequence(1));
        watch.wait(Sequence(0), began, Duration::MAX);
        watch.end();
        watch.wait(Sequence(1), began, Duration::MAX);
    }
}
