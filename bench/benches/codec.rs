//! Codecs: what encoding and decoding cost, and whether that is less than the bytes that they save.
//!
//! One shard of two million values (eight megabytes, which is what `cluster.shard_bytes` makes of a large model). Decoding is by blocks
//! into one buffer, as an optimizer reads. The table that is printed first says for each codec how long both take beside what a link of 10
//! Gbit/s would need for the bytes that are not sent: below one, encoding is worth it there.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use slackline_core::codec::{CodecKind, CodecSpec, Encoder, Factors, Payload, Source};
use slackline_core::ids::KeyRange;
use slackline_core::layout::Layout;
use slackline_core::stragglers::Draws;

const ROWS: usize = 2000;
const COLS: usize = 1000;
const KEYS: usize = ROWS * COLS;
/// Samples of the batch for sufficient factors.
const SAMPLES: usize = 32;
/// Values that a reader takes at once.
const BLOCK: usize = 4096;
/// Bytes a second of the link.
const LINK: f64 = 10e9 / 8.0;
const ROUNDS: usize = 31;

/// A codec with its name, and whether it keeps what it loses.
fn codecs() -> Vec<(String, CodecSpec)> {
    let kinds = [
        ("f16", CodecKind::F16),
        ("bf16", CodecKind::Bf16 { stochastic: false }),
        ("bf16 stochastic", CodecKind::Bf16 { stochastic: true }),
        ("int8 256", CodecKind::Int8 { block: 256 }),
        ("one-bit", CodecKind::OneBit),
        ("top-k 1 %", CodecKind::TopK { share: 0.01 }),
        ("top-k 10 %", CodecKind::TopK { share: 0.1 }),
        ("relative-k 1 %", CodecKind::RelativeK { budget: (KEYS * 4 / 100) as u64, floor: 0.01 }),
        ("relative-k 10 %", CodecKind::RelativeK { budget: (KEYS * 4 / 10) as u64, floor: 0.01 }),
        ("random-k 1 %", CodecKind::RandomK { share: 0.01 }),
        ("qsgd 7", CodecKind::Qsgd { levels: 7 }),
        ("power-sgd 1", CodecKind::PowerSgd { rank: 1 }),
        ("power-sgd 4", CodecKind::PowerSgd { rank: 4 }),
        ("sufficient-factor 32", CodecKind::SufficientFactor),
        // Gradients are as large as the values here: what a threshold lets through is decided by how much larger single ones are.
        ("significance", CodecKind::Significance { threshold: 60.0 }),
        ("rows 5 %", CodecKind::Rows),
    ];
    let both = |(name, kind): (&str, CodecKind)| {
        let spec = |error_feedback| CodecSpec { kind, error_feedback };
        let bare = (name.to_owned(), spec(false));
        let kept = kind.is_lossy().then(|| (format!("{name}, kept"), spec(true)));
        std::iter::once(bare).chain(kept).collect::<Vec<_>>()
    };
    kinds.into_iter().flat_map(both).collect()
}

/// What is encoded.
struct Work {
    layout: Layout,
    gradients: [Vec<f32>; 2],
    values: Vec<f32>,
    activations: Vec<f32>,
    errors: Vec<f32>,
    rows: Vec<f32>,
}

impl Work {
    fn new() -> Self {
        let mut layout = Layout::new();
        layout.parameter("weight", &[ROWS as u64, COLS as u64], true);
        let normal = |stream: u64, count: usize| -> Vec<f32> {
            let mut draws = Draws::at(1, stream, 0);
            (0..count).map(|_| draws.normal() as f32 * 0.01).collect()
        };
        let gradient = normal(1, KEYS);
        let reversed = gradient.iter().rev().copied().collect();
        let rows =
            (0..KEYS).map(|key| if (key / COLS).is_multiple_of(20) { gradient[key] } else { 0.0 }).collect();
        Self {
            layout,
            gradients: [gradient, reversed],
            values: normal(2, KEYS),
            activations: normal(3, SAMPLES * ROWS),
            errors: normal(4, SAMPLES * COLS),
            rows,
        }
    }

