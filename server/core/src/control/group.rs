//! The groups of an allreduce, at the coordinator: who averages with whom, from which iteration on.
//!
//! There is one group at a time. It is formed when nobody is in one any more and those who are there have said [`Ready`]; it is
//! dissolved when a member is in trouble, lost, or when somebody new is ready. The next group goes on from the last iteration that
//! a member has completed: what others lack they get from that member.
//!
//! All that members are told is derived from where they stand ([`Groups::tell`]), so a word that was lost with its connection
//! comes again with the next one. What members say of themselves is checked against what is possible (`claims`). Who belongs to
//! the next group, and how its members are arranged, is decided in `forming`; what becomes of a run that loses a member, in
//! `losses`; and of one that a worker joins whom the others cannot meet, in `newcomers`.

mod claims;
mod forming;
mod losses;
mod newcomers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use slackline_core::collective::Topology;
use slackline_core::collective::cost::Rates;
use slackline_core::ids::{Clock, Generation, Incarnation, Moment, WorkerId};
use slackline_core::wire::{Group, LinkFigures, Stepped, Text, ToPeer, Work};

pub(super) use claims::Claim;
pub(super) use losses::Gone;
use losses::Loss;
use newcomers::Spoilt;

use crate::assign::Plan;
use crate::notice::Notice;
use crate::record::Recovery;

/// What the groups of an allreduce are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllreduceSettings {
    /// How members are arranged; auto is chosen from what they measure.
    pub topology: Topology,
    /// Whether the run goes on without a member that is lost, and takes new ones.
    pub elastic: bool,
    /// Bytes of a bucket, on average. What an allreduce costs is linear in its bytes, so a topology that is best for it is best for
    /// all buckets together.
    pub bucket_bytes: u64,
}

/// Where a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It has said nothing yet.
    Arriving,
    /// It is in no group and waits for one.
    Ready,
    /// It is in the newest group, or owes its word that it knows of the end of that group.
    Grouped,
}

/// One member.
#[derive(Clone, Debug)]
struct Party {
    incarnation: Incarnation,
    address: Text,
    standing: Standing,
    /// Iterations in its values, as it says.
    clock: Clock,
    /// Units that those stand for.
    units: u64,
    /// Its values are of the line of iterations that the run goes on with. Those of a worker that had been lost need not be.
    holds: bool,
    /// It counted as many iterations as its group began with, perhaps of another line: what it says when the group ends does not
    /// show whether it got the right values.
    is_doubtful: bool,
    measured: Option<LinkFigures>,
    /// Its last word of that kind: one that comes again counts once.
    stepped: Option<Stepped>,
    /// It was in a group.
    served: bool,
    /// It was in a group that has completed an iteration: the others have met it.
    has_stepped: bool,
    /// What it has spoilt as a newcomer.
    spoilt: Option<Spoilt>,
    /// The next group is formed without it.
    is_aside: bool,
    /// It has said that it goes, with all done.
    leaves: bool,
    /// The newest group was told to it, over its present session.
    told_group: bool,
    /// So was its end.
    told_end: bool,
    /// So was the end of the run.
    told_over: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    settings: AllreduceSettings,
    /// The run's number, for its workers to know each other by.
    run: u64,
    /// Members without which no group begins: those that the run begins with, for the first one.
    workers: u32,
    /// Members without which no later group begins.
    least: u32,
    plan: Option<Plan>,
    begun: bool,
    /// Where those are reached who have joined and not registered yet.
    joined: BTreeMap<WorkerId, (Incarnation, Text)>,
    parties: BTreeMap<WorkerId, Party>,
    /// The newest group.
    group: Option<Group>,
    /// Whether it is not dissolved.
    is_open: bool,
    /// Whether it has completed an iteration.
    is_proven: bool,
    dissolved: Moment,
    /// Units that are complete.
    done: u64,
    /// Units that were complete and lost with the only worker that had them.
    repeated: u64,
    /// Groups in a row that ended in trouble before their first iteration.
    barren: u32,
    /// Groups that were made to measure.
    measurings: u32,
    rates: Option<Rates>,
    chosen: Option<(Topology, String)>,
    /// A group that is to work was formed.
    has_worked: bool,
    losses: Vec<Loss>,
    recoveries: Vec<Recovery>,
    evaluations: BTreeSet<u64>,
    has_final: bool,
    /// Those who came too late for a run that has all its workers.
    surplus: Vec<WorkerId>,
    /// Newcomers that the others cannot meet, and why.
    unreachable: Vec<(WorkerId, String)>,
    notices: Vec<Notice>,
    failure: Option<String>,
}

