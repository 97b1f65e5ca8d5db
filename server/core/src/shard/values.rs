//! The values of a shard and the snapshots that readers share.
//!
//! Readers of one version share one buffer. The owner changes values in place while nobody reads them; while somebody does, it
//! makes the next ones in a buffer of the server's store. Readers give theirs back to that, so the steady state allocates nothing.

use std::sync::Arc;

use slackline_core::optimizer::Target;

use crate::buffers::Buffers;

/// The values, shared with their readers.
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

    /// Changes the values; false if there are none. While somebody reads them the new ones are written beside them.
    pub(super) fn change(&mut self, step: impl FnOnce(Target<'_>)) -> bool {
        let Some(current) = &mut self.current else { return false };
        if let Some(values) = Arc::get_mut(current) {
            step(Target::InPlace(values));
            return true;
        }
        let mut new = self.buffers.take(current.len());
        step(Target::Beside { old: current, new: &mut new });
        self.buffers.put_shared(std::mem::replace(current, Arc::new(new)));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_one(target: Target<'_>) {
        match target {
            Target::InPlace(values) => values.iter_mut().for_each(|value| *value += 1.0),
            Target::Beside { old, new } => new.iter_mut().zip(old).for_each(|(new, old)| *new = old + 1.0),
        }
    }

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
            assert!(values.change(add_one));
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
        assert!(values.change(add_one));
        assert_eq!(values.current(), Some([2.0; 3].as_slice()));
        assert_eq!(reader.unwrap().as_slice(), [1.0; 3]);
        assert!(!Values::default().change(add_one));
    }
}
