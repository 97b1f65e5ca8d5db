//! Newcomers whom the others cannot meet. They reach the coordinator, so each group that they are taken into is dissolved before its
//! first iteration; a run that goes well without them must not end for that.
//!
//! When a group with newcomers ends so, the next one is formed without the newcomer that was in the trouble. Once that group has
//! completed an iteration, the newcomer gets another chance, one newcomer at a time; then it is turned away.

use slackline_core::ids::WorkerId;
use slackline_core::wire::GroupMember;

use super::{Groups, Party, Standing};

/// Groups that a newcomer may spoil.
const SPOILT_MAX: u32 = 2;

/// What a newcomer has spoilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spoilt {
    /// So many groups.
    times: u32,
    /// The worker that it and the last of them did not come together with.
    with: WorkerId,
}

impl Party {
    /// Whether it is to be in the next group.
    pub(super) fn is_wanted(&self) -> bool {
        self.standing == Standing::Ready && !self.is_aside
    }

    /// Whether nothing shows yet that others can meet it: no iteration of a group that it was in, no values of the run.
    const fn is_newcomer(&self) -> bool {
        !self.has_stepped && !self.holds
    }
}

impl Groups {
    /// A member of the newest group has completed so many units.
    pub(super) fn progress(&mut self, units: u64) {
        (self.barren, self.done) = (0, self.done.max(units));
        let Some(group) = self.group.as_ref().filter(|_| !self.is_proven) else { return };
        self.is_proven = true;
        // Nobody completes an iteration without any of the others: all have met.
        for member in &group.members {
            let party = self.parties.get_mut(&member.worker);
            if let Some(party) = party.filter(|party| party.incarnation == member.incarnation) {
                (party.has_stepped, party.spoilt, party.is_aside) = (true, None, false);
            }
        }
        if !self.is_trained() {
            let aside = self.parties.iter_mut().filter(|(_, party)| party.is_aside);
            let next =
                aside.min_by_key(|(worker, party)| (party.spoilt.map(|spoilt| spoilt.times), **worker));
            next.into_iter().for_each(|(_, party)| party.is_aside = false);
        }
    }

    /// A member of the newest group has trouble with another. Returns whether a newcomer is to blame, without which the run goes on.
    pub(super) fn leave_out(&mut self, worker: WorkerId, with: WorkerId, reason: &str) -> bool {
        let Some(suspect) = self.suspect(worker, with) else { return false };
        let other = if suspect == worker { with } else { worker };
        let called = self.named(with);
        let Some(party) = self.parties.get_mut(&suspect) else { return false };
        let text = if suspect == worker {
            format!("{suspect} cannot reach {called}")
        } else {
            format!("{suspect} cannot be reached by {worker} at {}", party.address)
        };
        let times = party.spoilt.map_or(1, |spoilt| spoilt.times + 1);
        (party.spoilt, party.is_aside) = (Some(Spoilt { times, with: other }), true);
        if times >= SPOILT_MAX {
            let text = format!("{text}: {reason}; look at sync.advertise and the firewall of both");
            self.unreachable.push((suspect, text));
        }
        true
    }

    /// The newcomer of two that do not come together, if the run can do without it. Of two newcomers it is the one that has spoilt
    /// more, else the one that is complained of: if it was the other, that shows in the next group.
    fn suspect(&self, worker: WorkerId, with: WorkerId) -> Option<WorkerId> {
        if !self.settings.elastic || self.done == 0 || self.is_proven {
            return None;
        }
        let party = |worker: WorkerId| self.parties.get(&worker);
        let is_veteran =
            |member: &GroupMember| party(member.worker).is_some_and(|party| !party.is_newcomer());
        if !self.group.as_ref()?.members.iter().any(is_veteran) {
            return None;
        }
        let is_newcomer = |worker| party(worker).is_some_and(Party::is_newcomer);
        let times = |worker| party(worker).and_then(|party| party.spoilt).map_or(0, |spoilt| spoilt.times);
        match (is_newcomer(worker), is_newcomer(with)) {
            (false, false) => None,
            (true, false) => Some(worker),
            (true, true) if times(worker) > times(with) => Some(worker),
            (_, true) => Some(with),
        }
    }

    /// A worker is gone: those who did not come together with it may not be to blame.
    pub(super) fn forgive(&mut self, gone: WorkerId) {
        for party in self.parties.values_mut() {
            if party.spoilt.is_some_and(|spoilt| spoilt.with == gone) {
                (party.spoilt, party.is_aside) = (None, false);
            }
        }
    }

    /// Newcomers that are to be turned away, and why.
    pub(in super::super) fn take_unreachable(&mut self) -> Vec<(WorkerId, String)> {
        std::mem::take(&mut self.unreachable)
    }

    /// A worker, with where others are to reach it.
    pub(super) fn named(&self, worker: WorkerId) -> String {
        match self.parties.get(&worker) {
            Some(party) => format!("{worker} at {}", party.address),
            None => worker.to_string(),
        }
    }
}