impl Groups {
    pub(super) fn new(settings: AllreduceSettings, run: u64, workers: u32, least: Option<u32>) -> Self {
        Self {
            settings,
            run,
            workers: least.unwrap_or(workers),
            least: least.unwrap_or(1),
            plan: None,
            begun: false,
            joined: BTreeMap::new(),
            parties: BTreeMap::new(),
            group: None,
            is_open: false,
            is_proven: false,
            dissolved: Moment(0),
            done: 0,
            repeated: 0,
            barren: 0,
            measurings: 0,
            rates: None,
            chosen: None,
            has_worked: false,
            losses: Vec::new(),
            recoveries: Vec::new(),
            evaluations: BTreeSet::new(),
            has_final: false,
            surplus: Vec::new(),
            unreachable: Vec::new(),
            notices: Vec::new(),
            failure: None,
        }
    }

    /// What is to be done, once a worker has said how much data there are; none when that is forgotten.
    pub(super) fn set_plan(&mut self, plan: Option<Plan>) {
        self.plan = plan;
    }

    /// As many workers as the run begins with are ready.
    pub(super) fn begin(&mut self) {
        self.begun = true;
    }

    /// A worker has joined and is reached there.
    pub(super) fn joined(&mut self, worker: WorkerId, incarnation: Incarnation, address: Text) {
        self.joined.insert(worker, (incarnation, address));
    }

    /// A worker has registered for the first time.
    pub(super) fn enter(&mut self, worker: WorkerId) {
        let Some((incarnation, address)) = self.joined.remove(&worker) else { return };
        let party = Party {
            incarnation,
            address,
            standing: Standing::Arriving,
            clock: Clock(0),
            units: 0,
            holds: false,
            is_doubtful: false,
            measured: None,
            stepped: None,
            served: false,
            has_stepped: false,
            spoilt: None,
            is_aside: false,
            leaves: false,
            told_group: false,
            told_end: false,
            told_over: false,
        };
        self.parties.insert(worker, party);
    }

    /// A worker is here over a new session: what was sent over the former one can be lost.
    pub(super) fn reconnect(&mut self, worker: WorkerId) {
        if let Some(party) = self.parties.get_mut(&worker) {
            (party.told_group, party.told_end, party.told_over) = (false, false, false);
        }
    }

    /// What members must know and were not told over their present session: their group, its end, the end of the run. One that
    /// missed a group and its end is told both, so that it answers the end of a group that it knows.
    pub(super) fn tell(&mut self, is_connected: impl Fn(WorkerId) -> bool) -> Vec<(WorkerId, ToPeer)> {
        let mut told = Vec::new();
        let is_over =
            self.is_over() && self.is_open && !self.parties.values().any(|party| self.lacks_units(party));
        let is_inside = |party: &Party| party.standing == Standing::Grouped && !party.leaves;
        let is_left = self.is_over() && !self.parties.values().any(is_inside);
        let Some(group) = &self.group else { return told };
        for (worker, party) in &mut self.parties {
            if is_left && party.standing == Standing::Ready && is_connected(*worker) {
                // It waits for a group, and nobody is left who could be in one with it or needs one.
                if !std::mem::replace(&mut party.told_over, true) {
                    told.push((*worker, ToPeer::Work(Work::Done)));
                }
                continue;
            }
            if party.standing != Standing::Grouped || party.leaves || !is_connected(*worker) {
                continue;
            }
            if !std::mem::replace(&mut party.told_group, true) {
                told.push((*worker, ToPeer::Group(group.clone())));
            }
            if !self.is_open && !std::mem::replace(&mut party.told_end, true) {
                told.push((*worker, ToPeer::Regroup { generation: group.generation }));
            }
            if is_over && !std::mem::replace(&mut party.told_over, true) {
                told.push((*worker, ToPeer::Work(Work::Done)));
            }
        }
        told
    }

