//! The allreduce of one group at this worker: which parts may come, and what is to be sent. No IO.
//!
//! Another worker can be one iteration ahead and no more: to complete an iteration it needs this worker's gradient of it. So parts of
//! the present iteration and of the next one are taken, and what the schedule lets them be in all bounds the memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use slackline_core::aggregate::first_not_finite;
use slackline_core::collective::{Bucket, Outgoing, Packing, Reduction, ReductionError, Schedule};
use slackline_core::ids::{Clock, Generation, Incarnation, KeyRange, Sequence, ShardId, WorkerId};
use slackline_core::wire::{TransferHeader, TransferKind};
use slackline_net::SharedValues;

use super::fault::Fault;
use super::pool::Pool;

/// What came of something.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// A transfer to the member at that position.
    Send(u32, TransferHeader, Vec<SharedValues>),
    /// All sums of a bucket are here, part by part: for those who take them one by one.
    Summed(u32, Vec<SharedValues>),
    /// Everybody's gradient of the iteration is in.
    Gathered(Clock),
    /// All sums of the iteration are here.
    Reduced(Reduced),
}

/// A complete iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reduced {
    pub(crate) clock: Clock,
    /// First key, in the order of keys, whose sum is not finite.
    pub(crate) bad_key: Option<u64>,
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// Whom the present iteration waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) clock: Clock,
    pub(crate) bucket: u32,
    pub(crate) buckets: u32,
    /// Position of the one whose transfer comes first of those that are missing.
    pub(crate) from: u32,
}

/// One iteration.
#[derive(Debug)]
struct Iteration {
    /// By bucket; those that are complete are taken out.
    reductions: Vec<Option<Reduction<SharedValues>>>,
    sums: Vec<Vec<SharedValues>>,
    gathered: usize,
    is_gathered: Vec<bool>,
    complete: usize,
    bad_key: Option<u64>,
    sent: u64,
    received: u64,
}

/// The allreduce of one group at one member.
#[derive(Debug)]
pub(crate) struct Reducing {
    generation: Generation,
    me: WorkerId,
    position: u32,
    schedule: Arc<Schedule>,
    buckets: Arc<[Bucket]>,
    packing: Packing,
    part_lens: Vec<Vec<u64>>,
    /// The iteration whose sums are not complete yet.
    present: Clock,
    iterations: BTreeMap<Clock, Iteration>,
    /// Complete, and neither applied nor skipped.
    sums: Option<(Clock, Vec<Vec<SharedValues>>)>,
    pub(crate) pool: Pool,
    /// Whether sums are told bucket by bucket, and not kept.
    pub(crate) tells_sums: bool,
}

impl Reducing {
    /// Begins a group after `present` iterations.
    pub(crate) fn new(
        (generation, me, position): (Generation, WorkerId, u32),
        schedule: Arc<Schedule>,
        buckets: Arc<[Bucket]>,
        present: Clock,
        mut pool: Pool,
    ) -> Self {
        let packing = Packing::new(schedule.parts());
        let part_lens: Vec<_> = buckets.iter().map(|bucket| packing.part_lens(bucket.keys)).collect();
        pool.keep(2 * received_values(&schedule, position, &part_lens));
        let (iterations, sums) = (BTreeMap::new(), None);
        Self {
            generation,
            me,
            position,
            schedule,
            buckets,
            packing,
            part_lens,
            present,
            iterations,
            sums,
            pool,
            tells_sums: false,
        }
    }

