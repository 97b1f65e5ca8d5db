//! Buffers of one shard's length that are used again, by all shards of a server.
//!
//! A gradient that arrives, the copy that a shard goes on with while its present values are being sent, and an entry for a copy of a
//! shard each need one for a while. Kept by each shard, what is spare would come to several times the model; shared, it is as much as
//! was ever in use at once. Memory that is kept is also memory that the system's allocator does not scatter.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A store of buffers. Clones are the same store.
///
/// It is behind a lock, since buffers are lent between shards and the network; held for a push or a pop.
#[derive(Clone, Default)]
pub struct Buffers {
    /// Values that a new buffer has room for, so that it serves all shards of nearly one length.
    room: usize,
    /// Buffers that are kept at most.
    most: usize,
    spare: Arc<Mutex<Vec<Vec<f32>>>>,
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").field("room", &self.room).field("most", &self.most).finish_non_exhaustive()
    }
}

impl Buffers {
    /// A store of buffers with room for `room` values, of which it keeps `most`. The default keeps none.
    #[must_use]
    pub fn new(room: usize, most: usize) -> Self {
        Self { room, most, spare: Arc::default() }
    }

    /// A buffer of `len` values, which have no meaning.
    #[must_use]
    pub fn take(&self, len: usize) -> Vec<f32> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffer = spare
            .filter(|buffer| buffer.capacity() >= len)
            // All of it zero, which the system gives without writing it.
            .unwrap_or_else(|| vec![0.0; len.max(self.room)]);
        buffer.resize(len, 0.0);
        buffer
    }

    /// A copy of `values` in such a buffer.
    #[must_use]
    pub fn copy(&self, values: &[f32]) -> Vec<f32> {
        let mut buffer = self.take(values.len());
        buffer.copy_from_slice(values);
        buffer
    }

    /// Gives a buffer back. One that is too small, or too many, is freed.
    pub fn put(&self, buffer: Vec<f32>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < self.most && buffer.capacity() >= self.room.max(1) {
            spare.push(buffer);
        }
    }

    /// Gives values back that others may share: their buffer is kept once the last of all has given them back like this.
    pub fn put_shared(&self, values: Arc<Vec<f32>>) {
        if let Some(buffer) = Arc::into_inner(values) {
            self.put(buffer);
        }
    }

    /// How many it keeps at present.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_serves_shards_of_nearly_one_length() {
        let buffers = Buffers::new(10, 2);
        let first = buffers.take(8);
        let place = first.as_ptr();
        buffers.put(first);
        let second = buffers.take(10);
        assert_eq!((second.len(), second.as_ptr()), (10, place));
        assert_eq!(buffers.copy(&[1.0, 2.0]), [1.0, 2.0]);
    }

    #[test]
    fn no_more_are_kept_than_allowed_and_none_that_is_too_small() {
        let buffers = Buffers::new(4, 2);
        for len in [4, 3, 4, 4] {
            buffers.put(vec![0.0; len]);
        }
        assert_eq!(buffers.kept(), 2);
        let none = Buffers::default();
        none.put(vec![0.0; 4]);
        assert_eq!((none.kept(), none.take(3).len()), (0, 3));
    }

    #[test]
    fn shared_values_come_back_with_the_last_who_gives_them() {
        let buffers = Buffers::new(4, 2);
        let one = Arc::new(vec![0.0; 4]);
        let other = one.clone();
        buffers.put_shared(one);
        assert_eq!(buffers.kept(), 0);
        buffers.put_shared(other);
        assert_eq!(buffers.kept(), 1);
    }
}
