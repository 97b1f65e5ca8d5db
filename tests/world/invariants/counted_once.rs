//! A push counts once, whatever is lost or repeated (design brief, section 6; dmlc/ps-lite and Angel applied a retried push twice).
//!
//! The law replays what the shards say they applied, in that order, through an optimizer of its own, from the gradients that the workers
//! truly sent. After every event the shard's values must have the same bits, and no push may be in them twice.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::aggregate::weighted_mean;
use slackline_core::consistency::PolicySpec;
use slackline_core::ids::{BatchIndex, Incarnation, Sequence, ShardId, Version, WorkerId};
use slackline_core::layout::Layout;
use slackline_core::optimizer::{Optimizer, OptimizerSpec};
use slackline_core::wire::{PushOutcome, Pushed};
use slackline_server_core::{Shard, ShardEvent};

use crate::simulation::sight::{Law, PushKey, Sight, Verdict, Violation, holds};
use crate::simulation::{Problem, Scenario};

const LAW: &str = "counted once";

/// A push as the shard knows it, with what it truly is.
#[derive(Clone, Debug)]
struct Arrived {
    origin: PushKey,
    batch: BatchIndex,
    samples: u32,
    gradient: Vec<f32>,
}

/// The replay of one shard.
#[derive(Debug)]
struct Replay {
    optimizer: Optimizer,
    values: Option<Vec<f32>>,
    arrived: BTreeMap<(WorkerId, Incarnation, Sequence), Arrived>,
    applied: BTreeSet<PushKey>,
    /// Answered as applied in the present event, with the version they made.
    fresh: Vec<(Version, Arrived)>,
}

/// See the module.
pub(crate) struct CountedOnce {
    policy: PolicySpec,
    spec: OptimizerSpec,
    layout: Layout,
    batch_count: u64,
    shards: BTreeMap<ShardId, Replay>,
}

impl CountedOnce {
    pub(crate) fn new(scenario: &Scenario, problem: &dyn Problem) -> Self {
        Self {
            policy: scenario.policy,
            spec: scenario.optimizer,
            layout: problem.layout().clone(),
            batch_count: scenario.batch_count(),
            shards: BTreeMap::new(),
        }
    }

    fn replay(&mut self, shard: &Shard) -> &mut Replay {
        self.shards.entry(shard.id()).or_insert_with(|| Replay {
            optimizer: Optimizer::new(self.spec, &self.layout, shard.keys()),
            values: None,
            arrived: BTreeMap::new(),
            applied: BTreeSet::new(),
            fresh: Vec::new(),
        })
    }

    fn before(
        &mut self,
        shard: &Shard,
        event: &ShardEvent,
        origin: Option<PushKey>,
        sent: Option<&[f32]>,
    ) -> Verdict {
        let replay = self.replay(shard);
        match event {
            ShardEvent::Initialize(values) if replay.values.is_none() => replay.values = Some(values.clone()),
            ShardEvent::Push(push) => {
                if let (Some(origin), Some(sent)) = (origin, sent) {
                    let name = (push.worker, push.incarnation, push.sequence);
                    let gradient = sent.to_vec();
                    let arrived = Arrived { origin, batch: push.batch, samples: push.samples, gradient };
                    replay.arrived.entry(name).or_insert(arrived);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn answered(&mut self, shard: &Shard, speaker: (WorkerId, Incarnation), pushed: &Pushed) -> Verdict {
        let replay = self.replay(shard);
        let PushOutcome::Applied { version, .. } = pushed.outcome else { return Ok(()) };
        if pushed.duplicate {
            return Ok(());
        }
        let name = (speaker.0, speaker.1, pushed.sequence);
        let Some(arrived) = replay.arrived.get(&name).cloned() else {
            return holds(LAW, false, || format!("{} applied {name:?}, which never came", shard.id()));
        };
        let is_new = replay.applied.insert(arrived.origin);
        holds(LAW, is_new, || format!("{} applied {:?} twice", shard.id(), arrived.origin))?;
        replay.fresh.push((version, arrived));
        Ok(())
    }

    fn after(&mut self, shard: &Shard) -> Verdict {
        let (policy, batch_count) = (self.policy, self.batch_count as f64);
        let replay = self.replay(shard);
        let mut fresh = std::mem::take(&mut replay.fresh);
        // Under bsp the pushes of one clock make one version together; otherwise each makes its own.
        fresh.sort_by_key(|(version, arrived)| (*version, arrived.batch));
        for group in fresh.chunk_by(|left, right| left.0 == right.0) {
            let alone = group.len() == 1 || policy == PolicySpec::Bsp;
            holds(LAW, alone, || format!("{} made one version of {} pushes", shard.id(), group.len()))?;
            let mut parts: Vec<Vec<f32>> = group.iter().map(|(_, one)| one.gradient.clone()).collect();
            let samples: Vec<u32> = group.iter().map(|(_, one)| one.samples).collect();
            if policy == PolicySpec::Bsp {
                weighted_mean(&mut parts, &samples);
            }
            let progress = group[0].1.batch.0 as f64 / batch_count;
            if let Some(values) = &mut replay.values {
                replay.optimizer.apply(values, &parts[0], progress);
            }
        }
        same_bits(replay.values.as_deref(), shard)
    }
}

fn same_bits(replayed: Option<&[f32]>, shard: &Shard) -> Verdict {
    let bits =
        |values: Option<&[f32]>| values.map(|values| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
    holds(LAW, bits(replayed) == bits(shard.values()), || {
        format!("{} has {:?}, its pushes make {replayed:?}", shard.id(), shard.values())
    })
}

impl Law for CountedOnce {
    fn see(&mut self, sight: &Sight<'_>) -> Verdict {
        match sight {
            Sight::Before { shard, event, origin, sent } => self.before(shard, event, *origin, *sent),
            Sight::Answered { shard, speaker, pushed } => self.answered(shard, *speaker, pushed),
            Sight::After { shard } => self.after(shard),
            Sight::Told { key, pushed } => {
                let replay = self.shards.get(&pushed.shard);
                let known = replay.is_some_and(|replay| replay.applied.contains(key));
                holds(LAW, known, || format!("{key:?} was told of {pushed:?}, which did not happen"))
            }
            Sight::Served { shard, values, .. } => {
                let is_present = shard.values() == Some(*values);
                holds(LAW, is_present, || format!("{} served what are not its values", shard.id()))
            }
            Sight::Over { shards, .. } => {
                let kept = shards.iter().try_for_each(|shard| {
                    same_bits(self.shards.get(&shard.id()).and_then(|replay| replay.values.as_deref()), shard)
                });
                kept.map_err(|violation| Violation {
                    law: LAW,
                    text: format!("at the end, {}", violation.text),
                })
            }
            _ => Ok(()),
        }
    }
}
