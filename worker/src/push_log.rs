//! A record of every push of a worker, with its values and its answers: what a run can be replayed from on one machine.
//!
//! The file begins with eight bytes, `SLPUSH` and a version. Then come records, each written whole before the next:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | length of the body, little-endian |
//! | 8 | XXH3 of the body, little-endian |
//! | length | the body |
//!
//! A body begins with a byte that says what it is:
//!
//! - `0`, a push of one shard: its [`TransferHeader`] as on the wire (one stripe), then the gradient's part, little-endian f32.
//! - `1`, an answer: server (u32), worker (u32), incarnation (u64), little-endian, then the message `ToPeer::Pushed` as on the wire.
//!
//! A push stands in the file before the first byte of it is sent, so a process that is killed has sent nothing that is not here. Nothing
//! is synced: the record is to outlive the process, not the machine. A file that exists is continued after its last whole record.

mod read;
mod write;

pub use read::{PushLog, PushLogError};
pub(crate) use write::{Logged, PushKey, PushWriter};

use slackline_core::ids::{Incarnation, ServerId, WorkerId};
use slackline_core::wire::{Pushed, TransferHeader};

/// The first bytes of the file.
const MAGIC: [u8; 8] = *b"SLPUSH\x00\x01";

/// Length and checksum.
const PREFIX_BYTES: usize = 16;

/// First byte of the body of a push.
const PUSH: u8 = 0;

/// First byte of the body of an answer.
const ANSWER: u8 = 1;

/// One record of a push log.
#[derive(Clone, Debug, PartialEq)]
pub enum PushRecord {
    /// A shard's part of a gradient is about to be sent, for the first time.
    Push {
        /// Who, which step, which clock, which batch, and the version that the gradient was computed on.
        header: TransferHeader,
        /// One value for each of the shard's keys.
        gradient: Vec<f32>,
    },
    /// A shard has answered; it can do so more than once.
    Answer {
        /// The server that said so.
        server: ServerId,
        /// The worker that pushed.
        worker: WorkerId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The answer.
        pushed: Pushed,
    },
}
