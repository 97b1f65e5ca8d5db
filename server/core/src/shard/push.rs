//! A push on its way through a shard: member? seen before? finite? then the policy's verdict.

use slackline_core::aggregate::{first_not_finite, weighted_mean};
use slackline_core::consistency::PushVerdict;
use slackline_core::ids::{BatchIndex, Clock, Incarnation, Moment, Sequence, SessionId, Version, WorkerId};
use slackline_core::wire::{PushOutcome, Pushed};

use super::{Push, Shard, ShardEffect};
use crate::dedup::Seen;
use crate::notice::Notice;

/// A push that waits for its clock to close.
#[derive(Debug)]
pub(super) struct Collected {
    session: SessionId,
    worker: WorkerId,
    /// A later incarnation can have a push of the same number under way.
    incarnation: Incarnation,
    sequence: Sequence,
    pulled: Version,
    batch: BatchIndex,
    samples: u32,
    gradient: Vec<f32>,
    since: Moment,
}

impl Collected {
    const fn name(&self) -> (WorkerId, Incarnation, Sequence) {
        (self.worker, self.incarnation, self.sequence)
    }
}

impl Shard {
    pub(super) fn push(&mut self, now: Moment, mut push: Push, effects: &mut Vec<ShardEffect>) {
        let gradient = push.gradient.take();
        let (session, worker, sequence) = (push.session, push.worker, push.sequence);
        let answer = |pushed: Pushed| ShardEffect::Answer { session, pushed };
        let seen = match self.member(worker, push.incarnation) {
            Some(member) => member.window.look(sequence),
            None => Seen::Answered(PushOutcome::Fenced),
        };
        match seen {
            Seen::New => {
                if self.fits(gradient.as_deref()) {
                    self.take_in(now, &push, gradient, effects);
                    return;
                }
                effects.push(answer(self.pushed(sequence, worker, PushOutcome::WrongKeys)));
            }
            Seen::Answered(outcome) => {
                let duplicate = outcome != PushOutcome::Fenced;
                effects.push(answer(Pushed { duplicate, ..self.pushed(sequence, worker, outcome) }));
            }
            Seen::OutOfWindow => {
                effects.push(answer(self.pushed(sequence, worker, PushOutcome::OutOfWindow)))
            }
            Seen::Pending => {
                // The answer goes to the latest session, the others are gone. What was sent over an earlier one can still come later.
                let waiting = self.collected.values_mut().flatten();
                let asked = (worker, push.incarnation, sequence);
                for kept in waiting.filter(|kept| kept.name() == asked) {
                    kept.session = kept.session.max(session);
                }
            }
        }
        effects.extend(gradient.map(ShardEffect::Recycle));
    }

    fn fits(&self, gradient: Option<&[f32]>) -> bool {
        self.started
            && !self.values.is_empty()
            && gradient.is_none_or(|gradient| gradient.len() as u64 == self.keys.len)
    }

    /// A push that was never seen before.
    fn take_in(
        &mut self,
        now: Moment,
        push: &Push,
        gradient: Option<Vec<f32>>,
        effects: &mut Vec<ShardEffect>,
    ) {
        if let Some(member) = self.members.get_mut(&push.worker) {
            member.window.arrive(push.sequence);
        }
        let outcome = match gradient {
            None => Some(PushOutcome::Nothing),
            Some(gradient) => self.decide(now, push, gradient, effects),
        };
        let mut clock = push.clock.next();
        if !self.table.is_active(push.worker) {
            // A joiner begins to count at the minimum, also when there is none at present: at the last one that there was.
            clock = clock.max(self.open);
        }
        self.table.advance(push.worker, clock);
        if let Some(outcome) = outcome {
            let name = (push.worker, push.incarnation, push.sequence);
            self.settle(push.session, name, outcome, 0, effects);
        }
    }

