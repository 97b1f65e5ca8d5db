//! The cut of a checkpoint: the state with all pushes below each worker's cut and none above, made while the shard goes on.
//!
//! The marker is that of Chandy and Lamport (1985), with clocks in the place of channels: which side of the cut a push is on is said by
//! its own clock, so shards need not hear of the cut at the same point of their inputs. As long as nothing from above the cut comes, the
//! shard itself is the state. The first push from above makes it fork: a *shadow* takes what is still to come from below (the shard takes
//! it as well), and the shard goes on with everything. Nobody waits for a checkpoint.
//!
//! Cost: nothing without a cut. A fork shares all arrays; the first step after it copies values and slots once, and each push from below
//! the cut is copied and applied twice until the cut is complete.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::codec::Payload;
use slackline_core::consistency::Standing;
use slackline_core::ids::{Clock, Moment, SessionId, Version, WorkerId};
use slackline_core::wire::{Mark, PushOutcome};

use super::held::HeldPulls;
use super::push::Facts;
use super::{Shard, ShardEffect, ShardEvent};

/// A cut that is being made.
#[derive(Clone)]
pub(super) struct OpenCut {
    number: u64,
    cuts: BTreeMap<WorkerId, Clock>,
    rest: Option<Clock>,
    /// Workers of whom pushes from below the cut can still come.
    waiting: BTreeSet<WorkerId>,
    /// The shard without what is above the cut, where something of that has come.
    shadow: Option<Shard>,
}

impl OpenCut {
    /// The first clock of a worker that is above the cut.
    fn of(&self, worker: WorkerId) -> Clock {
        self.cuts.get(&worker).copied().or(self.rest).unwrap_or_default()
    }
}

impl Shard {
    /// Begins a cut. One that is open is given up; a mark that was heard before is nothing new.
    pub(super) fn mark(&mut self, now: Moment, mark: Mark, effects: &mut Vec<ShardEffect>) {
        let Mark { number, cuts, rest } = mark;
        if number <= self.last_mark {
            return;
        }
        self.last_mark = number;
        if let Some(former) = self.cut.take() {
            effects.push(ShardEffect::CutMissed { number: former.number });
        }
        let cuts = cuts.into_iter().collect();
        let mut cut = OpenCut { number, cuts, rest, waiting: BTreeSet::new(), shadow: None };
        if self.has_passed(&cut) {
            effects.push(ShardEffect::CutMissed { number });
            return;
        }
        let gone = self.doubts.keys().map(|(worker, _)| *worker);
        let waits = |worker: &WorkerId| !self.is_through(&cut, *worker);
        cut.waiting = self.members.keys().copied().chain(gone).filter(waits).collect();
        self.cut = Some(Box::new(cut));
        self.settle_cut(now, None, effects);
    }

    /// Whether something from above the cut has been taken in, or can have been at another shard without this one's knowledge.
    fn has_passed(&self, cut: &OpenCut) -> bool {
        let passed = |worker, reached: Option<Clock>| reached.is_some_and(|clock| clock >= cut.of(worker));
        let members = self.members.iter().any(|(worker, member)| passed(*worker, member.reached));
        let gone = self.doubts.iter().any(|((worker, _), member)| {
            let last = member.staged.values().map(|piece| piece.facts.clock).max();
            passed(*worker, member.reached) || passed(*worker, last)
        });
        // Of workers that the mark does not name the coordinator knew before it that they are gone, as did every shard.
        let is_named = |worker| cut.rest.is_some() || cut.cuts.contains_key(worker);
        let departed =
            self.departed.iter().any(|(worker, reached)| is_named(worker) && *reached >= cut.of(*worker));
        members || gone || departed
    }

    /// Whether no push of this worker from below the cut can come any more. One that has finished begins again above it.
    fn is_through(&self, cut: &OpenCut, worker: WorkerId) -> bool {
        let border = cut.of(worker);
        let of_gone =
            self.doubts.range((worker, Default::default())..).take_while(|((gone, _), _)| *gone == worker);
        let owed =
            of_gone.flat_map(|(_, member)| member.staged.values()).any(|piece| piece.facts.clock < border);
        let member = self.members.get(&worker).filter(|_| self.table.clock_of(worker).is_some());
        let through = member.is_none_or(|member| {
            let (sequence, clock) = member.ahead;
            clock >= border && member.window.has_all_to(sequence)
        });
        through && !owed
    }

    /// A worker enters while a cut is open.
    pub(super) fn watch(&mut self, worker: WorkerId) {
        if let Some(cut) = &mut self.cut {
            cut.waiting.insert(worker);
        }
    }

