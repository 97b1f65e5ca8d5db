//! Where the data stand at the cut of a checkpoint, and how a run goes on from there.
//!
//! A cut parts the batches of the run in two: those whose pushes are in it, and all others, whether they were never given out, are being
//! computed or were done after it. Only the second kind is to be done by a run that goes on from the checkpoint.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};
use slackline_core::ids::{BatchIndex, Clock, Incarnation, WorkerId};
use slackline_core::wire::Mark;

use super::{Assigner, Plan, Repeat, Stage, Why};

/// One evaluation of a run, for those that go on with it.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct PastEvaluation {
    /// Samples handed out by then.
    pub samples: u64,
    /// Nanoseconds since the run began.
    pub wall_ns: u64,
    /// Mean loss.
    pub loss: f64,
    /// Share classified rightly.
    pub accuracy: f64,
}

/// Where a run stands at the cut of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Position {
    /// Number of the checkpoint.
    pub number: u64,
    /// The marker clock: the first iteration that some worker has not in it. Workers of a run that goes on enter at it.
    pub clock: Clock,
    /// Training samples of one epoch.
    pub epoch_samples: u64,
    /// Samples of the whole run: a run that goes on has the same data.
    pub sample_total: u64,
    /// The first unit that was not given out.
    pub next: u64,
    /// Batches before it that are not in the cut: first unit and units.
    pub todo: Vec<(u64, u32)>,
    /// Batches in the cut.
    pub batches_done: u64,
    /// Their samples.
    pub samples_done: u64,
    /// Evaluations so far.
    pub evaluations: Vec<PastEvaluation>,
    /// Nanoseconds that the run had taken.
    pub wall_ns: u64,
    /// The last incarnation that was given to a worker: later ones fence it.
    pub incarnation: Incarnation,
    /// The name of the run, as the manifest has it; not written with the rest.
    #[serde(skip)]
    pub run: u64,
}

/// Why a run cannot go on from a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PositionError {
    /// The data have another number of samples.
    #[error(
        "the checkpoint is of a run over {theirs} samples, this one has {ours}; give it the same data and epochs"
    )]
    Samples {
        /// Samples of the run that was saved.
        theirs: u64,
        /// Samples of this one.
        ours: u64,
    },
    /// Batches overlap or lie outside of the data: the checkpoint is damaged.
    #[error(
        "the checkpoint's position in the data contradicts itself at unit {unit}; take an older checkpoint"
    )]
    Contradiction {
        /// Where.
        unit: u64,
    },
}

/// Which results are in the cut of the checkpoint that is being made.
#[derive(Clone, Debug, Default, Encode, Decode)]
pub(super) struct CutLine {
    /// Where workers are cut that are named.
    cuts: BTreeMap<WorkerId, Clock>,
    rest: Option<Clock>,
    /// Workers that had no work any more before they came to their cut: what they do later is not in it.
    finished: BTreeMap<WorkerId, Clock>,
    /// Batches that are done and not in the cut.
    after: BTreeMap<BatchIndex, u32>,
}

/// What of a range is in none of the others, which are in order and do not overlap.
fn without((mut from, to): (u64, u64), others: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut left = Vec::new();
    for (start, end) in others.iter().copied() {
        if from < start.min(to) {
            left.push((from, start.min(to)));
        }
        from = from.max(end);
    }
    left.extend((from < to).then_some((from, to)));
    left
}

impl CutLine {
    fn cut_of(&self, worker: WorkerId) -> Option<Clock> {
        let cut = self.cuts.get(&worker).copied().or(self.rest)?;
        Some(self.finished.get(&worker).map_or(cut, |finished| cut.min(*finished)))
    }

    /// The clock before which a worker that had no work does not come back.
    pub(super) fn floor(&self, worker: WorkerId) -> Option<Clock> {
        self.cuts.get(&worker).copied().or(self.rest).filter(|cut| cut.0 < u64::MAX)
    }

    /// A batch is done that was computed at this clock.
    pub(super) fn done(&mut self, worker: WorkerId, clock: Clock, batch: BatchIndex, units: u32) {
        if self.cut_of(worker).is_none_or(|cut| clock >= cut) {
            self.after.insert(batch, units);
        }
    }

    /// A worker that asked for work for this clock has none.
    pub(super) fn finished(&mut self, worker: WorkerId, clock: Clock) {
        self.finished.entry(worker).or_insert(clock);
    }

    /// A worker is gone. Its next incarnation enters at its cut or above (`Control::join`), as the shards take it: nothing of that is in it.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.cuts.remove(&worker);
        self.finished.remove(&worker);
    }
}

impl Assigner {
    /// The assigner of a run that goes on from a position.
    ///
    /// # Errors
    /// [`PositionError`], when the position is not one of this run.
    pub fn resume(plan: Plan, position: &Position) -> Result<Self, PositionError> {
        if position.sample_total != plan.sample_total {
            let (theirs, ours) = (position.sample_total, plan.sample_total);
            return Err(PositionError::Samples { theirs, ours });
        }
        if position.next > plan.unit_count() {
            return Err(PositionError::Contradiction { unit: position.next });
        }
        let mut assigner = Self::new(plan);
        let mut end = 0;
        for (unit, units) in &position.todo {
            let after = unit.saturating_add(u64::from(*units));
            if *units == 0 || *unit < end || after > position.next {
                return Err(PositionError::Contradiction { unit: *unit });
            }
            end = after;
            assigner.returned.insert(BatchIndex(*unit), *units);
        }
        let open: u64 = position.todo.iter().map(|(_, units)| u64::from(*units)).sum();
        assigner.next = position.next;
        assigner.done = position.next - open;
        assigner.batches_done = position.batches_done;
        assigner.samples_done = position.samples_done;
        Ok(assigner)
    }

