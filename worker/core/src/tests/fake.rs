//! Fake servers, a network that delivers in any order it may, and a shell that computes nothing.
//!
//! Control messages of one connection keep their order, both ways; transfers, and what the shell does, come
//! in any order. A lost connection loses everything that was under way on it. A server can be another process from one moment to the
//! next, and a shard can move to another server; what it knows goes along, or is what it knew at some moment before.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::wire::{Refusal, RefusalCode, Text};

use super::fake_servers::{Coordinator, FakeShard, Server};
use super::*;

/// A stream of choices that follows from its seed (Marsaglia's xorshift).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % count.max(1)
    }
}

/// How likely each mishap is, in thousandths of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mishaps {
    pub(crate) losses: usize,
    pub(crate) fences: usize,
    pub(crate) bad_gradients: usize,
    pub(crate) drops: usize,
    /// A server is another process; its shards know all that they knew.
    pub(crate) restarts: usize,
    /// A server is another process; its shards know what they knew before.
    pub(crate) restores: usize,
    /// A shard moves and knows all that it knew.
    pub(crate) moves: usize,
    /// A registration is refused for now.
    pub(crate) unready: usize,
}

pub(crate) struct World {
    pub(crate) rig: Rig,
    pub(crate) dice: Dice,
    pub(crate) mishaps: Mishaps,
    pub(crate) servers: Vec<Server>,
    pub(crate) shards: BTreeMap<ShardId, FakeShard>,
    pub(crate) coordinator: Coordinator,
    /// What the shell will report.
    local: Vec<Event>,
    loaded: BTreeSet<BatchIndex>,
    is_computing: bool,
    /// What is computed on and has not come, and the gradient that waits for it.
    missing: BTreeSet<ShardId>,
    waiting: Option<Event>,
    held_gradients: BTreeSet<Sequence>,
    pub(crate) expected: BTreeMap<(ShardId, bool), u64>,
    /// How often each batch was reported as done.
    pub(crate) done: BTreeMap<BatchIndex, u32>,
    pub(crate) exit: Option<Result<(), crate::WorkerError>>,
    pub(crate) fences: u32,
    /// Some shard has forgotten something.
    pub(crate) has_forgotten: bool,
}

impl World {
    pub(crate) fn new(settings: Settings, batches: u64, seed: u64, mishaps: Mishaps) -> Self {
        let partition = &settings.partition;
        let servers = (0..partition.server_count()).map(|_| Server::default()).collect();
        let home = |shard| partition.server_of(shard).0 as usize;
        let shards = partition.shards().map(|(shard, _)| (shard, FakeShard::new(home(shard)))).collect();
        let pending = (0..batches).map(BatchIndex).collect();
        Self {
            rig: Rig::new(settings),
            dice: Dice::new(seed),
            mishaps,
            servers,
            shards,
            coordinator: Coordinator::new(pending),
            local: Vec::new(),
            loaded: BTreeSet::new(),
            is_computing: false,
            missing: BTreeSet::new(),
            waiting: None,
            held_gradients: BTreeSet::new(),
            expected: BTreeMap::new(),
            done: BTreeMap::new(),
            exit: None,
            fences: 0,
            has_forgotten: false,
        }
    }

    pub(crate) fn happens(&mut self, thousandths: usize) -> bool {
        self.dice.below(1000) < thousandths
    }

    /// Goes on until the worker ends; false if it never does.
    pub(crate) fn run(&mut self) -> bool {
        for _ in 0..20_000 {
            if self.exit.is_some() {
                return true;
            }
            self.step();
        }
        false
    }

    fn step(&mut self) {
        self.rig.after_us(37);
        let server = self.dice.below(self.servers.len());
        if self.servers[server].registered.is_some() && self.misfortune(server) {
            return;
        }
        let mut choices: Vec<(usize, u8)> = Vec::new();
        for (index, server) in self.servers.iter().enumerate() {
            choices.extend((!server.towards.is_empty()).then_some((index, 0)));
            choices.extend((!server.from.is_empty()).then_some((index, 1)));
            choices.extend((!server.transfers_towards.is_empty()).then_some((index, 2)));
            choices.extend((!server.values_from.is_empty()).then_some((index, 3)));
        }
        choices.extend((!self.local.is_empty()).then_some((0, 4)));
        let Some((index, kind)) = choices.get(self.dice.below(choices.len())).copied() else {
            return self.wait();
        };
        match kind {
            0 => self.server_hears(index),
            1 => {
                let message = self.servers[index].from.pop_front().unwrap();
                self.tell(Event::Message { server: ServerId(index as u32), message });
            }
            2 => {
                let at = self.dice.below(self.servers[index].transfers_towards.len());
                let header = self.servers[index].transfers_towards.swap_remove(at);
                self.server_receives(index, header);
            }
            3 => self.deliver_values(index),
            _ => {
                let at = self.dice.below(self.local.len());
                let event = self.local.swap_remove(at);
                self.shell_reports(event);
            }
        }
    }

    /// What can happen to a server. True if it cost the connection.
    fn misfortune(&mut self, server: usize) -> bool {
        let Mishaps { losses, fences, restarts, restores, moves, .. } = self.mishaps;
        let (is_restart, is_restore) = (self.happens(restarts), self.happens(restores));
        if is_restart || is_restore {
            self.servers[server].boot += 1;
            let here: Vec<_> = self.shards.values_mut().filter(|shard| shard.home == server).collect();
            if is_restore {
                here.into_iter().for_each(FakeShard::forget);
                self.has_forgotten = true;
            }
        }
        if self.happens(moves) {
            self.move_a_shard();
        }
        if is_restart || is_restore || self.happens(losses) {
            self.servers[server].cut();
            self.tell(Event::Lost { server: ServerId(server as u32) });
            return true;
        }
        if self.happens(fences) {
            self.expel();
        }
        false
    }

