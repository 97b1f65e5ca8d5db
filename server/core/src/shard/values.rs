//! The values of a shard and the snapshots that readers share.
//!
//! Readers of one version share one buffer. The owner changes values in place while nobody reads them; while somebody does, it
//! changes a copy in a buffer that readers have given back, so the steady state allocates nothing.

use std::sync::Arc;

/// Snapshots kept for reuse. More are in use only when readers of more versions are slow at once.
const SPARE_MAX: usize = 4;

/// The values, copied on write.
#[derive(Debug, Default)]
pub(super) struct Values {
    current: Option<Arc<Vec<f32>>>,
    /// Snapshots that readers may still hold.
    former: Vec<Arc<Vec<f32>>>,
}

impl Clone for Values {
    /// Shares the present version; the buffers for reuse stay where they are.
    fn clone(&self) -> Self {
        Self { current: self.current.clone(), former: Vec::new() }
    }
}

impl Values {
    pub(super) const fn of(current: Option<Arc<Vec<f32>>>) -> Self {
        Self { current, former: Vec::new() }
    }

    pub(super) fn new(values: Vec<f32>) -> Self {
        Self { current: Some(Arc::new(values)), former: Vec::new() }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.current.is_none()
    }

    pub(super) fn current(&self) -> Option<&[f32]> {
        self.current.as_deref().map(Vec::as_slice)
    }

    /// A reader's share of the present version.
    pub(super) fn snapshot(&self) -> Option<Arc<Vec<f32>>> {
        self.current.clone()
    }

    /// The values, to be changed: nobody reads what is returned.
    pub(super) fn change(&mut self) -> Option<&mut [f32]> {
        let current = self.current.as_mut()?;
        if Arc::get_mut(current).is_none() {
            let next = match self.former.iter_mut().position(|former| Arc::get_mut(former).is_some()) {
                Some(index) => {
                    let mut buffer = self.former.swap_remove(index);
                    if let Some(buffer) = Arc::get_mut(&mut buffer) {
                        buffer.copy_from_slice(current);
                    }
                    buffer
                }
                None => Arc::new(current.as_ref().clone()),
            };
            let former = std::mem::replace(current, next);
            if self.former.len() < SPARE_MAX {
                self.former.push(former);
            }
        }
        Arc::get_mut(current).map(Vec::as_mut_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_never_sees_a_change_and_buffers_are_reused() {
        let mut values = Values::new(vec![0.0; 4]);
        let mut seen = std::collections::BTreeSet::new();
        for round in 0..100 {
            let snapshot = values.snapshot().unwrap();
            assert_eq!(snapshot[0], round as f32);
            values.change().unwrap()[0] += 1.0;
            assert_eq!(snapshot[0], round as f32);
            seen.insert(snapshot.as_ptr());
        }
        assert!(seen.len() <= 3, "{} buffers were made", seen.len());
    }
}
