//! One version of a shard as its readers get it: encoded once, when the first of them asks, and shared by all.

use std::sync::Arc;

use slackline_core::codec::{CodecKind, CodecSpec, Encoder, Encoding, Patch};
use slackline_core::ids::{KeyRange, ShardId, Version};
use slackline_core::layout::Layout;

use crate::buffers::Buffers;

/// Values as they go out: the words of a payload, or of a [`Patch`] of those that the reader has; shared without a copy.
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
    /// The last patch, with the versions that it leads from and to.
    patch: Option<((Version, Version), Snapshot)>,
}

impl Snapshots {
    /// For the keys of a shard. What is drawn at random follows from the shard's number.
    pub(super) fn new(kind: CodecKind, layout: &Layout, shard: ShardId, keys: KeyRange) -> Self {
        let spec = CodecSpec { kind, error_feedback: false };
        let encoder = || Box::new(Encoder::new(spec, layout, keys, u64::from(shard.0)));
        Self { encoder: (kind != CodecKind::F32).then(encoder), last: None, patch: None }
    }

    /// Whether values go out as they are.
    pub(super) const fn are_plain(&self) -> bool {
        self.encoder.is_none()
    }

    /// What leads from one version to another, which has these values and differs from it in these blocks.
    pub(super) fn patch(
        &mut self,
        way: (Version, Version),
        values: &[f32],
        blocks: &[usize],
        buffers: &Buffers,
    ) -> Snapshot {
        let snapshot = |words| Snapshot { encoding: Encoding::Blocks, words: Arc::new(words) };
        if blocks.is_empty() {
            return snapshot(Vec::new());
        }
        if let Some((_, patch)) = self.patch.as_ref().filter(|(known, _)| *known == way) {
            return patch.clone();
        }
        if let Some((_, former)) = self.patch.take() {
            buffers.put_shared(former.words);
        }
        let words = buffers.take(Patch::words_of(values.len(), blocks));
        let patch = snapshot(Patch::of(values, blocks, words).into_words());
        self.patch = Some((way, patch.clone()));
        patch
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
