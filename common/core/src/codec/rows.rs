//! Rows of matrices that are not all zero, by their numbers: for embeddings, of which a batch touches a few.
//!
//! ```text
//! pieces u32 | per piece: rows u32, columns u32, rows that are sent u32 | numbers of those rows, u32 each, of all pieces of which not
//! all rows are sent | values of the rows that are sent
//! ```
//! A run of keys that is in no matrix is one row. (Li et al. 2014 send key and value pairs; with rows a number serves all its columns.)
//!
//! Error: none, but that a zero loses its sign.

use bytemuck::{cast_slice, cast_slice_mut};

use super::pieces::{Entry, Pieces, is_whole, table, table_words, write_table};

/// Writes a gradient; false where plain values would not be longer. `chosen` is room to work in.
pub(super) fn write(pieces: &Pieces, gradient: &[f32], chosen: &mut Vec<u32>, words: &mut Vec<f32>) -> bool {
    chosen.clear();
    let mut entries = Vec::new();
    let (mut numbers, mut values) = (0, 0);
    for piece in pieces.iter() {
        let before = chosen.len();
        for (row, here) in gradient[piece.keys()].chunks_exact(piece.cols).enumerate() {
            if here.chunks(256).any(|part| part.iter().fold(false, |any, value| any | (*value != 0.0))) {
                chosen.push(row as u32);
            }
        }
        let count = chosen.len() - before;
        numbers += if count == piece.rows { 0 } else { count };
        values += count * piece.cols;
        entries.push([piece.rows, piece.cols, count]);
    }
    let head = table_words(entries.len());
    if head + numbers + values >= gradient.len() {
        return false;
    }
    words.clear();
    words.resize(head, 0.0);
    if !write_table(entries.iter().copied(), cast_slice_mut(words)) {
        return false;
    }
    let mut rest = chosen.as_slice();
    for [rows, _, count] in &entries {
        let (here, later) = rest.split_at(*count);
        rest = later;
        if count != rows {
            words.extend(here.iter().map(|row| f32::from_bits(*row)));
        }
    }
    let mut rest = chosen.as_slice();
    for (piece, [_, cols, count]) in pieces.iter().zip(&entries) {
        let (here, later) = rest.split_at(*count);
        rest = later;
        for row in here {
            let begin = piece.at + *row as usize * cols;
            words.extend_from_slice(&gradient[begin..begin + cols]);
        }
    }
    true
}

/// How many numbers of rows a piece has.
const fn numbers([rows, _, count]: &Entry) -> usize {
    if *count == *rows { 0 } else { *count as usize }
}

/// What is wrong with a foreign payload.
pub(super) fn fault(words: &[u32], keys: usize) -> Option<&'static str> {
    let Some((table, mut rest)) = table(words) else { return Some("its table is not whole") };
    if !is_whole(table, keys) {
        return Some("its pieces do not make up its keys");
    }
    let mut values = 0_u64;
    for entry @ [rows, cols, count] in table {
        let Some((here, later)) = rest.split_at_checked(numbers(entry)) else {
            return Some("it has not the rows that its table says");
        };
        rest = later;
        let rises = here.is_sorted_by(|left, right| left < right);
        if count > rows || !rises || here.last().is_some_and(|last| last >= rows) {
            return Some("its rows do not rise within their matrix");
        }
        values = values.saturating_add(u64::from(*count) * u64::from(*cols));
    }
    (values != rest.len() as u64).then_some("its rows have not the values that its table says")
}

/// Reads the keys of a payload in order.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'p> {
    /// Pieces that are not read to their end.
    table: &'p [Entry],
    /// Numbers of the rows to come that are sent: of the first piece, and of those after it.
    here: &'p [u32],
    later: &'p [u32],
    values: &'p [f32],
    /// Where the next key lies in the first piece.
    row: usize,
    col: usize,
}

impl<'p> Cursor<'p> {
    pub(super) fn new(words: &'p [u32]) -> Self {
        let (table, rest) = table(words).unwrap_or_default();
        let (later, values) = rest.split_at(table.iter().map(numbers).sum());
        let mut cursor = Self { table, here: &[], later, values: cast_slice(values), row: 0, col: 0 };
        cursor.enter();
        cursor
    }

    /// Takes up the numbers of the first piece.
    fn enter(&mut self) {
        let count = self.table.first().map_or(0, numbers);
        (self.here, self.later) = self.later.split_at(count);
        self.row = 0;
    }

    /// The next of at most `len` keys that lie in one row: how many, and their values unless they are zero.
    fn advance(&mut self, len: usize) -> Option<(usize, Option<&'p [f32]>)> {
        let ([rows, cols, count], later) = self.table.split_first()?;
        let is_sent = count == rows || self.here.first().is_some_and(|row| *row as usize == self.row);
        let len = len.min(*cols as usize - self.col);
        let sent = if is_sent {
            let (sent, rest) = self.values.split_at(len);
            self.values = rest;
            Some(sent)
        } else {
            None
        };
        self.col += len;
        if self.col == *cols as usize {
            (self.row, self.col) = (self.row + 1, 0);
            if is_sent && count != rows {
                self.here = &self.here[1..];
            }
            if self.row == *rows as usize {
                self.table = later;
                self.enter();
            }
        }
        Some((len, sent))
    }

    /// Writes the next values to all of `out`.
    pub(super) fn read(&mut self, mut out: &mut [f32]) {
        while let Some((len, sent)) = self.advance(out.len()) {
            let (here, rest) = out.split_at_mut(len);
            match sent {
                Some(sent) => here.copy_from_slice(sent),
                None => here.fill(0.0),
            }
            if rest.is_empty() {
                return;
            }
            out = rest;
        }
    }

    /// Leaves out the next `len` values.
    pub(super) fn skip(&mut self, mut len: usize) {
        while len > 0 {
            let Some((passed, _)) = self.advance(len) else { return };
            len -= passed;
        }
    }

    /// The first key that is not finite.
    pub(super) fn first_not_finite(mut self) -> Option<usize> {
        crate::aggregate::first_not_finite(self.values)?;
        let mut at = 0;
        loop {
            let (passed, sent) = self.advance(usize::MAX)?;
            if let Some(place) = sent.and_then(crate::aggregate::first_not_finite) {
                return Some(at + place);
            }
            at += passed;
        }
    }
}
