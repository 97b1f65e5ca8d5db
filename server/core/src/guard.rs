//! What a shard does not let in: gradients that are not finite, norms beyond a limit, workers that push too often.
//!
//! A guard only looks and, where it is told to, shortens; what becomes of the push is the shard's part. It is deterministic: the same
//! pushes at the same moments give the same verdicts, so the copies of a shard agree. Its memory is part of the shard's state.

use std::collections::BTreeMap;
use std::fmt;

use bincode::{Decode, Encode};
use slackline_core::aggregate::{self, first_not_finite};
use slackline_core::codec::Payload;
use slackline_core::config::{self, OnNorm};
use slackline_core::ids::{KeyRange, Moment, WorkerId};
use slackline_core::layout::Layout;
use slackline_core::wide::wide;

/// Seconds over which the pushes of a worker are counted.
const SECONDS: usize = 10;

/// Sums that a norm is made of: they are added up in one order whatever the machine, and the processor can go on with the next value
/// before the last one is in its sum.
const LANES: usize = 8;

/// What the guard says of a gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It may be applied.
    Take,
    /// Its norm was beyond the limit; it was shortened to it.
    Clipped {
        /// Its norm before.
        norm: f64,
    },
    /// Its norm is beyond the limit: leave it out, or end the run.
    Norm {
        /// Its norm.
        norm: f64,
    },
    /// Its worker has pushed too often.
    Rate {
        /// Pushes of the last ten seconds, this one included.
        pushes: u32,
    },
    /// A value is not a finite number.
    NotFinite {
        /// Which one, from the shard's first key.
        index: usize,
    },
}

/// What was beyond a limit, for the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Beyond {
    /// The norm.
    Norm {
        /// What it was.
        norm: f64,
        /// What it may be.
        most: f64,
        /// What was done.
        on_norm: OnNorm,
    },
    /// The rate.
    Rate {
        /// Pushes of the last ten seconds.
        pushes: u32,
        /// What they may be in ten seconds.
        most: u32,
    },
}

impl fmt::Display for Beyond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Norm { norm, most, on_norm } => {
                let done = match on_norm {
                    OnNorm::Drop => "it is left out",
                    OnNorm::Clip => "it is shortened to that",
                    OnNorm::Stop => "the run is stopped",
                };
                write!(f, "its norm is {norm:.4e}, and guard.norm_max is {most:.4e}: {done}")
            }
            Self::Rate { pushes, most } => write!(
                f,
                "it is push {pushes} of ten seconds, and guard.pushes_per_s allows {most}: it is left out, to come again"
            ),
        }
    }
}

/// The pushes of one worker, second by second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Window {
    /// The last second that is counted, from the shard's beginning.
    second: u64,
    /// Pushes taken in each of the last seconds; second s stands at s modulo ten.
    counts: [u32; SECONDS],
}

impl Window {
    /// Forgets what is older than ten seconds; time that goes back changes nothing.
    fn turn(&mut self, second: u64) {
        let passed = second.saturating_sub(self.second).min(SECONDS as u64);
        for step in 1..=passed {
            let place = (second - passed + step) % SECONDS as u64;
            self.counts[place as usize] = 0;
        }
        self.second = self.second.max(second);
    }

    fn total(&self) -> u32 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    fn count(&mut self) {
        let count = &mut self.counts[(self.second % SECONDS as u64) as usize];
        *count = count.saturating_add(1);
    }
}

/// The guard of one shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Guard {
    spec: config::Guard,
    /// Only of workers that are members: see [`Guard::forget`].
    windows: BTreeMap<WorkerId, Window>,
}

impl Guard {
    /// A guard that has seen nothing.
    #[must_use]
    pub const fn new(spec: config::Guard) -> Self {
        Self { spec, windows: BTreeMap::new() }
    }

    /// What it acts by.
    #[must_use]
    pub const fn spec(&self) -> config::Guard {
        self.spec
    }

    /// Most pushes of one worker in ten seconds; at least one, or no run could begin.
    fn pushes_max(&self) -> Option<u32> {
        let per_s = self.spec.pushes_per_s?;
        Some(((per_s * SECONDS as f64).round() as u32).max(1))
    }

    /// Looks at a gradient that is new, and shortens it where [`OnNorm::Clip`] says so. A push that is left out for its rate is not
    /// counted: it comes again.
    pub fn look(&mut self, now: Moment, worker: WorkerId, gradient: &mut [f32]) -> Verdict {
        if let Some(verdict) = self.beyond_rate(now, worker) {
            return verdict;
        }
        let Some(most) = self.spec.norm_max.map(f64::from) else {
            return first_not_finite(gradient).map_or(Verdict::Take, |index| Verdict::NotFinite { index });
        };
        let norm = norm(gradient);
        // The squares of finite values have room in f64, so only a value that is not finite spoils their sum.
        if !norm.is_finite()
            && let Some(index) = first_not_finite(gradient)
        {
            return Verdict::NotFinite { index };
        }
        if norm <= most {
            return Verdict::Take;
        }
        if self.spec.on_norm != OnNorm::Clip {
            return Verdict::Norm { norm };
        }
        aggregate::scale(gradient, (most / norm) as f32);
        Verdict::Clipped { norm }
    }

