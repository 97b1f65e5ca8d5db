//! Gradients in the form that they are sent in, where that is not the plain one: an encoder a shard.

use std::collections::BTreeMap;
use std::ops::Range;

use slackline_core::codec::{CodecKind, CodecSpec, Encoder, Factors, Payload};
use slackline_core::config::Config;
use slackline_core::ids::{ShardId, WorkerId};
use slackline_core::layout::Layout;
use slackline_core::partition::Partition;

/// One shard's part of a gradient.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The gradient, a value a key.
    pub gradient: &'a [f32],
    /// The values that it was computed on, where they are known.
    pub values: Option<&'a [f32]>,
    /// What the gradients of whole matrices were made of, where that is known.
    pub factors: &'a [Factors<'a>],
}

/// The encoders of one worker. They keep what was not sent for as long as the process lives, whatever becomes of its sessions.
#[derive(Clone, Debug)]
pub struct Packer {
    spec: CodecSpec,
    layout: Layout,
    partition: Partition,
    seed: u64,
    encoders: BTreeMap<ShardId, Encoder>,
}

impl Packer {
    /// Which keys of a flat gradient are a shard's.
    #[must_use]
    pub fn keys(&self, shard: ShardId) -> Range<usize> {
        self.partition.range(shard).as_indices()
    }

    /// None where gradients are sent as they are.
    #[must_use]
    pub fn of(config: &Config) -> Option<Self> {
        let (spec, seed) = (config.codec.push, config.seed);
        let packer = || Self {
            spec,
            layout: config.layout(),
            partition: config.partition(),
            seed,
            encoders: BTreeMap::new(),
        };
        (spec.kind != CodecKind::F32).then(packer)
    }

    /// Whether it looks at what gradients are made of.
    #[must_use]
    pub fn takes_factors(&self) -> bool {
        self.spec.kind == CodecKind::SufficientFactor
    }

    /// Writes a shard's part of a gradient in a buffer that is used again.
    pub fn pack(
        &mut self,
        worker: WorkerId,
        shard: ShardId,
        Part { gradient, values, factors }: Part<'_>,
        words: Vec<f32>,
    ) -> Payload {
        let keys = self.partition.range(shard);
        let seed = seed(self.seed, worker, shard);
        let encoder = self.encoders.entry(shard);
        let encoder = encoder.or_insert_with(|| Encoder::new(self.spec, &self.layout, keys, seed));
        match self.spec.kind {
            CodecKind::SufficientFactor => encoder.encode_factors(gradient, factors, words),
            _ => encoder.encode(gradient, values, words),
        }
    }
}

/// Workers and shards draw each for itself: those that drew alike would leave out the same values.
const fn seed(run: u64, worker: WorkerId, shard: ShardId) -> u64 {
    let own = (worker.0 as u64) << 32 | shard.0 as u64;
    run ^ own.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
