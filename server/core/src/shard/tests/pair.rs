//! Two shards with one key for every push there can be: what is in the values says which pushes were taken in.

use super::*;

pub(super) const PUSHES: u64 = 96;

/// A worker's lifetime: which worker, which incarnation, and its first key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Life {
    pub(super) worker: WorkerId,
    pub(super) incarnation: Incarnation,
}

impl Life {
    pub(super) fn new(worker: usize, incarnation: usize) -> Self {
        Self { worker: WorkerId(worker as u32), incarnation: Incarnation(incarnation as u64) }
    }

    /// Its clock before its first push: lives do not get in each other's clocks, so nobody is late.
    pub(super) const fn first_clock(self) -> u64 {
        100 * self.incarnation.0
    }

    fn key(self, sequence: u64) -> usize {
        (self.incarnation.0 * PUSHES + sequence - 1) as usize
    }

    pub(super) fn push(self, sequence: u64, clock: u64, lives: usize) -> Push {
        let mut gradient = vec![0.0; lives * PUSHES as usize];
        gradient[self.key(sequence)] = 1.0;
        Push {
            session: SessionId(self.incarnation.0),
            worker: self.worker,
            incarnation: self.incarnation,
            sequence: Sequence(sequence),
            clock: Clock(clock),
            pulled: Version(0),
            batch: BatchIndex(clock),
            samples: 1,
            reply: 0,
            have: 0,
            gradient: Some(gradient.into()),
        }
    }

    pub(super) fn enter(self, clock: u64, standing: Standing) -> ShardEvent {
        ShardEvent::Enter {
            worker: self.worker,
            incarnation: self.incarnation,
            clock: Clock(clock),
            standing,
            batch_count: 100,
            answered: Sequence(0),
        }
    }
}

pub(super) fn wide(policy: PolicySpec, steps: Steps, lives: usize) -> ShardSettings {
    let len = lives as u64 * PUSHES;
    let mut layout = Layout::new();
    layout.parameter("weight", &[len], false);
    ShardSettings {
        id: ShardId(0),
        keys: KeyRange::new(0, len),
        layout: Arc::new(layout),
        policy,
        delay: DelaySpec::default(),
        optimizer: sgd(),
        workers: 1,
        batch: None,
        steps,
        guard: config::Guard::default(),
        pull: CodecKind::F32,
        buffers: Default::default(),
    }
}

/// Keys of the pushes that a state has taken in, in its values or on their way there.
pub(super) fn taken(state: &ShardState) -> BTreeSet<usize> {
    let arrays =
        state.arrays.iter().filter(|array| array.name == "values" || array.name.starts_with("collected"));
    let keys = arrays.flat_map(|array| array.values.iter().enumerate().filter(|(_, value)| **value != 0.0));
    keys.map(|(key, _)| key).collect()
}
