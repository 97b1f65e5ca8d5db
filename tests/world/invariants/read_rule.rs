//! The read rule (Ho et al. 2013, section 3; Dai et al. 2015, the rule of Bosen): values that a worker uses at clock c include the first
//! c - s iterations of every live worker, and all pushes of the reader itself; all but the last where it pulls ahead.
//!
//! Case 37 (apache/mxnet#841): who asked for a bound on the delay was declined; here it holds for every pull that is served.
//!
//! That a serve was right can show only later: a worker that counted at the time must never push an iteration below c - s afterwards. So
//! each serve writes down a promise for every worker that counts, and each push is held against it.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::config::Steps;
use slackline_core::consistency::Standing;
use slackline_core::ids::{Clock, Incarnation, Sequence, ShardId, WorkerId};
use slackline_core::wire::{PullKind, Pushed};
use slackline_server_core::shard::Push;
use slackline_server_core::{Shard, ShardEvent};

use crate::simulation::Scenario;
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
    /// Pushes up to here were answered before it came.
    before: u64,
    /// It was removed.
    gone: bool,
}

impl Row {
    const fn new(incarnation: Incarnation, counts: bool, before: u64) -> Self {
        Self { incarnation, counts, present: true, promised: 0, pushes: BTreeMap::new(), before, gone: false }
    }

