//! The read rule (Ho et al. 2013, section 3; Dai et al. 2015, the rule of Bosen): values served to a worker at clock c include the first
//! c - s iterations of every live worker, and all pushes of the reader itself.
//!
//! That a serve was right can show only later: a worker that counted at the time must never push an iteration below c - s afterwards. So
//! each serve writes down a promise for every worker that counts, and each push is held against it.

use std::collections::BTreeMap;

use slackline_core::consistency::{PolicySpec, Standing};
use slackline_core::ids::{Incarnation, Sequence, ShardId, WorkerId};
use slackline_core::wire::{PullKind, Pushed};
use slackline_server_core::shard::Push;
use slackline_server_core::{Shard, ShardEvent};

use crate::simulation::sight::{Law, Sight, Verdict, holds};

const LAW: &str = "read rule";

/// A worker as the rule sees it at one shard.
#[derive(Clone, Debug)]
struct Row {
    incarnation: Incarnation,
    /// It is in the clock table and has pushed since it came, or was there from the beginning.
    counts: bool,
    /// It is in the clock table.
    present: bool,
    /// Iterations below this one were promised to some reader.
    promised: u64,
    /// Its pushes: clock, and whether it is known what became of them.
    pushes: BTreeMap<Sequence, (u64, bool)>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ReadRule {
    staleness: Option<u64>,
    shards: BTreeMap<ShardId, BTreeMap<WorkerId, Row>>,
}

impl ReadRule {
    pub(crate) fn new(policy: PolicySpec) -> Self {
        Self { staleness: policy.staleness(), shards: BTreeMap::new() }
    }

    fn before(&mut self, shard: &Shard, event: &ShardEvent) -> Verdict {
        let rows = self.shards.entry(shard.id()).or_default();
        match event {
            ShardEvent::Enter { worker, incarnation, standing, .. } => {
                let counts = *standing == Standing::Active;
                let (promised, pushes) = (0, BTreeMap::new());
                let row = Row { incarnation: *incarnation, counts, present: true, promised, pushes };
                rows.insert(*worker, row);
            }
            ShardEvent::Reenter { worker, .. } => {
                if let Some(row) = rows.get_mut(worker) {
                    (row.counts, row.present, row.promised) = (false, true, 0);
                }
            }
            ShardEvent::Finish { worker } => {
                if let Some(row) = rows.get_mut(worker) {
                    (row.counts, row.present, row.promised) = (false, false, 0);
                }
            }
            ShardEvent::Remove { worker } => drop(rows.remove(worker)),
            ShardEvent::Push(push) => return Self::arrives(shard, rows, push),
            _ => {}
        }
        Ok(())
    }

    fn arrives(shard: &Shard, rows: &mut BTreeMap<WorkerId, Row>, push: &Push) -> Verdict {
        let Some(row) = rows.get_mut(&push.worker) else { return Ok(()) };
        if row.incarnation != push.incarnation || row.pushes.contains_key(&push.sequence) {
            return Ok(());
        }
        let is_kept = !row.counts || push.clock.0 >= row.promised;
        row.pushes.insert(push.sequence, (push.clock.0, false));
        row.counts = row.present;
        holds(LAW, is_kept, || {
            format!(
                "{} of {} at {} came to {}, which had served values that should include all below clock {}",
                push.sequence,
                push.worker,
                push.clock,
                shard.id(),
                row.promised
            )
        })?;
        holds("clock table", row.present, || {
            format!("{} pushes to {} without being in its clock table", push.worker, shard.id())
        })
    }

    fn answered(&mut self, shard: &Shard, speaker: (WorkerId, Incarnation), pushed: &Pushed) {
        let rows = self.shards.entry(shard.id()).or_default();
        if let Some(row) = rows.get_mut(&speaker.0).filter(|row| row.incarnation == speaker.1)
            && let Some(push) = row.pushes.get_mut(&pushed.sequence)
        {
            push.1 = true;
        }
    }

    fn served(&mut self, shard: &Shard, reader: (WorkerId, Incarnation), asked: PullKind) -> Verdict {
        let (PullKind::Gated { clock, after } | PullKind::Fresher { clock, after, .. }) = asked else {
            return Ok(());
        };
        let rows = self.shards.entry(shard.id()).or_default();
        let own = rows.get(&reader.0).filter(|row| row.incarnation == reader.1);
        let Some(own) = own else {
            return holds(LAW, false, || format!("{} served {reader:?}, which is no member", shard.id()));
        };
        let has = |sequence| own.pushes.get(&Sequence(sequence)).is_some_and(|push| push.1);
        let missing = (1..=after.0).find(|sequence| !has(*sequence));
        holds(LAW, missing.is_none(), || {
            format!("{} served {reader:?} at {clock} without its own push {missing:?}", shard.id())
        })?;
        let Some(staleness) = self.staleness else { return Ok(()) };
        let needs = clock.0.saturating_sub(staleness);
        for (worker, row) in rows.iter_mut().filter(|(worker, row)| row.counts && **worker != reader.0) {
            let open = row.pushes.iter().find(|(_, push)| push.0 < needs && !push.1);
            holds(LAW, open.is_none(), || {
                let id = shard.id();
                format!("{id} served {reader:?} at {clock} while {open:?} of {worker} was not in the values")
            })?;
            row.promised = row.promised.max(needs);
        }
        Ok(())
    }
}

impl Law for ReadRule {
    fn see(&mut self, sight: &Sight<'_>) -> Verdict {
        match sight {
            Sight::Before { shard, event, .. } => self.before(shard, event),
            Sight::Answered { shard, speaker, pushed } => {
                self.answered(shard, *speaker, pushed);
                Ok(())
            }
            Sight::Served { shard, reader, asked, .. } => self.served(shard, *reader, *asked),
            _ => Ok(()),
        }
    }
}
