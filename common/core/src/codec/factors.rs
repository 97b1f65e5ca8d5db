//! What the gradient of a fully-connected layer is made of.

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
