//! The shell of a worker: its buffers, its gradients, its clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use slackline_core::codec::{Encoding, Patch, Payload};
use slackline_core::config::Config;
use slackline_core::ids::{BatchIndex, Moment, Sequence, ServerId, ShardId, WorkerId};
use slackline_core::wire::{Served, ToPeer, ToServer, TransferHeader, Work};
use slackline_server_core::shard::Snapshot;
use slackline_worker::packing::{self, Packer};
use slackline_worker_core::{Buffer, Effect, Event, Worker, WorkerError};

use crate::allreduce::{Peer, StepOf};
use crate::computing::Computing;
use crate::engine::{Local, OwnFactors, Snapshot as Snapshots};
use crate::hosts::At;
use crate::network::{Cargo, Inward};
use crate::timeline::Track;
use crate::world::{Happening, World};

/// How a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Running,
    Gone,
}

/// Where the answers to the pulls of one shard go: the number that is waited for, and what came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    pub(crate) request: Option<u64>,
    pub(crate) values: Option<Arc<Vec<f32>>>,
}

impl Part {
    const fn waiting_for(request: u64) -> Self {
        Self { request: Some(request), values: None }
    }

    /// Takes what was asked for, and says whether it was.
    fn take_in(&mut self, request: u64, snapshot: &Snapshot, keys: usize) -> bool {
        let is_it = self.request == Some(request);
        if is_it {
            self.values = Some(unpacked(snapshot, self.values.take(), keys));
        }
        is_it
    }
}

/// The place of a buffer among those of a process.
pub(crate) const fn place_of(buffer: Buffer) -> usize {
    match buffer {
        Buffer::First => 0,
        Buffer::Second => 1,
        Buffer::Evaluation => 2,
    }
}

/// A gradient that is computed.
#[derive(Default)]
pub(crate) struct Computed {
    pub(crate) values: Arc<Vec<f32>>,
    /// The parts that are not sent as they are.
    pub(crate) packed: BTreeMap<ShardId, Payload>,
}

/// One worker process.
pub(crate) struct Process {
    pub(crate) worker: Worker,
    /// Its machine.
    pub(crate) slot: usize,
    life: Life,
    pub(crate) paused_until: Moment,
    /// The present connection to each server.
    pub(crate) links: Vec<Option<usize>>,
    /// The buffers that are pulled into, by shard.
    pub(crate) buffers: [Vec<Part>; 3],
    /// Values that may take the place of those for training.
    fresher: Vec<Part>,
    /// Batches that were asked for, with their units.
    pub(crate) batches: VecDeque<(BatchIndex, u32)>,
    /// What it keeps between iterations where it takes local steps; elsewhere, or while that is in use, none.
    pub(crate) local: Option<Box<Local>>,
    pub(crate) computing: Option<Computing>,
    /// Its part in an allreduce; none where it pulls and pushes.
    pub(crate) peer: Option<Peer>,
    /// The number of the gradient that is computed, or of the last one.
    pub(crate) number: u64,
    /// Gradients that servers have not answered yet, oldest first.
    pub(crate) gradients: VecDeque<(Sequence, Computed)>,
    /// What writes its gradients; none where they go as they are.
    pub(crate) packer: Option<Packer>,
    timer: u64,
    pub(crate) track: Track,
    /// Bytes sent and received.
    pub(crate) wire: (u64, u64),
}

impl Process {
    pub(crate) fn is_running(&self) -> bool {
        self.life == Life::Running
    }

    pub(crate) fn id(&self) -> WorkerId {
        self.worker.member().map_or(WorkerId(self.slot as u32), |(worker, _)| worker)
    }

    /// Whether a number is that of the pull for training that the process waits for.
    pub(crate) fn expects(&self, shard: ShardId, request: u64) -> bool {
        self.buffers[..2].iter().any(|parts| parts[shard.0 as usize].request == Some(request))
    }

    /// The parts of a gradient that these shards are sent, where they do not go as they are.
    pub(crate) fn pack(
        &mut self,
        pushed: &[ShardId],
        gradient: &[f32],
        factors: &[OwnFactors],
        computed_on: &Snapshots,
    ) -> BTreeMap<ShardId, Payload> {
        let worker = self.id();
        let Some(packer) = &mut self.packer else { return BTreeMap::new() };
        let factors: Vec<_> = factors.iter().map(OwnFactors::lend).collect();
        let pack = |shard: &ShardId| {
            let values = computed_on.iter().find(|(of, _)| of == shard).map(|(_, values)| values.as_slice());
            let part = packing::Part { gradient: &gradient[packer.keys(*shard)], values, factors: &factors };
            (*shard, packer.pack(worker, *shard, part, Vec::new()))
        };
        pushed.iter().map(pack).collect()
    }

