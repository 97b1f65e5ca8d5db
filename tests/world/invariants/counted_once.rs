//! A push counts once, whatever is lost or repeated (design brief, section 6; dmlc/ps-lite and Angel applied a retried push twice).
//!
//! The law replays what the shards say they applied, in that order, through an optimizer of its own, from the gradients that the workers
//! truly sent. After every event the shard's values must have the same bits, and no push may be in them twice.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::aggregate::{scale, weighted_mean};
use slackline_core::consistency::{DelaySpec, PolicySpec};
use slackline_core::ids::{BatchIndex, Incarnation, Sequence, ShardId, Version, WorkerId};
use slackline_core::layout::Layout;
use slackline_core::optimizer::{Optimizer, OptimizerSpec, Step};
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
    pulled: Version,
    gradient: Vec<f32>,
}

/// The replay of one shard.
#[derive(Debug)]
struct Replay {
    optimizer: Optimizer,
    values: Option<Vec<f32>>,
    arrived: BTreeMap<(WorkerId, Incarnation, Sequence), Arrived>,
    applied: BTreeSet<PushKey>,
    /// Answered as applied in the present event, with the version they made and their staleness.
    fresh: Vec<(Version, u64, Arrived)>,
    /// Answered as being in the buffer, with their staleness.
    gathered: Vec<(u64, Arrived)>,
    version: Version,
    /// The furthest batch so far: the rate never goes back.
    furthest: BatchIndex,
}

/// See the module.
pub(crate) struct CountedOnce {
    policy: PolicySpec,
    delay: DelaySpec,
    spec: OptimizerSpec,
    workers: u32,
    /// Samples of a whole batch, where a push counts by its share.
    batch: Option<u64>,
    layout: Layout,
    batch_count: u64,
    shards: BTreeMap<ShardId, Replay>,
}

impl CountedOnce {
    pub(crate) fn new(scenario: &Scenario, problem: &dyn Problem) -> Self {
        Self {
            policy: scenario.policy,
            delay: scenario.delay,
            workers: scenario.workers,
            batch: scenario.proportional.then_some(scenario.batch),
            spec: scenario.optimizer,
            layout: problem.layout().clone(),
            batch_count: scenario.batch_count(),
            shards: BTreeMap::new(),
        }
    }

    fn replay(&mut self, shard: &Shard) -> &mut Replay {
        let steps = if self.policy.takes_means() { 1 } else { self.workers };
        self.shards.entry(shard.id()).or_insert_with(|| Replay {
            optimizer: Optimizer::new(self.spec, &self.layout, shard.keys(), steps),
            values: None,
            arrived: BTreeMap::new(),
            applied: BTreeSet::new(),
            fresh: Vec::new(),
            gathered: Vec::new(),
            version: Version(0),
            furthest: BatchIndex(0),
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
                    let (batch, samples, pulled) = (push.batch, push.samples, push.pulled);
                    let arrived = Arrived { origin, batch, samples, pulled, gradient };
                    replay.arrived.entry(name).or_insert(arrived);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn answered(&mut self, shard: &Shard, speaker: (WorkerId, Incarnation), pushed: &Pushed) -> Verdict {
        let replay = self.replay(shard);
        let (PushOutcome::Applied { staleness, .. } | PushOutcome::Gathered { staleness, .. }) =
            pushed.outcome
        else {
            return Ok(());
        };
        if pushed.duplicate {
            return Ok(());
        }
        let name = (speaker.0, speaker.1, pushed.sequence);
        let Some(arrived) = replay.arrived.get(&name).cloned() else {
            return holds(LAW, false, || format!("{} applied {name:?}, which never came", shard.id()));
        };
        let is_new = replay.applied.insert(arrived.origin);
        holds(LAW, is_new, || format!("{} applied {:?} twice", shard.id(), arrived.origin))?;
        match pushed.outcome {
            PushOutcome::Applied { version, .. } => replay.fresh.push((version, staleness, arrived)),
            _ => replay.gathered.push((staleness, arrived)),
        }
        Ok(())
    }

    fn after(&mut self, shard: &Shard) -> Verdict {
        let (policy, batch_count) = (self.policy, self.batch_count as f64);
        let (treatment, batch) = (self.delay.treatment, self.batch);
        let replay = self.replay(shard);
        let mut fresh = std::mem::take(&mut replay.fresh);
        if shard.version() > replay.version {
            let gathered = std::mem::take(&mut replay.gathered);
            fresh.extend(gathered.into_iter().map(|(staleness, one)| (shard.version(), staleness, one)));
        }
        // Where means are taken, some pushes make one version together; otherwise each makes its own.
        fresh.sort_by_key(|(version, _, arrived)| (*version, arrived.batch));
        for group in fresh.chunk_by(|left, right| left.0 == right.0) {
            let alone = group.len() == 1 || policy.takes_means();
            holds(LAW, alone, || format!("{} made one version of {} pushes", shard.id(), group.len()))?;
            let mut parts: Vec<Vec<f32>> = group.iter().map(|(_, _, one)| one.gradient.clone()).collect();
            let samples: Vec<u32> = group.iter().map(|(_, _, one)| one.samples).collect();
            let (version, staleness, first) = &group[0];
            replay.furthest = replay.furthest.max(first.batch);
            let mut step = Step::fresh(replay.furthest.0 as f64 / batch_count, version.0 - 1);
            if policy.takes_means() {
                for (part, (_, staleness, _)) in parts.iter_mut().zip(group) {
                    scale(part, treatment.weight(*staleness));
                }
                weighted_mean(&mut parts, &samples);
            } else {
                let share = batch.map_or(1.0, |batch| (f64::from(first.samples) / batch as f64) as f32);
                step.weight = treatment.weight(*staleness) * share;
                step.pulled = first.pulled.0;
            }
            if let Some(values) = &mut replay.values {
                replay.optimizer.apply(values, &parts[0], &step);
            }
            replay.version = *version;
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
