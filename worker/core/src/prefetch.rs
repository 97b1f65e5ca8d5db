//! Prefetch: the values of the next iteration are pulled while this one is computed, so that the pull takes no time of its own.
//!
//! ```text
//! clock c:  compute g(c) --------------------> push g(c)
//!              next work -> pull for c + 1 ...........-> compute g(c + 1), at once where the values are here
//! ```
//!
//! What is pulled so lacks the worker's own last push, which is under way or not made yet. The gate judges it at the clock at which it is
//! used, own iterations included, so the bound is what it was; that the worker has completed no more than it has is said beside it. It goes
//! to another buffer than the one that is being computed on. Whatever changes the clock at which it would be used makes it void.

use std::collections::BTreeMap;

use slackline_core::ids::{Clock, Moment, ShardId};
use slackline_core::wire::Work;

use crate::effect::Effect;
use crate::iteration::{Cycle, Iteration, OpenPull, Phase};
use crate::worker::Worker;

/// The pulls of the iteration after the one that is computed.
#[derive(Clone, Debug)]
pub(crate) struct Prefetch {
    /// The clock at which the values are used.
    pub(crate) clock: Clock,
    pub(crate) pulls: BTreeMap<ShardId, OpenPull>,
}

impl Cycle {
    /// The pull of a shard that has no answer yet: for the iteration that waits, or for the next one, then with the clock of that. Only
    /// one of the two has such.
    pub(crate) fn unserved(&mut self, shard: ShardId) -> Option<(&mut OpenPull, Option<Clock>)> {
        let present = self.iteration.as_mut().map(|iteration| (&mut iteration.pulls, None));
        let next = self.prefetch.as_mut().map(|prefetch| (&mut prefetch.pulls, Some(prefetch.clock)));
        let mut all = present.into_iter().chain(next);
        all.find_map(|(pulls, clock)| {
            let pull = pulls.get_mut(&shard).filter(|pull| pull.served.is_none())?;
            Some((pull, clock))
        })
    }

    /// The pulls for the iteration that begins at `clock`, where they were made before.
    pub(crate) fn take_prefetched(&mut self, clock: Clock) -> Option<BTreeMap<ShardId, OpenPull>> {
        self.prefetch.take().filter(|prefetch| prefetch.clock == clock).map(|prefetch| prefetch.pulls)
    }
}

impl Worker {
    /// Pulls for the next iteration, once its work is known.
    pub(crate) fn prefetch(&mut self, effects: &mut Vec<Effect>) -> bool {
        if !self.may_prefetch() {
            return false;
        }
        let pulls = self.shards.keys().map(|shard| (*shard, OpenPull::new(self.now))).collect();
        self.cycle.prefetch = Some(Prefetch { clock: self.clock.next(), pulls });
        let shards: Vec<_> = self.shards.keys().copied().collect();
        self.resume_pulls(&shards, effects);
        true
    }

    fn may_prefetch(&self) -> bool {
        let is_computing = matches!(
            self.cycle.iteration,
            Some(Iteration { phase: Phase::Computing { .. }, is_overtaken: false, .. })
        );
        let next = self.asking.front().map(|queued| queued.work);
        self.settings.prefetch > 0
            && is_computing
            && self.cycle.prefetch.is_none()
            && matches!(next, Some(Work::Batch { enter: None, .. }))
            // The answers to the first push after entering can move the worker up.
            && self.cycle.sequence > self.cycle.entered_after
            && !self.cycle.is_first_push()
            && self.paused_until.is_none()
    }

    /// The moment from which on the worker has waited for a pull of the present iteration: not while it still computed the one before.
    pub(crate) fn waits_since(&self, pull: &OpenPull) -> Moment {
        let since = self.cycle.iteration.as_ref().map_or(pull.since, |iteration| iteration.since);
        pull.since.max(since)
    }
}
