//! What the shells of workers do among themselves: meet, reduce, hand over state; and what their connections do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slackline_core::collective::{Bucket, Outgoing, Packing, Reduction, Schedule, Topology, buckets};
use slackline_core::ids::{Clock, Generation, WorkerId};
use slackline_core::wire::Group;
use slackline_worker_core::Event;

use crate::agenda::{Happening, Packet};
use crate::process::place;
use crate::replica::{Shared, gradient, layout, units_of};
use crate::scenario::Tamper;
use crate::world::{Verdict, Violation, World, holds};

/// What a shell knows of a step that it computes.
#[derive(Clone, Copy, Debug)]
struct Computed {
    bad_key: Option<u64>,
    samples: u32,
}

/// The group that a shell is in.
#[derive(Debug)]
pub(crate) struct Form {
    pub(crate) group: Group,
    position: u32,
    /// None where the group only measures.
    schedule: Option<Arc<Schedule>>,
    buckets: Arc<Vec<Bucket>>,
    /// The processes that it exchanges anything with.
    pub(crate) others: BTreeSet<usize>,
    is_met: bool,
    reductions: BTreeMap<(Clock, u32), Reduction<Shared>>,
    /// Packed gradients that are not handed over yet.
    packed: BTreeMap<(Clock, u32), Vec<f32>>,
    computing: Option<Computed>,
    /// The iteration whose own gradient is handed over.
    handed: Option<Clock>,
    gathered: Option<Clock>,
    bytes: BTreeMap<Clock, (u64, u64)>,
    sums: Option<(Clock, Vec<f32>)>,
}

impl Form {
    fn packing(&self) -> Packing {
        Packing::new(self.schedule.as_ref().map_or(1, |schedule| schedule.parts()))
    }

    /// Whether all buckets of an iteration have come so far.
    fn all(&self, clock: Clock, is_so_far: impl Fn(&Reduction<Shared>) -> bool) -> bool {
        self.buckets.iter().all(|bucket| self.reductions.get(&(clock, bucket.index)).is_some_and(&is_so_far))
    }
}

/// The process behind an address: `process 3:4000`.
fn process_at(group: &Group, position: u32) -> usize {
    let address = group.members[position as usize].address.shown();
    let digits = address.split(' ').next_back().and_then(|rest| rest.split(':').next());
    digits.and_then(|digits| digits.parse().ok()).expect("the coordinator passes addresses on as they are")
}

fn position_of(group: &Group, process: usize) -> u32 {
    let positions = 0..group.members.len() as u32;
    positions.into_iter().find(|position| process_at(group, *position) == process).expect("it is a member")
}

impl World {
    /// A worker is to meet the others of its group.
    pub(crate) fn form(&mut self, process: usize, group: Group, position: u32) -> Verdict {
        self.close_form(process);
        let (generation, members) = (group.generation, group.members.len() as u32);
        let schedule = match group.topology {
            Topology::Auto => None,
            topology => Some(Arc::new(
                Schedule::new(topology, members)
                    .map_err(|misfit| Violation { law: "groups", text: misfit.to_string() })?,
            )),
        };
        let mut positions = schedule.as_ref().map_or_else(
            || BTreeSet::from([(position + 1) % members, (position + members - 1) % members]),
            |schedule| schedule.neighbours(position),
        );
        match group.source.and_then(|source| group.position_of(source)) {
            Some(source) if source == position => positions.extend(0..members),
            Some(source) => _ = positions.insert(source),
            None => {}
        }
        positions.remove(&position);
        let others: BTreeSet<usize> = positions.iter().map(|other| process_at(&group, *other)).collect();
        for other in others.clone() {
            self.send_peer(process, other, generation, Packet::Hello);
            if self.cuts.contains_key(&(process.min(other), process.max(other), generation)) {
                // It was lost before this side knew of it.
                let when = self.now.after(self.delay());
                self.agenda.at(when, Happening::PeerLost { process, other, generation });
            }
        }
        for (share, is_for_called) in [(0.7, true), (1.0, false)] {
            let late = self.now.after(self.scenario.lease.mul_f64(share));
            self.agenda.at(late, Happening::MeetLate { process, generation, is_for_called });
        }
        let buckets = buckets(&layout(self.scenario.keys), self.scenario.bucket_bytes, self.scenario.order);
        let state = &mut self.processes[process];
        state.hellos.retain(|(said, _)| *said >= generation);
        state.form = Some(Form {
            group,
            position,
            schedule,
            buckets: Arc::new(buckets),
            others,
            is_met: false,
            reductions: BTreeMap::new(),
            packed: BTreeMap::new(),
            computing: None,
            handed: None,
            gathered: None,
            bytes: BTreeMap::new(),
            sums: None,
        });
        self.meet_soon(process);
        Ok(())
    }

