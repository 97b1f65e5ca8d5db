//! Update rules: what a gradient does to the values of a shard.
//!
//! One file a rule, each for one key; the loops over them are in `target.rs`. `rate` comes from [`RateSchedule`] and is a function of how
//! far the run is, never of when a push arrives.
//!
//! A step is bound by memory, so it passes over it once: block by block, a gradient is decoded (or summed of several,
//! [`Mean`](crate::aggregate::Mean)) into the first cache, and from there, with the old values, makes the new ones, be it in their place
//! or beside them.

pub mod momentum;
pub mod ordered;
mod schedule;
pub mod sgd;
mod target;

pub use schedule::{RateSchedule, Shape};
pub use target::Target;

use std::sync::Arc;

use crate::codec::{PlainSource, Source};
use crate::ids::KeyRange;
use crate::layout::{Layout, TensorKind};
use crate::local::Outer;

/// Keys of a block: what a step takes of its gradient at once, and tells of together.
pub const BLOCK: usize = 1024;

/// Which rule, with its constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Plain stochastic gradient descent: [`sgd`].
    Sgd,
    /// Heavy-ball or Nesterov momentum: [`momentum`].
    Momentum {
        /// Share of the velocity that is kept each step, in `[0, 1)`.
        momentum: f32,
        /// Look ahead along the velocity.
        nesterov: bool,
        /// What it fades with where each push is applied alone.
        per: Per,
    },
}

/// What momentum fades with where each push is applied alone. With one worker all are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Per {
    /// Each push: workers times faster over the data than under bsp.
    #[default]
    Push,
    /// Each push by the workers-th root, so that a clock leaves as much as under bsp.
    Clock,
    /// Each clock, with every gradient in the place of the clock it was pulled in: [`ordered`].
    Ordered,
}

/// An update rule with everything it needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimizerSpec {
    /// The rule.
    pub rule: Rule,
    /// Learning rate at the top of the schedule. Per push under ssp and asp, per clock under bsp.
    pub rate: f32,
    /// L2 decay, added to the gradient as `decay * value` where the layout allows decay.
    pub weight_decay: f32,
    /// Whether, where each push is applied alone, one decays by its share of a clock only.
    pub decay_per_clock: bool,
    /// How the rate moves over the run.
    pub schedule: RateSchedule,
}

impl OptimizerSpec {
    /// The servers' optimizer for the differences that local steps made.
    #[must_use]
    pub const fn outer(outer: Outer) -> Self {
        let (rule, rate) = match outer {
            Outer::Average => (Rule::Sgd, 1.0),
            Outer::Sgd { rate } => (Rule::Sgd, rate),
            Outer::Nesterov { rate, momentum } => {
                (Rule::Momentum { momentum, nesterov: true, per: Per::Push }, rate)
            }
        };
        Self { rule, rate, weight_decay: 0.0, decay_per_clock: true, schedule: RateSchedule::CONSTANT }
    }
}

/// One step of a run, as an optimizer must know it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The share of the run that is done, in `[0, 1]`.
    pub progress: f64,
    /// What the gradient, with its decay, is multiplied by. The rate is not: momentum would give back later what it takes now.
    pub weight: f32,
    /// Steps made before.
    pub version: u64,
    /// Steps that had been made when the gradient's values were read.
    pub pulled: u64,
}

impl Step {
    /// A step of full weight on fresh values.
    #[must_use]
    pub const fn fresh(progress: f64, version: u64) -> Self {
        Self { progress, weight: 1.0, version, pulled: version }
    }
}

/// A run of keys that are treated alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    start: usize,
    end: usize,
    decay: bool,
}

/// An update rule with its state for one range of keys.
#[derive(Clone, Debug)]
pub struct Optimizer {
    spec: OptimizerSpec,
    /// Steps that one clock is made of: the workers where each push is applied alone, 1 where a clock's mean is.
    steps_per_clock: u32,
    segments: Vec<Segment>,
    /// Copied on write: a state that is being kept shares it.
    velocity: Arc<Vec<f32>>,
}

impl Optimizer {
    /// State for the keys of `range` in `layout`; buffers of the layout are left alone by every rule. `steps_per_clock` is the
    /// number of workers where each push is applied alone, and 1 where a clock's mean is.
    #[must_use]
    pub fn new(spec: OptimizerSpec, layout: &Layout, range: KeyRange, steps_per_clock: u32) -> Self {
        let velocity = match spec.rule {
            Rule::Sgd => Vec::new(),
            Rule::Momentum { .. } => vec![0.0; range.len as usize],
        };
        Self {
            spec,
            steps_per_clock: steps_per_clock.max(1),
            segments: segments(layout, range),
            velocity: Arc::new(velocity),
        }
    }

    /// Applies one gradient to `values`, both of the length of the range.
    pub fn apply(&mut self, values: &mut [f32], gradient: &[f32], step: &Step) {
        self.advance(Target::InPlace(values), &mut PlainSource::from(gradient), step, &mut |_| {});
    }

