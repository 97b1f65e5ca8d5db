//! Checksums of a file in pieces, so that a part of it can be read and believed without the rest.

use xxhash_rust::xxh3::Xxh3;

/// Bytes of a piece: each has its own checksum in the manifest.
pub const PIECE: u64 = 4 << 20;

/// Sums up a file while it passes by.
pub(crate) struct Pieces {
    whole: Xxh3,
    piece: Xxh3,
    /// Bytes in `piece`.
    filled: u64,
    sums: Vec<u64>,
}

impl Pieces {
    pub(crate) fn new() -> Self {
        Self { whole: Xxh3::new(), piece: Xxh3::new(), filled: 0, sums: Vec::new() }
    }

    pub(crate) fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            // At most a piece, which fits.
            let room = (PIECE - self.filled) as usize;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.whole.update(now);
            self.piece.update(now);
            self.filled += now.len() as u64;
            if self.filled == PIECE {
                self.close();
            }
            bytes = later;
        }
    }

    /// The checksum of the whole, and that of each piece in order.
    pub(crate) fn finish(mut self) -> (u64, Vec<u64>) {
        if self.filled > 0 {
            self.close();
        }
        (self.whole.digest(), self.sums)
    }

    fn close(&mut self) {
        self.sums.push(self.piece.digest());
        self.piece.reset();
        self.filled = 0;
    }
}

/// The bytes of piece `index` of a file of `bytes`.
pub(crate) fn extent(index: u64, bytes: u64) -> std::ops::Range<u64> {
    index * PIECE..((index + 1) * PIECE).min(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    #[test]
    fn sums_do_not_depend_on_how_the_bytes_came() {
        let bytes: Vec<u8> = (0..PIECE * 2 + 5).map(|at| (at % 251) as u8).collect();
        let mut pieces = Pieces::new();
        for some in bytes.chunks(1_000_003) {
            pieces.add(some);
        }
        let (whole, sums) = pieces.finish();
        assert_eq!(whole, xxh3_64(&bytes));
        assert_eq!(sums, bytes.chunks(PIECE as usize).map(xxh3_64).collect::<Vec<_>>());
        assert_eq!(extent(2, bytes.len() as u64), PIECE * 2..PIECE * 2 + 5);
    }
}