    /// The same for a gradient that is not unpacked: only where norms have no limit.
    pub fn look_packed(&mut self, now: Moment, worker: WorkerId, gradient: &Payload) -> Verdict {
        let finite =
            || gradient.first_not_finite().map_or(Verdict::Take, |index| Verdict::NotFinite { index });
        self.beyond_rate(now, worker).unwrap_or_else(finite)
    }

    /// Counts a push, unless it is one too many.
    fn beyond_rate(&mut self, now: Moment, worker: WorkerId) -> Option<Verdict> {
        let most = self.pushes_max()?;
        let window = self.windows.entry(worker).or_default();
        window.turn(now.since(Moment(0)).as_secs());
        if window.total() >= most {
            return Some(Verdict::Rate { pushes: window.total().saturating_add(1) });
        }
        window.count();
        None
    }

    /// What a verdict says of a limit, for the log.
    #[must_use]
    pub fn beyond(&self, verdict: &Verdict) -> Option<Beyond> {
        match *verdict {
            Verdict::Take | Verdict::NotFinite { .. } => None,
            Verdict::Clipped { norm } | Verdict::Norm { norm } => {
                let most = self.spec.norm_max.map_or(f64::INFINITY, f64::from);
                Some(Beyond::Norm { norm, most, on_norm: self.spec.on_norm })
            }
            Verdict::Rate { pushes } => {
                Some(Beyond::Rate { pushes, most: self.pushes_max().unwrap_or(u32::MAX) })
            }
        }
    }

    /// A worker is no member any more.
    pub fn forget(&mut self, worker: WorkerId) {
        self.windows.remove(&worker);
    }

    /// Its memory, for the shard's state.
    #[must_use]
    pub const fn windows(&self) -> &BTreeMap<WorkerId, Window> {
        &self.windows
    }

    /// Takes the memory of another copy over.
    pub fn restore(&mut self, windows: BTreeMap<WorkerId, Window>) {
        self.windows = windows;
    }
}

/// Euclidean norm, summed in f64 in one order.
#[must_use]
pub fn norm(gradient: &[f32]) -> f64 {
    squares(gradient).sqrt()
}

fn squares(gradient: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    wide(|| {
        let (whole, rest) = gradient.as_chunks::<LANES>();
        for chunk in whole {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(*value) * f64::from(*value);
            }
        }
        for (lane, value) in lanes.iter_mut().zip(rest) {
            *lane += f64::from(*value) * f64::from(*value);
        }
    });
    lanes.iter().sum()
}

