//! Pulls and what they were served: who may read what, and when.

use slackline_core::ids::WorkerId;
use slackline_core::trace::{PullFate, Reading, Record, What};

use super::clocks::{Counts, Member};
use super::promise::Applies;
use super::replay::Replay;
use crate::breach::Law;

impl Replay {
    /// A pull has arrived.
    pub(super) fn pull(&mut self, record: Record, reading: Reading, fate: PullFate, ahead: u8) {
        self.check_version(&record);
        self.check_minimum(&record, None);
        let Some(worker) = record.worker.filter(|_| reading.is_gated()) else { return };
        let is_member = self.clocks.member(worker, record.incarnation.0).is_some();
        if is_member == (fate == PullFate::Ignored) {
            let why = if is_member { "a pull of a member was ignored" } else { "a pull of nobody was taken" };
            self.breach(Law::Membership, &[record], why.to_owned());
        }
        if !is_member {
            return;
        }
        if u64::from(ahead) > self.prefetch {
            let why = format!(
                "{worker} pulls for {} and is {ahead} iterations away from it, where the run pulls {} ahead",
                record.clock, self.prefetch
            );
            self.breach(Law::ReadMyWrites, &[record], why);
        }
        self.claim(&record, worker);
        if let Some(member) = self.clocks.member_mut(worker, record.incarnation.0) {
            member.pull = Some((record, true));
        }
        if fate == PullFate::Held {
            self.figures.held += u64::from(reading == Reading::Gated);
            self.check_hold(&record, worker, reading);
        }
    }

    /// A worker that pulls at a clock says that it has completed so many iterations, less those that it is ahead. That counts once all its
    /// pushes are here.
    fn claim(&mut self, pull: &Record, worker: WorkerId) {
        let What::Pull { reading: Reading::Gated, ahead, .. } = pull.what else { return };
        let all_here = self.life(worker, pull.incarnation).arrived.has_all_to(pull.sequence.0);
        let member = self.clocks.member(worker, pull.incarnation.0);
        if all_here && member.is_some_and(|member| member.counts == Counts::Active) {
            self.clocks.complete(worker, pull.clock.0.saturating_sub(ahead.into()));
        }
    }

    /// A pull can have come before the push it follows, and then says what its worker has completed once that push is here.
    /// Returns whether that is more than was known.
    pub(super) fn claim_late(&mut self) -> bool {
        let Some((worker, incarnation)) = self.came.take() else { return false };
        let Some(member) = self.clocks.member(worker, incarnation.0) else { return false };
        let (Some((pull, true)), completed) = (member.pull, member.completed) else { return false };
        self.claim(&pull, worker);
        self.clocks.member(worker, incarnation.0).is_some_and(|member| member.completed > completed)
    }

    /// A pull that is held must have to wait for something.
    fn check_hold(&mut self, record: &Record, worker: WorkerId, reading: Reading) {
        let reads = self.promise.reads;
        let may_be_held = !reads.holds_no_longer || reading == Reading::Fresher;
        if may_be_held || !self.started || !self.has_values || !self.own_are_in(record, worker) {
            return;
        }
        let wanted = record.clock.0.saturating_sub(reads.staleness.unwrap_or(u64::MAX));
        let reached = self.clocks.minimum_without(reads.late);
        if reached.is_none_or(|reached| reached.max(self.clocks.floor) >= wanted) {
            let why = format!("{worker} was held at {}, though {} lets it read", record.clock, self.policy);
            self.breach(Law::NeedlessHold, &[*record], why);
        }
    }

    fn own_are_in(&mut self, record: &Record, worker: WorkerId) -> bool {
        let settled = self.promise.reads.own_settled;
        let life = self.life(worker, record.incarnation);
        let numbers = if settled { &life.settled } else { &life.arrived };
        numbers.has_all_to(record.sequence.0)
    }

    /// Values were sent.
    pub(super) fn serve(&mut self, record: Record, reading: Reading, lead: u64) {
        self.check_version(&record);
        if !self.has_values {
            self.breach(Law::Start, &[record], "values were served before there were any".to_owned());
        }
        let Some(worker) = record.worker.filter(|_| reading.is_gated()) else { return };
        let Some(member) = self.clocks.member(worker, record.incarnation.0).cloned() else {
            let why = format!("{worker} ({}) was served, and is no member", record.incarnation);
            self.breach(Law::Membership, &[record], why);
            return;
        };
        self.figures.served += 1;
        if !self.started {
            self.breach(Law::Start, &[record], format!("{worker} was served before the run began"));
        }
        self.check_asked(&record, worker, &member);
        if let Some((pull, _)) = member.pull.filter(|_| reading == Reading::Gated) {
            self.claim(&pull, worker);
        }
        self.check_own(&record, worker, &member);
        self.check_bound(&record, worker, &member);
        self.check_pending(&record, worker);
        self.check_minimum(&record, Some(lead));
        if let Reading::Fresher = reading {
            self.check_fresher(&record, worker, &member);
        }
        let minimum = self.clocks.minimum().unwrap_or(record.clock.0);
        self.figures.lead_max = self.figures.lead_max.max(record.clock.0.saturating_sub(minimum));
        if let (Reading::Gated, 0, Some(staleness)) =
            (reading, self.promise.reads.late, self.promise.reads.staleness)
        {
            self.clocks.floor = self.clocks.floor.max(record.clock.0.saturating_sub(staleness));
        }
        if let Some(member) = self.clocks.member_mut(worker, record.incarnation.0) {
            member.reads(record.version.0, record.sequence.0);
            if let Some((_, is_open)) = &mut member.pull {
                *is_open = false;
            }
        }
    }

