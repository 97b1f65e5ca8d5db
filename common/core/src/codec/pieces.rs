//! A range of keys as pieces: whole rows of matrices, and what lies between.

use bytemuck::cast_slice;

use crate::ids::KeyRange;
use crate::layout::Layout;

/// A part of a range: whole rows of one matrix, or a run of other keys, which is one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// First key, counted from the beginning of the range.
    pub(super) at: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// The matrix: its place among the tensors, and the first of its rows that is here.
    pub(super) matrix: Option<(usize, usize)>,
}

impl Piece {
    pub(super) const fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// The keys, counted from the beginning of the range.
    pub(super) const fn keys(&self) -> std::ops::Range<usize> {
        self.at..self.at + self.len()
    }
}

/// Pieces in the order of their keys, without gaps.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces(Vec<Piece>);

impl Pieces {
    /// The pieces of a range: a tensor of two or more dimensions is a matrix of as many rows as its first one has, of which the range may
    /// hold some, and what it holds of others belongs to the run beside them.
    pub(super) fn of(layout: &Layout, range: KeyRange) -> Self {
        let mut pieces = Self::default();
        for (index, tensor) in layout.tensors().iter().enumerate() {
            let start = tensor.offset.max(range.start);
            let end = (tensor.offset + tensor.len()).min(range.end());
            if start >= end {
                continue;
            }
            let cols = match tensor.shape.as_slice() {
                [_, inner @ ..] if !inner.is_empty() => inner.iter().product::<u64>(),
                _ => tensor.len(),
            };
            let first = (start - tensor.offset).div_ceil(cols);
            let last = (end - tensor.offset) / cols;
            let rows = last.saturating_sub(first);
            if rows < 2 || cols < 2 {
                pieces.run((end - start) as usize);
                continue;
            }
            let (begin, close) = (tensor.offset + first * cols, tensor.offset + last * cols);
            pieces.run((begin - start) as usize);
            pieces.push(rows as usize, cols as usize, Some((index, first as usize)));
            pieces.run((end - close) as usize);
        }
        pieces
    }

    /// Adds keys that are in no matrix.
    pub(super) fn run(&mut self, len: usize) {
        match self.0.last_mut() {
            Some(last) if last.matrix.is_none() => last.cols += len,
            _ if len == 0 => {}
            _ => self.push(1, len, None),
        }
    }

    pub(super) fn push(&mut self, rows: usize, cols: usize, matrix: Option<(usize, usize)>) {
        let at = self.0.last().map_or(0, |last| last.keys().end);
        self.0.push(Piece { at, rows, cols, matrix });
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Piece> {
        self.0.iter()
    }
}

/// What the table of a payload says of a piece: rows, columns, and a number that the encoding gives a meaning.
pub(super) type Entry = [u32; 3];

/// Words of a table.
pub(super) const fn table_words(pieces: usize) -> usize {
    1 + 3 * pieces
}

/// The table at the beginning of a payload, and what comes after.
pub(super) fn table(words: &[u32]) -> Option<(&[Entry], &[u32])> {
    let (count, rest) = words.split_first()?;
    let (entries, rest) = rest.split_at_checked((*count as usize).checked_mul(3)?)?;
    Some((cast_slice(entries), rest))
}

/// Writes a table, if its numbers fit.
pub(super) fn write_table(entries: impl ExactSizeIterator<Item = [usize; 3]>, words: &mut [u32]) -> bool {
    let mut fits = entries.len() <= u32::MAX as usize;
    words[0] = entries.len() as u32;
    for (entry, words) in entries.zip(words[1..].chunks_exact_mut(3)) {
        for (word, number) in words.iter_mut().zip(entry) {
            fits &= number <= u32::MAX as usize;
            *word = number as u32;
        }
    }
    fits
}

/// Whether the pieces of a foreign table make up so many keys; none of them is empty.
pub(super) fn is_whole(table: &[Entry], keys: usize) -> bool {
    let sum = table.iter().try_fold(0_u64, |sum, [rows, cols, _]| {
        let len = u64::from(*rows) * u64::from(*cols);
        if len == 0 { None } else { sum.checked_add(len) }
    });
    sum == Some(keys as u64)
}