    /// What becomes of a gradient; none while it is collected.
    fn decide(
        &mut self,
        now: Moment,
        push: &Push,
        gradient: Vec<f32>,
        effects: &mut Vec<ShardEffect>,
    ) -> Option<PushOutcome> {
        if let Some(index) = first_not_finite(&gradient) {
            let key = self.keys.start + index as u64;
            let tensor = self.layout.tensor_of(key).map_or_else(String::new, |tensor| tensor.path.clone());
            let (worker, shard, clock) = (push.worker, self.id, push.clock);
            effects.push(ShardEffect::Notice(Notice::BadGradient { worker, shard, clock, tensor }));
            effects.push(ShardEffect::Recycle(gradient));
            return Some(PushOutcome::NotFinite { key });
        }
        match self.policy.push(self.open, push.clock) {
            PushVerdict::Apply => {
                let staleness = self.version.0.saturating_sub(push.pulled.0);
                self.apply(&gradient, push.batch);
                effects.push(ShardEffect::Recycle(gradient));
                Some(PushOutcome::Applied { version: self.version, staleness })
            }
            PushVerdict::Collect => {
                self.collected.entry(push.clock).or_default().push(Collected {
                    session: push.session,
                    worker: push.worker,
                    incarnation: push.incarnation,
                    sequence: push.sequence,
                    pulled: push.pulled,
                    batch: push.batch,
                    samples: push.samples,
                    gradient,
                    since: now,
                });
                None
            }
            PushVerdict::Drop(reason) => {
                effects.push(ShardEffect::Recycle(gradient));
                Some(PushOutcome::Dropped(reason))
            }
        }
    }

    fn apply(&mut self, gradient: &[f32], batch: BatchIndex) {
        let progress = batch.0 as f64 / self.batch_count as f64;
        if let Some(values) = self.values.change() {
            self.optimizer.apply(values, gradient, progress);
            self.version = self.version.next();
        }
    }

    fn settle(
        &mut self,
        session: SessionId,
        (worker, incarnation, sequence): (WorkerId, Incarnation, Sequence),
        outcome: PushOutcome,
        held_us: u64,
        effects: &mut Vec<ShardEffect>,
    ) {
        if let Some(member) = self.members.get_mut(&worker)
            && member.incarnation == incarnation
        {
            member.window.answer(sequence, outcome);
        }
        let pushed = Pushed { held_us, ..self.pushed(sequence, worker, outcome) };
        effects.push(ShardEffect::Answer { session, pushed });
    }

    /// Closes every clock that all active workers have completed; with no active worker left, all of them.
    pub(super) fn close_clocks(&mut self, now: Moment, effects: &mut Vec<ShardEffect>) {
        let border = match self.table.minimum() {
            Some(minimum) => minimum,
            None => self.collected.keys().next_back().map_or(self.open, |last| last.next()),
        };
        while let Some(entry) = self.collected.first_entry() {
            if *entry.key() >= border {
                break;
            }
            let kept = entry.remove();
            self.close(now, kept, effects);
        }
        // The clock of a joiner can only raise the minimum, but a table that empties and fills again could lower it.
        self.open = Clock(self.open.0.max(border.0));
    }

    /// Applies the mean of one clock's pushes, summed in the order of their batches so that arrival changes no bit.
    fn close(&mut self, now: Moment, mut kept: Vec<Collected>, effects: &mut Vec<ShardEffect>) {
        kept.sort_by_key(|push| push.batch);
        let samples: Vec<u32> = kept.iter().map(|push| push.samples).collect();
        let mut parts: Vec<&mut [f32]> = kept.iter_mut().map(|push| push.gradient.as_mut_slice()).collect();
        weighted_mean(&mut parts, &samples);
        let before = self.version;
        if let Some(first) = kept.first() {
            self.apply(&first.gradient, first.batch);
        }
        for push in kept {
            let staleness = before.0.saturating_sub(push.pulled.0);
            let outcome = PushOutcome::Applied { version: self.version, staleness };
            let held_us = now.since(push.since).as_micros() as u64;
            self.settle(push.session, push.name(), outcome, held_us, effects);
            effects.push(ShardEffect::Recycle(push.gradient));
        }
    }
}