    /// Lets go of all that it holds.
    fn end(&mut self) -> Vec<usize> {
        self.life = Life::Gone;
        self.gradients.clear();
        self.buffers.iter_mut().chain([&mut self.fresher]).for_each(|parts| parts.fill(Part::default()));
        self.local = None;
        self.links.iter_mut().filter_map(Option::take).collect()
    }
}

impl World {
    /// A worker process starts on a machine.
    pub(crate) fn start_process(&mut self, slot: usize) {
        if let Some(former) = self.slots[slot] {
            self.pending -= 1;
            if self.processes[former].is_running() {
                return;
            }
        }
        let now = self.now();
        let shards = self.plan.shard_bytes.len();
        let peer = self.new_peer();
        self.slots[slot] = Some(self.processes.len());
        self.processes.push(Process {
            worker: Worker::new(self.plan.worker_settings(), now),
            slot,
            life: Life::Running,
            paused_until: now,
            links: vec![None; self.servers.len()],
            buffers: std::array::from_fn(|_| vec![Part::default(); shards]),
            fresher: vec![Part::default(); shards],
            batches: VecDeque::new(),
            local: self.engine.local(),
            computing: None,
            peer,
            number: 0,
            gradients: VecDeque::new(),
            packer: self.plan.sizes.is_none().then(|| Packer::of(self.plan.config())).flatten(),
            timer: 0,
            track: Track::default(),
            wire: (0, 0),
        });
        self.tick(self.processes.len() - 1);
    }

    /// A process is gone with all it knew.
    pub(crate) fn crash_process(&mut self, process: usize) {
        if !self.processes[process].is_running() {
            return;
        }
        self.crash_peer(process);
        let state = &mut self.processes[process];
        let links = state.end();
        self.counts.computing -= u64::from(state.computing.take().is_some_and(|one| one.has_begun()));
        let slot = state.slot;
        self.reset_links(slot);
        for connection in links {
            self.fall_silent(connection);
        }
        self.look_for_life();
    }

    /// A process stands still until a moment, with what it computes.
    pub(crate) fn pause_process(&mut self, process: usize, until: Moment) {
        let now = self.now();
        let state = &mut self.processes[process];
        let longer = until.since(state.paused_until.max(now));
        state.paused_until = until;
        if let Some(computing) = state.computing.as_mut().filter(|computing| computing.has_begun()) {
            computing.stood_still += longer;
        }
        if let Some(step) = state.peer.as_mut().and_then(|peer| peer.computing()) {
            step.stood_still += longer;
        }
        if until.since(now) > self.plan.lease {
            self.falls_silent_to_peers(process);
        }
    }

    /// A worker takes an event.
    pub(crate) fn worker_event(&mut self, process: usize, event: Event) {
        if !self.processes[process].is_running() {
            return;
        }
        let (stirs, mut wakes) = (stirs(&event), wakes(&event));
        self.counts.events += 1;
        let mut effects = std::mem::take(&mut self.scratch.worker);
        let now = self.now();
        self.processes[process].worker.handle(now, event, &mut effects);
        for effect in effects.drain(..) {
            wakes |= is_turn(&effect);
            self.perform(process, effect);
        }
        self.scratch.worker = effects;
        if wakes {
            self.set_timer(process);
            self.stirred = if stirs { now } else { self.stirred };
        }
    }

    pub(crate) fn tick(&mut self, process: usize) {
        let (wire_sent, wire_received) = self.processes[process].wire;
        self.worker_event(process, Event::Tick { wire_sent, wire_received });
    }

    /// Asks for the next tick. Most events only put it off, which is looked at when it comes.
    fn set_timer(&mut self, process: usize) {
        let state = &mut self.processes[process];
        let Some(deadline) = state.worker.next_deadline().filter(|_| state.is_running()) else { return };
        state.timer += 1;
        let timer = state.timer;
        self.agenda.at(deadline, Happening::WorkerTick { process, timer });
    }

    pub(crate) fn worker_tick(&mut self, process: usize, timer: u64) {
        let state = &self.processes[process];
        if state.timer != timer || !state.is_running() {
            return;
        }
        match state.worker.next_deadline() {
            Some(deadline) if deadline > self.now() => {
                self.agenda.at(deadline, Happening::WorkerTick { process, timer });
            }
            _ => self.tick(process),
        }
    }