    /// Applies one gradient, which is read once and in order. Target and gradient have the length of the range. `moved` hears of every block
    /// of [`BLOCK`] keys, counted from the first key, in which a bit of a value has changed.
    pub fn advance(
        &mut self,
        mut target: Target<'_>,
        gradient: &mut dyn Source,
        step: &Step,
        moved: &mut dyn FnMut(usize),
    ) {
        let kernels = [self.kernel(step, false), self.kernel(step, true)];
        let velocity = Arc::make_mut(&mut self.velocity);
        let mut scratch = [0.0; BLOCK];
        let mut segments = self.segments.as_slice();
        for (block, start) in (0..target.len()).step_by(BLOCK).enumerate() {
            let keys = start..(start + BLOCK).min(target.len());
            let gradient = gradient.next(keys.len(), &mut scratch);
            while let Some((_, rest)) = segments.split_first().filter(|(first, _)| first.end <= keys.start) {
                segments = rest;
            }
            if segments.first().is_none_or(|first| first.start > keys.start || first.end < keys.end) {
                target.part(keys.clone()).keep();
            }
            let mut has_moved = false;
            for segment in segments.iter().take_while(|segment| segment.start < keys.end) {
                let part = segment.start.max(keys.start)..segment.end.min(keys.end);
                let gradient = &gradient[part.start - start..part.end - start];
                let velocity = velocity.get_mut(part.clone()).unwrap_or_default();
                let kernel = kernels[usize::from(segment.decay)];
                has_moved |= kernel.step(target.part(part), velocity, gradient);
            }
            if has_moved {
                moved(block);
            }
        }
    }

    /// What one step does to a key that decays, or to one that does not.
    fn kernel(&self, step: &Step, decays: bool) -> Kernel {
        let weight = step.weight;
        let rate = self.spec.rate * self.spec.schedule.share(step.progress);
        let steps = self.steps_per_clock as f32;
        let share = if self.spec.decay_per_clock { 1.0 / steps } else { 1.0 };
        let decay = if decays { self.spec.weight_decay * share } else { 0.0 };
        let Rule::Momentum { momentum, nesterov, per } = self.spec.rule else {
            return Kernel::Sgd(sgd::Constants { weight, rate, decay });
        };
        let kept = if per == Per::Clock { momentum.powf(1.0 / steps) } else { momentum };
        let constants = momentum::Constants { weight, rate, momentum: kept, decay };
        match per {
            Per::Ordered => {
                let place = ordered::Place::of(step, self.steps_per_clock);
                Kernel::Ordered(ordered::Constants::new(place, constants))
            }
            Per::Push | Per::Clock if nesterov => Kernel::Nesterov(constants),
            Per::Push | Per::Clock => Kernel::HeavyBall(constants),
        }
    }

    /// The velocity as if nothing had been done yet.
    pub fn rest(&mut self) {
        Arc::make_mut(&mut self.velocity).fill(0.0);
    }

    /// Takes over the state of another one with the same rule and range; false, and nothing changed, if it is not of that length.
    pub fn restore(&mut self, slots: &[f32]) -> bool {
        let fits = slots.len() == self.velocity.len();
        if fits {
            Arc::make_mut(&mut self.velocity).copy_from_slice(slots);
        }
        fits
    }

    /// The same as [`Optimizer::slots`], shared: whoever keeps it makes the next step copy it.
    #[must_use]
    pub fn shared_slots(&self) -> Arc<Vec<f32>> {
        self.velocity.clone()
    }

    /// As [`Optimizer::restore`], without a copy.
    pub fn restore_shared(&mut self, slots: Arc<Vec<f32>>) -> bool {
        let fits = slots.len() == self.velocity.len();
        if fits {
            self.velocity = slots;
        }
        fits
    }

    /// The state beside the values: velocity, or nothing.
    #[must_use]
    pub fn slots(&self) -> &[f32] {
        &self.velocity
    }
}

/// A rule with what does not change within a step.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    Sgd(sgd::Constants),
    HeavyBall(momentum::Constants),
    Nesterov(momentum::Constants),
    Ordered(ordered::Constants),
}

impl Kernel {
    /// Steps keys, of which the velocity is empty where the rule has none. Whether a value has changed.
    fn step(self, target: Target<'_>, velocity: &mut [f32], gradient: &[f32]) -> bool {
        match self {
            Self::Sgd(constants) => target.each(gradient, move |w, g| sgd::step(w, g, constants)),
            Self::HeavyBall(constants) => {
                target.each_with(velocity, gradient, move |w, v, g| momentum::step(w, v, g, constants))
            }
            Self::Nesterov(constants) => target
                .each_with(velocity, gradient, move |w, v, g| momentum::nesterov_step(w, v, g, constants)),
            Self::Ordered(constants) => {
                target.each_with(velocity, gradient, move |w, v, g| ordered::step(w, v, g, constants))
            }
        }
    }
}

fn segments(layout: &Layout, range: KeyRange) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for tensor in layout.tensors().iter().filter(|tensor| tensor.kind == TensorKind::Parameter) {
        let start = tensor.offset.max(range.start);
        let end = (tensor.offset + tensor.len()).min(range.end());
        if start >= end {
            continue;
        }
        let (start, end) = ((start - range.start) as usize, (end - range.start) as usize);
        match segments.last_mut() {
            Some(last) if last.end == start && last.decay == tensor.decay => last.end = end,
            _ => segments.push(Segment { start, end, decay: tensor.decay }),
        }
    }
    segments
}

#[cfg(test)]
mod tests;
