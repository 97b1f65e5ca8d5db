//! Update rules: what a gradient does to the values of a shard.
//!
//! One file a rule, each a kernel over slices. A rule sees the gradient already scaled; `rate` comes from
//! [`RateSchedule`] and is a function of how far the run is, never of when a push arrives.

pub mod momentum;
mod schedule;
pub mod sgd;

pub use schedule::{RateSchedule, Shape};

use crate::ids::KeyRange;
use crate::layout::{Layout, TensorKind};

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
    },
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
    /// How the rate moves over the run.
    pub schedule: RateSchedule,
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
    segments: Vec<Segment>,
    velocity: Vec<f32>,
}

impl Optimizer {
    /// State for the keys of `range` in `layout`; buffers of the layout are left alone by every rule.
    #[must_use]
    pub fn new(spec: OptimizerSpec, layout: &Layout, range: KeyRange) -> Self {
        let velocity = match spec.rule {
            Rule::Sgd => Vec::new(),
            Rule::Momentum { .. } => vec![0.0; range.len as usize],
        };
        Self { spec, segments: segments(layout, range), velocity }
    }

    /// Applies one gradient to `values`, both of the length of the range.
    ///
    /// `progress` is the share of the run that is done, in `[0, 1]`.
    pub fn apply(&mut self, values: &mut [f32], gradient: &[f32], progress: f64) {
        let rate = self.spec.rate * self.spec.schedule.share(progress);
        for segment in &self.segments {
            let span = segment.start..segment.end;
            let decay = if segment.decay { self.spec.weight_decay } else { 0.0 };
            let (values, gradient) = (&mut values[span.clone()], &gradient[span.clone()]);
            match self.spec.rule {
                Rule::Sgd => sgd::step(values, gradient, rate, decay),
                Rule::Momentum { momentum, nesterov } => {
                    let velocity = &mut self.velocity[span];
                    if nesterov {
                        momentum::nesterov_step(values, velocity, gradient, rate, momentum, decay);
                    } else {
                        momentum::step(values, velocity, gradient, rate, momentum, decay);
                    }
                }
            }
        }
    }

    /// The state beside the values: velocity, or nothing.
    #[must_use]
    pub fn slots(&self) -> &[f32] {
        &self.velocity
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
