//! One version of a shard as its readers get it: encoded once, when the first of them asks, and shared by all.

use std::sync::Arc;

use slackline_core::codec::{CodecKind, CodecSpec, Encoder, Encoding};
use slackline_core::ids::{KeyRange, ShardId, Version};
use slackline_core::layout::Layout;

use crate::buffers::Buffers;

/// Values as they go out: the words of a payload, shared without a copy.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// How they are written.
    pub encoding: Encoding,
    /// The payload.
    pub words: Arc<Vec<f32>>,
}

impl Snapshot {
    /// Plain values.
    #[must_use]
    pub const fn plain(values: Arc<Vec<f32>>) -> Self {
        Self { encoding: Encoding::F32, words: values }
    }
}

/// What makes snapshots of a shard's versions.
#[derive(Clone, Debug)]
pub(super) struct Snapshots {
    /// None where values go out as they are.
    encoder: Option<Box<Encoder>>,
    last: Option<(Version, Snapshot)>,
}

impl Snapshots {
    /// For the keys of a shard. What is drawn at random follows from the shard's number.
    pub(super) fn new(kind: CodecKind, layout: &Layout, shard: ShardId, keys: KeyRange) -> Self {
        let spec = CodecSpec { kind, error_feedback: false };
        let encoder = || Box::new(Encoder::new(spec, layout, keys, u64::from(shard.0)));
        Self { encoder: (kind != CodecKind::F32).then(encoder), last: None }
    }

    /// The snapshot of a version, which has these values.
    pub(super) fn of(&mut self, version: Version, values: Arc<Vec<f32>>, buffers: &Buffers) -> Snapshot {
        let Some(encoder) = &mut self.encoder else { return Snapshot::plain(values) };
        if let Some((_, snapshot)) = self.last.as_ref().filter(|(encoded, _)| *encoded == version) {
            return snapshot.clone();
        }
        if let Some((_, former)) = self.last.take() {
            buffers.put_shared(former.words);
        }
        let payload = encoder.encode(&values, None, buffers.take(values.len()));
        buffers.put_shared(values);
        let snapshot = Snapshot { encoding: payload.encoding(), words: Arc::new(payload.into_words()) };
        self.last = Some((version, snapshot.clone()));
        snapshot
    }
}
