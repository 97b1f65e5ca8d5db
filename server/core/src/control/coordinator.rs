//! The coordinator's part, on server 0: incarnations, work, the record of the run.

use std::collections::BTreeMap;

use slackline_core::consistency::PolicySpec;
use slackline_core::ids::{Clock, Incarnation, Moment, WorkerId};
use slackline_core::schedule::Cut;
use slackline_core::wire::{Ask, Evaluated, Join, Report, Work};

use crate::assign::{Assigner, Outcome, Plan};
use crate::record::Record;

/// What the coordinator is made from.
#[derive(Clone, Debug)]
pub struct CoordinatorSettings {
    /// The consistency policy: bsp hands out work clock by clock.
    pub policy: PolicySpec,
    /// How batches are cut.
    pub cut: Cut,
    /// Passes over the data.
    pub epochs: u64,
    /// Evaluate after so many epochs; zero for only at the end.
    pub evaluate_every_epochs: f64,
    /// Mean loss of a model that knows nothing.
    pub blind_loss: f64,
}

/// The training data, as the first worker described it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Data {
    hash: u64,
    sample_count: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Coordinator {
    settings: CoordinatorSettings,
    data: Option<Data>,
    assigner: Option<Assigner>,
    record: Option<Record>,
    incarnations: Incarnation,
    /// Iterations each member is known to have completed.
    clocks: BTreeMap<WorkerId, Clock>,
    /// The minimum of the clocks when somebody was last there.
    minimum: Clock,
    /// The last ask of each member.
    asks: BTreeMap<WorkerId, Ask>,
    /// The last evaluation of each member.
    evaluated: BTreeMap<WorkerId, u64>,
}

impl Coordinator {
    pub(super) const fn new(settings: CoordinatorSettings) -> Self {
        Self {
            settings,
            data: None,
            assigner: None,
            record: None,
            incarnations: Incarnation(0),
            clocks: BTreeMap::new(),
            minimum: Clock(0),
            asks: BTreeMap::new(),
            evaluated: BTreeMap::new(),
        }
    }

    /// Takes note of a joiner's data; the first one decides, the others must agree.
    pub(super) fn agree_on_data(&mut self, join: &Join) -> Result<(), String> {
        let theirs = Data { hash: join.data_hash, sample_count: join.sample_count };
        match self.data {
            Some(ours) if ours != theirs => Err(format!(
                "the worker's training data differ: {} samples (fingerprint {:016x}), the run has {} ({:016x}); give all \
                 workers the same data",
                theirs.sample_count, theirs.hash, ours.sample_count, ours.hash
            )),
            Some(_) => Ok(()),
            None if theirs.sample_count == 0 => Err("the worker has no training samples".to_owned()),
            None => {
                self.data = Some(theirs);
                let settings = &self.settings;
                let sample_total = theirs.sample_count.saturating_mul(settings.epochs);
                let every = (settings.evaluate_every_epochs * theirs.sample_count as f64) as u64;
                self.assigner = Some(Assigner::new(Plan {
                    cut: settings.cut,
                    sample_total,
                    evaluate_every: every,
                    ordered: settings.policy.is_ordered(),
                }));
                self.record = Some(Record::new(theirs.sample_count, sample_total, settings.blind_loss));
                Ok(())
            }
        }
    }

    /// The next worker says anew what the data are.
    pub(super) fn forget_data(&mut self) {
        (self.data, self.assigner, self.record) = (None, None, None);
    }

    pub(super) fn batches_left(&self) -> u64 {
        self.assigner.as_ref().map_or(0, |assigner| assigner.units_left())
    }

    pub(super) fn next_incarnation(&mut self) -> Incarnation {
        self.incarnations = self.incarnations.next();
        self.incarnations
    }

