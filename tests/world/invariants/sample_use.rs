//! Every sample is used in every epoch: at least once always, exactly once while nobody dies (PaddlePaddle issue 19600: the data of a
//! worker that died was never trained on). Workers that come and that go when they are told to change nothing about it where steps are
//! whole; elsewhere one that goes in the middle of a step leaves pieces of it.
//!
//! A batch is used when one push of its gradient was applied by every shard. Of a run that goes on from a checkpoint, what is in that has
//! been used, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::config::Steps;
use slackline_core::ids::{BatchIndex, Clock, Incarnation, Sequence, ShardId, WorkerId};
use slackline_core::schedule::DataOrder;
use slackline_core::wire::{Mark, PushOutcome};
use slackline_server_core::ShardEvent;
use slackline_server_core::assign::Position;

use crate::simulation::Scenario;
use crate::simulation::sight::{Law, PushKey, Sight, Verdict, holds};

const LAW: &str = "sample use";

/// A push as one shard knows it.
type Name = (ShardId, WorkerId, Incarnation, Sequence);

/// What it truly is.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    origin: PushKey,
    batch: BatchIndex,
    samples: u32,
    clock: Clock,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct SampleUse {
    arrived: BTreeMap<Name, Arrived>,
    /// Those that were answered.
    settled: BTreeSet<Name>,
    /// What a shard had of workers that a mark does not name, when it heard of that: they were gone, and all of it is in the checkpoint.
    of_gone: BTreeMap<(ShardId, u64), BTreeSet<PushKey>>,
    /// Which shards applied which push of which batch.
    applied: BTreeMap<BatchIndex, BTreeMap<PushKey, (BTreeSet<ShardId>, u32)>>,
    /// What each shard ever applied: a checkpoint can have what a copy that took over after it lacks (seed 155).
    ever: BTreeMap<Name, Arrived>,
    disturbed: bool,
    /// A worker came or was told to go.
    changed: bool,
    dropped: bool,
    /// Pushes of which some shards were sent nothing after others had been sent their parts.
    left: BTreeSet<PushKey>,
    /// Updates were lost with a server, which durability allowed, and the data did not go back to before them.
    lossy: bool,
    /// Whether that was so when a checkpoint was begun: it is so of a run that goes back to it.
    lossy_at: BTreeMap<u64, bool>,
    /// Batches follow the workers' speeds.
    is_proportional: bool,
    /// Where the run goes on: what the life before has done is not to be done again, and all else is.
    resumed: Option<Position>,
}

/// A run of samples that were used together.
struct Used {
    batch: BatchIndex,
    samples: u64,
    /// Pushes of it that all shards applied, and that any did.
    times: u64,
    partly: u64,
}

