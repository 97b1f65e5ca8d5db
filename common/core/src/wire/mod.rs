//! What travels between processes.
//!
//! Two kinds of bytes, and no third:
//!
//! - **Control messages** ([`ToServer`], [`ToPeer`], [`PeerMessage`]): small enums in bincode (fixed-width little-endian integers), each in a
//!   frame of a `u32` length and that many bytes, at most [`CONTROL_BYTES_MAX`]. Trailing bytes are refused.
//! - **Transfers** ([`TransferHeader`]): one fixed header, then raw little-endian f32. Tensors never pass through bincode.
//!
//! This is the only module that calls bincode, and the golden bytes in its tests pin the layout: the same layout is
//! bincode 1's and wincode's default, so the crate can be replaced without changing the wire.

mod cluster;
mod group;
mod header;
mod message;
mod peer;
mod report;
mod status;

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use bincode::{Decode, Encode};

pub use cluster::{Backup, Doubt, Here, Holding, Mark, Origin, Place, Placed, ServerOrder, ServerWord};
pub use group::{Group, GroupMember, LinkFigures, Ready, Stepped, Trouble};
pub use header::{HEADER_BYTES, Stripe, TransferHeader, TransferKind, stripes};
pub use message::{
    Ask, BatchResult, Evaluated, Fate, Guarded, Join, Leave, Outcome, Pull, PullKind, PushOutcome, Pushed,
    Refusal, RefusalCode, Register, Served, Text, ToPeer, ToServer, Work,
};
pub use peer::{Hello, PeerMessage, Stranger};
pub use report::{Report, Times};
pub use status::{
    FinalValues, HeldRow, Lack, MemberRow, Phase, PlaceRow, Progress, RefusedCounts, ServerRow, ShardRow,
    Status, WaitRow, cut, milliseconds,
};

use crate::limits::CONTROL_BYTES_MAX;

/// Protocol version; part of the ALPN name and of the first message.
pub const PROTOCOL: u32 = 8;

/// ALPN name of the protocol.
pub const ALPN: &[u8] = b"slackline/1";

/// Why bytes are not a message. The session that sent them ends; the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The length prefix says more than any message may have.
    #[error("a message of {claimed} bytes was announced, the limit is {CONTROL_BYTES_MAX}")]
    TooLong {
        /// Bytes announced.
        claimed: u64,
    },
    /// Facts that are kept or copied have more bytes than anybody reads.
    #[error("facts of {bytes} bytes, the limit is {STATE_BYTES_MAX}")]
    StateTooLong {
        /// Their bytes.
        bytes: u64,
    },
    /// The bytes end early, or hold a value that does not exist.
    #[error("the bytes are not a message of protocol {PROTOCOL}")]
    Malformed,
    /// Bytes are left after the message.
    #[error("{extra} bytes are left after the message")]
    Trailing {
        /// How many.
        extra: usize,
    },
    /// A transfer does not begin with the magic number.
    #[error("the bytes are not a transfer of this protocol")]
    NotATransfer,
    /// A transfer of another version.
    #[error("the transfer has protocol {theirs}, this side speaks {PROTOCOL}")]
    Protocol {
        /// The version they speak.
        theirs: u16,
    },
    /// A transfer whose header contradicts itself.
    #[error("the transfer's header is inconsistent: {what}")]
    Inconsistent {
        /// Which field.
        what: &'static str,
    },
}

/// The limit also counts what a reader would have to allocate: bincode charges a list or map that is announced with the size of
/// its rows in memory before it makes room for them.
const FORMAT: Configuration<LittleEndian, Fixint, Limit<CONTROL_BYTES_MAX>> = bincode::config::standard()
    .with_little_endian()
    .with_fixed_int_encoding()
    .with_limit::<CONTROL_BYTES_MAX>();

