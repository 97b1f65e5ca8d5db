//! Orders for a shard that came while it could take none (its journal's disk is full): kept in their order, in bounded memory.

use std::collections::VecDeque;

use slackline_core::limits::PUSH_WINDOW;
use slackline_core::wire::PullKind;
use slackline_server_core::ShardEvent;
use slackline_server_core::shard::Push;

use crate::door::SESSIONS_MAX;

/// See the module.
#[derive(Default)]
pub(super) struct Deferred {
    events: VecDeque<ShardEvent>,
    /// What observers pull. It changes nothing, so its place among the others does not matter, and none of theirs is taken by it.
    looks: VecDeque<ShardEvent>,
}

impl Deferred {
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.looks.is_empty()
    }

    /// Keeps an order. What a worker says over and over is kept once, so that none of them can fill the memory: of its commits the
    /// furthest, of its comings and goings in the clock table the last, of its registrations and its pulls of each kind the last of an
    /// incarnation, each of its pushes once. None of these is dropped for what others say, since a worker does not say it again.
    pub(super) fn put(&mut self, event: ShardEvent) {
        if !event.changes() {
            return self.put_look(event);
        }
        let mut of_it = self.events.iter().enumerate().rev().filter(|(_, earlier)| {
            earlier.worker() == event.worker() && (is_end(earlier) || stands_for(&event, earlier))
        });
        // Nothing is moved across the end of a member.
        match of_it.next().filter(|(_, earlier)| !is_end(earlier)).map(|(place, _)| place) {
            None if self.is_beyond_window(&event) => {}
            None => self.events.push_back(event),
            Some(place) => match (&mut self.events[place], event) {
                (ShardEvent::Commit { sequence: earlier, .. }, ShardEvent::Commit { sequence, .. }) => {
                    *earlier = sequence.max(*earlier);
                }
                // What was sent over an earlier session can still come later.
                (ShardEvent::Push(earlier), ShardEvent::Push(Push { session, .. })) => {
                    earlier.session = session.max(earlier.session);
                }
                (earlier @ ShardEvent::Enter { .. }, event) => *earlier = event,
                (_, event) => {
                    self.events.remove(place);
                    self.events.push_back(event);
                }
            },
        }
    }

    /// Keeps a pull that has room in its session by now, and a place there: those bound how many there are. It is older than what was put
    /// here, and stands for none of it.
    pub(super) fn put_again(&mut self, pull: ShardEvent) {
        self.events.push_back(pull);
    }

    pub(super) fn take(&mut self) -> Option<ShardEvent> {
        self.events.pop_front().or_else(|| self.looks.pop_front())
    }

    /// Of what a session looks at, the last waits. More than there can be sessions at once are of peers that have gone.
    fn put_look(&mut self, pull: ShardEvent) {
        let of_it = |earlier: &ShardEvent| session_of(earlier) == session_of(&pull);
        if let Some(place) = self.looks.iter().position(of_it) {
            self.looks.remove(place);
        } else if self.looks.len() >= SESSIONS_MAX {
            self.looks.pop_front();
        }
        self.looks.push_back(pull);
    }

    /// Whether it is a push beyond all that its worker may have unanswered.
    fn is_beyond_window(&self, event: &ShardEvent) -> bool {
        let ShardEvent::Push(push) = event else { return false };
        let is_of_it = |earlier: &&ShardEvent| {
            matches!(earlier, ShardEvent::Push(earlier)
                if (earlier.worker, earlier.incarnation) == (push.worker, push.incarnation))
        };
        self.events.iter().filter(is_of_it).count() >= PUSH_WINDOW
    }
}

const fn session_of(event: &ShardEvent) -> Option<u64> {
    match event {
        ShardEvent::Pull { session, .. } => Some(session.0),
        _ => None,
    }
}

/// Whether a worker was a member until then.
const fn is_end(event: &ShardEvent) -> bool {
    matches!(event, ShardEvent::Remove { .. } | ShardEvent::Fence { .. } | ShardEvent::Resolve { .. })
}

/// Whether `later` makes `earlier` needless.
fn stands_for(later: &ShardEvent, earlier: &ShardEvent) -> bool {
    use ShardEvent::{Commit, Enter, Finish, Pull, Reenter};
    match (later, earlier) {
        (Commit { worker, incarnation, .. }, Commit { worker: earlier, incarnation: before, .. })
        | (Enter { worker, incarnation, .. }, Enter { worker: earlier, incarnation: before, .. }) => {
            (worker, incarnation) == (earlier, before)
        }
        (
            Finish { worker } | Reenter { worker, .. },
            Finish { worker: earlier } | Reenter { worker: earlier, .. },
        ) => worker == earlier,
        (Pull { reader, kind, .. }, Pull { reader: earlier, kind: before, .. }) => {
            (reader, gate_of(kind)) == (earlier, gate_of(before))
        }
        (ShardEvent::Push(push), ShardEvent::Push(earlier)) => {
            (push.worker, push.incarnation, push.sequence)
                == (earlier.worker, earlier.incarnation, earlier.sequence)
        }
        _ => false,
    }
}

/// The kind of a pull without its clocks.
const fn gate_of(kind: &PullKind) -> u8 {
    match kind {
        PullKind::Gated { .. } => 0,
        PullKind::Fresher { .. } => 1,
        PullKind::Snapshot => 2,
    }
}

#[cfg(test)]
mod tests {
    use slackline_core::consistency::Standing;
    use slackline_core::ids::{BatchIndex, Clock, Incarnation, Sequence, SessionId, Version, WorkerId};

