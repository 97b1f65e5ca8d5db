//! What a worker's shell computes: batches, gradients, evaluations, each with its virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use slackline_core::codec::Encoding;
use slackline_core::ids::{BatchIndex, Clock, Moment, Sequence, ShardId};
use slackline_core::layout::Layout;
use slackline_core::stragglers::{forward_share, ready_share};
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
    /// For how long it waited for values.
    waited: Duration,
    /// What it waits for, where it was begun with the values of some shards.
    late: Option<Late>,
}

impl Computing {
    /// Whether it waits for nothing but time.
    pub(crate) const fn has_begun(&self) -> bool {
        self.late.is_none()
    }
}

/// What a gradient is computed from, and how long that takes.
struct Start {
    batch: BatchIndex,
    units: u32,
    buffer: Buffer,
    adopted: Vec<ShardId>,
    seconds: f64,
}

/// Values that a gradient was begun without.
struct Late {
    start: Start,
    missing: BTreeSet<ShardId>,
    /// When those came that were missing.
    arrivals: BTreeMap<ShardId, Moment>,
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
        missing: Vec<ShardId>,
    ) {
        let now = self.now();
        let config = self.plan.config();
        let state = &mut self.processes[process];
        let place = state.batches.iter().position(|(loaded, _)| *loaded == batch);
        let units = place.and_then(|place| state.batches.remove(place)).map_or(1, |(_, units)| units);
        let samples = self.plan.order.batch_len(batch, u64::from(units));
        let share = samples as f64 / config.train.batch as f64;
        let seconds = config.stragglers.seconds(config.seed, state.id(), clock.0, config.workers, share);
        if self.timeline.is_open() {
            self.timeline.between(state.id(), &state.track, now);
        }
        state.number += 1;
        state.computing = Some(Computing {
            sequence,
            clock,
            samples: samples as u32,
            pushed,
            computed_on: Snapshot::new(),
            since: now,
            stood_still: Duration::ZERO,
            is_abandoned: false,
            job: Job::Nothing,
            told: Vec::new(),
            waited: Duration::ZERO,
            late: None,
        });
        let start = Start { batch, units, buffer, adopted, seconds };
        if missing.is_empty() {
            self.start(process, start, Duration::ZERO);
        } else if let Some(computing) = &mut self.processes[process].computing {
            let (missing, arrivals) = (missing.into_iter().collect(), BTreeMap::new());
            computing.late = Some(Late { start, missing, arrivals });
        }
    }

    /// Values have come that a gradient was begun without. With the last of them it is known how long it takes: each layer has gone forward
    /// once the one before it had, and its values were there.
    pub(crate) fn deliver(&mut self, process: usize, shard: ShardId) {
        let now = self.now();
        let Some(computing) = &mut self.processes[process].computing else { return };
        let since = computing.since;
        if let Some(late) = &mut computing.late {
            late.missing.remove(&shard);
            late.arrivals.insert(shard, now);
        }
        let is_wanted = !computing.is_abandoned;
        let whole = computing.late.take_if(|late| is_wanted && late.missing.is_empty());
        if let Some(Late { start, arrivals, .. }) = whole {
            let forward = self.forward_ends(since, start.seconds, &arrivals);
            let waited = forward.since(since).saturating_sub(duration(start.seconds / 3.0));
            self.start(process, start, waited);
        }
    }

    /// When the last layer has gone forward in an iteration that takes so many seconds where nothing is waited for.
    fn forward_ends(&self, since: Moment, seconds: f64, arrivals: &BTreeMap<ShardId, Moment>) -> Moment {
        let (layout, partition) = (self.plan.config().layout(), self.plan.config().partition());
        let mut ends = since;
        for tensor in layout.tensors() {
            let (start, end) = (tensor.offset, tensor.offset + tensor.len());
            let of_tensor = arrivals.iter().filter(|(shard, _)| {
                let keys = partition.range(**shard);
                keys.start < end && start < keys.end()
            });
            let there = of_tensor.map(|(_, arrived)| *arrived).max().unwrap_or(since);
            let takes = duration(seconds * forward_share(tensor.len(), layout.len()));
            ends = ends.max(there).after(takes);
        }
        ends
    }

    /// A gradient is computed whose values are all there, or will be by the time that it needs them.
    fn start(&mut self, process: usize, start: Start, waited: Duration) {
        let keeps = self.keeps_values();
        let state = &mut self.processes[process];
        let Some(computing) = &mut state.computing else { return };
        let Start { batch, units, buffer, adopted, seconds } = start;
        let local = state.local.take().map(|mut local| {
            local.begins(state.worker.member().map(|(_, incarnation)| incarnation));
            local
        });
        let snapshot = snapshot(&mut state.buffers[place_of(buffer)], keeps);
        if state.packer.is_some() {
            computing.computed_on = snapshot.clone();
        }
        let (clock, begins) = (computing.clock, computing.since.after(waited));
        computing.waited = waited;
        computing.job = self.engine.start(Assignment { snapshot, batch, units, clock, adopted, local });
        self.counts.computing += 1;
        let number = state.number;
        self.agenda.at(begins.after(duration(seconds)), Happening::Computed { process, number });
        self.foresee_parts((process, number), begins, seconds);
    }

    /// Plans when each shard's part of a gradient that takes so many seconds is final, which it is with the first of its layers: the last layers'
    /// parts first, and those of the first layer with the whole.
    fn foresee_parts(&mut self, (process, number): (usize, u64), begins: Moment, seconds: f64) {
        if !self.plan.config().train.overlap {
            return;
        }
        let Some(computing) = &self.processes[process].computing else { return };
        let partition = self.plan.config().partition();
        let (layout, total) = (self.plan.config().layout(), partition.key_count());
        for shard in computing.pushed.clone() {
            let start = layer_start(&layout, partition.range(shard).start);
            if start > 0 {
                let share = ready_share(total - start, total);
                let when = begins.after(duration(seconds * share));
                self.agenda.at(when, Happening::Part { process, number, shard });
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
            waited,
            late,
            ..
        } = computing;
        // What was given up before all values were there has waited to its end.
        let waited = if late.is_some() { now.since(since) } else { waited };
        pushed.retain(|shard| !told.contains(shard));
        self.counts.computing -= u64::from(late.is_none());
        self.tally.gradients += 1;
        let Gradient { values, loss, bad_key, factors, local } = self.engine.finish(job, is_abandoned)?;
        state.local = local;
        // What it was before somebody gave it up, where parts of it have left.
        let before = state.gradients.pop_back_if(|(known, _)| *known == sequence).map(|(_, before)| before);
        let packed = match bad_key {
            None if !values.is_empty() => state.pack(&pushed, &values, &factors, &computed_on),
            _ => BTreeMap::new(),
        };
        let news = packed.iter().map(|(shard, payload)| Packed {
            shard: *shard,
            encoding: payload.encoding(),
            words: payload.words().len() as u64,
        });
        let news = news.collect();
        let before = before.unwrap_or_default();
        let values = if values.is_empty() { before.values } else { values };
        let packed = packed.into_iter().chain(before.packed).collect();
        state.gradients.push_back((sequence, Computed { values, packed }));
        state.track = Track { since: Some(now), ..Track::default() };
        if self.timeline.is_open() {
            self.timeline.computed(state.id(), since, since.after(waited), now);
        }
        if !loss.is_finite() || bad_key.is_some() {
            self.diverged.get_or_insert(clock);
        }
        (self.stirred, self.worked) = (now, now);
        let waited_us = waited.as_micros() as u64;
        let ready = Event::GradientReady { sequence, bad_key, loss, samples, waited_us, packed: news };
        self.worker_event(process, ready);
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

/// Where the layer begins that a key is of: with the last matrix before it, as the bias beside a matrix is final with that.
fn layer_start(layout: &Layout, key: u64) -> u64 {
    let matrices = layout.tensors().iter().filter(|tensor| tensor.shape.len() > 1);
    matrices.map(|matrix| matrix.offset).take_while(|start| *start <= key).last().unwrap_or_default()
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
