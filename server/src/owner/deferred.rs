//! Orders for a shard that came while it could take none (its journal's disk is full): kept in their order, in bounded memory.

use std::collections::VecDeque;

use slackline_server_core::ShardEvent;

/// Pulls and pushes without values that wait at most. Their senders ask again.
const REPEATABLE_MAX: usize = 65_536;

/// See the module.
#[derive(Default)]
pub(super) struct Deferred {
    events: VecDeque<ShardEvent>,
    repeatable: usize,
}

impl Deferred {
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Keeps an order. What a worker says over and over is kept once, so that none of them can fill the memory: of its commits the
    /// furthest, of its comings and goings in the clock table the last, of its registrations the last of an incarnation.
    pub(super) fn put(&mut self, event: ShardEvent) {
        if is_repeatable(&event) {
            if self.repeatable < REPEATABLE_MAX {
                self.repeatable += 1;
                self.events.push_back(event);
            }
            return;
        }
        let mut of_it = self.events.iter().enumerate().rev().filter(|(_, earlier)| {
            earlier.worker() == event.worker() && (is_end(earlier) || stands_for(&event, earlier))
        });
        // Nothing is moved across the end of a member.
        match of_it.next().filter(|(_, earlier)| !is_end(earlier)).map(|(place, _)| place) {
            None => self.events.push_back(event),
            Some(place) => match (&mut self.events[place], event) {
                (ShardEvent::Commit { sequence: earlier, .. }, ShardEvent::Commit { sequence, .. }) => {
                    *earlier = sequence.max(*earlier);
                }
                (earlier @ ShardEvent::Enter { .. }, event) => *earlier = event,
                (_, event) => {
                    self.events.remove(place);
                    self.events.push_back(event);
                }
            },
        }
    }

    pub(super) fn take(&mut self) -> Option<ShardEvent> {
        let event = self.events.pop_front()?;
        self.repeatable -= usize::from(is_repeatable(&event));
        Some(event)
    }
}

const fn is_repeatable(event: &ShardEvent) -> bool {
    matches!(event, ShardEvent::Pull { .. } | ShardEvent::Push(_))
}

/// Whether a worker was a member until then.
const fn is_end(event: &ShardEvent) -> bool {
    matches!(event, ShardEvent::Remove { .. } | ShardEvent::Fence { .. } | ShardEvent::Resolve { .. })
}

/// Whether `later` makes `earlier` needless.
fn stands_for(later: &ShardEvent, earlier: &ShardEvent) -> bool {
    use ShardEvent::{Commit, Enter, Finish, Reenter};
    match (later, earlier) {
        (Commit { worker, incarnation, .. }, Commit { worker: earlier, incarnation: before, .. })
        | (Enter { worker, incarnation, .. }, Enter { worker: earlier, incarnation: before, .. }) => {
            (worker, incarnation) == (earlier, before)
        }
        (
            Finish { worker } | Reenter { worker, .. },
            Finish { worker: earlier } | Reenter { worker: earlier, .. },
        ) => worker == earlier,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use slackline_core::consistency::Standing;
    use slackline_core::ids::{Clock, Incarnation, Sequence, SessionId, WorkerId};
    use slackline_core::wire::PullKind;

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

    #[test]
    fn pulls_beyond_the_bound_are_asked_again() {
        let pull = |request| ShardEvent::Pull {
            session: SessionId(1),
            reader: None,
            request,
            kind: PullKind::Snapshot,
        };
        let mut deferred = Deferred::default();
        let more = REPEATABLE_MAX as u64 + 5;
        (0..more).for_each(|request| deferred.put(pull(request)));
        deferred.put(commit(0, 1));
        assert_eq!(deferred.take(), Some(pull(0)));
        deferred.put(pull(more));
        assert_eq!(deferred.events.len(), REPEATABLE_MAX + 1);
        assert_eq!(all(deferred).last(), Some(&pull(more)));
    }
}
