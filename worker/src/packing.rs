//! Gradients in the form that they are sent in, where that is not the plain one: an encoder a shard.

use std::collections::BTreeMap;
use std::ops::Range;

use slackline_core::codec::{CodecKind, CodecSpec, Encoder, Factors, Payload};
use slackline_core::config::Config;
use slackline_core::ids::{ShardId, WorkerId};
use slackline_core::layout::Layout;
use slackline_core::partition::Partition;
use slackline_net::SharedValues;

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

    /// The same of several.
    pub(crate) fn undo_all(&mut self, unused: &[Unused]) {
        for Unused { shard, payload, gradient } in unused {
            self.undo(*shard, payload, gradient.as_ref());
        }
    }

    /// A shard's part of a gradient is in no values: what of earlier ones was sent with it is kept again.
    pub fn undo(&mut self, shard: ShardId, payload: &Payload, gradient: &[f32]) {
        if let Some(encoder) = self.encoders.get_mut(&shard) {
            encoder.undo(payload, gradient);
        }
    }
}

/// A shard's part of a gradient that is in no values.
#[derive(Clone, Debug)]
pub(crate) struct Unused {
    pub(crate) shard: ShardId,
    /// What was sent, or would have been.
    pub(crate) payload: Payload,
    /// Its gradient.
    pub(crate) gradient: SharedValues,
}

/// Workers and shards draw each for itself: those that drew alike would leave out the same values.
const fn seed(run: u64, worker: WorkerId, shard: ShardId) -> u64 {
    let own = (worker.0 as u64) << 32 | shard.0 as u64;
    run ^ own.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use slackline_core::config::{Layer, Value};

    use super::*;

    // A dropped push had what was kept of pushes that were not dropped.
    #[test]
    fn what_a_dropped_push_had_of_earlier_ones_is_kept_again() {
        let keys = [
            ("data.dataset", "\"digits\""),
            ("model.kind", "\"softmax\""),
            ("train.epochs", "1"),
            ("train.batch", "2"),
            ("optimizer.kind", "\"sgd\""),
            ("optimizer.rate", "0.5"),
            ("codec.push", "\"top-k\""),
        ];
        let keys = keys.map(|(key, value)| (key.to_owned(), Value::from_literal(value).unwrap()));
        let layer = Layer { name: "test".to_owned(), values: keys.into_iter().collect() };
        let mut packer = Packer::of(&Config::resolve(&[layer]).unwrap().config).unwrap();
        let (worker, shard) = (WorkerId(0), ShardId(0));
        let keys = packer.keys(shard).len();
        let gradient = |scale: f32| (0..keys).map(|key| scale * (key as f32 + 1.0)).collect::<Vec<_>>();
        let kept = |packer: &Packer| packer.encoders[&shard].kept().to_vec();
        let pack = |packer: &mut Packer, gradient: &[f32]| {
            packer.pack(worker, shard, Part { gradient, values: None, factors: &[] }, Vec::new())
        };
        pack(&mut packer, &gradient(1.0));
        let before = kept(&packer);
        let dropped = gradient(-2.0);
        let payload = pack(&mut packer, &dropped);
        assert_ne!(kept(&packer), before);
        let unused = |shard| Unused { shard, payload: payload.clone(), gradient: dropped.clone().into() };
        packer.undo_all(&[unused(ShardId(1))]);
        assert_ne!(kept(&packer), before, "another shard's is not its own");
        packer.undo_all(&[unused(shard)]);
        assert_eq!(kept(&packer), before, "whole numbers are added without rounding");
    }
}