    use super::*;

    const INCARNATION: Incarnation = Incarnation(1);

    fn commit(worker: u32, sequence: u64) -> ShardEvent {
        ShardEvent::Commit {
            worker: WorkerId(worker),
            incarnation: INCARNATION,
            sequence: Sequence(sequence),
        }
    }

    fn enter(worker: u32, clock: u64) -> ShardEvent {
        ShardEvent::Enter {
            worker: WorkerId(worker),
            incarnation: INCARNATION,
            clock: Clock(clock),
            standing: Standing::Active,
            batch_count: 1,
            answered: Sequence(0),
        }
    }

    fn all(mut deferred: Deferred) -> Vec<ShardEvent> {
        std::iter::from_fn(|| deferred.take()).collect()
    }

    #[test]
    fn what_a_worker_says_over_and_over_waits_once() {
        let worker = WorkerId(0);
        let mut deferred = Deferred::default();
        for number in 0..1000 {
            deferred.put(enter(0, number));
            deferred.put(commit(0, number));
            deferred.put(ShardEvent::Finish { worker });
            deferred.put(commit(0, 3));
            deferred.put(ShardEvent::Reenter { worker, clock: Clock(number) });
        }
        let last = ShardEvent::Reenter { worker, clock: Clock(999) };
        assert_eq!(all(deferred), [enter(0, 999), commit(0, 999), last]);
    }

    #[test]
    fn others_and_their_order_are_left_alone() {
        let worker = WorkerId(0);
        let orders = [
            enter(0, 0),
            commit(0, 1),
            commit(1, 1),
            ShardEvent::Remove { worker },
            ShardEvent::Start,
            enter(0, 4),
            commit(0, 2),
            ShardEvent::Finish { worker },
            ShardEvent::Finish { worker: WorkerId(1) },
        ];
        let mut deferred = Deferred::default();
        orders.iter().cloned().for_each(|order| deferred.put(order));
        assert_eq!(all(deferred), orders);
    }

    fn pull(session: u64, reader: Option<u32>, request: u64, kind: PullKind) -> ShardEvent {
        let reader = reader.map(|worker| (WorkerId(worker), INCARNATION));
        ShardEvent::Pull { session: SessionId(session), reader, request, have: 0, kind }
    }

    const fn gated(clock: u64) -> PullKind {
        PullKind::Gated { clock: Clock(clock), after: Sequence(clock), ahead: 0 }
    }

    fn nothing(session: u64, worker: u32, sequence: u64) -> ShardEvent {
        ShardEvent::Push(Push {
            session: SessionId(session),
            worker: WorkerId(worker),
            incarnation: INCARNATION,
            sequence: Sequence(sequence),
            clock: Clock(sequence),
            pulled: Version(0),
            batch: BatchIndex(0),
            samples: 1,
            reply: 0,
            have: 0,
            gradient: None,
        })
    }

    // Found by reading: an observer that pulled over and over took the places of all, and what a worker asked after that was dropped.
    #[test]
    fn what_a_worker_asks_is_kept_whatever_observers_pull() {
        let mut deferred = Deferred::default();
        for request in 0..100_000 {
            deferred.put(pull(9, None, request, PullKind::Snapshot));
        }
        let asked = [
            nothing(1, 0, 4),
            pull(1, Some(0), 1, gated(4)),
            pull(1, Some(0), 2, PullKind::Snapshot),
            pull(2, Some(1), 1, gated(4)),
        ];
        asked.iter().cloned().for_each(|order| deferred.put(order));
        let last = pull(9, None, 99_999, PullKind::Snapshot);
        assert!(!deferred.is_empty());
        assert_eq!(all(deferred), asked.into_iter().chain([last]).collect::<Vec<_>>());
    }

    #[test]
    fn observers_that_have_gone_keep_no_more_than_there_can_be_sessions() {
        let mut deferred = Deferred::default();
        let sessions = SESSIONS_MAX as u64 + 5;
        (0..sessions).for_each(|session| deferred.put(pull(session, None, 1, PullKind::Snapshot)));
        let kept = all(deferred);
        assert_eq!(kept.len(), SESSIONS_MAX);
        assert_eq!(kept.last(), Some(&pull(sessions - 1, None, 1, PullKind::Snapshot)));
    }

    #[test]
    fn a_worker_that_asks_again_over_another_session_is_answered_there() {
        let mut deferred = Deferred::default();
        for order in [nothing(1, 0, 4), pull(1, Some(0), 7, gated(4)), commit(0, 4)] {
            deferred.put(order);
        }
        for order in [nothing(2, 0, 4), pull(2, Some(0), 1, gated(4)), nothing(1, 0, 4)] {
            deferred.put(order);
        }
        // One for which there is room now was asked before.
        deferred.put_again(pull(2, Some(0), 0, PullKind::Snapshot));
        let again = pull(2, Some(0), 0, PullKind::Snapshot);
        assert_eq!(all(deferred), [nothing(2, 0, 4), commit(0, 4), pull(2, Some(0), 1, gated(4)), again]);
    }

    #[test]
    fn pushes_of_a_broken_worker_are_bounded_and_those_of_others_are_kept() {
        let mut deferred = Deferred::default();
        (0..100_000).for_each(|sequence| deferred.put(nothing(1, 0, sequence)));
        deferred.put(nothing(2, 1, 3));
        let kept = all(deferred);
        assert_eq!((kept.len(), kept.last()), (PUSH_WINDOW + 1, Some(&nothing(2, 1, 3))));
    }
}
