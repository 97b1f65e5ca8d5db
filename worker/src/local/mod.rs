//! Local steps: what a worker does between two exchanges when it walks on its own, and what it pushes then.
//!
//! The servers treat what is pushed as a gradient (a pseudo-gradient), with an optimizer of their own. One struct serves the gradient
//! thread of a real worker and the simulated ones. It knows three ways, chosen by [`LocalSpec`]:
//!
//! - **Difference** (local SGD, SparkNet, DiLoCo): begin at the pulled values, take the steps, push start minus end. Nothing is kept.
//! - **Fragments** (Streaming and Decoupled DiLoCo): the worker keeps its values and pushes one part of the keys an iteration, in turn:
//!   how far it came there since that part was pushed last. When newer values of the servers arrive, what the worker has done and not
//!   pushed yet is added to them, not overwritten (as LOSCAR does), so each step reaches the servers exactly once.
//! - **Elastic** (EASGD): the worker keeps its values; an exchange moves them and the servers' towards each other, by a share of their
//!   distance. The steps themselves are never pushed.

use std::ops::Range;

use slackline_core::aggregate::first_not_finite;
use slackline_core::config::Config;
use slackline_core::ids::{BatchIndex, Clock, KeyRange, ShardId};
use slackline_core::layout::Layout;
use slackline_core::local::LocalSpec;
use slackline_core::optimizer::{Optimizer, OptimizerSpec, Step};
use slackline_core::partition::Partition;

use crate::model::Examples;

/// Computes a mean gradient: values, examples, where the gradient goes; returns the mean loss.
pub type GradientOf<'a> = dyn FnMut(&[f32], Examples<'_>, &mut [f32]) -> f32 + 'a;

/// What one iteration begins with.
#[derive(Clone, Debug)]
pub struct LocalIteration<'a> {
    /// The servers' values as the worker knows them, of the whole flat space.
    pub pulled: &'a [f32],
    /// The shards whose values there are newer than in the iteration before.
    pub adopted: &'a [ShardId],
    /// Iterations that the worker has completed, which says whose turn it is.
    pub clock: Clock,
    /// The samples of all its steps: each step takes as many as a batch has, the last what is left.
    pub examples: Examples<'a>,
    /// The batch of the first step; the others follow it. The rate of a step follows from its batch's place in the run.
    pub batch: BatchIndex,
    /// Batches of the whole run.
    pub batch_count: u64,
}

/// What the last iteration gave out, as long as it may still be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Nothing,
    /// The progress of a fragment.
    Progress(usize),
    /// The elastic move.
    Move,
}

/// The values of one worker that walks on its own; see the head of this file.
#[derive(Clone, Debug)]
pub struct LocalSolver {
    spec: LocalSpec,
    /// Samples of one step.
    batch: usize,
    /// The keys of each shard.
    shards: Vec<KeyRange>,
    optimizer: Optimizer,
    /// Steps since it was at rest.
    steps_done: u64,
    /// Where the worker stands.
    values: Vec<f32>,
    /// For differences: from here to `values` is what was done and not pushed. For elastic averaging: the last move.
    base: Vec<f32>,
    /// The gradient of one step.
    slope: Vec<f32>,
    /// Whether `values` mean anything.
    has_begun: bool,
    given: Given,
}

impl LocalSolver {
    /// The solver of a worker under this configuration, if it has local steps.
    #[must_use]
    pub fn of(config: &Config) -> Option<Self> {
        let (layout, partition) = (config.layout(), config.partition());
        config.local.map(|spec| Self::new(spec, config.optimizer, config.train.batch, &layout, &partition))
    }

