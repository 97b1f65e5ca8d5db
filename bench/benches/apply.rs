//! A shard's work for every push, held against what the memory of this machine gives at the same time: steps of the optimizer, the
//! mean of four pushes, the scan for values that are not finite.
//!
//!     cargo bench -p slackline-bench --bench apply
//!
//! The *roof* of a figure is the simplest loop that reads and writes the same arrays (y += k x, z = y + k x and the like), timed in turns
//! with it. Bytes are those that must be read or written once: 12 a value for sgd, 20 with a velocity, 4 for each gradient. A model beyond
//! 8 MiB is cut into shards of that size, which take their turns, so that nothing of one is left in the caches when it is its turn again.
//! On two processors each has as much to do as one alone.

use std::hint::black_box;
use std::ops::Range;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Instant;

use slackline_bench::Spread;
use slackline_core::aggregate::{Mean, first_not_finite};
use slackline_core::codec::{Encoding, Payload, PlainSource};
use slackline_core::ids::KeyRange;
use slackline_core::layout::Layout;
use slackline_core::optimizer::{Optimizer, OptimizerSpec, Per, RateSchedule, Rule, Step, Target};
use slackline_core::wide::wide;

/// Gradients of one mean.
const PUSHES: usize = 4;

/// Values of a shard at most: 8 MiB.
const SHARD: usize = 2 << 20;

/// Models, in KiB.
const MODELS: [usize; 5] = [64, 1 << 10, 8 << 10, 40 << 10, 400 << 10];

/// Values that one figure is made of, at least.
const VALUES: usize = 100 << 20;

const STEP: Step = Step::fresh(0.5, 0);

/// Everything that one processor works on.
struct Arrays {
    shards: Range<usize>,
    values: Vec<Vec<f32>>,
    velocities: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
    halves: Vec<Payload>,
    /// Where the next values go that are not written in place.
    spare: Vec<f32>,
    sgd: Vec<Optimizer>,
    momentum: Vec<Optimizer>,
}

/// Values that are neither zero nor alike.
fn wave(count: usize, phase: usize) -> Vec<f32> {
    (0..count).map(|index| (phase as f32 + (index % 1000) as f32).sin() * 0.1).collect()
}

fn optimizer(rule: Rule, len: usize) -> Optimizer {
    let mut layout = Layout::new();
    layout.parameter("weight", &[len as u64], true);
    let schedule = RateSchedule::CONSTANT;
    let spec = OptimizerSpec { rule, rate: 1e-4, weight_decay: 1e-4, decay_per_clock: true, schedule };
    Optimizer::new(spec, &layout, KeyRange::new(0, len as u64), 1)
}

impl Arrays {
    fn new(kib: usize) -> Self {
        let len = (kib << 8).min(SHARD);
        let shards = 0..(kib << 8).div_ceil(SHARD);
        let waves = |count: Range<usize>| count.map(|phase| wave(len, phase)).collect::<Vec<_>>();
        let half = |values: &Vec<f32>| {
            let bits = |pair: &[f32], of: usize| pair[of].to_bits() >> 16;
            let words = values.chunks(2).map(|pair| f32::from_bits(bits(pair, 0) | bits(pair, 1) << 16));
            Payload::new(Encoding::Bf16, len, words.collect()).ok()
        };
        let momentum = Rule::Momentum { momentum: 0.9, nesterov: false, per: Per::Push };
        let values = waves(shards.clone());
        Self {
            halves: values.iter().filter_map(half).collect(),
            velocities: waves(shards.clone()),
            gradients: waves(0..shards.len().max(PUSHES)),
            spare: wave(len, 0),
            sgd: shards.clone().map(|_| optimizer(Rule::Sgd, len)).collect(),
            momentum: shards.clone().map(|_| optimizer(momentum, len)).collect(),
            values,
            shards,
        }
    }

    /// The gradients of a mean: other ones for each shard, as far apart as there are.
    fn pushes(&self, shard: usize) -> [&[f32]; PUSHES] {
        let count = self.gradients.len();
        std::array::from_fn(|push| self.gradients[(shard + push * count / PUSHES) % count].as_slice())
    }
}

/// One thing to be timed, for one shard.
type Work = fn(&mut Arrays, usize);

/// What is measured, beside its roof.
struct Figure {
    name: &'static str,
    bytes: usize,
    roof: Work,
    work: Work,
}

/// Swaps the values that were made for those of before.
fn swap(arrays: &mut Arrays, shard: usize) {
    std::mem::swap(&mut arrays.spare, &mut arrays.values[shard]);
}