impl SampleUse {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self { is_proportional: scenario.proportional, ..Self::default() }
    }

    /// A shard hears of a cut.
    fn marked(&mut self, shard: ShardId, mark: &Mark) {
        self.lossy_at.entry(mark.number).or_insert(self.lossy);
        if mark.rest.is_none() {
            let named = |worker| mark.cuts.iter().any(|(one, _)| *one == worker);
            let pushes = self.applied.values().flatten();
            let here = pushes.filter(|(key, (shards, _))| !named(key.worker) && shards.contains(&shard));
            let of_gone = here.map(|(key, _)| *key).collect();
            self.of_gone.entry((shard, mark.number)).or_insert(of_gone);
        }
    }

    /// A shard begins anew from a checkpoint: it has the pushes below the cut and no others.
    fn restored(&mut self, shard: ShardId, mark: &Mark, upto: Incarnation) {
        let cut_of = |worker| {
            let named = mark.cuts.iter().find(|(one, _)| *one == worker).map(|(_, cut)| *cut);
            named.or(mark.rest).unwrap_or_default()
        };
        let of_gone = self.of_gone.get(&(shard, mark.number)).cloned().unwrap_or_default();
        let is_in = |arrived: &Arrived| {
            // Whoever came later under the same id can have been behind it.
            let is_of_then = arrived.origin.incarnation <= upto;
            (is_of_then && arrived.clock < cut_of(arrived.origin.worker)) || of_gone.contains(&arrived.origin)
        };
        let of_shard = |name: &Name| name.0 == shard;
        let here = self.arrived.iter().filter(|(name, arrived)| of_shard(name) && is_in(arrived));
        let kept: BTreeSet<PushKey> = here.map(|(_, arrived)| arrived.origin).collect();
        self.arrived.retain(|name, arrived| !of_shard(name) || is_in(arrived));
        self.settled.retain(|name| !of_shard(name) || self.arrived.contains_key(name));
        self.drop_from(shard, |key| !kept.contains(key));
        let back: Vec<_> =
            self.ever.iter().filter(|(name, arrived)| of_shard(name) && is_in(arrived)).collect();
        let back: Vec<(Name, Arrived)> = back.into_iter().map(|(name, arrived)| (*name, *arrived)).collect();
        for (name, arrived) in back {
            self.arrived.insert(name, arrived);
            self.settled.insert(name);
            self.apply(name, arrived);
        }
    }

    /// A shard has a push.
    fn apply(&mut self, name: Name, arrived: Arrived) {
        let (shards, count) =
            self.applied.entry(arrived.batch).or_default().entry(arrived.origin).or_default();
        shards.insert(name.0);
        *count = arrived.samples;
        self.ever.insert(name, arrived);
    }

    /// A shard does not have some pushes any more.
    fn drop_from(&mut self, shard: ShardId, is_gone: impl Fn(&PushKey) -> bool) {
        for pushes in self.applied.values_mut() {
            for (_, (shards, _)) in pushes.iter_mut().filter(|(key, _)| is_gone(key)) {
                shards.remove(&shard);
            }
            pushes.retain(|_, (shards, _)| !shards.is_empty());
        }
        self.applied.retain(|_, pushes| !pushes.is_empty());
    }

    /// What this life of the run has done.
    fn applied_by(&self, shard_count: usize) -> impl Iterator<Item = Used> + '_ {
        let whole = move |key: &PushKey, shards: &BTreeSet<ShardId>| {
            self.dropped || self.left.contains(key) || shards.len() == shard_count
        };
        self.applied.iter().map(move |(batch, pushes)| Used {
            batch: *batch,
            samples: pushes.values().map(|(_, samples)| u64::from(*samples)).max().unwrap_or(0),
            times: pushes.iter().filter(|(key, (shards, _))| whole(key, shards)).count() as u64,
            partly: pushes.len() as u64,
        })
    }

    /// What the life before has done: all units before the first that was not given out, but for those that are to be done.
    fn used_before(&self, unit: u64, total: u64) -> impl Iterator<Item = Used> + '_ {
        let next = self.resumed.iter().map(|position| (position.next, 0));
        let todo = self.resumed.iter().flat_map(|position| position.todo.iter().copied());
        let mut from = 0;
        todo.chain(next).filter_map(move |(first, units)| {
            let (start, end) = ((from * unit).min(total), (first * unit).min(total));
            let batch = BatchIndex(std::mem::replace(&mut from, first + u64::from(units)));
            (start < end).then_some(Used { batch, samples: end - start, times: 1, partly: 1 })
        })
    }

    fn over(&self, scenario: &Scenario, shard_count: usize, recorded: u64) -> Verdict {
        let Scenario { seed, samples, epochs, .. } = *scenario;
        // The last report can be lost with its connection; none is counted twice.
        let (total, is_calm) = (samples * epochs, scenario.weather.mishap_pause == 0);
        let is_right = if is_calm { recorded == total } else { recorded <= total };
        holds(LAW, self.disturbed || is_right, || {
            format!("the record counts {recorded} of {total} samples")
        })?;
        let is_void = self.disturbed || (self.changed && scenario.steps == Steps::Parts);
        let mut order = DataOrder::new(seed, samples, 1, epochs);
        let mut used = vec![0_u64; samples as usize];
        let mut line = Vec::new();
        let unit = scenario.cut().unit;
        let mut all: Vec<Used> = self.applied_by(shard_count).chain(self.used_before(unit, total)).collect();
        all.sort_by_key(|used| used.batch);
        let mut next = 0;
        for Used { batch, samples, times, partly } in all {
            let pushes = || self.applied.get(&batch);
            holds(LAW, is_void || partly == 1, || {
                format!("{batch} was used {partly} times: {:?}", pushes())
            })?;
            holds(LAW, times >= 1 && batch.0 * unit == next, || {
                format!(
                    "sample {next} of the run was not used by all {shard_count} shards: {batch}, {:?}",
                    pushes()
                )
            })?;
            order.samples(BatchIndex(next), samples, &mut line);
            next += samples;
            line.iter().for_each(|sample| used[*sample as usize] += times);
        }
        holds(LAW, next == total, || format!("only {next} samples of the run were used by all shards"))?;
        let least = used.iter().min().copied().unwrap_or(epochs);
        let most = used.iter().max().copied().unwrap_or(epochs);
        holds(LAW, least >= epochs && (is_void || most == epochs), || {
            format!("in {epochs} epochs samples were used {least} to {most} times")
        })
    }
}

