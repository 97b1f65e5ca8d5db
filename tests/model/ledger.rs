//! A model in which each value counts how often one push was applied: the values that a shard serves then say by themselves what is in
//! them.

use std::fmt::{self, Write};
use std::hash::Hasher;
use std::sync::Arc;

use slackline_core::codec::CodecKind;
use slackline_core::config::{Guard, Steps};
use slackline_core::consistency::{DelaySpec, PolicySpec, Standing};
use slackline_core::ids::{
    BatchIndex, Clock, Incarnation, KeyRange, Sequence, SessionId, ShardId, Version, WorkerId,
};
use slackline_core::layout::Layout;
use slackline_core::optimizer::{OptimizerSpec, RateSchedule, Rule};
use slackline_server_core::shard::Push;
use slackline_server_core::{ShardEvent, ShardSettings};

/// The staleness bound of all models.
pub(crate) const BOUND: u64 = 2;

/// A run of so many workers with so many pushes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ledger {
    pub(crate) workers: u32,
    /// Pushes of the first worker.
    pub(crate) pushes: u64,
    /// Pushes of each of the others, no more than those of the first.
    pub(crate) others: u64,
}

impl Ledger {
    pub(crate) const fn keys(self) -> u64 {
        self.workers as u64 * self.pushes
    }

    /// How many pushes a worker makes.
    pub(crate) const fn pushes_of(self, worker: usize) -> u64 {
        if worker == 0 { self.pushes } else { self.others }
    }

    /// The value that counts a worker's push, the first of which is number 1.
    pub(crate) const fn key(self, worker: u32, sequence: u64) -> usize {
        (worker as u64 * self.pushes + sequence - 1) as usize
    }

    /// What one shard of the run is made from.
    pub(crate) fn shard(self, shard: u32, steps: Steps) -> ShardSettings {
        let mut layout = Layout::new();
        layout.parameter("ledger", &[self.keys()], false);
        ShardSettings {
            id: ShardId(shard),
            keys: KeyRange::new(0, self.keys()),
            layout: Arc::new(layout),
            policy: PolicySpec::Ssp { staleness: BOUND },
            delay: DelaySpec::default(),
            optimizer: OptimizerSpec {
                rule: Rule::Sgd,
                rate: 1.0,
                weight_decay: 0.0,
                decay_per_clock: false,
                schedule: RateSchedule::CONSTANT,
            },
            workers: 1,
            batch: None,
            steps,
            guard: Guard::default(),
            pull: CodecKind::F32,
            buffers: Default::default(),
        }
    }

    /// The events with which the shard's run begins.
    pub(crate) fn opening(self) -> Vec<ShardEvent> {
        let enter = |worker| ShardEvent::Enter {
            worker: WorkerId(worker),
            incarnation: incarnation(worker),
            clock: Clock(0),
            standing: Standing::Active,
            batch_count: self.keys(),
            answered: Sequence(0),
        };
        let mut events: Vec<ShardEvent> = (0..self.workers).map(enter).collect();
        events.push(ShardEvent::Start);
        events.push(ShardEvent::Initialize(vec![0.0; self.keys() as usize]));
        events
    }

    /// A push that adds one to the value that counts it.
    pub(crate) fn push(self, session: SessionId, worker: u32, sequence: u64) -> ShardEvent {
        let mut gradient = vec![0.0; self.keys() as usize];
        gradient[self.key(worker, sequence)] = -1.0;
        ShardEvent::Push(Push {
            session,
            worker: WorkerId(worker),
            incarnation: incarnation(worker),
            sequence: Sequence(sequence),
            clock: Clock(sequence - 1),
            pulled: Version(0),
            batch: BatchIndex(0),
            samples: 1,
            reply: 0,
            have: 0,
            gradient: Some(gradient.into()),
        })
    }

    /// Which pushes are in some values, as bits; or what is wrong with them.
    pub(crate) fn read(self, values: &[f32]) -> Result<u64, String> {
        let mut bits = 0;
        for (key, value) in values.iter().enumerate() {
            match *value {
                0.0 => {}
                1.0 => bits |= 1 << key,
                other => return Err(format!("the push that value {key} counts is in it {other} times")),
            }
        }
        Ok(bits)
    }
}

/// The only incarnation of a worker.
pub(crate) const fn incarnation(worker: u32) -> Incarnation {
    Incarnation(worker as u64 + 1)
}

/// Takes what is printed into a hash: the machines of the servers are told apart by all that their text says.
pub(crate) struct Print<'a, H>(pub(crate) &'a mut H);

impl<H: Hasher> Write for Print<'_, H> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
