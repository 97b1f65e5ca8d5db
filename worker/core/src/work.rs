//! Asking for work, and the work that was given but not begun.
//!
//! One ask goes out for each iteration, for the next one, when the computing begins and the pushes before are
//! answered; it reports what became of the batch before. The coordinator can also give work by itself to a
//! worker that has none.

use std::collections::VecDeque;

use slackline_core::ids::{BatchIndex, Clock, Moment, ServerId};
use slackline_core::limits::ASK_RESULTS_MAX;
use slackline_core::wire::{Ask, BatchResult, Fate, ToServer, Work};

use crate::effect::Effect;
use crate::error::WorkerError;
use crate::worker::Worker;

/// Works that may wait; the coordinator never gives more than one ahead and one that ends it.
const WORK_COUNT_MAX: usize = 4;

/// A work that waits to be begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    pub(crate) work: Work,
    /// For a batch: it is in memory.
    pub(crate) loaded: bool,
}

/// What the worker has asked, and what it was given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asking {
    last: Option<Ask>,
    answered: bool,
    /// The last word was that there is nothing: work can come at any time without being asked for.
    told_idle: bool,
    /// Renewals that had gone to the coordinator before the last ask.
    mark: u64,
    queue: VecDeque<Queued>,
    /// What became of the last batches. Every ask says all of these: one that is lost can be replaced by the next, and what only it said
    /// would never be heard.
    results: VecDeque<BatchResult>,
    /// Number of the last result.
    result_last: u64,
    /// No ask has said the last result yet.
    has_result: bool,
    /// Since when there has been nothing to do.
    pub(crate) quiet_since: Option<Moment>,
}

impl Asking {
    /// Whether the first work has been asked for.
    pub(crate) const fn has_begun(&self) -> bool {
        self.last.is_some()
    }

    /// Whether the last ask has been answered.
    pub(crate) const fn is_answered(&self) -> bool {
        self.answered
    }

    /// Whether a batch is to be reported.
    pub(crate) const fn has_result(&self) -> bool {
        self.has_result
    }

    /// A batch is over.
    pub(crate) fn settle(&mut self, batch: BatchIndex, clock: Clock, fate: Fate) {
        self.result_last += 1;
        self.results.push_back(BatchResult { number: self.result_last, batch, clock, fate });
        while self.results.len() > ASK_RESULTS_MAX {
            self.results.pop_front();
        }
        self.has_result = true;
    }

    /// The work to begin next.
    pub(crate) fn front(&self) -> Option<Queued> {
        self.queue.front().copied()
    }

    /// The work at the front is begun.
    pub(crate) fn pop(&mut self) {
        self.queue.pop_front();
    }

    /// Whether nothing waits to be begun.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many works wait.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// The worker joins anew.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether a batch waits to be begun.
    pub(crate) fn holds(&self, batch: BatchIndex) -> bool {
        self.queue
            .iter()
            .any(|queued| matches!(queued.work, Work::Batch { batch: held, .. } if held == batch))
    }

    /// Whether a batch waits to be begun or to be reported, or was reported as done.
    fn knows(&self, batch: BatchIndex) -> bool {
        let is_unsaid = |result: &BatchResult| self.has_result && result.number == self.result_last;
        let is_over = |result: &BatchResult| result.fate != Fate::Returned || is_unsaid(result);
        self.holds(batch) || self.results.iter().any(|result| result.batch == batch && is_over(result))
    }

    /// A batch that waits has been loaded.
    pub(crate) fn loaded(&mut self, batch: BatchIndex) {
        for queued in &mut self.queue {
            if matches!(queued.work, Work::Batch { batch: waiting, .. } if waiting == batch) {
                queued.loaded = true;
            }
        }
    }
}

impl Worker {
    /// Asks for the work of the iteration at `clock`, and reports.
    pub(crate) fn ask(&mut self, clock: Clock, effects: &mut Vec<Effect>) {
        let is_due = self.has_started && self.record.is_due(self.now);
        self.asking.mark = self.coordinator_mark();
        let report = is_due.then(|| self.record.take(self.now, self.ledger.take()));
        self.asking.has_result = false;
        let ask = Ask { clock, results: self.asking.results.iter().copied().collect(), report };
        self.asking.last = Some(ask.clone());
        self.asking.answered = false;
        self.send(self.settings.coordinator, ToServer::Ask(ask), effects);
    }

