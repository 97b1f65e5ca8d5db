//! What may come when, without a network.

use std::sync::Arc;

use slackline_core::collective::Schedule;

use super::*;
use crate::peers::fault::Fault;
use crate::peers::pool::Pool;
use crate::peers::reducing::{Outcome, Reducing};

fn member(position: u32) -> Reducing {
    let schedule = Arc::new(Schedule::new(Topology::Ring, 2).unwrap());
    let place = (Generation(1), WorkerId(position), position);
    Reducing::new(place, schedule, settings().buckets, Clock(5), Pool::default())
}

fn own(member: &mut Reducing, clock: u64) -> Vec<Outcome> {
    let buckets = settings().buckets;
    let one = |bucket: &Bucket| {
        member.own(Clock(clock), bucket.index, vec![1.0; bucket.keys.len as usize].into()).unwrap()
    };
    buckets.iter().flat_map(one).collect()
}

/// Hands over what was sent; returns what comes of it, and how many came.
fn deliver(to: &mut Reducing, from: u32, outcomes: Vec<Outcome>) -> Vec<Outcome> {
    let mut more = Vec::new();
    for outcome in outcomes {
        if let Outcome::Send(_, header, pieces) = outcome {
            let values = pieces.iter().flat_map(|piece| piece.as_ref().to_vec()).collect();
            to.admit(from, WorkerId(from), &header).unwrap();
            more.extend(to.arrived(from, WorkerId(from), &header, values).unwrap());
        }
    }
    more
}

#[test]
fn a_worker_can_be_one_iteration_ahead_and_no_more() {
    let (mut slow, mut fast) = (member(0), member(1));
    let (from_slow, from_fast) = (own(&mut slow, 5), own(&mut fast, 5));
    let back = deliver(&mut fast, 0, from_slow);
    let last_of_slow = deliver(&mut slow, 1, from_fast);
    // The fast one gets the last sums first, goes on, and is one ahead.
    let done = deliver(&mut fast, 0, last_of_slow);
    assert!(
        done.iter().any(|outcome| matches!(outcome, Outcome::Reduced(reduced) if reduced.clock == Clock(5)))
    );
    let ahead = own(&mut fast, 6);
    assert!(deliver(&mut slow, 1, ahead).is_empty(), "it is kept");
    let mut header = header(WorkerId(1), Generation(1), KeyRange::new(0, 1));
    (header.kind, header.clock) = (TransferKind::Part, Clock(7));
    let refused = slow.admit(1, WorkerId(1), &header).unwrap_err();
    assert_eq!(refused, Fault::Clock { worker: WorkerId(1), clock: Clock(7), bucket: 0, at: Clock(5) });
    header.clock = Clock(4);
    assert!(slow.admit(1, WorkerId(1), &header).is_err());
    let done = deliver(&mut slow, 1, back);
    assert!(done.iter().any(|outcome| matches!(outcome, Outcome::Reduced(_))));
    let done = own(&mut slow, 6);
    assert!(done.iter().any(|outcome| matches!(outcome, Outcome::Gathered(Clock(6)))));
}

#[test]
fn whoever_is_missing_is_named_with_the_bucket() {
    let mut member = member(0);
    assert!(member.missing().is_none(), "nothing has begun");
    own(&mut member, 5);
    let missing = member.missing().unwrap();
    assert_eq!((missing.clock, missing.bucket, missing.buckets, missing.from), (Clock(5), 0, 2, 1));
}

#[test]
fn an_own_gradient_of_another_iteration_changes_nothing() {
    let mut member = member(0);
    assert!(own(&mut member, 6).is_empty() && own(&mut member, 4).is_empty());
    assert!(!own(&mut member, 5).is_empty());
    assert!(member.own(Clock(5), 0, vec![1.0; 3].into()).is_err());
}
