//! A run that goes on from a checkpoint of another life of it: that life is run first, as long as it takes to have one.

use slackline_core::config::Durability;
use slackline_core::ids::ShardId;
use slackline_core::wire::Mark;
use slackline_server_core::assign::Position;
use slackline_server_core::{Host, Shard};

use super::lineage::{Lineage, Source};
use super::problem::Problem;
use super::scenario::Scenario;
use super::sight::{Sight, Verdict, Violation, holds};
use super::store::{Checkpoint, Cut, Store};
use super::trace::Trace;
use super::world::World;

/// The life before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Former {
    pub(crate) servers: u32,
    pub(crate) shards_per_server: u32,
    /// Clocks between two of its checkpoints.
    pub(crate) every: u64,
    /// After how many of them it ends, whatever it was at.
    pub(crate) checkpoints: u64,
}

/// What a former life has left: its newest checkpoint that is whole, if any is.
pub(crate) struct Left {
    pub(crate) problem: Box<dyn Problem>,
    pub(crate) store: Store,
    pub(crate) position: Option<Position>,
}

impl Left {
    /// Nothing, since there was none.
    pub(crate) fn nothing(problem: Box<dyn Problem>) -> Self {
        Self { problem, store: Store::default(), position: None }
    }

    /// What the former life of a run has left.
    ///
    /// # Errors
    /// What it broke.
    pub(crate) fn of(
        scenario: &Scenario,
        problem: Box<dyn Problem>,
        trace: &Trace,
    ) -> Result<Self, Violation> {
        let Some(former) = scenario.former else { return Ok(Self::nothing(problem)) };
        let Former { servers, shards_per_server, every, .. } = former;
        let scenario = Scenario {
            servers,
            shards_per_server,
            checkpoint_every: Some(every),
            former: None,
            observers: 0,
            reboot: None,
            ..scenario.clone()
        };
        let trace = if matches!(trace, Trace::Printed) { Trace::Printed } else { Trace::Off };
        World::new(scenario, problem, trace).until_checkpoint(former.checkpoints)
    }
}

impl World {
    /// Runs until so many checkpoints are whole, or to the end.
    fn until_checkpoint(mut self, count: u64) -> Result<Left, Violation> {
        let mut events = 0;
        while !self.is_over() && self.counts.checkpoints < count {
            self.step(&mut events)?;
        }
        let whole = |(_, checkpoint): &(&u64, &Checkpoint)| checkpoint.named.is_some();
        let newest = self.store.checkpoints.iter().rev().find(whole);
        let Some((number, checkpoint)) = newest else { return Ok(Left::nothing(self.problem)) };
        let position = checkpoint.position.clone();
        holds("checkpoints are whole", position.number == *number, || format!("{number} has {position:?}"))?;
        let mut store = Store::default();
        store.checkpoints.insert(*number, checkpoint.clone());
        Ok(Left { problem: self.problem, store, position: Some(position) })
    }

    /// A shard goes on from a checkpoint: history begins there.
    pub(crate) fn restore(
        &mut self,
        server: usize,
        id: ShardId,
        host: &Host,
        (cut, is_lossy): (Cut, bool),
    ) -> Verdict {
        let Cut { mark, upto } = cut;
        let Some(shard) = host.shard().cloned() else { return Ok(()) };
        let line = format_args!("= {id} is restored from checkpoint {} at server {server}", mark.number);
        self.trace.line(self.now, line);
        let may_lose = self.scenario.durability != Durability::Disk || !self.disks_lost.is_empty();
        let since = host.row().generation;
        let is_former = self.resumed.as_ref().is_some_and(|position| position.number == mark.number);
        let began = self.lineages.contains_key(&id);
        let is_new = self.lineages.get(&id).is_none_or(Lineage::has_no_push);
        if is_former && (!may_lose || is_new) {
            if began {
                // As with its first values: nothing may have been acknowledged yet.
                self.forget(id);
                self.see(&Sight::CutBack { shard: id, is_kept: true })?;
            }
            self.counts.resumed += 1;
            self.resume_shard(&shard, is_lossy)?;
            self.begin_lineage(id, shard, Source::Former { is_lossy }, since);
            return Ok(());
        }
        self.counts.checkpoint_restores += 1;
        holds("what is on a disk is kept", may_lose, || {
            format!("{id} is restored from checkpoint {}", mark.number)
        })?;
        // Clocks of another life say nothing of the workers of this one: no push of theirs is in it.
        let mark = if is_former { Mark { cuts: Vec::new(), rest: None, ..mark } } else { mark };
        self.see(&Sight::Restored { shard: &shard, mark: &mark, upto })?;
        self.begin_lineage(id, shard, Source::Checkpoint(Cut { mark, upto }), since);
        Ok(())
    }

    /// The laws see that a shard begins as the former life of the run has left it.
    pub(crate) fn resume_shard(&mut self, shard: &Shard, is_lossy: bool) -> Verdict {
        let Some(position) = self.resumed.clone() else { return Ok(()) };
        self.see(&Sight::Resumed { shard, position: &position, is_lossy })
    }
}
