//! How a gradient leaves the thread that computes it: bucket by bucket, each packed part by part in memory that goes round.

use std::collections::VecDeque;
use std::ops::Range;

use slackline_core::collective::{Bucket, Packing};
use slackline_core::ids::KeyRange;
use slackline_net::SharedValues;

/// Buffers that are kept an eye on, for each bucket. Two are under way in the steady state: the one of the step before is free only when
/// all peers have acknowledged it.
const LENT_MAX: usize = 4;

/// The buckets of one gradient after another.
#[derive(Debug)]
pub(crate) struct Handout {
    buckets: Vec<Bucket>,
    packing: Packing,
    /// Keys of each bucket that are not final yet.
    missing: Vec<u64>,
    /// The bucket that goes next.
    next: usize,
    keys_final: u64,
    /// What was handed out, the oldest first.
    lent: VecDeque<SharedValues>,
}

impl Handout {
    pub(crate) fn new(buckets: Vec<Bucket>) -> Self {
        let lent = VecDeque::with_capacity(buckets.len() * LENT_MAX + 1);
        let missing = vec![0; buckets.len()];
        Self { next: buckets.len(), buckets, packing: Packing::new(1), missing, keys_final: 0, lent }
    }

    /// The number of parts from now on.
    pub(crate) const fn set_parts(&mut self, parts: u32) {
        self.packing = Packing::new(parts);
    }

    /// Another gradient: nothing of it is final.
    pub(crate) fn begin(&mut self) {
        (self.next, self.keys_final) = (0, 0);
        for (missing, bucket) in self.missing.iter_mut().zip(&self.buckets) {
            *missing = bucket.keys.len;
        }
    }

    /// These keys are final.
    pub(crate) fn complete(&mut self, keys: &Range<usize>) {
        self.keys_final += keys.len() as u64;
        for (missing, bucket) in self.missing.iter_mut().zip(&self.buckets) {
            let (start, end) =
                (bucket.keys.start.max(keys.start as u64), bucket.keys.end().min(keys.end as u64));
            *missing = missing.saturating_sub(end.saturating_sub(start));
        }
    }

    /// Keys that are final.
    pub(crate) const fn keys_final(&self) -> u64 {
        self.keys_final
    }

    /// Whether the next bucket can go.
    pub(crate) fn is_ready(&self) -> bool {
        self.missing.get(self.next) == Some(&0)
    }

    /// Packs the next bucket, if there is one.
    pub(crate) fn pack(&mut self, gradient: &[f32], share: f32) -> Option<(u32, SharedValues)> {
        let Bucket { index, keys } = *self.buckets.get(self.next)?;
        self.next += 1;
        let mut buffer = self.free(keys.len as usize);
        self.packing.pack(keys, &gradient[keys.as_indices()], share, &mut buffer);
        let packed = SharedValues::from(buffer);
        self.lent.push_back(packed.clone());
        if self.lent.len() > self.buckets.len() * LENT_MAX {
            self.lent.pop_front();
        }
        Some((index, packed))
    }

    /// Puts the sums of all buckets in their places.
    pub(crate) fn unpack(&self, sums: &[Vec<SharedValues>], gradient: &mut [f32]) {
        for (bucket, parts) in (0..).zip(sums) {
            self.unpack_one(bucket, parts, gradient);
        }
    }

    /// Puts the sums of one bucket in their places.
    pub(crate) fn unpack_one(&self, bucket: u32, parts: &[SharedValues], gradient: &mut [f32]) {
        if let Some(Bucket { keys, .. }) = self.buckets.get(bucket as usize) {
            self.packing.unpack(*keys, parts, &mut gradient[keys.as_indices()]);
        }
    }

    /// Sums that are not needed any more, without those in buffers of this side, which come back by themselves.
    pub(crate) fn not_lent(&self, parts: impl IntoIterator<Item = SharedValues>) -> Vec<SharedValues> {
        let is_lent = |part: &SharedValues| self.lent.iter().any(|own| own.shares_with(part));
        parts.into_iter().filter(|part| !is_lent(part)).collect()
    }

    /// The buffer of that length that was lent last of those that nobody else holds any more, since it is the likeliest to be in the
    /// processor's cache; or a new one.
    fn free(&mut self, len: usize) -> Vec<f32> {
        for place in (0..self.lent.len()).rev() {
            if self.lent[place].len() != len {
                continue;
            }
            match self.lent.remove(place).map(SharedValues::try_reclaim) {
                Some(Ok(buffer)) => return buffer,
                Some(Err(shared)) => self.lent.insert(place, shared),
                None => {}
            }
        }
        Vec::with_capacity(len)
    }

    /// All keys.
    pub(crate) fn keys(&self) -> KeyRange {
        KeyRange::new(0, self.buckets.iter().map(|bucket| bucket.keys.len).sum())
    }
}
