//! What a run is made from, drawn from its seed or written down by a test.

use std::time::Duration;

use slackline_core::consistency::PolicySpec;
use slackline_core::optimizer::{OptimizerSpec, RateSchedule, Rule, Shape};

use super::chance::Chance;

/// What links do, and how often something goes wrong; times in microseconds, chances in thousandths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// Longest usual way of a control message.
    pub(crate) delay: u64,
    /// Longest usual way of a transfer: it can overtake and be overtaken.
    pub(crate) transfer_delay: u64,
    /// Chance of a long delay.
    pub(crate) spike: u64,
    /// The longest.
    pub(crate) spike_delay: u64,
    /// Chance that an attempt to connect fails.
    pub(crate) connect_fails: u64,
    /// Chance that a push arrives twice.
    pub(crate) duplicate: u64,
    /// Longest pause between two mishaps; zero for none.
    pub(crate) mishap_pause: u64,
    /// Whether processes die, freeze, come and go; otherwise only connections do.
    pub(crate) processes_fail: bool,
}

impl Weather {
    /// Quick links on which nothing happens.
    pub(crate) const CALM: Self = Self {
        delay: 3_000,
        transfer_delay: 8_000,
        spike: 0,
        spike_delay: 0,
        connect_fails: 0,
        duplicate: 0,
        mishap_pause: 0,
        processes_fail: false,
    };

    /// From 0 (calm) to 3 (everything).
    pub(crate) fn of_level(level: u64, chance: &mut Chance) -> Self {
        let rough = Self {
            delay: chance.between(500, 30_000),
            transfer_delay: chance.between(500, 200_000),
            spike: chance.between(0, 20),
            spike_delay: 300_000,
            ..Self::CALM
        };
        let lossy = Self {
            connect_fails: chance.between(0, 400),
            duplicate: chance.between(0, 200),
            mishap_pause: chance.between(50_000, 1_500_000),
            ..rough
        };
        match level {
            0 => Self::CALM,
            1 => rough,
            2 => lossy,
            _ => Self { spike_delay: chance.between(300_000, 3_000_000), processes_fail: true, ..lossy },
        }
    }
}

/// A fault that the harness makes, to see that the invariants find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tamper {
    /// A repeated push gets a number of its own, as if nobody looked for repeats.
    Renumber,
    /// A pull claims to be of clock 0, as if there was no gate.
    ServeEarly,
    /// A gradient loses a bit on its way.
    FlipBit,
    /// An answer to a push is lost while its connection lives.
    LoseAnswer,
}

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) policy: PolicySpec,
    pub(crate) optimizer: OptimizerSpec,
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    pub(crate) shards_per_server: u32,
    pub(crate) keys: u64,
    pub(crate) samples: u64,
    pub(crate) batch: u64,
    pub(crate) epochs: u64,
    pub(crate) evaluate_every_epochs: f64,
    /// Longest time of a gradient, in microseconds.
    pub(crate) compute: u64,
    pub(crate) weather: Weather,
    /// How long things go wrong.
    pub(crate) storm: Duration,
    pub(crate) lease: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) tamper: Option<Tamper>,
    /// A server that crashes and comes back without its state, and when.
    pub(crate) reboot: Option<(usize, Duration)>,
    /// Whether a worker that knows nothing of it joins then.
    pub(crate) joins_after_reboot: bool,
}

impl Scenario {
    /// The run of a seed.
    pub(crate) fn of_seed(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let policy = match chance.between(0, 5) {
            0 => PolicySpec::Bsp,
            1..=4 => PolicySpec::Ssp { staleness: chance.between(0, 3) },
            _ => PolicySpec::Asp,
        };
        let policy = if chance.happens(200) { PolicySpec::Bsp } else { policy };
        let level = chance.between(0, 3);
        let weather = Weather::of_level(level, &mut chance);
        Self {
            seed,
            policy,
            optimizer: optimizer(&mut chance),
            workers: chance.between(1, 6) as u32,
            servers: chance.between(1, 3) as u32,
            shards_per_server: chance.between(1, 2) as u32,
            keys: chance.between(20, 100),
            samples: chance.between(20, 120),
            batch: chance.between(2, 8),
            epochs: chance.between(1, 3),
            evaluate_every_epochs: chance.pick(&[0.0, 0.5, 1.0]).unwrap_or_default(),
            compute: chance.between(2_000, 200_000),
            weather,
            storm: Duration::from_millis(chance.between(500, 8_000)),
            lease: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(20),
            tamper: None,
            reboot: None,
            joins_after_reboot: false,
        }
    }

    /// A calm run whose numbers a test sets.
    pub(crate) fn calm(seed: u64, policy: PolicySpec) -> Self {
        Self { policy, weather: Weather::CALM, workers: 3, servers: 2, ..Self::of_seed(seed) }
    }

    /// Batches of the whole run.
    pub(crate) const fn batch_count(&self) -> u64 {
        (self.samples * self.epochs).div_ceil(self.batch)
    }
}

fn optimizer(chance: &mut Chance) -> OptimizerSpec {
    let rule = match chance.between(0, 2) {
        0 => Rule::Sgd,
        1 => Rule::Momentum { momentum: 0.9, nesterov: false },
        _ => Rule::Momentum { momentum: 0.8, nesterov: true },
    };
    let schedule = match chance.between(0, 2) {
        0 => RateSchedule::CONSTANT,
        1 => RateSchedule { shape: Shape::Cosine, warmup: 0.1, final_share: 0.0 },
        _ => RateSchedule { shape: Shape::Linear, warmup: 0.0, final_share: 0.1 },
    };
    OptimizerSpec { rule, rate: 0.05, weight_decay: 0.001, schedule }
}
