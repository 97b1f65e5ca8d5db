//! What a worker of the simulated world computes: gradients that begin with all values or with some, and their parts.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::codec::Encoding;
use slackline_core::ids::{BatchIndex, Clock, Sequence, ShardId};
use slackline_worker_core::{Buffer, Event, Packed};

use super::agenda::Happening;
use super::sight::{Sight, Verdict, holds};
use super::workers::Gradient;
use super::world::World;

/// A gradient that needs values which have not come.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    sequence: Sequence,
    batch: BatchIndex,
    clock: Clock,
    buffer: Buffer,
    missing: BTreeSet<ShardId>,
    is_abandoned: bool,
}

impl World {
    /// A gradient is to be computed.
    pub(super) fn begin(
        &mut self,
        process: usize,
        (sequence, batch, clock, buffer): (Sequence, BatchIndex, Clock, Buffer),
        missing: Vec<ShardId>,
    ) -> Verdict {
        if missing.is_empty() {
            return self.compute(process, sequence, batch, (clock, buffer));
        }
        self.counts.begun_early += 1;
        let (missing, is_abandoned) = (missing.into_iter().collect(), false);
        let state = &mut self.processes[process];
        let begun = Waiting { sequence, batch, clock, buffer, missing, is_abandoned };
        let is_free = state.waiting.replace(begun).is_none() && state.computing.is_none();
        holds("shell", is_free, || format!("process {process} computes two gradients"))
    }

    /// Nobody wants a gradient any more.
    pub(super) fn abandon(&mut self, process: usize, sequence: Sequence) -> Verdict {
        let state = &mut self.processes[process];
        let waiting = state.waiting.as_mut().map(|waiting| {
            waiting.is_abandoned = true;
            waiting.sequence
        });
        let under_way = state.computing.as_ref().map(|(computed, _)| *computed).or(waiting);
        holds("shell", under_way == Some(sequence), || {
            format!("process {process} leaves {sequence}, but computes {under_way:?}")
        })?;
        self.agenda.at(self.now.after(self.chance.micros(1, 500)), Happening::Computed { process });
        Ok(())
    }

    /// Values have come that a gradient was begun without.
    pub(super) fn delivered(&mut self, process: usize, shard: ShardId) -> Verdict {
        let state = &mut self.processes[process];
        let was_missing = state.waiting.as_mut().is_some_and(|waiting| waiting.missing.remove(&shard));
        holds("shell", was_missing, || format!("process {process} is given {shard}, which it has"))?;
        let whole = |waiting: &mut Waiting| waiting.missing.is_empty() && !waiting.is_abandoned;
        match state.waiting.take_if(whole) {
            Some(Waiting { sequence, batch, clock, buffer, .. }) => {
                self.compute(process, sequence, batch, (clock, buffer))
            }
            None => Ok(()),
        }
    }

    fn compute(
        &mut self,
        process: usize,
        sequence: Sequence,
        batch: BatchIndex,
        (clock, buffer): (Clock, Buffer),
    ) -> Verdict {
        let state = &mut self.processes[process];
        if let Some(held) = state.held.get_mut(&buffer) {
            for (header, values) in std::mem::take(&mut state.adopted).into_values() {
                held.put(&header, &values);
            }
        }
        let state = &self.processes[process];
        let asked = |request: &u64| (state.asked.get(request).copied(), clock);
        let asked =
            state.held[&buffer].brought.iter().map(|(shard, request)| (*shard, asked(request))).collect();
        self.see(&Sight::Computes { process, sequence, asked: &asked })?;
        let state = &mut self.processes[process];
        holds("shell", state.loaded.remove(&batch), || format!("process {process}: {batch} is not loaded"))?;
        holds("shell", state.computing.is_none(), || format!("process {process} computes two gradients"))?;
        let mut samples = Vec::new();
        let units = state.units.get(&batch).copied().unwrap_or(1);
        self.order.samples(batch, u64::from(units), &mut samples);
        let held = &state.held[&buffer];
        let (values, loss) = self.problem.gradient(&held.values, &samples);
        let finite = values.iter().all(|value| value.is_finite());
        holds("shell", finite, || format!("process {process} computed on values that never came"))?;
        let computed_on = held.versions.clone();
        let gradient = Gradient { values, loss, samples: samples.len() as u32, computed_on };
        state.computing = Some((sequence, gradient));
        let pace = state.pace;
        let took = self.chance.micros(pace / 2, pace);
        self.agenda.at(self.now.after(took), Happening::Computed { process });
        // The parts of the last shards first, that of the first one with the whole.
        let shards: Vec<_> = self.processes[process].held[&buffer].brought.keys().copied().collect();
        for (place, shard) in shards.iter().skip(1).enumerate().filter(|_| self.scenario.overlap) {
            let before = took.mul_f64((place + 1) as f64 / (shards.len() + 1) as f64);
            let when = self.now.after(took.saturating_sub(before));
            self.agenda.at(when, Happening::Part { process, sequence, shard: *shard });
        }
        Ok(())
    }

    /// It does not change any more, so it can be sent.
    pub(crate) fn part_is_final(&mut self, process: usize, sequence: Sequence, shard: ShardId) -> Verdict {
        let state = &mut self.processes[process];
        let Some((_, gradient)) = state.computing.as_ref().filter(|(computed, _)| *computed == sequence)
        else {
            return Ok(());
        };
        let samples = gradient.samples;
        state.gradients.entry(sequence).or_insert_with(|| gradient.clone());
        let words = self.partition.range(shard).len;
        let part = Packed { shard, encoding: Encoding::F32, words };
        self.worker_event(process, Event::PartReady { sequence, part, samples })
    }

    pub(crate) fn computed(&mut self, process: usize) -> Verdict {
        let state = &mut self.processes[process];
        let left = state.waiting.take_if(|waiting| waiting.is_abandoned).map(|waiting| {
            state.loaded.remove(&waiting.batch);
            let (values, computed_on) = (vec![0.0; self.partition.key_count() as usize], BTreeMap::new());
            (waiting.sequence, Gradient { values, loss: 0.0, samples: 0, computed_on })
        });
        let Some((sequence, gradient)) = state.computing.take().or(left) else { return Ok(()) };
        let (loss, samples) = (gradient.loss, gradient.samples);
        self.processes[process].gradients.insert(sequence, gradient);
        let waited_us = if self.scenario.overlap { self.chance.between(0, 5_000) } else { 0 };
        self.worker_event(
            process,
            Event::GradientReady { sequence, bad_key: None, loss, samples, waited_us, packed: Vec::new() },
        )
    }
}