    /// A message has come. Before what ends in a report, the byte counts are brought up to date.
    pub(crate) fn worker_reads(&mut self, process: usize, server: ServerId, message: ToPeer) {
        match &message {
            ToPeer::Work(Work::Idle | Work::Done | Work::Evaluate { .. }) => self.tick(process),
            ToPeer::Pushed(pushed) => {
                let track = &mut self.processes[process].track;
                track.push_held_us = track.push_held_us.max(pushed.held_us);
            }
            _ => {}
        }
        self.worker_event(process, Event::Message { server, message });
    }

    fn perform(&mut self, process: usize, effect: Effect) {
        match effect {
            Effect::Connect { server } => self.dial(process, server),
            Effect::Disconnect { server } => {
                if let Some(connection) = self.processes[process].links[server.0 as usize].take() {
                    self.hang_up(connection);
                }
            }
            Effect::Send { server, message } => {
                let what = match message {
                    ToServer::Pull(pull) => Inward::Pull(pull),
                    message => Inward::Message(Box::new(message)),
                };
                self.send(process, server, what);
            }
            Effect::ExpectValues { shard, request, buffer, .. } => {
                let (shard, buffers) = (shard.0 as usize, &mut self.processes[process].buffers);
                buffers[place_of(buffer)][shard].request = Some(request);
                // The other one for training is not waited for any more.
                if buffer != Buffer::Evaluation {
                    buffers[place_of(buffer.next())][shard].request = None;
                }
            }
            Effect::ExpectFresher { shard, request, .. } => {
                self.processes[process].fresher[shard.0 as usize] = Part::waiting_for(request);
            }
            Effect::AdoptFresher { shard } => {
                let state = &mut self.processes[process];
                let fresher = state.fresher[shard.0 as usize].values.take();
                let replaced = state.buffers[..2].iter_mut().map(|parts| &mut parts[shard.0 as usize]);
                for part in replaced.filter(|part| part.request.is_some() && fresher.is_some()) {
                    part.values.clone_from(&fresher);
                }
            }
            Effect::SendPush { server, header } => self.send_push(process, server, header),
            Effect::SendInitial { server, header } => {
                self.send_cargo(process, server, Cargo::Initial { shard: header.shard });
            }
            Effect::LoadBatch { batch, units } => self.load(process, batch, units),
            Effect::Compute { sequence, batch, clock, buffer, adopted, pushed, missing } => {
                self.compute(process, (sequence, batch, buffer), (clock, adopted, pushed), missing);
            }
            Effect::Deliver { shard } => self.deliver(process, shard),
            Effect::Abandon { sequence } => self.abandon(process, sequence),
            Effect::ReleaseGradient { sequence, unused } => self.release(process, sequence, &unused),
            Effect::Evaluate { at_samples, .. } => self.evaluate(process, at_samples),
            Effect::Notice(_) => {}
            Effect::Exit(result) => self.exit(process, result),
            of_a_group => self.perform_in_group(process, of_a_group),
        }
    }

    fn perform_in_group(&mut self, process: usize, effect: Effect) {
        match effect {
            Effect::Form { group, position } => self.form(process, group, position),
            Effect::Dissolve { generation } => self.dissolve(process, generation),
            Effect::Probe { generation } => self.probe(process, generation),
            Effect::FetchState { generation, source, clock } => {
                self.fetch_state(process, generation, source, clock);
            }
            Effect::Step { generation, clock, batch, share } => {
                self.step(process, StepOf { generation, clock, batch, share });
            }
            Effect::Apply { generation, clock, progress } => {
                self.apply_sums(process, (generation, clock), progress);
            }
            Effect::Skip { generation, clock } => self.skip_sums(process, (generation, clock)),
            // All others were performed already.
            _ => {}
        }
    }

    fn send(&mut self, process: usize, server: ServerId, what: Inward) {
        if let Some(connection) = self.processes[process].links[server.0 as usize] {
            self.send_inward(connection, what);
        }
    }

    fn send_cargo(&mut self, process: usize, server: ServerId, cargo: Cargo) {
        if let Some(connection) = self.processes[process].links[server.0 as usize] {
            self.carry(connection, cargo);
        }
    }

    fn send_push(&mut self, process: usize, server: ServerId, header: TransferHeader) {
        let bytes = self.plan.pushed_bytes(&header);
        let state = &self.processes[process];
        let Some((_, computed)) = state.gradients.iter().find(|(number, _)| *number == header.sequence)
        else {
            return;
        };
        let gradient = match computed.packed.get(&header.shard) {
            Some(payload) => payload.clone(),
            None => {
                let values = Arc::clone(&computed.values);
                let mut part = self.buffer(At::new(server.0 as usize, header.shard));
                match values.get(header.keys.as_indices()) {
                    Some(values) => part.copy_from_slice(values),
                    None => part.fill(stand_in(self.plan.config(), header.sequence)),
                }
                part.into()
            }
        };
        self.processes[process].wire.0 += bytes;
        self.counts.bytes_pushed += bytes;
        self.send_cargo(process, server, Cargo::Push { header, gradient });
    }

