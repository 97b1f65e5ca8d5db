//! One iteration of an allreduce: load, compute, gather, reduce, apply.

use slackline_core::ids::{BatchIndex, Clock, Generation, Moment, Sequence};
use slackline_core::wire::Group;

use super::{Present, Stage};
use crate::effect::Effect;
use crate::error::WorkerError;
use crate::notice::Notice;
use crate::worker::Worker;

/// What came of a worker's own part of an iteration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) bad_key: Option<u64>,
    pub(super) loss: f64,
    pub(super) samples: u32,
}

/// How far an iteration has come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// The batch is missing.
    Loading,
    /// The shell computes.
    Computing,
    /// Others' gradients are missing.
    Computed(Own),
    /// Others' sums are missing.
    Gathered(Own),
}

/// The iteration under way.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) clock: Clock,
    /// This worker's batch; none where the run has no more for this position.
    pub(super) unit: Option<u64>,
    pub(super) phase: Phase,
    /// When that phase began.
    pub(super) since: Moment,
}

/// An iteration that was dissolved when only others' parts were missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unfinished {
    clock: Clock,
    has_batch: bool,
    own: Own,
}

impl Step {
    /// Whether it is computed, or will be, on a unit.
    pub(super) fn computes(&self, unit: u64) -> bool {
        self.unit == Some(unit) && matches!(self.phase, Phase::Loading | Phase::Computing)
    }

    /// What to keep of it when its group is dissolved.
    pub(super) const fn unfinished(&self) -> Option<Unfinished> {
        match self.phase {
            Phase::Loading | Phase::Computing => None,
            Phase::Computed(own) | Phase::Gathered(own) => {
                Some(Unfinished { clock: self.clock, has_batch: self.unit.is_some(), own })
            }
        }
    }
}

impl Worker {
    /// Takes every step that is possible now.
    pub(crate) fn advance_group(&mut self, effects: &mut Vec<Effect>) {
        while self.leaving.is_none() && (self.begin_step(effects) || self.compute_if_loaded(effects)) {}
        if self.leaving.is_none() {
            self.tell_progress(effects);
            self.finish_run(effects);
        }
    }

    /// Begins the next iteration, or finds that there is none.
    fn begin_step(&mut self, effects: &mut Vec<Effect>) -> bool {
        let (clock, units, count) = (self.clock, self.group.units, self.settings.batch_count);
        let Some(present) = &mut self.group.present else { return false };
        if present.stage != Stage::Running || present.step.is_some() {
            return false;
        }
        self.has_started = true;
        self.group.unfinished = None;
        if units >= count {
            present.turn(Stage::Over, self.now);
            return true;
        }
        let unit = present.group.unit_of(clock, present.position).filter(|unit| *unit < count);
        present.step = Some(Step { clock, unit, phase: Phase::Loading, since: self.now });
        let (position, members) = (present.position, present.group.members.len() as u64);
        if position == 0 {
            self.evaluate_if_due(units, members, effects);
        }
        self.load(unit, effects);
        true
    }

    fn compute_if_loaded(&mut self, effects: &mut Vec<Effect>) -> bool {
        let (now, units) = (self.now, self.group.units);
        let Some(Present { group, position, step: Some(step), .. }) = &mut self.group.present else {
            return false;
        };
        let is_loaded = step.unit.is_none_or(|unit| self.group.batches.get(&unit) == Some(&true));
        if !matches!(step.phase, Phase::Loading) || !is_loaded {
            return false;
        }
        (step.phase, step.since) = (Phase::Computing, now);
        let (generation, clock, unit) = (group.generation, step.clock, step.unit);
        let (members, next) = (group.members.len() as u64, group.unit_of(clock.next(), *position));
        let share = self.share_of(unit, units, members);
        effects.push(Effect::Step { generation, clock, batch: unit.map(BatchIndex), share });
        if let Some(unit) = unit {
            self.group.batches.remove(&unit);
        }
        self.load(next, effects);
        true
    }

    /// Loads the first batches of a group while its members meet. Those that were loaded for another group and have a use here stay.
    pub(super) fn load_first(&mut self, group: &Group, position: u32, effects: &mut Vec<Effect>) {
        let first = group.unit_of(group.clock, position);
        let second = group.unit_of(group.clock.next(), position);
        self.group.batches.retain(|unit, _| [first, second].contains(&Some(*unit)));
        if group.topology != slackline_core::collective::Topology::Auto {
            self.load(first, effects);
        }
    }

    fn load(&mut self, unit: Option<u64>, effects: &mut Vec<Effect>) {
        let Some(unit) = unit.filter(|unit| *unit < self.settings.batch_count) else { return };
        self.group.batches.entry(unit).or_insert_with(|| {
            effects.push(Effect::LoadBatch { batch: BatchIndex(unit), units: 1 });
            false
        });
    }

