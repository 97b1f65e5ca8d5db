//! What always holds of the coordinator's part, for tests and the simulated world.

use std::collections::BTreeMap;

use slackline_core::ids::Moment;
use slackline_core::limits::PLACES_MAX;
use slackline_core::wire::{Origin, Place};

use super::map::Standing;
use super::{Cluster, Kept, View};

impl Cluster {
    /// Where it rests, being settled once more gives nothing.
    pub(in crate::control) fn check_rest(&self, now: Moment, view: &View<'_>) {
        // Whoever only looks on does not settle what is due.
        if self.is_due {
            return;
        }
        let (mut again, mut out) = (Self { is_due: true, ..self.clone() }, Vec::new());
        again.settle(now, view, &mut out);
        assert!(
            out.is_empty() && again.kept == self.kept,
            "the coordinator rests, and {out:?} is to be done"
        );
    }

    pub(in crate::control) fn check_invariants(&self) {
        let Kept { stored, map, number, .. } = &self.kept;
        assert!(stored.number <= *number, "a map is in force that was never made");
        for place in &stored.places {
            let now = map.slots.get(&place.shard).map(|slot| slot.place.generation).unwrap_or_default();
            assert!(place.generation <= now, "{} went back from {} to {now}", place.shard, place.generation);
        }
        let mut places_of = BTreeMap::new();
        for (shard, slot) in &map.slots {
            let Place { primary, backup, .. } = slot.place;
            assert!(
                backup.is_none_or(|backup| backup.server != primary),
                "{shard} has both copies at {primary}"
            );
            let is_lost = slot.standing == Standing::Held && slot.place.origin == Origin::Nothing;
            assert!(!self.kept.is_trained || !is_lost, "{shard} could begin without values again");
            for server in [Some(primary), backup.map(|backup| backup.server)].into_iter().flatten() {
                *places_of.entry(server).or_insert(0_usize) += 1;
            }
        }
        for (server, places) in places_of {
            assert!(places <= PLACES_MAX, "{server} has {places} places, which no order can name");
        }
    }
}
