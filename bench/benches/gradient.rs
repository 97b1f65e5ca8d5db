//! Gradients of the built-in models: samples a second of one worker that waits for nobody.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use slackline_core::model::{DatasetSpec, ModelSpec};
use slackline_worker::model::{Batch, build};

const SAMPLES: usize = 128;

/// Pixels and labels that look like nothing, but are all different.
fn batch(input_count: usize, class_count: u32) -> Batch {
    let mut batch = Batch::with_capacity(SAMPLES, input_count);
    for sample in 0..SAMPLES {
        let row: Vec<f32> = (0..input_count).map(|pixel| ((sample * 7 + pixel) as f32).sin().abs()).collect();
        batch.push(&row, sample as u32 % class_count);
    }
    batch
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    let data = DatasetSpec::FashionMnist;
    let (input_count, class_count) = (data.input_count(), data.class_count());
    let batch = batch(input_count as usize, class_count as u32);
    let mut group = criterion.benchmark_group("gradient");
    group.throughput(Throughput::Elements(SAMPLES as u64));
    for spec in [ModelSpec::Mlp { widths: vec![512, 256] }, ModelSpec::Softmax] {
        let mut model = build(&spec, input_count, class_count, SAMPLES);
        let mut values = vec![0.0; model.layout().len() as usize];
        let mut gradient = values.clone();
        model.initialize(1, &mut values);
        group.bench_function(spec.name(), |bencher| {
            bencher.iter(|| model.gradient(black_box(&values), batch.examples(), black_box(&mut gradient)));
        });
    }
    group.finish();
    criterion.final_summary();
}
