//! The gradient of a fully-connected layer by the vectors that it is made of.
//!
//! Xie et al. 2016, "Lighter-communication distributed machine learning via sufficient factor broadcasting", and Zhang et al. 2017
//! (Poseidon): over `K` samples the gradient of a matrix of `M` rows and `N` columns is the sum of `K` outer products, so that
//! `K (M + N)` values say it, which is less than `M N` for small batches and large layers. It is chosen piece by piece where it is less.
//! Written as [`super::low_rank`].
//!
//! Error: none but the order of a sum. The server adds the products that the worker would have added, and both differ from the exact
//! sum by at most `K 2^-23` of the sum of the products' magnitudes (Higham 2002, equation 3.5). Nothing is kept.

use super::pieces::{Piece, Pieces, table_words, write_table};

/// The vectors that the gradient of one matrix is made of: with `M` rows and `N` columns it is the sum over `K` samples of the outer
/// products of an activation (`M` values) and an error (`N` values).
#[derive(Clone, Copy, Debug)]
pub struct Factors<'a> {
    /// The matrix: its place among the tensors of the layout.
    pub tensor: usize,
    /// How many samples: `K`.
    pub samples: usize,
    /// Shape (`K`, `M`), row-major: what went into the layer.
    pub activations: &'a [f32],
    /// Shape (`K`, `N`), row-major: the loss's gradient by what came out, already divided by the batch.
    pub errors: &'a [f32],
}

impl Factors<'_> {
    /// Vectors of sample `k` for the rows of a piece.
    fn vectors(&self, k: usize, piece: &Piece, first_row: usize) -> (&[f32], &[f32]) {
        let height = self.activations.len() / self.samples;
        let begin = k * height + first_row;
        (&self.activations[begin..begin + piece.rows], &self.errors[k * piece.cols..(k + 1) * piece.cols])
    }
}

/// Writes a gradient; false where plain values would not be longer.
///
/// # Panics
/// The factors have not the shapes of their matrix.
pub(super) fn write(
    pieces: &Pieces,
    gradient: &[f32],
    factors: &[Factors<'_>],
    words: &mut Vec<f32>,
) -> bool {
    let chosen = |piece: &Piece| {
        let (tensor, first_row) = piece.matrix?;
        let factors = factors.iter().find(|factors| factors.tensor == tensor && factors.samples > 0)?;
        assert_eq!(factors.errors.len(), factors.samples * piece.cols, "an error a sample and column");
        (factors.samples * (piece.rows + piece.cols) < piece.len()).then_some((factors, first_row))
    };
    let mut parts = Pieces::default();
    for piece in pieces.iter() {
        match chosen(piece) {
            Some(_) => parts.push(piece.rows, piece.cols, piece.matrix),
            None => parts.run(piece.len()),
        }
    }
    let parts: Vec<_> = parts.iter().map(|piece| (*piece, chosen(piece))).collect();
    let size = |(piece, chosen): &(Piece, Option<(&Factors<'_>, usize)>)| match chosen {
        Some((factors, _)) => factors.samples * (piece.rows + piece.cols),
        None => piece.len(),
    };
    let total = table_words(parts.len()) + parts.iter().map(size).sum::<usize>();
    if total >= gradient.len() {
        return false;
    }
    words.clear();
    words.resize(table_words(parts.len()), 0.0);
    let entries = parts
        .iter()
        .map(|(piece, chosen)| [piece.rows, piece.cols, chosen.map_or(0, |(factors, _)| factors.samples)]);
    if !write_table(entries, bytemuck::cast_slice_mut(words)) {
        return false;
    }
    for (piece, chosen) in &parts {
        let Some((factors, first_row)) = chosen else {
            words.extend_from_slice(&gradient[piece.keys()]);
            continue;
        };
        for k in 0..factors.samples {
            words.extend_from_slice(factors.vectors(k, piece, *first_row).0);
        }
        for k in 0..factors.samples {
            words.extend_from_slice(factors.vectors(k, piece, *first_row).1);
        }
    }
    true
}
