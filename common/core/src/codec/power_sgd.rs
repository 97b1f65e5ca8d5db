//! The gradient of a matrix as a few outer products, by one step of power iteration from where the last one ended.
//!
//! Vogels et al. 2019, "PowerSGD: practical low-rank gradient compression for distributed optimization", algorithm 1, for a matrix `M` of
//! `m` rows and `n` columns and rank `r`:
//!
//! ```text
//! P <- M Q          (m, r)
//! P <- orthogonalise(P)   Gram-Schmidt
//! Q <- M^T P        (n, r), kept for the next time
//! C(M) = P Q^T
//! ```
//! Between the two products they take the mean over all workers; here each worker's `P Q^T` goes to the servers, which add them, so
//! what is added has a rank up to `r` times the workers. Written as [`super::low_rank`]; what is in no matrix, and a matrix that would
//! take as many words as it has, is sent as it is.
//!
//! Error: `P` is orthonormal, so `C(M) = P P^T M` is a projection and `|M - C(M)|^2 = |M|^2 - |C(M)|^2`, with a `delta` of
//! `|P^T M|^2 / |M|^2`; repeated on one matrix it goes to that of the best approximation of rank `r`. What is kept is the f32 nearest to
//! the sum less what is sent: rounded by at most 2^-24 of itself, as the sum of gradient and kept is before. It cannot be exact, since
//! products of `P` and `Q` have more bits than an f32 has.

use super::blocks::largest;
use super::low_rank::{GROUP, add_group, add_one};
use super::pieces::{Piece, Pieces, table_words, write_table};
use super::random::Lanes;

/// Magnitudes from here on, as bits of an f32, are not taken: 2^90. Their products must be finite.
pub(super) const TOO_LARGE: u32 = 217 << 23;

/// A start below this says nothing: 2^-100.
const NOTHING: f32 = f32::from_bits(27 << 23);

const LANES: usize = 8;

/// The pieces of a range with where the power iteration of each has come to.
#[derive(Clone, Debug)]
pub(super) struct PowerSgd {
    pieces: Vec<Iterated>,
    /// Words of a payload.
    words: usize,
}

#[derive(Clone, Debug)]
struct Iterated {
    piece: Piece,
    /// Outer products; none for a piece that is sent as it is.
    rank: usize,
    /// `Q`, shape (rank, columns).
    start: Vec<f32>,
}

impl PowerSgd {
    pub(super) fn new(pieces: &Pieces, rank: usize) -> Self {
        let mut parts = Pieces::default();
        let mut ranks = Vec::new();
        for piece in pieces.iter() {
            let rank = rank.min(piece.rows).min(piece.cols);
            if piece.matrix.is_some() && rank * (piece.rows + piece.cols) < piece.len() {
                parts.push(piece.rows, piece.cols, piece.matrix);
                ranks.push(rank);
            } else {
                parts.run(piece.len());
            }
        }
        let mut ranks = ranks.into_iter();
        let pieces: Vec<_> = parts
            .iter()
            .map(|piece| {
                let rank = piece.matrix.and_then(|_| ranks.next()).unwrap_or(0);
                Iterated { piece: *piece, rank, start: vec![0.0; rank * piece.cols] }
            })
            .collect();
        let data = pieces.iter().map(Iterated::data_words).sum::<usize>();
        Self { words: table_words(pieces.len()) + data, pieces }
    }

    /// Writes a sum; false where plain values would not be longer. A start that says nothing is drawn anew.
    pub(super) fn write(&mut self, sum: &[f32], mut random: Lanes, words: &mut Vec<f32>) -> bool {
        if self.words >= sum.len() {
            return false;
        }
        words.resize(self.words, 0.0);
        let (table, mut data) = words.split_at_mut(table_words(self.pieces.len()));
        let entries = self.pieces.iter().map(|Iterated { piece, rank, .. }| [piece.rows, piece.cols, *rank]);
        if !write_table(entries, bytemuck::cast_slice_mut(table)) {
            return false;
        }
        for iterated in &mut self.pieces {
            let (here, rest) = data.split_at_mut(iterated.data_words());
            iterated.write(&sum[iterated.piece.keys()], &mut random, here);
            data = rest;
        }
        true
    }
}

impl Iterated {
    const fn data_words(&self) -> usize {
        if self.rank == 0 { self.piece.len() } else { self.rank * (self.piece.rows + self.piece.cols) }
    }

    fn write(&mut self, matrix: &[f32], random: &mut Lanes, data: &mut [f32]) {
        if self.rank == 0 {
            data.copy_from_slice(matrix);
            return;
        }
        let (rows, cols) = (self.piece.rows, self.piece.cols);
        for start in self.start.chunks_exact_mut(cols).filter(|start| largest(start) < NOTHING) {
            draw(start, random);
        }
        let (left, right) = data.split_at_mut(self.rank * rows);
        multiply(matrix, &self.start, cols, left);
        orthonormalise(left, rows);
        multiply_transposed(matrix, left, cols, right);
        for (start, right) in self.start.chunks_exact_mut(cols).zip(right.chunks_exact(cols)) {
            // Its length does not matter, since what it gives is made orthonormal; this keeps it in range.
            let exponent = (largest(right).to_bits() >> 23).clamp(27, 217);
            let scale = f32::from_bits((254 - exponent) << 23);
            for (start, right) in start.iter_mut().zip(right) {
                *start = right * scale;
            }
        }
    }
}

