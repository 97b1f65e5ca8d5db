//! Tensor fusion (Jia et al. 2018): small tensors travel together, since each message costs a latency whatever its size.

use bincode::{Decode, Encode};

use crate::ids::KeyRange;
use crate::layout::Layout;

/// Which buckets go first. It changes no bit of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Order {
    /// Those of the last layers, whose gradients exist first.
    Backward,
    /// Those of the first layers, which the next iteration needs first.
    Forward,
}

/// Neighbouring tensors whose gradients are reduced together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Its place in the order of reduction.
    pub index: u32,
    /// Its keys.
    pub keys: KeyRange,
}

/// Cuts a model into buckets of whole tensors, in the order they are reduced in.
///
/// Tensors are gathered in that order until they have `bucket_bytes`. One that is larger than that is a bucket of its own, and closes
/// the one before. With 0 there is one bucket of everything. A model without values has none.
#[must_use]
pub fn buckets(layout: &Layout, bucket_bytes: u64, order: Order) -> Vec<Bucket> {
    let mut spans: Vec<KeyRange> =
        layout.tensors().iter().map(|tensor| KeyRange::new(tensor.offset, tensor.len())).collect();
    spans.retain(|span| !span.is_empty());
    if order == Order::Backward {
        spans.reverse();
    }
    let limit = if bucket_bytes == 0 { u64::MAX } else { bucket_bytes };
    let bytes = |keys: KeyRange| keys.len.saturating_mul(size_of::<f32>() as u64);
    let mut closed = Vec::new();
    let mut open = KeyRange::default();
    for span in spans {
        if bytes(span) > limit && !open.is_empty() {
            closed.push(std::mem::take(&mut open));
        }
        open = joined(open, span);
        if bytes(open) >= limit {
            closed.push(std::mem::take(&mut open));
        }
    }
    closed.extend((!open.is_empty()).then_some(open));
    closed.into_iter().zip(0..).map(|(keys, index)| Bucket { index, keys }).collect()
}

/// Both of two adjacent ranges.
fn joined(one: KeyRange, other: KeyRange) -> KeyRange {
    if one.is_empty() { other } else { KeyRange::new(one.start.min(other.start), one.len + other.len) }
}
