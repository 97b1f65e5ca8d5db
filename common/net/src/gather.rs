//! The stripes of one transfer, put together.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use slackline_core::codec::{Encoding, Patch, Payload};
use slackline_core::wire::{Stripe, TransferHeader};

use crate::count;
use crate::error::TransferError;
use crate::transfer::{Arriving, Destination};

/// One transfer that is arriving. Clones are the same transfer, one for each task that reads a stripe.
///
/// After an error the transfer cannot be completed any more: the stripe that failed stays claimed.
#[derive(Clone)]
pub struct Gather {
    /// Header of the first stripe, its stripe replaced by the whole: what all stripes must agree on.
    header: TransferHeader,
    destination: Destination,
    progress: Arc<Mutex<Progress>>,
}

impl fmt::Debug for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather").field("header", &self.header).finish_non_exhaustive()
    }
}

/// Which words are claimed, and how many have come. Its size is bounded by the header's stripe count, which is.
#[derive(Default)]
struct Progress {
    /// First word and end of each stripe.
    claimed: BTreeMap<u64, u64>,
    stripes_read: u32,
    words_read: u64,
}

impl Gather {
    /// Begins a transfer with the header of the stripe that came first. It goes to `destination`: a buffer of its own, or a part of one
    /// that other transfers go to as well. The caller has compared the header with what it expects, and decided to give it one.
    ///
    /// # Errors
    /// [`TransferError::OtherLength`] when it does not take as many words as the payload has.
    pub fn new(first: &TransferHeader, destination: Destination) -> Result<Self, TransferError> {
        let (words, values) = (first.words, destination.len() as u64);
        if words != values {
            return Err(TransferError::OtherLength { words, values });
        }
        let header = first.with_stripe(Stripe::new(0, words));
        Ok(Self { header, destination, progress: Arc::default() })
    }

    /// Begins a transfer of values that go to `place`: plain ones straight there, others to a buffer of their own, from which
    /// [`Gather::land`] brings them there.
    ///
    /// # Errors
    /// [`TransferError::OtherLength`] when the place is for another number of keys.
    pub fn towards(first: &TransferHeader, place: &Destination) -> Result<Self, TransferError> {
        if first.encoding == Encoding::F32 {
            return Self::new(first, place.clone());
        }
        let (words, values) = (first.keys.len, place.len() as u64);
        if words != values {
            return Err(TransferError::OtherLength { words, values });
        }
        // No header is read that has more words than so many keys can take.
        Self::new(first, vec![0.0; first.words as usize].into())
    }

    /// Brings the values of a complete transfer to the place that it was begun towards, unless they are there already.
    ///
    /// # Errors
    /// [`TransferError::Codec`] when the payload is none.
    pub fn land(&self, place: &Destination) -> Result<(), TransferError> {
        match self.header.encoding {
            Encoding::F32 => return Ok(()),
            Encoding::Blocks => {
                let patch = Patch::new(place.len(), self.take())?;
                place.fill(|values| patch.write_to(values));
                count::add_copied(4 * self.header.words as usize);
            }
            encoding => {
                let payload = Payload::new(encoding, place.len(), self.take())?;
                place.fill(|values| payload.decode_into(values));
                count::add_copied(4 * place.len());
            }
        }
        Ok(())
    }

    /// What the transfer is; its stripe is the whole of its payload.
    #[must_use]
    pub const fn header(&self) -> &TransferHeader {
        &self.header
    }

    /// Reads one stripe. True with the last one, whichever that is.
    ///
    /// # Errors
    /// The stripe is none of this transfer, overlaps another one, is the last and leaves a gap, or did not arrive.
    pub async fn receive(&self, arriving: Arriving) -> Result<bool, TransferError> {
        let header = *arriving.header();
        self.claim(&header)?;
        arriving.read_into(&self.destination).await?;
        self.read(header.stripe)
    }

    /// The values of a complete transfer with a buffer of its own.
    #[must_use]
    pub fn take(&self) -> Vec<f32> {
        self.destination.take()
    }

