//! The values that a gradient is computed on, where some come while it is computed: each layer waits for its own.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use slackline_core::ids::{Sequence, ShardId};
use slackline_core::partition::Partition;
use slackline_core::stragglers::forward_share;

use crate::model::Incoming;
use crate::pace::Watch;

/// The values of each shard, in memory of their own.
pub(crate) type ByShard = BTreeMap<ShardId, Vec<f32>>;

/// Values that are put in their place when a layer asks for them. A gradient that nobody wants any more is computed on what is there.
pub(crate) struct Coming<'a> {
    pub(crate) sequence: Sequence,
    /// All values, old or zero where they have not come.
    pub(crate) values: &'a mut [f32],
    pub(crate) partition: &'a Partition,
    /// The shards whose values are not in their place.
    pub(crate) absent: BTreeSet<ShardId>,
    /// What has come, in its place or not.
    pub(crate) here: &'a RefCell<ByShard>,
    pub(crate) watch: &'a Watch,
    /// Sits out a share of the time that the gradient is to take.
    pub(crate) pace: &'a dyn Fn(f64),
    /// For how long nothing was computed for want of values.
    pub(crate) waited: &'a Cell<Duration>,
}

impl Coming<'_> {
    fn put(&mut self, shard: ShardId) {
        if !self.here.borrow().contains_key(&shard) {
            let since = Instant::now();
            let arrived = self.watch.arrival(self.sequence, shard);
            self.waited.set(self.waited.get() + since.elapsed());
            self.here.borrow_mut().extend(arrived.map(|values| (shard, values)));
        }
        let place = self.values.get_mut(self.partition.range(shard).as_indices());
        if let (Some(place), Some(values)) = (place, self.here.borrow().get(&shard))
            && place.len() == values.len()
        {
            place.copy_from_slice(values);
        }
    }
}

impl Incoming for Coming<'_> {
    fn until(&mut self, keys: Range<usize>) -> &[f32] {
        let is_of = |shard: &ShardId| {
            let own = self.partition.range(*shard).as_indices();
            own.start < keys.end && keys.start < own.end
        };
        let wanted: Vec<ShardId> = self.absent.iter().copied().filter(is_of).collect();
        if !wanted.is_empty() {
            // The layers before have taken their time when this one finds that it must wait.
            (self.pace)(forward_share(keys.start as u64, self.values.len() as u64));
        }
        for shard in wanted {
            self.put(shard);
            self.absent.remove(&shard);
        }
        self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_waits_for_its_own_shards_and_for_no_others() {
        let partition = Partition::new(48, 1, 3);
        let watch = Watch::default();
        watch.begin(Sequence(1));
        let (here, waited) = (RefCell::new(ByShard::from([(ShardId(0), vec![1.0; 16])])), Cell::default());
        let shares = RefCell::new(Vec::new());
        let mut values = vec![0.0; 48];
        let mut coming = Coming {
            sequence: Sequence(1),
            values: &mut values,
            partition: &partition,
            absent: (0..3).map(ShardId).collect(),
            here: &here,
            watch: &watch,
            pace: &|share| shares.borrow_mut().push(share),
            waited: &waited,
        };
        assert_eq!(coming.until(0..12)[..17], [&[1.0; 16][..], &[0.0]].concat());
        assert_eq!(waited.get(), Duration::ZERO, "it was there");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                watch.deliver(ShardId(2), vec![3.0; 16]);
                watch.deliver(ShardId(1), vec![2.0; 16]);
            });
            assert_eq!(coming.until(12..20)[16..32], [2.0; 16]);
        });
        assert!(coming.absent.contains(&ShardId(2)), "it is another layer's");
        assert_eq!(coming.until(20..48)[32..], [3.0; 16]);
        assert_eq!(here.borrow().len(), 3, "all memory goes back");
        assert_eq!(shares.into_inner(), [0.0, 0.25 / 3.0, 20.0 / 48.0 / 3.0]);
        assert!(watch.leftover().is_empty());
    }

    #[test]
    fn what_nobody_wants_any_more_waits_for_nothing() {
        let partition = Partition::new(32, 1, 2);
        let watch = Watch::default();
        watch.begin(Sequence(1));
        watch.abandon(Sequence(1));
        let (here, waited) = (RefCell::default(), Cell::default());
        let mut values = vec![5.0; 32];
        let absent = (0..2).map(ShardId).collect();
        let (sequence, partition) = (Sequence(1), &partition);
        let (here, watch, waited, pace) = (&here, &watch, &waited, &|_| ());
        let mut coming =
            Coming { sequence, values: &mut values, partition, absent, here, watch, pace, waited };
        assert_eq!(coming.until(0..32), [5.0; 32], "old ones are as good");
        watch.deliver(ShardId(1), vec![7.0; 16]);
        assert_eq!(watch.leftover(), ByShard::from([(ShardId(1), vec![7.0; 16])]), "they are not lost");
    }
}
