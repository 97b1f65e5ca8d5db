//! Real shards under every policy, traced by the server's tracer through random schedules with deaths, joins and repeats: the replay
//! finds nothing. And a shard that follows a laxer policy than its trace states is found out.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use slackline_core::codec::CodecKind;
use slackline_core::config::{Guard, Steps};
use slackline_core::consistency::{DelaySpec, PolicySpec, Standing, Treatment};
use slackline_core::ids::{
    BatchIndex, Clock, Incarnation, KeyRange, Moment, Sequence, ServerId, SessionId, ShardId, Version,
    WorkerId,
};
use slackline_core::layout::Layout;
use slackline_core::optimizer::{OptimizerSpec, RateSchedule, Rule as Update};
use slackline_core::trace::{Header, Rule, file_name};
use slackline_core::wire::{PullKind, PushOutcome};
use slackline_server::tracer::Tracer;
use slackline_server_core::shard::Push;
use slackline_server_core::{Shard, ShardEffect, ShardEvent, ShardSettings};
use slackline_trace::{Checked, Law, check};

const KEYS: u64 = 3;

/// Bytes that a tracer has written.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Doing {
    Ready,
    Pulling,
    Computing,
    Pushing,
    /// Out of the clock table.
    Idle,
    Dead,
}

#[derive(Clone, Debug)]
struct Worker {
    id: WorkerId,
    incarnation: Incarnation,
    session: SessionId,
    clock: u64,
    sequence: u64,
    /// The number of its last push before it entered the clock table.
    entered_after: u64,
    pulled: Version,
    seen: Clock,
    /// What was pulled while it computes: the number, and the version once it is there.
    next: Option<(u64, Option<Version>)>,
    /// The clock that it was pulled for.
    next_clock: u64,
    doing: Doing,
    last: Option<Push>,
}

/// Workers around one shard that is traced.
struct World {
    shard: Shard,
    tracer: Tracer,
    workers: Vec<Worker>,
    written: Written,
    header: Header,
    refreshes: bool,
    /// Whether workers pull while they compute.
    prefetches: bool,
    now: u64,
    lives: u64,
    requests: u64,
    random: u64,
}

impl World {
    fn new(policy: PolicySpec, stated: Rule, delay: DelaySpec, workers: u32, seed: u64) -> Self {
        let mut layout = Layout::new();
        layout.parameter("weight", &[KEYS], false);
        let optimizer = OptimizerSpec {
            rule: Update::Sgd,
            rate: 1.0,
            weight_decay: 0.0,
            decay_per_clock: true,
            schedule: RateSchedule::CONSTANT,
        };
        let keys = KeyRange::new(0, KEYS);
        let settings = ShardSettings {
            id: ShardId(0),
            keys,
            layout: Arc::new(layout),
            policy,
            delay,
            optimizer,
            workers,
            batch: None,
            // Every other world has whole steps.
            steps: if seed.is_multiple_of(2) { Steps::Whole } else { Steps::Parts },
            guard: Guard::default(),
            pull: CodecKind::F32,
            buffers: Default::default(),
        };
        let header = Header {
            server: ServerId(0),
            shard: ShardId(0),
            keys,
            key_count: KEYS,
            servers: 1,
            shards: 1,
            workers,
            config_hash: 1,
            began_unix_ns: 0,
            rule: stated,
            policy: policy.to_string(),
            prefetch: u32::from(policy.prefetch_max() > 0),
        };
        let written = Written::default();
        let tracer = Tracer::new(Box::new(written.clone()), "a trace".to_owned(), 1 << 30);
        let mut world = Self {
            shard: Shard::new(settings),
            tracer,
            workers: Vec::new(),
            written,
            header,
            refreshes: policy.refreshes(),
            prefetches: policy.prefetch_max() > 0 && !seed.is_multiple_of(3),
            now: 0,
            lives: 0,
            requests: 0,
            random: seed | 1,
        };
        for index in 0..workers {
            world.join(WorkerId(index), 0, Standing::Active);
        }
        world.event(ShardEvent::Initialize(vec![0.0; KEYS as usize]));
        world.event(ShardEvent::Start);
        world
    }