    /// Nothing is under way: time passes.
    fn wait(&mut self) {
        let deadline = self.rig.worker.next_deadline().unwrap();
        self.rig.now = self.rig.now.max(deadline);
        self.tell(Event::Tick { wire_sent: 0, wire_received: 0 });
    }

    pub(crate) fn tell(&mut self, event: Event) {
        for effect in self.rig.exactly(event) {
            self.perform(effect);
        }
    }

    fn shell_reports(&mut self, event: Event) {
        match &event {
            Event::BatchLoaded { batch } => _ = self.loaded.insert(*batch),
            Event::GradientReady { sequence, .. } => {
                self.is_computing = false;
                assert!(self.held_gradients.insert(*sequence), "a buffer is in use");
                assert!(self.held_gradients.len() <= 2, "two buffers are enough");
            }
            Event::Connected { server } => {
                let to = &mut self.servers[server.0 as usize];
                let boot = 70 + u64::from(server.0) + 100 * to.boot;
                to.from.push_back(ToPeer::Welcome { protocol: PROTOCOL, server: *server, boot });
            }
            _ => {}
        }
        self.tell(event);
    }

    fn deliver_values(&mut self, index: usize) {
        let at = self.dice.below(self.servers[index].values_from.len());
        let (shard, request) = self.servers[index].values_from.swap_remove(at);
        let is_ahead = self.rig.worker.settings.prefetch > 0 || self.missing.contains(&shard);
        assert!(is_ahead || !self.is_computing || self.expected.get(&(shard, false)) != Some(&request));
        let served = Served { version: Version(0), minimum: Clock(0), lead: 0, held_us: 9 };
        self.tell(Event::ValuesArrived { server: ServerId(index as u32), shard, request, served, bytes: 64 });
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Connect { server } => {
                if self.happens(self.mishaps.losses) {
                    let reason = "no".to_owned();
                    self.local.push(Event::ConnectFailed { server, reason, obstacle: Obstacle::Passing });
                } else {
                    self.local.push(Event::Connected { server });
                }
            }
            Effect::Disconnect { server } => {
                self.servers[server.0 as usize].cut();
                self.local.retain(|event| match event {
                    Event::Connected { server: to } | Event::ConnectFailed { server: to, .. } => {
                        *to != server
                    }
                    _ => true,
                });
            }
            Effect::Send { server, message } => self.servers[server.0 as usize].towards.push_back(message),
            Effect::ExpectValues { shard, request, buffer, .. } => {
                self.expected.insert((shard, buffer == Buffer::Evaluation), request);
            }
            Effect::SendPush { server, header } => {
                assert!(self.held_gradients.contains(&header.sequence), "a push needs its buffer");
                self.servers[server.0 as usize].transfers_towards.push(header);
            }
            Effect::SendInitial { server, header } => {
                self.servers[server.0 as usize].transfers_towards.push(header);
            }
            Effect::LoadBatch { batch, .. } => self.local.push(Event::BatchLoaded { batch }),
            Effect::Compute { sequence, batch, missing, .. } => {
                assert!(!self.is_computing && self.loaded.contains(&batch));
                assert!(missing.is_empty() || self.rig.worker.settings.begins_early);
                self.is_computing = true;
                let bad_key = self.happens(self.mishaps.bad_gradients).then_some(1);
                let (loss, samples, packed) = (0.5, 4, Vec::new());
                let ready = Event::GradientReady { sequence, bad_key, loss, samples, waited_us: 9, packed };
                self.missing = missing.into_iter().collect();
                self.waiting = Some(ready);
                self.compute_if_whole();
            }
            Effect::Deliver { shard } => {
                assert!(self.missing.remove(&shard), "{shard} was not missing");
                self.compute_if_whole();
            }
            Effect::Abandon { .. } => {
                self.missing.clear();
                self.compute_if_whole();
            }
            Effect::ReleaseGradient { sequence, .. } => assert!(self.held_gradients.remove(&sequence)),
            Effect::Evaluate { at_samples, .. } => {
                let event = Event::EvaluationReady { at_samples, loss: 0.5, accuracy: 0.5 };
                let is_measuring = |other: &Event| matches!(other, Event::EvaluationReady { .. });
                assert!(!self.local.iter().any(is_measuring), "one evaluation at a time");
                self.local.push(event);
            }
            // A place for fresher values is the shell's.
            Effect::ExpectFresher { .. } | Effect::AdoptFresher { .. } => {}
            Effect::Form { .. }
            | Effect::Dissolve { .. }
            | Effect::Probe { .. }
            | Effect::FetchState { .. }
            | Effect::Step { .. }
            | Effect::Apply { .. }
            | Effect::Skip { .. } => panic!("no group here: {effect:?}"),
            Effect::Notice(_) => {}
            Effect::Exit(result) => self.exit = Some(result),
        }
    }

    /// A gradient needs all values, unless nobody wants it.
    fn compute_if_whole(&mut self) {
        if self.missing.is_empty() {
            self.local.extend(self.waiting.take());
        }
    }

    /// The lease runs out: all servers forget the worker, and its batches are for others again.
    pub(crate) fn expel(&mut self) {
        self.fences += 1;
        self.settle_gone();
        self.coordinator.expel();
        for server in &mut self.servers {
            server.is_active = false;
            server.registered = None;
            server.pulls.clear();
            let text = Text::new("the lease ran out");
            server.from.push_back(ToPeer::Refused(Refusal { code: RefusalCode::Fenced, text }));
        }
    }
}