impl Law for SampleUse {
    fn see(&mut self, sight: &Sight<'_>) -> Verdict {
        match sight {
            Sight::Left { key } => _ = self.left.insert(*key),
            Sight::Disturbed => self.disturbed = true,
            Sight::Changed => self.changed = true,
            Sight::Restored { shard, mark, upto } => {
                self.lossy = true;
                self.restored(shard.id(), mark, *upto);
            }
            Sight::Before { shard, event: ShardEvent::Mark(mark), .. } => self.marked(shard.id(), mark),
            // Batches of other sizes are made of what is done again.
            Sight::WentBack { checkpoint } => {
                self.lossy = self.is_proportional || self.lossy_at.get(checkpoint) != Some(&false);
            }
            Sight::Resumed { position, is_lossy, .. } => {
                self.resumed = Some((*position).clone());
                self.lossy |= is_lossy;
                self.lossy_at.insert(position.number, self.lossy);
            }
            Sight::CutBack { is_kept, .. } => self.lossy |= !is_kept,
            Sight::Before { shard, event: ShardEvent::Push(push), origin: Some(origin), .. } => {
                let name = (shard.id(), push.worker, push.incarnation, push.sequence);
                let (origin, batch, samples, clock) = (*origin, push.batch, push.samples, push.clock);
                self.arrived.entry(name).or_insert(Arrived { origin, batch, samples, clock });
            }
            Sight::Before { shard, event: ShardEvent::Resolve { worker, incarnation, through }, .. } => {
                // Where steps are whole, what waits of a worker that is gone is applied; there is nobody to be told.
                let of_it = (shard.id(), *worker, *incarnation, Sequence(0))
                    ..=(shard.id(), *worker, *incarnation, *through);
                let waits = self.arrived.range(of_it).filter(|(name, _)| !self.settled.contains(*name));
                let waits: Vec<_> = waits.map(|(name, arrived)| (*name, *arrived)).collect();
                waits.into_iter().for_each(|(name, arrived)| self.apply(name, arrived));
            }
            Sight::Answered { shard, speaker, pushed } => {
                let name = (shard.id(), speaker.0, speaker.1, pushed.sequence);
                self.settled.insert(name);
                // What some shards drop and others take is not done again.
                self.dropped |= matches!(pushed.outcome, PushOutcome::Dropped(_));
                if let (PushOutcome::Applied { .. } | PushOutcome::Gathered { .. }, Some(arrived)) =
                    (pushed.outcome, self.arrived.get(&name).copied())
                {
                    self.apply(name, arrived);
                }
            }
            Sight::Over { scenario, shards, recorded } => {
                if self.lossy {
                    return Ok(());
                }
                return self.over(scenario, shards.len(), *recorded);
            }
            _ => {}
        }
        Ok(())
    }

    fn forget(&mut self, shard: ShardId) {
        self.arrived.retain(|(of, ..), _| *of != shard);
        self.settled.retain(|(of, ..)| *of != shard);
        self.of_gone.retain(|(of, _), _| *of != shard);
        self.drop_from(shard, |_| true);
    }
}
