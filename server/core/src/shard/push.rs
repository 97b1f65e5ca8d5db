//! A push on its way through a shard: member? seen before? finite? then the policy's verdict.

use std::sync::Arc;

use bincode::{Decode, Encode};
use slackline_core::aggregate::{Mean, first_not_finite};
use slackline_core::codec::{Payload, PlainSource, Source};
use slackline_core::config::Steps;
use slackline_core::consistency::{DropReason, PushVerdict};
use slackline_core::ids::{BatchIndex, Clock, Incarnation, Moment, Sequence, SessionId, Version, WorkerId};
use slackline_core::optimizer::Step;
use slackline_core::wire::{Guarded, PullKind, PushOutcome, Pushed};

use super::held::Held;
use super::{Push, Shard, ShardEffect, room};
use crate::dedup::Seen;
use crate::guard::{Verdict, largest_share};
use crate::notice::Notice;

/// What is known of a push beside its gradient and the session to answer.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub(super) struct Facts {
    pub(super) worker: WorkerId,
    /// A later incarnation can have a push of the same number under way.
    pub(super) incarnation: Incarnation,
    pub(super) sequence: Sequence,
    pub(super) clock: Clock,
    pub(super) pulled: Version,
    pub(super) batch: BatchIndex,
    pub(super) samples: u32,
}

impl Facts {
    const fn of(push: &Push) -> Self {
        let Push { worker, incarnation, sequence, clock, pulled, batch, samples, .. } = *push;
        Self { worker, incarnation, sequence, clock, pulled, batch, samples }
    }

    const fn name(&self) -> (WorkerId, Incarnation, Sequence) {
        (self.worker, self.incarnation, self.sequence)
    }
}

/// A piece of a step that waits for those of the other shards.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) facts: Facts,
    /// The session to answer; none for that of a server that is gone.
    pub(super) session: Option<SessionId>,
    /// Shared with states that are being kept.
    pub(super) gradient: Option<Arc<Vec<f32>>>,
}

/// A push that waits for its clock to close.
#[derive(Clone, Debug)]
pub(super) struct Collected {
    pub(super) facts: Facts,
    pub(super) session: Option<SessionId>,
    pub(super) gradient: Arc<Vec<f32>>,
    pub(super) since: Moment,
    /// Share of the rate that its staleness leaves it.
    pub(super) weight: f32,
    /// It was answered when it came.
    pub(super) is_answered: bool,
}

