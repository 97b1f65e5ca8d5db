//! The coordinator's part, on server 0: incarnations, work, the record of the run.

mod cuts;

use std::collections::BTreeMap;

use bincode::{Decode, Encode};
use slackline_core::consistency::PolicySpec;
use slackline_core::ids::{BatchIndex, Clock, Incarnation, Moment, WorkerId};
use slackline_core::limits::{GROUP_COUNT_MAX, WORKER_COUNT_MAX};
use slackline_core::schedule::Cut;
use slackline_core::wire::{Ask, Evaluated, Join, RefusalCode, Report, Stepped, Text, Work};

use super::clocks::Clocks;
use super::group::{AllreduceSettings, Claim, Gone, Groups};
use crate::assign::{Assigner, Plan, Position, Repeat, Repeats, Why};
use crate::record::Record;
use cuts::Saved;
pub(super) use cuts::WentBack;

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
    /// The allreduce; none where workers push to servers.
    pub sync: Option<AllreduceSettings>,
    /// Copies of each shard.
    pub replicas: u32,
    /// Whether somebody stores the maps of shards: nobody is told of one before. Without, a coordinator cannot be restarted.
    pub keeps_map: bool,
    /// Clocks between two checkpoints; none for no checkpoints.
    pub checkpoint_every: Option<u64>,
    /// Where the run goes on.
    pub resume: Option<Position>,
}

/// Why an allreduce takes nobody in.
pub(super) const HAS_ALL: &str =
    "the run has all its workers: an allreduce takes others in only with sync.elastic = true";

/// The training data, as the first worker described it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
struct Data {
    hash: u64,
    sample_count: u64,
}

/// What a coordinator that is restarted has of the one before. An allreduce is not among it.
#[derive(Clone, Debug, Encode, Decode)]
pub(super) struct Kept {
    /// Where the run went on when it began: there are newer checkpoints since.
    resume: Option<Position>,
    data: Option<Data>,
    assigner: Option<Assigner>,
    record: Option<Record>,
    incarnations: Incarnation,
    clocks: BTreeMap<WorkerId, Clock>,
    minimum: Clock,
    asks: BTreeMap<WorkerId, Ask>,
    evaluated: BTreeMap<WorkerId, u64>,
    saved: Saved,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Coordinator {
    settings: CoordinatorSettings,
    data: Option<Data>,
    assigner: Option<Assigner>,
    /// The allreduce. Where it is there, nothing is assigned: who computes what follows from the place in the group.
    pub(super) groups: Option<Groups>,
    record: Option<Record>,
    incarnations: Incarnation,
    /// Iterations each member is known to have completed.
    clocks: Clocks,
    /// The minimum of the clocks when somebody was last there.
    minimum: Clock,
    /// The last ask of each member.
    asks: BTreeMap<WorkerId, Ask>,
    /// The last evaluation of each member.
    evaluated: BTreeMap<WorkerId, u64>,
    /// Where the data stand in checkpoints of this run.
    saved: Saved,
}

impl Coordinator {
    /// The coordinator of a run that begins with so many workers; `run` is a number that another run does not have.
    pub(super) fn new(settings: CoordinatorSettings, run: u64, workers: u32, least: Option<u32>) -> Self {
        Self {
            groups: settings.sync.map(|sync| Groups::new(sync, run, workers, least)),
            data: None,
            assigner: None,
            record: None,
            incarnations: settings.resume.as_ref().map_or(Incarnation(0), |position| position.incarnation),
            clocks: Clocks::default(),
            minimum: settings.resume.as_ref().map_or(Clock(0), |position| position.clock),
            settings,
            asks: BTreeMap::new(),
            evaluated: BTreeMap::new(),
            saved: Saved::default(),
        }
    }

    /// What is kept over a restart; none where there is an allreduce.
    pub(super) fn kept(&self) -> Option<Kept> {
        if self.groups.is_some() {
            return None;
        }
        Some(Kept {
            resume: self.settings.resume.clone(),
            data: self.data,
            assigner: self.assigner.clone(),
            record: self.record.clone(),
            incarnations: self.incarnations,
            clocks: self.clocks.iter().collect(),
            minimum: self.minimum,
            asks: self.asks.clone(),
            evaluated: self.evaluated.clone(),
            saved: self.saved.clone(),
        })
    }

