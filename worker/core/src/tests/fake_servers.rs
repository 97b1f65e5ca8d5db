//! What the fake servers do with what they hear.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use slackline_core::consistency::DropReason;
use slackline_core::ids::Generation;
use slackline_core::wire::{Placed, Refusal, RefusalCode, Text};

use super::fake::World;
use super::*;

/// One fake server: a connection, and who speaks over it.
#[derive(Default)]
pub(crate) struct Server {
    pub(crate) boot: u64,
    pub(crate) towards: VecDeque<ToServer>,
    pub(crate) from: VecDeque<ToPeer>,
    pub(crate) transfers_towards: Vec<TransferHeader>,
    pub(crate) values_from: Vec<(ShardId, u64)>,
    pub(crate) pulls: Vec<Pull>,
    pub(crate) registered: Option<Incarnation>,
    pub(crate) is_active: bool,
}

impl Server {
    pub(crate) fn cut(&mut self) {
        (self.towards, self.from) = Default::default();
        (self.transfers_towards, self.values_from, self.pulls) = Default::default();
        self.registered = None;
    }
}

/// What a shard knows of the worker's present life.
#[derive(Clone, Default)]
struct Known {
    /// All pushes up to this one are known to be answered.
    base: Sequence,
    answers: BTreeMap<Sequence, Pushed>,
    staged: BTreeMap<Sequence, (Clock, PushOutcome)>,
}

/// One fake shard.
pub(crate) struct FakeShard {
    pub(crate) home: usize,
    pub(crate) generation: Generation,
    has_values: bool,
    known: Known,
    saved: Known,
}

impl FakeShard {
    pub(crate) fn new(home: usize) -> Self {
        let (known, saved) = (Known::default(), Known::default());
        Self { home, generation: Generation(0), has_values: false, known, saved }
    }

    /// It is restored from what was saved.
    pub(crate) fn forget(&mut self) {
        self.known = self.saved.clone();
    }

    fn has(&self, sequence: Sequence) -> bool {
        sequence <= self.known.base || self.known.answers.contains_key(&sequence)
    }

    /// The last step in its values.
    fn applied(&self) -> Sequence {
        self.known.answers.keys().next_back().copied().unwrap_or_default().max(self.known.base)
    }
}

/// What the coordinator keeps.
#[derive(Default)]
pub(crate) struct Coordinator {
    pending: VecDeque<BatchIndex>,
    out: BTreeSet<BatchIndex>,
    last: Option<(Ask, Work)>,
    is_idle: bool,
    measured: bool,
    incarnation: u64,
    /// Number of the last result of the present incarnation.
    heard: u64,
}

impl Coordinator {
    pub(crate) fn new(pending: VecDeque<BatchIndex>) -> Self {
        Self { pending, incarnation: 1, ..Self::default() }
    }

    pub(crate) fn expel(&mut self) {
        self.incarnation += 1;
        self.pending.extend(std::mem::take(&mut self.out));
        (self.last, self.heard, self.is_idle) = (None, 0, false);
    }
}

impl World {
    /// Some shard goes to another server with all that it knows. The worker hears of it in time, or when it registers again.
    pub(crate) fn move_a_shard(&mut self) {
        let (at, to) = (self.dice.below(self.shards.len()), self.dice.below(self.servers.len()));
        let Some(shard) = self.shards.values_mut().nth(at) else { return };
        shard.home = to;
        shard.generation = shard.generation.next();
        self.tell_places();
    }

    fn tell_places(&mut self) {
        if self.servers[0].registered.is_some() {
            let place = |(shard, fake): (&ShardId, &FakeShard)| Placed {
                shard: *shard,
                generation: fake.generation,
                server: ServerId(fake.home as u32),
            };
            let places = self.shards.iter().map(place).collect();
            self.servers[0].from.push_back(ToPeer::Placed(places));
        }
    }

    /// The worker is gone. What it has pushed is settled: the steps that any shard has applied are applied by all.
    pub(crate) fn settle_gone(&mut self) {
        let through = self.shards.values().map(FakeShard::applied).max().unwrap_or_default();
        for (id, shard) in &mut self.shards {
            let lacks = (1..=through.0)
                .map(Sequence)
                .find(|step| !shard.has(*step) && !shard.known.staged.contains_key(step));
            let is_whole = self.rig.worker.settings.steps == Steps::Whole && !self.has_forgotten;
            assert!(
                !is_whole || lacks.is_none(),
                "{id} lacks a piece of {lacks:?}, which is applied elsewhere"
            );
            (shard.known, shard.saved) = Default::default();
        }
    }

