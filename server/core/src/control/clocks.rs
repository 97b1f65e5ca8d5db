//! The clocks of the members, with the smallest of them at hand: the coordinator is asked for it after every event.

use std::collections::BTreeMap;

use slackline_core::ids::{Clock, WorkerId};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Clocks {
    of: BTreeMap<WorkerId, Clock>,
    /// How many members are at each clock.
    counts: BTreeMap<Clock, u32>,
}

impl Clocks {
    pub(super) fn insert(&mut self, worker: WorkerId, clock: Clock) {
        self.remove(worker);
        self.of.insert(worker, clock);
        *self.counts.entry(clock).or_default() += 1;
    }

    /// A member is at this clock at least.
    pub(super) fn raise(&mut self, worker: WorkerId, clock: Clock) {
        if self.get(worker).is_some_and(|known| known < clock) {
            self.insert(worker, clock);
        }
    }

    pub(super) fn remove(&mut self, worker: WorkerId) {
        let Some(clock) = self.of.remove(&worker) else { return };
        if let Some(count) = self.counts.get_mut(&clock) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&clock);
            }
        }
    }

    pub(super) fn get(&self, worker: WorkerId) -> Option<Clock> {
        self.of.get(&worker).copied()
    }

    /// The smallest; none where nobody is a member.
    pub(super) fn minimum(&self) -> Option<Clock> {
        self.counts.keys().next().copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (WorkerId, Clock)> + '_ {
        self.of.iter().map(|(worker, clock)| (*worker, *clock))
    }
}

impl FromIterator<(WorkerId, Clock)> for Clocks {
    fn from_iter<T: IntoIterator<Item = (WorkerId, Clock)>>(members: T) -> Self {
        let mut clocks = Self::default();
        members.into_iter().for_each(|(worker, clock)| clocks.insert(worker, clock));
        clocks
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_minimum_is_that_of_the_members(steps in prop::collection::vec((0..5_u32, 0..6_u64, 0..3_u8), 0..60)) {
            let (mut clocks, mut plain) = (Clocks::default(), BTreeMap::new());
            for (worker, clock, step) in steps {
                let (worker, clock) = (WorkerId(worker), Clock(clock));
                match step {
                    0 => {
                        clocks.insert(worker, clock);
                        plain.insert(worker, clock);
                    }
                    1 => {
                        clocks.raise(worker, clock);
                        plain.entry(worker).and_modify(|known: &mut Clock| *known = (*known).max(clock));
                    }
                    _ => {
                        clocks.remove(worker);
                        plain.remove(&worker);
                    }
                }
                prop_assert_eq!(clocks.minimum(), plain.values().min().copied());
                prop_assert_eq!(clocks.iter().collect::<BTreeMap<_, _>>(), plain.clone());
            }
        }
    }
}
