//! How the values of a bucket lie when they travel: part by part.

use crate::ids::KeyRange;

/// Which part each key belongs to: blocks of keys are dealt out to the parts in turn, over the whole flat space.
///
/// So a value belongs to the same part whatever bucket it travels in, and since the order in which a part's values are summed
/// depends on nothing but the part, sums have the same bits with and without tensor fusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    parts: u32,
}

/// A piece of a block that lies in one range of keys.
struct Piece {
    part: usize,
    /// Where it lies in the range.
    place: usize,
    len: usize,
}

impl Packing {
    /// Keys of a block: 1 KiB of values. Parts differ by at most this much. The smallest model here (softmax, 7,850 values) is 31
    /// blocks, so that 16 parts differ from their mean by 5 % at most, and the MLP (535,818 values) by less than 1 %; with
    /// blocks of 4096 half of the parts of the former would be empty. It is long enough for loops over a block to run at the
    /// speed of a copy.
    pub const BLOCK: u64 = 256;

    /// For a schedule's number of parts; zero is taken as one.
    #[must_use]
    pub const fn new(parts: u32) -> Self {
        Self { parts: if parts == 0 { 1 } else { parts } }
    }

    /// The part of a key.
    #[must_use]
    pub const fn part_of(self, key: u64) -> u32 {
        (key / Self::BLOCK % self.parts as u64) as u32
    }

    /// How many of the keys below `end` belong to a part.
    fn below(self, end: u64, part: u32) -> u64 {
        let turn = Self::BLOCK * u64::from(self.parts);
        let (turns, rest) = (end / turn, end % turn);
        turns * Self::BLOCK + rest.saturating_sub(u64::from(part) * Self::BLOCK).min(Self::BLOCK)
    }

    /// How many of those keys belong to each part.
    #[must_use]
    pub fn part_lens(self, keys: KeyRange) -> Vec<u64> {
        let end = keys.start.saturating_add(keys.len);
        (0..self.parts).map(|part| self.below(end, part) - self.below(keys.start, part)).collect()
    }

    /// The first `len` of the keys from `start` on, block by block.
    fn pieces(self, start: u64, len: usize) -> impl Iterator<Item = Piece> {
        let (mut place, mut part) = (0, self.part_of(start) as usize);
        let mut left = (Self::BLOCK - start % Self::BLOCK) as usize;
        std::iter::from_fn(move || {
            let piece = Piece { part, place, len: left.min(len - place) };
            place += piece.len;
            part = if part + 1 == self.parts as usize { 0 } else { part + 1 };
            left = Self::BLOCK as usize;
            (piece.len > 0).then_some(piece)
        })
    }

    /// Replaces `out` by the gradient of those keys, times `share`, part by part: all values of part 0, then all of part 1 and so on,
    /// within a part by rising keys. Of a gradient of another length than the keys, the shorter of the two counts.
    pub fn pack(self, keys: KeyRange, gradient: &[f32], share: f32, out: &mut Vec<f32>) {
        let len = gradient.len().min(usize::try_from(keys.len).unwrap_or(usize::MAX));
        let lens = self.part_lens(KeyRange::new(keys.start, len as u64));
        let mut places = starts(&lens);
        out.resize(len, 0.0);
        for piece in self.pieces(keys.start, len) {
            let place = &mut places[piece.part];
            let target = &mut out[*place..*place + piece.len];
            for (target, value) in target.iter_mut().zip(&gradient[piece.place..piece.place + piece.len]) {
                *target = value * share;
            }
            *place += piece.len;
        }
    }

    /// Puts the values of all parts, one entry each, back in the order of their keys. Where a part is shorter than it should be, `out`
    /// stays as it was.
    pub fn unpack<V: AsRef<[f32]>>(self, keys: KeyRange, parts: &[V], out: &mut [f32]) {
        let len = out.len().min(usize::try_from(keys.len).unwrap_or(usize::MAX));
        let mut rests: Vec<&[f32]> = parts.iter().map(AsRef::as_ref).collect();
        rests.resize(self.parts as usize, &[]);
        for piece in self.pieces(keys.start, len) {
            let rest = &mut rests[piece.part];
            let (block, after) = rest.split_at(piece.len.min(rest.len()));
            out[piece.place..piece.place + block.len()].copy_from_slice(block);
            *rest = after;
        }
    }
}

/// Where each part begins.
fn starts(lens: &[u64]) -> Vec<usize> {
    let mut start = 0;
    let next = |len: &u64| {
        start += *len as usize;
        start - *len as usize
    };
    lens.iter().map(next).collect()
}
