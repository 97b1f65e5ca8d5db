//! What a run is made from, drawn from its seed or written down by a test.

use std::time::Duration;

use slackline_core::config::{Durability, Steps};
use slackline_core::consistency::{DelaySpec, PolicySpec, Treatment};
use slackline_core::optimizer::{OptimizerSpec, Per, RateSchedule, Rule, Shape};
use slackline_core::schedule::Cut;

use super::chance::Chance;
use super::resume::Former;

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
    /// Whether workers' processes die, freeze, come and go; otherwise only connections do.
    pub(crate) processes_fail: bool,
    /// Whether servers die, freeze, lose their ways to each other, their disks' speed and room.
    pub(crate) servers_fail: bool,
    /// Longest usual time of a write to a disk.
    pub(crate) disk: u64,
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
        servers_fail: false,
        disk: 2_000,
    };

    /// From 0 (calm) to 4 (everything).
    pub(crate) fn of_level(level: u64, chance: &mut Chance) -> Self {
        let rough = Self {
            delay: chance.between(500, 30_000),
            transfer_delay: chance.between(500, 200_000),
            spike: chance.between(0, 20),
            spike_delay: 300_000,
            disk: chance.between(200, 30_000),
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
            3 => Self { spike_delay: chance.between(300_000, 3_000_000), processes_fail: true, ..lossy },
            _ => Self { processes_fail: chance.happens(500), servers_fail: true, ..lossy },
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
    pub(crate) delay: DelaySpec,
    pub(crate) optimizer: OptimizerSpec,
    pub(crate) workers: u32,
    /// Workers that the run needs to begin and to go on; none for all of them to begin and whoever is left to go on.
    pub(crate) min_workers: Option<u32>,
    pub(crate) servers: u32,
    pub(crate) shards_per_server: u32,
    pub(crate) keys: u64,
    pub(crate) samples: u64,
    pub(crate) batch: u64,
    /// Whether batches follow the workers' speeds.
    pub(crate) proportional: bool,
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
    /// Copies of each shard.
    pub(crate) replicas: u32,
    pub(crate) durability: Durability,
    pub(crate) steps: Steps,
    /// Iterations that values are pulled ahead.
    pub(crate) prefetch: u32,
    /// Whether parts of a gradient leave before it is whole.
    pub(crate) overlap: bool,
    /// A checkpoint after so many clocks.
    pub(crate) checkpoint_every: Option<u64>,
    /// Those who look on.
    pub(crate) observers: u32,
    /// The life before, from the last checkpoint of which the run goes on.
    pub(crate) former: Option<Former>,
    /// A server that crashes and comes back without its memory, and when.
    pub(crate) reboot: Option<(usize, Duration)>,
    /// A server that freezes, when, and for how long.
    pub(crate) freeze: Option<(usize, Duration, Duration)>,
}

impl Scenario {
    /// The run of a seed.
    pub(crate) fn of_seed(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let policy = policy(&mut chance);
        let level = chance.between(0, 5);
        let mut weather = Weather::of_level(level, &mut chance);
        let servers = chance.between(1, 4) as u32;
        let (replicas, durability) = copies(servers, &mut chance);
        // Where nothing else is left of a lost server there is a checkpoint mostly: early, and in a run that goes on for a while after it.
        let is_alone = durability == Durability::Memory && replicas == 1;
        let (often, most, times) = if is_alone { (900, 2, 4) } else { (600, 6, 1) };
        let checkpoint_every = chance.happens(often).then(|| chance.between(1, most));
        let is_forgetful = is_alone && checkpoint_every.is_none();
        // Without any of them a server that dies ends the run: once in a while is enough to see that it does so by name.
        weather.servers_fail &= !is_forgetful || chance.happens(150);
        let mut scenario = Self {
            seed,
            policy,
            delay: delay(&mut chance),
            optimizer: optimizer(&mut chance),
            workers: chance.between(1, 6) as u32,
            min_workers: None,
            servers,
            shards_per_server: chance.between(1, 2) as u32,
            keys: chance.between(20, 100),
            samples: times * chance.between(20, 120),
            batch: chance.between(2, 8),
            proportional: chance.happens(150),
            epochs: chance.between(1, 3),
            evaluate_every_epochs: chance.pick(&[0.0, 0.5, 1.0]).unwrap_or_default(),
            compute: chance.between(2_000, 200_000),
            weather,
            storm: Duration::from_millis(chance.between(500, 8_000)),
            lease: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(20),
            tamper: None,
            replicas,
            durability,
            steps: if chance.happens(500) { Steps::Whole } else { Steps::Parts },
            prefetch: 0,
            overlap: false,
            checkpoint_every,
            observers: 0,
            former: None,
            reboot: None,
            freeze: None,
        };
        let workers = u64::from(scenario.workers);
        // What adds up in a long run must not diverge either.
        scenario.optimizer.rate /= if is_alone { 10.0 } else { 1.0 };
        scenario.min_workers = chance.happens(300).then(|| chance.between(1, workers) as u32);
        scenario.observers = if chance.happens(300) { chance.between(1, 3) as u32 } else { 0 };
        scenario.former = chance.happens(150).then(|| Former {
            // As many as it has copies at least; mostly others than it has now.
            servers: chance.between(u64::from(replicas), 4) as u32,
            shards_per_server: chance.between(1, 2) as u32,
            every: chance.between(1, 4),
            checkpoints: chance.between(1, 3),
        });
        // One that drops all that is stale would drop every other gradient of a worker for its own sake.
        let drops = scenario.delay.drop_at == Some(1);
        let may_prefetch = scenario.policy.prefetch_max() > 0 && !drops;
        scenario.prefetch = u32::from(chance.happens(500) && may_prefetch);
        scenario.overlap = chance.happens(500) && scenario.steps == Steps::Parts;
        scenario
    }

    /// A calm run whose numbers a test sets.
    pub(crate) fn calm(seed: u64, policy: PolicySpec) -> Self {
        let of_seed = Self { proportional: false, delay: DelaySpec::default(), ..Self::of_seed(seed) };
        let mut optimizer = of_seed.optimizer;
        if let Rule::Momentum { per, .. } = &mut optimizer.rule {
            *per = Per::Push;
        }
        let (replicas, durability, steps) = (1, Durability::Memory, Steps::Parts);
        Self {
            policy,
            optimizer,
            weather: Weather::CALM,
            workers: 3,
            min_workers: None,
            servers: 2,
            replicas,
            durability,
            steps,
            prefetch: 0,
            overlap: false,
            checkpoint_every: None,
            observers: 0,
            former: None,
            ..of_seed
        }
    }

    /// How batches are cut.
    pub(crate) const fn cut(&self) -> Cut {
        if self.proportional {
            Cut::proportional(self.batch)
        } else {
            Cut { unit: self.batch, units: 1, proportional: false }
        }
    }

    /// Units of the whole run.
    pub(crate) const fn batch_count(&self) -> u64 {
        (self.samples * self.epochs).div_ceil(self.cut().unit)
    }
}

/// How many copies of a shard there are, and which of them count.
fn copies(servers: u32, chance: &mut Chance) -> (u32, Durability) {
    match chance.between(0, 9) {
        0..=4 if servers > 1 => (2, Durability::Replicated),
        5 if servers > 1 => (2, Durability::Memory),
        6 if servers > 1 => (2, Durability::Disk),
        7 | 8 => (1, Durability::Disk),
        _ => (1, Durability::Memory),
    }
}

fn policy(chance: &mut Chance) -> PolicySpec {
    let count = |chance: &mut Chance| chance.happens(700).then(|| chance.between(1, 4) as u32);
    match chance.between(0, 11) {
        0 | 1 => PolicySpec::Bsp,
        2..=4 => PolicySpec::Ssp { staleness: chance.between(0, 3) },
        5 => PolicySpec::Essp { staleness: chance.between(0, 3) },
        6 => {
            let low = chance.between(0, 2);
            PolicySpec::Dssp { low, high: low + chance.between(0, 3) }
        }
        7 => PolicySpec::Asp,
        8 | 9 => PolicySpec::Backup { late: chance.between(0, 2) as u32 },
        10 => PolicySpec::Quorum {
            count: count(chance),
            grace: Duration::from_micros(chance.pick(&[0, 20_000, 300_000]).unwrap_or_default()),
            holds: true,
        },
        _ => PolicySpec::Buffer { count: count(chance) },
    }
}

fn delay(chance: &mut Chance) -> DelaySpec {
    let treatment = if chance.happens(200) { Treatment::Inverse } else { Treatment::None };
    DelaySpec { treatment, drop_at: chance.happens(100).then(|| chance.between(1, 6)) }
}

fn optimizer(chance: &mut Chance) -> OptimizerSpec {
    let rule = match chance.between(0, 2) {
        0 => Rule::Sgd,
        1 => {
            let per = chance.pick(&[Per::Push, Per::Clock, Per::Ordered]).unwrap_or_default();
            Rule::Momentum { momentum: 0.9, nesterov: false, per }
        }
        _ => Rule::Momentum { momentum: 0.8, nesterov: true, per: Per::Push },
    };
    let schedule = match chance.between(0, 2) {
        0 => RateSchedule::CONSTANT,
        1 => RateSchedule { shape: Shape::Cosine, warmup: 0.1, final_share: 0.0 },
        _ => RateSchedule { shape: Shape::Linear, warmup: 0.0, final_share: 0.1 },
    };
    // What momentum by the clock adds up must not diverge: the laws need numbers.
    let rate =
        if matches!(rule, Rule::Momentum { per: Per::Clock | Per::Ordered, .. }) { 0.005 } else { 0.05 };
    OptimizerSpec { rule, rate, weight_decay: 0.001, decay_per_clock: true, schedule }
}
