//! Who computes which batch: the coordinator hands batches out one by one.
//!
//! Every batch of the run is given to one worker at a time and is done when that worker says so. The batches of a worker that is gone,
//! and those whose gradient was not used, are given out again, so every sample is used at least once, and exactly once while nobody
//! crashes, whoever comes and goes. Under bsp the batches of one clock are handed out before those of the next, so that P workers go through the
//! data in the order of one worker with a batch P times as large.
//!
//! A batch is a run of units (see [`Cut`]). Where batches follow the workers' speeds, a worker
//! that computes twice as many samples a second as the mean gets batches of twice as many units (DyLU's idea, Liu et al. 2024).

mod position;
mod repeats;
mod serving;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bincode::{Decode, Encode};
use slackline_core::ids::{BatchIndex, Clock, WorkerId};
use slackline_core::schedule::Cut;
use slackline_core::wire::{BatchResult, Fate, Work};

use position::CutLine;
pub use position::{PastEvaluation, Position, PositionError};
pub use repeats::{RANGES_MAX, Repeat, Repeats, Why};

/// What the desk of one worker holds.
#[derive(Clone, Debug, Default, Encode, Decode)]
struct Desk {
    /// Batches it has and has not reported, with their units.
    batches: BTreeMap<BatchIndex, u32>,
    /// Samples a second that it computes, as far as is known.
    speed: Option<f64>,
    /// The clock that it wants work for.
    asks: Option<Clock>,
    /// The clock that the last work it was given is for, with that work.
    given: Option<(Clock, Work)>,
    /// The clock of the ask that this work answered; the two differ for a worker that was idle.
    answered: Option<Clock>,
    /// It was told that there is no batch now.
    idle: bool,
    /// It was told so since it last asked: the word can be lost, and whoever asks again must hear it again.
    told: bool,
    /// The number of the last of its results that was heard.
    heard: u64,
    /// It has a new session: what was given over the old one may be lost.
    reconnected: bool,
    /// It joined a run that had begun and was given nothing yet: nobody waits for it.
    fresh: bool,
}

/// Where the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
enum Stage {
    Batches,
    FinalEvaluation { by: Option<WorkerId> },
    Done,
}

/// What the batches of a run look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Plan {
    /// How they are cut.
    pub cut: Cut,
    /// Samples of the whole run.
    pub sample_total: u64,
    /// Evaluate whenever this many samples more have been handed out; zero for only at the end.
    pub evaluate_every: u64,
    /// Hand out clock by clock.
    pub ordered: bool,
}

impl Plan {
    /// Units of the whole run; the last may have fewer samples.
    pub(crate) const fn unit_count(&self) -> u64 {
        self.sample_total.div_ceil(self.cut.unit)
    }

    /// Samples in the first so many units.
    pub(crate) fn samples_before(&self, units: u64) -> u64 {
        units.saturating_mul(self.cut.unit).min(self.sample_total)
    }

    /// Samples of a batch.
    fn samples_of(&self, batch: BatchIndex, units: u32) -> u64 {
        self.samples_before(batch.0 + u64::from(units)) - self.samples_before(batch.0)
    }
}

/// Share of a speed that a new measurement makes: one slow moment does not halve a batch.
const SPEED_NEW: f64 = 0.2;

/// The batches of a run and who has them.
#[derive(Clone, Debug, Encode, Decode)]
pub struct Assigner {
    plan: Plan,
    /// The first unit that was never given out.
    next: u64,
    returned: BTreeMap<BatchIndex, u32>,
    /// Units done.
    done: u64,
    /// Batches done.
    batches_done: u64,
    desks: BTreeMap<WorkerId, Desk>,
    /// Workers that ask, in the order they asked.
    queue: VecDeque<WorkerId>,
    /// Those of them that were told that there is nothing, in the same order: they are asked about again when that has changed.
    resting: VecDeque<WorkerId>,
    stage: Stage,
    begun: bool,
    /// Batches that were given out more than once.
    repeated: u64,
    /// Their samples, with why.
    repeats: Repeats,
    samples_done: u64,
    /// Nobody needs work for an earlier clock than this one; without meaning once the run is disturbed.
    turn: Clock,
    /// Evaluations that were asked for and are not in.
    evaluations: BTreeSet<u64>,
    /// Somebody came or went after the run had begun.
    disturbed: bool,
    /// Too few workers are there: no batches are given out.
    paused: bool,
    /// The line between what is in the checkpoint that is being made and what is not.
    line: Option<CutLine>,
}

