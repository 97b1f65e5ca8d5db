//! The values of a shard and the snapshots that readers share.
//!
//! Readers of one version share one buffer. The owner changes values in place while nobody reads them; while somebody does, it
//! changes a copy in a buffer of the server's store. Readers give theirs back to that, so the steady state allocates nothing.

use std::sync::Arc;

use crate::buffers::Buffers;

/// The values, copied on write.
#[derive(Clone, Debug, Default)]
pub(super) struct Values {
    current: Option<Arc<Vec<f32>>>,
    buffers: Buffers,
}

impl Values {
    pub(super) const fn of(current: Option<Arc<Vec<f32>>>, buffers: Buffers) -> Self {
        Self { current, buffers }
    }

    /// These values instead of those that there are, which are none.
    pub(super) fn begin(&mut self, values: Vec<f32>) {
        self.current = Some(Arc::new(values));
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

    /// Where buffers come from and go to.
    pub(super) const fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// A reader gives its share back, where the shard knows of it.
    pub(super) fn give_back(&self, snapshot: Arc<Vec<f32>>) {
        self.buffers.put_shared(snapshot);
    }

    /// The values, to be changed: nobody reads what is returned.
    pub(super) fn change(&mut self) -> Option<&mut [f32]> {
        let current = self.current.as_mut()?;
        if Arc::get_mut(current).is_none() {
            let next = Arc::new(self.buffers.copy(current));
            self.buffers.put_shared(std::mem::replace(current, next));
        }
        Arc::get_mut(current).map(Vec::as_mut_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Cases 28 and 42 of the allreduce list (torchtitan#4754, bagua#185): what was read or saved while the next step was taken was of both.
    #[test]
    fn a_reader_never_sees_a_change_and_buffers_are_reused() {
        let buffers = Buffers::new(4, 8);
        let mut values = Values::of(None, buffers.clone());
        values.begin(buffers.take(4));
        let mut seen = std::collections::BTreeSet::new();
        for round in 0..100 {
            let snapshot = values.snapshot().unwrap();
            assert_eq!(snapshot[0], round as f32);
            values.change().unwrap()[0] += 1.0;
            assert_eq!(snapshot[0], round as f32);
            seen.insert(snapshot.as_ptr());
            values.give_back(snapshot);
        }
        assert_eq!((seen.len(), buffers.kept()), (2, 1));
    }

    #[test]
    fn a_store_of_buffers_is_no_part_of_what_is_read() {
        let buffers = Buffers::new(4, 8);
        buffers.put(vec![9.0; 4]);
        let mut values = Values::of(Some(Arc::new(vec![1.0; 3])), buffers);
        let reader = values.snapshot();
        assert_eq!(values.change().unwrap(), [1.0; 3]);
        assert_eq!(reader.unwrap().as_slice(), [1.0; 3]);
    }
}
