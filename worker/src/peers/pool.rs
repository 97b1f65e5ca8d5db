//! Buffers that parts are read into, used again.

use std::collections::BTreeMap;

use slackline_net::SharedValues;

/// Buffers at rest, by length, and those that QUIC may still hold.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    spare: BTreeMap<usize, Vec<Vec<f32>>>,
    reclaiming: Vec<SharedValues>,
    /// Values in the buffers at rest, and the most that are kept.
    kept: usize,
    most: usize,
}

impl Pool {
    /// Keeps buffers of so many values together; those that are still held are few.
    pub(crate) fn keep(&mut self, most: usize) {
        self.most = most;
        if self.kept > most {
            (self.spare, self.kept) = (BTreeMap::new(), 0);
        }
    }

    /// A buffer of exactly that length, with anything in it.
    pub(crate) fn take(&mut self, len: usize) -> Vec<f32> {
        match self.spare.get_mut(&len).and_then(Vec::pop) {
            Some(buffer) => {
                self.kept -= len;
                buffer
            }
            None => vec![0.0; len],
        }
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, buffer: Vec<f32>) {
        if self.kept + buffer.len() <= self.most {
            self.kept += buffer.len();
            self.spare.entry(buffer.len()).or_default().push(buffer);
        }
    }

    /// Takes values back if nothing shares them now or at the next call. Several may be parts of one buffer: each that is let go lets
    /// the next one have it.
    pub(crate) fn reclaim(&mut self, values: impl IntoIterator<Item = SharedValues>) {
        for held in std::mem::take(&mut self.reclaiming) {
            if let Ok(buffer) = held.try_reclaim() {
                self.give(buffer);
            }
        }
        for values in values {
            match values.try_reclaim() {
                Ok(buffer) => self.give(buffer),
                Err(values) => self.reclaiming.push(values),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_by_their_length_once_nobody_holds_them() {
        let mut pool = Pool::default();
        pool.keep(8);
        let held = SharedValues::from(vec![1.0; 5]);
        pool.reclaim([held.clone(), SharedValues::from(vec![2.0; 3])]);
        assert_eq!((pool.take(3), pool.take(5)), (vec![2.0; 3], vec![0.0; 5]));
        drop(held);
        pool.reclaim([]);
        assert_eq!(pool.take(5), [1.0; 5]);
    }

    #[test]
    fn the_parts_of_one_buffer_do_not_hold_each_other() {
        let mut pool = Pool::default();
        pool.keep(8);
        let whole = SharedValues::from(vec![1.0; 6]);
        pool.reclaim([whole.slice(0..3), whole.slice(3..6)]);
        drop(whole);
        pool.reclaim([]);
        assert_eq!(pool.take(6), [1.0; 6]);
    }

    #[test]
    fn no_more_is_kept_than_was_said() {
        let mut pool = Pool::default();
        pool.keep(8);
        (0..9).for_each(|_| pool.give(vec![0.0; 4]));
        assert_eq!(pool.kept, 8);
        pool.keep(4);
        assert_eq!(pool.kept, 0);
    }
}
