//! Encodings that write every key, block by block: each block of keys takes a whole number of words and says what it is by itself.

use bytemuck::cast_slice;

use super::encoding::Encoding;
use super::{bf16, f16, int8, one_bit, qsgd};

/// Keys that are worked on at once: so many stay in the first cache, whatever is done to them.
pub(super) const CHUNK: usize = 1024;

/// How blocks are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    F16,
    Bf16,
    Int8 { block: usize },
    OneBit,
    Qsgd { bits: u32 },
}

impl Form {
    /// The form of a payload; nothing for encodings of another kind, and where the first word is not a sound one.
    pub(super) fn of(encoding: Encoding, words: &[u32]) -> Option<Self> {
        match encoding {
            Encoding::F16 => Some(Self::F16),
            Encoding::Bf16 => Some(Self::Bf16),
            Encoding::Int8 => words.first().and_then(|head| int8::form(*head)),
            Encoding::OneBit => Some(Self::OneBit),
            Encoding::Qsgd => words.first().and_then(|head| qsgd::form(*head)),
            _ => None,
        }
    }

    /// How payloads of this form are marked.
    pub(super) const fn encoding(self) -> Encoding {
        match self {
            Self::F16 => Encoding::F16,
            Self::Bf16 => Encoding::Bf16,
            Self::Int8 { .. } => Encoding::Int8,
            Self::OneBit => Encoding::OneBit,
            Self::Qsgd { .. } => Encoding::Qsgd,
        }
    }

    /// The word before the first block, if the form needs one.
    pub(super) fn head(self) -> Option<u32> {
        match self {
            Self::Int8 { block } => Some(block as u32),
            Self::Qsgd { bits } => Some(bits),
            Self::F16 | Self::Bf16 | Self::OneBit => None,
        }
    }

    /// Keys of a block.
    pub(super) const fn block(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::Int8 { block } => block,
            Self::OneBit => one_bit::BLOCK,
            Self::Qsgd { .. } => qsgd::BLOCK,
        }
    }

    /// Words of the blocks of so many keys, of which only the last may be a shorter one.
    pub(super) const fn words(self, keys: usize) -> usize {
        let block = self.block();
        let rest = keys % block;
        keys / block * self.block_words(block) + if rest == 0 { 0 } else { self.block_words(rest) }
    }

    const fn block_words(self, keys: usize) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 1,
            Self::Int8 { .. } => int8::words(keys),
            Self::OneBit => 1 + keys.div_ceil(32),
            Self::Qsgd { bits } => 1 + keys.div_ceil(32 / bits as usize),
        }
    }

    /// Words of a payload.
    pub(super) fn payload_words(self, keys: usize) -> usize {
        self.words(keys) + usize::from(self.head().is_some())
    }

    /// Whole blocks that are worked on at once.
    const fn chunk(self) -> usize {
        let block = self.block();
        if block >= CHUNK { block } else { CHUNK / block * block }
    }

    /// Reads the blocks of `values.len()` keys.
    fn decode(self, words: &[u32], values: &mut [f32]) {
        match self {
            Self::F16 => f16::decode(halves(words, values.len()), values),
            Self::Bf16 => bf16::decode(halves(words, values.len()), values),
            Self::Int8 { block } => int8::decode(block, words, values),
            Self::OneBit => one_bit::decode(words, values),
            Self::Qsgd { bits } => qsgd::decode(bits, words, values),
        }
    }

    /// What is wrong with the blocks of a foreign payload, whose length is right.
    pub(super) fn fault(self, words: &[u32], keys: usize) -> Option<&'static str> {
        let words = &words[usize::from(self.head().is_some())..];
        match self {
            Self::F16 | Self::Bf16 => {
                let padding = cast_slice::<u32, u16>(words).get(keys);
                padding.is_some_and(|half| *half != 0).then_some("its padding is not zero")
            }
            Self::Int8 { block } => int8::fault(block, words, keys),
            Self::OneBit => one_bit::fault(words, keys),
            Self::Qsgd { bits } => qsgd::fault(bits, words, keys),
        }
    }

    /// The first key that is not finite. Only halves can say so: the steps of the others are checked.
    pub(super) fn first_not_finite(self, words: &[u32], keys: usize) -> Option<usize> {
        let exponent = match self {
            Self::F16 => 0x7c00,
            Self::Bf16 => 0x7f80,
            Self::Int8 { .. } | Self::OneBit | Self::Qsgd { .. } => return None,
        };
        let is_bad = |half: &u16| half & exponent == exponent;
        let halves = halves(words, keys);
        // A search that may stop at every value cannot be vectorised; nearly always there is nothing to find.
        let chunk = halves
            .chunks(CHUNK)
            .position(|chunk| chunk.iter().fold(false, |bad, half| bad | is_bad(half)))?;
        halves[chunk * CHUNK..].iter().position(is_bad).map(|place| chunk * CHUNK + place)
    }
}

fn halves(words: &[u32], keys: usize) -> &[u16] {
    &cast_slice(words)[..keys]
}

/// Sets the sign bit for magnitudes from a limit on, which is given as the bits of a positive number.
#[inline]
fn reach(value: f32, limit: u32) -> u32 {
    (value.to_bits() & 0x7fff_ffff) + (0x8000_0000 - limit)
}

/// Whether all magnitudes lie below a limit, given as the bits of a positive number.
pub(super) fn all_below(values: &[f32], limit: u32) -> bool {
    values.iter().fold(0, |any, value| any | reach(*value, limit)) >> 31 == 0
}

