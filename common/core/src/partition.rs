//! Which shard owns a key, and which server owns a shard: a pure function of the model's length and the counts.

use crate::ids::{KeyRange, ServerId, ShardId};

/// Values in a cache line. Shards begin on such a border, so that no two owners write to one line.
const ALIGNMENT: u64 = 16;

/// The division of the flat key space into contiguous shards of nearly equal size.
///
/// Cuts go through tensors: a model of one huge and many small tensors is spread as evenly as any other
/// (placement by whole tensors is what overloads one server, dmlc/ps-lite issue 119).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    len: u64,
    server_count: u32,
    shard_count: u32,
}

impl Partition {
    /// Cuts `len` keys into `server_count * shards_per_server` shards. Counts of zero are taken as one.
    #[must_use]
    pub fn new(len: u64, server_count: u32, shards_per_server: u32) -> Self {
        let server_count = server_count.max(1);
        Self { len, server_count, shard_count: server_count * shards_per_server.max(1) }
    }

    /// Number of shards, empty ones included.
    #[must_use]
    pub const fn shard_count(&self) -> u32 {
        self.shard_count
    }

    /// Number of servers.
    #[must_use]
    pub const fn server_count(&self) -> u32 {
        self.server_count
    }

    /// Number of keys.
    #[must_use]
    pub const fn key_count(&self) -> u64 {
        self.len
    }

    /// The keys of a shard; empty when the model is too small to reach it (a shard, or a server, without keys is
    /// normal).
    #[must_use]
    pub fn range(&self, shard: ShardId) -> KeyRange {
        let start = self.border(u64::from(shard.0));
        KeyRange::new(start, self.border(u64::from(shard.0) + 1) - start)
    }

    fn border(&self, index: u64) -> u64 {
        let blocks = u128::from(self.len.div_ceil(ALIGNMENT));
        let block =
            blocks * u128::from(index.min(u64::from(self.shard_count))) / u128::from(self.shard_count);
        (block as u64 * ALIGNMENT).min(self.len)
    }

    /// The server that owns a shard: neighbours lie on one server.
    #[must_use]
    pub const fn server_of(&self, shard: ShardId) -> ServerId {
        ServerId(shard.0 / (self.shard_count / self.server_count))
    }

    /// The shard that owns a key, if the key is in the space.
    #[must_use]
    pub fn shard_of(&self, key: u64) -> Option<ShardId> {
        if key >= self.len {
            return None;
        }
        let (mut low, mut high) = (0, u64::from(self.shard_count));
        while high - low > 1 {
            let middle = u64::midpoint(low, high);
            if self.border(middle) <= key {
                low = middle;
            } else {
                high = middle;
            }
        }
        Some(ShardId(low as u32))
    }

    /// The shards that own at least one key, in order.
    pub fn shards(&self) -> impl Iterator<Item = (ShardId, KeyRange)> + '_ {
        (0..self.shard_count)
            .map(|index| (ShardId(index), self.range(ShardId(index))))
            .filter(|(_, range)| !range.is_empty())
    }

    /// The shards with keys on one server.
    pub fn shards_on(&self, server: ServerId) -> impl Iterator<Item = (ShardId, KeyRange)> + '_ {
        self.shards().filter(move |(shard, _)| self.server_of(*shard) == server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // Case 26 (dmlc/ps-lite issue 185): keys near the top of the range belonged to no server.
        #[test]
        fn every_key_belongs_to_exactly_one_shard(
            len in prop_oneof![0..5_000_u64, 1_u64 << 39..1_u64 << 40],
            servers in 1..=64_u32,
            per_server in 1..4_u32,
            picks in prop::collection::vec(any::<u64>(), 8),
        ) {
            let partition = Partition::new(len, servers, per_server);
            let mut next = 0;
            for index in 0..partition.shard_count() {
                let range = partition.range(ShardId(index));
                prop_assert_eq!(range.start, next);
                next = range.end();
                prop_assert!(partition.server_of(ShardId(index)).0 < servers);
                for key in [range.start, range.end().saturating_sub(1)] {
                    if range.contains(key) {
                        prop_assert_eq!(partition.shard_of(key), Some(ShardId(index)));
                    }
                }
            }
            prop_assert_eq!(next, len);
            for pick in picks.into_iter().chain([0, len.saturating_sub(1)]) {
                let key = if len == 0 { pick } else { pick % len };
                let owner = partition.shard_of(key);
                prop_assert_eq!(owner.is_some(), key < len);
                if let Some(shard) = owner {
                    prop_assert!(partition.range(shard).contains(key));
                }
            }
            prop_assert_eq!(partition.shard_of(len), None);
            prop_assert_eq!(partition.shard_of(u64::MAX), None);
        }

        #[test]
        fn the_largest_shard_is_close_to_the_mean(len in 100_000..1_u64 << 40, servers in 1..=64_u32) {
            let partition = Partition::new(len, servers, 1);
            let largest = partition.shards().map(|(_, range)| range.len).max().unwrap_or(0);
            prop_assert!(largest as f64 <= 1.1 * len as f64 / f64::from(servers));
        }
    }

    #[test]
    fn one_huge_tensor_and_fifty_small_ones_are_balanced() {
        let len = 100_000_000 + 50 * 1_000;
        for servers in 1..=64 {
            let partition = Partition::new(len, servers, 1);
            let largest = partition.shards().map(|(_, range)| range.len).max().unwrap_or(0);
            assert!(largest as f64 <= 1.1 * len as f64 / f64::from(servers));
        }
    }

    #[test]
    fn a_server_without_a_shard_is_normal() {
        let partition = Partition::new(20, 5, 1);
        assert_eq!(partition.shards().count(), 2);
        let owners: Vec<_> = (0..5).map(|server| partition.shards_on(ServerId(server)).count()).collect();
        assert_eq!(owners.iter().sum::<usize>(), 2);
        assert!(owners.contains(&0));
    }
}