mod roofs {
    use super::*;

    pub(super) fn read(arrays: &mut Arrays, shard: usize) {
        let values = &arrays.gradients[shard];
        black_box(wide(|| values.iter().fold(0, |bits, value| bits | value.to_bits())));
    }

    pub(super) fn in_place(arrays: &mut Arrays, shard: usize) {
        let (k, x) = (black_box(1e-6), &arrays.gradients[shard]);
        let y = &mut arrays.values[shard];
        wide(|| y.iter_mut().zip(x).for_each(|(y, x)| *y += k * x));
    }

    pub(super) fn beside(arrays: &mut Arrays, shard: usize) {
        let (k, x, y) = (black_box(1e-6), &arrays.gradients[shard], &arrays.values[shard]);
        let z = &mut arrays.spare;
        wide(|| z.iter_mut().zip(y).zip(x).for_each(|((z, y), x)| *z = y + k * x));
        swap(arrays, shard);
    }

    pub(super) fn velocity(arrays: &mut Arrays, shard: usize) {
        let (k, x) = (black_box(1e-6), &arrays.gradients[shard]);
        let (y, v) = (&mut arrays.values[shard], &mut arrays.velocities[shard]);
        wide(|| {
            for ((y, v), x) in y.iter_mut().zip(v).zip(x) {
                *v += k * x;
                *y += *v;
            }
        });
    }

    pub(super) fn velocity_beside(arrays: &mut Arrays, shard: usize) {
        let (k, x, y) = (black_box(1e-6), &arrays.gradients[shard], &arrays.values[shard]);
        let (z, v) = (&mut arrays.spare, &mut arrays.velocities[shard]);
        wide(|| {
            for (((z, y), v), x) in z.iter_mut().zip(y).zip(v).zip(x) {
                *v += k * x;
                *z = y + *v;
            }
        });
        swap(arrays, shard);
    }

    pub(super) fn halves(arrays: &mut Arrays, shard: usize) {
        let k = black_box(1e-6);
        let (x, _) = arrays.halves[shard].bytes().as_chunks::<2>();
        let y = &mut arrays.values[shard];
        wide(|| {
            for (y, x) in y.iter_mut().zip(x) {
                *y += k * f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16);
            }
        });
    }

    pub(super) fn sum(arrays: &mut Arrays, shard: usize) {
        let k = black_box(1e-6);
        let mut y = std::mem::take(&mut arrays.values[shard]);
        let [a, b, c, d] = arrays.pushes(shard);
        wide(|| {
            for ((((y, a), b), c), d) in y.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                *y += k * ((a + b) + (c + d));
            }
        });
        arrays.values[shard] = y;
    }
}

mod steps {
    use super::*;

    pub(super) fn scan(arrays: &mut Arrays, shard: usize) {
        black_box(first_not_finite(&arrays.gradients[shard]));
    }

    fn advance(optimizer: &mut Optimizer, target: Target<'_>, gradient: &[f32]) {
        let mut moved = 0;
        optimizer.advance(target, &mut PlainSource::from(gradient), &STEP, &mut |_| moved += 1);
        black_box(moved);
    }

    pub(super) fn in_place(arrays: &mut Arrays, shard: usize) {
        let target = Target::InPlace(&mut arrays.values[shard]);
        advance(&mut arrays.sgd[shard], target, &arrays.gradients[shard]);
    }

    pub(super) fn beside(arrays: &mut Arrays, shard: usize) {
        let target = Target::Beside { old: &arrays.values[shard], new: &mut arrays.spare };
        advance(&mut arrays.sgd[shard], target, &arrays.gradients[shard]);
        swap(arrays, shard);
    }

    pub(super) fn velocity(arrays: &mut Arrays, shard: usize) {
        let target = Target::InPlace(&mut arrays.values[shard]);
        advance(&mut arrays.momentum[shard], target, &arrays.gradients[shard]);
    }

    pub(super) fn velocity_beside(arrays: &mut Arrays, shard: usize) {
        let target = Target::Beside { old: &arrays.values[shard], new: &mut arrays.spare };
        advance(&mut arrays.momentum[shard], target, &arrays.gradients[shard]);
        swap(arrays, shard);
    }

    pub(super) fn halves(arrays: &mut Arrays, shard: usize) {
        let target = Target::InPlace(&mut arrays.values[shard]);
        arrays.sgd[shard].advance(target, &mut arrays.halves[shard].reader(), &STEP, &mut |_| {});
    }

