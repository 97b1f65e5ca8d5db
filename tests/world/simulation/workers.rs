//! The shell of a worker in the simulated world: its buffers, its loader, its clock.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::codec::{Encoding, Patch};
use slackline_core::config::Durability;
use slackline_core::ids::{BatchIndex, Clock, Incarnation, Moment, Sequence, ServerId, ShardId, Version};
use slackline_core::wire::{PullKind, PushOutcome, Served, ToPeer, ToServer, TransferHeader};
use slackline_worker_core::{Buffer, Effect, Event, Notice, Settings, Worker, WorkerError};

use super::agenda::Happening;
use super::computing::Waiting;
use super::network::{Inward, Outward, Peer};
use super::sight::{PushKey, Sight, Verdict, holds};
use super::world::World;

/// A gradient, with the versions of the values it was computed on.
#[derive(Clone, Debug)]
pub(crate) struct Gradient {
    pub(super) values: Vec<f32>,
    pub(super) loss: f64,
    pub(super) samples: u32,
    pub(super) computed_on: BTreeMap<ShardId, Version>,
}

/// What pulled values are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    Training,
    Fresher,
    Evaluation,
}

/// A buffer that pulls are read into.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) values: Vec<f32>,
    pub(super) versions: BTreeMap<ShardId, Version>,
    /// The pull that brought the values of each shard.
    pub(super) brought: BTreeMap<ShardId, u64>,
}

impl Held {
    fn new(keys: usize) -> Self {
        Self { values: vec![f32::NAN; keys], versions: BTreeMap::new(), brought: BTreeMap::new() }
    }

    /// What came for a shard is there; false where it is none of its values.
    pub(super) fn put(&mut self, header: &TransferHeader, words: &[f32]) -> bool {
        self.versions.insert(header.shard, header.version);
        self.brought.insert(header.shard, header.sequence.0);
        let place = &mut self.values[header.keys.as_indices()];
        match header.encoding {
            Encoding::F32 => place.copy_from_slice(words),
            Encoding::Blocks => match Patch::new(place.len(), words.to_vec()) {
                Ok(patch) => patch.write_to(place),
                Err(_) => return false,
            },
            _ => return false,
        }
        true
    }
}

/// How a process is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Life {
    Running,
    Crashed,
    Exited(Result<(), WorkerError>),
}

/// One worker process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) worker: Worker,
    pub(crate) life: Life,
    pub(crate) frozen_until: Moment,
    /// How far its clock is ahead of the world's, in nanoseconds.
    pub(crate) ahead: u64,
    /// The present connection to each server.
    pub(crate) links: BTreeMap<usize, usize>,
    /// Which pull of which server is expected for a shard: it replaces an earlier one, of whatever server.
    pub(crate) expected: BTreeMap<(ShardId, Purpose), (usize, u64, Buffer)>,
    /// Fresher values that have come and are not adopted, and those that are to be computed on.
    fresher: BTreeMap<ShardId, (TransferHeader, Vec<f32>)>,
    pub(super) adopted: BTreeMap<ShardId, (TransferHeader, Vec<f32>)>,
    /// What each pull truly asked.
    pub(crate) asked: BTreeMap<u64, PullKind>,
    /// What each push was sent under first.
    headers: BTreeMap<(Incarnation, Sequence, ShardId), TransferHeader>,
    /// The values that each pull was served.
    pub(crate) served: BTreeMap<u64, Vec<f32>>,
    pub(super) held: BTreeMap<Buffer, Held>,
    /// Units of the batches that it was given.
    pub(super) units: BTreeMap<BatchIndex, u32>,
    pub(super) loaded: BTreeSet<BatchIndex>,
    pub(super) gradients: BTreeMap<Sequence, Gradient>,
    /// Being computed.
    pub(super) computing: Option<(Sequence, Gradient)>,
    /// Begun, and some values are still to come.
    pub(super) waiting: Option<Waiting>,
    wake: u64,
    /// It was told to go.
    pub(crate) interrupted: bool,
    /// Longest time of a gradient, in microseconds.
    pub(crate) pace: u64,
    /// The last word on each wait.
    pub(crate) waits: BTreeMap<String, String>,
}

