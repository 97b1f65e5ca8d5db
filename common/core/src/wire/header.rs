//! The header before the raw payload of a transfer.
//!
//! ```text
//!   0  magic "SLKT"            40  clock        u64      96  stripe_start u64
//!   4  protocol      u16       48  version      u64     104  stripe_len   u64
//!   6  kind          u8        56  batch        u64     112  held_us      u64
//!   7  encoding      u8        64  lead         u64     120  reply        u64
//!   8  shard         u32       72  samples      u32     128  have         u64
//!  12  worker        u32       76  stripe_count u32     136  end
//!  16  incarnation   u64       80  key_start    u64
//!  24  sequence      u64       88  key_len      u64
//!  32  words         u64
//! ```
//!
//! All little-endian. The `key_len` values from key `key_start` are written by `encoding` as `words` words of four bytes; of plain f32 that
//! is one word a key. The payload is cut into `stripe_count` stripes, each on a stream of its own with this header; `stripe_start` and
//! `stripe_len` say which of the words follow.

use super::{PROTOCOL, WireError};
use crate::codec::Encoding;
use crate::ids::{BatchIndex, Clock, Incarnation, KeyRange, Sequence, ShardId, Version, WorkerId};
use crate::limits::{STRIPE_COUNT_MAX, VALUE_COUNT_MAX};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 136;

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

/// A run of words of a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stripe {
    /// The first word.
    pub start: u64,
    /// How many there are.
    pub len: u64,
}

impl Stripe {
    /// `len` words from `start` on.
    #[must_use]
    pub const fn new(start: u64, len: u64) -> Self {
        Self { start, len }
    }

    /// The word after the last.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start + self.len
    }
}

/// The header of one stripe; see the module for the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferHeader {
    /// What the values are.
    pub kind: TransferKind,
    /// How they are written.
    pub encoding: Encoding,
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
    /// Words of the whole payload.
    pub words: u64,
    /// Words of this stripe.
    pub stripe: Stripe,
    /// Values: microseconds for which the gate held the pull.
    pub held_us: u64,
    /// Push: the number of the pull that it brings with it, for the iteration after its own and with this push in the values; zero for none.
    /// It is taken where the push is new: whoever sends that again pulls by a message.
    pub reply: u64,
    /// Push: what is known of that pull as [`Pull::have`](super::Pull::have).
    pub have: u64,
}

impl TransferHeader {
    /// A transfer of plain values in one stripe, with nothing else in its header.
    #[must_use]
    pub const fn plain(kind: TransferKind, shard: ShardId, keys: KeyRange) -> Self {
        Self {
            kind,
            encoding: Encoding::F32,
            shard,
            worker: WorkerId(0),
            incarnation: Incarnation(0),
            sequence: Sequence(0),
            clock: Clock(0),
            version: Version(0),
            batch: BatchIndex(0),
            lead: 0,
            samples: 0,
            stripe_count: 1,
            keys,
            words: keys.len,
            stripe: Stripe::new(0, keys.len),
            held_us: 0,
            reply: 0,
            have: 0,
        }
    }

    /// This header for a payload that is written otherwise, in one stripe.
    #[must_use]
    pub const fn with_payload(mut self, encoding: Encoding, words: u64) -> Self {
        (self.encoding, self.words, self.stripe_count) = (encoding, words, 1);
        self.with_stripe(Stripe::new(0, words))
    }

    /// Bytes of the whole payload.
    #[must_use]
    pub const fn payload_bytes(&self) -> u64 {
        self.words * 4
    }

    /// Bytes that follow this header: those of its stripe.
    #[must_use]
    pub const fn stripe_bytes(&self) -> u64 {
        self.stripe.len * 4
    }

    /// This header for another stripe of the same transfer.
    #[must_use]
    pub const fn with_stripe(mut self, stripe: Stripe) -> Self {
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
        put(&[self.encoding.to_wire()]);
        put(&self.shard.0.to_le_bytes());
        put(&self.worker.0.to_le_bytes());
        put(&self.incarnation.0.to_le_bytes());
        put(&self.sequence.0.to_le_bytes());
        put(&self.words.to_le_bytes());
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
        put(&self.reply.to_le_bytes());
        put(&self.have.to_le_bytes());
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
        let encoding = Encoding::from_wire(bytes[7]).ok_or(WireError::Inconsistent { what: "encoding" })?;
        let (short, long) = (|at| u32_at(bytes, at), |at| u64_at(bytes, at));
        let header = Self {
            kind,
            encoding,
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
            words: long(32),
            stripe: Stripe::new(long(96), long(104)),
            held_us: long(112),
            reply: long(120),
            have: long(128),
        };
        header.checked()
    }

    fn checked(self) -> Result<Self, WireError> {
        let keys = self.keys;
        if keys.start > VALUE_COUNT_MAX || keys.len > VALUE_COUNT_MAX - keys.start {
            return Err(WireError::Inconsistent { what: "keys" });
        }
        if !self.encoding.can_have(keys.len, self.words) {
            return Err(WireError::Inconsistent { what: "words" });
        }
        if self.stripe.start > self.words || self.stripe.len > self.words - self.stripe.start {
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

/// Cuts a payload into at most `stripes_max` stripes of nearly equal length, none under `least` words unless the payload itself is;
/// at least one stripe, even for an empty payload.
#[must_use]
pub fn stripes(words: u64, least: u64, stripes_max: u32) -> Vec<Stripe> {
    let most = u64::from(stripes_max.clamp(1, STRIPE_COUNT_MAX));
    let count = (words / least.max(1)).clamp(1, most);
    let border = |index: u64| (u128::from(words) * u128::from(index) / u128::from(count)) as u64;
    (0..count).map(|index| Stripe::new(border(index), border(index + 1) - border(index))).collect()
}
