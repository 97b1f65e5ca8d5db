//! The layout of the flat parameter space: which tensor lies where, and how it is treated.

use std::fmt;

/// What a tensor is to the optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorKind {
    /// Trained by gradients.
    Parameter,
    /// Not trained (running statistics); carried beside the parameters.
    Buffer,
}

/// One tensor of the flat space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name, unique within the layout, for example `layer0.weight`.
    pub path: String,
    /// Dimensions, outermost first; row-major.
    pub shape: Vec<u64>,
    /// Key of its first value.
    pub offset: u64,
    /// Parameter or buffer.
    pub kind: TensorKind,
    /// Whether weight decay applies to it (biases and norms usually leave it out).
    pub decay: bool,
}

impl Tensor {
    /// Number of values.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Whether it has no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The tensors of a model, laid one after another without gaps.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Layout {
    tensors: Vec<Tensor>,
    len: u64,
}

impl Layout {
    /// An empty layout.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a trained tensor; returns its offset.
    pub fn parameter(&mut self, path: impl Into<String>, shape: &[u64], decay: bool) -> u64 {
        self.push(path.into(), shape, TensorKind::Parameter, decay)
    }

    /// Appends an untrained tensor; returns its offset.
    pub fn buffer(&mut self, path: impl Into<String>, shape: &[u64]) -> u64 {
        self.push(path.into(), shape, TensorKind::Buffer, false)
    }

    fn push(&mut self, path: String, shape: &[u64], kind: TensorKind, decay: bool) -> u64 {
        let offset = self.len;
        let tensor = Tensor { path, shape: shape.to_vec(), offset, kind, decay };
        self.len += tensor.len();
        self.tensors.push(tensor);
        offset
    }

    /// Number of values in the flat space.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether the space is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The tensors, in order of their offsets.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor that holds `key`, if any does.
    #[must_use]
    pub fn tensor_of(&self, key: u64) -> Option<&Tensor> {
        let after = self.tensors.partition_point(|tensor| tensor.offset <= key);
        let tensor = self.tensors[..after].iter().rev().find(|tensor| !tensor.is_empty())?;
        (key < tensor.offset + tensor.len()).then_some(tensor)
    }

    /// Fingerprint of everything above. Two sides of one run must agree on it; it guards against mistakes, not
    /// against malice (the transport does that).
    #[must_use]
    pub fn hash(&self) -> u64 {
        let mut bytes = Vec::new();
        for tensor in &self.tensors {
            bytes.extend((tensor.path.len() as u64).to_le_bytes());
            bytes.extend(tensor.path.as_bytes());
            bytes.extend((tensor.shape.len() as u64).to_le_bytes());
            for dimension in &tensor.shape {
                bytes.extend(dimension.to_le_bytes());
            }
            bytes.push(u8::from(tensor.kind == TensorKind::Buffer));
            bytes.push(u8::from(tensor.decay));
        }
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values in {} tensors", self.len, self.tensors.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_belongs_to_the_tensor_that_covers_it() {
        let mut layout = Layout::new();
        layout.parameter("a", &[2, 3], true);
        layout.parameter("empty", &[0], true);
        layout.buffer("b", &[4]);
        assert_eq!(layout.len(), 10);
        let path = |key| layout.tensor_of(key).map(|tensor| tensor.path.as_str());
        assert_eq!(
            [path(0), path(5), path(6), path(9), path(10)],
            [Some("a"), Some("a"), Some("b"), Some("b"), None]
        );
    }

    #[test]
    fn the_hash_sees_every_property() {
        let base = |path: &str, shape: &[u64], decay| {
            let mut layout = Layout::new();
            layout.parameter(path, shape, decay);
            layout.hash()
        };
        let hashes = [
            base("a", &[2, 3], true),
            base("b", &[2, 3], true),
            base("a", &[3, 2], true),
            base("a", &[2, 3], false),
        ];
        for (i, left) in hashes.iter().enumerate() {
            for right in &hashes[i + 1..] {
                assert_ne!(left, right);
            }
        }
    }
}