    /// Leaves a group, if there is one: the others learn it from their connections.
    pub(crate) fn close_form(&mut self, process: usize) {
        let Some(form) = self.processes[process].form.take() else { return };
        let generation = form.group.generation;
        for other in form.others {
            self.cut_peers(process, other, generation);
            let when = self.now.after(self.delay());
            self.agenda.at(when, Happening::PeerLost { process: other, other: process, generation });
        }
    }

    /// What two workers send each other within a group arrives no more, from some moment on.
    pub(crate) fn cut_peers(&mut self, one: usize, other: usize, generation: Generation) {
        let when = self.now.after(self.delay());
        let cut = self.cuts.entry((one.min(other), one.max(other), generation)).or_insert(when);
        *cut = when.min(*cut);
    }

    fn send_peer(&mut self, from: usize, to: usize, generation: Generation, what: Packet) {
        let when = self.now.after(self.delay());
        self.agenda.at(when, Happening::AtPeer { from, to, generation, what });
    }

    fn form_in(&mut self, process: usize, generation: Generation) -> Option<&mut Form> {
        self.processes[process].form.as_mut().filter(|form| form.group.generation == generation)
    }

    fn meet_soon(&mut self, process: usize) {
        let state = &mut self.processes[process];
        let Some(form) = &mut state.form else { return };
        let generation = form.group.generation;
        let is_here = |other: &usize| state.hellos.contains(&(generation, *other));
        if !form.is_met && form.others.iter().all(is_here) {
            form.is_met = true;
            self.later(process, 200, Event::Met { generation });
        }
    }

    /// A worker has waited for the others of its group for a lease, or nearly so for those that it calls, who are before it.
    pub(crate) fn meet_late(
        &mut self,
        process: usize,
        generation: Generation,
        is_for_called: bool,
    ) -> Verdict {
        let state = &self.processes[process];
        let Some(form) = state.form.as_ref().filter(|form| form.group.generation == generation) else {
            return Ok(());
        };
        let is_awaited = |other: usize| !is_for_called || position_of(&form.group, other) < form.position;
        let is_here = |other: usize| state.hellos.contains(&(generation, other));
        let missing = form.others.iter().copied().find(|other| is_awaited(*other) && !is_here(*other));
        missing.map_or(Ok(()), |other| self.peer_lost(process, other, generation))
    }

    /// A worker learns that its connection to another is over.
    pub(crate) fn peer_lost(&mut self, process: usize, other: usize, generation: Generation) -> Verdict {
        let Some(form) = self.form_in(process, generation) else { return Ok(()) };
        let worker = form.group.members[position_of(&form.group, other) as usize].worker;
        let reason = format!("process {other} is gone");
        self.worker_event(process, Event::PeerTrouble { generation, worker, reason })
    }

    /// Something reaches a worker from another.
    pub(crate) fn at_peer(
        &mut self,
        from: usize,
        to: usize,
        generation: Generation,
        what: Packet,
    ) -> Verdict {
        let cut = self.cuts.get(&(from.min(to), from.max(to), generation));
        let is_lost = cut.is_some_and(|cut| *cut <= self.now)
            || self.processes[from].is_unreachable
            || self.processes[to].is_unreachable;
        if is_lost || self.processes[to].life != crate::process::Life::Running {
            return Ok(());
        }
        if let Packet::Hello = what {
            self.processes[to].hellos.insert((generation, from));
            self.meet_soon(to);
            return Ok(());
        }
        if self.form_in(to, generation).is_none() {
            return Ok(());
        }
        match what {
            Packet::Hello => Ok(()),
            Packet::Part { clock, bucket, number, values } => {
                self.part_arrived(from, to, (clock, bucket, number), values)
            }
            Packet::Want { clock } => {
                let replica = &self.processes[to].replica;
                let has = place(replica.clock, &replica.history);
                holds("state", replica.clock == clock, || {
                    format!("process {to} is to have {clock}, and has {has}")
                })?;
                let mut state = replica.state();
                if self.scenario.tamper == Some(Tamper::FlipState) {
                    state.values[1] = f32::from_bits(state.values[1].to_bits() ^ 1);
                }
                self.send_peer(to, from, generation, Packet::State(Box::new(state)));
                Ok(())
            }
            Packet::State(state) => {
                self.taken_over += 1;
                let fits = self.processes[to].replica.restore(*state);
                holds("state", fits, || format!("process {to} got state of another length"))?;
                self.worker_event(to, Event::StateArrived { generation })
            }
        }
    }

