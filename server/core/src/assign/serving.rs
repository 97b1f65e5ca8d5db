//! Who is given which batch next.

use slackline_core::ids::{BatchIndex, Clock, WorkerId};
use slackline_core::wire::Work;

use super::{Assigner, Stage};

/// Batches that one worker may have: the one that it computes and the one after.
const AHEAD_MAX: usize = 2;

impl Assigner {
    /// Gives out what can be given out now. `minimum` is the clock at which an idle worker enters again.
    pub fn settle(&mut self, minimum: impl Fn() -> Clock, grants: &mut Vec<(WorkerId, Work)>) {
        if !self.begun {
            return;
        }
        loop {
            if self.stage == Stage::Batches && self.done == self.plan.unit_count() {
                self.stage = Stage::FinalEvaluation { by: None };
            }
            if self.has_something() {
                self.resting.append(&mut self.queue);
                std::mem::swap(&mut self.resting, &mut self.queue);
            }
            let before = grants.len();
            for _ in 0..self.queue.len() {
                let Some(worker) = self.queue.pop_front() else { break };
                self.serve(worker, &minimum, grants);
            }
            if grants.len() == before {
                return;
            }
        }
    }

    /// Puts a worker at the end of the queue, unless it stands there.
    pub(super) fn line_up(&mut self, worker: WorkerId) {
        if let Some(place) = self.resting.iter().position(|resting| *resting == worker) {
            self.resting.remove(place);
            self.queue.push_back(worker);
        } else if !self.queue.contains(&worker) {
            self.queue.push_back(worker);
        }
    }

    /// Whether there is something for workers that were told that there is nothing.
    fn has_something(&self) -> bool {
        match self.stage {
            Stage::Batches => !self.returned.is_empty() || self.next < self.plan.unit_count(),
            Stage::FinalEvaluation { by } => by.is_none(),
            Stage::Done => true,
        }
    }

    fn serve(&mut self, worker: WorkerId, minimum: &impl Fn() -> Clock, grants: &mut Vec<(WorkerId, Work)>) {
        let Some((clock, idle)) = self.desks.get(&worker).and_then(|desk| Some((desk.asks?, desk.idle)))
        else {
            return;
        };
        let may_begin = self.stage != Stage::Batches
            || (!self.paused && self.has_room(worker) && self.is_its_turn(worker, clock));
        let work = match self.stage {
            Stage::Done => Some(Work::Done),
            Stage::FinalEvaluation { by: None } => {
                self.stage = Stage::FinalEvaluation { by: Some(worker) };
                Some(Work::Evaluate { at_samples: self.plan.sample_total })
            }
            Stage::FinalEvaluation { by: Some(_) } => None,
            Stage::Batches if !may_begin => {
                self.queue.push_back(worker);
                return;
            }
            Stage::Batches => {
                // Nobody comes back before its cut: whatever it pushes from now on is in no shard's part.
                let floor = self.line.as_ref().and_then(|line| line.floor(worker)).unwrap_or_default();
                self.take(worker, idle.then(|| minimum().max(clock).max(floor)))
            }
        };
        let Some(desk) = self.desks.get_mut(&worker) else { return };
        match work {
            Some(work) => {
                if let Work::Batch { batch, units, .. } = work {
                    desk.batches.insert(batch, units);
                }
                desk.answered = Some(clock);
                if desk.idle {
                    // It counts again, perhaps from an earlier clock.
                    self.turn = Clock(0);
                }
                (desk.asks, desk.idle, desk.fresh) = (None, false, false);
                let clock = if let Work::Batch { enter: Some(clock), .. } = work { clock } else { clock };
                desk.given = Some((clock, work));
                grants.push((worker, work));
            }
            None => {
                if !desk.told {
                    (desk.idle, desk.told) = (true, true);
                    grants.push((worker, Work::Idle));
                    if let Some(line) = &mut self.line {
                        line.finished(worker, clock);
                    }
                }
                self.resting.push_back(worker);
            }
        }
    }

    /// A worker that got more than it asked for (what was lost came again) gets no more before it has reported.
    fn has_room(&self, worker: WorkerId) -> bool {
        self.desks.get(&worker).is_none_or(|desk| desk.batches.len() < AHEAD_MAX)
    }

    /// Under bsp: nobody else still needs work for an earlier clock. A worker whose clock was moved up skips some.
    fn is_its_turn(&mut self, worker: WorkerId, clock: Clock) -> bool {
        if !self.plan.ordered || (clock <= self.turn && !self.disturbed) {
            return true;
        }
        let all = self.desks.iter().all(|(other, desk)| {
            let needs = desk.asks.unwrap_or_else(|| desk.given.map_or(Clock(0), |(given, _)| given.next()));
            // Whoever came or went can have moved others up, under a quorum while they wait for this very worker: whoever has its
            // next work in hand does not wait for it.
            let is_supplied = self.disturbed && desk.batches.len() >= AHEAD_MAX;
            *other == worker || desk.idle || desk.fresh || is_supplied || needs >= clock
        });
        if all {
            self.turn = clock;
        }
        all
    }

    pub(super) fn take(&mut self, worker: WorkerId, enter: Option<Clock>) -> Option<Work> {
        if let Some((batch, units)) = self.returned.pop_first() {
            return Some(Work::Batch { batch, units, evaluate: None, enter });
        }
        let left = self.plan.unit_count() - self.next;
        if left == 0 {
            return None;
        }
        let batch = BatchIndex(self.next);
        let units = self.units_for(worker).min(left);
        self.next += units;
        let (before, after) = (self.plan.samples_before(batch.0), self.plan.samples_before(self.next));
        let every = self.plan.evaluate_every;
        let due =
            every > 0 && before > 0 && before / every != after / every && after < self.plan.sample_total;
        if due {
            self.evaluations.insert(before);
        }
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        Some(Work::Batch { batch, units, evaluate: due.then_some(before), enter })
    }

    /// Units of a worker's next batch: in proportion to its speed among those that are known, where that is wanted.
    fn units_for(&self, worker: WorkerId) -> u64 {
        let cut = self.plan.cut;
        let own = self.desks.get(&worker).and_then(|desk| desk.speed).filter(|_| cut.proportional);
        let Some(own) = own else { return cut.units };
        let known = || self.desks.values().filter_map(|desk| desk.speed);
        let mean = known().sum::<f64>() / known().count() as f64;
        let units = (cut.units as f64 * own / mean).round() as u64;
        units.clamp(1, cut.units_max())
    }
}