impl World {
    /// A worker process starts.
    pub(crate) fn start_process(&mut self) -> Verdict {
        let (scenario, layout) = (&self.scenario, self.problem.layout());
        let settings = Settings {
            partition: self.partition.clone(),
            layout: layout.clone(),
            coordinator: ServerId(0),
            config_hash: 1,
            data_hash: 1,
            sample_count: scenario.samples,
            batch_count: scenario.batch_count(),
            has_copies: scenario.replicas > 1,
            steps: scenario.steps,
            units_max: scenario.cut().units_max() as u32,
            prefetch: scenario.prefetch,
            begins_early: scenario.overlap && scenario.prefetch == 0 && !scenario.policy.refreshes(),
            refreshes: scenario.policy.refreshes(),
            fragments: 1,
            lease: scenario.lease,
            connect_timeout: scenario.connect_timeout,
            wait_report: scenario.lease * 5,
            group: None,
            stop_on_bad_gradient: true,
            stop_on_norm: false,
        };
        let keys = layout.len() as usize;
        let buffers = [Buffer::First, Buffer::Second, Buffer::Evaluation];
        let slowness = self.chance.between(1, 4);
        let ahead = self.chance.between(0, 100_000_000_000);
        self.processes.push(Process {
            worker: Worker::new(settings, Moment(self.now.0 + ahead)),
            life: Life::Running,
            frozen_until: self.now,
            ahead,
            links: BTreeMap::new(),
            expected: BTreeMap::new(),
            fresher: BTreeMap::new(),
            adopted: BTreeMap::new(),
            asked: BTreeMap::new(),
            headers: BTreeMap::new(),
            served: BTreeMap::new(),
            held: buffers.into_iter().map(|buffer| (buffer, Held::new(keys))).collect(),
            units: BTreeMap::new(),
            loaded: BTreeSet::new(),
            gradients: BTreeMap::new(),
            computing: None,
            waiting: None,
            wake: 0,
            interrupted: false,
            pace: self.scenario.compute * slowness / 4,
            waits: BTreeMap::new(),
        });
        let process = self.processes.len() - 1;
        self.worker_event(process, Event::Tick { wire_sent: 0, wire_received: 0 })
    }

    /// Whether what happens to a process must wait, since it is frozen; it is then put off.
    pub(crate) fn is_put_off(&mut self, process: usize, what: &Happening) -> bool {
        let until = self.processes[process].frozen_until;
        let is_frozen = until > self.now;
        if is_frozen {
            self.agenda.at(until, what.clone());
        }
        is_frozen
    }

    /// A worker takes an event.
    pub(crate) fn worker_event(&mut self, process: usize, event: Event) -> Verdict {
        let now = self.time_at(process);
        if self.processes[process].life != Life::Running {
            return Ok(());
        }
        let is_tick = matches!(event, Event::Tick { .. });
        self.trace.line(self.now, format_args!("process {process} < {event:?}"));
        let mut effects = Vec::new();
        self.processes[process].worker.handle(now, event, &mut effects);
        for effect in effects {
            self.trace.line(self.now, format_args!("process {process} > {effect:?}"));
            self.perform_worker(process, effect)?;
        }
        let state = &mut self.processes[process];
        state.worker.check_invariants();
        // That which is computed is kept from when a part of it left.
        let computing =
            state.computing.as_ref().filter(|(computed, _)| !state.gradients.contains_key(computed));
        let gradients = state.gradients.len() + usize::from(computing.is_some());
        if let (Some(deadline), Life::Running) = (state.worker.next_deadline(), &state.life) {
            holds("no busy waiting", !is_tick || deadline > now, || {
                format!("process {process} wants a tick at {deadline:?}, at {now:?}: {:?}", state.worker)
            })?;
            state.wake += 1;
            let wake = state.wake;
            let when = Moment(deadline.max(now).0 - state.ahead);
            self.agenda.at(when, Happening::WorkerTick { process, wake });
        }
        self.see(&Sight::Keeps { process, gradients })
    }

    pub(crate) fn worker_tick(&mut self, process: usize, wake: u64) -> Verdict {
        if self.processes[process].wake != wake {
            return Ok(());
        }
        self.worker_event(process, Event::Tick { wire_sent: self.now.0 / 1000, wire_received: 0 })
    }