/// The tensor that has the largest share of a gradient's norm, with that share of the squares in `[0, 1]`. `gradient` is that of `keys`.
#[must_use]
pub fn largest_share<'a>(layout: &'a Layout, keys: KeyRange, gradient: &[f32]) -> Option<(&'a str, f64)> {
    let total = squares(gradient);
    let share = |tensor: &'a slackline_core::layout::Tensor| {
        let start = tensor.offset.max(keys.start);
        let end = (tensor.offset + tensor.len()).min(keys.end());
        (start < end).then(|| {
            let part = (start - keys.start) as usize..(end - keys.start) as usize;
            (tensor.path.as_str(), squares(gradient.get(part).unwrap_or_default()))
        })
    };
    let largest = layout.tensors().iter().filter_map(share).fold(None, |best: Option<(&str, f64)>, one| {
        // The first of equal ones, so that the same gradient always names the same tensor.
        if best.is_none_or(|best| one.1 > best.1) { Some(one) } else { best }
    });
    largest.map(|(path, part)| (path, if total > 0.0 { part / total } else { 0.0 }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const WORKER: WorkerId = WorkerId(2);

    fn guard(norm_max: Option<f32>, on_norm: OnNorm, pushes_per_s: Option<f64>) -> Guard {
        Guard::new(config::Guard { norm_max, on_norm, pushes_per_s })
    }

    fn at(seconds: f64) -> Moment {
        Moment(0).after(Duration::from_secs_f64(seconds))
    }

    // Case tensorflow#14494: a NaN appeared only in asynchronous runs with many workers, and nobody said whose it was.
    #[test]
    fn a_value_that_is_not_finite_is_found_whatever_the_limits() {
        for norm_max in [None, Some(1.0)] {
            let mut guard = guard(norm_max, OnNorm::Clip, None);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut gradient = [0.5, 0.1, bad, 0.0, bad];
                assert_eq!(
                    guard.look(at(0.0), WORKER, &mut gradient),
                    Verdict::NotFinite { index: 2 },
                    "{bad}"
                );
            }
            assert_eq!(guard.look(at(0.0), WORKER, &mut [0.5, 0.1]), Verdict::Take);
        }
    }

    #[test]
    fn a_norm_beyond_the_limit_is_left_out_shortened_or_stops_the_run_by_policy() {
        for on_norm in [OnNorm::Drop, OnNorm::Stop] {
            let mut gradient = [3.0, 4.0];
            let mut guard = guard(Some(4.0), on_norm, None);
            assert_eq!(guard.look(at(0.0), WORKER, &mut gradient), Verdict::Norm { norm: 5.0 });
            assert_eq!(gradient, [3.0, 4.0]);
        }
        let mut gradient = [3.0, 4.0];
        let mut guard = guard(Some(1.0), OnNorm::Clip, None);
        let verdict = guard.look(at(0.0), WORKER, &mut gradient);
        assert_eq!((verdict, gradient), (Verdict::Clipped { norm: 5.0 }, [0.6, 0.8]));
        let said = guard.beyond(&verdict).unwrap().to_string();
        assert_eq!(said, "its norm is 5.0000e0, and guard.norm_max is 1.0000e0: it is shortened to that");
        assert_eq!(guard.look(at(0.0), WORKER, &mut [0.6, 0.0]), Verdict::Take);
    }

    #[test]
    fn the_largest_finite_gradient_has_a_norm() {
        let mut gradient = vec![f32::MAX; 100];
        let verdict = guard(Some(1.0), OnNorm::Drop, None).look(at(0.0), WORKER, &mut gradient);
        assert_eq!(verdict, Verdict::Norm { norm: f64::from(f32::MAX) * 10.0 });
    }

    #[test]
    fn a_worker_pushes_at_most_its_rate_over_ten_seconds() {
        let mut guard = guard(None, OnNorm::Drop, Some(2.0));
        let mut taken = 0;
        // Ten pushes a second for a minute.
        for tick in 0..600 {
            let verdict = guard.look(at(f64::from(tick) / 10.0), WORKER, &mut [1.0]);
            taken += u32::from(verdict == Verdict::Take);
            // Another worker is not the one to suffer for it.
            if tick % 10 == 0 {
                assert_eq!(guard.look(at(f64::from(tick) / 10.0), WorkerId(3), &mut [1.0]), Verdict::Take);
            }
        }
        assert_eq!(taken, 6 * 20);
        assert_eq!(guard.windows().len(), 2);
        let verdict = guard.look(at(59.9), WORKER, &mut [1.0]);
        assert_eq!(verdict, Verdict::Rate { pushes: 21 });
        let said = guard.beyond(&verdict).unwrap().to_string();
        assert!(said.starts_with("it is push 21 of ten seconds, and guard.pushes_per_s allows 20"), "{said}");
        guard.forget(WORKER);
        assert_eq!(guard.look(at(59.9), WORKER, &mut [1.0]), Verdict::Take);
        assert_eq!(guard.windows().len(), 2);
    }

    #[test]
    fn the_tensor_with_the_largest_share_of_the_norm_is_named() {
        let mut layout = Layout::new();
        layout.parameter("a", &[4], true);
        layout.parameter("empty", &[0], true);
        layout.parameter("b", &[4], true);
        // The shard begins within the first tensor and ends within the last.
        let keys = KeyRange::new(2, 4);
        assert_eq!(largest_share(&layout, keys, &[1.0, 1.0, 3.0, 0.0]), Some(("b", 9.0 / 11.0)));
        assert_eq!(largest_share(&layout, keys, &[4.0, 0.0, 3.0, 0.0]), Some(("a", 16.0 / 25.0)));
        assert_eq!(largest_share(&layout, keys, &[0.0; 4]), Some(("a", 0.0)));
    }

    proptest! {
        #[test]
        fn a_norm_is_that_of_the_definition(gradient in prop::collection::vec(-1e3_f32..1e3, 0..100)) {
            let plain = gradient.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
            prop_assert!((norm(&gradient) - plain).abs() <= 1e-9 * plain.max(1.0));
        }

        #[test]
        fn no_ten_seconds_have_more_pushes_than_allowed(
            gaps in prop::collection::vec(0_u64..3_000, 1..200),
            most in 1_u32..20,
        ) {
            let mut guard = guard(None, OnNorm::Drop, Some(f64::from(most) / 10.0));
            let (mut now, mut taken) = (0, Vec::new());
            for gap in gaps {
                now += gap;
                if guard.look(at(now as f64 / 1e3), WORKER, &mut [1.0]) == Verdict::Take {
                    taken.push(now / 1000);
                }
            }
            for second in &taken {
                let within = taken.iter().filter(|other| (*second..second + 10).contains(other)).count();
                prop_assert!(within <= most as usize);
            }
        }

        #[test]
        fn a_copy_that_takes_the_memory_over_says_the_same(times in prop::collection::vec(0_u64..60_000, 1..60)) {
            let (mut times, spec) = (times, Some(0.3));
            times.sort_unstable();
            let mut first = guard(None, OnNorm::Drop, spec);
            let half = times.len() / 2;
            for time in &times[..half] {
                first.look(at(*time as f64 / 1e3), WORKER, &mut [1.0]);
            }
            let mut second = guard(None, OnNorm::Drop, spec);
            second.restore(first.windows().clone());
            for time in &times[half..] {
                let now = at(*time as f64 / 1e3);
                prop_assert_eq!(first.look(now, WORKER, &mut [1.0]), second.look(now, WORKER, &mut [1.0]));
            }
        }
    }
}
