//! The laws of consistency over random schedules, checked by an oracle that sees only events and effects.

mod ahead;
mod brought;
pub(crate) mod crowd;
mod cuts;
mod pair;
mod patches;
mod policies;
mod returns;
mod staging;
mod state;

use super::*;
use std::collections::BTreeSet;

use crate::dedup::Seen;
use crate::notice::Notice;
use proptest::prelude::*;
use slackline_core::codec::CodecKind;
use slackline_core::config::OnNorm;
use slackline_core::consistency::Standing;
use slackline_core::consistency::{HoldReason, Treatment};
use slackline_core::ids::{Sequence, SessionId};
use slackline_core::optimizer::{Per, RateSchedule, Rule};
use slackline_core::wire::{PullKind, Served};

const KEYS: u64 = 3;

fn sgd() -> OptimizerSpec {
    OptimizerSpec {
        rule: Rule::Sgd,
        rate: 1.0,
        weight_decay: 0.0,
        decay_per_clock: true,
        schedule: RateSchedule::CONSTANT,
    }
}

fn shard(policy: PolicySpec) -> Shard {
    let mut layout = Layout::new();
    layout.parameter("weight", &[KEYS], false);
    let optimizer = sgd();
    let keys = KeyRange::new(0, KEYS);
    let layout = Arc::new(layout);
    let delay = DelaySpec::default();
    Shard::new(ShardSettings {
        id: ShardId(0),
        keys,
        layout,
        policy,
        delay,
        optimizer,
        workers: 1,
        batch: None,
        steps: Steps::Parts,
        guard: config::Guard::default(),
        pull: CodecKind::F32,
        buffers: Default::default(),
    })
}

/// What a worker is doing, as the oracle knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Doing {
    Ready,
    Pulling,
    Computing { pulled: Version },
    Gone,
}

#[derive(Clone, Debug)]
struct Reader {
    doing: Doing,
    clock: u64,
    sequence: u64,
    /// Pushes of it that the shard has applied or collected, by its answers.
    others_in_flight: u64,
}

/// A world of workers around one shard: pushes of ones, so that the values count what was applied.
struct World {
    policy: PolicySpec,
    shard: Shard,
    workers: Vec<Reader>,
    now: u64,
    applied: u64,
    dropped: u64,
    staleness_sum: u64,
    in_flight_sum: u64,
    staleness_max: u64,
    sent: Vec<Push>,
    answers: BTreeMap<(u32, u64), PushOutcome>,
    fixed_membership: bool,
}

impl World {
    fn new(policy: PolicySpec, workers: usize) -> Self {
        let mut world = Self {
            policy,
            shard: shard(policy),
            workers: vec![
                Reader { doing: Doing::Ready, clock: 0, sequence: 0, others_in_flight: 0 };
                workers
            ],
            now: 0,
            applied: 0,
            dropped: 0,
            staleness_sum: 0,
            in_flight_sum: 0,
            staleness_max: 0,
            sent: Vec::new(),
            answers: BTreeMap::new(),
            fixed_membership: true,
        };
        for index in 0..workers {
            world.event(ShardEvent::Enter {
                worker: WorkerId(index as u32),
                incarnation: Incarnation(index as u64),
                clock: Clock(0),
                standing: Standing::Active,
                batch_count: 1000,
                answered: Sequence(0),
            });
        }
        world.event(ShardEvent::Initialize(vec![0.0; KEYS as usize]));
        world.event(ShardEvent::Start);
        world
    }

    fn event(&mut self, event: ShardEvent) {
        self.now += 1;
        let mut effects = Vec::new();
        self.shard.handle(Moment(self.now), event, &mut effects);
        for effect in effects {
            match effect {
                ShardEffect::Answer { session, pushed } => self.answered(session, pushed),
                ShardEffect::Serve { reader: Some((worker, _)), served, .. } => self.served(worker, served),
                _ => {}
            }
        }
        self.shard.check_invariants();
        if let Some(values) = self.shard.values() {
            let expected = if self.policy.takes_means() { self.shard.version().0 } else { self.applied };
            assert_eq!(values, vec![-(expected as f32); KEYS as usize]);
        }
    }

