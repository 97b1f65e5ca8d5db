//! A push on its way through a shard: member? seen before? finite? then the policy's verdict.

use slackline_core::aggregate::{first_not_finite, scale, weighted_mean};
use slackline_core::consistency::{DropReason, PushVerdict};
use slackline_core::ids::{BatchIndex, Clock, Incarnation, Moment, Sequence, SessionId, Version, WorkerId};
use slackline_core::optimizer::Step;
use slackline_core::wire::{PushOutcome, Pushed};

use super::{Member, Push, Shard, ShardEffect, room};
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
    /// Share of the rate that its staleness leaves it.
    weight: f32,
    /// It was answered when it came.
    is_answered: bool,
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
        if !self.table.is_active(push.worker) || self.policy.moves_up() {
            // Whoever is late goes on with the others. A joiner begins to count at the minimum, also when there is none at present: at the last one that there was.
            clock = clock.max(self.open);
        }
        self.table.advance(push.worker, clock);
        self.woken.push(push.worker);
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
        mut gradient: Vec<f32>,
        effects: &mut Vec<ShardEffect>,
    ) -> Option<PushOutcome> {
        if let Some(index) = first_not_finite(&gradient) {
            return Some(self.refuse_not_finite(push, index, gradient, effects));
        }
        let staleness = self.version.0.saturating_sub(push.pulled.0);
        let spec = self.delay.spec();
        if spec.drop_at.is_some_and(|most| staleness >= most) {
            effects.push(ShardEffect::Recycle(gradient));
            return Some(PushOutcome::Dropped(DropReason::TooStale { staleness }));
        }
        if self.policy.abandons() && staleness > 0 {
            // A worker that another shard has moved up can call it one of the open clock, but it was computed on values of before.
            effects.push(ShardEffect::Recycle(gradient));
            return Some(PushOutcome::Dropped(DropReason::LateClock { open: self.open }));
        }
        if spec.treatment.compensates() {
            self.compensate(push, &mut gradient);
            // The square of a large gradient that is finite need not be.
            if let Some(index) = first_not_finite(&gradient) {
                return Some(self.refuse_not_finite(push, index, gradient, effects));
            }
        }
        let room = room(&self.table, self.open, &self.collected, self.collected_at);
        match self.policy.push(now, &room, push.worker, push.clock) {
            PushVerdict::Apply => Some(self.apply_alone(push, gradient, staleness, effects)),
            PushVerdict::Collect { at } => self.collect(now, push, gradient, staleness, at),
            PushVerdict::Drop(reason) => {
                effects.push(ShardEffect::Recycle(gradient));
                Some(PushOutcome::Dropped(reason))
            }
        }
    }

    /// Names what is wrong with a gradient, which is left out.
    fn refuse_not_finite(
        &self,
        push: &Push,
        index: usize,
        gradient: Vec<f32>,
        effects: &mut Vec<ShardEffect>,
    ) -> PushOutcome {
        let key = self.keys.start + index as u64;
        let tensor = self.layout.tensor_of(key).map_or_else(String::new, |tensor| tensor.path.clone());
        let (worker, shard, clock) = (push.worker, self.id, push.clock);
        effects.push(ShardEffect::Notice(Notice::BadGradient { worker, shard, clock, tensor }));
        effects.push(ShardEffect::Recycle(gradient));
        PushOutcome::NotFinite { key }
    }

    fn apply_alone(
        &mut self,
        push: &Push,
        gradient: Vec<f32>,
        staleness: u64,
        effects: &mut Vec<ShardEffect>,
    ) -> PushOutcome {
        let weight = self.delay.spec().treatment.weight(staleness);
        let share = self.batch.map_or(1.0, |batch| (f64::from(push.samples) / batch as f64) as f32);
        let step = Step {
            progress: self.progress(push.batch),
            weight: weight * share,
            version: self.version.0,
            pulled: push.pulled.0,
        };
        self.apply(&gradient, &step);
        effects.push(ShardEffect::Recycle(gradient));
        PushOutcome::Applied { version: self.version, staleness, down_weighted: weight < 1.0 }
    }

    /// Keeps a gradient for a mean; it is answered at once where its worker need not wait for that.
    fn collect(
        &mut self,
        now: Moment,
        push: &Push,
        gradient: Vec<f32>,
        staleness: u64,
        at: Clock,
    ) -> Option<PushOutcome> {
        let weight = self.delay.spec().treatment.weight(staleness);
        let is_answered = !self.policy.withholds();
        self.collected_at = now;
        self.collected.entry(at).or_default().push(Collected {
            session: push.session,
            worker: push.worker,
            incarnation: push.incarnation,
            sequence: push.sequence,
            pulled: push.pulled,
            batch: push.batch,
            samples: push.samples,
            gradient,
            since: now,
            weight,
            is_answered,
        });
        is_answered.then_some(PushOutcome::Gathered { staleness, down_weighted: weight < 1.0 })
    }

    /// Corrects a gradient for what the values moved since its worker read them, where that is asked for and known.
    fn compensate(&mut self, push: &Push, gradient: &mut [f32]) {
        let read = self.members.get(&push.worker).and_then(|member: &Member| member.read.as_ref());
        if let (Some((version, read)), Some(now)) = (read, self.values.current())
            && *version == push.pulled
        {
            self.delay.compensate(gradient, now, read);
        }
    }

    /// The share of the run that is done with a batch. It never goes back: a batch that is done again late must not come with the
    /// high rate of its first turn.
    fn progress(&mut self, batch: BatchIndex) -> f64 {
        self.furthest = self.furthest.max(batch);
        self.furthest.0 as f64 / self.batch_count as f64
    }

    fn apply(&mut self, gradient: &[f32], step: &Step) {
        if let Some(values) = self.values.change() {
            self.optimizer.apply(values, gradient, step);
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

    /// Closes every clock (or round) that the policy wants closed.
    pub(super) fn close_clocks(&mut self, now: Moment, effects: &mut Vec<ShardEffect>) {
        loop {
            let before = self.open;
            let room = room(&self.table, self.open, &self.collected, self.collected_at);
            // A table that empties and fills again could lower the border.
            let border = self.policy.border(now, &room).max(before);
            while let Some(entry) = self.collected.first_entry() {
                if *entry.key() >= border {
                    break;
                }
                let (clock, kept) = entry.remove_entry();
                self.open = self.open.max(clock.next());
                self.close(now, kept, effects);
            }
            self.open = border;
            if border == before {
                return;
            }
            if self.policy.abandons() {
                self.tell_overtaken(before, effects);
            }
        }
    }

    /// Tells those whose clock was closed without them, each once.
    fn tell_overtaken(&self, before: Clock, effects: &mut Vec<ShardEffect>) {
        let late = self.table.rows().filter(|(_, clock, _)| (before..self.open).contains(clock));
        for (worker, _, _) in late {
            if let Some(session) = self.members.get(&worker).and_then(|member| member.session) {
                effects.push(ShardEffect::Overtaken { session, open: self.open });
            }
        }
    }

    /// Applies the mean of one clock's pushes, summed in the order of their batches so that arrival changes no bit.
    fn close(&mut self, now: Moment, mut kept: Vec<Collected>, effects: &mut Vec<ShardEffect>) {
        kept.sort_by_key(|push| push.batch);
        for push in kept.iter_mut().filter(|push| push.weight != 1.0) {
            scale(&mut push.gradient, push.weight);
        }
        let samples: Vec<u32> = kept.iter().map(|push| push.samples).collect();
        let mut parts: Vec<&mut [f32]> = kept.iter_mut().map(|push| push.gradient.as_mut_slice()).collect();
        weighted_mean(&mut parts, &samples);
        let before = self.version;
        if let Some(first) = kept.first() {
            let step = Step::fresh(self.progress(first.batch), before.0);
            self.apply(&first.gradient, &step);
        }
        for push in kept {
            if self.policy.moves_up() && self.table.is_active(push.worker) {
                self.table.advance(push.worker, self.open);
            }
            if !push.is_answered {
                let staleness = before.0.saturating_sub(push.pulled.0);
                let down_weighted = push.weight < 1.0;
                let outcome = PushOutcome::Applied { version: self.version, staleness, down_weighted };
                let held_us = now.since(push.since).as_micros() as u64;
                self.settle(push.session, push.name(), outcome, held_us, effects);
                self.woken.push(push.worker);
            }
            effects.push(ShardEffect::Recycle(push.gradient));
        }
    }
}
