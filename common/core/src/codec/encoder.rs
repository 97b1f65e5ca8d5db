//! What is done with a gradient before it leaves: what was kept is added, the sum is encoded, and what that loses is kept.

use bytemuck::cast_slice_mut;

use super::blocks::{self, CHUNK, Form};
use super::encoding::Encoding;
use super::factors::{self, Factors};
use super::payload::Payload;
use super::pieces::Pieces;
use super::power_sgd::{self, PowerSgd};
use super::random::{Lanes, seed_of};
use super::source::Source;
use super::spec::{CodecKind, CodecSpec};
use super::top_k::{self, Selection, accumulate};
use super::{bf16, f16, int8, one_bit, qsgd, random_k, relative_k, rows, significance, sparse};
use crate::ids::KeyRange;
use crate::layout::Layout;

/// What is not finite has these bits or more.
const INFINITE: u32 = 0x7f80_0000;

/// Encodes the gradients of one range of keys, one after another.
///
/// With error feedback, `kept + gradient` is rounded to f32 once, as any sum of gradients is, and what is sent and what is kept
/// afterwards make up that sum: exactly, but for one-bit and power-sgd, whose kept values are the f32 nearest to it (each codec's file
/// says why).
#[derive(Clone, Debug)]
pub struct Encoder {
    spec: CodecSpec,
    keys: usize,
    /// Words that a payload may have, of the codec with a budget.
    budget: usize,
    seed: u64,
    /// Gradients that were encoded.
    count: u64,
    /// What has not been sent; empty where nothing is kept.
    kept: Vec<f32>,
    /// Of the codecs that know matrices.
    pieces: Pieces,
    power: Option<PowerSgd>,
    /// Room to choose in.
    selection: Selection,
}

impl Encoder {
    /// An encoder for the keys of a range; everything random follows from `seed`.
    #[must_use]
    pub fn new(spec: CodecSpec, layout: &Layout, keys: KeyRange, seed: u64) -> Self {
        let (len, pieces) = (keys.len as usize, || Pieces::of(layout, keys));
        let (pieces, power) = match spec.kind {
            CodecKind::PowerSgd { rank } => {
                (Pieces::default(), Some(PowerSgd::new(&pieces(), rank.max(1) as usize)))
            }
            CodecKind::SufficientFactor | CodecKind::Rows => (pieces(), None),
            _ => (Pieces::default(), None),
        };
        let budget = match spec.kind {
            CodecKind::RelativeK { budget, .. } => relative_k::share(budget, keys.len, layout.len()),
            _ => 0,
        };
        let kept = vec![0.0; if spec.keeps() { len } else { 0 }];
        Self { spec, keys: len, budget, seed, count: 0, kept, pieces, power, selection: Selection::default() }
    }

    /// What has not been sent, a value a key; empty where nothing is kept.
    #[must_use]
    pub fn kept(&self) -> &[f32] {
        &self.kept
    }

