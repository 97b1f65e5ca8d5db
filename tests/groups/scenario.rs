//! What a run is made from, drawn from its seed or written down by a test.

use std::time::Duration;

use slackline_core::collective::{Order, Topology};
use slackline_core::optimizer::{OptimizerSpec, Per, RateSchedule, Rule, Shape};

use crate::chance::Chance;

/// What links do, and how often something goes wrong; times in microseconds, chances in thousandths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// Longest usual way of a message.
    pub(crate) delay: u64,
    /// Chance of a long delay.
    pub(crate) spike: u64,
    /// The longest.
    pub(crate) spike_delay: u64,
    /// Chance that an attempt to connect to the coordinator fails.
    pub(crate) connect_fails: u64,
    /// Longest pause between two mishaps; zero for none.
    pub(crate) mishap_pause: u64,
    /// Whether processes die, freeze, come and go; otherwise only connections do.
    pub(crate) processes_fail: bool,
}

impl Weather {
    /// Quick links on which nothing happens.
    pub(crate) const CALM: Self = Self {
        delay: 3_000,
        spike: 0,
        spike_delay: 0,
        connect_fails: 0,
        mishap_pause: 0,
        processes_fail: false,
    };

    /// From 0 (calm) to 3 (everything).
    fn of_level(level: u64, chance: &mut Chance) -> Self {
        let delay = chance.between(500, 20_000);
        let rough = Self { delay, spike: chance.between(0, 20), spike_delay: 200_000, ..Self::CALM };
        let lossy = Self {
            connect_fails: chance.between(0, 300),
            mishap_pause: chance.between(200_000, 1_500_000),
            ..rough
        };
        match level {
            0 => Self::CALM,
            1 => rough,
            2 => lossy,
            _ => {
                let mishap_pause = chance.between(100_000, 800_000);
                Self { mishap_pause, processes_fail: true, ..lossy }
            }
        }
    }
}

/// A fault that the harness makes, to see that the laws find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tamper {
    /// A partial sum loses a bit on its way.
    FlipPart,
    /// A value that a member takes over from another loses a bit.
    FlipState,
    /// A partial sum is lost while its connection lives.
    LosePart,
    /// A member's batch is one that another has.
    SameBatch,
}

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) topology: Topology,
    pub(crate) order: Order,
    pub(crate) bucket_bytes: u64,
    pub(crate) elastic: bool,
    pub(crate) workers: u32,
    pub(crate) keys: u64,
    pub(crate) samples: u64,
    /// Samples of a unit.
    pub(crate) unit: u64,
    pub(crate) epochs: u64,
    pub(crate) evaluate_every_epochs: f64,
    pub(crate) optimizer: OptimizerSpec,
    /// Longest time of a gradient, in microseconds.
    pub(crate) compute: u64,
    pub(crate) weather: Weather,
    /// When a worker starts that reaches the coordinator and no other worker.
    pub(crate) unreachable_from: Option<Duration>,
    /// How long things go wrong.
    pub(crate) storm: Duration,
    pub(crate) lease: Duration,
    /// A unit whose gradient is not finite.
    pub(crate) bad_unit: Option<u64>,
    pub(crate) tamper: Option<Tamper>,
}

impl Scenario {
    /// The run of a seed.
    pub(crate) fn of_seed(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let workers = chance.between(1, 6) as u32;
        let level = chance.between(0, 3);
        let weather = Weather::of_level(level, &mut chance);
        let samples = chance.between(20, 200);
        let unit = chance.between(1, 5);
        // More than one block of keys, so that parts are not empty, in half of the runs.
        let most = if chance.happens(500) { 200 } else { 1600 };
        Self {
            seed,
            topology: topology(workers, &mut chance),
            order: chance.pick(&[Order::Backward, Order::Forward]).unwrap_or(Order::Backward),
            bucket_bytes: chance.pick(&[0, 64, 1024, 4096]).unwrap_or_default(),
            elastic: chance.happens(700),
            workers,
            keys: chance.between(20, most),
            samples,
            unit,
            epochs: chance.between(1, 3),
            evaluate_every_epochs: chance.pick(&[0.0, 0.5, 1.0]).unwrap_or_default(),
            optimizer: optimizer(&mut chance),
            compute: chance.between(2_000, 150_000),
            weather,
            unreachable_from: None,
            storm: Duration::from_millis(chance.between(500, 6_000)),
            lease: Duration::from_secs(1),
            bad_unit: chance.happens(60).then(|| chance.between(0, samples / unit)),
            tamper: None,
        }
    }

    /// A calm run of four in which a test sets what it is about.
    pub(crate) fn calm(seed: u64) -> Self {
        let of_seed = Self::of_seed(seed);
        let (workers, topology) = (4, Topology::HalvingDoubling);
        Self { topology, workers, weather: Weather::CALM, elastic: true, bad_unit: None, ..of_seed }
    }

    /// Samples of the whole run, repeats counted.
    pub(crate) const fn sample_total(&self) -> u64 {
        self.samples * self.epochs
    }

    /// Units of the whole run.
    pub(crate) const fn unit_count(&self) -> u64 {
        self.sample_total().div_ceil(self.unit)
    }

    /// Samples of a unit.
    pub(crate) fn samples_of(&self, unit: u64) -> u32 {
        let before = |units: u64| (units * self.unit).min(self.sample_total());
        (before(unit + 1) - before(unit)) as u32
    }
}

fn topology(workers: u32, chance: &mut Chance) -> Topology {
    let torus = match workers {
        4 => Topology::Torus { x: 2, y: 2 },
        6 => Topology::Torus { x: 3, y: 2 },
        _ => Topology::Torus { x: workers, y: 1 },
    };
    let group = if workers.is_multiple_of(2) { 2 } else { 1 };
    let all = [
        Topology::Ring,
        Topology::HalvingDoubling,
        Topology::Doubling,
        Topology::Hierarchical { group },
        torus,
        Topology::Auto,
    ];
    chance.pick(&all).unwrap_or(Topology::Ring)
}

fn optimizer(chance: &mut Chance) -> OptimizerSpec {
    let rule = if chance.happens(500) {
        Rule::Sgd
    } else {
        Rule::Momentum { momentum: 0.8, nesterov: chance.happens(500), per: Per::Push }
    };
    let schedule = RateSchedule { shape: Shape::Cosine, warmup: 0.1, final_share: 0.0 };
    OptimizerSpec { rule, rate: 0.05, weight_decay: 0.001, decay_per_clock: true, schedule }
}