impl Desk {
    /// What it was given and has not reported, as it was given where that is known.
    fn unreported(&self) -> Vec<Work> {
        let given = self.given.map(|(_, work)| work);
        let again = |(batch, units): (&BatchIndex, &u32)| match given {
            Some(work @ Work::Batch { batch: last, .. }) if last == *batch => work,
            _ => Work::Batch { batch: *batch, units: *units, evaluate: None, enter: None },
        };
        self.batches.iter().map(again).collect()
    }
}

impl Assigner {
    /// All batches still to do.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        Self {
            plan,
            next: 0,
            returned: BTreeMap::new(),
            done: 0,
            batches_done: 0,
            desks: BTreeMap::new(),
            queue: VecDeque::new(),
            resting: VecDeque::new(),
            stage: Stage::Batches,
            begun: false,
            repeated: 0,
            repeats: Repeats::default(),
            samples_done: 0,
            turn: Clock(0),
            evaluations: BTreeSet::new(),
            disturbed: false,
            paused: false,
            line: None,
        }
    }

    /// All workers that the run begins with have a desk: hand out.
    pub fn begin(&mut self) {
        self.begun = true;
    }

    /// Whether too few workers are there: no batches are given out meanwhile; what was given out is done.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// A worker became a member.
    pub fn enter(&mut self, worker: WorkerId) {
        self.forget(worker);
        self.disturbed |= self.begun;
        self.desks.insert(worker, Desk { fresh: self.begun, ..Desk::default() });
    }

    /// A worker is gone: what it had is to be done by others.
    pub fn forget(&mut self, worker: WorkerId) {
        if let Some(desk) = self.desks.remove(&worker) {
            self.disturbed |= self.begun;
            self.repeated += desk.batches.len() as u64;
            self.returned.extend(desk.batches);
        }
        if let Some(line) = &mut self.line {
            line.forget(worker);
        }
        self.queue.retain(|queued| *queued != worker);
        self.resting.retain(|queued| *queued != worker);
        if self.stage == (Stage::FinalEvaluation { by: Some(worker) }) {
            self.stage = Stage::FinalEvaluation { by: None };
        }
    }

    /// A worker goes and says of which batch alone it does not know whether shards have something: the others were not used, so that
    /// handing them out is no repetition.
    pub fn give_back(&mut self, worker: WorkerId, unheard: Option<BatchIndex>) {
        if let Some(desk) = self.desks.get_mut(&worker) {
            let kept = unheard.and_then(|batch| desk.batches.remove_entry(&batch));
            self.returned.append(&mut desk.batches);
            desk.batches.extend(kept);
        }
    }

    /// A worker comes back over a new session.
    pub fn reconnect(&mut self, worker: WorkerId) {
        if let Some(desk) = self.desks.get_mut(&worker) {
            desk.reconnected = true;
        }
    }

    /// A worker reports and asks. Asking again for the same clock is harmless, and a result that comes again counts once. Returns work
    /// that was given before and may have been lost: with the first ask over a new session all that is not reported (a worker leaves alone
    /// what it has), and for a repeated ask its answer.
    pub fn ask(&mut self, worker: WorkerId, clock: Clock, results: &[BatchResult]) -> Vec<Work> {
        for result in results {
            self.take_result(worker, result);
        }
        let Some(desk) = self.desks.get_mut(&worker) else { return Vec::new() };
        let mut again = if std::mem::take(&mut desk.reconnected) { desk.unreported() } else { Vec::new() };
        if desk.asks.is_none() && desk.answered == Some(clock) {
            // The answer was lost with its session. No worker asks twice for one clock otherwise.
            let answer = desk.given.map(|(_, work)| work);
            again.extend(answer.filter(|work| !again.contains(work)));
            return again;
        }
        desk.asks = Some(clock);
        desk.told = false;
        self.line_up(worker);
        again
    }

    fn take_result(&mut self, worker: WorkerId, result: &BatchResult) {
        let Some(desk) = self.desks.get_mut(&worker).filter(|desk| result.number > desk.heard) else {
            return;
        };
        desk.heard = result.number;
        let batch = result.batch;
        let Some(units) = desk.batches.remove(&batch) else { return };
        match result.fate {
            Fate::Done { compute_us } => {
                let samples = self.plan.samples_of(batch, units);
                self.done += u64::from(units);
                self.batches_done += 1;
                self.samples_done += samples;
                if compute_us > 0 {
                    let speed = samples as f64 / compute_us as f64 * 1e6;
                    desk.speed = Some(desk.speed.map_or(speed, |known| known + SPEED_NEW * (speed - known)));
                }
                if let Some(line) = &mut self.line {
                    line.done(worker, result.clock, batch, units);
                }
            }
            Fate::Returned => {
                self.repeated += 1;
                self.returned.insert(batch, units);
                self.repeats.note(self.repeat_of(batch, units, Why::Unused));
            }
        }
    }

    /// An evaluation was done by this worker. Only that of all samples is the final one: an earlier one can end late. Returns
    /// whether it is the first result of one that was asked for.
    pub fn evaluated(&mut self, worker: WorkerId, at_samples: u64) -> bool {
        if at_samples != self.plan.sample_total {
            return self.evaluations.remove(&at_samples);
        }
        let is_first = self.stage == (Stage::FinalEvaluation { by: Some(worker) });
        if is_first {
            self.stage = Stage::Done;
        }
        // It waits for the word that the run is over, without asking. A result that comes again says that this word was lost.
        if self.stage == Stage::Done
            && let Some(desk) = self.desks.get_mut(&worker)
        {
            desk.asks = Some(desk.given.map_or(Clock(0), |(clock, _)| clock));
            (desk.idle, desk.told) = (true, true);
            self.line_up(worker);
        }
        is_first
    }

    /// Workers that ask and were not given work yet.
    #[must_use]
    pub fn asking(&self) -> u32 {
        self.desks.values().filter(|desk| desk.asks.is_some()).count() as u32
    }

    /// Units not done yet.
    #[must_use]
    pub const fn units_left(&self) -> u64 {
        self.plan.unit_count() - self.done
    }

    /// Samples of the batches done, each batch once.
    #[must_use]
    pub const fn samples_done(&self) -> u64 {
        self.samples_done
    }

    /// Batches done.
    #[must_use]
    pub const fn batches_done(&self) -> u64 {
        self.batches_done
    }

    /// Batches that were given out again.
    #[must_use]
    pub const fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Whether all batches are done and the final evaluation is in.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Done
    }

    /// Whether all batches are done.
    #[must_use]
    pub const fn is_trained(&self) -> bool {
        self.done == self.plan.unit_count()
    }

    /// What must hold after every call.
    ///
    /// # Panics
    /// When it does not hold: for tests and the simulated world.
    pub fn check_invariants(&self) {
        let mut with_someone = BTreeSet::new();
        let mut accounted = self.done;
        for (batch, units) in self.desks.values().flat_map(|desk| &desk.batches) {
            assert!(with_someone.insert(*batch), "{batch} lies on two desks");
            assert!(!self.returned.contains_key(batch), "{batch} is on a desk and returned");
            accounted += u64::from(*units);
        }
        accounted += self.returned.values().map(|units| u64::from(*units)).sum::<u64>();
        assert_eq!(accounted, self.next, "a batch is lost or counted twice");
    }
}

#[cfg(test)]
mod tests;