    pub(crate) fn fetch(&mut self, process: usize, generation: Generation, source: WorkerId, clock: Clock) {
        let form = self.form_in(process, generation);
        let place = form.and_then(|form| Some(process_at(&form.group, form.group.position_of(source)?)));
        if let Some(source) = place {
            self.send_peer(process, source, generation, Packet::Want { clock });
        }
    }

    /// A worker computes its part of an iteration.
    pub(crate) fn step(
        &mut self,
        process: usize,
        (generation, clock): (Generation, Clock),
        batch: Option<u64>,
        share: f32,
    ) -> Verdict {
        let state = &mut self.processes[process];
        let Some(form) = state.form.as_mut().filter(|form| form.group.generation == generation) else {
            return holds("shell", false, || {
                format!("process {process} steps in {generation}, which it left")
            });
        };
        let units = units_of(&form.group, clock, self.scenario.unit_count());
        let unit = units.clone().nth(form.position as usize);
        let samples = |unit: u64| u64::from(self.scenario.samples_of(unit));
        let total: u64 = units.clone().map(samples).sum();
        let expected = unit.map_or(0.0, |unit| (samples(unit) as f64 / total as f64) as f32);
        let is_right =
            unit == batch && share == expected && state.replica.clock == clock && form.computing.is_none();
        holds("units", is_right, || {
            format!(
                "process {process} steps on {batch:?} (share {share}) at {clock}; {unit:?} ({expected}) is its own"
            )
        })?;
        let used =
            if self.scenario.tamper == Some(Tamper::SameBatch) { batch.map(|_| units.start) } else { batch };
        let values = &state.replica.values;
        let own = used
            .map_or_else(|| vec![0.0; values.len()], |unit| gradient(values, unit, self.scenario.bad_unit));
        let bad_key = slackline_core::aggregate::first_not_finite(&own).map(|key| key as u64);
        form.computing =
            Some(Computed { bad_key, samples: unit.map_or(0, |unit| self.scenario.samples_of(unit)) });
        let (packing, all, pace) = (form.packing(), Arc::clone(&form.buckets), state.pace);
        let mut last = self.now;
        for bucket in all.iter() {
            let mut packed = Vec::new();
            packing.pack(bucket.keys, &own[bucket.keys.as_indices()], share, &mut packed);
            form.packed.insert((clock, bucket.index), packed);
            let when = self.now.after(self.chance.micros(pace / 3, pace));
            last = last.max(when);
            let bucket = bucket.index;
            self.agenda.at(when, Happening::Bucket { process, generation, clock, bucket });
        }
        self.agenda.at(last, Happening::Computed { process, generation, clock });
        Ok(())
    }

    /// A bucket of the own gradient goes into its reduction.
    pub(crate) fn bucket_ready(
        &mut self,
        process: usize,
        generation: Generation,
        (clock, bucket): (Clock, u32),
    ) -> Verdict {
        let Some(packed) =
            self.form_in(process, generation).and_then(|form| form.packed.remove(&(clock, bucket)))
        else {
            return Ok(());
        };
        let mut out = Vec::new();
        let outcome = self.reduction(process, clock, bucket).own(Shared::from(packed), &mut out);
        holds("reduction", outcome.is_ok(), || format!("process {process}: {outcome:?}"))?;
        self.send_parts(process, (clock, bucket), out);
        self.look_at_step(process)
    }

    fn part_arrived(
        &mut self,
        from: usize,
        to: usize,
        (clock, bucket, number): (Clock, u32, u32),
        values: Vec<f32>,
    ) -> Verdict {
        let Some(form) = &mut self.processes[to].form else { return Ok(()) };
        let position = position_of(&form.group, from);
        form.bytes.entry(clock).or_default().1 += 4 * values.len() as u64;
        let mut out = Vec::new();
        let outcome = self.reduction(to, clock, bucket).arrived(position, number, values, &mut out);
        holds("reduction", outcome.is_ok(), || format!("process {to} at {clock}: {outcome:?}"))?;
        self.send_parts(to, (clock, bucket), out);
        self.look_at_step(to)
    }

