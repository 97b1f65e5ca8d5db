//! Every queue has a bound (design brief, section 6): held pulls by the members, gradients at a worker by two. The windows of pushes
//! are checked by the shard itself.

use std::collections::BTreeMap;

use slackline_core::ids::{Incarnation, ShardId, WorkerId};
use slackline_core::wire::PullKind;
use slackline_server_core::ShardEvent;

use crate::simulation::sight::{Law, Sight, Verdict, holds};

const LAW: &str = "bounded queues";

/// Gradients that a worker may keep: one being pushed, one being computed or waiting.
const GRADIENTS_MAX: usize = 2;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct BoundedQueues {
    members: BTreeMap<ShardId, BTreeMap<WorkerId, Incarnation>>,
}

impl Law for BoundedQueues {
    fn see(&mut self, sight: &Sight<'_>) -> Verdict {
        match sight {
            Sight::Before { shard, event, .. } => {
                let members = self.members.entry(shard.id()).or_default();
                match event {
                    ShardEvent::Enter { worker, incarnation, .. } => {
                        members.insert(*worker, *incarnation);
                    }
                    ShardEvent::Remove { worker } => drop(members.remove(worker)),
                    ShardEvent::Fence { worker, incarnation }
                    | ShardEvent::Resolve { worker, incarnation, .. } => {
                        members.retain(|one, of| (one, &*of) != (worker, incarnation));
                    }
                    ShardEvent::Lead { members: named, .. } => {
                        members.extend(named.iter().map(|(worker, incarnation, _)| (*worker, *incarnation)));
                    }
                    _ => {}
                }
                Ok(())
            }
            // The members that a checkpoint has are not known here.
            Sight::Restored { shard, .. } | Sight::Resumed { shard, .. } => {
                self.members.insert(shard.id(), shard.members().collect());
                Ok(())
            }
            Sight::After { shard } => {
                let members = self.members.get(&shard.id()).map_or(0, BTreeMap::len);
                let gated = shard.held().filter(|held| held.kind != PullKind::Snapshot).count();
                holds(LAW, gated <= members, || {
                    format!(
                        "{} holds {gated} gated pulls of {members} members: {:?}",
                        shard.id(),
                        shard.held().collect::<Vec<_>>()
                    )
                })
            }
            Sight::Keeps { process, gradients } => holds(LAW, *gradients <= GRADIENTS_MAX, || {
                format!("process {process} keeps {gradients} gradients")
            }),
            _ => Ok(()),
        }
    }

    fn forget(&mut self, shard: ShardId) {
        self.members.remove(&shard);
    }
}