    /// A gradient was computed on values with all pushes of its worker before it, but those that were pulled ahead of.
    pub(super) fn check_computed_on(&mut self, record: &Record, worker: WorkerId) {
        let Some(member) = self.clocks.member(worker, record.incarnation.0) else { return };
        let reads = member.reads.iter().filter(|(version, _)| *version == record.pulled.0);
        let Some(last) = reads.map(|(_, sequence)| *sequence).max() else { return };
        if last + 1 + self.prefetch < record.sequence.0 {
            let why = format!(
                "{worker} computed {} on {}, which it read after its push {last}, and it pulls {} ahead",
                record.sequence, record.pulled, self.prefetch
            );
            self.breach(Law::ReadMyWrites, &[*record], why);
        }
    }

    fn check_asked(&mut self, record: &Record, worker: WorkerId, member: &Member) {
        let why = match &member.pull {
            None => format!("{worker} was served and had not pulled"),
            Some((pull, _)) if (pull.clock, pull.sequence) != (record.clock, record.sequence) => format!(
                "{worker} had pulled at {} after {}, and was served at {} after {}",
                pull.clock, pull.sequence, record.clock, record.sequence
            ),
            Some((_, false)) => format!("{worker} was served twice for one pull"),
            Some((_, true)) => return,
        };
        let events: Vec<_> = [*record].into_iter().chain(member.pull.map(|(pull, _)| pull)).collect();
        self.breach(Law::Asked, &events, why);
    }

    fn check_own(&mut self, record: &Record, worker: WorkerId, member: &Member) {
        if self.own_are_in(record, worker) {
            return;
        }
        let events: Vec<_> = [*record].into_iter().chain(member.push).collect();
        let where_to = if self.promise.reads.own_settled { "in the values" } else { "here" };
        let why = format!(
            "{worker} was served at {} after {}, and not all its pushes up to that are {where_to}",
            record.clock, record.sequence
        );
        self.breach(Law::ReadMyWrites, &events, why);
    }

    /// The heart of it: what the others have completed, against what the reader may count on.
    fn check_bound(&mut self, record: &Record, worker: WorkerId, member: &Member) {
        let reads = self.promise.reads;
        let Some(staleness) = reads.staleness else { return };
        let wanted = record.clock.0.saturating_sub(staleness);
        if self.clocks.below(wanted) > reads.late {
            self.claim_late();
        }
        let behind = self.clocks.below(wanted);
        let Some((slow, laggard)) = self.clocks.laggard(wanted).filter(|_| behind > reads.late) else {
            return;
        };
        let mut events = vec![*record];
        events.extend(member.pull.map(|(pull, _)| pull).filter(|pull| pull.clock == record.clock));
        events.push(laggard.push.unwrap_or(laggard.entered));
        let others = match behind - 1 {
            0 => String::new(),
            more => format!(" (and {more} more workers too few)"),
        };
        let why = format!(
            "{worker} was served {} at {}: {} wants the first {wanted} iterations of every active worker{} in it, and {slow} had \
             completed {}{others}",
            record.version,
            record.clock,
            self.policy,
            if reads.late > 0 { format!(" but {}", reads.late) } else { String::new() },
            laggard.completed,
        );
        self.breach(Law::Bound, &events, why);
    }

    /// Where means are taken by clock, a push that has arrived may still not be in the values.
    fn check_pending(&mut self, record: &Record, worker: WorkerId) {
        let (Applies::Clock, Some(staleness)) = (self.promise.applies, self.promise.reads.staleness) else {
            return;
        };
        let wanted = record.clock.0.saturating_sub(staleness);
        let pending = self.waiting.values().find(|kept| kept.record.clock.0 < wanted).map(|kept| kept.record);
        if let Some(kept) = pending {
            let why = format!(
                "{worker} was served {} at {}, and a push of {} had arrived but was not in the values",
                record.version, record.clock, kept.clock
            );
            self.breach(Law::Bound, &[*record, kept], why);
        }
    }

    fn check_fresher(&mut self, record: &Record, worker: WorkerId, member: &Member) {
        let seen = member.pull.and_then(|(pull, _)| pull.reached).map(|seen| seen.0);
        if let (Some(seen), Some(minimum)) = (seen, self.clocks.minimum())
            && minimum <= seen
        {
            let why = format!(
                "{worker} asked for values fresher than those of minimum clock {seen}, which it is still"
            );
            self.breach(Law::Asked, &[*record], why);
        }
    }

    /// The version that is stated must be the one that the applies made.
    pub(super) fn check_version(&mut self, record: &Record) {
        if record.version.0 != self.version {
            let why = format!("it states {}, and the applies made version {}", record.version, self.version);
            self.breach(Law::VersionStated, &[*record], why);
        }
    }

    /// The minimum clock that is stated, and with a served pull the lead above it.
    pub(super) fn check_minimum(&mut self, record: &Record, lead: Option<u64>) {
        let counted = self.clocks.minimum();
        // A reader that nobody is measured against is its own measure.
        let expected = counted.or(lead.map(|_| record.clock.0));
        let stated = record.minimum.map(|minimum| minimum.0);
        if stated != expected {
            let say = |clock: Option<u64>| clock.map_or_else(|| "none".to_owned(), |clock| clock.to_string());
            let why = format!(
                "it states {} as the minimum clock, and the pushes make it {}",
                say(stated),
                say(expected)
            );
            self.breach(Law::ClockStated, &[*record], why);
        }
        if let (Some(lead), Some(expected)) = (lead, expected)
            && lead != record.clock.0.saturating_sub(expected)
        {
            let why = format!("it states a lead of {lead} of {} above {expected}", record.clock);
            self.breach(Law::ClockStated, &[*record], why);
        }
    }
}