    fn perform_worker(&mut self, process: usize, effect: Effect) -> Verdict {
        match effect {
            Effect::Connect { server } => self.dial(process, server),
            Effect::Disconnect { server } => {
                if let Some(connection) = self.processes[process].links.remove(&(server.0 as usize)) {
                    self.hang_up(connection);
                }
            }
            Effect::Send { server, message } => {
                if let ToServer::PushNothing { sequence, clock, reply, .. } = &message {
                    self.brings(process, *reply, *clock, *sequence);
                    self.leaves_parts(process, *sequence)?;
                }
                if let ToServer::Pull(pull) = &message {
                    self.counts.ahead += u64::from(matches!(pull.kind, PullKind::Gated { ahead: 1.., .. }));
                    self.processes[process].asked.insert(pull.request, pull.kind);
                }
                self.transmit(process, server, Inward::Message(message));
            }
            Effect::ExpectValues { server, shard, request, buffer } => {
                let state = &mut self.processes[process];
                let purpose = if buffer == Buffer::Evaluation {
                    Purpose::Evaluation
                } else {
                    state.adopted.remove(&shard);
                    Purpose::Training
                };
                state.expected.insert((shard, purpose), (server.0 as usize, request, buffer));
            }
            Effect::ExpectFresher { server, shard, request } => {
                let expected = (server.0 as usize, request, Buffer::First);
                self.processes[process].expected.insert((shard, Purpose::Fresher), expected);
            }
            Effect::AdoptFresher { shard } => {
                let state = &mut self.processes[process];
                let came = state.fresher.remove(&shard);
                holds("shell", came.is_some(), || format!("process {process} adopts what never came"))?;
                state.adopted.extend(came.map(|came| (shard, came)));
            }
            Effect::Abandon { sequence } => return self.abandon(process, sequence),
            Effect::SendPush { server, header } => return self.send_push(process, server, header),
            Effect::SendInitial { server, header } => {
                let values = self.problem.initial()[header.keys.as_indices()].to_vec();
                self.transmit(process, server, Inward::Transfer { header, values, origin: None });
            }
            Effect::LoadBatch { batch, units } => {
                self.processes[process].units.insert(batch, units);
                let when = self.now.after(self.chance.micros(10, 5_000));
                self.agenda.at(when, Happening::Loaded { process, batch });
            }
            Effect::Compute { sequence, batch, clock, buffer, missing, .. } => {
                return self.begin(process, (sequence, batch, clock, buffer), missing);
            }
            Effect::Deliver { shard } => return self.delivered(process, shard),
            Effect::ReleaseGradient { sequence, .. } => {
                self.processes[process].gradients.remove(&sequence);
            }
            Effect::Evaluate { at_samples, last } => {
                if last {
                    let values = self.processes[process].held[&Buffer::Evaluation].values.clone();
                    self.see(&Sight::Measures { values: &values })?;
                }
                let when = self.now.after(self.chance.micros(1_000, 2 * self.scenario.compute));
                self.agenda.at(when, Happening::Measured { process, at_samples });
            }
            Effect::Notice(notice) => return self.noticed(process, &notice),
            Effect::Form { .. }
            | Effect::Dissolve { .. }
            | Effect::Probe { .. }
            | Effect::FetchState { .. }
            | Effect::Step { .. }
            | Effect::Apply { .. }
            | Effect::Skip { .. } => panic!("no worker of this world is in a group; tests/groups has those"),
            Effect::Exit(result) => return self.exited(process, result),
        }
        Ok(())
    }

    /// A push brings a pull with it.
    fn brings(&mut self, process: usize, reply: u64, clock: Clock, sequence: Sequence) {
        if reply > 0 {
            self.counts.brought += 1;
            let kind = PullKind::Gated { clock: clock.next(), after: sequence, ahead: 0 };
            self.processes[process].asked.insert(reply, kind);
        }
    }

    /// A shard is sent nothing of a gradient: others have perhaps been sent their parts.
    fn leaves_parts(&mut self, process: usize, sequence: Sequence) -> Verdict {
        let state = &self.processes[process];
        let Some((worker, incarnation)) = state.worker.member() else { return Ok(()) };
        let mut sent =
            state.headers.keys().filter(|(life, number, _)| (*life, *number) == (incarnation, sequence));
        if sent.next().is_none() {
            return Ok(());
        }
        self.see(&Sight::Left { key: PushKey { process, worker, incarnation, sequence } })
    }

    fn transmit(&mut self, process: usize, server: ServerId, what: Inward) {
        if let Some(connection) = self.processes[process].links.get(&(server.0 as usize)).copied() {
            self.send_inward(connection, what);
        }
    }

    fn send_push(&mut self, process: usize, server: ServerId, header: TransferHeader) -> Verdict {
        let Some(gradient) = self.processes[process].gradients.get(&header.sequence) else {
            return holds("shell", false, || format!("process {process} sends no gradient: {header:?}"));
        };
        let values = gradient.values[header.keys.as_indices()].to_vec();
        let computed_on = gradient.computed_on.get(&header.shard).copied().unwrap_or_default();
        let (worker, incarnation, sequence) = (header.worker, header.incarnation, header.sequence);
        self.brings(process, header.reply, header.clock, sequence);
        let plain = TransferHeader { reply: 0, have: 0, ..header };
        let state = &mut self.processes[process];
        let first = *state.headers.entry((incarnation, sequence, header.shard)).or_insert(plain);
        holds("a push is sent again as it was", first == plain, || format!("{plain:?} was {first:?}"))?;
        if state.computing.as_ref().is_some_and(|(computed, _)| *computed == sequence) {
            self.counts.early += 1;
        }
        let key = PushKey { process, worker, incarnation, sequence };
        self.sent.entry((key, header.shard)).or_insert_with(|| values.clone());
        self.transmit(process, server, Inward::Transfer { header, values, origin: Some(key) });
        self.see(&Sight::Sent { key, computed_on, claimed: header.version })
    }

