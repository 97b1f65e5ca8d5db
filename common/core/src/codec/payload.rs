//! An encoded run of values.

use bytemuck::cast_slice;

use super::blocks::Form;
use super::encoding::Encoding;
use super::source::Reader;
use super::{low_rank, random_k, rows, sparse};

/// What is wrong with a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// It has another length than its keys need.
    #[error("a payload of {keys} keys in {encoding} cannot have {words} words")]
    Length {
        /// How it is written.
        encoding: Encoding,
        /// Its keys.
        keys: usize,
        /// Its length in words of four bytes.
        words: usize,
    },
    /// Its inside contradicts itself.
    #[error("a payload in {encoding} is not sound: {what}")]
    Unsound {
        /// How it is written.
        encoding: Encoding,
        /// What is wrong.
        what: &'static str,
    },
}

/// An encoded run of values.
///
/// Whatever the encoding, its bytes are padded with zeros to a multiple of four and lie in a `Vec<f32>`, little-endian: so all buffers
/// come from one pool, and plain values are not copied. What is in there are not numbers unless the encoding is [`Encoding::F32`].
#[derive(Clone, Debug)]
pub struct Payload {
    encoding: Encoding,
    keys: usize,
    words: Vec<f32>,
}

impl PartialEq for Payload {
    /// Equal to the last bit: as numbers, words may be none, which equal nothing.
    fn eq(&self, other: &Self) -> bool {
        (self.encoding, self.keys, self.bits()) == (other.encoding, other.keys, other.bits())
    }
}

impl From<Vec<f32>> for Payload {
    fn from(values: Vec<f32>) -> Self {
        Self::plain(values)
    }
}

impl FromIterator<f32> for Payload {
    /// Plain values.
    fn from_iter<I: IntoIterator<Item = f32>>(values: I) -> Self {
        Self::plain(values.into_iter().collect())
    }
}

impl Payload {
    /// Plain values.
    #[must_use]
    pub const fn plain(values: Vec<f32>) -> Self {
        Self { encoding: Encoding::F32, keys: values.len(), words: values }
    }

    /// Takes a foreign payload. It is looked through as a whole: afterwards no reading of it can fail.
    ///
    /// # Errors
    /// A [`CodecError`] that says what is wrong.
    pub fn new(encoding: Encoding, keys: usize, words: Vec<f32>) -> Result<Self, CodecError> {
        if encoding == Encoding::Blocks {
            return Err(CodecError::Unsound {
                encoding,
                what: "it says nothing without the values that its reader has",
            });
        }
        let bits = cast_slice(&words);
        let is_right = match Form::of(encoding, bits) {
            Some(form) => bits.len() == form.payload_words(keys),
            None if encoding == Encoding::F32 => bits.len() == keys,
            None => bits.len() <= keys,
        };
        if !is_right || bits.len() as u64 > encoding.bytes_max(keys as u64) / 4 {
            return Err(CodecError::Length { encoding, keys, words: words.len() });
        }
        let fault = match encoding {
            Encoding::F32 | Encoding::Blocks => None,
            Encoding::F16 | Encoding::Bf16 | Encoding::Int8 | Encoding::OneBit | Encoding::Qsgd => {
                Form::of(encoding, bits)
                    .map_or(Some("its first word says no form"), |form| form.fault(bits, keys))
            }
            Encoding::Sparse => sparse::fault(bits, keys),
            Encoding::RandomK => random_k::fault(bits, keys),
            Encoding::LowRank => low_rank::fault(bits, keys),
            Encoding::Rows => rows::fault(bits, keys),
        };
        match fault {
            Some(what) => Err(CodecError::Unsound { encoding, what }),
            None => Ok(Self { encoding, keys, words }),
        }
    }

    /// What an encoder made, which is sound.
    pub(super) const fn made(encoding: Encoding, keys: usize, words: Vec<f32>) -> Self {
        Self { encoding, keys, words }
    }

    /// How many values it stands for.
    #[must_use]
    pub const fn keys(&self) -> usize {
        self.keys
    }

    /// How it is written.
    #[must_use]
    pub const fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Its storage.
    #[must_use]
    pub fn words(&self) -> &[f32] {
        &self.words
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        cast_slice(&self.words)
    }

    /// Its values, if they are written plainly.
    #[must_use]
    pub fn values(&self) -> Option<&[f32]> {
        (self.encoding == Encoding::F32).then_some(self.words.as_slice())
    }

    /// Its values, to be changed, if they are written plainly.
    #[must_use]
    pub fn values_mut(&mut self) -> Option<&mut [f32]> {
        (self.encoding == Encoding::F32).then_some(self.words.as_mut_slice())
    }

    /// The same payload in storage of its own, which `copy` makes of this one's.
    #[must_use]
    pub fn copied(&self, copy: impl FnOnce(&[f32]) -> Vec<f32>) -> Self {
        Self { encoding: self.encoding, keys: self.keys, words: copy(&self.words) }
    }

    /// Its storage, to be used again.
    #[must_use]
    pub fn into_words(self) -> Vec<f32> {
        self.words
    }

    /// Its storage as bits.
    pub(super) fn bits(&self) -> &[u32] {
        cast_slice(&self.words)
    }

    /// Reads its values in order, from the first one.
    #[must_use]
    pub fn reader(&self) -> Reader<'_> {
        Reader::new(self)
    }

    /// Writes its values to the beginning of `out`, or so many of them as have room there.
    pub fn decode_into(&self, out: &mut [f32]) {
        let len = out.len().min(self.keys);
        self.reader().read(&mut out[..len]);
    }

    /// The first key whose value is not finite. Of encodings that cannot hold such a value nothing is read, and of others what is in
    /// them and not every key.
    #[must_use]
    pub fn first_not_finite(&self) -> Option<usize> {
        let (bits, keys) = (self.bits(), self.keys);
        match self.encoding {
            Encoding::F32 => crate::aggregate::first_not_finite(&self.words),
            Encoding::F16 | Encoding::Bf16 | Encoding::Int8 | Encoding::OneBit | Encoding::Qsgd => {
                Form::of(self.encoding, bits)?.first_not_finite(bits, keys)
            }
            Encoding::Sparse => sparse::Cursor::new(bits).first_not_finite(),
            Encoding::RandomK => random_k::cursor(bits, keys).first_not_finite(),
            Encoding::LowRank => low_rank::Cursor::new(bits).first_not_finite(keys),
            Encoding::Rows => rows::Cursor::new(bits).first_not_finite(),
            Encoding::Blocks => None,
        }
    }
}
