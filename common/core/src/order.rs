//! In which order transfers go that wait for one connection, how much of them is under way at once, and how fast they may go.
//!
//! Front layers first is the order in which the next forward pass needs them (Jayarajan et al. 2019, P3); how little is under way at once decides how
//! much what comes later can overtake (the credit of Peng et al. 2019, ByteScheduler). The rate is a bucket that may be overdrawn by one
//! transfer: over any time t there go at most `BURST_BYTES + rate t` bytes and the last transfer.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{Moment, ShardId};

/// What may go at once after a pause, where a rate is set.
pub const BURST_BYTES: u64 = 64 << 10;

/// Which transfers go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Those that came first.
    #[default]
    Arrival,
    /// Those of the first layers.
    FrontFirst,
}

impl Priority {
    /// The rank of a shard's transfer: the lowest goes first.
    #[must_use]
    pub const fn rank(self, shard: ShardId) -> u32 {
        match self {
            Self::Arrival => 0,
            Self::FrontFirst => shard.0,
        }
    }
}

/// A transfer that waits.
#[derive(Clone, Debug)]
struct Waiting<T> {
    /// What of the credit it takes.
    cost: u64,
    bytes: u64,
    item: T,
}

/// Transfers that wait for one connection.
#[derive(Clone, Debug)]
pub struct Queue<T> {
    credit: u64,
    under_way: u64,
    bucket: Option<Bucket>,
    /// By rank, then by number.
    waiting: BTreeMap<(u32, u64), Waiting<T>>,
    last: u64,
}

impl<T> Queue<T> {
    /// A queue of which transfers that cost up to `credit` bytes are under way at once, or a single one; with `bytes_per_s` no faster than that.
    #[must_use]
    pub fn new(credit: u64, bytes_per_s: Option<f64>) -> Self {
        let bucket = bytes_per_s.filter(|rate| *rate > 0.0).map(Bucket::new);
        Self { credit, under_way: 0, bucket, waiting: BTreeMap::new(), last: 0 }
    }

    /// A transfer is to go, which takes `cost` of the credit and counts for the rate with `bytes`. Whoever has a bounded number of transfers at
    /// once, as a worker has one of each shard, has none that waits without end, whatever the ranks.
    pub fn put(&mut self, rank: u32, (cost, bytes): (u64, u64), item: T) {
        self.last += 1;
        self.waiting.insert((rank, self.last), Waiting { cost, bytes, item });
    }

    /// The next transfer, if one may go now: it is under way then, with what it costs. The first by rank and arrival goes, or none: what comes
    /// behind it does not pass it by being small.
    pub fn take(&mut self, now: Moment) -> Option<(u64, T)> {
        let has_credit =
            |cost: u64| self.under_way == 0 || self.under_way.saturating_add(cost) <= self.credit;
        let first = self.waiting.first_entry().filter(|first| has_credit(first.get().cost))?;
        let bytes = first.get().bytes;
        // What has no bytes that count does not wait for those that have.
        if bytes > 0 && self.bucket.as_mut().is_some_and(|bucket| !bucket.pay(now, bytes)) {
            return None;
        }
        let Waiting { cost, item, .. } = first.remove();
        self.under_way += cost;
        Some((cost, item))
    }

    /// A transfer is not under way any more.
    pub const fn done(&mut self, cost: u64) {
        self.under_way = self.under_way.saturating_sub(cost);
    }

    /// When the first may go, where nothing but the rate holds it.
    #[must_use]
    pub fn due(&self, now: Moment) -> Option<Moment> {
        let (_, first) = self.waiting.first_key_value()?;
        let has_credit = self.under_way == 0 || self.under_way.saturating_add(first.cost) <= self.credit;
        let is_rated = has_credit && first.bytes > 0;
        self.bucket.as_ref().filter(|_| is_rated).map(|bucket| bucket.due(now))
    }
}

/// What may still go: bytes, fewer than none after a large transfer.
#[derive(Clone, Debug)]
struct Bucket {
    rate: f64,
    left: f64,
    at: Moment,
}

impl Bucket {
    fn new(rate: f64) -> Self {
        Self { rate, left: BURST_BYTES as f64, at: Moment(0) }
    }

