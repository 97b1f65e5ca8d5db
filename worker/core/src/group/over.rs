//! Evaluations, and the end of the run.

use slackline_core::wire::Work;

use super::{Present, Stage};
use crate::effect::Effect;
use crate::error::WorkerError;
use crate::evaluation::Evaluation;
use crate::worker::Worker;

impl Worker {
    /// Evaluates a snapshot when one of the units of the iteration after `units` complete ones is the first past a border. The rule
    /// and the number of samples are those of runs with servers, so that the points of two curves lie on each other.
    pub(super) fn evaluate_if_due(&mut self, units: u64, members: u64, effects: &mut Vec<Effect>) {
        let Some((every, total)) =
            self.settings.group.as_ref().map(|plan| (plan.evaluate_every, plan.sample_total))
        else {
            return;
        };
        let border = (units..units.saturating_add(members)).find_map(|unit| {
            let (before, after) = (self.samples_before(unit), self.samples_before(unit.saturating_add(1)));
            let is_due = every > 0 && before > 0 && before / every != after / every && after < total;
            is_due.then_some(before)
        });
        if let Some(at_samples) = border
            && self.group.measured_at != Some(at_samples)
            && self.evaluation.is_free()
        {
            self.group.words.want();
            self.measure(at_samples, false, effects);
        }
    }

    fn measure(&mut self, at_samples: u64, last: bool, effects: &mut Vec<Effect>) {
        effects.push(Effect::Evaluate { at_samples, last });
        self.group.measured_at = Some(at_samples);
        self.evaluation = Evaluation::Measuring { at_samples, last };
    }

    /// What is left to do when all units are done: position 0 evaluates the final values. Then everybody stays until the coordinator
    /// says that the run is over: a neighbour may still wait for sums, and if position 0 is lost another one must have the values.
    pub(super) fn finish_run(&mut self, effects: &mut Vec<Effect>) {
        let Some(Present { stage: Stage::Over, position, .. }) = self.group.present else { return };
        if position == 0 && !self.group.is_measured && self.evaluation.is_free() {
            let total = self.samples_before(self.settings.batch_count);
            self.measure(total, true, effects);
        }
    }

    /// A result is here; whether it is the last one.
    pub(crate) const fn note_measured(&mut self, last: bool) {
        self.group.is_measured |= last;
    }

    /// In an allreduce nobody is given work; but the end is told in the same way.
    pub(crate) fn on_group_work(&mut self, work: Work, effects: &mut Vec<Effect>) -> Result<(), WorkerError> {
        if work != Work::Done {
            return Err(WorkerError::OutOfPlace {
                server: self.settings.coordinator,
                what: "work in an allreduce",
            });
        }
        self.leave_done(effects);
        Ok(())
    }
}
