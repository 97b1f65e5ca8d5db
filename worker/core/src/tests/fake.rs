//! Fake servers, a network that delivers in any order it may, and a shell that computes nothing.
//!
//! Control messages of one connection keep their order, both ways; transfers, and what the shell does, come
//! in any order. A lost connection loses everything that was under way on it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use slackline_core::consistency::DropReason;
use slackline_core::wire::{Refusal, RefusalCode, Text};

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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mishaps {
    pub(crate) losses: usize,
    pub(crate) fences: usize,
    pub(crate) bad_gradients: usize,
    pub(crate) drops: usize,
}

/// One fake server.
#[derive(Default)]
struct Server {
    towards: VecDeque<ToServer>,
    from: VecDeque<ToPeer>,
    transfers_towards: Vec<TransferHeader>,
    values_from: Vec<(ShardId, u64)>,
    pulls: Vec<Pull>,
    registered: Option<Incarnation>,
    has_values: BTreeSet<ShardId>,
    is_active: bool,
    answers: BTreeMap<(ShardId, Sequence), Pushed>,
}

impl Server {
    fn cut(&mut self) {
        (self.towards, self.from) = Default::default();
        (self.transfers_towards, self.values_from, self.pulls) = Default::default();
        self.registered = None;
    }
}

/// What the coordinator keeps.
#[derive(Default)]
struct Coordinator {
    pending: VecDeque<BatchIndex>,
    out: BTreeSet<BatchIndex>,
    last: Option<(Ask, Work)>,
    is_idle: bool,
    measured: bool,
    incarnation: u64,
}

pub(crate) struct World {
    rig: Rig,
    dice: Dice,
    mishaps: Mishaps,
    servers: Vec<Server>,
    coordinator: Coordinator,
    /// What the shell will report.
    local: Vec<Event>,
    loaded: BTreeSet<BatchIndex>,
    is_computing: bool,
    held_gradients: BTreeSet<Sequence>,
    expected: BTreeMap<(ShardId, bool), u64>,
    /// How often each batch was reported as done.
    pub(crate) done: BTreeMap<BatchIndex, u32>,
    pub(crate) exit: Option<Result<(), crate::WorkerError>>,
    pub(crate) fences: u32,
}

impl World {
    pub(crate) fn new(settings: Settings, batches: u64, seed: u64, mishaps: Mishaps) -> Self {
        let servers = (0..settings.partition.server_count()).map(|_| Server::default()).collect();
        let pending = (0..batches).map(BatchIndex).collect();
        Self {
            rig: Rig::new(settings),
            dice: Dice::new(seed),
            mishaps,
            servers,
            coordinator: Coordinator { pending, incarnation: 1, ..Coordinator::default() },
            local: Vec::new(),
            loaded: BTreeSet::new(),
            is_computing: false,
            held_gradients: BTreeSet::new(),
            expected: BTreeMap::new(),
            done: BTreeMap::new(),
            exit: None,
            fences: 0,
        }
    }