    /// A worker that has not begun. `inner` is its own optimizer and `batch` the samples of one of its steps; `partition` is the
    /// division of `layout` into shards, of which the fragments are made.
    #[must_use]
    pub fn new(
        spec: LocalSpec,
        inner: OptimizerSpec,
        batch: u64,
        layout: &Layout,
        partition: &Partition,
    ) -> Self {
        let len = layout.len() as usize;
        Self {
            spec,
            batch: usize::try_from(batch).unwrap_or(usize::MAX).max(1),
            shards: (0..partition.shard_count()).map(|shard| partition.range(ShardId(shard))).collect(),
            optimizer: Optimizer::new(inner, layout, KeyRange::new(0, layout.len()), 1),
            steps_done: 0,
            values: vec![0.0; len],
            base: vec![0.0; len],
            slope: vec![0.0; len],
            has_begun: false,
            given: Given::Nothing,
        }
    }

    /// The next iteration begins at the pulled values, whatever was done before: the worker was fenced, or is a new one.
    pub const fn forget(&mut self) {
        self.has_begun = false;
        self.given = Given::Nothing;
    }

    /// What the last iteration wrote was not pushed and will not be: the progress in it belongs to a later push, and an elastic move
    /// did not happen. Without an iteration before, or after one that was broken off, this changes nothing.
    pub fn abandon(&mut self) {
        if std::mem::replace(&mut self.given, Given::Nothing) == Given::Move {
            for (value, moved) in self.values.iter_mut().zip(&self.base) {
                *value += moved;
            }
        }
    }

    /// The worker's own values.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Takes the steps of one iteration and writes to `pushed` (as long as the layout) what the servers are to treat as a gradient;
    /// zeros for the keys that are not in turn. Returns the mean loss over the samples, each at the values its step began with.
    ///
    /// Before each step `is_wanted` is asked. Once it says no, the iteration is broken off: `pushed` is all zeros, the steps done so far
    /// count for the next push, and there is no loss.
    ///
    /// What the iteration before wrote counts as pushed now, unless [`Self::abandon`] was called since.
    ///
    /// # Panics
    /// When a slice is not as long as the layout: a fault of the program.
    pub fn iterate(
        &mut self,
        iteration: &LocalIteration<'_>,
        gradient_of: &mut GradientOf<'_>,
        is_wanted: &dyn Fn() -> bool,
        pushed: &mut [f32],
    ) -> Option<f64> {
        assert_eq!(iteration.pulled.len(), self.values.len(), "as many values as the layout has");
        assert_eq!(pushed.len(), self.values.len(), "as many gradients as values");
        let outcome = match self.spec.elastic {
            Some(share) => self.iterate_elastic(share as f32, iteration, gradient_of, is_wanted),
            None => self.iterate_difference(iteration, gradient_of, is_wanted),
        };
        pushed.fill(0.0);
        outcome?;
        match self.given {
            Given::Nothing => {}
            Given::Progress(fragment) => {
                for keys in self.fragment(fragment) {
                    let pairs = self.base[keys.clone()].iter().zip(&self.values[keys.clone()]);
                    pushed[keys].iter_mut().zip(pairs).for_each(|(out, (base, value))| *out = base - value);
                }
            }
            Given::Move => pushed.iter_mut().zip(&self.base).for_each(|(out, moved)| *out = 0.0 - moved),
        }
        if first_not_finite(pushed).is_some() {
            // Nobody takes this. Values that are no numbers would spoil all that follows, so the next iteration begins anew.
            self.forget();
        }
        outcome
    }

    fn iterate_difference(
        &mut self,
        iteration: &LocalIteration<'_>,
        gradient_of: &mut GradientOf<'_>,
        is_wanted: &dyn Fn() -> bool,
    ) -> Option<f64> {
        self.settle();
        if self.fragment_count() == 1 || !self.has_begun {
            self.begin(iteration.pulled);
            self.base.copy_from_slice(iteration.pulled);
        } else {
            for shard in iteration.adopted {
                self.adopt(*shard, iteration.pulled);
            }
        }
        let loss = self.walk(iteration, gradient_of, is_wanted, |_| ())?;
        self.given = Given::Progress((iteration.clock.0 % self.fragment_count() as u64) as usize);
        Some(loss)
    }

