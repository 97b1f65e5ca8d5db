//! Whose turn it is where several parties have work waiting: deficit round-robin (Shreedhar and Varghese 1995).
//!
//! Each party that has something waiting has a place in a circle and a credit. Whoever's turn it is goes on until its next piece costs
//! more than is left of its credit; then it gets a quantum more, for its next turn. Its own pieces stay in their order. So nobody waits
//! for how much others have brought, only for how many others there are: while a party waits for its next piece, of at most a quantum,
//! no other one is served more than a quantum and the largest piece.

use std::collections::{BTreeMap, VecDeque};

/// See the module. A party is known only while something of it waits.
#[derive(Clone, Debug)]
pub struct Turns<P, T> {
    quantum: u64,
    parties: BTreeMap<P, Waiting<T>>,
    /// Those parties, in the order of their turns.
    circle: VecDeque<P>,
}

/// What waits of one party, in its order, each piece with its cost.
#[derive(Clone, Debug)]
struct Waiting<T> {
    credit: u64,
    pieces: VecDeque<(u64, T)>,
}

impl<P: Copy + Ord, T> Turns<P, T> {
    /// Nothing waits yet. A quantum is what a turn is worth; where pieces cost more, several turns are saved for them.
    #[must_use]
    pub fn new(quantum: u64) -> Self {
        Self { quantum: quantum.max(1), parties: BTreeMap::new(), circle: VecDeque::new() }
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.circle.is_empty()
    }

    /// A party has brought something; it costs at least one.
    pub fn put(&mut self, party: P, cost: u64, piece: T) {
        let waiting = self.parties.entry(party).or_insert_with(|| {
            self.circle.push_back(party);
            Waiting { credit: self.quantum, pieces: VecDeque::new() }
        });
        waiting.pieces.push_back((cost.max(1), piece));
    }

    /// What is next.
    pub fn take(&mut self) -> Option<T> {
        loop {
            let party = *self.circle.front()?;
            let waiting = self.parties.get_mut(&party)?;
            let (cost, _) = waiting.pieces.front()?;
            if let Some(left) = waiting.credit.checked_sub(*cost) {
                waiting.credit = left;
                let (_, piece) = waiting.pieces.pop_front()?;
                if waiting.pieces.is_empty() {
                    self.parties.remove(&party);
                    self.circle.pop_front();
                }
                return Some(piece);
            }
            waiting.credit += self.quantum;
            self.circle.rotate_left(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUANTUM: u64 = 10;

    #[test]
    fn one_who_brought_much_does_not_keep_out_those_who_brought_little() {
        let mut turns = Turns::new(QUANTUM);
        for piece in 0..100 {
            turns.put("much", QUANTUM, ("much", piece));
        }
        for party in ["one", "another"] {
            turns.put(party, QUANTUM, (party, 0));
        }
        let taken: Vec<_> = std::iter::from_fn(|| turns.take()).collect();
        assert_eq!(taken[..4], [("much", 0), ("one", 0), ("another", 0), ("much", 1)]);
        assert_eq!(taken.len(), 102);
    }

    #[test]
    fn small_pieces_share_a_turn_and_a_large_one_waits_for_several() {
        let mut turns = Turns::new(QUANTUM);
        (0..4).for_each(|piece| turns.put("small", 4, ("small", piece)));
        turns.put("large", 25, ("large", 0));
        let taken: Vec<_> = std::iter::from_fn(|| turns.take()).collect();
        assert_eq!(taken, [("small", 0), ("small", 1), ("small", 2), ("small", 3), ("large", 0)]);
    }

    /// What happens: a party brings a piece of some cost, or the next one is taken.
    fn happenings(most: u64) -> impl Strategy<Value = Vec<Option<(u8, u64)>>> {
        let happening = prop_oneof![3 => (0..4_u8, 1..=most).prop_map(Some), 2 => Just(None)];
        prop::collection::vec(happening, 1..300)
    }

    proptest! {
        // The bound of the module, with pieces of at most a quantum.
        #[test]
        fn nobody_is_served_more_than_a_quantum_and_a_piece_while_another_waits(happenings in happenings(QUANTUM)) {
            let mut turns = Turns::new(QUANTUM);
            // What each party was served since each other one was served last, or began to wait.
            let mut since = [[0_u64; 4]; 4];
            let mut waits = [0_u32; 4];
            for happening in happenings.into_iter().chain([None; 400]) {
                match happening {
                    Some((party, cost)) => {
                        if waits[usize::from(party)] == 0 { since[usize::from(party)] = [0; 4]; }
                        waits[usize::from(party)] += 1;
                        turns.put(party, cost, (party, cost));
                    }
                    None => {
                        let Some((party, cost)) = turns.take() else { continue };
                        waits[usize::from(party)] -= 1;
                        since[usize::from(party)] = [0; 4];
                        for other in (0..4).filter(|other| waits[*other] > 0) {
                            since[other][usize::from(party)] += cost;
                            if other != usize::from(party) {
                                prop_assert!(since[other][usize::from(party)] <= 2 * QUANTUM);
                            }
                        }
                    }
                }
            }
            prop_assert!(turns.is_empty());
        }

        // Whatever the pieces cost: two that always have something waiting have had nearly the same (theorem 2 of the paper).
        #[test]
        fn whoever_always_has_something_waiting_gets_the_same(
            costs in prop::collection::vec(prop::collection::vec(1_u64..40, 100), 2..6),
            others in happenings(40),
        ) {
            let mut turns = Turns::new(QUANTUM);
            for (party, costs) in costs.iter().enumerate() {
                costs.iter().for_each(|cost| turns.put(party as u8 + 10, *cost, (party as u8 + 10, *cost)));
            }
            let mut served = vec![0_u64; costs.len()];
            let mut left = vec![100; costs.len()];
            for happening in others.into_iter().chain([None; 200]) {
                if let Some((party, cost)) = happening {
                    turns.put(party, cost, (party, cost));
                    continue;
                }
                let Some((party, cost)) = turns.take() else { break };
                if let Some(place) = usize::from(party).checked_sub(10) {
                    served[place] += cost;
                    left[place] -= 1;
                    if left[place] == 0 { break; }
                }
            }
            let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
            prop_assert!(most - least <= QUANTUM + 2 * 40, "{served:?}");
        }

        #[test]
        fn each_gets_all_of_its_own_in_its_order(happenings in happenings(40)) {
            let mut turns = Turns::new(QUANTUM);
            let mut next = [0_u32; 4];
            let mut brought = [0_u32; 4];
            for happening in happenings.into_iter().chain([None; 400]) {
                match happening {
                    Some((party, cost)) => {
                        turns.put(party, cost, (party, brought[usize::from(party)]));
                        brought[usize::from(party)] += 1;
                    }
                    None => {
                        let Some((party, number)) = turns.take() else { continue };
                        prop_assert_eq!(number, next[usize::from(party)]);
                        next[usize::from(party)] += 1;
                    }
                }
            }
            prop_assert_eq!(next, brought);
        }
    }
}
