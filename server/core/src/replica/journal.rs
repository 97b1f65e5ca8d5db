//! The journal of a primary: its numbers and moments, the entries that copies still need, and the effects that wait for copies.
//!
//! Bounded: when so many entries, bytes or effects are not at all copies yet, the host takes nothing more in, and whoever sends waits. What an
//! observer pulls counts for none of these, so that nobody who looks on stops those who work: of that, the last of each session waits.
//!
//! Effects that wait share values with the shard. Every version that they keep beside the present one was made by a gradient whose entry is
//! under way, so they keep no more values than the entries may have; while a backup has no state, and so no entries, it is the workers
//! that keep versions few: none of them sends another gradient before its last one is answered.

use std::collections::{BTreeMap, VecDeque};

use std::sync::Arc;

use slackline_core::ids::{Moment, SessionId};

use super::{Entry, Index};
use crate::buffers::Buffers;
use crate::shard::{Push, SNAPSHOTS_MAX, ShardEffect, ShardEvent};

/// Entries that may be under way to copies; and effects that may wait for them when the next event is taken: each event has few (one that
/// releases held pulls has one for each member at most), but a backup that counts and is to be given its state first has no entries.
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
    withheld: VecDeque<Withheld>,
    /// The same of observers, by session: the last snapshot that each has asked for, since it first waited for one.
    snapshots: BTreeMap<SessionId, Withheld>,
}

type Withheld = (Index, Moment, ShardEffect);

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
                buffers.put(gradient.into_words());
            }
        }
    }

    /// The entries after `index`, in order.
    pub(super) fn after_entry(&self, index: Index) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.iter().filter(move |entry| entry.index > index)
    }

    /// Whether there is room for entries of a shard of `keys` keys.
    pub(super) fn has_room(&self, keys: u64) -> bool {
        self.entries.len() < ENTRIES_MAX
            && self.withheld.len() < ENTRIES_MAX
            && self.values < VALUES_MAX.max(GRADIENTS_MAX.saturating_mul(keys))
    }

    /// Lets an effect wait for the last entry. Of the snapshots of an observer's session the last waits; of peers that have gone, some may.
    pub(super) fn withhold(&mut self, now: Moment, effect: ShardEffect) {
        let ShardEffect::Serve { session, reader: None, .. } = effect else {
            self.withheld.push_back((self.index, now, effect));
            return;
        };
        let since = self.snapshots.remove(&session).map_or(now, |(_, since, _)| since);
        if self.snapshots.len() >= SNAPSHOTS_MAX
            && let Some(oldest) =
                self.snapshots.iter().min_by_key(|(_, (index, since, _))| (*index, *since)).map(|(id, _)| *id)
        {
            self.snapshots.remove(&oldest);
        }
        self.snapshots.insert(session, (self.index, since, effect));
    }

    /// The effects that wait for no entry after `confirmed`.
    pub(super) fn release(&mut self, confirmed: Index) -> impl Iterator<Item = ShardEffect> + '_ {
        let mut snapshots = BTreeMap::new();
        if self.snapshots.values().any(|(index, ..)| *index <= confirmed) {
            (snapshots, self.snapshots) = std::mem::take(&mut self.snapshots)
                .into_iter()
                .partition(|(_, (index, ..))| *index <= confirmed);
        }
        let withheld = &mut self.withheld;
        std::iter::from_fn(move || withheld.pop_front_if(|(index, ..)| *index <= confirmed))
            .chain(snapshots.into_values())
            .map(|(_, _, effect)| effect)
    }

    /// Since when an effect waits.
    pub(super) fn withheld_since(&self) -> Option<Moment> {
        self.withheld.front().into_iter().chain(self.snapshots.values()).map(|(_, since, _)| *since).min()
    }

    /// Effects that wait.
    pub(super) fn withheld(&self) -> usize {
        self.withheld.len() + self.snapshots.len()
    }

    #[cfg(test)]
    pub(super) fn entry_count(&self) -> usize {
        self.entries.len()
    }
}

/// A copy, its gradient in one of the `buffers`.
fn copy(event: &ShardEvent, buffers: &Buffers) -> ShardEvent {
    let ShardEvent::Push(push) = event else { return event.clone() };
    let gradient = push.gradient.as_ref().map(|gradient| gradient.copied(|words| buffers.copy(words)));
    let Push { session, worker, incarnation, sequence, clock, pulled, batch, samples, reply, have, .. } =
        *push;
    ShardEvent::Push(Push {
        session,
        worker,
        incarnation,
        sequence,
        clock,
        pulled,
        batch,
        samples,
        reply,
        have,
        gradient,
    })
}

/// Values that an entry keeps in memory, and on a disk.
pub(super) fn values_of(event: &ShardEvent) -> u64 {
    match event {
        ShardEvent::Push(Push { gradient: Some(gradient), .. }) => gradient.words().len() as u64,
        ShardEvent::Initialize(values) => values.len() as u64,
        _ => 0,
    }
}
