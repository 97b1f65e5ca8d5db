//! Codecs: how a run of values is written in fewer bytes than four a value. All pure: bytes in, bytes out.
//!
//! An [`Encoder`] makes a [`Payload`] of a gradient and keeps what the payload does not say, for the next one (error feedback: Seide et
//! al. 2014, Stich et al. 2018, Karimireddy et al. 2019). A payload is read in blocks, as a [`Source`], so that an optimizer takes it
//! while a block is in cache.
//!
//! Read in this order: [`CodecSpec`] (what is asked for), [`Encoding`] and [`Payload`] (what is on the wire), [`Source`], [`Encoder`],
//! then one file a codec, which says its source, its error and why that is so. A [`Patch`] is no payload: without the
//! values that its reader has it says nothing.
//!
//! | codec | written as | what is lost, of a value `x` or of a block or range | is it kept exactly |
//! |---|---|---|---|
//! | f16, bf16 | f16, bf16 | 2^-11, 2^-9 of `x`; at random 2^-8, and the mean is right | yes |
//! | int8 | int8 | 1/254 of the block's largest | yes |
//! | one-bit | one-bit | all but `1/n` of the block's squares, at worst | to the nearest f32 |
//! | top-k, random-k | sparse, random-k | all but `k/n` of the squares | yes |
//! | relative-k | sparse | all but the largest shares of their parameters that a budget of bytes holds | yes |
//! | qsgd | qsgd | half a step; at random a step, and the mean is right | yes |
//! | power-sgd | low-rank | what is orthogonal to a few directions | to the nearest f32 |
//! | significance | sparse | `v / sqrt(t)` of the parameter | yes |
//! | sufficient-factor, rows | low-rank, rows | nothing (the order of a sum; the sign of zeros) | nothing is kept |
//!
//! *Exactly* means this: `kept + gradient` is rounded to f32 once, as any sum of gradients is; then what is sent and what is kept make up
//! that sum as real numbers, with nothing over, for all finite values. It rests on one fact. Let `c` be what is sent of a sum `x`. If both are
//! multiples of the last place of `x`, and `|x - c| <= |x|`, then `x - c` is an f32 (Sterbenz 1974 is the case of `c` near `x`). All
//! codecs above keep to that by how they choose `c`: zero, `x` itself, or a rounding of it to a grid that is coarser than `x`.

mod bf16;
mod blocks;
mod encoder;
mod encoding;
mod f16;
mod factors;
mod int8;
mod low_rank;
mod one_bit;
mod patch;
mod payload;
mod pieces;
mod power_sgd;
mod qsgd;
mod random;
mod random_k;
mod relative_k;
mod rows;
mod significance;
mod source;
mod sparse;
mod spec;
mod top_k;

pub use encoder::Encoder;
pub use encoding::Encoding;
pub use factors::Factors;
pub use patch::{BLOCK, Patch};
pub use payload::{CodecError, Payload};
pub use relative_k::least_budget;
pub use source::{PlainSource, Reader, Source};
pub use spec::{CodecKind, CodecSpec};

#[cfg(test)]
mod tests;