    /// A number below `below` (xorshift).
    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn join(&mut self, id: WorkerId, clock: u64, standing: Standing) {
        self.lives += 1;
        let (incarnation, session) = (Incarnation(self.lives), SessionId(self.lives));
        let worker = Worker {
            id,
            incarnation,
            session,
            clock,
            sequence: 0,
            entered_after: 0,
            pulled: Version(0),
            seen: Clock(0),
            next: None,
            next_clock: 0,
            doing: Doing::Ready,
            last: None,
        };
        match self.workers.iter().position(|known| known.id == id) {
            Some(place) => self.workers[place] = worker,
            None => self.workers.push(worker),
        }
        let clock = Clock(clock);
        self.event(ShardEvent::Enter {
            worker: id,
            incarnation,
            clock,
            standing,
            batch_count: 1000,
            answered: Sequence(0),
        });
    }

    /// The shard takes an event in, and workers hear what it says.
    fn event(&mut self, event: ShardEvent) {
        self.now += 1 + self.draw(1000);
        let now = Moment(self.now);
        let mut effects = Vec::new();
        let arrival = self.tracer.arrival(&event, &self.shard);
        self.shard.handle(now, event, &mut effects);
        self.tracer.tell(now, arrival, &effects.iter().collect::<Vec<_>>(), &self.shard);
        self.shard.check_invariants();
        for effect in effects {
            self.hear(effect);
        }
    }

    fn hear(&mut self, effect: ShardEffect) {
        match effect {
            // There is one shard, so all have their piece.
            ShardEffect::Staged { session, sequence } => {
                let found = self.workers.iter().find(|worker| worker.session == session);
                if let Some(Worker { id, incarnation, .. }) = found.cloned() {
                    self.event(ShardEvent::Commit { worker: id, incarnation, sequence });
                }
            }
            ShardEffect::Answer { session, pushed } => {
                let Some(worker) = self.workers.iter_mut().find(|worker| worker.session == session) else {
                    return;
                };
                if pushed.sequence.0 == worker.sequence && pushed.outcome != PushOutcome::Fenced {
                    worker.clock = worker.clock.max(pushed.clock.0);
                    if worker.doing == Doing::Pushing {
                        worker.doing = Doing::Ready;
                    }
                }
            }
            ShardEffect::Serve { session, request, served, .. } => {
                let found = self.workers.iter_mut().find(|worker| worker.session == session);
                let Some(worker) = found else { return };
                if let Some((next, version)) = &mut worker.next
                    && *next == request
                {
                    *version = Some(served.version);
                } else if worker.doing == Doing::Pulling {
                    (worker.pulled, worker.seen, worker.doing) =
                        (served.version, served.minimum, Doing::Computing);
                }
            }
            _ => {}
        }
    }

    fn pull(&mut self, index: usize, fresher: bool) {
        self.requests += 1;
        let worker = &mut self.workers[index];
        let (clock, after, seen) = (Clock(worker.clock), Sequence(worker.sequence), worker.seen);
        worker.doing = Doing::Pulling;
        let kind = match fresher {
            true => PullKind::Fresher { clock, after, seen },
            false => PullKind::Gated { clock, after, ahead: 0 },
        };
        let (session, reader) = (worker.session, Some((worker.id, worker.incarnation)));
        self.event(ShardEvent::Pull { session, reader, request: self.requests, have: 0, kind });
    }

    /// A worker that computes pulls for its next iteration.
    fn pull_ahead(&mut self, index: usize) {
        self.requests += 1;
        let (request, worker) = (self.requests, &mut self.workers[index]);
        (worker.next, worker.next_clock) = (Some((request, None)), worker.clock + 1);
        let (clock, after) = (Clock(worker.next_clock), Sequence(worker.sequence));
        let (session, reader) = (worker.session, Some((worker.id, worker.incarnation)));
        let kind = PullKind::Gated { clock, after, ahead: 1 };
        self.event(ShardEvent::Pull { session, reader, request, have: 0, kind });
    }

