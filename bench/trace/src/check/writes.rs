//! Pushes and what became of them: taken in once, answered, and for the reason that is given.

use slackline_core::ids::WorkerId;
use slackline_core::trace::{Dropped, Record, Verdict};

use super::clocks::Counts;
use super::promise::Applies;
use super::replay::Replay;
use crate::breach::Law;

/// A push that has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) record: Record,
    /// Whether its worker was a member then.
    pub(super) of_member: bool,
    /// Whether it was answered before it is in the values.
    pub(super) is_answered: bool,
    /// A verdict on it was met.
    is_judged: bool,
}

impl Replay {
    /// A push has arrived.
    pub(super) fn push(&mut self, record: Record, worker: WorkerId, empty: bool) {
        self.check_version(&record);
        self.check_minimum(&record, None);
        let of_member = self.clocks.member(worker, record.incarnation.0).is_some();
        if of_member && !empty && record.pulled.0 > self.version {
            let why = format!("a gradient of {} came when the shard had {}", record.pulled, record.version);
            self.breach(Law::VersionStated, &[record], why);
        }
        if !empty {
            self.check_computed_on(&record, worker);
        }
        if let Some(member) = self.clocks.member_mut(worker, record.incarnation.0) {
            member.push = Some(record);
        }
        self.arriving = Some(Arrived { record, of_member, is_answered: false, is_judged: false });
    }

    /// The next event is here: what the last push came to must be known.
    pub(super) fn end_push(&mut self) {
        let Some(arrived) = self.arriving.take().filter(|arrived| !arrived.is_judged) else { return };
        // Whoever sends a push again that is kept gets its answer with the first one.
        let name = name_of(&arrived.record);
        if !self.waiting.contains_key(&name) && !self.staged.contains_key(&name) {
            let why = "a push arrived, and nothing became of it".to_owned();
            self.breach(Law::Answered, &[arrived.record], why);
        }
    }

    /// What became of a push.
    pub(super) fn verdict(&mut self, record: Record, worker: WorkerId, verdict: Verdict, duplicate: bool) {
        let name = name_of(&record);
        let arriving = self.arriving.filter(|arrived| name_of(&arrived.record) == name && !arrived.is_judged);
        if arriving.is_some()
            && let Some(arrived) = &mut self.arriving
        {
            arrived.is_judged = true;
        }
        // What is kept comes first: a push that is sent again meanwhile is not a new one.
        let (arrived, is_new) = match (self.waiting.get(&name), self.staged.get(&name).copied().or(arriving))
        {
            (Some(kept), _) => (*kept, false),
            (None, Some(arrived)) => (arrived, true),
            (None, None) => return self.unasked(&record, worker, verdict),
        };
        let facts = |record: &Record| (record.clock, record.pulled, record.batch, record.samples);
        if facts(&record) != facts(&arrived.record) {
            let why = "the answer states other facts than the push".to_owned();
            self.breach(Law::Answered, &[record, arrived.record], why);
        }
        if duplicate {
            self.check_repeat(&record, worker, verdict);
            return;
        }
        match verdict {
            Verdict::Staged if is_new => {
                self.staged.insert(name, arrived);
                return;
            }
            Verdict::Fenced | Verdict::OutOfWindow | Verdict::WrongKeys => {
                self.refuse(&record, worker, verdict, &arrived);
                return;
            }
            Verdict::Collected | Verdict::Staged | Verdict::Gathered { .. } if !is_new => {
                self.breach(Law::Once, &[record, arrived.record], "a push was collected twice".to_owned());
                return;
            }
            _ => {}
        }
        if is_new {
            self.staged.remove(&name);
            self.take_in(&record, worker, &arrived);
        }
        self.judge(&record, worker, verdict, arrived);
    }

