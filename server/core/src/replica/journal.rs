//! The journal of a primary: its numbers and moments, the entries that copies still need, and the effects that wait for copies.
//!
//! Bounded: when so many entries or bytes are not at all copies yet, the host takes nothing more in, and whoever sends waits.

use std::collections::VecDeque;

use std::sync::Arc;

use slackline_core::ids::Moment;

use super::{Entry, Index};
use crate::buffers::Buffers;
use crate::shard::{Push, ShardEffect, ShardEvent};

/// Entries that may be under way to copies.
const ENTRIES_MAX: usize = 4096;

/// Values of gradients that may be under way, for small shards: 64 MiB.
const VALUES_MAX: u64 = 16 << 20;

/// Gradients that may be under way, for large ones: a backup that is given a state of two or three times the size needs so many meanwhile.
const GRADIENTS_MAX: u64 = 16;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal {
    /// The last entry.
    index: Index,
    /// Its moment.
    at: Moment,
    /// Entries that a copy needs.
    entries: VecDeque<Arc<Entry>>,
    values: u64,
    /// Effects with the entry that must be at the copies first, and since when.
    withheld: VecDeque<(Index, Moment, ShardEffect)>,
}

impl Journal {
    /// The journal after an entry that was taken elsewhere.
    pub(super) fn after(index: Index, at: Moment) -> Self {
        Self { index, at, ..Self::default() }
    }

    pub(super) const fn index(&self) -> Index {
        self.index
    }

    pub(super) const fn at(&self) -> Moment {
        self.at
    }

    /// Numbers the next entry. Its moment is never before that of the one before.
    pub(super) fn next(&mut self, at: Moment) -> (Index, Moment) {
        self.index = Index(self.index.0.saturating_add(1));
        self.at = self.at.max(at);
        (self.index, self.at)
    }

    /// Keeps the last entry for copies, with its gradient in one of the `buffers`: the shard uses its event up.
    pub(super) fn keep(&mut self, event: &ShardEvent, buffers: &Buffers) -> Arc<Entry> {
        let entry = Arc::new(Entry { index: self.index, at: self.at, event: copy(event, buffers) });
        self.values += values_of(event);
        self.entries.push_back(entry.clone());
        entry
    }

    /// Forgets the entries that no copy needs any more: those up to `index`.
    pub(super) fn forget(&mut self, index: Index, buffers: &Buffers) {
        while self.entries.front().is_some_and(|entry| entry.index <= index) {
            let Some(entry) = self.entries.pop_front() else { return };
            self.values -= values_of(&entry.event);
            // Whoever sends it can have it still; then its buffer goes with it.
            if let Some(Entry { event: ShardEvent::Push(Push { gradient: Some(gradient), .. }), .. }) =
                Arc::into_inner(entry)
            {
                buffers.put(gradient);
            }
        }
    }

    /// The entries after `index`, in order.
    pub(super) fn after_entry(&self, index: Index) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.iter().filter(move |entry| entry.index > index)
    }

    /// Whether there is room for entries of a shard of `keys` keys.
    pub(super) fn has_room(&self, keys: u64) -> bool {
        self.entries.len() < ENTRIES_MAX && self.values < VALUES_MAX.max(GRADIENTS_MAX.saturating_mul(keys))
    }

    /// Lets an effect wait for the last entry.
    pub(super) fn withhold(&mut self, now: Moment, effect: ShardEffect) {
        self.withheld.push_back((self.index, now, effect));
    }

    /// The effects that wait for no entry after `confirmed`.
    pub(super) fn release(&mut self, confirmed: Index) -> impl Iterator<Item = ShardEffect> + '_ {
        std::iter::from_fn(move || {
            let (_, _, effect) = self.withheld.pop_front_if(|(index, _, _)| *index <= confirmed)?;
            Some(effect)
        })
    }

    /// Since when an effect waits.
    pub(super) fn withheld_since(&self) -> Option<Moment> {
        self.withheld.front().map(|(_, since, _)| *since)
    }

    #[cfg(test)]
    pub(super) fn entry_count(&self) -> usize {
        self.entries.len()
    }
}

/// A copy, its gradient in one of the `buffers`.
fn copy(event: &ShardEvent, buffers: &Buffers) -> ShardEvent {
    let ShardEvent::Push(push) = event else { return event.clone() };
    let gradient = push.gradient.as_ref().map(|gradient| buffers.copy(gradient));
    let Push { session, worker, incarnation, sequence, clock, pulled, batch, samples, .. } = *push;
    ShardEvent::Push(Push { session, worker, incarnation, sequence, clock, pulled, batch, samples, gradient })
}

/// Values that an entry keeps in memory, and on a disk.
pub(super) fn values_of(event: &ShardEvent) -> u64 {
    match event {
        ShardEvent::Push(Push { gradient: Some(values), .. }) | ShardEvent::Initialize(values) => {
            values.len() as u64
        }
        _ => 0,
    }
}
