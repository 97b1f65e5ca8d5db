//! Matrices as sums of outer products; what is in no matrix is written plainly. Written by [`super::power_sgd`] and [`super::factors`].
//!
//! ```text
//! pieces u32 | per piece: rows u32, columns u32, rank u32 | data of the pieces, in order
//! rank 0: rows * columns values    else: rank rows of `rows` values (left), rank rows of `columns` values (right)
//! ```
//! Value (i, j) of a piece is `sum over r of left[r][i] * right[r][j]`, added in the order of `r`, from the first product on.
//!
//! Reading costs `rank` multiplications a value. A payload is never longer than plain values, which bounds the rank of a piece by what
//! `rank (rows + columns)` is below `rows * columns`, and so a hostile one by the root of the keys.

use bytemuck::cast_slice;

use super::pieces::{Entry, is_whole, table};

/// Outer products that are added at once.
pub(super) const GROUP: usize = 4;

/// `out[j] += sum over g of coefficients[g] * rows[g][j]`, in order.
#[inline]
pub(super) fn add_group(out: &mut [f32], coefficients: [f32; GROUP], rows: [&[f32]; GROUP]) {
    let [c0, c1, c2, c3] = coefficients;
    let [r0, r1, r2, r3] = rows.map(|row| &row[..out.len()]);
    for (j, out) in out.iter_mut().enumerate() {
        *out = *out + c0 * r0[j] + c1 * r1[j] + c2 * r2[j] + c3 * r3[j];
    }
}

/// `out[j] += coefficient * row[j]`.
#[inline]
pub(super) fn add_one(out: &mut [f32], coefficient: f32, row: &[f32]) {
    for (out, value) in out.iter_mut().zip(row) {
        *out += coefficient * value;
    }
}

/// Writes some values of one row: `left(r)` is the coefficient of product `r`, and `right(r)` the values that it is multiplied with.
fn write_row<'p>(
    rank: usize,
    left: impl Fn(usize) -> f32,
    right: impl Fn(usize) -> &'p [f32],
    out: &mut [f32],
) {
    let first = left(0);
    for (out, value) in out.iter_mut().zip(right(0)) {
        *out = first * value;
    }
    let mut r = 1;
    while r + GROUP <= rank {
        add_group(out, std::array::from_fn(|g| left(r + g)), std::array::from_fn(|g| right(r + g)));
        r += GROUP;
    }
    for r in r..rank {
        add_one(out, left(r), right(r));
    }
}

/// Words of a piece's data.
fn data_words([rows, cols, rank]: &Entry) -> u64 {
    let (rows, cols, rank) = (u64::from(*rows), u64::from(*cols), u64::from(*rank));
    if rank == 0 { rows.saturating_mul(cols) } else { rank.saturating_mul(rows + cols) }
}

/// What is wrong with a foreign payload.
pub(super) fn fault(words: &[u32], keys: usize) -> Option<&'static str> {
    let Some((table, data)) = table(words) else { return Some("its table is not whole") };
    if !is_whole(table, keys) {
        return Some("its pieces do not make up its keys");
    }
    let needed = table.iter().fold(0_u64, |sum, entry| sum.saturating_add(data_words(entry)));
    (needed != data.len() as u64).then_some("its pieces have not the data that its table says")
}

/// Reads the keys of a payload in order.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'p> {
    /// Pieces that are not read to their end.
    table: &'p [Entry],
    data: &'p [f32],
    /// Keys of the first piece that were read.
    at: usize,
}

impl<'p> Cursor<'p> {
    pub(super) fn new(words: &'p [u32]) -> Self {
        let (table, data) = table(words).unwrap_or_default();
        Self { table, data: cast_slice(data), at: 0 }
    }

    /// The next of at most `len` keys that lie in one row: their piece, row, and columns.
    fn advance(&mut self, len: usize) -> Option<(Entry, &'p [f32], usize, std::ops::Range<usize>)> {
        let (entry, later) = self.table.split_first()?;
        let data = self.data;
        let (rows, cols) = (entry[0] as usize, entry[1] as usize);
        let (row, col) = (self.at / cols, self.at % cols);
        let len = len.min(cols - col);
        self.at += len;
        if self.at == rows * cols {
            (self.table, self.data, self.at) = (later, &data[data_words(entry) as usize..], 0);
        }
        Some((*entry, data, row, col..col + len))
    }

    /// Writes the next values to all of `out`.
    pub(super) fn read(&mut self, mut out: &mut [f32]) {
        while let Some((entry, data, row, part)) = self.advance(out.len()) {
            let (here, rest) = out.split_at_mut(part.len());
            let [rows, cols, rank] = entry.map(|number| number as usize);
            if rank == 0 {
                let begin = row * cols;
                here.copy_from_slice(&data[begin + part.start..begin + part.end]);
            } else {
                let (left, right) = data.split_at(rank * rows);
                let coefficient = |r: usize| left[r * rows + row];
                write_row(rank, coefficient, |r| &right[r * cols + part.start..r * cols + part.end], here);
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
            let Some((_, _, _, part)) = self.advance(len) else { return };
            len -= part.len();
        }
    }

    /// The first key that is not finite, of so many.
    pub(super) fn first_not_finite(mut self, keys: usize) -> Option<usize> {
        if self.is_surely_finite() {
            return None;
        }
        let mut values = [0.0; 1024];
        for begin in (0..keys).step_by(values.len()) {
            let values = &mut values[..(keys - begin).min(1024)];
            self.read(values);
            if let Some(place) = values.iter().position(|value| !value.is_finite()) {
                return Some(begin + place);
            }
        }
        None
    }

    /// Whether no sum of products can be infinite, by the largest factors.
    fn is_surely_finite(&self) -> bool {
        let largest = |values: &[f32]| {
            let bits = values.iter().fold(0, |most, value| most.max((value.to_bits() & 0x7fff_ffff) as i32));
            f32::from_bits(bits as u32)
        };
        let mut data = self.data;
        self.table.iter().all(|entry| {
            let (here, rest) = data.split_at(data_words(entry) as usize);
            data = rest;
            let [rows, _, rank] = entry.map(|number| number as usize);
            let (left, right) = here.split_at(rank * rows);
            // Twice what exact sums could be is more than what rounding adds to them.
            let most =
                if rank == 0 { largest(right) } else { largest(left) * largest(right) * rank as f32 * 2.0 };
            most.is_finite()
        })
    }
}