/// The bytes of one control message, without the length prefix.
///
/// # Errors
/// [`WireError::TooLong`] when the message is over the limit: the caller put too many rows in it.
pub fn encode<M: Encode>(message: &M) -> Result<Vec<u8>, WireError> {
    let bytes = bincode::encode_to_vec(message, FORMAT).map_err(|_| WireError::Malformed)?;
    if bytes.len() > CONTROL_BYTES_MAX {
        return Err(WireError::TooLong { claimed: bytes.len() as u64 });
    }
    Ok(bytes)
}

/// Reads one control message that fills `bytes` exactly. Never allocates more than the limit.
///
/// # Errors
/// Any [`WireError`] of a control message.
pub fn decode<M: Decode<()>>(bytes: &[u8]) -> Result<M, WireError> {
    if bytes.len() > CONTROL_BYTES_MAX {
        return Err(WireError::TooLong { claimed: bytes.len() as u64 });
    }
    let (message, used) = bincode::decode_from_slice(bytes, FORMAT).map_err(|_| WireError::Malformed)?;
    if used != bytes.len() {
        return Err(WireError::Trailing { extra: bytes.len() - used });
    }
    Ok(message)
}

/// Bytes of the facts of a shard's state: with [`crate::limits::WORKER_COUNT_MAX`] workers of full windows they have some 50 MiB.
pub const STATE_BYTES_MAX: usize = 128 << 20;

/// As [`FORMAT`], with the limit of states.
const STATE_FORMAT: Configuration<LittleEndian, Fixint, Limit<STATE_BYTES_MAX>> = bincode::config::standard()
    .with_little_endian()
    .with_fixed_int_encoding()
    .with_limit::<STATE_BYTES_MAX>();

/// The bytes of facts that are kept or copied, and are no message.
///
/// # Errors
/// [`WireError::StateTooLong`] when they are over [`STATE_BYTES_MAX`]: nobody could read them.
pub fn encode_state<S: Encode>(state: &S) -> Result<Vec<u8>, WireError> {
    let bytes = encode_whole(state);
    // The limit of a format binds readers only.
    fits_a_state(&bytes)?;
    Ok(bytes)
}

/// The same without the limit: whoever cannot refuse makes them whole, and whoever keeps or reads them refuses those that are too long.
///
/// # Panics
/// Never for types that derive [`Encode`]: a vector takes any number of bytes, and their numbers, texts and lists have nothing that fails.
pub fn encode_whole<S: Encode>(state: &S) -> Vec<u8> {
    bincode::encode_to_vec(state, STATE_FORMAT)
        .expect("numbers, texts and lists of them can always be encoded")
}

const fn fits_a_state(bytes: &[u8]) -> Result<(), WireError> {
    if bytes.len() > STATE_BYTES_MAX {
        return Err(WireError::StateTooLong { bytes: bytes.len() as u64 });
    }
    Ok(())
}

/// Reads facts that fill `bytes` exactly. Never allocates more than the limit.
///
/// # Errors
/// [`WireError::StateTooLong`], [`WireError::Malformed`] and [`WireError::Trailing`].
pub fn decode_state<S: Decode<()>>(bytes: &[u8]) -> Result<S, WireError> {
    fits_a_state(bytes)?;
    let (state, used) = bincode::decode_from_slice(bytes, STATE_FORMAT).map_err(|_| WireError::Malformed)?;
    if used != bytes.len() {
        return Err(WireError::Trailing { extra: bytes.len() - used });
    }
    Ok(state)
}

/// The length prefix of a frame that carries `bytes`.
#[must_use]
pub const fn frame_prefix(bytes: &[u8]) -> [u8; 4] {
    (bytes.len() as u32).to_le_bytes()
}

/// The length that a frame's prefix announces.
///
/// # Errors
/// [`WireError::TooLong`], before anything is read or allocated.
pub const fn frame_length(prefix: [u8; 4]) -> Result<usize, WireError> {
    let claimed = u32::from_le_bytes(prefix);
    if claimed as usize > CONTROL_BYTES_MAX {
        return Err(WireError::TooLong { claimed: claimed as u64 });
    }
    Ok(claimed as usize)
}

#[cfg(test)]
mod tests;
