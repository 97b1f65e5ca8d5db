//! What holds after every event, for tests and simulation.

use crate::evaluation::Evaluation;
use crate::iteration::Phase;
use crate::worker::Worker;

impl Worker {
    /// Checks the worker's invariants.
    ///
    /// # Panics
    /// With the invariant that does not hold.
    pub fn check_invariants(&self) {
        assert!(self.ledger.is_balanced(), "the shares of time are not the total");
        if self.leaving.is_some() {
            return;
        }
        self.group.check_invariants(self.clock, self.member.is_some());
        let cycle = &self.cycle;
        if let Some(iteration) = &cycle.iteration {
            let is_left = matches!(iteration.phase, Phase::Left);
            let pulls_all = iteration.pulls.keys().eq(self.shards.keys());
            assert!(is_left || self.settings.fragments > 1 || pulls_all, "an iteration pulls every shard");
            assert!(!self.finished, "a finished worker has no iteration");
            let is_computing = !matches!(iteration.phase, Phase::Pulling);
            let is_stopping = self.stopping.is_some();
            assert!(
                is_left || is_stopping || is_computing == (self.has_enough(iteration) && iteration.loaded),
                "it computes when enough is there, and not before"
            );
            assert!(cycle.forgotten.is_none(), "the buffers are free when an iteration begins");
            let is_ready = matches!(iteration.phase, Phase::Ready(_) | Phase::Left);
            let is_whole = iteration.has_values() || iteration.is_overtaken;
            assert!(!is_ready || is_whole, "a gradient is of all values, or of no use");
            assert!(!is_ready || cycle.pushing.is_some(), "a gradient is pushed as soon as it can be");
            assert!(
                !is_computing || is_stopping || iteration.has_asked || cycle.pushing.is_some(),
                "work is asked for ahead"
            );
        }
        if let Some(prefetch) = &cycle.prefetch {
            let is_computed = cycle.iteration.as_ref().map(|iteration| iteration.has_values());
            assert!(
                self.settings.prefetch > 0 && is_computed != Some(false),
                "only one iteration waits for values"
            );
            let used_at = self.clock.0 + u64::from(cycle.iteration.is_some());
            assert_eq!(prefetch.clock.0, used_at, "values are pulled for the clock at which they are used");
            assert!(prefetch.pulls.keys().eq(self.shards.keys()), "what is pulled ahead is everything");
        }
        if let Some(pushing) = &cycle.pushing {
            assert!(!pushing.unanswered.is_empty(), "answered pushes are over");
            assert!(pushing.unanswered.iter().all(|shard| self.shards.contains_key(shard)));
            assert!(pushing.staged.is_subset(&pushing.unanswered), "an answered piece does not wait");
            assert_eq!(pushing.sequence, cycle.sequence, "only the last push can lack answers");
            assert!(!self.asking.has_result(), "a batch is reported before the next is pushed");
            assert!(!self.finished, "a finished worker has no pushes");
        }
        let is_member = self.member.is_some();
        assert!(is_member || (cycle.is_idle() && !self.asking.has_begun()), "only members work");
        if let Evaluation::Pulling { pulls, .. } = &self.evaluation {
            assert!(pulls.values().any(|pull| pull.served.is_none()), "a complete snapshot is measured");
        }
    }
}
