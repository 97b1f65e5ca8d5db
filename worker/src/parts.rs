//! Which shards' parts of a gradient are final while the rest of it is still computed.

use std::ops::Range;

use slackline_core::ids::ShardId;
use slackline_core::partition::Partition;

/// The parts of one gradient after another.
#[derive(Debug)]
pub(crate) struct Parts {
    partition: Partition,
    /// The shards that are sent theirs, each with how many of its keys are not final.
    missing: Vec<(ShardId, usize)>,
    keys_final: usize,
}

impl Parts {
    pub(crate) const fn new(partition: Partition) -> Self {
        Self { partition, missing: Vec::new(), keys_final: 0 }
    }

    /// Which keys are a shard's.
    pub(crate) fn keys(&self, shard: ShardId) -> Range<usize> {
        self.partition.range(shard).as_indices()
    }

    /// Another gradient: nothing of it is final.
    pub(crate) fn begin(&mut self, pushed: &[ShardId]) {
        self.keys_final = 0;
        self.missing.clear();
        self.missing.extend(pushed.iter().map(|shard| (*shard, self.partition.range(*shard).len as usize)));
    }

    /// These keys are final, and were not before. Returns the shards whose parts are now, as long as there is something that they come
    /// before: what is final last goes with the gradient itself.
    pub(crate) fn complete(&mut self, keys: &Range<usize>) -> Vec<ShardId> {
        self.keys_final += keys.len();
        let mut whole = Vec::new();
        for (shard, missing) in &mut self.missing {
            let own = self.partition.range(*shard).as_indices();
            let common = own.end.min(keys.end).saturating_sub(own.start.max(keys.start));
            *missing -= common.min(*missing);
            if *missing == 0 && common > 0 {
                whole.push(*shard);
            }
        }
        let is_over = self.keys_final as u64 >= self.partition.key_count();
        if is_over { Vec::new() } else { whole }
    }

    /// Keys that are final, of how many.
    pub(crate) const fn progress(&self) -> (u64, u64) {
        (self.keys_final as u64, self.partition.key_count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_final_with_the_last_of_its_keys_and_the_last_part_never_is_before_the_gradient() {
        let mut parts = Parts::new(Partition::new(48, 1, 3));
        let shards = [0, 1, 2].map(ShardId);
        for _ in 0..2 {
            parts.begin(&shards);
            assert_eq!(parts.complete(&(40..48)), []);
            assert_eq!(parts.complete(&(20..40)), [ShardId(2)]);
            assert_eq!(parts.progress(), (28, 48));
            assert_eq!(parts.complete(&(8..20)), [ShardId(1)], "each is told once");
            assert_eq!(parts.complete(&(0..8)), [], "nothing comes after it");
        }
        parts.begin(&shards[..2]);
        assert_eq!(parts.complete(&(5..48)), [ShardId(1)], "a shard that is sent nothing has no part");
        parts.begin(&shards);
        assert_eq!(parts.complete(&(0..48)), [], "what is final at once is the gradient");
    }
}
