//! States that were loaded, and whether a checkpoint is all that is left of the run.
//!
//! A shard that goes on from a checkpoint while the others keep what they have costs only what it lost itself. But where every shard has gone
//! back to the same one, and nothing was done meanwhile that the first of them would still have, what the coordinator knows of the data is
//! newer than anything that is left: it goes back as well, so that shards and data are one cut again, as in a run that is resumed.

use std::collections::BTreeSet;

use bincode::{Decode, Encode};
use slackline_core::ids::{Clock, Generation, ShardId};
use slackline_core::wire::{Origin, Place};

use super::map::Standing;
use super::rounds::Rounds;
use super::{Cluster, ClusterNotice, Kept, Out, View};

/// Shards that went back to one checkpoint, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct Restores {
    number: u64,
    shards: BTreeSet<ShardId>,
    /// Batches that can be done meanwhile without any shard: those that workers have, and have not reported.
    most: u64,
}

impl Cluster {
    /// A loaded state is in force.
    pub(super) fn restored(&mut self, shard: ShardId, generation: Generation, clock: Clock) {
        let Some(origin) = self.kept.map.restored(shard, generation) else { return };
        self.kept.is_changed = true;
        let (clock, lost) = match origin {
            Origin::Checkpoint { number } => {
                // A shard without members has no clock of its own; what is below the marker it has in any case.
                let clock = clock.max(self.marker_of(number).unwrap_or_default());
                (clock, self.kept.progress.0.saturating_sub(clock.0))
            }
            _ => (clock, 0),
        };
        self.kept.notices.push(ClusterNotice::Restored { shard, origin, clock, lost });
    }

    /// A state could not be loaded.
    pub(super) fn not_restored(&mut self, shard: ShardId, generation: Generation, why: &str) {
        let newest = self.newest();
        let verdict = self.kept.map.not_restored((shard, generation), why, newest, &mut self.kept.notices);
        self.kept.is_changed = true;
        if let Err(text) = verdict {
            self.kept.failure.get_or_insert(text);
        }
    }

    /// The marker clock of a checkpoint, where that is the newest or the one that the run goes on from.
    fn marker_of(&self, number: u64) -> Option<Clock> {
        let newest = self.kept.rounds.as_ref().and_then(Rounds::newest_marker);
        newest.into_iter().chain(self.kept.from).find(|(of, _)| *of == number).map(|(_, clock)| clock)
    }

    /// The newest checkpoint.
    pub(super) fn newest(&self) -> Option<u64> {
        let of_run = self.kept.rounds.as_ref().and_then(Rounds::newest);
        of_run.or(self.resumed())
    }

    /// The work begins: what is loaded by now is what it begins with.
    pub(super) fn note_beginning(&mut self) {
        let slots = self.kept.map.slots.iter();
        self.kept.loads = slots.map(|(shard, slot)| (*shard, slot.place.generation)).collect();
    }

    /// Takes note of shards that load a checkpoint. Whether all have by now, so that the data are to go back to it too.
    pub(super) fn settle_restores(&mut self, view: &View<'_>, out: &mut Vec<Out>) -> bool {
        if !self.kept.is_trained {
            return false;
        }
        let Kept { map, loads, restores, .. } = &mut self.kept;
        for slot in map.slots.values().filter(|slot| slot.standing == Standing::Loads) {
            let Place { shard, generation, origin: Origin::Checkpoint { number }, .. } = slot.place else {
                continue;
            };
            if loads.insert(shard, generation) == Some(generation) {
                continue;
            }
            // What was done since the first of them survives there.
            *restores = restores.take_if(|known| known.number == number && view.done <= known.most);
            let first = || Restores { number, shards: BTreeSet::new(), most: view.done + view.in_hand };
            restores.get_or_insert_with(first).shards.insert(shard);
        }
        let is_held = map.slots.values().all(|slot| slot.standing == Standing::Held);
        let is_all = |known: &mut Restores| is_held && known.shards.len() == map.slots.len();
        let Some(Restores { number, .. }) = restores.take_if(is_all) else { return false };
        self.kept.rounds.iter_mut().for_each(|rounds| rounds.goes_back(number));
        out.push(Out::GoBack { number });
        true
    }
}
