//! Across the shards: a worker pushes every iteration to all of them.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::ids::{ServerId, ShardId};

use super::replay::{Life, Name};
use crate::breach::{Breach, Law};
use crate::files::Ending;
use crate::numbers::Numbers;

/// What one shard knows of the pushes of all lives.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) server: ServerId,
    pub(super) shard: ShardId,
    pub(super) lives: BTreeMap<Name, Life>,
    pub(super) ending: Ending,
}

impl Known {
    /// The numbers that reached it, taken or not.
    fn heard(&self, name: &Name) -> Numbers {
        let Some(life) = self.lives.get(name) else { return Numbers::default() };
        let mut heard = life.arrived.clone();
        for (first, last) in life.refused.runs() {
            (first..=last).for_each(|number| _ = heard.insert(number));
        }
        heard
    }
}

/// Every push that one shard took must have reached all others. A worker sends the next only when all have answered, so its very last
/// may be missing: the worker died, or the run was ended, with that one on its way.
pub(super) fn check(shards: &[Known]) -> Vec<Breach> {
    let names: BTreeSet<Name> = shards.iter().flat_map(|known| known.lives.keys().copied()).collect();
    let mut breaches = Vec::new();
    for name in names {
        let last = shards.iter().filter_map(|known| known.lives.get(&name)?.arrived.last()).max();
        for (known, heard) in shards.iter().map(|known| (known, known.heard(&name))) {
            let missing = shards.iter().filter_map(|other| {
                let sequence = other.lives.get(&name)?.arrived.first_missing_in(&heard)?;
                Some((sequence, other))
            });
            let Some((sequence, other)) = missing.min_by_key(|(sequence, _)| *sequence) else { continue };
            // A trace that ended before its shard did knows nothing of what came then.
            let is_beyond = known.ending != Ending::Well && Some(sequence) > heard.last();
            if Some(sequence) < last && !is_beyond {
                let why = format!(
                    "push {sequence} of {} ({}) reached {} of {}, and never {}, though the worker went on to push {}",
                    name.0,
                    name.1,
                    other.shard,
                    other.server,
                    known.shard,
                    last.unwrap_or(sequence),
                );
                let events = known.lives.get(&name).and_then(|life| life.last).into_iter().collect();
                breaches.push(Breach {
                    law: Law::EveryShard,
                    server: known.server,
                    shard: known.shard,
                    why,
                    events,
                });
            }
        }
    }
    breaches
}