    pub(crate) fn loaded(&mut self, process: usize, batch: BatchIndex) -> Verdict {
        self.processes[process].loaded.insert(batch);
        self.worker_event(process, Event::BatchLoaded { batch })
    }

    /// The answer to a pull is complete; it is thrown away if it is not expected any more.
    pub(crate) fn values_arrive(
        &mut self,
        process: usize,
        server: usize,
        header: &TransferHeader,
        values: &[f32],
    ) -> Verdict {
        let state = &mut self.processes[process];
        let request = header.sequence.0;
        let wanted = |purpose| {
            let (from, wanted, buffer) = *state.expected.get(&(header.shard, purpose))?;
            (from == server && wanted == request).then_some(buffer)
        };
        let buffer = wanted(Purpose::Training).or_else(|| wanted(Purpose::Evaluation));
        if wanted(Purpose::Fresher).is_some() {
            state.fresher.insert(header.shard, (*header, values.to_vec()));
        } else if let Some(held) = buffer.and_then(|buffer| state.held.get_mut(&buffer)) {
            let is_sound = held.put(header, values);
            self.counts.unchanged += u64::from(header.words == 0);
            // Whatever way they came, they are what the shard had when it served them. What a former primary answers that does not know it
            // yet is no part of the history (seed 382): that can be where copies need not be there before anything is acknowledged.
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            let here = &held.values[header.keys.as_indices()];
            let is_served = state.served.get(&request).map(|served| bits(served) == bits(here));
            let is_served = is_served.unwrap_or(self.scenario.durability == Durability::Memory);
            holds("values are what was served", is_sound && is_served, || {
                let served = state.served.get(&request);
                format!("process {process} has {here:?} for {header:?}, and was served {served:?}")
            })?;
        } else {
            return Ok(());
        }
        let (lead, held_us) = (header.lead, header.held_us);
        let served = Served { version: header.version, minimum: header.clock, lead, held_us };
        let server = ServerId(server as u32);
        self.worker_event(
            process,
            Event::ValuesArrived {
                server,
                shard: header.shard,
                request,
                served,
                bytes: header.payload_bytes(),
            },
        )
    }

    /// A message is about to be read: if it says that a push was applied, it must have been; no incarnation is given twice.
    pub(crate) fn told(&mut self, process: usize, message: &ToPeer) -> Verdict {
        if let ToPeer::Joined { worker, incarnation, .. } = *message {
            let before = self.joined.insert(incarnation, worker);
            holds("an incarnation is given once", before.is_none(), || {
                format!("{incarnation} is given to process {process} as {worker}, and was to {before:?}")
            })?;
        }
        let (ToPeer::Pushed(pushed), Some((worker, incarnation))) =
            (message, self.processes[process].worker.member())
        else {
            return Ok(());
        };
        if !matches!(pushed.outcome, PushOutcome::Applied { .. } | PushOutcome::Gathered { .. }) {
            return Ok(());
        }
        let key = PushKey { process, worker, incarnation, sequence: pushed.sequence };
        self.see(&Sight::Told { key, pushed })
    }

    fn noticed(&mut self, process: usize, notice: &Notice) -> Verdict {
        match notice {
            Notice::Fenced { .. } => {
                self.fenced += 1;
                self.see(&Sight::Disturbed)
            }
            Notice::Waiting { what, server, .. } => {
                let key = format!("{what:?} {server}");
                let text = format!("at {:.3} s {notice}", self.now.0 as f64 / 1e9);
                self.processes[process].waits.insert(key, text);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn exited(&mut self, process: usize, result: Result<(), WorkerError>) -> Verdict {
        let links: Vec<usize> = self.processes[process].links.values().copied().collect();
        for connection in links {
            self.hang_up(connection);
        }
        let is_over = self.ends.iter().any(Option::is_some);
        let is_refused_late = matches!(
            &result,
            Err(WorkerError::Refused { code: slackline_core::wire::RefusalCode::RunOver, .. })
        );
        let expected = result.is_ok() || is_over || is_refused_late;
        let text = format!("process {process} ended with {result:?} while the run went on");
        self.processes[process].life = Life::Exited(result);
        holds("workers do not give up", expected, || text)
    }

    /// What reaches a worker from its network, put off while it is frozen.
    pub(crate) fn reach_worker(&mut self, connection: usize, what: Outward) -> Verdict {
        let happening = Happening::AtWorker { connection, what: what.clone() };
        let is_put_off = match self.connections[connection].peer {
            Peer::Process(process) => self.is_put_off(process, &happening),
            Peer::Server(server, _) => self.is_server_put_off(server, &happening),
        };
        if is_put_off { Ok(()) } else { self.at_worker(connection, what) }
    }
}