    fn happens(&mut self, thousandths: usize) -> bool {
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
        let (losses, fences) = (self.mishaps.losses, self.mishaps.fences);
        if self.servers[server].registered.is_some() {
            if self.happens(losses) {
                self.servers[server].cut();
                return self.tell(Event::Lost { server: ServerId(server as u32) });
            }
            if self.happens(fences) {
                self.expel();
            }
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

    /// Nothing is under way: time passes.
    fn wait(&mut self) {
        let deadline = self.rig.worker.next_deadline().unwrap();
        self.rig.now = self.rig.now.max(deadline);
        self.tell(Event::Tick { wire_sent: 0, wire_received: 0 });
    }

    /// The lease runs out: all servers forget the worker, and its batches are for others again.
    fn expel(&mut self) {
        self.fences += 1;
        self.coordinator.incarnation += 1;
        self.coordinator.pending.extend(std::mem::take(&mut self.coordinator.out));
        self.coordinator.last = None;
        self.coordinator.is_idle = false;
        for server in &mut self.servers {
            server.answers.clear();
            server.is_active = false;
            server.registered = None;
            server.pulls.clear();
            let text = Text::new("the lease ran out");
            server.from.push_back(ToPeer::Refused(Refusal { code: RefusalCode::Fenced, text }));
        }
    }

    fn tell(&mut self, event: Event) {
        for effect in self.rig.on(event) {
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
                let boot = 70 + u64::from(server.0);
                let welcome = ToPeer::Welcome { protocol: PROTOCOL, server: *server, boot };
                self.servers[server.0 as usize].from.push_back(welcome);
            }
            _ => {}
        }
        self.tell(event);
    }

    fn deliver_values(&mut self, index: usize) {
        let at = self.dice.below(self.servers[index].values_from.len());
        let (shard, request) = self.servers[index].values_from.swap_remove(at);
        assert!(!self.is_computing || self.expected.get(&(shard, false)) != Some(&request));
        let served = Served { version: Version(0), minimum: Clock(0), lead: 0, held_us: 9 };
        self.tell(Event::ValuesArrived { server: ServerId(index as u32), shard, request, served });
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Connect { server } => {
                if self.happens(self.mishaps.losses) {
                    let reason = "no".to_owned();
                    self.local.push(Event::ConnectFailed { server, reason, fatal: false });
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
            Effect::ExpectValues { shard, request, snapshot, .. } => {
                assert!(snapshot || !self.is_computing, "the training buffer is being computed on");
                self.expected.insert((shard, snapshot), request);
            }
            Effect::SendPush { server, header } => {
                assert!(self.held_gradients.contains(&header.sequence), "a push needs its buffer");
                self.servers[server.0 as usize].transfers_towards.push(header);
            }
            Effect::SendInitial { server, header } => {
                self.servers[server.0 as usize].transfers_towards.push(header);
            }
            Effect::LoadBatch { batch, .. } => self.local.push(Event::BatchLoaded { batch }),
            Effect::Compute { sequence, batch, .. } => {
                assert!(!self.is_computing && self.loaded.contains(&batch));
                self.is_computing = true;
                let bad_key = self.happens(self.mishaps.bad_gradients).then_some(1);
                self.local.push(Event::GradientReady { sequence, bad_key, loss: 0.5, samples: 4 });
            }
            Effect::ReleaseGradient { sequence } => assert!(self.held_gradients.remove(&sequence)),
            Effect::Evaluate { at_samples, .. } => {
                let event = Event::EvaluationReady { at_samples, loss: 0.5, accuracy: 0.5 };
                let is_measuring = |other: &Event| matches!(other, Event::EvaluationReady { .. });
                assert!(!self.local.iter().any(is_measuring), "one evaluation at a time");
                self.local.push(event);
            }
            // The gradient is under way already; a place for fresher values is the shell's.
            Effect::Abandon { .. } | Effect::ExpectFresher { .. } | Effect::AdoptFresher { .. } => {}
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

    fn server_hears(&mut self, index: usize) {
        let Some(message) = self.servers[index].towards.pop_front() else { return };
        let incarnation = Incarnation(self.coordinator.incarnation);
        let is_member = self.servers[index].registered.is_some();
        match message {
            ToServer::Join(_) => {
                let clock = Clock(0);
                let joined = ToPeer::Joined { worker: ONE, incarnation, clock };
                self.servers[index].from.push_back(joined);
            }
            ToServer::Register(register) => self.register(index, register.incarnation),
            // An expelled worker is told so; nothing else that it says is heard.
            _ if !is_member => {}
            ToServer::Enter { .. } => self.servers[index].is_active = true,
            ToServer::Finish => self.servers[index].is_active = false,
            ToServer::Ask(ask) => self.on_ask(ask),
            ToServer::Pull(pull) => {
                let is_snapshot = pull.kind == PullKind::Snapshot;
                assert!(is_snapshot || self.servers[index].is_active, "only an active worker pulls");
                assert_eq!(self.expected.get(&(pull.shard, is_snapshot)), Some(&pull.request));
                self.servers[index].pulls.push(pull);
                self.serve(index);
            }
            ToServer::PushNothing { shard, sequence, clock } => {
                self.answer_push(index, shard, sequence, clock, PushOutcome::Nothing);
            }
            ToServer::Evaluated(evaluated) => {
                if evaluated.at_samples == u64::MAX {
                    self.coordinator.measured = true;
                    self.servers[index].from.push_back(ToPeer::Work(Work::Done));
                }
            }
            ToServer::Leave(_) => self.servers[index].from.push_back(ToPeer::Goodbye),
            ToServer::Renew => self.servers[index].from.push_back(ToPeer::Renewed),
            ToServer::Ready(_) | ToServer::Trouble(_) | ToServer::Stepped(_) => {
                panic!("no group here: {message:?}")
            }
            ToServer::Status | ToServer::Stop { .. } => {}
        }
    }

    fn register(&mut self, index: usize, incarnation: Incarnation) {
        let is_present = incarnation == Incarnation(self.coordinator.incarnation);
        let server = &mut self.servers[index];
        if !is_present {
            let text = Text::new("a later incarnation is known");
            return server.from.push_back(ToPeer::Refused(Refusal { code: RefusalCode::Fenced, text }));
        }
        server.registered = Some(incarnation);
        server.is_active = true;
        let owned = self.rig.worker.settings.partition.shards_on(ServerId(index as u32)).count();
        let has_values = server.has_values.len() == owned;
        server.from.push_back(ToPeer::Registered { has_values });
    }

    fn server_receives(&mut self, index: usize, header: TransferHeader) {
        if header.kind == TransferKind::Initial {
            self.servers[index].has_values.insert(header.shard);
            return self.serve(index);
        }
        if self.servers[index].registered != Some(header.incarnation) {
            return;
        }
        assert!(self.servers[index].is_active, "only an active worker pushes");
        let outcome = match self.dice.below(1000) {
            roll if roll < self.mishaps.drops => {
                PushOutcome::Dropped(DropReason::LateClock { open: header.clock })
            }
            roll if roll < self.mishaps.drops + self.mishaps.bad_gradients => {
                PushOutcome::NotFinite { key: 1 }
            }
            _ => applied(1),
        };
        self.answer_push(index, header.shard, header.sequence, header.clock, outcome);
    }

    fn answer_push(
        &mut self,
        index: usize,
        shard: ShardId,
        sequence: Sequence,
        clock: Clock,
        outcome: PushOutcome,
    ) {
        let moved = Clock(clock.0 + 1 + self.dice.below(3) as u64);
        let server = &mut self.servers[index];
        let fresh = Pushed { shard, sequence, duplicate: false, clock: moved, outcome, held_us: 5 };
        let known = server.answers.get(&(shard, sequence)).copied();
        let answer = known.map_or(fresh, |known| Pushed { duplicate: true, ..known });
        server.answers.entry((shard, sequence)).or_insert(fresh);
        server.from.push_back(ToPeer::Pushed(answer));
        self.serve(index);
    }

    /// Answers the pulls that nothing holds any more.
    fn serve(&mut self, index: usize) {
        let server = &mut self.servers[index];
        let (answers, has_values) = (&server.answers, &server.has_values);
        let is_free = |pull: &Pull| match pull.kind {
            _ if !has_values.contains(&pull.shard) => false,
            PullKind::Gated { after: Sequence(0), .. } | PullKind::Snapshot => true,
            PullKind::Gated { after, .. } | PullKind::Fresher { after, .. } => {
                answers.contains_key(&(pull.shard, after))
            }
        };
        let free: Vec<Pull> = server.pulls.iter().copied().filter(is_free).collect();
        server.pulls.retain(|pull| !free.contains(pull));
        server.values_from.extend(free.iter().map(|pull| (pull.shard, pull.request)));
    }

    fn on_ask(&mut self, ask: Ask) {
        let coordinator = &mut self.coordinator;
        let repeated = coordinator
            .last
            .as_ref()
            .filter(|(last, _)| Ask { report: None, ..last.clone() } == Ask { report: None, ..ask.clone() });
        if let Some((_, answer @ Work::Batch { .. })) = repeated {
            let answer = *answer;
            return self.servers[0].from.push_back(ToPeer::Work(answer));
        }
        if repeated.is_none() {
            if let Some(batch) = ask.done {
                assert!(coordinator.out.remove(&batch), "{batch} is reported once");
                *self.done.entry(batch).or_default() += 1;
            }
            if let Some(batch) = ask.returned {
                assert!(coordinator.out.remove(&batch), "{batch} is given back once");
                coordinator.pending.push_back(batch);
            }
        }
        let work = match coordinator.pending.pop_front() {
            Some(batch) => {
                coordinator.out.insert(batch);
                let enter = std::mem::take(&mut coordinator.is_idle).then_some(ask.clock);
                let evaluate = self.dice.below(4) == 0;
                Work::Batch { batch, units: 1, evaluate: evaluate.then_some(batch.0), enter }
            }
            None if !coordinator.out.is_empty() => {
                coordinator.is_idle = true;
                Work::Idle
            }
            None if coordinator.measured => Work::Done,
            None => Work::Evaluate { at_samples: u64::MAX },
        };
        coordinator.last = Some((ask, work));
        self.servers[0].from.push_back(ToPeer::Work(work));
    }
}