    fn served(&mut self, worker: WorkerId, served: Served) {
        let index = worker.0 as usize;
        assert_eq!(self.workers[index].doing, Doing::Pulling, "served twice");
        let clock = self.workers[index].clock;
        if let Some(staleness) = self.policy.staleness() {
            // The read rule of Ho et al.: every live worker's first c - s iterations are in.
            for other in self.workers.iter().filter(|other| other.doing != Doing::Gone) {
                assert!(other.clock + staleness >= clock, "read at {clock} without {}", other.clock);
            }
        }
        self.workers[index].doing = Doing::Computing { pulled: served.version };
        self.workers[index].others_in_flight = 0;
    }

    fn answered(&mut self, session: SessionId, pushed: Pushed) {
        let key = (session.0 as u32, pushed.sequence.0);
        if let Some(first) = self.answers.get(&key) {
            assert!(pushed.duplicate, "a second answer that does not say so");
            assert_eq!(*first, pushed.outcome, "retries get the first answer");
            return;
        }
        assert!(!pushed.duplicate);
        self.answers.insert(key, pushed.outcome);
        match pushed.outcome {
            PushOutcome::Applied { staleness, .. } | PushOutcome::Gathered { staleness, .. } => {
                self.applied += 1;
                self.staleness_sum += staleness;
                self.staleness_max = self.staleness_max.max(staleness);
            }
            PushOutcome::Dropped(_) => self.dropped += 1,
            _ => {}
        }
        let worker = &mut self.workers[session.0 as usize];
        worker.clock = worker.clock.max(pushed.clock.0);
    }

    fn in_flight_besides(&self, index: usize) -> u64 {
        let computing = |other: &Reader| matches!(other.doing, Doing::Computing { .. });
        self.workers.iter().enumerate().filter(|(other, worker)| *other != index && computing(worker)).count()
            as u64
    }

    /// One worker does the next thing it can do; false when it waits.
    fn step(&mut self, index: usize) -> bool {
        let worker = WorkerId(index as u32);
        let incarnation = Incarnation(index as u64);
        let Reader { doing, clock, sequence, .. } = self.workers[index].clone();
        match doing {
            Doing::Ready => {
                self.workers[index].doing = Doing::Pulling;
                let kind = PullKind::Gated { clock: Clock(clock), after: Sequence(sequence), ahead: 0 };
                let session = SessionId(index as u64);
                self.event(ShardEvent::Pull {
                    session,
                    reader: Some((worker, incarnation)),
                    request: clock,
                    have: 0,
                    kind,
                });
                true
            }
            Doing::Computing { pulled } => {
                let push = Push {
                    session: SessionId(index as u64),
                    worker,
                    incarnation,
                    sequence: Sequence(sequence + 1),
                    clock: Clock(clock),
                    pulled,
                    batch: BatchIndex(clock * self.workers.len() as u64 + index as u64),
                    samples: 4,
                    reply: 0,
                    have: 0,
                    gradient: Some(vec![1.0; KEYS as usize].into()),
                };
                self.in_flight_sum += self.in_flight_besides(index);
                self.workers[index].clock += 1;
                self.workers[index].sequence += 1;
                self.workers[index].doing = Doing::Ready;
                self.sent.push(push.clone());
                self.event(ShardEvent::Push(push));
                true
            }
            Doing::Pulling | Doing::Gone => false,
        }
    }

    fn leave(&mut self, index: usize, politely: bool) {
        let worker = WorkerId(index as u32);
        self.fixed_membership = false;
        self.workers[index].doing = Doing::Gone;
        self.event(if politely { ShardEvent::Finish { worker } } else { ShardEvent::Remove { worker } });
    }

