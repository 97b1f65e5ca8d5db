//! The road of gradients to parameter servers: pulled values in, pushes out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use slackline_core::codec::{Encoding, Payload};
use slackline_core::ids::{BatchIndex, Clock, Incarnation, KeyRange, Sequence, ServerId, ShardId, WorkerId};
use slackline_core::partition::Partition;
use slackline_core::wire::{Pushed, TransferHeader};
use slackline_net::{Destination, SharedValues};
use slackline_worker_core::{Buffer, Effect, Event, Packed};

use crate::buffers::{Flat, Fresher};
use crate::compute::{GradientJob, Place};
use crate::daemon::WorkerFailure;
use crate::driver::Base;
use crate::link::{Expected, Links, Purpose};
use crate::packing::Unused;
use crate::push_log::{Logged, PushKey, PushWriter};

/// Pushes on their way through the push log: none is sent before it is written.
struct Logging {
    writer: PushWriter,
    /// What is being written, with where it goes then.
    writing: BTreeMap<PushKey, Departure>,
    written: BTreeSet<PushKey>,
}

/// A push that waits to be sent over one connection.
struct Departure {
    server: ServerId,
    /// The number of that connection: over the next one, it is sent again without being waited for.
    number: Option<u64>,
    header: TransferHeader,
    values: SharedValues,
}

impl Logging {
    /// Has a push written, unless it is. True if it may go at once.
    fn pass(
        &mut self,
        links: &Links,
        server: ServerId,
        header: TransferHeader,
        values: &SharedValues,
    ) -> bool {
        let key = (header.incarnation, header.sequence, header.shard);
        if self.written.contains(&key) {
            return true;
        }
        let departure = Departure { server, number: links.number_of(server), header, values: values.clone() };
        if self.writing.insert(key, departure).is_none() {
            self.writer.push(header, values.clone());
        }
        false
    }
}

/// A gradient that is computed.
struct Computed {
    flat: SharedValues,
    /// The parts that are written otherwise than plainly, and how.
    packed: BTreeMap<ShardId, (Encoding, SharedValues)>,
}

impl Computed {
    /// What is sent under a header.
    fn part(&self, header: &TransferHeader) -> SharedValues {
        let packed = self.packed.get(&header.shard).map(|(_, words)| words.clone());
        packed.unwrap_or_else(|| part(&self.flat, header))
    }
}

/// Buffers of values and gradients.
pub(crate) struct Servers {
    flat: KeyRange,
    partition: Partition,
    initial: SharedValues,
    buffers: BTreeMap<Buffer, Flat>,
    /// For training, where computing begins before all values are there: each shard's part can be lent on its own.
    by_shard: Option<BTreeMap<ShardId, Flat>>,
    fresher: Fresher,
    /// Gradients that servers have not answered yet, for sending again.
    gradients: BTreeMap<Sequence, Computed>,
    /// Parts of gradients that are in no values, until the next one is computed.
    unused: Vec<Unused>,
    /// The gradient that was handed over last, as long as no part of it was sent.
    unsent: Option<Sequence>,
    spare: Vec<Vec<f32>>,
    /// Released gradients that QUIC may still hold.
    reclaiming: Vec<SharedValues>,
    /// The same for the parts that are written otherwise than plainly.
    spare_words: Vec<Vec<f32>>,
    reclaiming_words: Vec<SharedValues>,
    log: Option<Logging>,
}

impl Servers {
    /// `begins_early` says whether gradients are begun with the values of some shards.
    pub(crate) fn new(
        partition: Partition,
        initial: Vec<f32>,
        log: Option<PushWriter>,
        begins_early: bool,
    ) -> Self {
        Self {
            flat: KeyRange::new(0, partition.key_count()),
            initial: SharedValues::from(initial),
            buffers: BTreeMap::new(),
            by_shard: begins_early.then(BTreeMap::new),
            fresher: Fresher::new(partition.clone()),
            partition,
            gradients: BTreeMap::new(),
            unused: Vec::new(),
            unsent: None,
            spare: Vec::new(),
            reclaiming: Vec::new(),
            spare_words: Vec::new(),
            reclaiming_words: Vec::new(),
            log: log.map(|writer| Logging { writer, writing: BTreeMap::new(), written: BTreeSet::new() }),
        }
    }

