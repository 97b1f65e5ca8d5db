//! The clocks of the workers, counted from what they pushed and said.

use std::collections::{BTreeMap, VecDeque};

use slackline_core::consistency::Standing;
use slackline_core::ids::WorkerId;
use slackline_core::trace::Record;

/// Whether and how a member counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counts {
    /// Others wait for it.
    Active,
    /// It came to a running run and has not pushed yet.
    Joining,
    /// It has no work.
    Idle,
}

/// One member.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) incarnation: u64,
    pub(super) counts: Counts,
    /// Iterations it has completed.
    pub(super) completed: u64,
    /// Its last gated pull, and whether it waits for an answer.
    pub(super) pull: Option<(Record, bool)>,
    /// The last values that it was served: their version, and the push that they were to have.
    pub(super) reads: VecDeque<(u64, u64)>,
    /// Its last push, for reports.
    pub(super) push: Option<Record>,
    /// The record that made it what it is, for reports.
    pub(super) entered: Record,
}

/// Reads of a member that are remembered: of two iterations, and what replaced them while others were waited for.
const READS_MAX: usize = 8;

impl Member {
    /// It was served values.
    pub(super) fn reads(&mut self, version: u64, sequence: u64) {
        if self.reads.len() == READS_MAX {
            self.reads.pop_front();
        }
        self.reads.push_back((version, sequence));
    }
}

/// All members.
#[derive(Clone, Debug, Default)]
pub(super) struct Clocks {
    members: BTreeMap<WorkerId, Member>,
    /// How many active members have completed so many iterations.
    active: BTreeMap<u64, u64>,
    active_count: u64,
    /// The highest incarnation that was seen of each worker.
    incarnations: BTreeMap<WorkerId, u64>,
    /// Iterations that every reader has been able to count on at some time.
    pub(super) floor: u64,
}

impl Clocks {
    /// Returns whether the incarnation is later than all before of this worker.
    pub(super) fn enter(&mut self, worker: WorkerId, record: Record, standing: Standing) -> bool {
        self.uncount(worker);
        let counts = match standing {
            Standing::Active => Counts::Active,
            Standing::Joining => Counts::Joining,
        };
        let (incarnation, completed) = (record.incarnation.0, record.clock.0);
        let (pull, push, reads) = (None, None, VecDeque::new());
        let member = Member { incarnation, counts, completed, pull, reads, push, entered: record };
        self.members.insert(worker, member);
        self.count(worker);
        let before = self.incarnations.insert(worker, incarnation);
        before.is_none_or(|before| before < incarnation)
    }

    /// A member has work again, and counts from its next push on.
    pub(super) fn reenter(&mut self, worker: WorkerId, record: Record) {
        self.uncount(worker);
        if let Some(member) = self.members.get_mut(&worker) {
            (member.counts, member.completed, member.entered) = (Counts::Joining, record.clock.0, record);
        }
    }

    pub(super) fn finish(&mut self, worker: WorkerId) {
        self.uncount(worker);
        if let Some(member) = self.members.get_mut(&worker) {
            member.counts = Counts::Idle;
        }
    }

    pub(super) fn remove(&mut self, worker: WorkerId) {
        self.uncount(worker);
        self.members.remove(&worker);
    }

    pub(super) fn member(&self, worker: WorkerId, incarnation: u64) -> Option<&Member> {
        self.members.get(&worker).filter(|member| member.incarnation == incarnation)
    }

    pub(super) fn member_mut(&mut self, worker: WorkerId, incarnation: u64) -> Option<&mut Member> {
        self.members.get_mut(&worker).filter(|member| member.incarnation == incarnation)
    }

    pub(super) fn is_active(&self, worker: WorkerId) -> bool {
        self.members.get(&worker).is_some_and(|member| member.counts == Counts::Active)
    }

    /// A member has completed `clock` iterations. One that was joining counts from now on, from where the others stand if that is
    /// further.
    pub(super) fn complete(&mut self, worker: WorkerId, clock: u64) {
        let entry = self.minimum().unwrap_or(0).max(self.floor);
        self.uncount(worker);
        if let Some(member) = self.members.get_mut(&worker) {
            match member.counts {
                Counts::Active => member.completed = member.completed.max(clock),
                Counts::Joining => {
                    member.completed = member.completed.max(clock).max(entry);
                    member.counts = Counts::Active;
                }
                Counts::Idle => {}
            }
        }
        self.count(worker);
    }

    fn count(&mut self, worker: WorkerId) {
        if let Some(Member { counts: Counts::Active, completed, .. }) = self.members.get(&worker) {
            *self.active.entry(*completed).or_default() += 1;
            self.active_count += 1;
        }
    }

    fn uncount(&mut self, worker: WorkerId) {
        if let Some(Member { counts: Counts::Active, completed, .. }) = self.members.get(&worker)
            && let Some(count) = self.active.get_mut(completed)
        {
            *count -= 1;
            self.active_count -= 1;
            if *count == 0 {
                self.active.remove(completed);
            }
        }
    }

    /// The fewest iterations that an active member has completed.
    pub(super) fn minimum(&self) -> Option<u64> {
        self.active.keys().next().copied()
    }

    /// The same without the `late` slowest; at least one is left.
    pub(super) fn minimum_without(&self, late: u64) -> Option<u64> {
        let mut left = late.min(self.active_count.saturating_sub(1));
        for (clock, count) in &self.active {
            match left.checked_sub(*count) {
                Some(rest) => left = rest,
                None => return Some(*clock),
            }
        }
        None
    }

    pub(super) const fn active_count(&self) -> u64 {
        self.active_count
    }

    /// Active members that have completed less than `clock` iterations.
    pub(super) fn below(&self, clock: u64) -> u64 {
        self.active.range(..clock).map(|(_, count)| count).sum()
    }

    /// One of them.
    pub(super) fn laggard(&self, clock: u64) -> Option<(WorkerId, &Member)> {
        let lags = |member: &Member| member.counts == Counts::Active && member.completed < clock;
        self.members.iter().find(|(_, member)| lags(member)).map(|(worker, member)| (*worker, member))
    }
}