    /// An answer for a push that nobody is waiting for.
    fn unasked(&mut self, record: &Record, worker: WorkerId, verdict: Verdict) {
        let life = self.life(worker, record.incarnation);
        let (was_settled, was_used) =
            (life.settled.contains(record.sequence.0), life.used.contains(record.sequence.0));
        let (law, why) = match verdict {
            Verdict::Applied { .. } if was_used => (Law::Once, "a push was applied twice"),
            Verdict::Applied { .. } if was_settled => {
                (Law::FirstAnswer, "a push that had been left out was applied")
            }
            _ => (Law::Answered, "an answer was given for a push that had not arrived"),
        };
        self.breach(law, &[*record], why.to_owned());
    }

    /// The verdict on a push that was never answered before.
    fn judge(&mut self, record: &Record, worker: WorkerId, verdict: Verdict, arrived: Arrived) {
        let name = name_of(record);
        let sequence = record.sequence.0;
        match verdict {
            Verdict::Applied { staleness, .. } => {
                self.waiting.remove(&name);
                self.settle(record, worker, true);
                self.figures.applied += 1;
                self.check_staleness(record, staleness, record.version.0.saturating_sub(1));
                self.apply(record, &arrived);
            }
            Verdict::Collected => {
                self.check_gathers(record);
                self.waiting.insert(name, arrived);
            }
            Verdict::Gathered { staleness, .. } => {
                self.check_gathers(record);
                self.check_staleness(record, staleness, self.version);
                self.life(worker, record.incarnation).used.insert(sequence);
                self.waiting.insert(name, Arrived { is_answered: true, ..arrived });
            }
            Verdict::Dropped(reason) => {
                self.waiting.remove(&name);
                self.figures.dropped += 1;
                self.check_drop(record, reason);
                self.settle(record, worker, false);
            }
            _ => {
                self.waiting.remove(&name);
                self.settle(record, worker, false);
            }
        }
        if !matches!(verdict, Verdict::Collected) {
            self.check_reached(record, worker);
        }
    }

    /// A push that was taken for new: it counts, if it may.
    fn take_in(&mut self, record: &Record, worker: WorkerId, arrived: &Arrived) {
        self.figures.pushes += 1;
        let sequence = record.sequence.0;
        let life = self.life(worker, record.incarnation);
        life.last = Some(arrived.record);
        let was_dropped = life.settled.contains(sequence) && !life.used.contains(sequence);
        if !life.arrived.insert(sequence) {
            let (law, why) = match was_dropped {
                true => (Law::FirstAnswer, "a push that had been left out was taken again"),
                false => (Law::Once, "a push was taken for new twice"),
            };
            self.breach(law, &[*record, arrived.record], why.to_owned());
        }
        if !arrived.of_member {
            let why = format!("a push of {worker} ({}) was taken, and it is no member", record.incarnation);
            self.breach(Law::Membership, &[*record, arrived.record], why);
            return;
        }
        if !self.started {
            self.breach(Law::Start, &[*record], "a push was taken before the run began".to_owned());
        }
        self.count_iteration(record, worker);
    }

    /// The worker's clock rises by its push.
    fn count_iteration(&mut self, record: &Record, worker: WorkerId) {
        let Some(member) = self.clocks.member(worker, record.incarnation.0) else { return };
        let (counts, completed) = (member.counts, member.completed);
        if counts == Counts::Active && record.clock.0 < completed {
            let why = format!(
                "{worker} pushed the iteration of {}, and counted as having completed {completed}",
                record.clock
            );
            self.breach(Law::ClockBack, &[*record], why);
        }
        self.came = Some((worker, record.incarnation));
        let mut clock = record.clock.0.saturating_add(1);
        if self.promise.moves_up {
            clock = clock.max(self.clocks.floor);
        }
        self.clocks.complete(worker, clock);
        if counts == Counts::Joining
            && let Some(reached) = record.reached
            && let Some(minimum) = self.clocks.minimum().filter(|minimum| reached.0 < *minimum)
        {
            let why = format!("{worker} joined at {reached}, below the minimum clock {minimum}");
            self.breach(Law::JoinerBelow, &[*record], why);
        }
    }

