//! What payloads come to where nothing is computed: those of normally distributed values.

use slackline_core::codec::{CodecSpec, Encoder};
use slackline_core::config::Config;
use slackline_core::ids::KeyRange;
use slackline_core::layout::Layout;
use slackline_core::stragglers::Draws;

/// The stream of the seed that the values are drawn from: those of epochs are small numbers, and so are those of stragglers.
const STREAM: u64 = 0x0073_697a_6573;

/// Bytes of each shard's payloads.
#[derive(Debug)]
pub(crate) struct Sizes {
    pub(crate) pushed: Vec<u64>,
    pub(crate) pulled: Vec<u64>,
}

impl Sizes {
    pub(crate) fn of(config: &Config) -> Self {
        let (layout, partition) = (config.layout(), config.partition());
        let pull = CodecSpec { kind: config.codec.pull, error_feedback: false };
        let sizes = |spec| {
            let mut bytes = vec![0; partition.shard_count() as usize];
            for (shard, keys) in partition.shards() {
                bytes[shard.0 as usize] = size(spec, &layout, keys, config.seed);
            }
            bytes
        };
        Self { pushed: sizes(config.codec.push), pulled: sizes(pull) }
    }
}

fn size(spec: CodecSpec, layout: &Layout, keys: KeyRange, seed: u64) -> u64 {
    if spec == CodecSpec::F32 {
        return 4 * keys.len;
    }
    let mut draws = Draws::at(seed, STREAM, keys.start);
    let values: Vec<f32> = (0..keys.len).map(|_| draws.normal() as f32).collect();
    let payload = Encoder::new(spec, layout, keys, seed).encode(&values, Some(&values), Vec::new());
    payload.bytes().len() as u64
}