    /// Lets everyone run to `clock`; panics when nobody can go on.
    fn drain(&mut self, clock: u64) {
        loop {
            let unfinished: Vec<usize> = (0..self.workers.len())
                .filter(|index| {
                    let worker = &self.workers[*index];
                    worker.doing != Doing::Gone && (worker.clock < clock || worker.doing != Doing::Ready)
                })
                .collect();
            if unfinished.is_empty() {
                return;
            }
            let mut moved = false;
            for index in unfinished {
                if self.workers[index].doing == Doing::Ready && self.workers[index].clock >= clock {
                    continue;
                }
                moved |= self.step(index);
            }
            // Whoever has no more work leaves the clock table: nobody waits for its pushes.
            let over = |worker: &Reader| worker.doing == Doing::Ready && worker.clock >= clock;
            let over = self.workers.iter().position(over).filter(|_| !moved);
            if let Some(index) = over {
                self.leave(index, true);
            }
            assert!(moved || over.is_some(), "nobody can go on: {:?}", self.workers);
        }
    }
}

fn policies() -> impl Strategy<Value = PolicySpec> {
    prop_oneof![
        Just(PolicySpec::Bsp),
        Just(PolicySpec::Asp),
        (0..4_u64).prop_map(|staleness| PolicySpec::Ssp { staleness }),
        (0..4_u64).prop_map(|staleness| PolicySpec::Essp { staleness }),
        (0..3_u64, 0..4_u64).prop_map(|(low, more)| PolicySpec::Dssp { low, high: low + more }),
        (0..3_u32).prop_map(|late| PolicySpec::Backup { late }),
        prop::option::of(1..6_u32).prop_map(|count| PolicySpec::Quorum {
            count,
            grace: std::time::Duration::ZERO,
            holds: true
        }),
        prop::option::of(1..6_u32).prop_map(|count| PolicySpec::Buffer { count }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_laws_hold_on_every_schedule(policy in policies(), workers in 1..6_usize, picks in prop::collection::vec((0..6_usize, 0..8_u8), 0..300)) {
        let mut world = World::new(policy, workers);
        for (index, action) in picks {
            let index = index % workers;
            if action == 0 && !world.sent.is_empty() {
                // A retry of any earlier push, from however long ago.
                let push = world.sent[index * 7 % world.sent.len()].clone();
                if !matches!(world.shard.members[&push.worker].window.look(push.sequence), Seen::OutOfWindow) {
                    world.event(ShardEvent::Push(push));
                }
            } else {
                world.step(index);
            }
        }
        let last = world.workers.iter().map(|worker| worker.clock).max().unwrap_or(0) + 1;
        world.drain(last);
        for index in 0..workers {
            world.leave(index, true);
        }
        // Drained: every push was applied or dropped exactly once, and dropped only where somebody can be late.
        prop_assert_eq!(world.applied + world.dropped, world.workers.iter().map(|worker| worker.sequence).sum::<u64>());
        let may_drop = matches!(policy, PolicySpec::Backup { late: 1.. });
        prop_assert!(world.dropped == 0 || may_drop);
        if let Some(bound) = policy.version_bound(workers as u64, 0) {
            prop_assert!(world.staleness_max <= bound, "{} > {}", world.staleness_max, bound);
        }
        if !policy.takes_means() {
            // Conservation: each apply ages exactly the gradients that are in flight.
            prop_assert_eq!(world.staleness_sum, world.in_flight_sum);
        }
    }

    #[test]
    fn whoever_leaves_releases_everyone_it_held(policy in policies(), workers in 2..6_usize, picks in prop::collection::vec(0..6_usize, 0..100), leavers in prop::collection::vec((0..6_usize, any::<bool>()), 1..4)) {
        let mut world = World::new(policy, workers);
        for index in picks {
            world.step(index % workers);
        }
        for (index, politely) in leavers {
            let index = index % workers;
            // A worker finishes politely only between iterations.
            let politely = politely && world.workers[index].doing == Doing::Ready;
            if world.workers[index].doing != Doing::Gone {
                world.leave(index, politely);
            }
        }
        let last = world.workers.iter().map(|worker| worker.clock).max().unwrap_or(0) + 5;
        world.drain(last);
    }

    #[test]
    fn a_joiner_gates_nobody_before_its_first_push(staleness in 0..3_u64, steps in 1..40_usize) {
        let mut world = World::new(PolicySpec::Ssp { staleness }, 2);
        world.workers.push(Reader { doing: Doing::Ready, clock: 0, sequence: 0, others_in_flight: 0 });
        let (worker, incarnation) = (WorkerId(2), Incarnation(2));
        world.event(ShardEvent::Enter { worker, incarnation, clock: Clock(0), standing: Standing::Joining, batch_count: 1000, answered: Sequence(0) });
        world.step(2);
        world.workers[2].doing = Doing::Gone; // out of the oracle's read rule while it computes
        for step in 0..2 * steps {
            world.step(step % 2);
            world.step(step % 2);
        }
        prop_assert_eq!(world.workers[0].clock, steps as u64);
        let pulled = Version(0);
        let push = Push { session: SessionId(2), worker, incarnation, sequence: Sequence(1), clock: Clock(0), pulled, batch: BatchIndex(0), samples: 1, reply: 0, have: 0, gradient: None };
        world.event(ShardEvent::Push(push));
        let clock = world.shard.table().clock_of(worker).unwrap();
        prop_assert_eq!(Some(clock), world.shard.table().minimum().map(|minimum| minimum.max(Clock(1))));
    }
}

#[test]
fn a_held_pull_says_what_it_waits_for() {
    let mut world = World::new(PolicySpec::Ssp { staleness: 0 }, 2);
    for _ in 0..2 {
        world.step(0);
    }
    world.step(0);
    let rows = world.shard.held_rows(Moment(5_000_000_000), 10);
    assert_eq!(rows.len(), 1);
    let reason = HoldReason::Clock { slowest: WorkerId(1), at: Clock(0), needs: Clock(1) };
    assert_eq!((rows[0].worker, rows[0].reason, rows[0].since_ms / 1000), (WorkerId(0), reason, 4));
}

// Case 30 (apache/mxnet#7893): who pulled before there were values brought the server down.
#[test]
fn nobody_reads_before_the_run_begins_and_has_values() {
    let mut shard = shard(PolicySpec::Asp);
    let mut effects = Vec::new();
    let (worker, incarnation) = (WorkerId(0), Incarnation(1));
    let enter = ShardEvent::Enter {
        worker,
        incarnation,
        clock: Clock(0),
        standing: Standing::Active,
        batch_count: 1,
        answered: Sequence(0),
    };
    shard.handle(Moment(0), enter, &mut effects);
    let kind = PullKind::Gated { clock: Clock(0), after: Sequence(0), ahead: 0 };
    let pull = ShardEvent::Pull {
        session: SessionId(1),
        reader: Some((worker, incarnation)),
        request: 1,
        have: 0,
        kind,
    };
    shard.handle(Moment(1), pull, &mut effects);
    assert_eq!(shard.held_rows(Moment(1), 9)[0].reason, HoldReason::NoValues);
    shard.handle(Moment(2), ShardEvent::Initialize(vec![1.0; 3]), &mut effects);
    assert_eq!(shard.held_rows(Moment(2), 9)[0].reason, HoldReason::NotStarted);
    shard.handle(Moment(3), ShardEvent::Start, &mut effects);
    assert!(matches!(effects.last(), Some(ShardEffect::Serve { .. })));
    // Initial values count once: a second worker's copy changes nothing.
    shard.handle(Moment(4), ShardEvent::Initialize(vec![9.0; 3]), &mut effects);
    assert_eq!(shard.values(), Some(&[1.0; 3][..]));
}

// Case 33 (tensorflow issue 14494): a NaN of one worker poisoned everybody.
#[test]
fn a_gradient_that_is_not_finite_is_refused_by_name_and_the_clock_goes_on() {
    let mut world = World::new(PolicySpec::Ssp { staleness: 0 }, 1);
    for (index, bad) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().enumerate() {
        let push = Push {
            session: SessionId(0),
            worker: WorkerId(0),
            incarnation: Incarnation(0),
            sequence: Sequence(index as u64 + 1),
            clock: world.shard.table().clock_of(WorkerId(0)).unwrap(),
            pulled: Version(0),
            batch: BatchIndex(0),
            samples: 1,
            reply: 0,
            have: 0,
            gradient: Some(vec![0.0, bad, 0.0].into()),
        };
        let (clock, sequence) = (push.clock, push.sequence);
        let mut effects = Vec::new();
        world.shard.handle(Moment(9), ShardEvent::Push(push), &mut effects);
        let tensor = "weight".to_owned();
        let (worker, shard, staleness) = (WorkerId(0), ShardId(0), 0);
        let notice = Notice::BadGradient { worker, shard, clock, sequence, staleness, tensor };
        assert!(effects.iter().any(|effect| matches!(effect, ShardEffect::Notice(said) if *said == notice)));
        assert_eq!(world.shard.table().clock_of(WorkerId(0)), Some(clock.next()));
        assert_eq!(world.shard.values(), Some(&[0.0; 3][..]));
    }
}

// Case 16: numbers began anew after a worker had come back, and its pushes were taken for repeats. A later incarnation has numbers of its own.
#[test]
fn a_push_of_a_stranger_a_former_incarnation_or_the_wrong_size_changes_nothing() {
    let mut world = World::new(PolicySpec::Asp, 1);
    let push = |worker: u32, incarnation: u64, gradient: Vec<f32>| Push {
        session: SessionId(7),
        worker: WorkerId(worker),
        incarnation: Incarnation(incarnation),
        sequence: Sequence(1),
        clock: Clock(0),
        pulled: Version(0),
        batch: BatchIndex(0),
        samples: 1,
        reply: 0,
        have: 0,
        gradient: Some(gradient.into()),
    };
    for (push, expected) in [
        (push(5, 0, vec![1.0; 3]), PushOutcome::Fenced),
        (push(0, 9, vec![1.0; 3]), PushOutcome::Fenced),
        (push(0, 0, vec![1.0; 2]), PushOutcome::WrongKeys),
        (Push { sequence: Sequence(1000), ..push(0, 0, vec![1.0; 3]) }, PushOutcome::OutOfWindow),
    ] {
        let mut effects = Vec::new();
        world.shard.handle(Moment(1), ShardEvent::Push(push), &mut effects);
        let answered = effects
            .iter()
            .any(|effect| matches!(effect, ShardEffect::Answer { pushed, .. } if pushed.outcome == expected));
        assert!(answered, "{expected:?} {effects:?}");
        assert_eq!((world.shard.version(), world.shard.values()), (Version(0), Some(&[0.0; 3][..])));
    }
}

#[test]
fn the_mean_of_a_clock_does_not_depend_on_arrival() {
    let finals: Vec<Vec<u32>> = [[0, 1, 2], [2, 0, 1], [1, 2, 0]]
        .iter()
        .map(|order| {
            let mut world = World::new(PolicySpec::Bsp, 3);
            let mut effects = Vec::new();
            for index in order {
                let push = Push {
                    session: SessionId(0),
                    worker: WorkerId(*index),
                    incarnation: Incarnation(u64::from(*index)),
                    sequence: Sequence(1),
                    clock: Clock(0),
                    pulled: Version(0),
                    batch: BatchIndex(u64::from(*index)),
                    samples: 3 + index,
                    reply: 0,
                    have: 0,
                    gradient: Some(vec![0.1 + *index as f32 * 0.7, 1e-7, 1e7].into()),
                };
                world.shard.handle(Moment(1), ShardEvent::Push(push), &mut effects);
            }
            assert_eq!(world.shard.version(), Version(1));
            world.shard.values().unwrap().iter().map(|value| value.to_bits()).collect()
        })
        .collect();
    assert_eq!(finals[0], finals[1]);
    assert_eq!(finals[0], finals[2]);
}
