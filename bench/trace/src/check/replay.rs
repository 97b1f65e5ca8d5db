//! One shard's trace, record by record: who is a member, and where the rest is looked at.

use std::collections::BTreeMap;

use slackline_core::consistency::Standing;
use slackline_core::ids::{Incarnation, ServerId, ShardId, WorkerId};
use slackline_core::trace::{Header, Record, What};

use super::applies::Group;
use super::clocks::Clocks;
use super::promise::Promise;
use super::writes::Arrived;
use crate::breach::{Breach, Law};
use crate::numbers::Numbers;

/// Breaches of one shard that are kept with their records; more are counted.
const BREACHES_MAX: usize = 100;

/// A worker in one of its lives.
pub(super) type Name = (WorkerId, Incarnation);

/// What became of the pushes of one life of a worker, by their numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    /// Taken in.
    pub(super) arrived: Numbers,
    /// In the values, or left out for good.
    pub(super) settled: Numbers,
    /// Of these, in the values or about to be.
    pub(super) used: Numbers,
    /// Turned away.
    pub(super) refused: Numbers,
    /// The last that arrived, for reports.
    pub(super) last: Option<Record>,
}

/// What a shard did, in figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) records: u64,
    pub(super) served: u64,
    pub(super) held: u64,
    pub(super) pushes: u64,
    pub(super) applied: u64,
    pub(super) dropped: u64,
    pub(super) repeated: u64,
    pub(super) versions: u64,
    pub(super) lead_max: u64,
    pub(super) staleness_sum: u128,
    pub(super) staleness_max: u64,
}

/// A shard as its trace tells it.
#[derive(Debug)]
pub(super) struct Replay {
    server: ServerId,
    shard: ShardId,
    pub(super) promise: Promise,
    /// Iterations that values may be pulled ahead.
    pub(super) prefetch: u64,
    pub(super) policy: String,
    pub(super) clocks: Clocks,
    pub(super) started: bool,
    pub(super) has_values: bool,
    pub(super) version: u64,
    /// The push whose verdict comes next.
    pub(super) arriving: Option<Arrived>,
    /// Pushes that are kept until others are there, by life and number.
    pub(super) waiting: BTreeMap<(WorkerId, Incarnation, u64), Arrived>,
    /// Pushes that are kept aside until all shards have their piece of the step: they do not count yet.
    pub(super) staged: BTreeMap<(WorkerId, Incarnation, u64), Arrived>,
    /// The apply that is being told.
    pub(super) group: Option<Group>,
    /// The worker whose push the present event brought.
    pub(super) came: Option<Name>,
    /// The floor before the present event: the clock that was open then.
    pub(super) open: u64,
    /// The last clock of which the mean was applied.
    pub(super) closed: Option<u64>,
    pub(super) lives: BTreeMap<Name, Life>,
    pub(super) figures: Figures,
    pub(super) breaches: Vec<Breach>,
    pub(super) breach_count: u64,
}

impl Replay {
    pub(super) fn new(header: &Header) -> Self {
        Self {
            server: header.server,
            shard: header.shard,
            promise: Promise::of(header.rule),
            prefetch: u64::from(header.prefetch),
            policy: header.policy.clone(),
            clocks: Clocks::default(),
            started: false,
            has_values: false,
            version: 0,
            arriving: None,
            waiting: BTreeMap::new(),
            staged: BTreeMap::new(),
            group: None,
            came: None,
            open: 0,
            closed: None,
            lives: BTreeMap::new(),
            figures: Figures::default(),
            breaches: Vec::new(),
            breach_count: 0,
        }
    }

    /// Takes the next record in.
    pub(super) fn take(&mut self, record: Record) {
        self.figures.records += 1;
        if self.group.as_ref().is_some_and(|group| !group.goes_on_with(&record)) {
            self.end_group();
        }
        let is_event = !matches!(record.what, What::Verdict { .. } | What::Serve { .. } | What::Mean);
        if is_event && !matches!(record.what, What::Full) {
            self.end_push();
            (self.open, self.came) = (self.clocks.floor, None);
        }
        match (record.what, record.worker) {
            (What::Enter(standing), Some(worker)) => self.enter(record, worker, standing),
            (What::Reenter, Some(worker)) => self.clocks.reenter(worker, record),
            (What::Finish, Some(worker)) => self.clocks.finish(worker),
            (What::Remove, Some(worker)) => self.clocks.remove(worker),
            (What::Start, _) => self.started = true,
            (What::Values, _) => self.has_values = true,
            (What::Pull { reading, fate, ahead }, _) => self.pull(record, reading, fate, ahead),
            (What::Serve { reading, lead }, _) => self.serve(record, reading, lead),
            (What::Push { empty }, Some(worker)) => self.push(record, worker, empty),
            (What::Verdict { verdict, duplicate }, Some(worker)) => {
                self.verdict(record, worker, verdict, duplicate);
            }
            (What::Mean, _) => self.mean(record),
            (What::Full | What::End, _) => {}
            (_, None) => self.breach(Law::Membership, &[record], "a record of nobody".to_owned()),
        }
        self.raise_floor();
    }

    /// The trace is at its end. One that was cut may lack what belongs to its last event.
    pub(super) fn end(&mut self, is_whole: bool) {
        if is_whole {
            self.end_group();
            self.end_push();
        }
    }

    /// What every reader can count on never falls.
    fn raise_floor(&mut self) {
        let reached = match self.promise.applies {
            // Rounds are counted, not clocks; each makes a version.
            super::promise::Applies::Quorum { .. } => Some(self.version),
            _ => self.clocks.minimum_without(self.promise.reads.late),
        };
        self.clocks.floor = self.clocks.floor.max(reached.unwrap_or(0));
    }

    fn enter(&mut self, record: Record, worker: WorkerId, standing: Standing) {
        if self.started && standing == Standing::Active {
            let why = format!("{worker} joined a running run and gates others before its first push");
            self.breach(Law::JoinerGates, &[record], why);
        }
        if !self.clocks.enter(worker, record, standing) {
            let why = format!("{worker} entered as {}, which is not later than before", record.incarnation);
            self.breach(Law::Incarnation, &[record], why);
        }
    }

    pub(super) fn life(&mut self, worker: WorkerId, incarnation: Incarnation) -> &mut Life {
        self.lives.entry((worker, incarnation)).or_default()
    }

    /// A law was broken.
    pub(super) fn breach(&mut self, law: Law, events: &[Record], why: String) {
        self.breach_count += 1;
        if self.breaches.len() < BREACHES_MAX {
            let (server, shard) = (self.server, self.shard);
            self.breaches.push(Breach { law, server, shard, why, events: events.to_vec() });
        }
    }
}