    fn reduction(&mut self, process: usize, clock: Clock, bucket: u32) -> &mut Reduction<Shared> {
        let form = self.processes[process].form.as_mut().expect("the caller has looked");
        let schedule =
            Arc::clone(form.schedule.as_ref().expect("nobody sends parts in a group that measures"));
        let lens = form.packing().part_lens(form.buckets[bucket as usize].keys);
        let position = form.position;
        form.reductions.entry((clock, bucket)).or_insert_with(|| Reduction::new(schedule, position, lens))
    }

    fn send_parts(&mut self, process: usize, (clock, bucket): (Clock, u32), out: Vec<Outgoing<Shared>>) {
        for Outgoing { to, number, pieces, .. } in out {
            let mut values: Vec<f32> = pieces.iter().flat_map(|piece| piece.as_ref()).copied().collect();
            if self.scenario.tamper == Some(Tamper::FlipPart) && self.chance.happens(100) {
                values[0] = f32::from_bits(values[0].to_bits() ^ (1 << 20));
            }
            if self.scenario.tamper == Some(Tamper::LosePart) && self.chance.happens(100) {
                continue;
            }
            let Some(form) = &mut self.processes[process].form else { return };
            form.bytes.entry(clock).or_default().0 += 4 * values.len() as u64;
            let (generation, to) = (form.group.generation, process_at(&form.group, to));
            self.send_peer(process, to, generation, Packet::Part { clock, bucket, number, values });
        }
    }

    /// The whole own gradient is handed over.
    pub(crate) fn computed(&mut self, process: usize, generation: Generation, clock: Clock) -> Verdict {
        let Some(form) = self.form_in(process, generation) else { return Ok(()) };
        let Some(Computed { bad_key, samples }) = form.computing.take() else { return Ok(()) };
        form.handed = Some(clock);
        self.worker_event(process, Event::StepComputed { generation, clock, bad_key, loss: 0.5, samples })?;
        self.look_at_step(process)
    }

    /// Tells the worker how far the reductions of its iteration are.
    fn look_at_step(&mut self, process: usize) -> Verdict {
        let Some(form) = &mut self.processes[process].form else { return Ok(()) };
        let (generation, Some(clock)) = (form.group.generation, form.handed) else { return Ok(()) };
        if form.gathered != Some(clock) && form.all(clock, Reduction::is_gathered) {
            form.gathered = Some(clock);
            self.worker_event(process, Event::Gathered { generation, clock })?;
        }
        let keys = self.scenario.keys as usize;
        let Some(form) = self.form_in(process, generation) else { return Ok(()) };
        if form.handed != Some(clock) || !form.all(clock, Reduction::is_complete) {
            return Ok(());
        }
        form.handed = None;
        let packing = form.packing();
        let mut sums = vec![f32::NAN; keys];
        for bucket in form.buckets.iter() {
            let reduction = form.reductions.remove(&(clock, bucket.index)).expect("all were looked at");
            packing.unpack(bucket.keys, &reduction.into_parts(), &mut sums[bucket.keys.as_indices()]);
        }
        let bad_key = slackline_core::aggregate::first_not_finite(&sums).map(|key| key as u64);
        let (sent, received) = form.bytes.remove(&clock).unwrap_or_default();
        form.sums = Some((clock, sums));
        self.worker_event(process, Event::Reduced { generation, clock, bad_key, sent, received })
    }

    /// A worker applies the sums of an iteration, or leaves them out.
    pub(crate) fn apply(
        &mut self,
        process: usize,
        (generation, clock): (Generation, Clock),
        progress: Option<f64>,
    ) -> Verdict {
        let state = &mut self.processes[process];
        let form = state.form.as_mut().filter(|form| form.group.generation == generation);
        let Some((form, (_, sums))) = form.and_then(|form| {
            let sums = form.sums.take_if(|(summed, _)| *summed == clock)?;
            Some((form, sums))
        }) else {
            return holds("shell", false, || {
                format!("process {process} applies {clock}, whose sums it has not")
            });
        };
        let given = (progress.map(|_| sums.as_slice()), progress.unwrap_or_default());
        let outcome = self.ledger.apply(&self.scenario, (&form.group, clock), &mut state.replica, given);
        outcome.map_err(|text| Violation { law: "values", text: format!("process {process}: {text}") })
    }
}
