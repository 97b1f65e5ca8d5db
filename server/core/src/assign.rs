//! Who computes which batch: the coordinator hands batches out one by one.
//!
//! Every batch of the run is given to one worker at a time and is done when that worker says so. The batches of a worker that is gone,
//! and those whose gradient was not used, are given out again, so every sample is used at least once, and exactly once while nobody
//! crashes. Under bsp the batches of one clock are handed out before those of the next, so that P workers go through the
//! data in the order of one worker with a batch P times as large.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use slackline_core::ids::{BatchIndex, Clock, WorkerId};
use slackline_core::wire::Work;

/// What the desk of one worker holds.
#[derive(Clone, Debug, Default)]
struct Desk {
    /// Batches it has and has not reported.
    batches: BTreeSet<BatchIndex>,
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
    /// Its last ask: clock, batch done, batch returned.
    heard: Option<(Clock, Option<BatchIndex>, Option<BatchIndex>)>,
    /// It has a new session: what was given over the old one may be lost.
    reconnected: bool,
    /// It joined a run that had begun and was given nothing yet: nobody waits for it.
    fresh: bool,
}

/// Where the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Batches,
    FinalEvaluation { by: Option<WorkerId> },
    Done,
}

/// What the batches of a run look like.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Batches of the whole run.
    pub batch_count: u64,
    /// Samples of a batch; the last may have fewer.
    pub batch: u64,
    /// Samples of the whole run.
    pub sample_total: u64,
    /// Evaluate whenever this many samples more have been handed out; zero for only at the end.
    pub evaluate_every: u64,
    /// Hand out clock by clock.
    pub ordered: bool,
}

impl Plan {
    /// Samples in the first so many batches.
    fn samples_before(&self, batches: u64) -> u64 {
        batches.saturating_mul(self.batch).min(self.sample_total)
    }
}

/// The batches of a run and who has them.
#[derive(Clone, Debug)]
pub struct Assigner {
    plan: Plan,
    next: u64,
    returned: BTreeSet<BatchIndex>,
    done: u64,
    desks: BTreeMap<WorkerId, Desk>,
    /// Workers that ask, in the order they asked.
    queue: VecDeque<WorkerId>,
    stage: Stage,
    begun: bool,
    /// Batches that were given out more than once.
    repeated: u64,
    samples_done: u64,
    /// Evaluations that were asked for and are not in.
    evaluations: BTreeSet<u64>,
}

/// Batches that one worker may have: the one that it computes and the one after.
const AHEAD_MAX: usize = 2;

impl Desk {
    /// What it was given and has not reported, as it was given where that is known.
    fn unreported(&self) -> Vec<Work> {
        let given = self.given.map(|(_, work)| work);
        let again = |batch: &BatchIndex| match given {
            Some(work @ Work::Batch { batch: last, .. }) if last == *batch => work,
            _ => Work::Batch { batch: *batch, evaluate: None, enter: None },
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
            returned: BTreeSet::new(),
            done: 0,
            desks: BTreeMap::new(),
            queue: VecDeque::new(),
            stage: Stage::Batches,
            begun: false,
            repeated: 0,
            samples_done: 0,
            evaluations: BTreeSet::new(),
        }
    }

    /// All workers that the run begins with have a desk: hand out.
    pub fn begin(&mut self) {
        self.begun = true;
    }

    /// A worker became a member.
    pub fn enter(&mut self, worker: WorkerId) {
        self.forget(worker);
        self.desks.insert(worker, Desk { fresh: self.begun, ..Desk::default() });
    }

    /// A worker is gone: what it had is to be done by others.
    pub fn forget(&mut self, worker: WorkerId) {
        if let Some(desk) = self.desks.remove(&worker) {
            self.repeated += desk.batches.len() as u64;
            self.returned.extend(desk.batches);
        }
        self.queue.retain(|queued| *queued != worker);
        if self.stage == (Stage::FinalEvaluation { by: Some(worker) }) {
            self.stage = Stage::FinalEvaluation { by: None };
        }
    }

    /// A worker comes back over a new session.
    pub fn reconnect(&mut self, worker: WorkerId) {
        if let Some(desk) = self.desks.get_mut(&worker) {
            desk.reconnected = true;
        }
    }