    /// Takes a push in: here, and in the shadow if it is from below the cut.
    pub(super) fn admit(
        &mut self,
        now: Moment,
        facts: &Facts,
        session: Option<SessionId>,
        gradient: Option<Payload>,
        effects: &mut Vec<ShardEffect>,
    ) {
        let Some(cut) = &self.cut else {
            self.take_in(now, facts, session, gradient, effects);
            return;
        };
        if facts.clock >= cut.of(facts.worker) {
            self.fork();
            self.take_in(now, facts, session, gradient, effects);
            return;
        }
        let copy = cut.shadow.is_some().then(|| gradient.clone());
        let staleness = self.version.0.saturating_sub(facts.pulled.0);
        let outcome = self.take_in(now, facts, session, gradient, effects);
        let Some(gradient) = copy else { return };
        let is_left_out = matches!(
            outcome,
            Some(PushOutcome::Dropped(_) | PushOutcome::NotFinite { .. } | PushOutcome::Guarded(_))
        );
        let member = self.members.get(&facts.worker);
        let read =
            member.and_then(|member| member.read.clone()).filter(|(version, _)| *version == facts.pulled);
        let Some(shadow) = self.cut.as_mut().and_then(|cut| cut.shadow.as_mut()) else { return };
        // Both must treat it alike: as stale here as there, and left out where it was.
        let pulled = Version(shadow.version.0.saturating_sub(staleness));
        if let Some(member) = shadow.members.get_mut(&facts.worker) {
            member.read = read.map(|(_, values)| (pulled, values));
        }
        let gradient = gradient.filter(|_| !is_left_out);
        let mut unheard = Vec::new();
        shadow.take_in(now, &Facts { pulled, ..*facts }, None, gradient, &mut unheard);
        shadow.settle_all(now, &mut unheard);
    }

    /// Parts the state below the cut from the shard that goes on.
    fn fork(&mut self) {
        let Some(mut cut) = self.cut.take() else { return };
        if cut.shadow.is_none() {
            let mut shadow = self.clone();
            shadow.held = HeldPulls::default();
            // It is given the pieces as the shard takes them in.
            shadow
                .members
                .values_mut()
                .chain(shadow.doubts.values_mut())
                .for_each(|member| member.staged.clear());
            cut.shadow = Some(shadow);
        }
        self.cut = Some(cut);
    }

    /// Tells the shadow who comes and goes. It hears of pushes by [`Shard::admit`], and of pulls not at all.
    pub(super) fn mirror(&mut self, now: Moment, event: &ShardEvent) {
        let Some(shadow) = self.cut.as_mut().and_then(|cut| cut.shadow.as_mut()) else { return };
        match event {
            ShardEvent::Enter { .. }
            | ShardEvent::Reenter { .. }
            | ShardEvent::Finish { .. }
            | ShardEvent::Remove { .. }
            | ShardEvent::Fence { .. }
            | ShardEvent::Resolve { .. }
            | ShardEvent::Start
            | ShardEvent::Tick => shadow.handle(now, event.clone(), &mut Vec::new()),
            _ => {}
        }
    }

    /// Looks whether the cut is complete, after something happened to `touched`.
    pub(super) fn settle_cut(
        &mut self,
        now: Moment,
        touched: Option<WorkerId>,
        effects: &mut Vec<ShardEffect>,
    ) {
        let Some(mut cut) = self.cut.take() else { return };
        match touched {
            Some(worker) if self.is_through(&cut, worker) => drop(cut.waiting.remove(&worker)),
            Some(_) => {}
            None => {
                let waiting = std::mem::take(&mut cut.waiting);
                cut.waiting = waiting.into_iter().filter(|worker| !self.is_through(&cut, *worker)).collect();
            }
        }
        if !cut.waiting.is_empty() {
            self.cut = Some(cut);
            return;
        }
        let mut complete = match cut.shadow.take() {
            Some(shadow) => self.catch_up(now, shadow, &cut),
            None => self.clone(),
        };
        // Pieces that wait are above the cut and are sent again; whoever goes on from here has read nothing yet.
        (complete.doubts, complete.gone) = (BTreeMap::new(), BTreeMap::new());
        for member in complete.members.values_mut() {
            member.staged.clear();
            member.read = None;
        }
        let (number, state) = (cut.number, Box::new(complete.state()));
        effects.push(ShardEffect::Cut { number, state });
    }

    /// Lets the shadow's clocks come to the cut: a worker can have come past it without a push here.
    fn catch_up(&self, now: Moment, mut shadow: Self, cut: &OpenCut) -> Self {
        for (worker, clock, standing) in self.table.rows() {
            if standing == Standing::Active && shadow.table.is_active(worker) {
                shadow.table.advance(worker, clock.min(cut.of(worker)));
            }
        }
        shadow.settle_all(now, &mut Vec::new());
        shadow
    }

    /// The checkpoint whose cut is open, with the workers that it waits for.
    #[must_use]
    pub fn open_cut(&self) -> Option<(u64, Vec<WorkerId>)> {
        self.cut.as_ref().map(|cut| (cut.number, cut.waiting.iter().copied().collect()))
    }

    pub(super) fn check_cut(&self) {
        let Some(cut) = &self.cut else { return };
        assert!(!cut.waiting.is_empty(), "a cut that waits for nobody is open");
        for worker in &cut.waiting {
            assert!(!self.is_through(cut, *worker), "a cut waits for {worker} for nothing");
        }
        if let Some(shadow) = &cut.shadow {
            assert!(shadow.cut.is_none(), "a shadow makes a cut");
            shadow.check_members();
        }
    }
}