    /// Samples in the first so many units of the run.
    pub(super) fn samples_before(&self, units: u64) -> u64 {
        let plan = self.settings.group.as_ref();
        plan.map_or(0, |plan| units.saturating_mul(plan.unit).min(plan.sample_total))
    }

    /// The share that a unit has in the iteration after `units` complete ones, as
    /// [`weighted_mean`](slackline_core::aggregate::weighted_mean) computes it.
    fn share_of(&self, unit: Option<u64>, units: u64, members: u64) -> f32 {
        let Some(unit) = unit else { return 0.0 };
        let samples = |first: u64, count: u64| {
            self.samples_before(first.saturating_add(count)) - self.samples_before(first)
        };
        (samples(unit, 1) as f64 / samples(units, members).max(1) as f64) as f32
    }

    /// The iteration under way if it is that of an event.
    fn step_in(&mut self, (generation, clock): (Generation, Clock)) -> Option<&mut Step> {
        let step = self.group.present_in(generation)?.step.as_mut()?;
        Some(step).filter(|step| step.clock == clock)
    }

    /// This worker's own gradient is computed and handed over.
    pub(super) fn on_step_computed(
        &mut self,
        name: (Generation, Clock),
        own: Own,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        let now = self.now;
        let Some(step) = self.step_in(name).filter(|step| matches!(step.phase, Phase::Computing)) else {
            return Ok(());
        };
        (step.phase, step.since) = (Phase::Computed(own), now);
        let Some(key) = own.bad_key else { return Ok(()) };
        let (worker, clock) = (self.member.unwrap_or_default().worker, name.1);
        let tensor = self.tensor_of(key);
        if self.settings.stop_on_bad_gradient {
            return Err(WorkerError::BadGradient { worker, clock, key, tensor });
        }
        let (sequence, found_by) = (Sequence(clock.0).next(), None);
        effects.push(Effect::Notice(Notice::BadGradient { worker, clock, sequence, key, tensor, found_by }));
        Ok(())
    }

    fn tensor_of(&self, key: u64) -> String {
        let tensor = self.settings.layout.tensor_of(key);
        tensor.map_or_else(|| "unknown".to_owned(), |tensor| tensor.path.clone())
    }

    /// The others' gradients are in.
    pub(super) fn on_gathered(&mut self, generation: Generation, clock: Clock) {
        let now = self.now;
        if let Some(step) = self.step_in((generation, clock))
            && let Phase::Computed(own) = step.phase
        {
            (step.phase, step.since) = (Phase::Gathered(own), now);
        }
    }

    /// All sums are here: the iteration is complete.
    pub(super) fn on_reduced(
        &mut self,
        name: (Generation, Clock),
        bad_key: Option<u64>,
        (sent, received): (u64, u64),
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        let Some(step) = self.step_in(name) else { return Ok(()) };
        let (Phase::Computed(own) | Phase::Gathered(own)) = step.phase else { return Ok(()) };
        let has_batch = step.unit.is_some();
        let (generation, clock) = name;
        let counts = self.record.counts();
        counts.bytes_pushed += sent;
        counts.bytes_pulled += received;
        self.count_step(has_batch, own, bad_key.is_none());
        if let Some(key) = bad_key {
            let tensor = self.tensor_of(key);
            if self.settings.stop_on_bad_gradient {
                return Err(WorkerError::BadSum { clock, key, tensor });
            }
            effects.push(Effect::Skip { generation, clock });
        } else {
            let progress = self.group.units as f64 / self.settings.batch_count.max(1) as f64;
            effects.push(Effect::Apply { generation, clock, progress });
        }
        self.clock = clock.next();
        let count = self.settings.batch_count;
        if let Some(present) = &mut self.group.present {
            present.step = None;
            let members = present.group.members.len() as u64;
            self.group.units = self.group.units.saturating_add(members).min(count);
        }
        Ok(())
    }

    fn count_step(&mut self, has_batch: bool, own: Own, is_applied: bool) {
        let counts = self.record.counts();
        counts.pushes_sent += 1;
        counts.iterations += u64::from(has_batch);
        if !is_applied {
            counts.pushes_dropped += 1;
            counts.dropped_not_finite += 1;
            return;
        }
        counts.pushes_applied += 1;
        counts.version_staleness.record(0);
        if has_batch && own.loss.is_finite() {
            counts.samples += u64::from(own.samples);
            counts.loss_sum += own.loss * f64::from(own.samples);
        }
    }

    /// A group began after an iteration that this worker could not complete and another one did: its part in it counts.
    pub(super) fn count_if_completed(&mut self, clock: Clock) {
        let Some(unfinished) = self.group.unfinished.take() else { return };
        if unfinished.clock.next() == clock {
            self.count_step(unfinished.has_batch, unfinished.own, unfinished.own.bad_key.is_none());
        }
    }
}
