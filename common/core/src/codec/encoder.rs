//! What is done with a gradient before it leaves: what was kept is added, the sum is encoded, and what that loses is kept.

use bytemuck::cast_slice_mut;

use super::encoding::Encoding;
use super::factors::Factors;
use super::payload::Payload;
use super::source::Source;
use super::spec::{CodecKind, CodecSpec};
use super::{bf16, f16};
use crate::ids::KeyRange;
use crate::layout::Layout;

/// Keys that are worked on at once: so many stay in the first cache, whatever is done to them.
const BLOCK: usize = 2048;

/// Encodes the gradients of one range of keys, one after another.
///
/// With error feedback, `kept + gradient` is rounded to f32 once, as any sum of gradients is; what is sent and what is kept afterwards
/// make up that sum again.
#[derive(Clone, Debug)]
pub struct Encoder {
    spec: CodecSpec,
    keys: usize,
    /// What has not been sent; empty where nothing is kept.
    kept: Vec<f32>,
}

impl Encoder {
    /// An encoder for the keys of a range; everything random follows from `seed`.
    #[must_use]
    pub fn new(spec: CodecSpec, _layout: &Layout, keys: KeyRange, _seed: u64) -> Self {
        let keys = keys.len as usize;
        Self { spec, keys, kept: vec![0.0; if spec.keeps() { keys } else { 0 }] }
    }

    /// What has not been sent, a value a key; empty where nothing is kept.
    #[must_use]
    pub fn kept(&self) -> &[f32] {
        &self.kept
    }

    /// Encodes the next gradient, of as many values as there are keys. `values` are the parameters, for codecs that look at them;
    /// `words` is a buffer to use again.
    ///
    /// Where a sum with what was kept is not finite, the gradient itself is sent in its place and what was kept stays; then the whole
    /// payload is plain, so that whoever gets it can say which key it was.
    ///
    /// # Panics
    /// The gradient has another length than the range: a mistake of the caller's.
    #[must_use]
    pub fn encode(&mut self, gradient: &[f32], _values: Option<&[f32]>, words: Vec<f32>) -> Payload {
        assert_eq!(gradient.len(), self.keys, "a gradient has a value a key");
        match self.spec.kind {
            CodecKind::F16 => self.halves(gradient, words, Encoding::F16, f16::TOO_LARGE),
            CodecKind::Bf16 { .. } => self.halves(gradient, words, Encoding::Bf16, bf16::TOO_LARGE),
            _ => self.plain(gradient, words),
        }
    }

    /// The same with what the gradients of matrices are made of; only [`CodecKind::SufficientFactor`] uses it. A matrix without factors,
    /// or whose factors take more room than it does, is sent as it is.
    ///
    /// # Panics
    /// The gradient or a factor has another length than its keys: a mistake of the caller's.
    #[must_use]
    pub fn encode_factors(&mut self, gradient: &[f32], _factors: &[Factors<'_>], words: Vec<f32>) -> Payload {
        self.encode(gradient, None, words)
    }

    fn halves(&mut self, gradient: &[f32], mut words: Vec<f32>, encoding: Encoding, limit: u32) -> Payload {
        if !all_below(gradient, &self.kept, limit) {
            return self.plain(gradient, words);
        }
        words.resize(self.keys.div_ceil(2), 0.0);
        let halves: &mut [u16] = cast_slice_mut(&mut words);
        if let Some(padding) = halves.get_mut(self.keys) {
            *padding = 0;
        }
        let mut scratch = [0.0; BLOCK];
        for (index, gradient) in gradient.chunks(BLOCK).enumerate() {
            let at = index * BLOCK;
            let sum = &mut scratch[..gradient.len()];
            sum.copy_from_slice(gradient);
            if !self.kept.is_empty() {
                crate::aggregate::add(sum, &self.kept[at..at + gradient.len()]);
            }
            let halves = &mut halves[at..at + gradient.len()];
            if encoding == Encoding::F16 {
                f16::encode(sum, halves)
            } else {
                bf16::encode(sum, halves)
            }
            if let Some(kept) = self.kept.get_mut(at..at + gradient.len()) {
                kept.copy_from_slice(sum);
                if encoding == Encoding::F16 {
                    f16::decode(halves, sum)
                } else {
                    bf16::decode(halves, sum)
                }
                for (kept, sent) in kept.iter_mut().zip(sum) {
                    *kept -= *sent;
                }
            }
        }
        Payload::made(encoding, self.keys, words)
    }

    fn plain(&mut self, gradient: &[f32], mut words: Vec<f32>) -> Payload {
        words.clear();
        words.extend_from_slice(gradient);
        for (word, kept) in words.iter_mut().zip(&mut self.kept) {
            let sum = *word + *kept;
            if sum.is_finite() {
                (*word, *kept) = (sum, 0.0);
            }
        }
        Payload::plain(words)
    }

    /// Puts what was sent and not used back into what is kept. Nothing happens where nothing is kept; a value that is not finite is
    /// left out.
    pub fn take_back(&mut self, payload: &Payload) {
        let mut reader = payload.reader();
        let mut scratch = [0.0; BLOCK];
        for kept in self.kept.chunks_mut(BLOCK) {
            for (kept, sent) in kept.iter_mut().zip(reader.next(BLOCK, &mut scratch)) {
                let sum = *kept + sent;
                *kept = if sum.is_finite() { sum } else { *kept };
            }
        }
    }
}

/// Whether all sums lie below a limit, given as the bits of a positive number. Nothing kept is zero.
fn all_below(gradient: &[f32], kept: &[f32], limit: u32) -> bool {
    // The sign bit of the sum is set for magnitudes from the limit on.
    let reach = |sum: f32| (sum.to_bits() & 0x7fff_ffff) + (0x8000_0000 - limit);
    let any = if kept.is_empty() {
        gradient.iter().fold(0, |any, value| any | reach(*value))
    } else {
        gradient.iter().zip(kept).fold(0, |any, (value, kept)| any | reach(value + kept))
    };
    any >> 31 == 0
}
