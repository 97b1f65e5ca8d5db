//! A run that goes on from a checkpoint never goes back behind it: not by its clocks, not by its values, and not by what it loads when it
//! loses a server (tensorflow issue 7767: a server came back with values as if nothing had been trained).

use std::collections::BTreeMap;

use slackline_core::ids::{Clock, ShardId, Version};
use slackline_server_core::ShardEvent;

use crate::simulation::sight::{Law, Sight, Verdict, holds};

const LAW: &str = "a resumed run goes on";

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Resumed {
    /// The number of the checkpoint, its marker clock, and the last incarnation of the life before.
    from: Option<(u64, Clock)>,
    began_at: BTreeMap<ShardId, Version>,
}

impl Law for Resumed {
    fn see(&mut self, sight: &Sight<'_>) -> Verdict {
        if let Sight::Resumed { shard, position, .. } = sight {
            self.from = Some((position.number, position.clock));
            self.began_at.insert(shard.id(), shard.version());
            let is_there = shard.values().is_some() && shard.version().0 > 0;
            holds(LAW, is_there, || format!("{} begins with {} and no values", shard.id(), shard.version()))?;
            let former = shard.members().find(|(_, incarnation)| *incarnation <= position.incarnation);
            return holds(LAW, former.is_none(), || {
                format!("{} begins with {former:?}, of the life before", shard.id())
            });
        }
        let Some((number, from)) = self.from else { return Ok(()) };
        match sight {
            Sight::Before { shard, event: ShardEvent::Push(push), .. } => {
                holds(LAW, push.clock >= from, || {
                    format!(
                        "{} pushes at {} to {}, which goes on from {from}",
                        push.worker,
                        push.clock,
                        shard.id()
                    )
                })
            }
            Sight::Before { shard, event: ShardEvent::Enter { worker, clock, .. }, .. } => {
                holds(LAW, *clock >= from, || {
                    format!("{worker} enters {} at {clock}, which goes on from {from}", shard.id())
                })
            }
            Sight::After { shard } => {
                let began = self.began_at.get(&shard.id()).copied().unwrap_or_default();
                let minimum = shard.table().minimum().unwrap_or(from);
                holds(LAW, shard.version() >= began && minimum >= from, || {
                    format!("{} is at {} and {minimum}, it began at {began}", shard.id(), shard.version())
                })
            }
            Sight::Restored { mark, .. } => holds(LAW, mark.number >= number, || {
                format!("checkpoint {} is loaded, the run goes on from {number}", mark.number)
            }),
            _ => Ok(()),
        }
    }
}
