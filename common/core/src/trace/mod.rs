//! The trace of a shard: what arrived, what became of it, and with which clocks and versions, as fixed-size records.
//!
//! A trace is a [`Header`] of [`HEADER_BYTES`] and then records of [`RECORD_BYTES`], all little-endian. It holds what the shard was
//! told and what it answered, in the order in which that happened, so that somebody who knows nothing of the shard's code can
//! replay it against the definition of the policy. Everything that one event led to stands directly behind the event.
//!
//! The last record is [`What::End`] when the shard's owner ended in order, and [`What::Full`] when the trace had reached its size.
//! A trace without either was cut off: its server was killed.

mod header;
mod record;

pub use header::{Header, Rule};
pub use record::{Dropped, PullFate, Reading, Record, Verdict, What};

/// What every trace begins with.
pub const MAGIC: [u8; 8] = *b"SLKTRACE";

/// The version of the format that is written and read here.
pub const FORMAT: u32 = 1;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 256;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 96;

/// Name of the folder of the traces within that of a run.
pub const FOLDER: &str = "trace";

/// The name of a shard's trace within its folder.
#[must_use]
pub fn file_name(server: crate::ids::ServerId, shard: crate::ids::ShardId) -> String {
    format!("server-{}-shard-{}.trace", server.0, shard.0)
}

/// Why bytes are no header or no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The first bytes are not [`MAGIC`].
    #[error("it does not begin as a trace does")]
    Magic,
    /// Another version of the format.
    #[error(
        "its format has version {found}, and this program reads version {FORMAT}: use the program that wrote it"
    )]
    Format {
        /// Its version.
        found: u32,
    },
    /// A field has a value that is never written.
    #[error("{field} is {found}, which is never written")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// The policy's name is no text.
    #[error("the name of its policy is no text")]
    Text,
}

/// Reads fixed fields one after the other.
struct Fields<'a> {
    bytes: &'a [u8],
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        // Both callers hand over arrays as long as the sum of their fields; a shorter one would read as zeros.
        let mut taken = [0; N];
        let (head, rest) = self.bytes.split_at(N.min(self.bytes.len()));
        taken[..head.len()].copy_from_slice(head);
        self.bytes = rest;
        taken
    }

    fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// Writes fixed fields one after the other.
struct Line<const N: usize> {
    bytes: [u8; N],
    end: usize,
}

impl<const N: usize> Line<N> {
    const fn new() -> Self {
        Self { bytes: [0; N], end: 0 }
    }

    fn put(&mut self, field: &[u8]) {
        self.bytes[self.end..self.end + field.len()].copy_from_slice(field);
        self.end += field.len();
    }

    fn u32(&mut self, field: u32) {
        self.put(&field.to_le_bytes());
    }

    fn u64(&mut self, field: u64) {
        self.put(&field.to_le_bytes());
    }
}

#[cfg(test)]
mod tests;
