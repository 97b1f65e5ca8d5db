//! What a worker's shell computes: batches, gradients, evaluations, each with its virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use slackline_core::codec::Encoding;
use slackline_core::ids::{BatchIndex, Clock, Moment, Sequence, ShardId};
use slackline_core::stragglers::ready_share;
use slackline_worker_core::{Buffer, Event, Packed};

use crate::engine::{Assignment, Gradient, Job, Snapshot};
use crate::failure::SimFailure;
use crate::links::duration;
use crate::timeline::Track;
use crate::workers::{Computed, Part, place_of};
use crate::world::{Happening, World};

/// Batches that a process has asked for and not computed; the coordinator gives two at most, and a fence makes it forget them.
const BATCHES_MAX: usize = 8;

/// A gradient that is being computed.
pub(crate) struct Computing {
    sequence: Sequence,
    clock: Clock,
    samples: u32,
    /// Shards that are sent their parts.
    pushed: Vec<ShardId>,
    /// The values that it is computed on, where what is sent depends on them.
    computed_on: Snapshot,
    since: Moment,
    /// For how long the process has stood still meanwhile.
    pub(crate) stood_still: Duration,
    /// Nobody wants it any more.
    is_abandoned: bool,
    job: Job,
    /// The shards whose parts were handed over before the rest.
    told: Vec<ShardId>,
}

impl World {
    /// A batch is in memory as soon as it is asked for: the loader reads ahead.
    pub(crate) fn load(&mut self, process: usize, batch: BatchIndex, units: u32) {
        let batches = &mut self.processes[process].batches;
        if batches.len() == BATCHES_MAX {
            batches.pop_front();
        }
        batches.push_back((batch, units));
        self.agenda.at(self.agenda.now(), Happening::Loaded { process, batch });
    }

    pub(crate) fn compute(
        &mut self,
        process: usize,
        (sequence, batch, buffer): (Sequence, BatchIndex, Buffer),
        (clock, adopted, pushed): (Clock, Vec<ShardId>, Vec<ShardId>),
    ) {
        let now = self.now();
        let config = self.plan.config();
        let keeps = self.keeps_values();
        let state = &mut self.processes[process];
        let place = state.batches.iter().position(|(loaded, _)| *loaded == batch);
        let units = place.and_then(|place| state.batches.remove(place)).map_or(1, |(_, units)| units);
        let samples = self.plan.order.batch_len(batch, u64::from(units));
        let share = samples as f64 / config.train.batch as f64;
        let seconds = config.stragglers.seconds(config.seed, state.id(), clock.0, config.workers, share);
        let local = state.local.take().map(|mut local| {
            local.begins(state.worker.member().map(|(_, incarnation)| incarnation));
            local
        });
        let snapshot = snapshot(&mut state.buffers[place_of(buffer)], keeps);
        let computed_on = if state.packer.is_some() { snapshot.clone() } else { Snapshot::new() };
        let job = self.engine.start(Assignment { snapshot, batch, units, clock, adopted, local });
        if self.timeline.is_open() {
            self.timeline.between(state.id(), &state.track, now);
        }
        state.number += 1;
        let (stood_still, samples) = (Duration::ZERO, samples as u32);
        let (since, is_abandoned) = (now, false);
        state.computing = Some(Computing {
            sequence,
            clock,
            samples,
            pushed,
            computed_on,
            since,
            stood_still,
            is_abandoned,
            job,
            told: Vec::new(),
        });
        self.counts.computing += 1;
        let number = state.number;
        self.agenda.at(now.after(duration(seconds)), Happening::Computed { process, number });
        self.foresee_parts((process, number), seconds);
    }

    /// Plans when each shard's part of a gradient that takes so many seconds is final: the last layers' first, and the first one's with the
    /// whole.
    fn foresee_parts(&mut self, (process, number): (usize, u64), seconds: f64) {
        if !self.plan.config().has_early_parts() {
            return;
        }
        let now = self.now();
        let Some(computing) = &self.processes[process].computing else { return };
        let partition = self.plan.config().partition();
        let total = partition.key_count();
        for shard in computing.pushed.clone() {
            let start = partition.range(shard).start;
            if start > 0 {
                let share = ready_share(total - start, total);
                self.agenda
                    .at(now.after(duration(seconds * share)), Happening::Part { process, number, shard });
            }
        }
    }

    /// A shard's part of the gradient under way is final.
    pub(crate) fn part_is_final(
        &mut self,
        process: usize,
        number: u64,
        shard: ShardId,
    ) -> Result<(), SimFailure> {
        let now = self.now();
        let keys = self.plan.config().partition().range(shard).len;
        let state = &mut self.processes[process];
        let is_present = state.number == number;
        let Some(computing) =
            state.computing.as_mut().filter(|computing| is_present && !computing.is_abandoned)
        else {
            return Ok(());
        };
        if !computing.stood_still.is_zero() {
            let later = now.after(computing.stood_still);
            self.agenda.at(later, Happening::Part { process, number, shard });
            return Ok(());
        }
        let gradient = self.engine.finish(std::mem::replace(&mut computing.job, Job::Nothing), false)?;
        let (values, is_bad) = (Arc::clone(&gradient.values), gradient.bad_key.is_some());
        computing.job = Job::Done(gradient);
        if is_bad {
            return Ok(());
        }
        let (sequence, samples) = (computing.sequence, computing.samples);
        let computed_on = std::mem::take(&mut computing.computed_on);
        let mut packed = state.pack(&[shard], &values, &[], &computed_on);
        if let Some(computing) = &mut state.computing {
            computing.computed_on = computed_on;
            computing.told.push(shard);
        }
        let told = packed.get(&shard).map(|payload| (payload.encoding(), payload.words().len() as u64));
        let (encoding, words) = told.unwrap_or((Encoding::F32, keys));
        if state.gradients.back().is_none_or(|(known, _)| *known != sequence) {
            state.gradients.push_back((sequence, Computed { values, packed: BTreeMap::new() }));
        }
        if let Some((_, computed)) = state.gradients.back_mut() {
            computed.packed.append(&mut packed);
        }
        let part = Packed { shard, encoding, words };
        self.worker_event(process, Event::PartReady { sequence, part, samples });
        Ok(())
    }

