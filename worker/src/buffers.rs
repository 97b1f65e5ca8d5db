//! The buffers that pulls are read into.

use std::collections::BTreeMap;

use slackline_core::ids::{KeyRange, ShardId};
use slackline_core::partition::Partition;
use slackline_net::Destination;

/// A flat buffer that pulls are read into, and that is lent to a computing thread in between. It keeps what was read into it.
#[derive(Debug, Default)]
pub(crate) struct Flat {
    destination: Option<Destination>,
    spare: Vec<f32>,
}

impl Flat {
    /// Where the next pulls go. The buffer is not lent.
    pub(crate) fn destination(&mut self, flat: KeyRange) -> &Destination {
        self.destination.get_or_insert_with(|| {
            let mut values = std::mem::take(&mut self.spare);
            values.resize(flat.len as usize, 0.0);
            values.into()
        })
    }

    /// The values that were pulled last. It can be that none were since it was given back.
    pub(crate) fn lend(&mut self, flat: KeyRange) -> Vec<f32> {
        self.destination(flat);
        self.destination.take().map_or_else(Vec::new, |destination| destination.take())
    }

    /// Takes back what was lent.
    pub(crate) fn give_back(&mut self, values: Vec<f32>) {
        self.spare = values;
    }
}

/// Values that come while others are still waited for, and replace those that came before them. They stay beside the flat buffer until
/// it is lent: what is read into that may be in the middle of a transfer.
#[derive(Debug)]
pub(crate) struct Fresher {
    partition: Partition,
    coming: BTreeMap<ShardId, Destination>,
    adopted: BTreeMap<ShardId, Vec<f32>>,
}

impl Fresher {
    pub(crate) const fn new(partition: Partition) -> Self {
        Self { partition, coming: BTreeMap::new(), adopted: BTreeMap::new() }
    }

    /// Where the next values of a shard go.
    pub(crate) fn destination(&mut self, shard: ShardId) -> Destination {
        let keys = self.partition.range(shard);
        let destination = Destination::from(vec![0.0; keys.len as usize]);
        self.coming.insert(shard, destination.clone());
        destination
    }

    /// What came for a shard is to be used.
    pub(crate) fn adopt(&mut self, shard: ShardId) {
        if let Some(destination) = self.coming.remove(&shard) {
            self.adopted.insert(shard, destination.take());
        }
    }

    /// The shard is pulled for another iteration.
    pub(crate) fn forget(&mut self, shard: ShardId) {
        self.coming.remove(&shard);
        self.adopted.remove(&shard);
    }

    /// Writes what is to be used over the flat values.
    pub(crate) fn write_to(&mut self, values: &mut [f32]) {
        for (shard, fresher) in std::mem::take(&mut self.adopted) {
            if let Some(place) = values.get_mut(self.partition.range(shard).as_indices())
                && place.len() == fresher.len()
            {
                place.copy_from_slice(&fresher);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_nothing_was_read_into_still_has_its_values() {
        let flat = KeyRange::new(0, 3);
        let mut buffer = Flat::default();
        buffer.give_back(vec![1.0, 2.0, 3.0]);
        assert_eq!(buffer.lend(flat), [1.0, 2.0, 3.0]);
        buffer.give_back(vec![4.0; 3]);
        assert_eq!(buffer.lend(flat), [4.0; 3]);
        assert_eq!(buffer.lend(flat), [0.0; 3], "what is lent is gone until it is given back");
    }

    #[test]
    fn fresher_values_replace_those_of_their_shard_once_they_are_adopted() {
        let mut fresher = Fresher::new(Partition::new(48, 1, 3));
        let mut values = vec![5.0; 48];
        for shard in [0, 2] {
            assert_eq!(fresher.destination(ShardId(shard)).len(), 16);
        }
        fresher.write_to(&mut values);
        assert_eq!(values, [5.0; 48], "they have only been asked for");
        fresher.adopt(ShardId(2));
        fresher.adopt(ShardId(1));
        fresher.write_to(&mut values);
        assert_eq!(values[..32], [5.0; 32]);
        assert_eq!(values[32..], [0.0; 16]);
        values.fill(6.0);
        fresher.adopt(ShardId(0));
        fresher.forget(ShardId(0));
        fresher.write_to(&mut values);
        assert_eq!(values, [6.0; 48], "another iteration has begun");
    }
}