    fn encoder(&self, spec: CodecSpec) -> Encoder {
        Encoder::new(spec, &self.layout, KeyRange::new(0, KEYS as u64), 1)
    }

    fn encode(&self, encoder: &mut Encoder, spec: CodecSpec, round: usize, words: Vec<f32>) -> Payload {
        let gradient = match spec.kind {
            CodecKind::Rows => &self.rows,
            _ => &self.gradients[round % 2],
        };
        if spec.kind == CodecKind::SufficientFactor {
            let (activations, errors) = (self.activations.as_slice(), self.errors.as_slice());
            let factors = [Factors { tensor: 0, samples: SAMPLES, activations, errors }];
            return encoder.encode_factors(gradient, &factors, words);
        }
        encoder.encode(gradient, Some(&self.values), words)
    }
}

fn decode(payload: &Payload, scratch: &mut [f32]) {
    let mut reader = payload.reader();
    while !black_box(reader.next(BLOCK, scratch)).is_empty() {}
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Prints what each codec costs and saves.
fn verdict(work: &Work) {
    let bytes = 4.0 * KEYS as f64;
    println!("| codec | bytes | encode, GB/s | decode, GB/s | time over time saved at 10 Gbit/s |");
    println!("|---|---|---|---|---|");
    for (name, spec) in codecs() {
        let mut encoder = work.encoder(spec);
        let mut scratch = vec![0.0; BLOCK];
        let (mut encoded, mut decoded, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let mut words = Vec::new();
        let mut share = 0.0;
        for round in 0..ROUNDS {
            let begin = Instant::now();
            let payload = work.encode(&mut encoder, spec, round, words);
            let between = Instant::now();
            decode(&payload, &mut scratch);
            let (encode_s, decode_s) = ((between - begin).as_secs_f64(), between.elapsed().as_secs_f64());
            let sent = payload.bytes().len() as f64;
            share = sent / bytes;
            words = payload.into_words();
            // The first touches memory that is not there yet.
            if round > 0 {
                encoded.push(encode_s);
                decoded.push(decode_s);
                ratios.push((encode_s + decode_s) / ((bytes - sent) / LINK));
            }
        }
        let rate = |times: &mut [f64]| bytes / median(times) / 1e9;
        let (encode, decode, middle) = (rate(&mut encoded), rate(&mut decoded), median(&mut ratios));
        let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
        println!(
            "| {name} | {:.1} % | {encode:.1} | {decode:.1} | {middle:.2} [{least:.2}..{most:.2}] |",
            share * 100.0
        );
    }
}

fn kernels(criterion: &mut Criterion, work: &Work) {
    for is_encode in [true, false] {
        let mut group = criterion.benchmark_group(if is_encode { "codec/encode" } else { "codec/decode" });
        group.sampling_mode(SamplingMode::Flat);
        group.throughput(Throughput::Bytes(4 * KEYS as u64));
        for (name, spec) in codecs().into_iter().filter(|(_, spec)| is_encode || !spec.error_feedback) {
            let mut encoder = work.encoder(spec);
            let mut words = Some(Vec::new());
            let mut round = 0;
            let mut encode = |words: Vec<f32>| {
                round += 1;
                work.encode(&mut encoder, spec, round, words)
            };
            let mut scratch = vec![0.0; BLOCK];
            let payload = encode(Vec::new());
            group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                if is_encode {
                    bencher.iter(|| words = Some(encode(words.take().unwrap_or_default()).into_words()));
                } else {
                    bencher.iter(|| decode(&payload, &mut scratch));
                }
            });
        }
        group.finish();
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500))
        .configure_from_args();
    let work = Work::new();
    verdict(&work);
    kernels(&mut criterion, &work);
    criterion.final_summary();
}
