//! Codecs: how a run of values is written in fewer bytes than four a value. All pure: bytes in, bytes out.
//!
//! An [`Encoder`] makes a [`Payload`] of a gradient and keeps what the payload does not say, for the next one (error feedback: Seide et
//! al. 2014, Stich et al. 2018, Karimireddy et al. 2019). A payload is read in blocks, as a [`Source`], so that an optimizer takes it
//! while a block is in cache.
//!
//! Read in this order: [`CodecSpec`] (what is asked for), [`Encoding`] and [`Payload`] (what is on the wire), [`Source`], [`Encoder`],
//! then one file a codec. A [`Patch`] is no payload: without the values that its reader has it says nothing.

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
pub use source::{PlainSource, Reader, Source};
pub use spec::{CodecKind, CodecSpec};

#[cfg(test)]
mod tests;
