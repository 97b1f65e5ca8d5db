//! What changes the iteration while it is under way: fresher values, and the word that its clock was closed without it.

use slackline_core::ids::{Clock, ShardId};
use slackline_core::wire::{Pull, PullKind, Served, ToServer};

use crate::effect::Effect;
use crate::iteration::{Iteration, Phase};
use crate::worker::Worker;

impl Worker {
    /// Whether a shard is part of the fragment that is pushed at `clock`.
    pub(crate) fn is_in_turn(&self, shard: ShardId, clock: Clock) -> bool {
        let fragments = u64::from(self.settings.fragments.max(1));
        u64::from(shard.0) % fragments == clock.0 % fragments
    }

    /// The shards that are sent their parts of the gradient at `clock`.
    pub(crate) fn shards_in_turn(&self, clock: Clock) -> Vec<ShardId> {
        self.shards.keys().copied().filter(|shard| self.is_in_turn(*shard, clock)).collect()
    }

    /// Whether the next iteration needs a shard's values: those of the fragment pushed before and of the one to be pushed next, and
    /// whatever was never pulled.
    pub(crate) fn is_wanted(&self, shard: ShardId) -> bool {
        let before = Clock(self.clock.0.saturating_sub(1));
        self.is_in_turn(shard, self.clock)
            || self.is_in_turn(shard, before)
            || !self.cycle.adopted.contains_key(&shard)
    }

    /// Under essp: while other shards are waited for, a shard that has answered is asked for what comes after.
    pub(crate) fn pull_fresher(&mut self, shard: ShardId, effects: &mut Vec<Effect>) {
        if !self.settings.refreshes {
            return;
        }
        let (clock, after) = (self.clock, self.cycle.sequence);
        let Some(iteration) = self.cycle.iteration.as_mut().filter(|iteration| !iteration.has_values())
        else {
            return;
        };
        let Some(server) = self.shards.get(&shard).map(|home| home.server) else { return };
        let Some(pull) = iteration.pulls.get_mut(&shard) else { return };
        let Some(Served { minimum: seen, .. }) = pull.served else { return };
        self.request_last += 1;
        let request = self.request_last;
        pull.fresher = Some(request);
        effects.push(Effect::ExpectFresher { server, shard, request });
        let kind = PullKind::Fresher { clock, after, seen };
        self.send(server, ToServer::Pull(Pull { shard, request, have: 0, kind }), effects);
    }

    /// Fresher values have arrived: of use unless the computing has begun.
    pub(crate) fn on_fresher(
        &mut self,
        (shard, request): (ShardId, u64),
        (served, bytes): (&Served, u64),
        effects: &mut Vec<Effect>,
    ) {
        self.record.counts().bytes_pulled += bytes;
        let Some(iteration) = &mut self.cycle.iteration else { return };
        if !matches!(iteration.phase, Phase::Pulling) {
            return;
        }
        if let Some(pull) = iteration.pulls.get_mut(&shard) {
            (pull.served, pull.answer) = (Some(*served), request);
            effects.push(Effect::AdoptFresher { shard });
            self.pull_fresher(shard, effects);
        }
    }

    /// A shard has closed the clock of the iteration under way: its gradient would be dropped, so it is left, and the worker goes on
    /// with the others.
    pub(crate) fn on_overtaken(&mut self, open: Clock, effects: &mut Vec<Effect>) {
        let (clock, sequence) = (self.clock, self.cycle.sequence.next());
        let Some(iteration) = self.cycle.iteration.as_mut().filter(|iteration| !iteration.is_overtaken)
        else {
            return;
        };
        if clock >= open {
            return;
        }
        iteration.is_overtaken = true;
        self.cycle.prefetch = None;
        match iteration.phase {
            Phase::Pulling => leave(iteration),
            Phase::Computing { .. } => effects.push(Effect::Abandon { sequence }),
            Phase::Ready(_) | Phase::Left => {}
        }
    }
}

/// Nothing was computed yet, and nothing will be. What still comes for its pulls belongs to no iteration.
fn leave(iteration: &mut Iteration) {
    iteration.phase = Phase::Left;
    iteration.pulls.clear();
}
