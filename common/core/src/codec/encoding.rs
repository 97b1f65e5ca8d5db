//! How a payload is written, and how many bytes that may take.

use std::fmt;

/// How a payload is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Encoding {
    /// Every value in four bytes.
    F32 = 1,
    /// Every value in IEEE half precision.
    F16 = 2,
    /// Every value as the upper half of its four bytes.
    Bf16 = 3,
    /// Every value in one byte, with a scale a block.
    Int8 = 4,
    /// Every value in one bit, with two magnitudes a block.
    OneBit = 5,
    /// Some values with their indices.
    Sparse = 6,
    /// Some values, at indices that follow from a seed.
    RandomK = 7,
    /// Every value in a few bits, with a step a block.
    Qsgd = 8,
    /// Matrices as sums of outer products.
    LowRank = 9,
    /// Some rows of matrices with their numbers.
    Rows = 10,
    /// Of values that the reader has from before, those blocks that are other ones now. See [`Patch`](super::Patch).
    Blocks = 11,
}

impl Encoding {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Int8,
        Self::OneBit,
        Self::Sparse,
        Self::RandomK,
        Self::Qsgd,
        Self::LowRank,
        Self::Rows,
        Self::Blocks,
    ];

    /// The encoding of this byte, if there is one.
    #[must_use]
    pub fn from_wire(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|encoding| encoding.to_wire() == byte)
    }

    /// Its byte.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        self as u8
    }

    /// Most bytes that `keys` values may take, padding included. No encoding ever takes more than plain values: where it would, its
    /// encoder writes those.
    #[must_use]
    pub const fn bytes_max(self, keys: u64) -> u64 {
        match self {
            Self::F16 | Self::Bf16 => keys.div_ceil(2).saturating_mul(4),
            _ => keys.saturating_mul(4),
        }
    }

    /// Most bytes of a payload of `keys` values, however it is written.
    #[must_use]
    pub const fn bytes_most(keys: u64) -> u64 {
        Self::F32.bytes_max(keys)
    }

    /// Whether a payload of `keys` values can have so many words of four bytes. What is inside is not known by that.
    #[must_use]
    pub const fn can_have(self, keys: u64, words: u64) -> bool {
        let most = self.bytes_max(keys) / 4;
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => words == most,
            _ => words <= most,
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::OneBit => "one-bit",
            Self::Sparse => "sparse",
            Self::RandomK => "random-k",
            Self::Qsgd => "qsgd",
            Self::LowRank => "low-rank",
            Self::Rows => "rows",
            Self::Blocks => "blocks",
        })
    }
}