    /// Whether a part from `worker` at position `from` may come; its length is then the one that is expected.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn admit(
        &mut self,
        from: u32,
        worker: WorkerId,
        header: &TransferHeader,
    ) -> Result<(), Fault> {
        let (clock, bucket, number) = (header.clock, header.shard.0, header.sequence.0);
        let (at, buckets) = (self.present, self.buckets.len() as u32);
        if clock != at && clock != at.next() {
            return Err(Fault::Clock { worker, clock, bucket, at });
        }
        if bucket >= buckets {
            return Err(Fault::Bucket { worker, clock, bucket, buckets });
        }
        let reduction = self.iteration(clock).reductions[bucket as usize].as_ref();
        let expected = u32::try_from(number)
            .ok()
            .and_then(|number| reduction.and_then(|reduction| reduction.expects(from, number)));
        let Some(expected) = expected else { return Err(Fault::Number { worker, clock, bucket, number }) };
        let values = header.keys.len;
        if values != expected || header.keys.start != 0 {
            return Err(Fault::Length { worker, clock, bucket, number, values, expected });
        }
        Ok(())
    }

    /// Takes a part that was admitted.
    ///
    /// # Errors
    /// The reduction does not take it.
    pub(crate) fn arrived(
        &mut self,
        from: u32,
        worker: WorkerId,
        header: &TransferHeader,
        values: Vec<f32>,
    ) -> Result<Vec<Outcome>, Fault> {
        // Between its first stripe and its last, the iteration may not have gone on without it.
        self.admit(from, worker, header)?;
        let (bytes, number) = (values.len() as u64 * 4, header.sequence.0 as u32);
        let outcomes = self.advance(header.clock, header.shard.0, |reduction, out| {
            reduction.arrived(from, number, values, out)
        });
        if let Some(iteration) = self.iterations.get_mut(&header.clock) {
            iteration.received += bytes;
        }
        let outcomes = outcomes.map_err(|error| Fault::Reduction { worker, error })?;
        Ok(self.settle(header.clock, outcomes))
    }

    /// Takes this worker's own gradient of a bucket, packed.
    ///
    /// # Errors
    /// The reduction does not take it: a fault of this program.
    pub(crate) fn own(
        &mut self,
        clock: Clock,
        bucket: u32,
        packed: SharedValues,
    ) -> Result<Vec<Outcome>, ReductionError> {
        if clock != self.present || bucket as usize >= self.buckets.len() {
            return Ok(Vec::new());
        }
        self.iteration(clock);
        let outcomes = self.advance(clock, bucket, |reduction, out| reduction.own(packed, out))?;
        Ok(self.settle(clock, outcomes))
    }

    /// The sums of an iteration that is complete, by bucket and part.
    pub(crate) fn take_sums(&mut self, clock: Clock) -> Option<Vec<Vec<SharedValues>>> {
        self.sums.take_if(|(complete, _)| *complete == clock).map(|(_, sums)| sums)
    }

    /// Whom the present iteration waits for, if it does not wait for this worker's own gradient.
    pub(crate) fn missing(&self) -> Option<Missing> {
        let iteration = self.iterations.get(&self.present)?;
        let buckets = self.buckets.len() as u32;
        let (bucket, reduction) =
            iteration.reductions.iter().enumerate().find_map(|(at, one)| Some((at, one.as_ref()?)))?;
        let mut coming = self.schedule.of(self.position).filter(|transfer| transfer.to == self.position);
        let first = coming.find(|transfer| reduction.expects(transfer.from, transfer.number).is_some())?;
        Some(Missing { clock: self.present, bucket: bucket as u32, buckets, from: first.from })
    }

    /// Bytes of parts that have come for an iteration that is not complete.
    #[cfg(test)]
    pub(crate) fn received(&self, clock: Clock) -> u64 {
        self.iterations.get(&clock).map_or(0, |iteration| iteration.received)
    }

    fn iteration(&mut self, clock: Clock) -> &mut Iteration {
        let (schedule, position, part_lens) = (&self.schedule, self.position, &self.part_lens);
        self.iterations.entry(clock).or_insert_with(|| {
            let begin = |lens: &Vec<u64>| Some(Reduction::new(schedule.clone(), position, lens.clone()));
            Iteration {
                reductions: part_lens.iter().map(begin).collect(),
                sums: vec![Vec::new(); part_lens.len()],
                is_gathered: vec![false; part_lens.len()],
                gathered: 0,
                complete: 0,
                bad_key: None,
                sent: 0,
                received: 0,
            }
        })
    }

    /// Does something to the reduction of a bucket, and notes how far it is.
    fn advance(
        &mut self,
        clock: Clock,
        bucket: u32,
        step: impl FnOnce(
            &mut Reduction<SharedValues>,
            &mut Vec<Outgoing<SharedValues>>,
        ) -> Result<(), ReductionError>,
    ) -> Result<Vec<Outcome>, ReductionError> {
        let (keys, packing, at) = (self.buckets[bucket as usize].keys, self.packing, bucket as usize);
        let Some(iteration) = self.iterations.get_mut(&clock) else { return Ok(Vec::new()) };
        let Some(reduction) = &mut iteration.reductions[at] else { return Ok(Vec::new()) };
        let mut out = Vec::new();
        step(reduction, &mut out)?;
        if reduction.is_gathered() && !std::mem::replace(&mut iteration.is_gathered[at], true) {
            iteration.gathered += 1;
        }
        if let Some(complete) = iteration.reductions[at].take_if(|reduction| reduction.is_complete()) {
            let parts = complete.into_parts();
            let bad_key = first_bad_key(packing, keys, &parts);
            iteration.bad_key = [iteration.bad_key, bad_key].into_iter().flatten().min();
            iteration.sums[at] = parts;
            iteration.complete += 1;
        }
        iteration.sent += out.iter().map(|outgoing| outgoing.len * 4).sum::<u64>();
        let told = self.tells_sums && iteration.reductions[at].is_none();
        let summed = told.then(|| Outcome::Summed(bucket, std::mem::take(&mut iteration.sums[at])));
        Ok(out.into_iter().map(|outgoing| self.send(clock, bucket, outgoing)).chain(summed).collect())
    }

    /// Adds what has become complete.
    fn settle(&mut self, clock: Clock, mut outcomes: Vec<Outcome>) -> Vec<Outcome> {
        let buckets = self.buckets.len();
        let Some(iteration) = self.iterations.get_mut(&clock) else { return outcomes };
        if iteration.gathered == buckets {
            // Once: a number that no count of buckets reaches.
            iteration.gathered = usize::MAX;
            outcomes.push(Outcome::Gathered(clock));
        }
        if iteration.complete == buckets
            && let Some(iteration) = self.iterations.remove(&clock)
        {
            let Iteration { sums, bad_key, sent, received, .. } = iteration;
            self.sums = Some((clock, sums));
            self.present = clock.next();
            outcomes.push(Outcome::Reduced(Reduced { clock, bad_key, sent, received }));
        }
        outcomes
    }

    fn send(&self, clock: Clock, bucket: u32, outgoing: Outgoing<SharedValues>) -> Outcome {
        let keys = KeyRange::new(0, outgoing.len);
        let header = TransferHeader {
            kind: TransferKind::Part,
            shard: ShardId(bucket),
            sequence: Sequence(outgoing.number.into()),
            clock,
            ..header(self.me, self.generation, keys)
        };
        Outcome::Send(outgoing.to, header, outgoing.pieces)
    }
}