    /// The coordinator of the run that this was kept of.
    pub(super) fn take_up(&mut self, kept: Kept) {
        let Kept { resume, data, assigner, record, incarnations, clocks, minimum, asks, evaluated, saved } =
            kept;
        self.settings.resume = resume;
        (self.data, self.assigner, self.record) = (data, assigner, record);
        (self.incarnations, self.clocks, self.minimum) =
            (incarnations, clocks.into_iter().collect(), minimum);
        (self.asks, self.evaluated, self.saved) = (asks, evaluated, saved);
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
                let settings = &self.settings;
                let sample_total = theirs.sample_count.saturating_mul(settings.epochs);
                let every = (settings.evaluate_every_epochs * theirs.sample_count as f64) as u64;
                let plan = Plan {
                    cut: settings.cut,
                    sample_total,
                    evaluate_every: every,
                    ordered: settings.policy.is_ordered(),
                };
                let record = Record::new(theirs.sample_count, sample_total, settings.blind_loss);
                let record = settings.resume.iter().fold(record, Record::resume);
                let resumed = settings.resume.as_ref().map(|position| Assigner::resume(plan, position));
                let assigner = resumed.transpose().map_err(|error| error.to_string())?;
                self.data = Some(theirs);
                self.record = Some(match &mut self.groups {
                    Some(groups) => {
                        groups.set_plan(Some(plan));
                        record.of_allreduce()
                    }
                    None => {
                        self.assigner = Some(assigner.unwrap_or_else(|| Assigner::new(plan)));
                        record
                    }
                });
                Ok(())
            }
        }
    }

    /// The next worker says anew what the data are.
    pub(super) fn forget_data(&mut self) {
        (self.data, self.assigner, self.record) = (None, None, None);
        if let Some(groups) = &mut self.groups {
            groups.set_plan(None);
        }
    }

    pub(super) fn batches_left(&self) -> u64 {
        let left = self.groups.as_ref().map(Groups::units_left);
        left.or_else(|| Some(self.assigner.as_ref()?.units_left())).unwrap_or(0)
    }

    pub(super) fn next_incarnation(&mut self) -> Incarnation {
        self.incarnations = self.incarnations.next();
        self.incarnations
    }

    /// Most members at once.
    pub(super) const fn workers_max(&self) -> u32 {
        if self.groups.is_some() { GROUP_COUNT_MAX } else { WORKER_COUNT_MAX }
    }

    /// Whether another worker can take part, in an allreduce that has `started` or not.
    pub(super) fn has_room(&self, started: bool) -> Result<(), Claim> {
        match &self.groups {
            Some(groups) if groups.is_trained() => {
                Err((RefusalCode::RunOver, "the run is complete".to_owned()))
            }
            Some(groups) if started && !groups.is_elastic() => Err((RefusalCode::Full, HAS_ALL.to_owned())),
            _ => Ok(()),
        }
    }

    /// A worker of an allreduce has joined and is reached there.
    pub(super) fn joined(&mut self, worker: WorkerId, incarnation: Incarnation, address: Text) {
        if let Some(groups) = &mut self.groups {
            groups.joined(worker, incarnation, address);
        }
    }

    pub(super) fn enter(&mut self, worker: WorkerId, clock: Clock) {
        self.clocks.insert(worker, clock);
        if let Some(record) = &mut self.record {
            record.enter();
        }
        if let Some(assigner) = &mut self.assigner {
            assigner.enter(worker);
        }
        if let Some(groups) = &mut self.groups {
            groups.enter(worker);
        }
    }

    pub(super) fn forget(&mut self, now: Moment, worker: WorkerId, gone: &Gone) {
        self.minimum = self.minimum();
        if let Some(groups) = &mut self.groups {
            groups.remove(now, worker, gone);
        }
        self.clocks.remove(worker);
        self.asks.remove(&worker);
        self.evaluated.remove(&worker);
        if let Some(assigner) = &mut self.assigner {
            assigner.forget(worker);
        }
    }

    /// A worker goes politely: what it was given and no shard has anything of is just handed out again, all but `unheard`.
    pub(super) fn give_back(&mut self, worker: WorkerId, unheard: Option<BatchIndex>) {
        if let Some(assigner) = &mut self.assigner {
            assigner.give_back(worker, unheard);
        }
    }

    pub(super) fn reconnect(&mut self, worker: WorkerId) {
        if let Some(assigner) = &mut self.assigner {
            assigner.reconnect(worker);
        }
        if let Some(groups) = &mut self.groups {
            groups.reconnect(worker);
        }
    }

    pub(super) fn begin(&mut self) {
        if let Some(assigner) = &mut self.assigner {
            assigner.begin();
        }
        if let Some(groups) = &mut self.groups {
            groups.begin();
        }
    }

    /// Workers that have asked for work and were not given any, or wait for a group.
    pub(super) fn asking(&self) -> u32 {
        if let Some(groups) = &self.groups {
            return groups.ready_count();
        }
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
        let clock = ask.clock;
        // Work for clock c is asked for while clock c - 1 is being computed: c - 1 iterations are complete.
        self.clocks.raise(worker, Clock(clock.0.saturating_sub(1)));
        let Some(assigner) = &mut self.assigner else { return Vec::new() };
        assigner.ask(worker, clock, &ask.results)
    }

    /// Takes what a member of a group says of its way; a word that comes again counts once.
    pub(super) fn stepped(&mut self, now: Moment, worker: WorkerId, stepped: &Stepped) -> Result<(), Claim> {
        let Some(groups) = &mut self.groups else { return Ok(()) };
        if groups.stepped(now, worker, stepped)? {
            self.report(now, worker, stepped.report.as_ref());
        }
        Ok(())
    }

    /// Takes the result of an evaluation; false when it is known already.
    pub(super) fn evaluated(
        &mut self,
        now: Moment,
        worker: WorkerId,
        evaluated: &Evaluated,
    ) -> Result<bool, Claim> {
        let is_new = self.evaluated.insert(worker, evaluated.at_samples) != Some(evaluated.at_samples);
        if is_new {
            self.report(now, worker, evaluated.report.as_ref());
        }
        // One that is known comes again when the word that the run is over was lost.
        let is_wanted = match (&mut self.groups, &mut self.assigner) {
            (Some(groups), _) => groups.evaluated(worker, evaluated.at_samples)?,
            (None, Some(assigner)) => assigner.evaluated(worker, evaluated.at_samples),
            (None, None) => false,
        };
        if let Some(record) = self.record.as_mut().filter(|_| is_wanted) {
            record.evaluated(now, evaluated);
        }
        Ok(is_wanted)
    }

    /// Forms and dissolves groups, and keeps their figures.
    pub(super) fn settle_groups(&mut self, now: Moment) {
        let (Some(groups), Some(record)) = (&mut self.groups, &mut self.record) else { return };
        groups.settle(now);
        let (units, samples) = groups.done();
        record.done(units, samples);
        if groups.has_worked() {
            record.begin(now);
        }
        if groups.is_trained() {
            record.end(now);
        } else {
            record.reopen();
        }
        for recovery in groups.take_recoveries() {
            record.recovered(recovery);
        }
        if let Some(why) = groups.chosen() {
            record.chose(why);
        }
    }

    pub(super) fn settle(&mut self, now: Moment) -> Vec<(WorkerId, Work)> {
        let (clocks, last) = (&self.clocks, self.minimum);
        let minimum = || clocks.minimum().unwrap_or(last);
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
        if self.groups.is_some() {
            // Where a worker of an allreduce enters is said with its group.
            return Clock(0);
        }
        self.clocks.minimum().unwrap_or(self.minimum)
    }

    pub(super) fn clock_of(&self, worker: WorkerId) -> Option<Clock> {
        match &self.groups {
            Some(groups) => groups.clock_of(worker),
            None => self.clocks.get(worker),
        }
    }

    /// The iterations that a worker is known to have had its part in.
    pub(super) fn lost_after(&self, worker: WorkerId) -> Option<Clock> {
        match &self.groups {
            Some(groups) => Some(groups.lost_after(worker)),
            None => self.clock_of(worker),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.groups.as_ref().is_some_and(Groups::is_over)
            || self.assigner.as_ref().is_some_and(Assigner::is_over)
    }

    pub(super) const fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    pub(super) fn batches_repeated(&self) -> u64 {
        let units = self.groups.as_ref().map(Groups::repeated);
        units.or_else(|| self.assigner.as_ref().map(Assigner::repeated)).unwrap_or(0)
    }

    /// A worker is gone: takes note of the samples that it had. Called before [`Self::forget`].
    pub(super) fn note_gone(&mut self, worker: WorkerId, why: Why) -> Vec<Repeat> {
        self.assigner.as_mut().map_or_else(Vec::new, |assigner| assigner.note_gone(worker, why))
    }

    /// Samples that were given out again.
    pub(super) fn repeats(&self) -> Option<&Repeats> {
        self.assigner.as_ref().map(Assigner::repeats)
    }

    /// Whether too few workers are there for work to be handed out.
    pub(super) fn pause(&mut self, paused: bool) {
        if let Some(assigner) = &mut self.assigner {
            assigner.pause(paused);
        }
    }

    /// Whether workers have anything to do but to leave.
    pub(super) fn is_at_the_end(&self) -> bool {
        let groups = self.groups.as_ref().map(Groups::is_trained);
        groups.or_else(|| self.assigner.as_ref().map(Assigner::is_at_the_end)).unwrap_or(false)
    }

    pub(super) fn check_invariants(&self) {
        if let Some(assigner) = &self.assigner {
            assigner.check_invariants();
        }
        if let Some(groups) = &self.groups {
            groups.check_invariants();
        }
    }
}
