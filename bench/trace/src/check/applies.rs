//! Applies: what made each version, and whether it was what the policy says.

use slackline_core::ids::Moment;
use slackline_core::trace::{Record, Verdict, What};

use super::promise::Applies;
use super::replay::Replay;
use super::writes::{Arrived, name_of};
use crate::breach::Law;

/// The least time that a quorum of a given number waits, after its last push, before it is taken with fewer.
const PATIENCE_LEAST_NS: u64 = 250_000_000;

/// Pushes that made one version together.
#[derive(Clone, Debug)]
pub(super) struct Group {
    version: u64,
    at: Moment,
    /// The record that tells it first.
    first: Record,
    pushes: Vec<Record>,
}

impl Group {
    /// Whether a record tells more of the same apply.
    pub(super) fn goes_on_with(&self, record: &Record) -> bool {
        let is_applied =
            matches!(record.what, What::Verdict { verdict: Verdict::Applied { .. }, duplicate: false });
        is_applied && record.version.0 == self.version && record.at == self.at
    }
}

impl Replay {
    /// A push is in the values.
    pub(super) fn apply(&mut self, record: &Record, arrived: &Arrived) {
        if arrived.is_answered {
            let why = "a push that had been answered was answered again as applied".to_owned();
            self.breach(Law::Once, &[*record, arrived.record], why);
        }
        match &mut self.group {
            Some(group) => group.pushes.push(arrived.record),
            None => {
                self.step(record);
                let (version, at) = (record.version.0, record.at);
                self.group = Some(Group { version, at, first: *record, pushes: vec![arrived.record] });
            }
        }
        self.move_up(record);
    }

    /// All that was gathered and answered made a version.
    pub(super) fn mean(&mut self, record: Record) {
        self.step(&record);
        let gathered: Vec<_> =
            self.waiting.values().filter(|kept| kept.is_answered).map(|kept| kept.record).collect();
        for push in &gathered {
            self.waiting.remove(&name_of(push));
            self.settle(push, push.worker.unwrap_or_default(), true);
            self.figures.applied += 1;
        }
        let (version, at) = (record.version.0, record.at);
        self.group = Some(Group { version, at, first: record, pushes: gathered });
        self.end_group();
    }

    /// A new version must be the next one.
    fn step(&mut self, record: &Record) {
        if record.version.0 != self.version.saturating_add(1) {
            let why = format!("it made {}, and the shard had version {}", record.version, self.version);
            self.breach(Law::VersionStep, &[*record], why);
        }
        self.version = record.version.0;
        self.figures.versions += 1;
    }

    /// Where rounds are counted instead of clocks, a worker whose push ends one stands at the next.
    fn move_up(&mut self, record: &Record) {
        let Applies::Quorum { .. } = self.promise.applies else { return };
        let Some(worker) = record.worker.filter(|_| self.promise.moves_up) else { return };
        // The member may be a later life than the one that pushed; it stands there all the same.
        let version = self.version;
        if self.clocks.is_active(worker) {
            self.clocks.complete(worker, version);
        }
    }

    /// The apply is told to its end: is it what the policy applies?
    pub(super) fn end_group(&mut self) {
        let Some(group) = self.group.take() else { return };
        match self.promise.applies {
            Applies::Alone if group.pushes.len() != 1 => {
                let count = group.pushes.len();
                let why = format!("{count} pushes made version {} together", group.version);
                self.breach_group(Law::VersionStep, &group, why);
            }
            Applies::Clock => self.check_clock(&group),
            Applies::Quorum { count, grace_ns } => self.check_quorum(&group, count, grace_ns),
            Applies::Alone | Applies::Any => {}
        }
    }

    fn check_clock(&mut self, group: &Group) {
        let late = self.promise.reads.late;
        let Some(lowest) = group.pushes.iter().map(|push| push.clock.0).min() else {
            return self.breach_group(Law::WholeClock, group, "a version was made of nothing".to_owned());
        };
        // Where workers are moved up, another shard can have moved one whose gradient was computed on the values of this clock.
        let clock = if late > 0 { self.open } else { lowest };
        let other = group.pushes.iter().map(|push| push.clock.0).find(|other| *other != clock);
        if let Some(other) = other.filter(|other| late == 0 || *other < clock) {
            let why = format!("version {} is a mean of clock {clock} and clock {other}", group.version);
            self.breach_group(Law::WholeClock, group, why);
        }
        if self.closed.is_some_and(|closed| clock <= closed) {
            let why =
                format!("version {} is the mean of clock {clock}, which was closed before", group.version);
            self.breach_group(Law::ClockOrder, group, why);
        }
        self.closed = self.closed.max(Some(clock));
        self.clocks.floor = self.clocks.floor.max(clock.saturating_add(1));
        let before = group.version.saturating_sub(1);
        if let Some(stale) = group.pushes.iter().find(|push| push.pulled.0 != before) {
            let why = format!(
                "version {} has a gradient in it that was computed on {}, not on version {before}",
                group.version, stale.pulled
            );
            self.breach_group(Law::WholeClock, group, why);
        }
        self.check_whole(group, clock);
    }

    /// All active workers must have completed a clock that closes, the late ones aside, and no push of it may be left.
    fn check_whole(&mut self, group: &Group, clock: u64) {
        let late = self.promise.reads.late;
        let mut reached = self.clocks.minimum_without(late);
        if reached.is_some_and(|reached| reached <= clock) && self.claim_late() {
            reached = self.clocks.minimum_without(late);
        }
        if let Some(reached) = reached.filter(|reached| *reached <= clock) {
            let slow = self.clocks.laggard(clock.saturating_add(1));
            let who = slow.map_or_else(String::new, |(slow, member)| {
                format!(", and {slow} is active and has completed {}", member.completed)
            });
            let why = format!(
                "version {} closes clock {clock} when {reached} iterations are complete{who}",
                group.version
            );
            self.breach_group(Law::WholeClock, group, why);
        }
        let left =
            self.waiting.values().map(|kept| kept.record).find(|kept| late > 0 || kept.clock.0 <= clock);
        if let Some(left) = left {
            let why = format!(
                "version {} closes clock {clock} without a push of {} that was here",
                group.version, left.clock
            );
            self.breach(Law::WholeClock, &[group.first, left], why);
        }
    }

    fn check_quorum(&mut self, group: &Group, count: Option<u64>, grace_ns: u64) {
        let active = self.clocks.active_count();
        let needed = count.map_or(active, |count| count.min(active)).max(1);
        let have = group.pushes.len() as u64;
        let last = group.pushes.iter().map(|push| push.at).max().unwrap_or_default();
        let waited = group.at.since(last).as_nanos();
        let is_given_up = count.is_some() && waited >= u128::from(grace_ns.max(PATIENCE_LEAST_NS));
        if have < needed && !is_given_up {
            let why =
                format!("version {} is the mean of {have} pushes, and it takes {needed}", group.version);
            self.breach_group(Law::Quorum, group, why);
        }
        if have < active && waited < u128::from(grace_ns) {
            let why = format!(
                "version {} was made {waited} ns after its last push, with {have} of {active} active workers and a grace of \
                 {grace_ns} ns",
                group.version
            );
            self.breach_group(Law::Grace, group, why);
        }
    }

    fn breach_group(&mut self, law: Law, group: &Group, why: String) {
        let events: Vec<_> = [group.first].iter().chain(group.pushes.iter().take(8)).copied().collect();
        self.breach(law, &events, why);
    }
}