    /// The answer to a pull is here; it is thrown away if it is not expected any more.
    pub(crate) fn values_arrive(
        &mut self,
        process: usize,
        server: usize,
        (shard, request): (ShardId, u64),
        served: Served,
        values: Snapshot,
    ) {
        let now = self.now();
        let bytes = self.plan.pulled_bytes(shard, &values);
        let keys = self.plan.partition.range(shard).len as usize;
        let state = &mut self.processes[process];
        let place = shard.0 as usize;
        let takes = |parts: &mut Vec<Part>| parts[place].take_in(request, &values, keys);
        let [first, second, evaluation] = &mut state.buffers;
        if takes(first) || takes(second) {
            state.track.pulled = Some(now);
            state.track.pull_held_us = state.track.pull_held_us.max(served.held_us);
        } else if !takes(&mut state.fresher) && !takes(evaluation) {
            return;
        }
        state.wire.1 += bytes;
        self.counts.bytes_pulled += bytes;
        let server = ServerId(server as u32);
        self.worker_event(process, Event::ValuesArrived { server, shard, request, served, bytes });
    }

    fn exit(&mut self, process: usize, result: Result<(), WorkerError>) {
        self.leave_group(process);
        let state = &mut self.processes[process];
        let (id, links) = (state.id(), state.end());
        self.counts.computing -= u64::from(state.computing.take().is_some_and(|one| one.has_begun()));
        for connection in links {
            self.hang_up(connection);
        }
        if let Err(error) = result {
            self.blamed.get_or_insert_with(|| format!("{id}: {error}"));
        }
        self.look_for_life();
    }
}

/// What is pushed where there are no gradients. A step with it changes the values, as one with a gradient does: whether a pull brings any is
/// told by that. No two in a row are the same, so no weight decay brings the values to rest. A worker of elastic averaging begins where the
/// servers are: its first exchange moves neither.
fn stand_in(config: &Config, sequence: Sequence) -> f32 {
    let is_elastic = config.local.is_some_and(|local| local.elastic.is_some());
    if is_elastic && sequence == Sequence(1) {
        return 0.0;
    }
    1.0 + (sequence.0 % 16) as f32 / 16.0
}

/// The values of a snapshot, however it is written; a patch is one of those that were there before.
fn unpacked(snapshot: &Snapshot, before: Option<Arc<Vec<f32>>>, keys: usize) -> Arc<Vec<f32>> {
    let before = before.unwrap_or_else(|| Arc::new(vec![0.0; keys]));
    match snapshot.encoding {
        Encoding::F32 => snapshot.words.clone(),
        Encoding::Blocks if snapshot.words.is_empty() => before,
        Encoding::Blocks => {
            let mut values = Arc::unwrap_or_clone(before);
            if let Ok(patch) = Patch::new(keys, snapshot.words.to_vec()) {
                patch.write_to(&mut values);
            }
            Arc::new(values)
        }
        encoding => {
            let mut values = vec![0.0; keys];
            if let Ok(payload) = Payload::new(encoding, keys, snapshot.words.to_vec()) {
                payload.decode_into(&mut values);
            }
            Arc::new(values)
        }
    }
}

/// Whether an event can bring the next deadline nearer.
const fn wakes(event: &Event) -> bool {
    match event {
        Event::Message { message, .. } => {
            !matches!(message, ToPeer::Work(_) | ToPeer::Pushed(_) | ToPeer::Renewed)
        }
        Event::ValuesArrived { .. }
        | Event::BatchLoaded { .. }
        | Event::GradientReady { .. }
        | Event::EvaluationReady { .. }
        | Event::StepComputed { .. }
        | Event::Gathered { .. }
        | Event::Reduced { .. } => false,
        _ => true,
    }
}

/// Whether an event brings the run on: one that looks for a server, and is turned away, can go on so for ever.
const fn stirs(event: &Event) -> bool {
    match event {
        Event::Message { message, .. } => !matches!(message, ToPeer::Welcome { .. } | ToPeer::Refused(_)),
        Event::Tick { .. } | Event::Connected { .. } | Event::ConnectFailed { .. } | Event::Lost { .. } => {
            false
        }
        _ => true,
    }
}

/// Whether an effect can bring the next deadline nearer.
const fn is_turn(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Connect { .. }
            | Effect::Disconnect { .. }
            | Effect::Send { message: ToServer::Leave(_) | ToServer::Join(_) | ToServer::Register(_), .. }
    )
}