    /// Performs an effect that is not the same on all roads.
    pub(crate) fn perform(&mut self, base: &mut Base, effect: Effect) {
        match effect {
            Effect::ExpectValues { server, shard, request, buffer } => {
                let purpose = if buffer == Buffer::Evaluation {
                    Purpose::Evaluation
                } else {
                    self.fresher.forget(shard);
                    Purpose::Training
                };
                if let Some(destination) = self.destination(buffer, shard) {
                    base.links.expect(server, shard, purpose, Expected { request, destination });
                }
            }
            Effect::ExpectFresher { server, shard, request } => {
                let destination = self.fresher.destination(shard);
                base.links.expect(server, shard, Purpose::Fresher, Expected { request, destination });
            }
            Effect::AdoptFresher { shard } => self.fresher.adopt(shard),
            Effect::SendPush { server, header } => {
                if let Some(gradient) = self.gradients.get(&header.sequence) {
                    self.unsent = self.unsent.filter(|sequence| *sequence != header.sequence);
                    let values = gradient.part(&header);
                    if self.log.as_mut().is_none_or(|log| log.pass(&base.links, server, header, &values)) {
                        base.links.transfer(server, header, values);
                    }
                }
            }
            Effect::SendInitial { server, header } => {
                base.links.transfer(server, header, part(&self.initial, &header));
            }
            Effect::Compute { sequence, batch, clock, buffer, adopted, pushed, missing } => {
                self.start_gradient(base, (sequence, batch, buffer), (clock, adopted, pushed), missing);
            }
            Effect::Deliver { shard } => base.compute.deliver(shard, self.lend_part(shard)),
            Effect::Abandon { sequence } => base.compute.abandon(sequence),
            Effect::ReleaseGradient { sequence, unused } => self.release(sequence, &unused),
            Effect::Evaluate { at_samples, .. } => base.evaluate(at_samples, self.lend(Buffer::Evaluation)),
            effect => tracing::error!("{effect:?} is for an allreduce: a fault of this program"),
        }
    }

    /// A part of the gradient that is computed is final.
    pub(crate) fn part_done(
        &mut self,
        base: &mut Base,
        sequence: Sequence,
        (shard, payload): (ShardId, Payload),
        samples: u32,
    ) {
        let (encoding, words) = (payload.encoding(), payload.words().len() as u64);
        let computed = self
            .gradients
            .entry(sequence)
            .or_insert_with(|| Computed { flat: Vec::new().into(), packed: BTreeMap::new() });
        computed.packed.insert(shard, (encoding, payload.into_words().into()));
        base.tell(Event::PartReady { sequence, part: Packed { shard, encoding, words }, samples });
    }

    /// A gradient was computed, or abandoned.
    pub(crate) fn gradient_done(
        &mut self,
        base: &mut Base,
        job: GradientJob,
        loss: f64,
        bad_key: Option<u64>,
    ) {
        let GradientJob { sequence, batch, buffer, values, here, waited, gradient, packed, spare, .. } = job;
        let (samples, waited_us) = (batch.samples() as u32, waited.as_micros() as u64);
        base.give_back(batch);
        self.give_back(buffer, values);
        self.give_back_parts(here.into_iter().chain(base.compute.leftover()));
        self.spare_words = spare;
        let told = packed.iter().map(|(shard, payload)| Packed {
            shard: *shard,
            encoding: payload.encoding(),
            words: payload.words().len() as u64,
        });
        let told = told.collect();
        // Those of its parts that were final before are there.
        let before = self.gradients.remove(&sequence).map(|before| before.packed);
        let packed = packed
            .into_iter()
            .map(|(shard, payload)| (shard, (payload.encoding(), payload.into_words().into())))
            .chain(before.unwrap_or_default());
        let packed = packed.collect();
        self.gradients.insert(sequence, Computed { flat: gradient.into(), packed });
        base.tell(Event::GradientReady { sequence, bad_key, loss, samples, waited_us, packed: told });
    }

    /// Memory that was evaluated.
    pub(crate) fn keep_evaluated(&mut self, values: Vec<f32>) {
        self.give_back(Buffer::Evaluation, values);
    }

    /// Where the answer to a pull goes.
    fn destination(&mut self, buffer: Buffer, shard: ShardId) -> Option<Destination> {
        let keys = self.partition.range(shard);
        match self.by_shard.as_mut().filter(|_| buffer != Buffer::Evaluation) {
            Some(parts) => Some(parts.entry(shard).or_default().destination(keys).clone()),
            None => self.buffers.entry(buffer).or_default().destination(self.flat).part(keys.as_indices()),
        }
    }

    /// The values of a shard that is lent on its own.
    fn lend_part(&mut self, shard: ShardId) -> Vec<f32> {
        let keys = self.partition.range(shard);
        let parts = self.by_shard.as_mut();
        parts.map_or_else(Vec::new, |parts| parts.entry(shard).or_default().lend(keys))
    }

