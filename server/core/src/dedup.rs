//! Which pushes of one incarnation a shard has seen, and what it answered.
//!
//! Pushes are numbered from 1. A push is new exactly once, in whatever order and however often it arrives; a repeated one gets the
//! first answer. Memory is bounded: everything up to the watermark is known to be seen, and answers are kept for the last
//! [`PUSH_WINDOW`] pushes. A worker has far fewer unanswered ones, so an answer that is gone was received. More than
//! [`PUSH_PENDING_MAX`] pushes whose answer is still to come are not taken: each is a gradient in memory.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};
use slackline_core::ids::Sequence;
use slackline_core::limits::{PUSH_PENDING_MAX, PUSH_WINDOW};
use slackline_core::wire::PushOutcome;

/// What the window says of an arriving push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Never before.
    New,
    /// It is here, and its answer is still to come.
    Pending,
    /// It was answered.
    Answered(PushOutcome),
    /// It is too far ahead, or so old that its answer is gone.
    OutOfWindow,
}

/// The pushes of one incarnation at one shard.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct PushWindow {
    /// Every push up to this one has been seen.
    watermark: u64,
    /// Answers by number, or none while the answer is to come; reaches above the watermark where pushes were reordered.
    answers: BTreeMap<u64, Option<PushOutcome>>,
    /// Answers that are to come.
    pending: u64,
}

impl PushWindow {
    /// The window of an incarnation whose pushes up to this one have been answered by every shard.
    #[must_use]
    pub fn after(answered: Sequence) -> Self {
        Self { watermark: answered.0, ..Self::default() }
    }

    /// Takes every push up to this one for seen, as the worker has its answers: a shard that was restored can lack them.
    pub fn raise(&mut self, answered: Sequence) {
        self.watermark = self.watermark.max(answered.0);
        self.advance();
    }

    /// Forgets all answers but the last: those that a worker that is gone could still ask for.
    pub fn shrink(&mut self) {
        let kept = self.watermark.saturating_sub(PUSH_PENDING_MAX as u64);
        self.answers.retain(|number, answer| *number > kept || answer.is_none());
    }

    /// Every push up to this one has been seen.
    #[must_use]
    pub const fn watermark(&self) -> Sequence {
        Sequence(self.watermark)
    }

    /// Answers that are to come.
    #[must_use]
    pub const fn pending(&self) -> usize {
        self.pending as usize
    }

    /// The pushes whose answers are to come, in order.
    pub fn unanswered(&self) -> impl Iterator<Item = Sequence> + '_ {
        self.answers.iter().filter(|(_, answer)| answer.is_none()).map(|(number, _)| Sequence(*number))
    }

    /// Whether a window that was read from somewhere is one that pushes could have led to.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let furthest = self.watermark.saturating_add(PUSH_WINDOW as u64);
        let next = self.watermark.checked_add(1);
        self.pending() <= PUSH_PENDING_MAX
            && self.unanswered().count() == self.pending()
            && self.answers.len() <= 2 * PUSH_WINDOW
            && self.answers.keys().all(|number| *number > 0 && *number <= furthest && Some(*number) != next)
    }

    /// Looks a push up.
    #[must_use]
    pub fn look(&self, sequence: Sequence) -> Seen {
        match self.answers.get(&sequence.0) {
            Some(Some(outcome)) => Seen::Answered(*outcome),
            Some(None) => Seen::Pending,
            None if sequence.0 <= self.watermark => Seen::OutOfWindow,
            None if sequence.0 > self.watermark.saturating_add(PUSH_WINDOW as u64) => Seen::OutOfWindow,
            None if self.pending() >= PUSH_PENDING_MAX => Seen::OutOfWindow,
            None => Seen::New,
        }
    }

    /// Notes that a new push has arrived; its answer may come later.
    pub fn arrive(&mut self, sequence: Sequence) {
        if self.answers.insert(sequence.0, None).is_none() {
            self.pending += 1;
        }
        self.advance();
    }

    /// Follows what has arrived without a gap, and forgets what is out of the window.
    fn advance(&mut self) {
        while let Some(next) = self.watermark.checked_add(1).filter(|next| self.answers.contains_key(next)) {
            self.watermark = next;
        }
        while let Some((&oldest, answer)) = self.answers.first_key_value() {
            if answer.is_none() || oldest.saturating_add(PUSH_WINDOW as u64) > self.watermark {
                break;
            }
            self.answers.remove(&oldest);
        }
    }

    /// Whether every push that has arrived was answered.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.pending == 0
    }

    /// Notes the answer.
    pub fn answer(&mut self, sequence: Sequence, outcome: PushOutcome) {
        if let Some(answer @ None) = self.answers.get_mut(&sequence.0) {
            *answer = Some(outcome);
            self.pending -= 1;
        }
    }

    /// Whether every push up to `sequence` has arrived.
    #[must_use]
    pub const fn has_all_to(&self, sequence: Sequence) -> bool {
        sequence.0 <= self.watermark
    }

    /// Answers kept; at most twice the window.
    #[must_use]
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// Whether nothing was seen yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn outcome(number: u64) -> PushOutcome {
        PushOutcome::NotFinite { key: number }
    }

    proptest! {
        // Case 17 (dmlc/ps-lite and Angel): a retried push was applied twice.
        #[test]
        fn every_push_is_new_once_and_keeps_its_first_answer(arrivals in prop::collection::vec((1..200_u64, any::<bool>()), 0..600)) {
            let mut window = PushWindow::default();
            let mut first: BTreeMap<u64, bool> = BTreeMap::new();
            for (number, at_once) in arrivals {
                let sequence = Sequence(number);
                match window.look(sequence) {
                    Seen::New => {
                        prop_assert!(first.insert(number, at_once).is_none());
                        window.arrive(sequence);
                        if at_once { window.answer(sequence, outcome(number)); }
                    }
                    Seen::Pending => prop_assert_eq!(first.get(&number), Some(&false)),
                    Seen::Answered(answer) => {
                        prop_assert_eq!(first.get(&number), Some(&true));
                        prop_assert_eq!(answer, outcome(number));
                    }
                    Seen::OutOfWindow => {}
                }
                let complete = (1..).find(|number| !first.contains_key(number)).unwrap_or(1) - 1;
                prop_assert!(window.has_all_to(Sequence(complete)) && !window.has_all_to(Sequence(complete + 1)));
                prop_assert_eq!(window.pending(), window.answers.values().filter(|answer| answer.is_none()).count());
                prop_assert!(window.is_sound() && window.len() <= 2 * PUSH_WINDOW);
            }
        }
    }

    #[test]
    fn a_long_life_needs_no_more_memory() {
        let mut window = PushWindow::default();
        for number in 1..10_000 {
            assert_eq!(window.look(Sequence(number)), Seen::New);
            window.arrive(Sequence(number));
            window.answer(Sequence(number), outcome(number));
            assert!(window.len() <= PUSH_WINDOW);
        }
        assert_eq!(window.look(Sequence(5)), Seen::OutOfWindow);
        assert_eq!(window.look(Sequence(9_990)), Seen::Answered(outcome(9_990)));
    }
}