    /// Whether a member of the newest group has not completed all: it needs the others.
    fn lacks_units(&self, party: &Party) -> bool {
        party.standing == Standing::Grouped && !party.leaves && party.units < self.unit_count()
    }

    /// The number of the newest group; zero before the first.
    fn generation(&self) -> Generation {
        self.group.as_ref().map_or(Generation(0), |group| group.generation)
    }

    /// Whether the newest group only measures.
    fn is_measuring(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.topology == Topology::Auto)
    }

    /// Units of the run.
    fn unit_count(&self) -> u64 {
        self.plan.map_or(0, |plan| plan.unit_count())
    }

    /// Whether all units are complete.
    pub(super) fn is_trained(&self) -> bool {
        self.plan.is_some() && self.done == self.unit_count()
    }

    /// Whether all units are complete and the final evaluation is in.
    pub(super) fn is_over(&self) -> bool {
        self.is_trained() && self.has_final
    }

    pub(super) const fn is_elastic(&self) -> bool {
        self.settings.elastic
    }

    pub(super) const fn has_worked(&self) -> bool {
        self.has_worked
    }

    /// Members that wait for a group.
    pub(super) fn ready_count(&self) -> u32 {
        self.parties.values().filter(|party| party.standing == Standing::Ready).count() as u32
    }

    pub(super) fn clock_of(&self, worker: WorkerId) -> Option<Clock> {
        self.parties.get(&worker).map(|party| party.clock)
    }

    /// Units that are complete, with their samples.
    pub(super) fn done(&self) -> (u64, u64) {
        (self.done, self.plan.map_or(0, |plan| plan.samples_before(self.done)))
    }

    pub(super) fn units_left(&self) -> u64 {
        self.unit_count().saturating_sub(self.done)
    }

    pub(super) const fn repeated(&self) -> u64 {
        self.repeated
    }

    /// The topology that was chosen last, and why.
    pub(super) fn chosen(&self) -> Option<&str> {
        self.chosen.as_ref().map(|(_, why)| why.as_str())
    }

    pub(super) fn take_recoveries(&mut self) -> Vec<Recovery> {
        std::mem::take(&mut self.recoveries)
    }

    pub(super) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    pub(super) fn take_surplus(&mut self) -> Vec<WorkerId> {
        std::mem::take(&mut self.surplus)
    }

    /// Why the run cannot go on.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// What a dissolved group waits for.
    pub(super) fn wait(&self, now: Moment) -> Option<(Generation, Vec<WorkerId>, Duration)> {
        let owes = |party: &Party| party.standing == Standing::Grouped && !party.leaves;
        let missing: Vec<WorkerId> =
            self.parties.iter().filter(|(_, party)| owes(party)).map(|(worker, _)| *worker).collect();
        let generation = self.generation();
        let waits = self.begun && !self.is_open && !missing.is_empty();
        waits.then(|| (generation, missing, now.since(self.dissolved)))
    }

    /// What must hold after every event.
    pub(super) fn check_invariants(&self) {
        assert!(self.done <= self.unit_count() || self.plan.is_none(), "more is done than there is");
        let Some(group) = &self.group else { return };
        for (worker, party) in &self.parties {
            let is_member = group
                .members
                .iter()
                .any(|member| (member.worker, member.incarnation) == (*worker, party.incarnation));
            assert!(party.standing != Standing::Grouped || is_member, "{worker} is in a group without it");
            assert!(party.units <= self.unit_count(), "{worker} has more than there is");
            assert!(!party.is_aside || party.spoilt.is_some(), "{worker} is left out for nothing");
        }
        assert!(group.members.is_sorted_by_key(|member| member.worker), "positions follow the ids");
    }
}