    /// The clock that a worker was told it stands at.
    fn check_reached(&mut self, record: &Record, worker: WorkerId) {
        let Some(member) = self.clocks.member(worker, record.incarnation.0) else { return };
        let (counts, completed) = (member.counts, member.completed);
        if let Some(reached) = record.reached
            && counts == Counts::Active
            && reached.0 != completed
        {
            let why =
                format!("{worker} was told that it stands at {reached}, and its pushes make it {completed}");
            self.breach(Law::ClockStated, &[*record], why);
        }
    }

    /// A push is in the values, or left out for good.
    pub(super) fn settle(&mut self, record: &Record, worker: WorkerId, used: bool) {
        let life = self.life(worker, record.incarnation);
        let first = life.settled.insert(record.sequence.0);
        if used {
            life.used.insert(record.sequence.0);
        }
        if !first {
            self.breach(Law::Once, &[*record], "a push was applied or left out twice".to_owned());
        }
    }

    fn check_repeat(&mut self, record: &Record, worker: WorkerId, verdict: Verdict) {
        self.figures.repeated += 1;
        let life = self.life(worker, record.incarnation);
        let was_answered = life.arrived.contains(record.sequence.0);
        let was_used = life.used.contains(record.sequence.0);
        let is_used = matches!(verdict, Verdict::Applied { .. } | Verdict::Gathered { .. });
        if !was_answered || was_used != is_used {
            let why = "an answer was given again that is not the first one".to_owned();
            self.breach(Law::FirstAnswer, &[*record], why);
        }
    }

    fn refuse(&mut self, record: &Record, worker: WorkerId, verdict: Verdict, arrived: &Arrived) {
        self.figures.dropped += 1;
        self.life(worker, record.incarnation).refused.insert(record.sequence.0);
        if verdict == Verdict::Fenced && self.clocks.member(worker, record.incarnation.0).is_some() {
            let why = format!("a push of {worker} ({}) was fenced, and it is a member", record.incarnation);
            self.breach(Law::Membership, &[*record, arrived.record], why);
        }
    }

    fn check_staleness(&mut self, record: &Record, stated: u64, before: u64) {
        let counted = before.saturating_sub(record.pulled.0);
        if stated != counted {
            let why = format!(
                "it states a staleness of {stated}, and {counted} versions had passed from {} to version {before}",
                record.pulled
            );
            self.breach(Law::StalenessStated, &[*record], why);
        }
        self.figures.staleness_sum += u128::from(counted);
        self.figures.staleness_max = self.figures.staleness_max.max(counted);
    }

    /// Whether the policy takes means at all.
    fn check_gathers(&mut self, record: &Record) {
        if self.promise.applies == Applies::Alone {
            let why = format!("a push was kept, and {} applies each as it comes", self.policy);
            self.breach(Law::Gathering, &[*record], why);
        }
    }

    fn check_drop(&mut self, record: &Record, reason: Dropped) {
        let passed = self.version.saturating_sub(record.pulled.0);
        let why = match reason {
            Dropped::LateClock { open } if self.promise.applies != Applies::Clock => {
                format!("it was dropped since {open} is open, and {} closes no clocks", self.policy)
            }
            // One that another shard has moved up is late when its gradient was computed on values of before.
            Dropped::LateClock { open }
                if (open <= record.clock && (self.promise.reads.late == 0 || passed == 0))
                    || open.0 > self.clocks.floor =>
            {
                format!(
                    "it was dropped since {open} is open, which its clock and the others' do not bear out"
                )
            }
            Dropped::TooStale { staleness } if staleness != passed => {
                format!("it was dropped for a staleness of {staleness}, and {passed} versions had passed")
            }
            _ => return,
        };
        self.breach(Law::DropCause, &[*record], why);
    }
}

/// Who pushed, in which life, and the number of the push.
pub(super) fn name_of(record: &Record) -> (WorkerId, slackline_core::ids::Incarnation, u64) {
    (record.worker.unwrap_or_default(), record.incarnation, record.sequence.0)
}
