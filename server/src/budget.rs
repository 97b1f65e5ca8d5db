//! How much of a server's memory one session may have: a bound each way, in bytes.
//!
//! Whatever is beyond it waits where it is: a transfer in its unread streams, which QUIC then keeps at the peer, and values in the
//! shard, which has them anyway. A budget never waits for itself: what has room is either read, and its peer sends the streams of one
//! transfer before those of the next, or lies before a shard that takes it without waiting for any other, or is on its way to a peer
//! that reads without asking for more.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What permits count: a semaphore takes no more than 2^32 at once.
const UNIT_BYTES: u64 = 1024;

/// Bytes that may be in use at once. Clones are the same budget.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    free: Arc<Semaphore>,
    units: u32,
}

/// A part of a budget that is in use until this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    _units: OwnedSemaphorePermit,
}

impl Budget {
    /// Of `bytes`, and in any case of two pieces of `piece` bytes: while one is complete but for a stream, another can be read.
    pub(crate) fn new(bytes: u64, piece: u64) -> Self {
        let least = piece.div_ceil(UNIT_BYTES).saturating_mul(2);
        let units = u32::try_from((bytes / UNIT_BYTES).max(least).max(1)).unwrap_or(u32::MAX);
        Self { free: Arc::new(Semaphore::new(units as usize)), units }
    }

    /// What bytes count for: never more than all, so that anything gets room some time.
    fn units(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).clamp(1, self.units)
    }

    /// Room at once, unless there is none or others wait for it.
    pub(crate) fn try_take(&self, bytes: u64) -> Option<Room> {
        let units = self.free.clone().try_acquire_many_owned(self.units(bytes)).ok()?;
        Some(Room { _units: units })
    }

    /// Room as soon as there is, in the order of asking; none once the session has ended.
    pub(crate) async fn take(&self, bytes: u64) -> Option<Room> {
        let units = self.free.clone().acquire_many_owned(self.units(bytes)).await.ok()?;
        Some(Room { _units: units })
    }

    /// Nobody gets room any more.
    pub(crate) fn close(&self) {
        self.free.close();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const KIB: u64 = 1024;

    #[tokio::test]
    async fn what_is_beyond_the_budget_waits_until_there_is_room_and_in_order() {
        let budget = Budget::new(10 * KIB, KIB);
        let first = budget.take(6 * KIB).await.unwrap();
        let large = budget.take(8 * KIB);
        tokio::pin!(large);
        assert!(tokio::time::timeout(Duration::ZERO, &mut large).await.is_err());
        // It would fit, but whoever asked before would then wait for ever.
        assert!(budget.try_take(KIB).is_none());
        drop(first);
        let large = large.await.unwrap();
        assert!(budget.try_take(2 * KIB).is_some() && budget.try_take(3 * KIB).is_none());
        drop(large);
        assert!(budget.try_take(10 * KIB).is_some());
    }

    #[tokio::test]
    async fn two_pieces_have_room_however_small_the_budget_and_a_larger_one_has_all_of_it() {
        let budget = Budget::new(KIB, 5 * KIB);
        let rooms = [budget.try_take(5 * KIB).unwrap(), budget.try_take(5 * KIB).unwrap()];
        assert!(budget.try_take(1).is_none());
        drop(rooms);
        let all = budget.take(u64::MAX).await.unwrap();
        assert!(budget.try_take(1).is_none());
        drop(all);
        assert!(budget.try_take(1).is_some());
    }

    #[tokio::test]
    async fn whoever_waits_hears_that_the_session_has_ended() {
        let budget = Budget::new(KIB, 1);
        let _all = budget.try_take(2 * KIB).unwrap();
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.take(1).await.is_none() }
        });
        tokio::task::yield_now().await;
        budget.close();
        assert!(waiting.await.unwrap());
    }
}