    pub(crate) fn server_hears(&mut self, index: usize) {
        let Some(message) = self.servers[index].towards.pop_front() else { return };
        let incarnation = Incarnation(self.coordinator.incarnation);
        let is_member = self.servers[index].registered.is_some();
        match message {
            ToServer::Join(_) => {
                let clock = Clock(0);
                let joined = ToPeer::Joined { worker: ONE, incarnation, clock };
                self.servers[index].from.push_back(joined);
            }
            ToServer::Register(register) => self.register(index, &register),
            // An expelled worker is told so; nothing else that it says is heard.
            _ if !is_member => {}
            ToServer::Enter { .. } => self.servers[index].is_active = true,
            ToServer::Finish => self.servers[index].is_active = false,
            ToServer::Ask(ask) => self.on_ask(ask),
            ToServer::Pull(pull) => self.on_pull(index, pull),
            ToServer::PushNothing { shard, sequence, clock, reply, .. } => {
                self.take_push(index, (shard, sequence, clock), reply, PushOutcome::Nothing);
            }
            ToServer::Commit { sequence } => self.commit(index, sequence),
            ToServer::Evaluated(evaluated) => {
                if evaluated.at_samples == u64::MAX {
                    self.coordinator.measured = true;
                    self.servers[index].from.push_back(ToPeer::Work(Work::Done));
                }
            }
            ToServer::Leave(_) => self.servers[index].from.push_back(ToPeer::Goodbye),
            ToServer::Renew => self.servers[index].from.push_back(ToPeer::Renewed),
            ToServer::Ready(_) | ToServer::Trouble(_) | ToServer::Stepped(_) | ToServer::Cluster(_) => {
                panic!("not from this worker: {message:?}")
            }
            ToServer::Status | ToServer::Stop { .. } => {}
        }
    }

    fn register(&mut self, index: usize, register: &Register) {
        let is_present = register.incarnation == Incarnation(self.coordinator.incarnation);
        let is_again = self.servers[index].registered.is_some();
        let code = if !is_present {
            RefusalCode::Fenced
        } else if !is_again && self.happens(self.mishaps.unready) {
            RefusalCode::NotReady
        } else {
            self.servers[index].registered = Some(register.incarnation);
            self.servers[index].is_active |= !is_again;
            // Whoever registers repeats its pulls.
            self.servers[index].pulls.clear();
            let mut has_values = true;
            for shard in self.shards.values_mut().filter(|shard| shard.home == index) {
                shard.known.base = shard.known.base.max(register.answered);
                has_values &= shard.has_values;
            }
            self.servers[index].from.push_back(ToPeer::Registered { has_values });
            if index == 0 && self.mishaps.moves > 0 {
                self.tell_places();
            }
            return;
        };
        let text = Text::new("not now");
        self.servers[index].from.push_back(ToPeer::Refused(Refusal { code, text }));
    }

    pub(crate) fn server_receives(&mut self, index: usize, header: TransferHeader) {
        let is_here = self.shards.get(&header.shard).is_some_and(|shard| shard.home == index);
        if header.kind == TransferKind::Initial {
            if let Some(shard) = self.shards.get_mut(&header.shard).filter(|_| is_here) {
                shard.has_values = true;
            }
            return self.serve();
        }
        if self.servers[index].registered != Some(header.incarnation) || !is_here {
            return;
        }
        // A push follows a pull there, and so comes after the word that the worker enters; unless the shard has moved meanwhile. One that
        // is sent again can come late.
        let is_known = self.shards.get(&header.shard).is_some_and(|shard| shard.has(header.sequence));
        let is_active = self.servers[index].is_active;
        assert!(is_active || is_known || self.mishaps.moves > 0, "only an active worker pushes");
        let outcome = match self.dice.below(1000) {
            roll if roll < self.mishaps.drops => {
                PushOutcome::Dropped(DropReason::LateClock { open: header.clock })
            }
            roll if roll < self.mishaps.drops + self.mishaps.bad_gradients => {
                PushOutcome::NotFinite { key: 1 }
            }
            _ => applied(1),
        };
        self.take_push(index, (header.shard, header.sequence, header.clock), header.reply, outcome);
    }