    /// Reports the last batch when no further iteration does it, with all that was counted: it can be the last ask of the run.
    pub(crate) fn flush_result(&mut self, effects: &mut Vec<Effect>) {
        if self.asking.has_result() && self.asking.is_answered() {
            self.record.want();
            self.ask(self.clock, effects);
        }
    }

    /// After a loss: repeats an ask that has no answer. A worker that was told of no work repeats its last one
    /// too, since work given meanwhile may be lost; its report has been counted.
    pub(crate) fn resume_asking(&mut self, effects: &mut Vec<Effect>) {
        let Some(mut ask) = self.asking.last.clone() else { return };
        if self.asking.answered {
            if !self.waits_for_work() && !self.asking.told_idle {
                return;
            }
            // Until it is answered, what was given can be on its way once more: nothing is returned before, or two would have it.
            ask.report = None;
            self.asking.answered = false;
            self.asking.last = Some(ask.clone());
        }
        self.asking.mark = self.coordinator_mark();
        self.send(self.settings.coordinator, ToServer::Ask(ask), effects);
    }

    /// Takes back what was reported and perhaps never heard, before all that was asked is forgotten. What is known to be heard stays
    /// where it is, since whoever joins again is not recognized by its reports.
    pub(crate) fn recover_reports(&mut self) {
        let heard = |worker: &Self, mark| {
            worker.sessions.get(&worker.settings.coordinator).is_some_and(|session| session.has_heard(mark))
        };
        if !self.asking.answered && !heard(self, self.asking.mark) {
            let report = self.asking.last.take().and_then(|ask| ask.report);
            report.iter().for_each(|report| self.record.recover(report));
        }
        for (evaluated, mark) in std::mem::take(&mut self.evaluated) {
            if let Some(report) = evaluated.report
                && !heard(self, mark)
            {
                self.record.recover(&report);
            }
        }
    }

    /// What [`Session::has_heard`](crate::session::Session::has_heard) takes, for a message to the coordinator that is sent now.
    pub(crate) fn coordinator_mark(&self) -> u64 {
        self.sessions.get(&self.settings.coordinator).map_or(0, |session| session.mark())
    }

    /// Whether there is nothing to do before the next work comes.
    pub(crate) fn waits_for_work(&self) -> bool {
        self.asking.has_begun()
            && self.asking.is_empty()
            && self.cycle.is_idle()
            && !self.evaluation.is_blocking()
    }

    /// Work has arrived.
    pub(crate) fn on_work(
        &mut self,
        server: ServerId,
        work: Work,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        if server != self.settings.coordinator {
            return Err(WorkerError::OutOfPlace { server, what: "work" });
        }
        if self.is_grouped() {
            return self.on_group_work(work, effects);
        }
        if !self.asking.has_begun() {
            return Err(WorkerError::OutOfPlace { server, what: "work before it was asked" });
        }
        if let Work::Batch { units, .. } = work
            && !(1..=self.settings.units_max).contains(&units)
        {
            return Err(WorkerError::OutOfPlace { server, what: "a batch of a size that no batch has" });
        }
        self.has_started = true;
        self.evaluated.clear();
        self.heard_entered(server);
        if let Work::Batch { batch, .. } = work
            && (self.asking.knows(batch) || self.cycle.holds(batch))
        {
            // What was given and not reported is sent again after a loss, whether it was lost or not. It answers nothing.
            return Ok(());
        }
        self.asking.answered = true;
        self.asking.told_idle = work == Work::Idle;
        let is_told = self.asking.queue.back().map_or(self.finished, |last| last.work == Work::Idle);
        if work == Work::Idle && is_told {
            return Ok(());
        }
        if self.asking.len() >= WORK_COUNT_MAX {
            return Err(WorkerError::OutOfPlace { server, what: "more work than was asked for" });
        }
        self.asking.queue.push_back(Queued { work, loaded: false });
        if let Work::Batch { batch, units, evaluate, .. } = work {
            effects.push(Effect::LoadBatch { batch, units });
            if evaluate.is_some() {
                // Beside the figures of the evaluation stand those of the training, which should not be older.
                self.record.want();
            }
        }
        Ok(())
    }
}
