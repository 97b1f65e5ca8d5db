//! What becomes of an iteration that nobody waits for any more: the worker's lease ran out, and others have its work.

use std::collections::BTreeSet;

use slackline_core::ids::{BatchIndex, Moment, Sequence, ShardId};

use crate::effect::Effect;
use crate::iteration::{Iteration, Phase};
use crate::worker::Worker;

/// A gradient that the shell computes and nobody wants any more.
#[derive(Clone, Debug)]
pub(crate) struct Forgotten {
    pub(crate) sequence: Sequence,
    /// The shards whose parts have left.
    pub(crate) left: BTreeSet<ShardId>,
    pub(crate) batch: BatchIndex,
    pub(crate) since: Moment,
}

impl Worker {
    /// Drops the iteration and the pushes under way; the gradients' buffers are given back as soon as they
    /// are free.
    pub(crate) fn forget_cycle(&mut self, effects: &mut Vec<Effect>) {
        let sequence = self.cycle.sequence.next();
        self.cycle.prefetch = None;
        match self.cycle.iteration.take() {
            Some(iteration @ Iteration { phase: Phase::Computing { since, .. }, .. }) => {
                // What it still waits for does not come any more.
                if !iteration.has_values() && !iteration.is_overtaken {
                    effects.push(Effect::Abandon { sequence });
                }
                let Iteration { batch, early, .. } = iteration;
                self.cycle.forgotten = Some(Forgotten { sequence, left: early.left(), batch, since });
            }
            Some(Iteration { early, phase: Phase::Ready(_), .. }) => {
                effects.push(self.release_unsent(sequence, &early.left()));
            }
            Some(Iteration { phase: Phase::Pulling | Phase::Left, .. }) | None => {}
        }
        if let Some(pushing) = self.cycle.pushing.take()
            && pushing.has_gradient
        {
            effects.push(pushing.release());
        }
        self.cycle.sequence = Sequence(0);
        self.cycle.entered_after = Sequence(0);
        self.cycle.adopted.clear();
        self.ledger.begin_phases();
    }
}
