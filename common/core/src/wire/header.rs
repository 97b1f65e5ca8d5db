//! The header before the raw values of a transfer.
//!
//! ```text
//!   0  magic "SLKT"            40  clock        u64      96  stripe_start u64
//!   4  protocol      u16       48  version      u64     104  stripe_len   u64
//!   6  kind          u8        56  batch        u64     112  held_us      u64
//!   7  dtype         u8        64  lead         u64     120  end
//!   8  shard         u32       72  samples      u32
//!  12  worker        u32       76  stripe_count u32
//!  16  incarnation   u64       80  key_start    u64
//!  24  sequence      u64       88  key_len      u64
//!  32  reserved (0)  u64
//! ```
//!
//! All little-endian. A transfer of `key_len` values from key `key_start` is cut into `stripe_count` stripes, each on a stream of
//! its own with this header; `stripe_start` (a key) and `stripe_len` say which part follows, as `4 * stripe_len` bytes of f32.

use super::{PROTOCOL, WireError};
use crate::ids::{BatchIndex, Clock, Incarnation, KeyRange, Sequence, ShardId, Version, WorkerId};
use crate::limits::{STRIPE_COUNT_MAX, VALUE_COUNT_MAX};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 120;

const MAGIC: [u8; 4] = *b"SLKT";

/// What the values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// Worker to server: a gradient.
    Push,
    /// Worker to server: the initial values of a shard.
    Initial,
    /// Server to worker: the answer to a pull.
    Values,
    /// Worker to worker: a part of a bucket of gradients. `shard` is the bucket, `sequence` the number of the transfer in the
    /// schedule, `incarnation` the generation of the group, `clock` the iteration, `keys` begin at zero.
    Part,
    /// Worker to worker: all values (`shard` 0) or all of the optimizer's state (`shard` 1) after `clock` iterations.
    State,
    /// Worker to worker: bytes for measuring; `sequence` is the number to answer with.
    Probe,
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE 754 single precision, little-endian.
    F32,
}

/// The header of one stripe; see the module for the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferHeader {
    /// What the values are.
    pub kind: TransferKind,
    /// How they are written.
    pub dtype: Dtype,
    /// The shard they belong to.
    pub shard: ShardId,
    /// The worker that pushes or pulled.
    pub worker: WorkerId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Push: its number. Values: the number of the pull. Initial: zero.
    pub sequence: Sequence,
    /// Push: iterations the worker had completed when it pulled. Values: the shard's minimum clock.
    pub clock: Clock,
    /// Push: the version the gradient was computed on. Values: the version they are.
    pub version: Version,
    /// Push: the batch the gradient is of.
    pub batch: BatchIndex,
    /// Values: how far the reader's clock lay above the minimum.
    pub lead: u64,
    /// Push: samples the gradient is the mean of.
    pub samples: u32,
    /// Stripes of the whole transfer.
    pub stripe_count: u32,
    /// Keys of the whole transfer.
    pub keys: KeyRange,
    /// Keys of this stripe.
    pub stripe: KeyRange,
    /// Values: microseconds for which the gate held the pull.
    pub held_us: u64,
}

impl TransferHeader {
    /// Bytes that follow the header.
    #[must_use]
    pub const fn payload_bytes(&self) -> u64 {
        self.stripe.len * 4
    }