    /// A worker reports and asks. Asking again for the same clock is harmless. Returns work that was given before and may have been
    /// lost: with the first ask over a new session all that is not reported (a worker leaves alone what it has), and for a repeated ask
    /// its answer.
    pub fn ask(
        &mut self,
        worker: WorkerId,
        clock: Clock,
        done: Option<BatchIndex>,
        returned: Option<BatchIndex>,
    ) -> Vec<Work> {
        let Some(desk) = self.desks.get_mut(&worker) else { return Vec::new() };
        // What a repeated ask says is known; a batch that it returns can lie on this very desk again.
        let is_new = desk.heard.replace((clock, done, returned)) != Some((clock, done, returned));
        if let Some(batch) = done.filter(|batch| is_new && desk.batches.remove(batch)) {
            self.done += 1;
            self.samples_done += self.plan.samples_before(batch.0 + 1) - self.plan.samples_before(batch.0);
        }
        if let Some(batch) = returned.filter(|batch| is_new && desk.batches.remove(batch)) {
            self.repeated += 1;
            self.returned.insert(batch);
        }
        let mut again = if std::mem::take(&mut desk.reconnected) { desk.unreported() } else { Vec::new() };
        if desk.asks.is_none() && desk.answered == Some(clock) {
            // The answer was lost with its session. No worker asks twice for one clock otherwise.
            let answer = desk.given.map(|(_, work)| work);
            again.extend(answer.filter(|work| !again.contains(work)));
            return again;
        }
        desk.asks = Some(clock);
        desk.told = false;
        if !self.queue.contains(&worker) {
            self.queue.push_back(worker);
        }
        again
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
            if !self.queue.contains(&worker) {
                self.queue.push_back(worker);
            }
        }
        is_first
    }

    /// Gives out what can be given out now. `minimum` is the clock at which an idle worker enters again.
    pub fn settle(&mut self, minimum: Clock, grants: &mut Vec<(WorkerId, Work)>) {
        if !self.begun {
            return;
        }
        loop {
            if self.stage == Stage::Batches && self.done == self.plan.batch_count {
                self.stage = Stage::FinalEvaluation { by: None };
            }
            let before = grants.len();
            for _ in 0..self.queue.len() {
                let Some(worker) = self.queue.pop_front() else { break };
                self.serve(worker, minimum, grants);
            }
            if grants.len() == before {
                return;
            }
        }
    }

    fn serve(&mut self, worker: WorkerId, minimum: Clock, grants: &mut Vec<(WorkerId, Work)>) {
        let Some((clock, idle)) = self.desks.get(&worker).and_then(|desk| Some((desk.asks?, desk.idle)))
        else {
            return;
        };
        let work = match self.stage {
            Stage::Done => Some(Work::Done),
            Stage::FinalEvaluation { by: None } => {
                self.stage = Stage::FinalEvaluation { by: Some(worker) };
                Some(Work::Evaluate { at_samples: self.plan.sample_total })
            }
            Stage::FinalEvaluation { by: Some(_) } => None,
            Stage::Batches if !self.has_room(worker) || !self.is_its_turn(worker, clock) => {
                self.queue.push_back(worker);
                return;
            }
            Stage::Batches => self.take(idle.then_some(minimum.max(clock))),
        };
        let Some(desk) = self.desks.get_mut(&worker) else { return };
        match work {
            Some(work) => {
                if let Work::Batch { batch, .. } = work {
                    desk.batches.insert(batch);
                }
                desk.answered = Some(clock);
                (desk.asks, desk.idle, desk.fresh) = (None, false, false);
                let clock = if let Work::Batch { enter: Some(clock), .. } = work { clock } else { clock };
                desk.given = Some((clock, work));
                grants.push((worker, work));
            }
            None => {
                if !desk.told {
                    (desk.idle, desk.told) = (true, true);
                    grants.push((worker, Work::Idle));
                }
                self.queue.push_back(worker);
            }
        }
    }

    /// A worker that got more than it asked for (what was lost came again) gets no more before it has reported.
    fn has_room(&self, worker: WorkerId) -> bool {
        self.desks.get(&worker).is_none_or(|desk| desk.batches.len() < AHEAD_MAX)
    }

    /// Under bsp: nobody else still needs work for an earlier clock. A worker whose clock was moved up skips some.
    fn is_its_turn(&self, worker: WorkerId, clock: Clock) -> bool {
        !self.plan.ordered
            || self.desks.iter().all(|(other, desk)| {
                let needs =
                    desk.asks.unwrap_or_else(|| desk.given.map_or(Clock(0), |(given, _)| given.next()));
                *other == worker || desk.idle || desk.fresh || needs >= clock
            })
    }

    fn take(&mut self, enter: Option<Clock>) -> Option<Work> {
        if let Some(batch) = self.returned.pop_first() {
            return Some(Work::Batch { batch, evaluate: None, enter });
        }
        if self.next == self.plan.batch_count {
            return None;
        }
        let batch = BatchIndex(self.next);
        self.next += 1;
        let (before, after) = (self.plan.samples_before(batch.0), self.plan.samples_before(self.next));
        let every = self.plan.evaluate_every;
        let due =
            every > 0 && before > 0 && before / every != after / every && after < self.plan.sample_total;
        if due {
            self.evaluations.insert(before);
        }
        Some(Work::Batch { batch, evaluate: due.then_some(before), enter })
    }

    /// Workers that ask and were not given work yet.
    #[must_use]
    pub fn asking(&self) -> u32 {
        self.desks.values().filter(|desk| desk.asks.is_some()).count() as u32
    }

    /// Batches of the run.
    #[must_use]
    pub const fn batch_count(&self) -> u64 {
        self.plan.batch_count
    }

    /// Samples of the batches done, each batch once.
    #[must_use]
    pub const fn samples_done(&self) -> u64 {
        self.samples_done
    }

    /// Batches done.
    #[must_use]
    pub const fn done(&self) -> u64 {
        self.done
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
        self.done == self.plan.batch_count
    }

    /// What must hold after every call.
    ///
    /// # Panics
    /// When it does not hold: for tests and the simulated world.
    pub fn check_invariants(&self) {
        let mut with_someone = BTreeSet::new();
        for batch in self.desks.values().flat_map(|desk| &desk.batches) {
            assert!(with_someone.insert(*batch), "{batch} lies on two desks");
            assert!(!self.returned.contains(batch), "{batch} is on a desk and returned");
        }
        let accounted = self.done + with_someone.len() as u64 + self.returned.len() as u64;
        assert_eq!(accounted, self.next, "a batch is lost or counted twice");
    }
}

#[cfg(test)]
mod tests;
