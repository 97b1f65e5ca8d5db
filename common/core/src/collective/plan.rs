//! What one member does in a schedule, and what waits for what.

use std::collections::BTreeMap;

use super::schedule::Transfer;

/// One transfer, seen from one of its ends.
#[derive(Debug)]
pub(super) struct Move {
    /// The transfer's number.
    pub(super) number: u32,
    /// Whether it is sent by this member; else received.
    pub(super) is_sent: bool,
    /// How many moves must be done before.
    pub(super) needs: u32,
    /// Which moves wait for this one.
    pub(super) then: Vec<u32>,
}

/// All moves of one member.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// By step, and within a step what is sent before what is received: a send takes the values as they were before the step.
    pub(super) moves: Vec<Move>,
    /// The move of each number that is received.
    pub(super) received: BTreeMap<u32, u32>,
}

/// The moves that touched one part last.
#[derive(Clone, Default)]
struct Touched {
    received: Option<u32>,
    /// Sent since.
    sent: Vec<u32>,
}

impl Plan {
    /// The plan of the member at `position`, of whom these are the transfers.
    pub(super) fn new<'a>(position: u32, parts: u32, of: impl Iterator<Item = &'a Transfer>) -> Self {
        let mut ends: Vec<(bool, &Transfer)> =
            of.map(|transfer| (transfer.to == position, transfer)).collect();
        ends.sort_by_key(|(is_received, transfer)| (transfer.step, *is_received, transfer.number));
        let mut plan = Self::default();
        let mut touched = vec![Touched::default(); parts as usize];
        for (is_received, transfer) in ends {
            let index = plan.moves.len() as u32;
            let touched = &mut touched[transfer.parts.start as usize..transfer.parts.end as usize];
            let before = before(touched, is_received, index);
            for earlier in &before {
                plan.moves[*earlier as usize].then.push(index);
            }
            if is_received {
                plan.received.insert(transfer.number, index);
            }
            plan.moves.push(Move {
                number: transfer.number,
                is_sent: !is_received,
                needs: before.len() as u32,
                then: Vec::new(),
            });
        }
        plan
    }
}

/// What move `index` must wait for in the parts it touches: a send for what was received last; a receive also for what has been
/// sent since, so that it does not change what is to be sent, and so that sums are made in the order of steps.
fn before(touched: &mut [Touched], is_received: bool, index: u32) -> Vec<u32> {
    let mut before = Vec::new();
    for part in touched {
        before.extend(part.received);
        if is_received {
            before.append(&mut part.sent);
            part.received = Some(index);
        } else {
            part.sent.push(index);
        }
    }
    before.sort_unstable();
    before.dedup();
    before
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::collective::Action;

    fn transfer(number: u32, (from, to): (u32, u32), step: u32, parts: Range<u32>) -> Transfer {
        Transfer { number, step, from, to, parts, action: Action::Add }
    }

    #[test]
    fn a_move_waits_for_what_touched_its_parts_and_for_nothing_else() {
        let transfers = [
            transfer(0, (1, 0), 0, 0..1),
            transfer(1, (2, 0), 0, 1..2),
            transfer(2, (3, 0), 0, 2..3),
            transfer(3, (0, 1), 0, 0..1),
            transfer(4, (0, 2), 1, 0..2),
            transfer(5, (1, 0), 1, 0..1),
        ];
        let plan = Plan::new(0, 3, transfers.iter());
        let order: Vec<u32> = plan.moves.iter().map(|step| step.number).collect();
        assert_eq!(order, [3, 0, 1, 2, 4, 5]);
        let then: Vec<&[u32]> = plan.moves.iter().map(|step| step.then.as_slice()).collect();
        // What is received in a step does not change what is sent in it, nor what is sent later before it is sent.
        assert_eq!(then, [&[1][..], &[4, 5], &[4], &[], &[5], &[]]);
        let needs: Vec<u32> = plan.moves.iter().map(|step| step.needs).collect();
        assert_eq!(needs, [0, 1, 0, 0, 2, 2]);
    }
}