    fn claim(&self, header: &TransferHeader) -> Result<(), TransferError> {
        if header.with_stripe(self.header.stripe) != self.header {
            return Err(TransferError::OtherHeader);
        }
        let (stripe, words) = (header.stripe, self.header.words);
        if stripe.end() > words {
            return Err(TransferError::Outside { stripe, words });
        }
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let before = progress.claimed.range(..=stripe.start).next_back();
        let after = progress.claimed.range(stripe.start..).next();
        let overlaps = before.is_some_and(|(&start, &end)| end > stripe.start || start == stripe.start)
            || after.is_some_and(|(&start, _)| start < stripe.end());
        let over_count = progress.claimed.len() >= self.header.stripe_count as usize;
        if overlaps || over_count {
            return Err(TransferError::Repeated { stripe });
        }
        progress.claimed.insert(stripe.start, stripe.end());
        Ok(())
    }

    /// Counts a stripe that was read; says whether it was the last.
    fn read(&self, stripe: Stripe) -> Result<bool, TransferError> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.stripes_read += 1;
        progress.words_read += stripe.len;
        if progress.stripes_read < self.header.stripe_count {
            return Ok(false);
        }
        match self.header.words - progress.words_read {
            0 => Ok(true),
            missing => Err(TransferError::Incomplete { missing }),
        }
    }
}

#[cfg(test)]
mod tests {
    use slackline_core::ids::{KeyRange, Sequence, ShardId};
    use slackline_core::wire::TransferKind;

    use super::*;

    fn header(stripe_count: u32, stripe: (u64, u64)) -> TransferHeader {
        TransferHeader {
            sequence: Sequence(4),
            stripe_count,
            stripe: Stripe::new(stripe.0, stripe.1),
            ..TransferHeader::plain(TransferKind::Push, ShardId(1), KeyRange::new(100, 30))
        }
    }

    fn gather(stripe_count: u32) -> Gather {
        Gather::new(&header(stripe_count, (0, 10)), vec![0.0; 30].into()).unwrap()
    }

    fn claimed(gather: &Gather, stripe: (u64, u64)) -> Result<(), TransferError> {
        gather.claim(&header(gather.header.stripe_count, stripe))
    }

    #[test]
    fn stripes_in_any_order_complete_the_transfer() {
        let gather = gather(3);
        for stripe in [(20, 10), (0, 10), (10, 10)] {
            claimed(&gather, stripe).unwrap();
        }
        assert_eq!(gather.read(Stripe::new(10, 10)), Ok(false));
        assert_eq!(gather.read(Stripe::new(0, 10)), Ok(false));
        assert_eq!(gather.read(Stripe::new(20, 10)), Ok(true));
    }

    #[test]
    fn a_stripe_that_overlaps_another_is_refused() {
        for second in [(10, 10), (5, 10), (15, 1), (19, 11), (0, 30), (10, 0)] {
            let gather = gather(3);
            claimed(&gather, (10, 10)).unwrap();
            let stripe = Stripe::new(second.0, second.1);
            assert_eq!(claimed(&gather, second), Err(TransferError::Repeated { stripe }), "{second:?}");
        }
    }

    #[test]
    fn more_stripes_than_announced_are_refused() {
        let gather = gather(2);
        claimed(&gather, (0, 1)).unwrap();
        claimed(&gather, (1, 1)).unwrap();
        assert!(matches!(claimed(&gather, (2, 1)), Err(TransferError::Repeated { .. })));
    }

    #[test]
    fn a_gap_after_the_last_stripe_is_an_error() {
        let gather = gather(2);
        claimed(&gather, (0, 10)).unwrap();
        claimed(&gather, (20, 10)).unwrap();
        assert_eq!(gather.read(Stripe::new(0, 10)), Ok(false));
        assert_eq!(gather.read(Stripe::new(20, 10)), Err(TransferError::Incomplete { missing: 10 }));
    }

    #[test]
    fn a_stripe_outside_or_with_another_header_is_refused() {
        let gather = gather(3);
        assert!(matches!(claimed(&gather, (25, 10)), Err(TransferError::Outside { .. })));
        assert!(matches!(claimed(&gather, (35, 10)), Err(TransferError::Outside { .. })));
        let other = TransferHeader { sequence: Sequence(5), ..header(3, (0, 10)) };
        assert_eq!(gather.claim(&other), Err(TransferError::OtherHeader));
        assert_eq!(gather.claim(&header(2, (0, 10))), Err(TransferError::OtherHeader));
    }

    #[test]
    fn a_buffer_of_another_length_is_refused() {
        let failure = Gather::new(&header(1, (0, 10)), vec![0.0; 29].into()).unwrap_err();
        assert_eq!(failure, TransferError::OtherLength { words: 30, values: 29 });
    }
}
