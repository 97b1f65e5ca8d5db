//! Was a reader ever further ahead than the policy allows? Told from the pushes alone, over the whole history of a shard, whoever led it.
//!
//! A gradient at clock c was computed on a version. Under a staleness bound s that version must hold the first c - s iterations of every
//! worker that counted then: one of which the version holds a push already, and which goes on to push in the same life. And it must hold the
//! worker's own pushes, all but those that it pulls ahead of. The traces of the servers cannot show this across a failover: a server that is killed takes the last second of its
//! trace along, and its successor begins in the middle.

use std::collections::BTreeMap;

use slackline_core::ids::{Clock, Incarnation, Version, WorkerId};

use crate::pushes::{Pushes, StepId};

/// What was looked at, and what was wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounded {
    /// Reads that were looked at: one for each step.
    pub reads: u64,
    /// The furthest that a reader was ahead of what its values held of another worker, in iterations.
    pub lead_max: u64,
    /// Reads that were further ahead than allowed, or did not hold the reader's own pushes.
    pub breaches: u64,
    /// The first of them.
    pub first: Option<String>,
}

/// Looks at every step of a shard's `order`; without a `staleness` only at whether readers saw their own pushes, all but the last `prefetch`.
#[must_use]
pub fn check(
    pushes: &Pushes,
    order: &[(Version, StepId)],
    staleness: Option<u64>,
    prefetch: usize,
) -> Bounded {
    let mut lives: BTreeMap<(WorkerId, Incarnation), Vec<(Version, Clock)>> = BTreeMap::new();
    for (version, step) in order {
        if let Some(piece) = pushes.piece(step) {
            lives.entry(step.life()).or_default().push((*version, piece.clock));
        }
    }
    let mut bounded = Bounded::default();
    for (version, step) in order {
        let Some(piece) = pushes.piece(step) else { continue };
        bounded.reads += 1;
        let mut breach = |why: String| {
            bounded.breaches += 1;
            bounded.first.get_or_insert_with(|| format!("{step}, computed on {}: {why}", piece.pulled));
        };
        for ((worker, incarnation), made) in &lives {
            let is_own = (*worker, *incarnation) == step.life();
            let counted = made.first().is_some_and(|(first, _)| *first <= piece.pulled);
            let next = made.partition_point(|(made, _)| *made <= piece.pulled);
            let Some((later, clock)) = made.get(next).filter(|_| counted || is_own) else { continue };
            if is_own {
                let missing = made.partition_point(|(made, _)| made < version).saturating_sub(next);
                if missing > prefetch {
                    breach(format!("its own push of {clock}, which made {later}, was missing"));
                }
            } else if *worker != step.worker {
                let lead = piece.clock.0.saturating_sub(clock.0);
                if staleness.is_some_and(|bound| lead > bound) {
                    breach(format!("at {}, with {clock} of {worker} still to come", piece.clock));
                }
                bounded.lead_max = bounded.lead_max.max(lead);
            }
        }
    }
    bounded
}

#[cfg(test)]
mod tests {
    use slackline_core::ids::{BatchIndex, Sequence};

    use super::*;
    use crate::pushes::Piece;

    /// Steps as (worker, incarnation, clock, pulled), in the order of the versions they made.
    fn checked(steps: &[(u32, u64, u64, u64)], staleness: Option<u64>) -> Bounded {
        checked_ahead(steps, staleness, 0)
    }

    fn checked_ahead(steps: &[(u32, u64, u64, u64)], staleness: Option<u64>, prefetch: usize) -> Bounded {
        let (mut pushes, mut order) = (Pushes::default(), Vec::new());
        for ((worker, incarnation, clock, pulled), version) in steps.iter().copied().zip(1..) {
            let (worker, incarnation) = (WorkerId(worker), Incarnation(incarnation));
            let step = StepId { worker, incarnation, sequence: Sequence(clock + 1) };
            let (clock, pulled, batch) = (Clock(clock), Version(pulled), BatchIndex(version));
            pushes.sent(step, Piece { clock, pulled, batch, samples: 1, gradient: Vec::new() });
            order.push((Version(version), step));
        }
        check(&pushes, &order, staleness, prefetch)
    }

    #[test]
    fn a_reader_may_be_as_far_ahead_as_the_bound_and_no_further() {
        // Worker 1 has pushed its clock 0 and not its clock 1 when worker 0 reads at clock 3.
        let steps = [(0, 1, 0, 0), (1, 1, 0, 0), (0, 1, 1, 2), (0, 1, 2, 3), (0, 1, 3, 4), (1, 1, 1, 2)];
        let kept = checked(&steps, Some(2));
        assert_eq!((kept.breaches, kept.lead_max, kept.reads), (0, 2, 6));
        let broken = checked(&steps, Some(1));
        assert_eq!(broken.breaches, 1);
        let first = broken.first.unwrap();
        assert!(first.contains("worker 0") && first.contains("of worker 1 still to come"), "{first}");
        assert_eq!(checked(&steps, None).breaches, 0);
    }

    #[test]
    fn a_worker_gates_nobody_after_its_life_or_before_its_first_push() {
        // Worker 1 pushes once and is killed; its next life begins when worker 0 is far ahead.
        let steps = [(0, 1, 0, 0), (1, 1, 0, 0), (0, 1, 1, 2), (0, 1, 5, 3), (1, 2, 1, 3), (0, 1, 6, 4)];
        assert_eq!(checked(&steps, Some(0)).breaches, 0);
    }

    #[test]
    fn a_reader_sees_its_own_pushes() {
        let broken = checked(&[(0, 1, 0, 0), (0, 1, 1, 0)], None);
        assert!(broken.first.unwrap().contains("its own push"));
        // All but the last where it pulls ahead.
        let steps = [(0, 1, 0, 0), (0, 1, 1, 0), (0, 1, 2, 1), (0, 1, 3, 1)];
        assert_eq!(checked_ahead(&steps[..3], None, 1).breaches, 0);
        assert_eq!(checked_ahead(&steps, None, 1).breaches, 1);
    }
}