    fn filled(&self, now: Moment) -> f64 {
        let more = now.since(self.at).as_secs_f64() * self.rate;
        (self.left + more).min(BURST_BYTES as f64)
    }

    fn pay(&mut self, now: Moment, bytes: u64) -> bool {
        (self.left, self.at) = (self.filled(now), now.max(self.at));
        let may = self.left >= 0.0;
        self.left -= if may { bytes as f64 } else { 0.0 };
        may
    }

    fn due(&self, now: Moment) -> Moment {
        let debt = (-self.filled(now)).max(0.0);
        // A nanosecond more than rounding may have taken.
        let wait = Duration::try_from_secs_f64((debt / self.rate).min(1e9)).unwrap_or_default();
        if debt > 0.0 { now.after(wait + Duration::from_nanos(1)) } else { now }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Put { shard: u32, bytes: u64 },
        Done,
        Pass { micros: u64 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..8_u32, 1..300_000_u64).prop_map(|(shard, bytes)| Step::Put { shard, bytes }),
            Just(Step::Done),
            (0..20_000_u64).prop_map(|micros| Step::Pass { micros }),
        ];
        prop::collection::vec(step, 1..120)
    }

    proptest! {
        #[test]
        fn everything_goes_once_in_its_order_and_never_more_or_faster_than_it_may(
            steps in steps(),
            priority in prop_oneof![Just(Priority::Arrival), Just(Priority::FrontFirst)],
            credit in 1..600_000_u64,
            rate in prop::option::of(1e5..1e8_f64),
        ) {
            let mut queue = Queue::new(credit, rate);
            let (mut now, mut count) = (Moment(0), 0_u64);
            let mut waiting: Vec<(u32, u64, u64)> = Vec::new();
            let mut under_way: Vec<u64> = Vec::new();
            // When each went, with what had gone before it.
            let mut gone: Vec<(Moment, u64)> = Vec::new();
            let mut total = 0;
            let ends = [Step::Pass { micros: 10_000_000 }, Step::Done].into_iter().cycle().take(400);
            for step in steps.into_iter().chain(ends) {
                match step {
                    Step::Put { shard, bytes } => {
                        count += 1;
                        queue.put(priority.rank(ShardId(shard)), (bytes, bytes), count);
                        waiting.push((priority.rank(ShardId(shard)), count, bytes));
                    }
                    Step::Done => under_way.pop().into_iter().for_each(|cost| queue.done(cost)),
                    Step::Pass { micros } => now = now.after(Duration::from_micros(micros)),
                }
                while let Some((cost, number)) = queue.take(now) {
                    let first = waiting.iter().copied().min().unwrap();
                    prop_assert_eq!((number, cost), (first.1, first.2), "the first by rank and arrival");
                    waiting.retain(|one| one.1 != number);
                    let before: u64 = under_way.iter().sum();
                    prop_assert!(before == 0 || before + cost <= credit, "{} and {} of {}", before, cost, credit);
                    under_way.push(cost);
                    for (when, sent) in rate.iter().flat_map(|_| &gone) {
                        let may = BURST_BYTES as f64 + rate.unwrap() * now.since(*when).as_secs_f64();
                        prop_assert!((total - sent) as f64 <= may * (1.0 + 1e-9) + 1.0, "{} since {:?}", total - sent, when);
                    }
                    gone.push((now, total));
                    total += cost;
                }
                if let Some(due) = queue.due(now) {
                    let mut then = queue.clone();
                    prop_assert!(then.take(due).is_some(), "what is due may go");
                    prop_assert!(due >= now);
                }
            }
            prop_assert!(waiting.is_empty(), "{:?} never went", waiting);
        }
    }

    #[test]
    fn what_comes_later_overtakes_what_is_not_under_way_yet() {
        let mut queue = Queue::new(100, None);
        for shard in [3, 2, 1, 0] {
            queue.put(Priority::FrontFirst.rank(ShardId(shard)), (100, 100), shard);
        }
        let mut order = Vec::new();
        while let Some((cost, shard)) = queue.take(Moment(0)) {
            order.push(shard);
            assert_eq!(queue.take(Moment(0)), None, "one at a time");
            queue.done(cost);
        }
        assert_eq!(order, [0, 1, 2, 3]);
    }
}
