//! The bucket algorithm around a ring (Barnett et al. 1994; Thakur, Rabenseifner and Gropp 2005, as "ring").
//!
//! A slice starts at the place after its owner's and gathers one gradient in each step, until its owner adds the last; then each
//! whole sum goes once around. 2(p - 1) steps, each with n/p bytes: the fewest bytes that an allreduce can do with.

use std::ops::Range;

use super::{Action, Draft};

/// Places 0 to `len - 1`, each of which sends to the next and the last to the first. The place `i` owns slice `i`.
pub(super) struct Ring<M, S> {
    /// Number of places, at least one.
    pub(super) len: u32,
    /// Who stands at a place.
    pub(super) member: M,
    /// Which parts a slice is.
    pub(super) slice: S,
}

impl<M: Fn(u32) -> u32, S: Fn(u32) -> Range<u32>> Ring<M, S> {
    /// Sums each slice into its owner, in `len - 1` steps from `step` on. Returns the step after.
    pub(super) fn reduce_scatter(&self, draft: &mut Draft, step: u32) -> u32 {
        self.turn(draft, step, 1, Action::Add)
    }

    /// Brings each owner's slice to all, in `len - 1` steps from `step` on. Returns the step after.
    pub(super) fn all_gather(&self, draft: &mut Draft, step: u32) -> u32 {
        self.turn(draft, step, 0, Action::Replace)
    }

    /// Every place sends the slice that it got in the step before; in the first step, the one `behind` places before its own.
    fn turn(&self, draft: &mut Draft, step: u32, behind: u32, action: Action) -> u32 {
        for turn in 0..self.len - 1 {
            for place in 0..self.len {
                let slice = (place + 2 * self.len - behind - turn) % self.len;
                let next = (place + 1) % self.len;
                let (from, to) = ((self.member)(place), (self.member)(next));
                draft.send(step + turn, from, to, (self.slice)(slice), action);
            }
        }
        step + self.len - 1
    }
}

/// One ring of all members.
pub(super) fn draft(members: u32) -> Draft {
    let mut draft = Draft::new(members);
    let ring = Ring { len: members, member: |place| place, slice: |slice| slice..slice + 1 };
    let step = ring.reduce_scatter(&mut draft, 0);
    ring.all_gather(&mut draft, step);
    draft
}