    /// Encodes the next gradient, of as many values as there are keys. `values` are the parameters, for
    /// [`CodecKind::Significance`] and [`CodecKind::RelativeK`]; `words` is a buffer to use again.
    ///
    /// The payload is plain where that is not longer, and where a sum is larger than the encoding takes. Where it is not finite, the
    /// gradient itself is sent in its place, whatever a budget says, and what was kept stays, so whoever gets it can say which key it was.
    ///
    /// # Panics
    /// The gradient or the values have another length than the range: a mistake of the caller's.
    #[must_use]
    pub fn encode(&mut self, gradient: &[f32], values: Option<&[f32]>, words: Vec<f32>) -> Payload {
        assert_eq!(gradient.len(), self.keys, "a gradient has a value a key");
        assert!(values.is_none_or(|values| values.len() == self.keys), "there is a value a key");
        self.count += 1;
        // Indices have 32 bits.
        let can_pick = u32::try_from(self.keys).is_ok();
        match self.spec.kind {
            CodecKind::F16 => {
                let write =
                    |values: &[f32], words: &mut [u32]| f16::encode(values, halves(words, values.len()));
                self.blocks(Form::F16, f16::TOO_LARGE, write, gradient, words)
            }
            CodecKind::Bf16 { stochastic } => self.bf16(stochastic, gradient, words),
            CodecKind::Int8 { block } => {
                let form = int8::nearest_form(block);
                let write = |values: &[f32], words: &mut [u32]| int8::encode(form.block(), values, words);
                self.blocks(form, int8::TOO_LARGE, write, gradient, words)
            }
            CodecKind::OneBit => {
                self.blocks(Form::OneBit, one_bit::TOO_LARGE, one_bit::encode, gradient, words)
            }
            CodecKind::Qsgd { levels } => self.qsgd(levels.clamp(1, 127), gradient, words),
            CodecKind::TopK { share } if can_pick => self.top_k(share, gradient, words),
            CodecKind::RelativeK { floor, .. } if can_pick => self.relative_k(floor, gradient, values, words),
            CodecKind::RandomK { share } if can_pick => self.random_k(share, gradient, words),
            CodecKind::Significance { threshold } if can_pick => {
                self.significance(threshold, gradient, values, words)
            }
            CodecKind::PowerSgd { .. } => self.power_sgd(gradient, words),
            CodecKind::SufficientFactor => self.factors(gradient, &[], words),
            CodecKind::Rows => self.rows(gradient, words),
            CodecKind::F32
            | CodecKind::TopK { .. }
            | CodecKind::RelativeK { .. }
            | CodecKind::RandomK { .. }
            | CodecKind::Significance { .. } => self.plain(0, gradient, words),
        }
    }

