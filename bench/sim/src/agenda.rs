//! What is to happen and when: ordered by virtual time, then by the order in which it was decided.
//!
//! Most of what happens does so at the present moment (a message over a link without latency, a batch that is in memory already). It
//! goes through a plain queue; only what lies in the future goes through the heap, and there only as three numbers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use slackline_core::ids::Moment;

/// When, the running number, and the place of what happens.
type Entry = Reverse<(Moment, u64, u32)>;

/// All that is to happen.
#[derive(Debug)]
pub(crate) struct Agenda<T> {
    now: Moment,
    number: u64,
    /// What happens at this very moment, in order. All of it was decided at this moment, so everything in the heap that is due now
    /// was decided before and goes first.
    soon: VecDeque<T>,
    later: BinaryHeap<Entry>,
    places: Slab<T>,
}

impl<T> Agenda<T> {
    pub(crate) fn new() -> Self {
        Self {
            now: Moment(0),
            number: 0,
            soon: VecDeque::new(),
            later: BinaryHeap::new(),
            places: Slab::default(),
        }
    }

    /// The virtual time.
    pub(crate) const fn now(&self) -> Moment {
        self.now
    }

    /// Puts something on the agenda. What would lie in the past happens now.
    pub(crate) fn at(&mut self, when: Moment, what: T) {
        if when <= self.now {
            self.soon.push_back(what);
            return;
        }
        self.number += 1;
        let place = self.places.insert(what);
        self.later.push(Reverse((when, self.number, place)));
    }

    /// Takes what is next at this very moment, if there is something.
    pub(crate) fn next_now(&mut self) -> Option<T> {
        let is_due = self.later.peek().is_some_and(|Reverse((when, _, _))| *when == self.now);
        if is_due || !self.soon.is_empty() { self.next() } else { None }
    }

    /// Takes what is next, and moves the time there.
    pub(crate) fn next(&mut self) -> Option<T> {
        let is_due = self.later.peek().is_some_and(|Reverse((when, _, _))| *when == self.now);
        if !is_due && let Some(what) = self.soon.pop_front() {
            return Some(what);
        }
        let Reverse((when, _, place)) = self.later.pop()?;
        self.now = when;
        self.places.remove(place)
    }
}

/// Things in numbered places, which are used again.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Puts something into a free place and says which.
    pub(crate) fn insert(&mut self, what: T) -> u32 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = Some(what);
            return place;
        }
        self.places.push(Some(what));
        self.places.len() as u32 - 1
    }

    /// What lies in a place.
    pub(crate) fn get(&self, place: u32) -> Option<&T> {
        self.places.get(place as usize)?.as_ref()
    }

    /// Takes what lies in a place; the place is free then.
    pub(crate) fn remove(&mut self, place: u32) -> Option<T> {
        let what = self.places.get_mut(place as usize)?.take();
        if what.is_some() {
            self.free.push(place);
        }
        what
    }

    /// Places that are taken.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_happen_in_the_order_of_time_and_then_of_decision() {
        let mut agenda = Agenda::new();
        agenda.at(Moment(5), "third");
        agenda.at(Moment(0), "first");
        agenda.at(Moment(5), "fourth");
        agenda.at(Moment(3), "second");
        let mut order = Vec::new();
        while let Some(what) = agenda.next() {
            if what == "third" {
                // Decided at the moment at which it happens: after all that was decided before.
                agenda.at(Moment(5), "fifth");
                agenda.at(Moment(4), "sixth");
            }
            order.push((agenda.now().0, what));
        }
        let expected = [(0, "first"), (3, "second"), (5, "third"), (5, "fourth"), (5, "fifth"), (5, "sixth")];
        assert_eq!(order, expected);
        assert_eq!(agenda.places.len(), 0);
    }
}