    /// This header for another stripe of the same transfer.
    #[must_use]
    pub const fn with_stripe(mut self, stripe: KeyRange) -> Self {
        self.stripe = stripe;
        self
    }

    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC);
        put(&(PROTOCOL as u16).to_le_bytes());
        put(&[match self.kind {
            TransferKind::Push => 1,
            TransferKind::Initial => 2,
            TransferKind::Values => 3,
            TransferKind::Part => 4,
            TransferKind::State => 5,
            TransferKind::Probe => 6,
        }]);
        put(&[match self.dtype {
            Dtype::F32 => 1,
        }]);
        put(&self.shard.0.to_le_bytes());
        put(&self.worker.0.to_le_bytes());
        put(&self.incarnation.0.to_le_bytes());
        put(&self.sequence.0.to_le_bytes());
        put(&0_u64.to_le_bytes());
        put(&self.clock.0.to_le_bytes());
        put(&self.version.0.to_le_bytes());
        put(&self.batch.0.to_le_bytes());
        put(&self.lead.to_le_bytes());
        put(&self.samples.to_le_bytes());
        put(&self.stripe_count.to_le_bytes());
        put(&self.keys.start.to_le_bytes());
        put(&self.keys.len.to_le_bytes());
        put(&self.stripe.start.to_le_bytes());
        put(&self.stripe.len.to_le_bytes());
        put(&self.held_us.to_le_bytes());
        bytes
    }

    /// Reads and checks a header; afterwards its ranges are sound (no overflow, the stripe lies within the transfer).
    ///
    /// # Errors
    /// A [`WireError`] that names the first field that is wrong.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        if bytes[..4] != MAGIC {
            return Err(WireError::NotATransfer);
        }
        let theirs = u16::from_le_bytes([bytes[4], bytes[5]]);
        if u32::from(theirs) != PROTOCOL {
            return Err(WireError::Protocol { theirs });
        }
        let kind = match bytes[6] {
            1 => TransferKind::Push,
            2 => TransferKind::Initial,
            3 => TransferKind::Values,
            4 => TransferKind::Part,
            5 => TransferKind::State,
            6 => TransferKind::Probe,
            _ => return Err(WireError::Inconsistent { what: "kind" }),
        };
        let dtype = match bytes[7] {
            1 => Dtype::F32,
            _ => return Err(WireError::Inconsistent { what: "dtype" }),
        };
        let (short, long) = (|at| u32_at(bytes, at), |at| u64_at(bytes, at));
        if long(32) != 0 {
            return Err(WireError::Inconsistent { what: "reserved" });
        }
        let header = Self {
            kind,
            dtype,
            shard: ShardId(short(8)),
            worker: WorkerId(short(12)),
            incarnation: Incarnation(long(16)),
            sequence: Sequence(long(24)),
            clock: Clock(long(40)),
            version: Version(long(48)),
            batch: BatchIndex(long(56)),
            lead: long(64),
            samples: short(72),
            stripe_count: short(76),
            keys: KeyRange::new(long(80), long(88)),
            stripe: KeyRange::new(long(96), long(104)),
            held_us: long(112),
        };
        header.checked()
    }

    fn checked(self) -> Result<Self, WireError> {
        let sound =
            |range: KeyRange| range.start <= VALUE_COUNT_MAX && range.len <= VALUE_COUNT_MAX - range.start;
        if !sound(self.keys) {
            return Err(WireError::Inconsistent { what: "keys" });
        }
        // Only the end of a sound range can be computed without overflow, so soundness is looked at first.
        let within = |range: KeyRange| range.start >= self.keys.start && range.end() <= self.keys.end();
        if !sound(self.stripe) || !within(self.stripe) {
            return Err(WireError::Inconsistent { what: "stripe" });
        }
        if self.stripe_count == 0 || self.stripe_count > STRIPE_COUNT_MAX {
            return Err(WireError::Inconsistent { what: "stripe count" });
        }
        Ok(self)
    }
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

/// Cuts a range of keys into at most `stripes_max` stripes of nearly equal length, none under `stripe_keys_min` unless the range
/// itself is; at least one stripe, even for an empty range.
#[must_use]
pub fn stripes(keys: KeyRange, stripe_keys_min: u64, stripes_max: u32) -> Vec<KeyRange> {
    let most = u64::from(stripes_max.clamp(1, STRIPE_COUNT_MAX));
    let count = (keys.len / stripe_keys_min.max(1)).clamp(1, most);
    let border =
        |index: u64| keys.start + (u128::from(keys.len) * u128::from(index) / u128::from(count)) as u64;
    (0..count).map(|index| KeyRange::new(border(index), border(index + 1) - border(index))).collect()
}