    /// It is no member any more, though it may be once more where another copy takes over.
    fn leave(&mut self) {
        (self.counts, self.present, self.promised, self.gone) = (false, false, 0, true);
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ReadRule {
    staleness: Option<u64>,
    /// A push counts when its step is whole, and not when it arrives.
    is_whole: bool,
    /// Pushes of its own that a worker may miss in what it computes on.
    prefetch: u64,
    /// Workers can be moved up while they pull.
    is_moved: bool,
    shards: BTreeMap<ShardId, BTreeMap<WorkerId, Row>>,
    /// Shards that were restored from a checkpoint: what was promised before is gone with what was lost.
    restored: BTreeSet<ShardId>,
}

impl ReadRule {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let is_whole = scenario.steps == Steps::Whole;
        Self {
            staleness: scenario.policy.staleness(),
            is_whole,
            prefetch: u64::from(scenario.prefetch),
            is_moved: scenario.policy.policy().moves_up(),
            shards: BTreeMap::new(),
            restored: BTreeSet::new(),
        }
    }

    fn before(&mut self, shard: &Shard, event: &ShardEvent) -> Verdict {
        let rows = self.shards.entry(shard.id()).or_default();
        match event {
            ShardEvent::Enter { worker, incarnation, standing, answered, .. } => {
                let counts = *standing == Standing::Active;
                match rows.get_mut(worker).filter(|row| row.incarnation == *incarnation) {
                    // It comes again, to a copy that took over.
                    Some(row) => {
                        row.counts |= counts;
                        (row.present, row.gone) = (true, false);
                        row.before = row.before.max(answered.0);
                    }
                    None => drop(rows.insert(*worker, Row::new(*incarnation, counts, answered.0))),
                }
            }
            ShardEvent::Fence { worker, incarnation } | ShardEvent::Resolve { worker, incarnation, .. } => {
                let row = rows.get_mut(worker).filter(|row| row.incarnation == *incarnation);
                row.into_iter().for_each(Row::leave);
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
            ShardEvent::Remove { worker } => rows.get_mut(worker).into_iter().for_each(Row::leave),
            ShardEvent::Lead { members, .. } => {
                // What waits is applied without a word to anybody, or comes again.
                let pushes = rows.values_mut().flat_map(|row| row.pushes.values_mut());
                pushes.for_each(|push| push.1 = true);
                for (worker, incarnation, _) in members {
                    match rows.get_mut(worker).filter(|row| row.incarnation >= *incarnation) {
                        Some(row) if row.incarnation == *incarnation => {
                            (row.present, row.gone) = (true, false)
                        }
                        Some(_) => {}
                        None => drop(rows.insert(*worker, Row::new(*incarnation, false, 0))),
                    }
                }
            }
            ShardEvent::Push(push) => return Self::arrives(shard, rows, push, self.is_whole),
            _ => {}
        }
        Ok(())
    }

    fn arrives(shard: &Shard, rows: &mut BTreeMap<WorkerId, Row>, push: &Push, is_whole: bool) -> Verdict {
        let Some(row) = rows.get_mut(&push.worker) else { return Ok(()) };
        if row.gone || row.incarnation != push.incarnation || row.pushes.contains_key(&push.sequence) {
            return Ok(());
        }
        let is_kept = !row.counts || push.clock.0 >= row.promised;
        row.pushes.insert(push.sequence, (push.clock.0, false));
        if !is_whole {
            row.counts = row.present;
        }
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
            // One that comes again is none of now: the worker can have had no work in between.
            row.counts |= row.present && self.is_whole && !pushed.duplicate;
        }
    }

    /// What a worker computes on is what was pulled for it: at a clock that is not below that of any other shard's part, and after all its
    /// pushes but those that it pulled ahead of.
    fn computes(
        &self,
        process: usize,
        sequence: Sequence,
        asked: &BTreeMap<ShardId, (Option<PullKind>, Clock)>,
    ) -> Verdict {
        for (shard, (kind, clock)) in asked {
            let Some(PullKind::Gated { clock: at, after, .. } | PullKind::Fresher { clock: at, after, .. }) =
                kind
            else {
                return holds(LAW, false, || format!("process {process} computes on {shard} of {kind:?}"));
            };
            holds(LAW, after.0 + self.prefetch + 1 >= sequence.0, || {
                format!(
                    "process {process} computes {sequence} on values of {shard} that were to have {after}"
                )
            })?;
            // Answers to its push can move a worker up while it pulls, where a shard has lost its clock.
            let is_gated = at == clock || (self.is_moved && at < clock);
            holds(LAW, is_gated, || {
                format!("process {process} computes at {clock} on values of {shard} that were gated at {at}")
            })?;
        }
        Ok(())
    }

    fn served(&mut self, shard: &Shard, reader: (WorkerId, Incarnation), asked: PullKind) -> Verdict {
        let (PullKind::Gated { clock, after, .. } | PullKind::Fresher { clock, after, .. }) = asked else {
            return Ok(());
        };
        let rows = self.shards.entry(shard.id()).or_default();
        let own = rows.get(&reader.0).filter(|row| !row.gone && row.incarnation == reader.1);
        let Some(own) = own else {
            return holds(LAW, false, || format!("{} served {reader:?}, which is no member", shard.id()));
        };
        let has = |sequence| own.pushes.get(&Sequence(sequence)).is_some_and(|push| push.1);
        let missing = (own.before + 1..=after.0).find(|sequence| !has(*sequence));
        holds(LAW, missing.is_none(), || {
            format!("{} served {reader:?} at {clock} without its own push {missing:?}", shard.id())
        })?;
        let Some(staleness) = self.staleness else { return Ok(()) };
        let needs = clock.0.saturating_sub(staleness);
        // The reader's own first iterations are as much a part of the bound: it can be reading ahead of one that it has not pushed.
        for (worker, row) in rows.iter_mut().filter(|(_, row)| row.counts) {
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
            Sight::Restored { shard, .. } => {
                self.restored.insert(shard.id());
                self.is_moved = true;
                Ok(())
            }
            Sight::Disturbed | Sight::Changed => {
                self.is_moved = true;
                Ok(())
            }
            // Nobody of the life before is there any more: what was promised is promised anew.
            Sight::Resumed { shard, .. } => {
                self.shards.remove(&shard.id());
                Ok(())
            }
            Sight::Before { shard, .. } | Sight::Answered { shard, .. } | Sight::Served { shard, .. }
                if self.restored.contains(&shard.id()) =>
            {
                Ok(())
            }
            Sight::Computes { process, sequence, asked } => self.computes(*process, *sequence, asked),
            Sight::Before { shard, event, .. } => self.before(shard, event),
            Sight::Answered { shard, speaker, pushed } => {
                self.answered(shard, *speaker, pushed);
                Ok(())
            }
            Sight::Served { shard, reader, asked, .. } => self.served(shard, *reader, *asked),
            _ => Ok(()),
        }
    }

    fn forget(&mut self, shard: ShardId) {
        self.shards.remove(&shard);
    }
}