    fn push(&mut self, index: usize, gradient: Option<Vec<f32>>) {
        let worker = &mut self.workers[index];
        worker.sequence += 1;
        let mut push = Push {
            session: worker.session,
            worker: worker.id,
            incarnation: worker.incarnation,
            sequence: Sequence(worker.sequence),
            clock: Clock(worker.clock),
            pulled: worker.pulled,
            batch: BatchIndex(worker.clock * 64 + u64::from(worker.id.0)),
            samples: 32,
            reply: 0,
            have: 0,
            gradient: gradient.map(Into::into),
        };
        worker.clock += 1;
        worker.doing = Doing::Pushing;
        worker.last = Some(push.clone());
        // The next pull may overtake the push, or go with it, once the worker knows where it stands.
        if worker.next.is_none() && push.sequence.0 > worker.entered_after + 1 {
            match self.draw(3) {
                0 => self.pull(index, false),
                1 => {
                    self.requests += 1;
                    push.reply = self.requests;
                    self.workers[index].doing = Doing::Pulling;
                    self.workers[index].last = Some(push.clone());
                }
                _ => {}
            }
        }
        self.event(ShardEvent::Push(push));
    }

    /// Somebody does the next thing.
    fn step(&mut self) {
        let index = self.draw(self.workers.len() as u64) as usize;
        let worker = self.workers[index].clone();
        match (self.draw(100), worker.doing) {
            (0, Doing::Dead) => {
                let clock = self.shard.table().minimum().map_or(worker.clock, |minimum| minimum.0);
                self.join(worker.id, clock, Standing::Joining);
            }
            (_, Doing::Dead) => {}
            (0, _) if self.workers.iter().filter(|worker| worker.doing != Doing::Dead).count() > 1 => {
                self.workers[index].doing = Doing::Dead;
                self.event(ShardEvent::Remove { worker: worker.id });
            }
            (1, Doing::Ready) => {
                (self.workers[index].doing, self.workers[index].next) = (Doing::Idle, None);
                self.event(ShardEvent::Finish { worker: worker.id });
            }
            (2..6, _) => self.again(&worker),
            (6, Doing::Pulling | Doing::Ready) => {
                self.workers[index].next = None;
                self.pull(index, false);
            }
            (7, _) => {
                self.requests += 1;
                let (session, request) = (SessionId(999), self.requests);
                self.event(ShardEvent::Pull {
                    session,
                    reader: None,
                    request,
                    have: 0,
                    kind: PullKind::Snapshot,
                });
            }
            (8, _) if self.workers.len() < 6 => {
                let id = WorkerId(self.workers.len() as u32);
                self.join(id, worker.clock, Standing::Joining);
            }
            (..30, Doing::Idle) => {
                let clock = Clock(worker.clock);
                self.event(ShardEvent::Reenter { worker: worker.id, clock });
                (self.workers[index].doing, self.workers[index].entered_after) =
                    (Doing::Ready, worker.sequence);
            }
            // Values of a clock that it has not come to by then are thrown away; those that it waits for are used.
            (_, Doing::Ready) => match (worker.next, worker.clock == worker.next_clock) {
                (Some((_, Some(version))), true) => {
                    self.workers[index].next = None;
                    (self.workers[index].pulled, self.workers[index].doing) = (version, Doing::Computing);
                }
                (Some((_, None)), true) => {}
                _ => {
                    self.workers[index].next = None;
                    self.pull(index, false);
                }
            },
            (23..35, Doing::Computing)
                if self.prefetches && worker.next.is_none() && worker.sequence > worker.entered_after =>
            {
                self.pull_ahead(index);
            }
            (..20, Doing::Computing) if self.refreshes && worker.next.is_none() => self.pull(index, true),
            (21, Doing::Computing) => self.push(index, None),
            (22, Doing::Computing) => self.push(index, Some(vec![f32::NAN; KEYS as usize])),
            (_, Doing::Computing) => self.push(index, Some(vec![1.0; KEYS as usize])),
            (..10, _) => self.event(ShardEvent::Tick),
            _ => {}
        }
        if self.shard.next_deadline().is_some_and(|deadline| deadline.0 <= self.now) {
            self.event(ShardEvent::Tick);
        }
    }

    /// A push comes again, over the same session or a newer one.
    fn again(&mut self, worker: &Worker) {
        let Some(mut push) = worker.last.clone() else { return };
        if self.draw(2) == 0 && worker.doing != Doing::Dead {
            self.lives += 1;
            push.session = SessionId(self.lives);
            let mine = self.workers.iter_mut().find(|known| known.id == worker.id).unwrap();
            mine.session = push.session;
            mine.last = Some(push.clone());
        }
        self.event(ShardEvent::Push(push));
    }