    /// Goes back to the cut of a checkpoint: nothing that was done after it is left anywhere. All desks are cleared, for their workers come anew.
    /// Returns the samples that are done again, which are noted.
    ///
    /// # Errors
    /// [`PositionError`], when the position is not one of this run.
    pub fn go_back(&mut self, position: &Position) -> Result<u64, PositionError> {
        let back = Self::resume(self.plan, position)?;
        let todo = back.returned.iter().map(|(batch, units)| (batch.0, batch.0 + u64::from(*units)));
        let todo = todo.chain([(back.next, self.next)]);
        // What waits to be given out was noted when it was returned.
        let waiting: Vec<_> =
            self.returned.iter().map(|(batch, units)| (batch.0, batch.0 + u64::from(*units))).collect();
        let before = self.repeats.samples();
        let why = Why::Restored { checkpoint: position.number };
        for (from, to) in todo.flat_map(|range| without(range, &waiting)) {
            let (from, to) = (self.plan.samples_before(from), self.plan.samples_before(to));
            self.repeats.note(Repeat { from, to, why });
        }
        let done_again = self.batches_done.saturating_sub(back.batches_done);
        *self = Self {
            repeated: self.repeated + done_again + self.in_hand(),
            repeats: std::mem::take(&mut self.repeats),
            begun: self.begun,
            disturbed: true,
            paused: self.paused,
            ..back
        };
        Ok(self.repeats.samples() - before)
    }

    /// Batches that workers have and have not reported.
    #[must_use]
    pub fn in_hand(&self) -> u64 {
        self.desks.values().map(|desk| desk.batches.len() as u64).sum()
    }

    /// A checkpoint of this cut is to be made; the one before it is given up.
    pub fn mark(&mut self, mark: &Mark) {
        self.line = Some(CutLine {
            cuts: mark.cuts.iter().copied().collect(),
            rest: mark.rest,
            ..CutLine::default()
        });
    }

    /// The checkpoint is made, or given up.
    pub fn unmark(&mut self) {
        self.line = None;
    }

    /// A clock that no push of this worker can have yet: what it was given is for clocks before it.
    #[must_use]
    pub fn beyond(&self, worker: WorkerId) -> Clock {
        let Some(desk) = self.desks.get(&worker) else { return Clock(0) };
        let given = desk.given.map_or(Clock(0), |(clock, _)| clock.next());
        given.max(desk.asks.unwrap_or_default())
    }

    /// Whether everything was heard of the batches before the cut, of all workers that are there.
    #[must_use]
    pub fn is_reported(&self) -> bool {
        let Some(line) = &self.line else { return false };
        self.desks.iter().all(|(worker, desk)| {
            let Some(cut) = line.cut_of(*worker) else { return true };
            // Who asks for clock c has reported what it did at clocks before c - 1.
            let asked = desk.asks.or(desk.answered).unwrap_or_default();
            desk.batches.is_empty() || asked > cut
        })
    }

    /// The worker that is furthest from its cut, with its clock and the cut; of those that have work.
    #[must_use]
    pub fn behind(&self, clock: impl Fn(WorkerId) -> Option<Clock>) -> Option<(WorkerId, Clock, Clock)> {
        let line = self.line.as_ref()?;
        let workers = self.desks.keys().filter(|worker| !line.finished.contains_key(worker));
        let below = workers.filter_map(|worker| {
            let (at, cut) = (clock(*worker)?, line.floor(*worker)?);
            (at < cut).then_some((*worker, at, cut))
        });
        below.min_by_key(|(_, at, cut)| std::cmp::Reverse(cut.0 - at.0))
    }

    /// Where the data stand at the cut. What the record and the coordinator know is left empty.
    #[must_use]
    pub fn position(&self) -> Position {
        let mut todo: BTreeMap<BatchIndex, u32> = self.returned.clone();
        todo.extend(self.desks.values().flat_map(|desk| desk.batches.clone()));
        let after = self.line.as_ref().map(|line| &line.after);
        let samples_after: u64 =
            after.into_iter().flatten().map(|(batch, units)| self.plan.samples_of(*batch, *units)).sum();
        let batches_after = after.map_or(0, |after| after.len() as u64);
        todo.extend(after.into_iter().flatten().map(|(batch, units)| (*batch, *units)));
        // What would be the next to be given out in any case need not be listed, and is cut and evaluated anew.
        let mut next = self.next;
        while let Some((batch, units)) = todo.last_key_value()
            && batch.0 + u64::from(*units) == next
        {
            next = batch.0;
            todo.pop_last();
        }
        Position {
            sample_total: self.plan.sample_total,
            next,
            todo: todo.into_iter().map(|(batch, units)| (batch.0, units)).collect(),
            batches_done: self.batches_done - batches_after,
            samples_done: self.samples_done - samples_after,
            ..Position::default()
        }
    }

    /// Samples in the units before the first one that was not given out, at a position.
    pub(crate) fn samples_before(&self, position: &Position) -> u64 {
        self.plan.samples_before(position.next)
    }

    /// Whether workers have anything to do but to leave.
    pub(crate) fn is_at_the_end(&self) -> bool {
        self.stage != Stage::Batches
    }
}
