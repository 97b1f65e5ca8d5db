//! A push counts once, whatever is lost or repeated (design brief, section 6; dmlc/ps-lite and Angel applied a retried push twice).
//!
//! The law replays what the shards say they applied, in that order, through an optimizer of its own, from the gradients that the workers
//! truly sent. (Trap 1 of the sources: pushes were acknowledged when they had come, and lost when the server died before it applied them.)
//! After every event the shard's values must have the same bits, and no push may be in them twice.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::aggregate::{scale, weighted_mean};
use slackline_core::config::Durability;
use slackline_core::consistency::{DelaySpec, PolicySpec};
use slackline_core::ids::{BatchIndex, Clock, Incarnation, Sequence, ShardId, Version, WorkerId};
use slackline_core::layout::Layout;
use slackline_core::optimizer::{Optimizer, OptimizerSpec, RateSchedule, Step};
use slackline_core::wire::{Mark, PushOutcome, Pushed};
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
    clock: Clock,
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
    /// Those of which it is known what became of them.
    settled: BTreeSet<(WorkerId, Incarnation, Sequence)>,
    /// Those that waited when another copy took over: their answer is said to nobody, until they come again.
    orphans: BTreeSet<(WorkerId, Incarnation, Sequence)>,
    /// Answered as applied in the present event, with the version they made and their staleness.
    fresh: Vec<(Version, u64, Arrived)>,
    /// Answered as being in the buffer, with their staleness.
    gathered: Vec<(u64, Arrived)>,
    version: Version,
    /// The furthest batch so far: the rate never goes back.
    furthest: BatchIndex,
    /// What the values must be can be said.
    is_judged: bool,
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
    /// Whether what is acknowledged outlives its server.
    is_kept: bool,
    /// What workers were told to be applied: it must stay so, whoever dies.
    acknowledged: BTreeMap<ShardId, BTreeSet<PushKey>>,
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
            is_kept: scenario.durability != Durability::Memory,
            acknowledged: BTreeMap::new(),
        }
    }

    fn replay(&mut self, shard: &Shard) -> &mut Replay {
        let steps = if self.policy.takes_means() { 1 } else { self.workers };
        self.shards.entry(shard.id()).or_insert_with(|| Replay {
            optimizer: Optimizer::new(self.spec, &self.layout, shard.keys(), steps),
            values: None,
            arrived: BTreeMap::new(),
            applied: BTreeSet::new(),
            settled: BTreeSet::new(),
            orphans: BTreeSet::new(),
            fresh: Vec::new(),
            gathered: Vec::new(),
            version: Version(0),
            furthest: BatchIndex(0),
            is_judged: true,
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
            ShardEvent::Lead { .. } => {
                let waits = replay.arrived.keys().filter(|name| !replay.settled.contains(*name));
                replay.orphans = waits.copied().collect();
                // When they are applied nobody hears of it, and the order is not known.
                replay.is_judged &= replay.orphans.is_empty();
            }
            ShardEvent::Resolve { worker, incarnation, through } => {
                let of_it = (*worker, *incarnation, Sequence(0))..=(*worker, *incarnation, *through);
                let waits = replay.arrived.range(of_it).filter(|(name, _)| !replay.settled.contains(*name));
                let waits: Vec<_> = waits.map(|(name, _)| *name).collect();
                replay.is_judged &= waits.is_empty();
                // Their answers have nobody to go to: not all are given.
                replay.orphans.extend(waits);
            }
            ShardEvent::Initialize(values) if replay.values.is_none() => replay.values = Some(values.clone()),
            ShardEvent::Push(push) => {
                if let (Some(origin), Some(sent)) = (origin, sent) {
                    let name = (push.worker, push.incarnation, push.sequence);
                    let gradient = sent.to_vec();
                    let (batch, samples, pulled) = (push.batch, push.samples, push.pulled);
                    let clock = push.clock;
                    let arrived = Arrived { origin, batch, samples, clock, pulled, gradient };
                    replay.arrived.entry(name).or_insert(arrived);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn answered(&mut self, shard: &Shard, speaker: (WorkerId, Incarnation), pushed: &Pushed) -> Verdict {
        let replay = self.replay(shard);
        let name = (speaker.0, speaker.1, pushed.sequence);
        replay.settled.insert(name);
        let (PushOutcome::Applied { staleness, .. } | PushOutcome::Gathered { staleness, .. }) =
            pushed.outcome
        else {
            return Ok(());
        };
        if pushed.duplicate {
            if replay.orphans.contains(&name)
                && let Some(arrived) = replay.arrived.get(&name)
            {
                replay.applied.insert(arrived.origin);
            }
            return Ok(());
        }
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
        if replay.is_judged { same_bits(replay.values.as_deref(), shard) } else { Ok(()) }
    }

    /// What a worker was told to be applied is applied.
    fn told(&mut self, key: PushKey, pushed: &Pushed) -> Verdict {
        let replay = self.shards.get(&pushed.shard);
        let known = replay.is_some_and(|replay| replay.applied.contains(&key));
        self.acknowledged.entry(pushed.shard).or_default().insert(key);
        // What was acknowledged from memory alone can be on its way while its server is replaced.
        holds(LAW, known || !self.is_kept, || format!("{key:?} was told of {pushed:?}, which did not happen"))
    }

    /// Another copy of a shard has taken over.
    fn cut_back(&mut self, shard: ShardId, is_kept: bool) -> Verdict {
        let applied = self.shards.get(&shard).map(|replay| &replay.applied);
        let has = |key: &PushKey| applied.is_some_and(|applied| applied.contains(key));
        let Some(told) = self.acknowledged.get_mut(&shard) else { return Ok(()) };
        let lost = told.iter().find(|key| !has(key)).copied();
        told.retain(has);
        holds("acknowledged is kept", lost.is_none() || !is_kept, || {
            format!("{shard} has lost {lost:?}, which its worker was told to be applied")
        })
    }

    /// A shard begins with the state of a checkpoint: its values, its slots. How far the rate had come is not known, nor what waits in it.
    fn take_state(&mut self, shard: &Shard) -> &mut Replay {
        let can_judge = self.spec.schedule == RateSchedule::CONSTANT && !self.policy_gathers();
        let replay = self.replay(shard);
        let state = shard.state();
        let fits = state.array("slots").is_none_or(|slots| replay.optimizer.restore(slots));
        replay.values = shard.values().map(<[f32]>::to_vec);
        replay.version = shard.version();
        replay.fresh.clear();
        replay.gathered.clear();
        replay.is_judged = can_judge && fits;
        replay
    }

    /// A shard begins anew from a checkpoint: pushes that its cut does not have are lost.
    fn restored(&mut self, shard: &Shard, mark: &Mark, upto: Incarnation) {
        let replay = self.take_state(shard);
        let cut_of = |worker| {
            let named = mark.cuts.iter().find(|(one, _)| *one == worker).map(|(_, cut)| *cut);
            named.or(mark.rest).unwrap_or_default()
        };
        let clocks: BTreeMap<PushKey, Clock> =
            replay.arrived.values().map(|arrived| (arrived.origin, arrived.clock)).collect();
        // Whoever came later under the same id can have been behind it.
        let is_in = |key: &PushKey, clock: &Clock| key.incarnation <= upto && *clock < cut_of(key.worker);
        replay.applied.retain(|key| clocks.get(key).is_some_and(|clock| is_in(key, clock)));
        let applied = self.shards.get(&shard.id()).map(|replay| replay.applied.clone()).unwrap_or_default();
        self.acknowledged.entry(shard.id()).or_default().retain(|key| applied.contains(key));
    }

    /// Whether pushes can wait in a buffer over a cut.
    const fn policy_gathers(&self) -> bool {
        matches!(self.policy, PolicySpec::Buffer { .. } | PolicySpec::Quorum { .. })
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
            Sight::Told { key, pushed } => self.told(*key, pushed),
            Sight::CutBack { shard, is_kept } => self.cut_back(*shard, *is_kept),
            Sight::Restored { shard, mark, upto } => {
                self.restored(shard, mark, *upto);
                Ok(())
            }
            Sight::Resumed { shard, .. } => {
                self.take_state(shard);
                Ok(())
            }
            Sight::Served { shard, values, .. } => {
                let is_present = shard.values() == Some(*values);
                holds(LAW, is_present, || format!("{} served what are not its values", shard.id()))
            }
            Sight::Over { shards, .. } => {
                let judged =
                    |shard: &&&Shard| self.shards.get(&shard.id()).is_none_or(|replay| replay.is_judged);
                let kept = shards.iter().filter(judged).try_for_each(|shard| {
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

    fn forget(&mut self, shard: ShardId) {
        self.shards.remove(&shard);
    }
}
