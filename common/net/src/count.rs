//! How many bytes this project's own code copies on their way between QUIC and their place.

use std::sync::atomic::{AtomicU64, Ordering};

static COPIED: AtomicU64 = AtomicU64::new(0);

/// Counts bytes that were copied. Once a piece is enough: an addition a datagram is not seen beside the copy.
pub fn add_copied(bytes: usize) {
    COPIED.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Bytes that this process has copied so far.
#[must_use]
pub fn copied_bytes() -> u64 {
    COPIED.load(Ordering::Relaxed)
}
