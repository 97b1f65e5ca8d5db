//! Recursive halving and doubling (Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005), for any number of members by folding.
//!
//! Neighbours meet first (distance 1, then 2, 4 ...), so that for 2^k members every sum is the binary tree of
//! [`aggregate::pairwise_sum`](crate::aggregate::pairwise_sum), and an allreduce has the bits of a bsp server. For p members with
//! q = 2^floor(log2 p) < p, each of the first p - q odd positions adds its gradient to its left neighbour's before, and gets the sum
//! after: two more steps with n bytes each. For 3, 6, 7, 12, 14 and 15 members that is the same tree still; for others (5, 9, 10,
//! 11, 13, 17) it is another, and sums differ from a server's by rounding.

use super::{Action, Draft};

/// The members that are left after the odd ones were folded into their neighbours.
struct Folding {
    /// How many pairs there are at the beginning of the positions.
    pairs: u32,
    /// How many members are left: a power of two.
    left: u32,
    /// Its logarithm.
    rounds: u32,
}

impl Folding {
    const fn new(members: u32) -> Self {
        let rounds = members.ilog2();
        Self { pairs: members - (1 << rounds), left: 1 << rounds, rounds }
    }

    /// Steps before the others can begin.
    const fn steps(&self) -> u32 {
        (self.pairs > 0) as u32
    }

    /// The position of one that is left.
    const fn position(&self, place: u32) -> u32 {
        if place < self.pairs { 2 * place } else { place + self.pairs }
    }

    fn fold(&self, draft: &mut Draft) {
        for pair in 0..self.pairs {
            draft.send(0, 2 * pair + 1, 2 * pair, 0..draft.parts, Action::Add);
        }
    }

    fn unfold(&self, draft: &mut Draft, step: u32) {
        for pair in 0..self.pairs {
            draft.send(step, 2 * pair, 2 * pair + 1, 0..draft.parts, Action::Replace);
        }
    }
}

/// In each round partners exchange all they have: few steps, many bytes.
pub(super) fn doubling(members: u32) -> Draft {
    let folding = Folding::new(members);
    let mut draft = Draft::new(1);
    folding.fold(&mut draft);
    for round in 0..folding.rounds {
        for place in 0..folding.left {
            let (from, to) = (folding.position(place), folding.position(place ^ (1 << round)));
            draft.send(folding.steps() + round, from, to, 0..1, Action::Add);
        }
    }
    folding.unfold(&mut draft, folding.steps() + folding.rounds);
    draft
}

/// In each round partners share the parts that both have a sum of: each sends the half that the other keeps. Then the way back.
pub(super) fn halving_doubling(members: u32) -> Draft {
    let folding = Folding::new(members);
    let mut draft = Draft::new(folding.left);
    folding.fold(&mut draft);
    // What a place keeps after so many rounds: each bit of the place, from the lowest, chooses a half.
    let kept = |place: u32, rounds: u32| {
        let start: u32 = (0..rounds).map(|bit| (place >> bit & 1) * (folding.left >> (bit + 1))).sum();
        start..start + (folding.left >> rounds)
    };
    for round in 0..folding.rounds {
        // The way back is the way there in reverse: what partners shared last, they exchange first.
        let back = folding.steps() + 2 * folding.rounds - 1 - round;
        for place in 0..folding.left {
            let partner = place ^ (1 << round);
            let (from, to) = (folding.position(place), folding.position(partner));
            draft.send(folding.steps() + round, from, to, kept(partner, round + 1), Action::Add);
            draft.send(back, from, to, kept(place, round + 1), Action::Replace);
        }
    }
    folding.unfold(&mut draft, folding.steps() + 2 * folding.rounds);
    draft
}
