//! When computing begins: with the values of all shards, or with those of the first layers while the others are on their way.
//!
//! Forward goes from the first layer to the last, so what it begins with is a small part of what it needs (Jayarajan et al. 2019, P3; Peng et
//! al. 2019, ByteScheduler). The shell waits for the rest where it needs it, and says for how long.

use slackline_core::ids::ShardId;

use crate::effect::Effect;
use crate::iteration::{Iteration, Phase};
use crate::worker::Worker;

impl Worker {
    /// Whether the values are there that computing begins with.
    pub(crate) fn has_enough(&self, iteration: &Iteration) -> bool {
        let has_first = || iteration.pulls.first_key_value().is_some_and(|(_, pull)| pull.served.is_some());
        iteration.has_values() || (self.settings.begins_early && has_first())
    }

    pub(crate) fn begin_compute(&mut self, effects: &mut Vec<Effect>) -> bool {
        let (sequence, clock) = (self.cycle.sequence.next(), self.clock);
        let is_ready = |iteration: &&Iteration| {
            matches!(iteration.phase, Phase::Pulling) && iteration.loaded && self.has_enough(iteration)
        };
        let Some(iteration) = self.cycle.iteration.as_ref().filter(is_ready) else { return false };
        let batch = iteration.batch;
        let shards = iteration.pulls.iter().map(|(shard, pull)| (*shard, pull.served.is_some()));
        let (served, missing): (Vec<_>, Vec<_>) = shards.partition(|(_, is_served)| *is_served);
        let adopted =
            served.into_iter().map(|(shard, _)| shard).filter(|shard| self.adopt_values(*shard)).collect();
        if let Some(iteration) = &mut self.cycle.iteration {
            iteration.phase = Phase::Computing { since: self.now, clock };
        }
        let (buffer, pushed) = (self.cycle.buffer, self.shards_in_turn(clock));
        let missing = missing.into_iter().map(|(shard, _)| shard).collect();
        effects.push(Effect::Compute { sequence, batch, clock, buffer, adopted, pushed, missing });
        self.evaluate_when_whole(effects);
        true
    }

    /// Values have come that are being computed on already.
    pub(crate) fn deliver(&mut self, shard: ShardId, effects: &mut Vec<Effect>) {
        let is_computing = |iteration: &Iteration| matches!(iteration.phase, Phase::Computing { .. });
        if self.cycle.iteration.as_ref().is_some_and(is_computing) {
            self.adopt_values(shard);
            effects.push(Effect::Deliver { shard });
            self.evaluate_when_whole(effects);
        }
    }

    /// What was pulled for a shard is computed on. Whether it is newer than what was before.
    fn adopt_values(&mut self, shard: ShardId) -> bool {
        let Some(pull) = self.cycle.iteration.as_ref().and_then(|iteration| iteration.pulls.get(&shard))
        else {
            return false;
        };
        let Some(served) = pull.served else { return false };
        self.contents.put(self.cycle.buffer, shard, pull.answer);
        self.record.counts().clock_lead.record(served.lead);
        self.cycle.adopted.insert(shard, served.version) != Some(served.version)
    }

    /// Not before all values are there: this worker's gate has then proven how much they have learned, and its own gradient, without
    /// which a barrier does not open, is not in them.
    fn evaluate_when_whole(&mut self, effects: &mut Vec<Effect>) {
        let is_free = self.evaluation.is_free();
        let complete = self.cycle.iteration.as_mut().filter(|iteration| iteration.has_values());
        let due = complete.and_then(|iteration| iteration.evaluate.take());
        if let Some(at_samples) = due.filter(|_| is_free) {
            self.begin_evaluation(at_samples, false, effects);
        }
    }
}
