//! Update rules and the mean of one clock's pushes: the work of a shard's owner for every push.
//!
//! All of it is bound by memory, so the figure to read is bytes a second: those that must be read or written at least once,
//! 12 a value for sgd (values in and out, gradient in), 20 with a velocity, 4 a value and push for the mean. Compare it with
//! what one core of the machine copies.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use slackline_core::aggregate::weighted_mean;
use slackline_core::ids::KeyRange;
use slackline_core::layout::Layout;
use slackline_core::model::ModelSpec;
use slackline_core::optimizer::{Optimizer, OptimizerSpec, Per, RateSchedule, Rule, Step};

/// The perceptron 784-512-256-10, whose values fit into the last cache of most machines, and a model whose values do not.
fn layouts() -> [Layout; 2] {
    let mut large = Layout::new();
    large.parameter("weight", &[10_000_000], true);
    [ModelSpec::Mlp { widths: vec![512, 256] }.layout(784, 10), large]
}

/// Values that are neither zero nor alike.
fn wave(count: u64, phase: f32) -> Vec<f32> {
    (0..count).map(|index| (phase + (index % 1000) as f32).sin() * 0.1).collect()
}

fn rules(criterion: &mut Criterion) {
    let rules = [
        ("sgd", Rule::Sgd, 12),
        ("momentum", Rule::Momentum { momentum: 0.9, nesterov: false, per: Per::Push }, 20),
        ("nesterov", Rule::Momentum { momentum: 0.9, nesterov: true, per: Per::Push }, 20),
    ];
    let mut group = criterion.benchmark_group("apply");
    group.sampling_mode(SamplingMode::Flat);
    for layout in layouts() {
        let count = layout.len();
        let (mut values, gradient) = (wave(count, 0.5), wave(count, 1.5));
        for (name, rule, bytes) in rules {
            let spec = OptimizerSpec {
                rule,
                rate: 1e-4,
                weight_decay: 1e-4,
                decay_per_clock: true,
                schedule: RateSchedule::CONSTANT,
            };
            let mut optimizer = Optimizer::new(spec, &layout, KeyRange::new(0, count), 1);
            group.throughput(Throughput::Bytes(bytes * count));
            group.bench_function(BenchmarkId::new(name, count), |bencher| {
                bencher.iter(|| {
                    optimizer.apply(black_box(&mut values), black_box(&gradient), &Step::fresh(0.5, 0))
                });
            });
        }
    }
    group.finish();
}

fn mean(criterion: &mut Criterion) {
    const PUSHES: usize = 4;
    let mut group = criterion.benchmark_group("mean of 4 pushes");
    group.sampling_mode(SamplingMode::Flat);
    for layout in layouts() {
        let count = layout.len();
        let pushes: Vec<Vec<f32>> = (0..PUSHES).map(|push| wave(count, push as f32)).collect();
        let mut parts = pushes.clone();
        group.throughput(Throughput::Bytes(4 * PUSHES as u64 * count));
        group.bench_function(BenchmarkId::new("pairwise", count), |bencher| {
            // The mean overwrites its parts, and parts that shrink with every round would end as subnormal numbers, which
            // are slow. So they are written anew, and that is left out of the time.
            bencher.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    for (part, push) in parts.iter_mut().zip(&pushes) {
                        part.copy_from_slice(push);
                    }
                    let begin = Instant::now();
                    weighted_mean(black_box(&mut parts), &[128; PUSHES]);
                    spent += begin.elapsed();
                }
                spent
            });
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    rules(&mut criterion);
    mean(&mut criterion);
    criterion.final_summary();
}
