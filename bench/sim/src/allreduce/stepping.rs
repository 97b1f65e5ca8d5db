//! One iteration of a group's member: its gradient, bucket by bucket, and the sums that come of it.

use std::sync::Arc;
use std::time::Duration;

use slackline_core::collective::{Outgoing, Reduction};
use slackline_core::ids::{BatchIndex, Clock, Generation, Moment, ShardId};
use slackline_worker_core::Event;

use super::form::Form;
use super::parcels::{Part, Piece};
use super::replica::Sums;
use crate::engine::{Assignment, Engine, Gradient, Job};
use crate::failure::SimFailure;
use crate::links::duration;
use crate::world::{Happening, World};

/// What an iteration begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepOf {
    pub(crate) generation: Generation,
    pub(crate) clock: Clock,
    pub(crate) batch: Option<BatchIndex>,
    pub(crate) share: f32,
}

/// One iteration under way at one member.
pub(crate) struct Stepping {
    of: StepOf,
    samples: u32,
    /// When the gradient was begun, and the same with all that the process stood still since added.
    since: Moment,
    began: Moment,
    /// For how long the process has stood still and nothing was moved for it yet.
    pub(crate) stood_still: Duration,
    /// How long the gradient takes.
    drawn: Duration,
    job: Option<Job>,
    gradient: Option<Gradient>,
    /// Buckets that were handed over.
    handed: usize,
    pub(super) is_computed: bool,
    computed_at: Moment,
    gathered_at: Option<Moment>,
}

impl Stepping {
    /// When the gradient of a bucket exists.
    fn ready_at(&self, ready: &[f64], bucket: usize) -> Moment {
        let share = ready.get(bucket).copied().unwrap_or(1.0);
        self.began.after(if share < 1.0 { self.drawn.mul_f64(share) } else { self.drawn })
    }
}

/// The sums of one iteration at one member.
pub(super) struct Round {
    reductions: Vec<Reduction<Piece>>,
    /// Bytes of parts.
    pub(super) sent: u64,
    received: u64,
}

impl Round {
    fn new(form: &Form, position: u32) -> Self {
        let begin = |lens: &Vec<u64>| Reduction::new(Arc::clone(&form.schedule), position, lens.clone());
        Self { reductions: form.part_lens.iter().map(begin).collect(), sent: 0, received: 0 }
    }
}

impl World {
    /// A worker begins an iteration.
    pub(crate) fn step(&mut self, process: usize, of: StepOf) {
        let config = self.plan.config();
        let state = &mut self.processes[process];
        let place = state.batches.iter().position(|(loaded, _)| Some(*loaded) == of.batch);
        let units = place.and_then(|place| state.batches.remove(place)).map_or(1, |(_, units)| units);
        let samples = of.batch.map_or(0, |batch| self.plan.order.batch_len(batch, u64::from(units)));
        let share = samples as f64 / config.train.batch as f64;
        let seconds = config.stragglers.seconds(config.seed, state.id(), of.clock.0, config.workers, share);
        let Some(peer) = &mut state.peer else { return };
        let since = peer.busy_until.max(self.agenda.now());
        let values = Arc::clone(&peer.replica.values);
        let Some(member) = peer.member_of(of.generation) else { return };
        let job = of.batch.map(|batch| {
            let snapshot = vec![(ShardId(0), values)];
            let (clock, adopted) = (of.clock, Vec::new());
            self.engine.start(Assignment { snapshot, batch, units, clock, adopted, local: None })
        });
        member.step = Some(Stepping {
            of,
            samples: samples as u32,
            since,
            began: since,
            stood_still: Duration::ZERO,
            // Who has no batch has nothing to wait for.
            drawn: if job.is_some() { duration(seconds) } else { Duration::ZERO },
            job,
            gradient: None,
            handed: 0,
            is_computed: false,
            computed_at: since,
            gathered_at: None,
        });
        self.counts.computing += 1;
        state.number += 1;
        let number = state.number;
        // At one moment all begin first, so that their gradients are computed side by side.
        self.agenda.at(since, Happening::Proceeds { process, number });
    }