    pub(super) fn enter(&mut self, worker: WorkerId, clock: Clock) {
        self.clocks.insert(worker, clock);
        if let Some(record) = &mut self.record {
            record.enter();
        }
        if let Some(assigner) = &mut self.assigner {
            assigner.enter(worker);
        }
    }

    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.minimum = self.minimum();
        self.clocks.remove(&worker);
        self.asks.remove(&worker);
        self.evaluated.remove(&worker);
        if let Some(assigner) = &mut self.assigner {
            assigner.forget(worker);
        }
    }

    pub(super) fn reconnect(&mut self, worker: WorkerId) {
        if let Some(assigner) = &mut self.assigner {
            assigner.reconnect(worker);
        }
    }

    pub(super) fn begin(&mut self) {
        if let Some(assigner) = &mut self.assigner {
            assigner.begin();
        }
    }

    /// Workers that have asked for work and were not given any.
    pub(super) fn asking(&self) -> u32 {
        self.assigner.as_ref().map_or(0, Assigner::asking)
    }

    pub(super) fn report(&mut self, now: Moment, worker: WorkerId, report: Option<&Report>) {
        let clock = self.clock_of(worker).unwrap_or(self.minimum);
        if let (Some(record), Some(report)) = (&mut self.record, report) {
            record.report(now, (worker, clock), report);
        }
    }

    /// Takes an ask, and returns the work of a repeated one. An ask that a reconnected worker sends again counts its report once.
    pub(super) fn ask(&mut self, now: Moment, worker: WorkerId, ask: &Ask) -> Vec<Work> {
        if self.asks.get(&worker) != Some(ask) {
            self.report(now, worker, ask.report.as_ref());
            self.asks.insert(worker, ask.clone());
        }
        let Ask { clock, done, returned, compute_us, .. } = *ask;
        // Work for clock c is asked for while clock c - 1 is being computed: c - 1 iterations are complete.
        if let Some(known) = self.clocks.get_mut(&worker) {
            *known = (*known).max(Clock(clock.0.saturating_sub(1)));
        }
        let Some(assigner) = &mut self.assigner else { return Vec::new() };
        assigner.ask(worker, clock, Outcome { done, returned, compute_us })
    }

    /// Takes the result of an evaluation; false when it is known already.
    pub(super) fn evaluated(&mut self, now: Moment, worker: WorkerId, evaluated: &Evaluated) -> bool {
        let is_new = self.evaluated.insert(worker, evaluated.at_samples) != Some(evaluated.at_samples);
        if is_new {
            self.report(now, worker, evaluated.report.as_ref());
        }
        let (Some(assigner), Some(record)) = (&mut self.assigner, &mut self.record) else { return false };
        // One that is known comes again when the word that the run is over was lost.
        let is_wanted = assigner.evaluated(worker, evaluated.at_samples);
        if is_wanted {
            record.evaluated(now, evaluated);
        }
        is_wanted
    }

    pub(super) fn settle(&mut self, now: Moment) -> Vec<(WorkerId, Work)> {
        let (clocks, last) = (&self.clocks, self.minimum);
        let minimum = || clocks.values().min().copied().unwrap_or(last);
        let (Some(assigner), Some(record)) = (&mut self.assigner, &mut self.record) else {
            return Vec::new();
        };
        let mut grants = Vec::new();
        assigner.settle(minimum, &mut grants);
        record.done(assigner.batches_done(), assigner.samples_done());
        if !grants.is_empty() {
            record.begin(now);
        }
        if assigner.is_trained() && assigner.batches_done() > 0 {
            record.end(now);
        }
        grants
    }

    /// The smallest clock known of a member; the last one known when nobody is there.
    pub(super) fn minimum(&self) -> Clock {
        self.clocks.values().min().copied().unwrap_or(self.minimum)
    }

    pub(super) fn clock_of(&self, worker: WorkerId) -> Option<Clock> {
        self.clocks.get(&worker).copied()
    }

    pub(super) fn is_over(&self) -> bool {
        self.assigner.as_ref().is_some_and(Assigner::is_over)
    }

    pub(super) const fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    pub(super) fn batches_repeated(&self) -> u64 {
        self.assigner.as_ref().map_or(0, Assigner::repeated)
    }

    pub(super) fn check_invariants(&self) {
        if let Some(assigner) = &self.assigner {
            assigner.check_invariants();
        }
    }
}