/// A header of a transfer to another worker, with nothing in it but who sends how much in which group.
pub(crate) fn header(me: WorkerId, generation: Generation, keys: KeyRange) -> TransferHeader {
    TransferHeader {
        worker: me,
        incarnation: Incarnation(generation.0),
        ..TransferHeader::plain(TransferKind::Probe, ShardId(0), keys)
    }
}

/// How many values come in one iteration.
fn received_values(schedule: &Schedule, position: u32, part_lens: &[Vec<u64>]) -> usize {
    let coming = schedule.of(position).filter(|transfer| transfer.to == position);
    let values = coming.flat_map(|transfer| {
        let parts = transfer.parts.clone();
        part_lens.iter().map(move |lens| lens[parts.start as usize..parts.end as usize].iter().sum::<u64>())
    });
    values.sum::<u64>() as usize
}

/// The first key of a bucket whose sum is not finite. Looking for one is a pass over the parts; only when there is one, the order of
/// keys matters.
fn first_bad_key(packing: Packing, keys: KeyRange, parts: &[SharedValues]) -> Option<u64> {
    let is_bad = |value: &f32| !value.is_finite();
    if !parts.iter().any(|part| first_not_finite(part.as_ref()).is_some()) {
        return None;
    }
    let mut values = vec![0.0; keys.len as usize];
    packing.unpack(keys, parts, &mut values);
    values.iter().position(is_bad).map(|at| keys.start + at as u64)
}