    /// Some of a gradient may exist by now.
    pub(crate) fn proceeds(&mut self, process: usize, number: u64) -> Result<(), SimFailure> {
        let now = self.now();
        let state = &mut self.processes[process];
        if state.number != number {
            return Ok(());
        }
        let Some(step) = state.peer.as_mut().and_then(|peer| peer.computing()) else { return Ok(()) };
        let still = std::mem::take(&mut step.stood_still);
        if !still.is_zero() {
            step.began = step.began.after(still);
            self.agenda.at(now.after(still), Happening::Proceeds { process, number });
            return Ok(());
        }
        let ready = self.plan.group.as_ref().map_or(&[][..], |plan| plan.ready.as_slice());
        let due = (step.handed..ready.len()).take_while(|bucket| step.ready_at(ready, *bucket) <= now);
        let due = step.handed..step.handed + due.count();
        step.handed = due.end;
        let is_computed = step.handed == ready.len();
        let next = step.ready_at(ready, step.handed);
        if !due.is_empty()
            && let Some(job) = step.job.take()
        {
            step.gradient = Some(self.engine.finish(job, false)?);
        }
        let generation = step.of.generation;
        for bucket in due {
            self.hand_over(process, generation, bucket);
        }
        if is_computed {
            self.gradient_is_whole(process, generation);
            self.look_at_sums(process, generation);
        } else {
            self.agenda.at(next, Happening::Proceeds { process, number });
        }
        Ok(())
    }

    /// The gradient of one bucket goes into its reduction.
    fn hand_over(&mut self, process: usize, generation: Generation, bucket: usize) {
        let is_timing = matches!(self.engine, Engine::Timing { .. });
        let Some(keys) = self.plan.group.as_ref().map(|plan| plan.buckets[bucket].keys) else { return };
        let Some(member) = self.member(process, generation) else { return };
        let (Some(form), Some(step)) = (&member.form, &member.step) else { return };
        let mut packed = Vec::new();
        match &step.gradient {
            _ if is_timing => {}
            Some(gradient) => {
                form.packing.pack(keys, &gradient.values[keys.as_indices()], step.of.share, &mut packed);
            }
            None => packed.resize(keys.len as usize, 0.0),
        }
        let (clock, position) = (step.of.clock, member.position);
        let round = member.rounds.entry(clock).or_insert_with(|| Round::new(form, position));
        let mut out = Vec::new();
        let given = round.reductions[bucket].own(packed.into(), &mut out);
        self.send_parts(process, generation, (clock, bucket), out);
        if let Err(error) = given {
            self.peer_trouble(process, generation, position, &error);
        }
    }

    fn send_parts(
        &mut self,
        process: usize,
        generation: Generation,
        place: (Clock, usize),
        out: Vec<Outgoing<Piece>>,
    ) {
        for outgoing in out {
            self.send_part(process, generation, place, outgoing);
        }
    }

    /// The last of a gradient exists.
    fn gradient_is_whole(&mut self, process: usize, generation: Generation) {
        let now = self.now();
        let id = self.processes[process].id();
        let Some(step) = self.member(process, generation).and_then(|member| member.step.as_mut()) else {
            return;
        };
        (step.is_computed, step.computed_at) = (true, now);
        let (clock, samples, since) = (step.of.clock, step.samples, step.since);
        let gradient = step.gradient.take();
        let (loss, bad_key) = gradient.as_ref().map_or((0.0, None), |done| (done.loss, done.bad_key));
        if let Some(Gradient { values, .. }) = gradient {
            self.engine.recycle(values);
        }
        self.counts.computing -= 1;
        self.tally.gradients += u64::from(samples > 0);
        (self.stirred, self.worked) = (now, now);
        self.timeline.computed(id, since, since, now);
        if !loss.is_finite() || bad_key.is_some() {
            self.diverged.get_or_insert(clock);
        }
        self.worker_event(process, Event::StepComputed { generation, clock, bad_key, loss, samples });
    }