/// Uniform in [-1, 1): any direction that is not orthogonal to all that matters will do.
fn draw(start: &mut [f32], random: &mut Lanes) {
    let mut numbers = [0; 64];
    for start in start.chunks_mut(numbers.len()) {
        random.fill(&mut numbers);
        for (start, number) in start.iter_mut().zip(numbers) {
            *start = (number as i32 >> 8) as f32 * (1.0 / 8_388_608.0);
        }
    }
}

/// `left = M Q`: shapes (rows, cols), (rank, cols) and (rank, rows).
fn multiply(matrix: &[f32], start: &[f32], cols: usize, left: &mut [f32]) {
    let (rows, rank) = (matrix.len() / cols, start.len() / cols);
    let vector = |r: usize| &start[r * cols..(r + 1) * cols];
    for (i, row) in matrix.chunks_exact(cols).enumerate() {
        let mut r = 0;
        while r + GROUP <= rank {
            let sums: [f32; GROUP] = dots(row, std::array::from_fn(|g| vector(r + g)));
            for (g, sum) in sums.into_iter().enumerate() {
                left[(r + g) * rows + i] = sum;
            }
            r += GROUP;
        }
        for r in r..rank {
            left[r * rows + i] = dots(row, [vector(r)])[0];
        }
    }
}

/// Dot products of one row with several vectors, in an order that suits vectors of the processor.
#[inline]
fn dots<const N: usize>(row: &[f32], vectors: [&[f32]; N]) -> [f32; N] {
    let mut sums = [[0.0; LANES]; N];
    let whole = row.len() / LANES * LANES;
    for begin in (0..whole).step_by(LANES) {
        let here = &row[begin..begin + LANES];
        for (sums, vector) in sums.iter_mut().zip(vectors) {
            let there = &vector[begin..begin + LANES];
            for lane in 0..LANES {
                sums[lane] += here[lane] * there[lane];
            }
        }
    }
    for (sums, vector) in sums.iter_mut().zip(vectors) {
        for (sum, (here, there)) in sums.iter_mut().zip(row[whole..].iter().zip(&vector[whole..])) {
            *sum += here * there;
        }
    }
    sums.map(|lanes| lanes.iter().sum())
}

/// `right = M^T P`: shapes (rows, cols), (rank, rows) and (rank, cols).
fn multiply_transposed(matrix: &[f32], left: &[f32], cols: usize, right: &mut [f32]) {
    let rows = matrix.len() / cols;
    let row = |i: usize| &matrix[i * cols..(i + 1) * cols];
    right.fill(0.0);
    let whole = rows / GROUP * GROUP;
    for i in (0..whole).step_by(GROUP) {
        let group = std::array::from_fn(|g| row(i + g));
        for (right, left) in right.chunks_exact_mut(cols).zip(left.chunks_exact(rows)) {
            add_group(right, std::array::from_fn(|g| left[i + g]), group);
        }
    }
    for i in whole..rows {
        for (right, left) in right.chunks_exact_mut(cols).zip(left.chunks_exact(rows)) {
            add_one(right, left[i], row(i));
        }
    }
}

/// Makes the rows of `left`, of `rows` values each, orthogonal to each other and of length one, in order (Gram-Schmidt); one that
/// depends on those before becomes zero, or any other direction that its rounding left. Each is projected twice, which is enough for them
/// to be orthogonal to the last place (Giraud et al. 2005).
fn orthonormalise(left: &mut [f32], rows: usize) {
    for at in (0..left.len()).step_by(rows) {
        let (done, rest) = left.split_at_mut(at);
        let vector = &mut rest[..rows];
        for _ in 0..2 {
            for done in done.chunks_exact(rows) {
                let along = dot(done, vector) as f32;
                for (value, done) in vector.iter_mut().zip(done) {
                    *value -= along * done;
                }
            }
        }
        let length = dot(vector, vector).sqrt();
        if length > 0.0 {
            for value in vector {
                *value = (f64::from(*value) / length) as f32;
            }
        }
    }
}

/// A dot product in double precision.
fn dot(left: &[f32], right: &[f32]) -> f64 {
    let mut sums = [0.0; LANES];
    for (left, right) in left.chunks(LANES).zip(right.chunks(LANES)) {
        for (sum, (left, right)) in sums.iter_mut().zip(left.iter().zip(right)) {
            *sum += f64::from(*left) * f64::from(*right);
        }
    }
    sums.iter().sum()
}