/// Writes the sums of a gradient and what was kept, and says whether all of them lie below a limit.
pub(super) fn add_below(gradient: &[f32], kept: &[f32], limit: u32, sums: &mut [f32]) -> bool {
    let mut any = 0;
    for (sum, (value, kept)) in sums.iter_mut().zip(gradient.iter().zip(kept)) {
        *sum = value + kept;
        any |= reach(*sum, limit);
    }
    any >> 31 == 0
}

/// The largest magnitude of numbers that are all finite. Their bits are compared, which is in the same order and can be vectorised.
pub(super) fn largest(values: &[f32]) -> f32 {
    let bits = |value: &f32| (value.to_bits() & 0x7fff_ffff) as i32;
    f32::from_bits(values.iter().fold(0, |most, value| most.max(bits(value))) as u32)
}

/// A step of 16 significant bits, the least of which `levels` reach `largest`; never subnormal.
///
/// Few bits make that a multiple of the step is an f32, and its distance from a value, too: `value` and `level * step` are both
/// multiples of the last place of `value`, and the distance is at most half a step, so no larger than `value` unless the level is zero.
pub(super) fn step(largest: f32, levels: u32) -> f32 {
    let bits = (largest / levels as f32).to_bits();
    f32::from_bits((bits + 0xff) & !0xff).max(f32::MIN_POSITIVE)
}

/// Added to a number below 2^22, leaves the nearest whole one in the lower bits: ties go to the even one.
pub(super) const NEAREST: f32 = 12_582_912.0;

/// Encodes block by block, and keeps what that loses where `kept` is not empty: `write` writes a run of whole blocks, and `words` has
/// room for all of them.
///
/// # Errors
/// The first key of a chunk in which a sum is not below `limit` (bits of an f32). What lies before it is written and done with, and
/// from there on nothing has been touched.
pub(super) fn encode(
    form: Form,
    mut write: impl FnMut(&[f32], &mut [u32]),
    limit: u32,
    gradient: &[f32],
    kept: &mut [f32],
    words: &mut [u32],
) -> Result<(), usize> {
    let chunk = form.chunk();
    let mut sums = vec![0.0; if kept.is_empty() { 0 } else { chunk }];
    let mut sent = sums.clone();
    for (index, (gradient, words)) in
        gradient.chunks(chunk).zip(words.chunks_mut(form.words(chunk))).enumerate()
    {
        let (at, len) = (index * chunk, gradient.len());
        if kept.is_empty() {
            if !all_below(gradient, limit) {
                return Err(at);
            }
            write(gradient, words);
            continue;
        }
        let kept = &mut kept[at..at + len];
        let (sums, sent) = (&mut sums[..len], &mut sent[..len]);
        if !add_below(gradient, kept, limit, sums) {
            return Err(at);
        }
        write(sums, words);
        match form {
            Form::F16 => f16::round(sums, sent),
            _ => form.decode(words, sent),
        }
        for (kept, (sum, sent)) in kept.iter_mut().zip(sums.iter().zip(sent)) {
            *kept = *sum - *sent;
        }
    }
    Ok(())
}

/// Reads blocks in order. One that is taken in parts is decoded once and held.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'p> {
    form: Form,
    /// Blocks that have not been decoded, and the keys they have.
    words: &'p [u32],
    keys: usize,
    held: Vec<f32>,
    /// How many of those held are taken.
    taken: usize,
}

impl<'p> Cursor<'p> {
    pub(super) fn new(form: Form, words: &'p [u32], keys: usize) -> Self {
        let words = &words[usize::from(form.head().is_some())..];
        Self { form, words, keys, held: Vec::new(), taken: 0 }
    }

    /// Writes the next values to all of `out`; so many are left.
    pub(super) fn read(&mut self, out: &mut [f32]) {
        let from_held = out.len().min(self.held.len() - self.taken);
        let (first, rest) = out.split_at_mut(from_held);
        first.copy_from_slice(&self.held[self.taken..self.taken + from_held]);
        self.taken += from_held;
        let (whole, part) = rest.split_at_mut(self.whole(rest.len()));
        let words = self.pass(whole.len());
        self.form.decode(words, whole);
        if !part.is_empty() {
            self.hold(part.len());
            part.copy_from_slice(&self.held[..part.len()]);
        }
    }

    /// Leaves out the next `len` values; so many are left.
    pub(super) fn skip(&mut self, len: usize) {
        let from_held = len.min(self.held.len() - self.taken);
        self.taken += from_held;
        let len = len - from_held;
        let whole = self.whole(len);
        self.pass(whole);
        if len > whole {
            self.hold(len - whole);
        }
    }

    /// How many of `len` keys are whole blocks; the last block is whole to its end.
    const fn whole(&self, len: usize) -> usize {
        if len == self.keys { len } else { len - len % self.form.block() }
    }

    /// Goes past the blocks of `keys` keys.
    fn pass(&mut self, keys: usize) -> &'p [u32] {
        let (passed, left) = self.words.split_at(self.form.words(keys));
        (self.words, self.keys) = (left, self.keys - keys);
        passed
    }

    /// Decodes the next block, of which `taken` values are taken at once.
    fn hold(&mut self, taken: usize) {
        let keys = self.form.block().min(self.keys);
        self.held.resize(keys, 0.0);
        let words = self.pass(keys);
        self.form.decode(words, &mut self.held);
        self.taken = taken;
    }
}