    /// The same with what the gradients of matrices are made of; only [`CodecKind::SufficientFactor`] uses it. A matrix without factors,
    /// or whose factors take more room than it does, is sent as it is.
    ///
    /// # Panics
    /// The gradient or a factor has another length than its keys: a mistake of the caller's.
    #[must_use]
    pub fn encode_factors(&mut self, gradient: &[f32], factors: &[Factors<'_>], words: Vec<f32>) -> Payload {
        if self.spec.kind != CodecKind::SufficientFactor {
            return self.encode(gradient, None, words);
        }
        assert_eq!(gradient.len(), self.keys, "a gradient has a value a key");
        self.count += 1;
        self.factors(gradient, factors, words)
    }

    /// Puts what was sent and not used back into what is kept. Nothing happens where nothing is kept; a value that is not finite is
    /// left out. Directly after the encoding it is the sum of then, as exactly as what was kept.
    pub fn take_back(&mut self, payload: &Payload) {
        let mut reader = payload.reader();
        let mut scratch = [0.0; CHUNK];
        for kept in self.kept.chunks_mut(CHUNK) {
            for (kept, sent) in kept.iter_mut().zip(reader.next(CHUNK, &mut scratch)) {
                let sum = *kept + sent;
                *kept = if sum.is_finite() { sum } else { *kept };
            }
        }
    }

    /// Undoes the encoding of a gradient that is not used: what was kept before is kept again, beside what was kept since. A value that is
    /// not finite is left out. Where nothing is kept, nothing happens.
    ///
    /// The sum that was encoded, of what was kept and the gradient, was rounded once; it comes back exactly (see [`Encoder::take_back`]), and
    /// the difference is rounded once more: each by at most half of the sum's last place, where nothing was encoded since.
    pub fn undo(&mut self, payload: &Payload, gradient: &[f32]) {
        self.take_back(payload);
        for (kept, gradient) in self.kept.iter_mut().zip(gradient) {
            let rest = *kept - gradient;
            *kept = if rest.is_finite() { rest } else { *kept };
        }
    }

    /// Plain values: of keys below `at` the sums, which are what is kept, or the gradient where nothing is; of the others what is kept
    /// is still to be added.
    fn plain(&mut self, at: usize, gradient: &[f32], mut words: Vec<f32>) -> Payload {
        words.clear();
        words.extend_from_slice(gradient);
        if !self.kept.is_empty() {
            words[..at].copy_from_slice(&self.kept[..at]);
            self.kept[..at].fill(0.0);
        }
        self.plain_from(at, words)
    }

    /// Adds what is kept to the plain gradients from a key on.
    fn plain_from(&mut self, at: usize, mut words: Vec<f32>) -> Payload {
        let kept = self.kept.get_mut(at..).unwrap_or_default();
        for (word, kept) in words[at..].iter_mut().zip(kept) {
            let sum = *word + *kept;
            let is_finite = sum.is_finite();
            *word = if is_finite { sum } else { *word };
            *kept = if is_finite { 0.0 } else { *kept };
        }
        Payload::plain(words)
    }

    fn blocks(
        &mut self,
        form: Form,
        limit: u32,
        write: impl FnMut(&[f32], &mut [u32]),
        gradient: &[f32],
        mut words: Vec<f32>,
    ) -> Payload {
        let len = form.payload_words(self.keys);
        if len >= self.keys {
            return self.plain(0, gradient, words);
        }
        words.resize(len, 0.0);
        let head = form.head();
        let (first, rest) = cast_slice_mut(&mut words).split_at_mut(head.as_slice().len());
        first.copy_from_slice(head.as_slice());
        let written = blocks::encode(form, write, limit, gradient, &mut self.kept, rest);
        let payload = Payload::made(form.encoding(), self.keys, words);
        let Err(at) = written else { return payload };
        // What is done with stays as it is, only written plainly.
        let mut words = gradient.to_vec();
        payload.decode_into(&mut words[..at]);
        self.plain_from(at, words)
    }

    fn bf16(&mut self, stochastic: bool, gradient: &[f32], words: Vec<f32>) -> Payload {
        if !stochastic {
            let write = |values: &[f32], words: &mut [u32]| bf16::encode(values, halves(words, values.len()));
            return self.blocks(Form::Bf16, bf16::TOO_LARGE, write, gradient, words);
        }
        let mut random = Lanes::new(self.seed, self.count);
        let mut numbers = vec![0; CHUNK];
        let write = |values: &[f32], words: &mut [u32]| {
            random.fill(&mut numbers[..values.len()]);
            bf16::encode_at_random(values, &numbers, halves(words, values.len()));
        };
        self.blocks(Form::Bf16, bf16::TOO_LARGE_AT_RANDOM, write, gradient, words)
    }

    fn qsgd(&mut self, levels: u32, gradient: &[f32], words: Vec<f32>) -> Payload {
        let form = Form::Qsgd { bits: qsgd::bits(levels) };
        if self.spec.error_feedback {
            let write = |values: &[f32], words: &mut [u32]| qsgd::encode(levels, values, words);
            return self.blocks(form, qsgd::TOO_LARGE, write, gradient, words);
        }
        let mut random = Lanes::new(self.seed, self.count);
        let mut numbers = vec![0; CHUNK];
        let write = |values: &[f32], words: &mut [u32]| {
            random.fill(&mut numbers[..values.len()]);
            qsgd::encode_at_random(levels, values, &numbers, words);
        };
        self.blocks(form, qsgd::TOO_LARGE, write, gradient, words)
    }

    fn top_k(&mut self, share: f32, gradient: &[f32], words: Vec<f32>) -> Payload {
        let count = top_k::count_of(share, self.keys);
        let found = self.selection.largest(count, gradient, &mut self.kept, INFINITE);
        self.picked(found, gradient, words)
    }

    fn relative_k(
        &mut self,
        floor: f32,
        gradient: &[f32],
        values: Option<&[f32]>,
        words: Vec<f32>,
    ) -> Payload {
        let (kept, selection) = (&mut self.kept, &mut self.selection);
        let found = relative_k::select(self.budget, floor, gradient, values, kept, INFINITE, selection);
        self.picked(found, gradient, words)
    }

    fn significance(
        &mut self,
        threshold: f32,
        gradient: &[f32],
        values: Option<&[f32]>,
        words: Vec<f32>,
    ) -> Payload {
        let share = significance::share(threshold, self.count);
        let indices = &mut self.selection.indices;
        let found = significance::select(share, gradient, values, &mut self.kept, INFINITE, indices);
        self.picked(found, gradient, words)
    }

    /// Sends the sums that were selected, or plain values where the sums are not finite from some key on.
    fn picked(&mut self, found: Result<(), usize>, gradient: &[f32], mut words: Vec<f32>) -> Payload {
        if let Err(at) = found {
            return self.plain(at, gradient, words);
        }
        let sum = if self.kept.is_empty() { gradient } else { &self.kept };
        if !sparse::write(&self.selection.indices, sum, &mut words) {
            return self.plain(self.keys, gradient, words);
        }
        if !self.kept.is_empty() {
            for index in &self.selection.indices {
                self.kept[*index as usize] = 0.0;
            }
        }
        Payload::made(Encoding::Sparse, self.keys, words)
    }

    fn random_k(&mut self, share: f32, gradient: &[f32], mut words: Vec<f32>) -> Payload {
        if let Err(at) = accumulate(gradient, &mut self.kept, INFINITE, |_, _| ()) {
            return self.plain(at, gradient, words);
        }
        let (seed, count) = (seed_of(self.seed, self.count), top_k::count_of(share, self.keys));
        let sum = if self.kept.is_empty() { gradient } else { &self.kept };
        if !random_k::write(seed, count, sum, self.kept.is_empty(), &mut words) {
            return self.plain(self.keys, gradient, words);
        }
        if !self.kept.is_empty() {
            random_k::forget(seed, count, &mut self.kept);
        }
        Payload::made(Encoding::RandomK, self.keys, words)
    }

    fn power_sgd(&mut self, gradient: &[f32], mut words: Vec<f32>) -> Payload {
        if let Err(at) = accumulate(gradient, &mut self.kept, power_sgd::TOO_LARGE, |_, _| ()) {
            return self.plain(at, gradient, words);
        }
        let sum = if self.kept.is_empty() { gradient } else { &self.kept };
        let random = Lanes::new(self.seed, self.count);
        let is_written = self.power.as_mut().is_some_and(|power| power.write(sum, random, &mut words));
        if !is_written {
            return self.plain(self.keys, gradient, words);
        }
        let payload = Payload::made(Encoding::LowRank, self.keys, words);
        let mut reader = payload.reader();
        let mut scratch = [0.0; CHUNK];
        for kept in self.kept.chunks_mut(CHUNK) {
            for (kept, sent) in kept.iter_mut().zip(reader.next(CHUNK, &mut scratch)) {
                *kept -= sent;
            }
        }
        payload
    }

    fn factors(&mut self, gradient: &[f32], factors: &[Factors<'_>], mut words: Vec<f32>) -> Payload {
        if factors::write(&self.pieces, gradient, factors, &mut words) {
            return Payload::made(Encoding::LowRank, self.keys, words);
        }
        self.plain(0, gradient, words)
    }

    fn rows(&mut self, gradient: &[f32], mut words: Vec<f32>) -> Payload {
        if rows::write(&self.pieces, gradient, &mut self.selection.indices, &mut words) {
            return Payload::made(Encoding::Rows, self.keys, words);
        }
        self.plain(0, gradient, words)
    }
}

/// The halves of so many keys; one that is left over is zero.
fn halves(words: &mut [u32], keys: usize) -> &mut [u16] {
    let (halves, padding) = cast_slice_mut::<u32, u16>(words).split_at_mut(keys);
    padding.fill(0);
    halves
}