    /// Whether buffers keep what was read into them: the next answer can be a patch of that, and an iteration can do without new values.
    fn keeps_values(&self) -> bool {
        self.plan.sizes.is_none() || self.plan.config().local.is_some_and(|local| local.fragments > 1)
    }

    /// A gradient is due.
    pub(crate) fn computed(&mut self, process: usize, number: u64) -> Result<(), SimFailure> {
        let now = self.now();
        let state = &mut self.processes[process];
        if state.number != number {
            return Ok(());
        }
        let Some(computing) = &mut state.computing else { return Ok(()) };
        let still = std::mem::take(&mut computing.stood_still);
        if !still.is_zero() {
            self.agenda.at(now.after(still), Happening::Computed { process, number });
            return Ok(());
        }
        let Some(computing) = state.computing.take() else { return Ok(()) };
        let Computing {
            sequence,
            clock,
            samples,
            mut pushed,
            computed_on,
            is_abandoned,
            since,
            job,
            told,
            ..
        } = computing;
        pushed.retain(|shard| !told.contains(shard));
        self.counts.computing -= 1;
        self.tally.gradients += 1;
        let Gradient { values, loss, bad_key, factors, local } = self.engine.finish(job, is_abandoned)?;
        state.local = local;
        let packed = match bad_key {
            None => state.pack(&pushed, &values, &factors, &computed_on),
            Some(_) => BTreeMap::new(),
        };
        let news = packed.iter().map(|(shard, payload)| Packed {
            shard: *shard,
            encoding: payload.encoding(),
            words: payload.words().len() as u64,
        });
        let news = news.collect();
        // What was told of it before is there.
        let before = state.gradients.pop_back_if(|(known, _)| *known == sequence);
        let before = before.map(|(_, before)| before.packed).unwrap_or_default();
        let packed = packed.into_iter().chain(before).collect();
        state.gradients.push_back((sequence, Computed { values, packed }));
        state.track = Track { since: Some(now), ..Track::default() };
        if self.timeline.is_open() {
            self.timeline.computed(state.id(), since, now);
        }
        if !loss.is_finite() || bad_key.is_some() {
            self.diverged.get_or_insert(clock);
        }
        (self.stirred, self.worked) = (now, now);
        self.worker_event(process, Event::GradientReady { sequence, bad_key, loss, samples, packed: news });
        Ok(())
    }

    /// Nobody wants a gradient any more: its time is over at once.
    pub(crate) fn abandon(&mut self, process: usize, sequence: Sequence) {
        let state = &mut self.processes[process];
        if let Some(computing) = state.computing.as_mut().filter(|computing| computing.sequence == sequence) {
            (computing.stood_still, computing.is_abandoned) = (Duration::ZERO, true);
            let number = state.number;
            self.agenda.at(self.agenda.now(), Happening::Computed { process, number });
        }
    }

    pub(crate) fn release(&mut self, process: usize, sequence: Sequence, unused: &[ShardId]) {
        let now = self.now();
        let state = &mut self.processes[process];
        if let Some(place) = state.gradients.iter().position(|(number, _)| *number == sequence)
            && let Some((_, gradient)) = state.gradients.remove(place)
        {
            for (shard, payload) in unused.iter().filter_map(|shard| gradient.packed.get_key_value(shard)) {
                if let Some(packer) = &mut state.packer {
                    let keys = packer.keys(*shard);
                    packer.undo(*shard, payload, &gradient.values[keys]);
                }
            }
            self.engine.recycle(gradient.values);
        }
        state.track.pushed = Some(now);
    }

    /// Measures the values that were pulled for it. It takes no virtual time: a worker evaluates beside its training.
    pub(crate) fn evaluate(&mut self, process: usize, at_samples: u64) {
        let keeps = self.keeps_values();
        let snapshot = match self.own_values(process) {
            Some(own) => own,
            None => snapshot(&mut self.processes[process].buffers[place_of(Buffer::Evaluation)], keeps),
        };
        let (loss, accuracy) = self.engine.evaluate(&snapshot);
        self.agenda.at(self.agenda.now(), Happening::Measured { process, at_samples, loss, accuracy });
    }
}

/// The values that were pulled, with their shards. What still comes for these pulls is thrown away.
fn snapshot(parts: &mut [Part], keeps: bool) -> Snapshot {
    let take = |(shard, part): (usize, &mut Part)| {
        part.request = None;
        let values = if keeps { part.values.clone() } else { part.values.take() };
        Some((ShardId(shard as u32), values?))
    };
    parts.iter_mut().enumerate().filter_map(take).collect()
}