    pub(super) fn mean(arrays: &mut Arrays, shard: usize) {
        // Not borrowed together with the gradients.
        let mut values = std::mem::take(&mut arrays.values[shard]);
        let mut sgd = std::mem::take(&mut arrays.sgd);
        let pushes = arrays.pushes(shard).map(|push| (PlainSource::from(push), 1.0, 128));
        let mut mean = Mean::new(pushes);
        sgd[shard].advance(Target::InPlace(&mut values), &mut mean, &STEP, &mut |_| {});
        (arrays.sgd, arrays.values[shard]) = (sgd, values);
    }
}

const FIGURES: [Figure; 7] = [
    Figure { name: "scan", bytes: 4, roof: roofs::read, work: steps::scan },
    Figure { name: "sgd, in place", bytes: 12, roof: roofs::in_place, work: steps::in_place },
    Figure { name: "sgd, beside", bytes: 12, roof: roofs::beside, work: steps::beside },
    Figure { name: "sgd, in place, of bf16", bytes: 10, roof: roofs::halves, work: steps::halves },
    Figure { name: "momentum, in place", bytes: 20, roof: roofs::velocity, work: steps::velocity },
    Figure {
        name: "momentum, beside",
        bytes: 20,
        roof: roofs::velocity_beside,
        work: steps::velocity_beside,
    },
    Figure { name: "mean of 4, sgd in place", bytes: 24, roof: roofs::sum, work: steps::mean },
];

/// Seconds of each repetition of a figure, its roof's and its own: those of the slowest processor.
type Times = Vec<[f64; 2]>;

/// Runs all figures, on so many processors at once.
fn run(kib: usize, threads: usize, repeats: usize) -> Vec<Times> {
    // What is too short for a clock is done several times over.
    let rounds = 4096_usize.div_ceil(kib);
    let all: Mutex<Vec<Times>> = Mutex::new(vec![vec![[0.0; 2]; repeats]; FIGURES.len()]);
    let barrier = Barrier::new(threads);
    let work = || {
        let mut arrays = Arrays::new(kib);
        for (place, figure) in FIGURES.iter().enumerate() {
            // The first time warms up.
            for repeat in 0..=repeats {
                for (which, work) in [figure.roof, figure.work].into_iter().enumerate() {
                    barrier.wait();
                    let begin = Instant::now();
                    for _ in 0..rounds {
                        arrays.shards.clone().for_each(|shard| work(&mut arrays, shard));
                    }
                    let spent = begin.elapsed().as_secs_f64() / rounds as f64;
                    if let Some(repeat) = repeat.checked_sub(1) {
                        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                        let slowest = &mut all[place][repeat][which];
                        *slowest = slowest.max(spent);
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn spread(figures: impl Iterator<Item = f64>) -> Spread {
    Spread::of(figures).unwrap_or(Spread { median: f64::NAN, min: f64::NAN, max: f64::NAN, p99: f64::NAN })
}

fn main() {
    let is_test = std::env::args().any(|argument| argument == "--test");
    println!(
        "| model | what | roof, GB/s a processor | GB/s a processor | share of the roof | two at once: GB/s together | share of the roof | of one, times | roof, times |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for kib in if is_test { &MODELS[..1] } else { &MODELS[..] } {
        let values = kib << 8;
        let repeats = if is_test { 1 } else { (VALUES / values).clamp(5, 200) };
        let [alone, together] = [1, 2].map(|threads| run(*kib, threads, repeats));
        for ((figure, alone), together) in FIGURES.iter().zip(&alone).zip(&together) {
            let gigabytes = (figure.bytes * values) as f64 / 1e9;
            let rate =
                |times: &Times, which: usize| gigabytes / spread(times.iter().map(|time| time[which])).median;
            let share = |times: &Times| {
                let Spread { median, min, max, .. } =
                    spread(times.iter().map(|[roof, own]| 100.0 * roof / own));
                format!("{median:.0} % [{min:.0}..{max:.0}]")
            };
            println!(
                "| {kib} KiB | {} | {:.1} | {:.1} | {} | {:.1} | {} | {:.2} | {:.2} |",
                figure.name,
                rate(alone, 0),
                rate(alone, 1),
                share(alone),
                2.0 * rate(together, 1),
                share(together),
                2.0 * rate(together, 1) / rate(alone, 1),
                2.0 * rate(together, 0) / rate(alone, 0),
            );
        }
    }
}
