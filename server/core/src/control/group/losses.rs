//! What becomes of a run when a member is gone.

use std::time::Duration;

use slackline_core::ids::{Clock, Moment, WorkerId};
use slackline_core::wire::{Group, GroupMember};

use super::{Groups, Standing};
use crate::notice::Notice;
use crate::record::Recovery;

/// How a member went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Gone {
    /// Its lease ran out.
    Silent(Duration),
    /// It said so: it was told to go, or it failed.
    Left(String),
    /// It was turned away.
    TurnedAway(String),
    /// It joined anew.
    Replaced,
}

/// A member that is gone, until the others are at work again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    worker: WorkerId,
    /// From where the next group goes on; before it is formed, the last iteration that is known to be complete.
    pub(super) clock: Clock,
    heard: Moment,
}

impl Groups {
    /// Whether a member may go: it has completed all, and does not owe the final evaluation, which is the first member's.
    fn is_finished(&self, worker: WorkerId) -> bool {
        let has_all =
            self.parties.get(&worker).is_some_and(|party| party.holds && party.units == self.unit_count());
        let is_first = self.group.as_ref().is_some_and(|group| group.position_of(worker) == Some(0));
        has_all && (self.has_final || !is_first)
    }

    /// A member says that it goes since all is done. Returns whether that is so; its leave is answered when nobody needs it any
    /// more ([`dismissed`](Self::dismissed)), for what it has sent to others can still be on its way.
    pub(in super::super) fn leave(&mut self, worker: WorkerId) -> bool {
        let may = self.is_finished(worker);
        if let Some(party) = self.parties.get_mut(&worker).filter(|_| may) {
            party.leaves = true;
        }
        may
    }

    /// Whether a member has said that it goes, with all done.
    pub(in super::super) fn leaves(&self, worker: WorkerId) -> bool {
        self.parties.get(&worker).is_some_and(|party| party.leaves)
    }

    /// The iterations that are known to be complete with a worker's part in them: no member of its group can have completed one
    /// without it, and what it has said itself can be older.
    pub(in super::super) fn lost_after(&self, worker: WorkerId) -> Clock {
        let own = self.clock_of(worker).unwrap_or(Clock(0));
        let is_of_group = |group: &&Group| {
            let incarnation = self.parties.get(&worker).map(|party| party.incarnation);
            let is_it =
                |member: &GroupMember| (member.worker, Some(member.incarnation)) == (worker, incarnation);
            group.members.iter().any(is_it)
        };
        let Some(group) = self.group.as_ref().filter(is_of_group) else { return own };
        let others = group.members.iter().filter_map(|member| {
            let party = self.parties.get(&member.worker)?;
            (party.incarnation == member.incarnation && party.holds && !party.is_doubtful)
                .then_some(party.clock)
        });
        others.fold(own.max(group.clock), Clock::max)
    }

    /// A worker is no member any more.
    pub(in super::super) fn remove(&mut self, now: Moment, worker: WorkerId, gone: &Gone) {
        self.joined.remove(&worker);
        let is_finished = self.is_finished(worker);
        let clock = self.lost_after(worker);
        let Some(party) = self.parties.remove(&worker) else { return };
        self.forgive(worker);
        // Those that were left out nobody misses.
        if !party.served || party.is_aside || is_finished || self.is_over() {
            return;
        }
        if !self.settings.elastic {
            // Members tell of their iterations from time to time.
            let after = format!("after {clock}, as last reported");
            let how = match gone {
                Gone::Silent(silent) => {
                    format!("was lost {after} (no word for {:.1} s)", silent.as_secs_f64())
                }
                Gone::Left(how) => format!("left {after} ({how})"),
                Gone::TurnedAway(why) => format!("was turned away {after} ({why})"),
                Gone::Replaced => format!("was lost {after} (it came back as another)"),
            };
            self.failure.get_or_insert(format!(
                "{worker} {how}: an allreduce cannot go on without it; sync.elastic = true lets the others go on"
            ));
            return;
        }
        let silent = if let Gone::Silent(silent) = gone { *silent } else { Duration::ZERO };
        let heard = Moment(now.0.saturating_sub(silent.as_nanos() as u64));
        self.losses.push(Loss { worker, clock, heard });
        if party.standing == Standing::Grouped {
            self.dissolve(now);
        }
    }

    /// The others are at work again.
    pub(super) fn recovered(&mut self, now: Moment) {
        for Loss { worker, clock, heard } in std::mem::take(&mut self.losses) {
            let after = now.since(heard);
            self.notices.push(Notice::Recovered { worker, clock, after });
            let seconds = after.as_secs_f64();
            self.recoveries.push(Recovery { worker: worker.0, clock: clock.0, seconds });
        }
    }

    /// Nobody is left who could go on.
    pub(super) fn fail_without_values(&mut self) {
        let began = self.group.as_ref().map_or(Clock(0), |group| group.clock);
        let last = self.losses.last();
        let last =
            last.map_or_else(String::new, |loss| format!(", the last was {} at {}", loss.worker, loss.clock));
        self.failure.get_or_insert(format!(
            "all workers that have the values after {began} are lost{last}: the run cannot go on; start it again"
        ));
    }
}
