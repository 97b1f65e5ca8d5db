//! The gate of a shard: pushes and pulls a second when the values cost next to nothing.
//!
//! One round is a push and the next pull of every worker, in turn. Under bsp all pulls but the last are held and released
//! together, which is the worst case for the list of held pulls; under ssp and asp each is served as it comes.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use slackline_core::codec::CodecKind;
use slackline_core::config::{Guard, Steps};
use slackline_core::consistency::{DelaySpec, PolicySpec, Standing};
use slackline_core::ids::{
    BatchIndex, Clock, Incarnation, KeyRange, Moment, Sequence, SessionId, ShardId, Version, WorkerId,
};
use slackline_core::layout::Layout;
use slackline_core::optimizer::{OptimizerSpec, RateSchedule, Rule};
use slackline_core::wire::PullKind;
use slackline_server_core::shard::{Push, Shard, ShardEffect, ShardEvent, ShardSettings};

const KEYS: u64 = 64;

/// A shard and the workers around it.
struct Rounds {
    shard: Shard,
    workers: u32,
    /// Iterations that every worker has completed.
    clock: u64,
    now: u64,
    /// Buffers for gradients: those that the shard has given back.
    spare: Vec<Vec<f32>>,
    effects: Vec<ShardEffect>,
    served: u64,
}

impl Rounds {
    fn new(policy: PolicySpec, workers: u32) -> Self {
        let mut layout = Layout::new();
        layout.parameter("weight", &[KEYS], false);
        let optimizer = OptimizerSpec {
            rule: Rule::Sgd,
            rate: 1e-3,
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
            delay: DelaySpec::default(),
            optimizer,
            workers,
            batch: None,
            steps: Steps::Parts,
            guard: Guard::default(),
            pull: CodecKind::F32,
            buffers: Default::default(),
        };
        let mut rounds = Self {
            shard: Shard::new(settings),
            workers,
            clock: 0,
            now: 0,
            spare: Vec::new(),
            effects: Vec::new(),
            served: 0,
        };
        for worker in 0..workers {
            rounds.event(ShardEvent::Enter {
                worker: WorkerId(worker),
                incarnation: Incarnation(u64::from(worker)),
                clock: Clock(0),
                standing: Standing::Active,
                batch_count: u64::MAX,
                answered: Sequence(0),
            });
        }
        rounds.event(ShardEvent::Initialize(vec![0.0; KEYS as usize]));
        rounds.event(ShardEvent::Start);
        rounds
    }

    fn event(&mut self, event: ShardEvent) {
        self.now += 1;
        self.shard.handle(Moment(self.now), event, &mut self.effects);
        for effect in self.effects.drain(..) {
            match effect {
                ShardEffect::Recycle(gradient) => self.spare.push(gradient),
                ShardEffect::Serve { values, .. } => {
                    black_box(&values);
                    self.served += 1;
                }
                _ => {}
            }
        }
    }

    /// One push and one pull of every worker.
    fn round(&mut self) {
        let served = self.served;
        for worker in 0..self.workers {
            let (id, incarnation) = (WorkerId(worker), Incarnation(u64::from(worker)));
            let (session, sequence) = (SessionId(u64::from(worker)), Sequence(self.clock + 1));
            let gradient = self.spare.pop().unwrap_or_else(|| vec![1e-3; KEYS as usize]);
            self.event(ShardEvent::Push(Push {
                session,
                worker: id,
                incarnation,
                sequence,
                clock: Clock(self.clock),
                pulled: Version(0),
                batch: BatchIndex(self.clock * u64::from(self.workers) + u64::from(worker)),
                samples: 1,
                reply: 0,
                have: 0,
                gradient: Some(gradient.into()),
            }));
            self.event(ShardEvent::Pull {
                session,
                reader: Some((id, incarnation)),
                request: self.clock,
                have: 0,
                kind: PullKind::Gated { clock: Clock(self.clock + 1), after: sequence, ahead: 0 },
            });
        }
        self.clock += 1;
        assert_eq!(self.served - served, u64::from(self.workers), "every pull of the round was served");
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let mut group = criterion.benchmark_group("gate");
    for policy in [PolicySpec::Bsp, PolicySpec::Ssp { staleness: 3 }, PolicySpec::Asp] {
        for workers in [8, 256] {
            let mut rounds = Rounds::new(policy, workers);
            group.throughput(Throughput::Elements(2 * u64::from(workers)));
            group.bench_function(BenchmarkId::new(policy.to_string(), workers), |bencher| {
                bencher.iter(|| rounds.round());
            });
        }
    }
    group.finish();
    criterion.final_summary();
}