    fn take_push(
        &mut self,
        index: usize,
        (shard, sequence, clock): (ShardId, Sequence, Clock),
        reply: u64,
        outcome: PushOutcome,
    ) {
        let Some(fake) = self.shards.get_mut(&shard).filter(|fake| fake.home == index) else { return };
        if self.dice.below(8) == 0 {
            fake.saved = fake.known.clone();
        }
        if let Some(known) = fake.known.answers.get(&sequence) {
            let again = Pushed { duplicate: true, ..*known };
            return self.servers[index].from.push_back(ToPeer::Pushed(again));
        }
        if !fake.has(Sequence(sequence.0 - 1)) {
            assert!(self.has_forgotten && self.mishaps.moves > 0, "{shard} lacks the push before {sequence}");
            let (clock, outcome) = (Clock(0), PushOutcome::OutOfWindow);
            let pushed = Pushed { shard, sequence, duplicate: false, clock, outcome, held_us: 0, busy_us: 0 };
            return self.servers[index].from.push_back(ToPeer::Pushed(pushed));
        }
        if reply > 0 && !fake.known.staged.contains_key(&sequence) {
            let kind = PullKind::Gated { clock: clock.next(), after: sequence, ahead: 0 };
            self.servers[index].pulls.push(Pull { shard, request: reply, have: 0, kind });
        }
        if self.rig.worker.settings.steps == Steps::Whole {
            fake.known.staged.entry(sequence).or_insert((clock, outcome));
            return self.servers[index].from.push_back(ToPeer::Staged { shard, sequence });
        }
        self.answer_push(shard, sequence, (clock, outcome));
    }

    /// Only what is staged is applied: a piece that comes after the word waits for the next word.
    fn commit(&mut self, index: usize, sequence: Sequence) {
        let whole = |shard: &FakeShard| shard.has(sequence) || shard.known.staged.contains_key(&sequence);
        assert!(self.has_forgotten || self.shards.values().all(whole), "{sequence} is not whole");
        let here: Vec<_> =
            self.shards.iter().filter(|(_, fake)| fake.home == index).map(|(id, _)| *id).collect();
        for shard in here {
            let staged = self.shards.get_mut(&shard).and_then(|fake| fake.known.staged.remove(&sequence));
            if let Some(piece) = staged {
                self.answer_push(shard, sequence, piece);
            }
        }
    }

    fn answer_push(&mut self, shard: ShardId, sequence: Sequence, (clock, outcome): (Clock, PushOutcome)) {
        let moved = Clock(clock.0 + 1 + self.dice.below(3) as u64);
        let Some(fake) = self.shards.get_mut(&shard) else { return };
        let fresh =
            Pushed { shard, sequence, duplicate: false, clock: moved, outcome, held_us: 5, busy_us: 3 };
        fake.known.answers.insert(sequence, fresh);
        self.servers[fake.home].from.push_back(ToPeer::Pushed(fresh));
        self.serve();
    }

    fn on_pull(&mut self, index: usize, pull: Pull) {
        if self.shards.get(&pull.shard).is_none_or(|shard| shard.home != index) {
            return;
        }
        let is_snapshot = pull.kind == PullKind::Snapshot;
        assert!(is_snapshot || self.servers[index].is_active, "only an active worker pulls");
        if self.mishaps.moves == 0 {
            assert_eq!(self.expected.get(&(pull.shard, is_snapshot)), Some(&pull.request));
        }
        self.servers[index].pulls.push(pull);
        self.serve();
    }

    /// Answers the pulls that nothing holds any more.
    fn serve(&mut self) {
        let shards = &self.shards;
        for (index, server) in self.servers.iter_mut().enumerate() {
            let is_free = |pull: &Pull| {
                let Some(shard) = shards.get(&pull.shard) else { return false };
                let is_after = match pull.kind {
                    PullKind::Gated { after, .. } | PullKind::Fresher { after, .. } => shard.has(after),
                    PullKind::Snapshot => true,
                };
                shard.home == index && shard.has_values && is_after
            };
            let free: Vec<Pull> = server.pulls.iter().copied().filter(is_free).collect();
            server.pulls.retain(|pull| !free.contains(pull));
            server.values_from.extend(free.iter().map(|pull| (pull.shard, pull.request)));
        }
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
        for BatchResult { number, batch, fate, .. } in ask.results.iter().copied() {
            if number <= coordinator.heard {
                continue;
            }
            assert_eq!(number, coordinator.heard + 1, "a result is missing");
            coordinator.heard = number;
            assert!(coordinator.out.remove(&batch), "{batch} is over once");
            match fate {
                Fate::Done { .. } => *self.done.entry(batch).or_default() += 1,
                Fate::Returned => coordinator.pending.push_back(batch),
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