impl Shard {
    /// Takes a push in, or answers it again. Returns the pull that it brings with it, where it is a new one.
    pub(super) fn push(
        &mut self,
        now: Moment,
        mut push: Push,
        effects: &mut Vec<ShardEffect>,
    ) -> Option<Held> {
        let gradient = push.gradient.take();
        let pull = self.brought(now, &push);
        let (facts, session) = (Facts::of(&push), push.session);
        let (worker, sequence) = (facts.worker, facts.sequence);
        let member = self.members.get_mut(&worker).filter(|member| member.incarnation == facts.incarnation);
        if let Some(piece) = member.and_then(|member| member.staged.get_mut(&sequence)) {
            piece.session = piece.session.max(Some(session));
            effects.push(ShardEffect::Staged { session, sequence });
            effects.extend(gradient.map(recycle));
            return None;
        }
        let answer = |pushed: Pushed| ShardEffect::Answer { session, pushed };
        match self.look(&facts) {
            Seen::New => {
                if self.fits(gradient.as_ref()) {
                    match self.steps {
                        Steps::Whole => self.stage(now, facts, session, gradient, effects),
                        Steps::Parts => self.admit(now, &facts, Some(session), gradient, effects),
                    }
                    return pull;
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
                for kept in waiting.filter(|kept| kept.facts.name() == facts.name()) {
                    kept.session = kept.session.max(Some(session));
                }
            }
        }
        effects.extend(gradient.map(recycle));
        None
    }

    /// The pull that a push brings with it: for the iteration after it, with all that its worker has pushed. It is none where its worker has
    /// pulled anew since, which can come before a push that was sent over an earlier session, or before a registration.
    fn brought(&self, now: Moment, push: &Push) -> Option<Held> {
        let Push { session, worker, incarnation, sequence, clock, reply, have, .. } = *push;
        let kind = PullKind::Gated { clock: clock.next(), after: sequence, ahead: 0 };
        let is_former = self.held.of(worker).is_some_and(|held| held.request > reply);
        let reader = Some((worker, incarnation));
        (reply > 0 && !is_former).then(|| Held::new(session, reader, (reply, have), kind, now))
    }

    fn look(&self, facts: &Facts) -> Seen {
        match self.member(facts.worker, facts.incarnation) {
            // Pieces that wait will be in the window once they are taken in: there must be room for them.
            Some(member) if !member.has_room() => match member.window.look(facts.sequence) {
                Seen::New => Seen::OutOfWindow,
                seen => seen,
            },
            Some(member) => member.window.look(facts.sequence),
            None => Seen::Answered(PushOutcome::Fenced),
        }
    }

    fn fits(&self, gradient: Option<&Payload>) -> bool {
        !self.values.is_empty() && gradient.is_none_or(|gradient| gradient.keys() as u64 == self.keys.len)
    }

    /// A push that was never taken in before: it counts from here on. Returns what became of it; none while it is collected.
    pub(super) fn take_in(
        &mut self,
        now: Moment,
        facts: &Facts,
        session: Option<SessionId>,
        gradient: Option<Payload>,
        effects: &mut Vec<ShardEffect>,
    ) -> Option<PushOutcome> {
        let member = self.members.get_mut(&facts.worker);
        let Some(member) = member.filter(|member| member.incarnation == facts.incarnation) else {
            // A piece of a worker that is gone: its clock counts no more, and a later incarnation's is its own.
            return gradient.and_then(|gradient| self.decide(now, facts, session, gradient, effects));
        };
        member.window.arrive(facts.sequence);
        member.comes_to(facts.sequence, facts.clock.next());
        member.reached = member.reached.max(Some(facts.clock));
        // It was computed on values that are lost: others can have been further than this state knows, too.
        self.is_behind |= facts.pulled > self.version;
        let outcome = match gradient {
            None => Some(PushOutcome::Nothing),
            Some(gradient) => self.decide(now, facts, session, gradient, effects),
        };
        let mut clock = facts.clock.next();
        if !self.table.is_active(facts.worker) || self.policy.moves_up() {
            // Whoever is late goes on with the others. A joiner begins to count at the minimum, also when there is none at present: at the last one that there was.
            clock = clock.max(self.open);
        }
        self.table.advance(facts.worker, clock);
        self.woken.push(facts.worker);
        if let Some(outcome) = outcome {
            self.settle(session, facts.name(), outcome, 0, effects);
        }
        outcome
    }

    /// What becomes of a gradient; none while it is collected.
    fn decide(
        &mut self,
        now: Moment,
        facts: &Facts,
        session: Option<SessionId>,
        gradient: Payload,
        effects: &mut Vec<ShardEffect>,
    ) -> Option<PushOutcome> {
        let mut gradient = if self.needs_values() { self.unpack(gradient, effects).into() } else { gradient };
        // Other shards have taken in their pieces of the step in time: this one must not be late alone.
        let is_owed = self.member(facts.worker, facts.incarnation).is_none();
        let staleness = self.version.0.saturating_sub(facts.pulled.0);
        let verdict = if is_owed {
            gradient.first_not_finite().map_or(Verdict::Take, |index| Verdict::NotFinite { index })
        } else if let Some(values) = gradient.values_mut() {
            self.guard.look(now, facts.worker, values)
        } else {
            self.guard.look_packed(now, facts.worker, &gradient)
        };
        if let Some(outcome) = self.guarded(facts, staleness, &verdict, &gradient, effects) {
            effects.push(recycle(gradient));
            return Some(outcome);
        }
        let spec = self.delay.spec();
        let too_stale = spec.drop_at.is_some_and(|most| staleness >= most);
        // A worker that another shard has moved up can call it one of the open clock, but it was computed on values of before.
        let too_late = self.policy.abandons() && staleness > 0;
        if (too_stale || too_late) && !is_owed {
            effects.push(recycle(gradient));
            let reason = if too_stale {
                DropReason::TooStale { staleness }
            } else {
                DropReason::LateClock { open: self.open }
            };
            return Some(PushOutcome::Dropped(reason));
        }
        if let (true, Some(values)) = (spec.treatment.compensates(), gradient.values_mut()) {
            self.compensate(facts, values);
            // The square of a large gradient that is finite need not be.
            if let Some(index) = first_not_finite(values) {
                let outcome = self.refuse_not_finite(facts, staleness, index, effects);
                effects.push(recycle(gradient));
                return Some(outcome);
            }
        }
        let room = room(&self.table, self.open, &self.collected, self.collected_at);
        match self.policy.push(now, &room, facts.worker, facts.clock) {
            PushVerdict::Apply => Some(self.apply_alone(facts, gradient, staleness, effects)),
            PushVerdict::Collect { at } => {
                let gradient = self.unpack(gradient, effects);
                self.collect(now, facts, session, gradient, staleness, at)
            }
            PushVerdict::Drop(_) if is_owed => {
                let gradient = self.unpack(gradient, effects);
                let outcome = self.collect(now, facts, session, gradient, staleness, self.open);
                // While nobody counts it would close the open clock by itself, and each that follows one more. Other shards took theirs in in
                // time, and closed one for all of them.
                if self.table.minimum().is_none()
                    && let Some(kept) = self.collected.remove(&self.open)
                {
                    self.close(now, kept, effects);
                }
                outcome
            }
            PushVerdict::Drop(reason) => {
                effects.push(recycle(gradient));
                Some(PushOutcome::Dropped(reason))
            }
        }
    }

    /// Whether something is done with a gradient beside its step. Else a payload is unpacked block by block, in the step.
    fn needs_values(&self) -> bool {
        let has_limit = self.guard.spec().norm_max.is_some();
        has_limit || self.delay.spec().treatment.compensates() || self.spec.takes_means()
    }

    /// The values of a gradient, whose buffer is its own where it is plain.
    pub(super) fn unpack(&self, gradient: Payload, effects: &mut Vec<ShardEffect>) -> Vec<f32> {
        if gradient.values().is_some() {
            return gradient.into_words();
        }
        let mut values = self.values.buffers().take(gradient.keys());
        gradient.decode_into(&mut values);
        effects.push(recycle(gradient));
        values
    }

    /// What the guard's verdict makes of a gradient, with its words for the log; none if it may go on.
    fn guarded(
        &self,
        facts: &Facts,
        staleness: u64,
        verdict: &Verdict,
        gradient: &Payload,
        effects: &mut Vec<ShardEffect>,
    ) -> Option<PushOutcome> {
        if let Some(beyond) = self.guard.beyond(verdict) {
            let tensor = gradient.values().and_then(|values| largest_share(&self.layout, self.keys, values));
            effects.push(ShardEffect::Notice(Notice::Guarded {
                worker: facts.worker,
                shard: self.id,
                clock: facts.clock,
                sequence: facts.sequence,
                staleness,
                tensor: tensor.map_or_else(String::new, |(path, _)| path.to_owned()),
                beyond,
            }));
        }
        match *verdict {
            Verdict::Take | Verdict::Clipped { .. } => None,
            Verdict::NotFinite { index } => Some(self.refuse_not_finite(facts, staleness, index, effects)),
            Verdict::Norm { .. } => Some(PushOutcome::Guarded(Guarded::Norm)),
            Verdict::Rate { .. } => Some(PushOutcome::Guarded(Guarded::Rate)),
        }
    }

    /// Names what is wrong with a gradient.
    fn refuse_not_finite(
        &self,
        facts: &Facts,
        staleness: u64,
        index: usize,
        effects: &mut Vec<ShardEffect>,
    ) -> PushOutcome {
        let key = self.keys.start + index as u64;
        let tensor = self.layout.tensor_of(key).map_or_else(String::new, |tensor| tensor.path.clone());
        let (worker, shard) = (facts.worker, self.id);
        let (clock, sequence) = (facts.clock, facts.sequence);
        let notice = Notice::BadGradient { worker, shard, clock, sequence, staleness, tensor };
        effects.push(ShardEffect::Notice(notice));
        PushOutcome::NotFinite { key }
    }

    fn apply_alone(
        &mut self,
        facts: &Facts,
        gradient: Payload,
        staleness: u64,
        effects: &mut Vec<ShardEffect>,
    ) -> PushOutcome {
        let weight = self.delay.spec().treatment.weight(staleness);
        let share = self.batch.map_or(1.0, |batch| (f64::from(facts.samples) / batch as f64) as f32);
        let step = Step {
            progress: self.progress(facts.batch),
            weight: weight * share,
            version: self.version.0,
            pulled: facts.pulled.0,
        };
        self.apply(&mut gradient.reader(), &step);
        effects.push(recycle(gradient));
        PushOutcome::Applied { version: self.version, staleness, down_weighted: weight < 1.0 }
    }

    /// Keeps a gradient for a mean; it is answered at once where its worker need not wait for that.
    fn collect(
        &mut self,
        now: Moment,
        facts: &Facts,
        session: Option<SessionId>,
        gradient: Vec<f32>,
        staleness: u64,
        at: Clock,
    ) -> Option<PushOutcome> {
        let weight = self.delay.spec().treatment.weight(staleness);
        let is_answered = !self.policy.withholds();
        self.collected_at = now;
        self.collected.entry(at).or_default().push(Collected {
            facts: *facts,
            session,
            gradient: Arc::new(gradient),
            since: now,
            weight,
            is_answered,
        });
        is_answered.then_some(PushOutcome::Gathered { staleness, down_weighted: weight < 1.0 })
    }

    /// Corrects a gradient for what the values moved since its worker read them, where that is asked for and known.
    fn compensate(&mut self, facts: &Facts, gradient: &mut [f32]) {
        let member = self.members.get(&facts.worker);
        let member = member.filter(|member| member.incarnation == facts.incarnation);
        if let (Some((version, read)), Some(now)) =
            (member.and_then(|member| member.read.as_ref()), self.values.current())
            && *version == facts.pulled
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

    fn apply(&mut self, gradient: &mut dyn Source, step: &Step) {
        let next = self.version.next();
        let Self { values, optimizer, blocks, .. } = self;
        let mut moved = |block| blocks.change(block, next);
        if values.change(|target| optimizer.advance(target, gradient, step, &mut moved)) {
            self.version = next;
        }
    }

    fn settle(
        &mut self,
        session: Option<SessionId>,
        (worker, incarnation, sequence): (WorkerId, Incarnation, Sequence),
        outcome: PushOutcome,
        held_us: u64,
        effects: &mut Vec<ShardEffect>,
    ) {
        if let Some(window) = self.window(worker, incarnation) {
            window.answer(sequence, outcome);
        }
        // Without a session the worker sends it again over a new one, and is answered from the window.
        if let Some(session) = session {
            let pushed = Pushed { held_us, ..self.pushed(sequence, worker, outcome) };
            effects.push(ShardEffect::Answer { session, pushed });
        }
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
        kept.sort_by_key(|push| push.facts.batch);
        let before = self.version;
        if let Some(first) = kept.first() {
            let step = Step::fresh(self.progress(first.facts.batch), before.0);
            let parts = kept
                .iter()
                .map(|push| (PlainSource::from(push.gradient.as_slice()), push.weight, push.facts.samples));
            self.apply(&mut Mean::new(parts), &step);
        }
        for push in kept {
            let facts = push.facts;
            let is_member = self.member(facts.worker, facts.incarnation).is_some();
            if is_member && self.policy.moves_up() && self.table.is_active(facts.worker) {
                self.table.advance(facts.worker, self.open);
            }
            if !push.is_answered {
                let staleness = before.0.saturating_sub(facts.pulled.0);
                let down_weighted = push.weight < 1.0;
                let outcome = PushOutcome::Applied { version: self.version, staleness, down_weighted };
                let held_us = now.since(push.since).as_micros() as u64;
                self.settle(push.session, facts.name(), outcome, held_us, effects);
                self.woken.push(facts.worker);
            }
            effects.extend(Arc::into_inner(push.gradient).map(ShardEffect::Recycle));
        }
    }
}

/// A gradient's buffer is free again.
pub(super) fn recycle(gradient: Payload) -> ShardEffect {
    ShardEffect::Recycle(gradient.into_words())
}
