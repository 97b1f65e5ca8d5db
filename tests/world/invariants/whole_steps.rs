//! With whole steps all shards take in the same steps of every worker, whoever dies when.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::config::Steps;
use slackline_core::ids::{Incarnation, Sequence, ShardId, WorkerId};
use slackline_core::wire::PushOutcome;
use slackline_server_core::ShardEvent;

use crate::simulation::Scenario;
use crate::simulation::sight::{Law, Sight, Verdict, holds};

const LAW: &str = "shards agree";

/// A step by its name.
type Step = (WorkerId, Incarnation, Sequence);

/// See the module.
#[derive(Debug)]
pub(crate) struct WholeSteps {
    is_whole: bool,
    taken: BTreeMap<ShardId, BTreeSet<Step>>,
    arrived: BTreeMap<ShardId, BTreeSet<Step>>,
    /// Steps that waited when another copy took over: nobody hears what becomes of them, unless they come again.
    orphans: BTreeMap<ShardId, BTreeSet<Step>>,
}

impl WholeSteps {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            is_whole: scenario.steps == Steps::Whole,
            taken: BTreeMap::new(),
            arrived: BTreeMap::new(),
            orphans: BTreeMap::new(),
        }
    }
}

impl Law for WholeSteps {
    fn see(&mut self, sight: &Sight<'_>) -> Verdict {
        match sight {
            Sight::Restored { .. } => self.is_whole = false,
            Sight::CutBack { is_kept, .. } => self.is_whole &= is_kept,
            Sight::Before { shard, event: ShardEvent::Push(push), .. } => {
                let step = (push.worker, push.incarnation, push.sequence);
                self.arrived.entry(shard.id()).or_default().insert(step);
            }
            Sight::Before { shard, event: ShardEvent::Lead { .. }, .. } => {
                let arrived = self.arrived.get(&shard.id()).cloned().unwrap_or_default();
                let taken = self.taken.entry(shard.id()).or_default();
                let waiting = arrived.difference(taken).copied();
                self.orphans.entry(shard.id()).or_default().extend(waiting);
            }
            Sight::Before { shard, event: ShardEvent::Resolve { worker, incarnation, through }, .. } => {
                // What waits of a worker that is gone is taken in; there is nobody to be told.
                let of_it = (*worker, *incarnation, Sequence(0))..=(*worker, *incarnation, *through);
                let arrived = self.arrived.entry(shard.id()).or_default();
                let steps: Vec<Step> = arrived.range(of_it).copied().collect();
                self.taken.entry(shard.id()).or_default().extend(steps);
            }
            Sight::Answered { shard, speaker: (worker, incarnation), pushed } => {
                let is_taken = matches!(
                    pushed.outcome,
                    PushOutcome::Applied { .. }
                        | PushOutcome::Gathered { .. }
                        | PushOutcome::Dropped(_)
                        | PushOutcome::Nothing
                );
                if is_taken {
                    let step = (*worker, *incarnation, pushed.sequence);
                    self.taken.entry(shard.id()).or_default().insert(step);
                }
            }
            Sight::Over { shards, .. } if self.is_whole => {
                let none = BTreeSet::new();
                let of = |shard: ShardId| self.taken.get(&shard).unwrap_or(&none);
                let is_orphan = |step: &&Step| self.orphans.values().any(|orphans| orphans.contains(*step));
                for pair in shards.windows(2) {
                    let (left, right) = (of(pair[0].id()), of(pair[1].id()));
                    let differ: Vec<_> =
                        left.symmetric_difference(right).filter(|step| !is_orphan(step)).take(3).collect();
                    holds(LAW, differ.is_empty(), || {
                        format!(
                            "{} and {} do not have the same steps: {differ:?}",
                            pair[0].id(),
                            pair[1].id()
                        )
                    })?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn forget(&mut self, shard: ShardId) {
        self.taken.remove(&shard);
        self.arrived.remove(&shard);
        self.orphans.remove(&shard);
    }
}