    fn iterate_elastic(
        &mut self,
        share: f32,
        iteration: &LocalIteration<'_>,
        gradient_of: &mut GradientOf<'_>,
        is_wanted: &dyn Fn() -> bool,
    ) -> Option<f64> {
        if !self.has_begun {
            self.begin(iteration.pulled);
        }
        self.given = Given::Nothing;
        for (moved, (value, center)) in self.base.iter_mut().zip(self.values.iter().zip(iteration.pulled)) {
            *moved = share * (value - center);
        }
        // The first gradient is that of the place before the move: the paper's rule takes both from the same values, and its region of
        // stability holds for that.
        let make_move = |solver: &mut Self| {
            for (value, moved) in solver.values.iter_mut().zip(&solver.base) {
                *value -= moved;
            }
            solver.given = Given::Move;
        };
        let loss = self.walk(iteration, gradient_of, is_wanted, make_move);
        match loss {
            // There was no step to move after.
            Some(_) if self.given == Given::Nothing => make_move(self),
            Some(_) => {}
            None => self.abandon(),
        }
        loss
    }

    /// What was given out is gone: the next difference begins where it ended.
    fn settle(&mut self) {
        if let Given::Progress(fragment) = std::mem::replace(&mut self.given, Given::Nothing) {
            for keys in self.fragment(fragment) {
                self.base[keys.clone()].copy_from_slice(&self.values[keys]);
            }
        }
    }

    /// At the pulled values, at rest.
    fn begin(&mut self, pulled: &[f32]) {
        self.values.copy_from_slice(pulled);
        self.optimizer.rest();
        self.steps_done = 0;
        self.has_begun = true;
    }

    /// Takes the servers' values of one shard, and keeps on top of them what the servers do not have yet.
    fn adopt(&mut self, shard: ShardId, pulled: &[f32]) {
        let Some(keys) = self.shards.get(shard.0 as usize).map(|keys| keys.as_indices()) else { return };
        let own = self.values[keys.clone()].iter_mut().zip(&mut self.base[keys.clone()]);
        for (theirs, (value, base)) in pulled[keys].iter().zip(own) {
            // Where nothing was done, the bits are theirs.
            *value = if *value == *base { *theirs } else { theirs + (*value - *base) };
            *base = *theirs;
        }
    }

    /// The steps; `after_first` is called once the first is done.
    fn walk(
        &mut self,
        iteration: &LocalIteration<'_>,
        gradient_of: &mut GradientOf<'_>,
        is_wanted: &dyn Fn() -> bool,
        after_first: impl Fn(&mut Self),
    ) -> Option<f64> {
        let (mut samples, mut loss_sum) = (0, 0.0);
        for (step, examples) in (0..).zip(iteration.examples.pieces(self.batch)) {
            if !is_wanted() {
                return None;
            }
            let loss = gradient_of(&self.values, examples, &mut self.slope);
            loss_sum += f64::from(loss) * examples.samples() as f64;
            samples += examples.samples();
            let place = iteration.batch.0.saturating_add(step);
            let progress = place as f64 / iteration.batch_count.max(1) as f64;
            self.optimizer.apply(&mut self.values, &self.slope, &Step::fresh(progress, self.steps_done));
            self.steps_done += 1;
            if step == 0 {
                after_first(self);
            }
        }
        Some(loss_sum / samples.max(1) as f64)
    }

    fn fragment_count(&self) -> usize {
        self.spec.fragments.max(1) as usize
    }

    /// The keys of a fragment: those of the shards whose number leaves that remainder.
    fn fragment(&self, fragment: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let shards = self.shards.iter().skip(fragment).step_by(self.fragment_count());
        shards.map(|keys| keys.as_indices()).collect::<Vec<_>>().into_iter()
    }
}

#[cfg(test)]
mod tests;