    /// Ends the trace and replays it.
    fn checked(self) -> Checked {
        let folder = tempfile::tempdir().unwrap();
        self.tracer.end(Moment(self.now));
        let mut bytes = self.header.encode().to_vec();
        bytes.extend_from_slice(&self.written.0.lock().unwrap());
        std::fs::write(folder.path().join(file_name(ServerId(0), ShardId(0))), bytes).unwrap();
        check(folder.path()).unwrap()
    }
}

fn run(policy: PolicySpec, stated: Rule, delay: DelaySpec, workers: u32, seed: u64, steps: u32) -> Checked {
    let mut world = World::new(policy, stated, delay, workers, seed);
    (0..steps).for_each(|_| world.step());
    world.checked()
}

fn policies() -> impl Strategy<Value = PolicySpec> {
    let count = || prop::option::of(1..4_u32);
    prop_oneof![
        Just(PolicySpec::Bsp),
        Just(PolicySpec::Asp),
        (0..4_u64).prop_map(|staleness| PolicySpec::Ssp { staleness }),
        (0..4_u64).prop_map(|staleness| PolicySpec::Essp { staleness }),
        (0..3_u64, 0..4_u64).prop_map(|(low, more)| PolicySpec::Dssp { low, high: low + more }),
        (0..3_u32).prop_map(|late| PolicySpec::Backup { late }),
        (count(), 0..3_u64, any::<bool>()).prop_map(|(count, grace, holds)| PolicySpec::Quorum {
            count,
            grace: Duration::from_nanos(grace * 800),
            holds,
        }),
        count().prop_map(|count| PolicySpec::Buffer { count }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_shard_keeps_the_laws_of_its_policy(
        policy in policies(),
        workers in 1..5_u32,
        seed in any::<u64>(),
        drop_at in prop::option::of(2..6_u64),
        inverse in any::<bool>(),
    ) {
        let treatment = if inverse { Treatment::Inverse } else { Treatment::None };
        let delay = DelaySpec { treatment, drop_at };
        let checked = run(policy, Rule::from(policy), delay, workers, seed, 1500);
        prop_assert_eq!(checked.breach_count(), 0, "{}", checked);
        prop_assert!(checked.shards[0].pulls() > 0);
    }
}

#[test]
fn a_shard_that_is_laxer_than_it_says_is_found_out() {
    let laws = |policy, stated| {
        let checked = run(policy, stated, DelaySpec::default(), 4, 7, 4000);
        checked.breaches().map(|breach| breach.law).collect::<Vec<_>>()
    };
    let ssp = |staleness| PolicySpec::Ssp { staleness };
    assert!(laws(ssp(5), Rule::Ssp { staleness: 1 }).contains(&Law::Bound));
    assert!(laws(PolicySpec::Asp, Rule::Dssp { low: 0, high: 2 }).contains(&Law::Bound));
    assert!(laws(ssp(0), Rule::Bsp).contains(&Law::WholeClock));
    assert!(laws(ssp(0), Rule::Ssp { staleness: 3 }).contains(&Law::NeedlessHold));
    assert!(laws(PolicySpec::Backup { late: 2 }, Rule::Backup { late: 1 }).contains(&Law::WholeClock));
    let quorum = |count| PolicySpec::Quorum { count: Some(count), grace: Duration::ZERO, holds: true };
    assert!(laws(quorum(1), Rule::from(quorum(3))).contains(&Law::Quorum));
    let buffer = |count| PolicySpec::Buffer { count: Some(count) };
    assert!(laws(buffer(1), Rule::from(buffer(2))).contains(&Law::Quorum));
}

#[test]
fn a_trace_that_reaches_its_size_says_so() {
    let policy = PolicySpec::Ssp { staleness: 1 };
    let mut world = World::new(policy, Rule::from(policy), DelaySpec::default(), 2, 3);
    world.tracer = Tracer::new(Box::new(world.written.clone()), "a trace".to_owned(), 256 + 96 * 50);
    // The members and the start are in the part that was written before.
    world.written.0.lock().unwrap().clear();
    (0..500).for_each(|_| world.step());
    drop(world.tracer);
    let bytes = world.written.0.lock().unwrap().clone();
    assert_eq!(bytes.len(), 96 * 50);
    assert_eq!(bytes[96 * 49], 11, "the last record says that the trace is full");
}