    /// Parts of another member's sums are here.
    pub(super) fn part_arrives(&mut self, process: usize, generation: Generation, part: Part) {
        let Part { clock, bucket, from, number, len, values, .. } = part;
        let bytes = 4 * len;
        self.processes[process].wire.1 += bytes;
        let Some(member) = self.member(process, generation) else { return };
        let Some(form) = &member.form else { return };
        let position = member.position;
        let round = member.rounds.entry(clock).or_insert_with(|| Round::new(form, position));
        round.received += bytes;
        let mut out = Vec::new();
        let taken = round.reductions[bucket].arrived(from, number, values, &mut out);
        self.send_parts(process, generation, (clock, bucket), out);
        match taken {
            Ok(()) => self.look_at_sums(process, generation),
            Err(error) => self.peer_trouble(process, generation, from, &error),
        }
    }

    pub(super) fn peer_trouble(
        &mut self,
        process: usize,
        generation: Generation,
        position: u32,
        reason: &dyn std::fmt::Display,
    ) {
        let Some(member) = self.member(process, generation) else { return };
        let (worker, reason) = (member.worker_at(position), reason.to_string());
        self.worker_event(process, Event::PeerTrouble { generation, worker, reason });
    }

    /// Tells the core when everybody's gradient is in, and when all sums are there.
    fn look_at_sums(&mut self, process: usize, generation: Generation) {
        let now = self.now();
        let Some(member) = self.member(process, generation) else { return };
        let Some(step) = member.step.as_mut().filter(|step| step.is_computed) else { return };
        let clock = step.of.clock;
        let Some(round) = member.rounds.get(&clock) else { return };
        let is_gathered = step.gathered_at.is_some() || round.reductions.iter().all(Reduction::is_gathered);
        let is_complete = is_gathered && round.reductions.iter().all(Reduction::is_complete);
        if is_gathered && step.gathered_at.is_none() {
            step.gathered_at = Some(now);
            self.worker_event(process, Event::Gathered { generation, clock });
        }
        if is_complete {
            self.sums_are_whole(process, generation, clock);
        }
    }

    fn sums_are_whole(&mut self, process: usize, generation: Generation, clock: Clock) {
        let now = self.now();
        let id = self.processes[process].id();
        let is_timing = matches!(self.engine, Engine::Timing { .. });
        let Some(peer) = &mut self.processes[process].peer else { return };
        let Some(member) = peer.member_of(generation) else { return };
        let (Some(round), Some(step)) = (member.rounds.remove(&clock), member.step.take()) else { return };
        let (Some(form), Some(plan)) = (&member.form, &self.plan.group) else { return };
        let Round { reductions, sent, received } = round;
        let sums = self.commons.sums((generation, clock), || {
            let mut flat = vec![0.0; if is_timing { 0 } else { plan.layout.len() as usize }];
            for (bucket, reduction) in plan.buckets.iter().zip(reductions).filter(|_| !is_timing) {
                form.packing.unpack(
                    bucket.keys,
                    &reduction.into_parts(),
                    &mut flat[bucket.keys.as_indices()],
                );
            }
            Sums::new(flat)
        });
        let bad_key = sums.bad_key;
        member.sums = Some((clock, sums));
        let is_last = member.group.unit_of(Clock(clock.0 + 1), 0) >= Some(self.plan.order.batch_count());
        self.timeline.reduced(id, step.computed_at, step.gathered_at.unwrap_or(now), now);
        self.stirred = now;
        if is_last {
            // What follows is the last report: the byte counts are brought up to date.
            self.tick(process);
        }
        self.worker_event(process, Event::Reduced { generation, clock, bad_key, sent, received });
    }
}
