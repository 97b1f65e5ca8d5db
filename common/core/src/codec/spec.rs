//! Which codec, with its constants, as the configuration asks for it.

/// A codec as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodecSpec {
    /// Which one.
    pub kind: CodecKind,
    /// Whether what a payload does not say is kept and added to the next gradient. Nothing is ever kept by a codec that loses nothing.
    pub error_feedback: bool,
}

impl CodecSpec {
    /// Plain values.
    pub const F32: Self = Self { kind: CodecKind::F32, error_feedback: false };

    /// Whether something is kept: the codec loses something, and that is asked for.
    #[must_use]
    pub const fn keeps(self) -> bool {
        self.kind.is_lossy() && self.error_feedback
    }
}

/// Which codec, with its constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CodecKind {
    /// Plain values.
    F32,
    /// IEEE half precision, to the nearest.
    F16,
    /// The upper half of an f32.
    Bf16 {
        /// Rounded at random so that the mean is right; else to the nearest.
        stochastic: bool,
    },
    /// One byte a value.
    Int8 {
        /// Keys that share a scale.
        block: u32,
    },
    /// One bit a value.
    OneBit,
    /// The largest values.
    TopK {
        /// Share of the keys that are sent, in (0, 1].
        share: f32,
    },
    /// The largest values beside the parameters that they change, as many as a budget holds.
    RelativeK {
        /// Bytes of a whole gradient's payloads, at least [`least_budget`](super::least_budget) of each range.
        budget: u64,
        /// A parameter nearer to zero counts as this; above zero.
        floor: f32,
    },
    /// Values at random places.
    RandomK {
        /// Share of the keys that are sent, in (0, 1].
        share: f32,
    },
    /// Few levels, rounded at random so that the mean is right.
    Qsgd {
        /// Levels above zero, from 1 to 127.
        levels: u32,
    },
    /// Matrices as sums of a few outer products.
    PowerSgd {
        /// How many.
        rank: u32,
    },
    /// Matrices of fully-connected layers by the vectors that their gradient is made of.
    SufficientFactor,
    /// Values that move their parameter by a share of itself.
    Significance {
        /// The share at the first step; it falls with the root of the steps.
        threshold: f32,
    },
    /// Rows of matrices that are not all zero.
    Rows,
}

impl CodecKind {
    /// Whether what is read differs from what was written.
    #[must_use]
    pub const fn is_lossy(self) -> bool {
        !matches!(self, Self::F32 | Self::SufficientFactor | Self::Rows)
    }
}