    fn give_back_parts(&mut self, lent: impl Iterator<Item = (ShardId, Vec<f32>)>) {
        if let Some(parts) = &mut self.by_shard {
            lent.for_each(|(shard, values)| parts.entry(shard).or_default().give_back(values));
        }
    }

    fn lend(&mut self, buffer: Buffer) -> Vec<f32> {
        self.buffers.entry(buffer).or_default().lend(self.flat)
    }

    fn give_back(&mut self, buffer: Buffer, values: Vec<f32>) {
        self.buffers.entry(buffer).or_default().give_back(values);
    }

    fn start_gradient(
        &mut self,
        base: &mut Base,
        (sequence, index, buffer): (Sequence, BatchIndex, Buffer),
        (clock, adopted, pushed): (Clock, Vec<ShardId>, Vec<ShardId>),
        missing: Vec<ShardId>,
    ) {
        let Some(batch) = base.take_batch(index) else { return };
        self.reclaim();
        let gradient = self.spare.pop().unwrap_or_else(|| vec![0.0; self.flat.len as usize]);
        let mut values = self.lend(buffer);
        self.fresher.write_to(&mut values);
        // Only a member computes. Were it none, it would be some worker at the beginning of a life: nothing depends on which.
        let (worker, incarnation) = base.worker.member().unwrap_or_default();
        let is_after_unsent = self.unsent.replace(sequence).is_some();
        let place = Place { worker, incarnation, clock, batch: index, adopted, pushed, is_after_unsent };
        let (spare, packed, told) = (std::mem::take(&mut self.spare_words), Vec::new(), Vec::new());
        let unused = std::mem::take(&mut self.unused);
        let known: Vec<ShardId> = self.by_shard.iter().flatten().map(|(shard, _)| *shard).collect();
        let here = known.into_iter().filter(|shard| !missing.contains(shard));
        let here = here.map(|shard| (shard, self.lend_part(shard))).collect();
        let job = GradientJob {
            sequence,
            place,
            batch,
            buffer,
            values,
            here,
            missing,
            waited: Duration::ZERO,
            gradient,
            unused,
            spare,
            packed,
            told,
        };
        if !base.compute.gradient(job) {
            base.fail(WorkerFailure::ComputeEnded);
        }
    }

    /// Takes back the buffers that QUIC has let go. Those of two or three gradients go round.
    fn reclaim(&mut self) {
        let reclaim = |held: &mut Vec<SharedValues>, spare: &mut Vec<Vec<f32>>| {
            for values in std::mem::take(held) {
                match values.try_reclaim() {
                    Ok(buffer) => spare.push(buffer),
                    Err(values) => held.push(values),
                }
            }
        };
        reclaim(&mut self.reclaiming, &mut self.spare);
        reclaim(&mut self.reclaiming_words, &mut self.spare_words);
    }

    /// A shard has answered.
    pub(crate) fn answered(&self, server: ServerId, member: (WorkerId, Incarnation), pushed: Pushed) {
        if let Some(log) = &self.log {
            log.writer.answer(server, member, pushed);
        }
    }

    /// A push is written: it may go, unless it was given up meanwhile.
    pub(crate) fn logged(&mut self, base: &mut Base, logged: Logged) {
        let Some(log) = &mut self.log else { return };
        match logged {
            Ok(key) => {
                let Some(Departure { server, number, header, values }) = log.writing.remove(&key) else {
                    return;
                };
                log.written.insert(key);
                if number.is_some() && base.links.number_of(server) == number {
                    base.links.transfer(server, header, values);
                }
            }
            Err(error) => base.fail(WorkerFailure::PushLog(error)),
        }
    }

    /// Gives up a gradient. Those of its parts that no values have are undone before the next one is written.
    fn release(&mut self, sequence: Sequence, unused: &[ShardId]) {
        if let Some(log) = &mut self.log {
            log.writing.retain(|(_, held, _), _| *held != sequence);
            log.written.retain(|(_, held, _)| *held != sequence);
        }
        if let Some(Computed { flat, packed }) = self.gradients.remove(&sequence) {
            for shard in unused {
                let keys = self.partition.range(*shard);
                let payload = packed.get(shard).and_then(|(encoding, words)| {
                    Payload::new(*encoding, keys.len as usize, words.as_ref().to_vec()).ok()
                });
                let gradient = flat.slice(keys.as_indices());
                self.unused.extend(payload.map(|payload| Unused { shard: *shard, payload, gradient }));
            }
            self.reclaiming.push(flat);
            self.reclaiming_words.extend(packed.into_values().map(|(_, words)| words));
        }
    }
}

fn part(values: &SharedValues, header: &TransferHeader) -> SharedValues {
    values.slice(header.keys.as_indices())
}
