//! Whatever comes, it is an error with a name, and the rest goes on.

use proptest::prelude::*;

use super::*;

fn member(topology: Topology, members: u32, position: u32, part_lens: &[u64]) -> Reduction<Shared> {
    Reduction::new(schedule(topology, members), position, part_lens.to_vec())
}

#[test]
fn what_the_schedule_does_not_have_is_refused() {
    let mut out = Vec::new();
    let mut member = member(Topology::Ring, 3, 0, &[2, 2, 2]);
    // Position 2 sends to 0: first its slice 1.
    let transfers = schedule(Topology::Ring, 3);
    let right = transfers.of(0).find(|transfer| transfer.to == 0).unwrap().number;
    assert_eq!(member.expects(2, right), Some(2));
    for (from, number) in [(1, right), (0, right), (9, right), (2, u32::MAX)] {
        assert_eq!(member.expects(from, number), None);
        let refused = member.arrived(from, number, vec![0.0; 2], &mut out).unwrap_err();
        assert_eq!(refused, ReductionError::Unexpected { from, number });
    }
    // A transfer of its own, which it would send.
    let own = transfers.of(0).find(|transfer| transfer.from == 0).unwrap().number;
    assert!(matches!(member.arrived(1, own, vec![0.0; 2], &mut out), Err(ReductionError::Unexpected { .. })));
    for len in [1, 3] {
        let refused = member.arrived(2, right, vec![0.0; len as usize], &mut out).unwrap_err();
        assert_eq!(refused, ReductionError::Length { from: 2, number: right, values: len, expected: 2 });
    }
    assert_eq!(member.expects(2, right), Some(2));
    member.arrived(2, right, vec![0.0; 2], &mut out).unwrap();
    let twice = ReductionError::Again { from: 2, number: right };
    assert_eq!(member.arrived(2, right, vec![0.0; 2], &mut out), Err(twice));
    assert!(twice.to_string().contains("position 2 sent transfer"));
    assert!(out.is_empty() && !member.is_gathered());
}

#[test]
fn the_own_gradient_has_its_length_and_comes_once() {
    let mut out = Vec::new();
    let mut member = member(Topology::Ring, 2, 0, &[2, 3]);
    for len in [1, 4, 6] {
        let refused = member.own(Shared::from(vec![0.0; len]), &mut out).unwrap_err();
        assert_eq!(refused, ReductionError::OwnLength { values: len as u64, expected: 5 });
    }
    member.own(Shared::from(vec![1.0; 5]), &mut out).unwrap();
    assert_eq!(member.own(Shared::from(vec![1.0; 5]), &mut out), Err(ReductionError::OwnAgain));
    assert_eq!(out.len(), 1);
}

#[test]
fn an_empty_message_before_the_own_gradient_is_found_out_by_it() {
    let mut out = Vec::new();
    let mut member = member(Topology::Doubling, 2, 0, &[4]);
    let number = schedule(Topology::Doubling, 2).of(0).find(|transfer| transfer.to == 0).unwrap().number;
    member.arrived(1, number, Vec::new(), &mut out).unwrap();
    let refused = ReductionError::Length { from: 1, number, values: 0, expected: 4 };
    assert_eq!(member.own(Shared::from(vec![0.0; 4]), &mut out), Err(refused));
    assert!(out.is_empty());
}

#[test]
fn without_values_the_same_messages_go() {
    for members in 1..=9 {
        for topology in fitting(members) {
            let schedule = schedule(topology, members);
            let lens: Vec<u64> = (0..u64::from(schedule.parts())).map(|part| part % 4).collect();
            let total = lens.iter().sum::<u64>() as usize;
            let sent = |values: usize| -> Vec<(u64, u64)> {
                let packed = vec![vec![0.5; values]; members as usize];
                let outcomes = run(&schedule, packed, &lens, &mut ChaCha8Rng::seed_from_u64(4));
                outcomes.iter().map(|outcome| (outcome.messages, outcome.values_sent)).collect()
            };
            assert_eq!(sent(0), sent(total), "{topology}");
        }
    }
}

#[test]
fn a_stranger_neither_sends_nor_expects() {
    let mut out = Vec::new();
    let mut member = member(Topology::Ring, 3, 3, &[1, 1, 1]);
    assert_eq!(member.expects(0, 0), None);
    member.own(Shared::from(vec![1.0; 3]), &mut out).unwrap();
    assert!(member.arrived(0, 0, vec![1.0], &mut out).is_err());
    assert!(out.is_empty());
}

#[test]
fn wrong_numbers_of_part_lengths_do_no_harm() {
    let mut out = Vec::new();
    let mut few = member(Topology::Ring, 3, 0, &[1]);
    few.own(Shared::from(vec![1.0]), &mut out).unwrap();
    let mut many = member(Topology::Ring, 3, 0, &[1; 9]);
    assert!(many.own(Shared::from(vec![1.0; 9]), &mut out).is_err());
    let huge = member(Topology::Ring, 3, 0, &[u64::MAX; 3]);
    assert!((0..12).all(|number| huge.expects(2, number).is_none_or(|len| len == u64::MAX)));
    assert_eq!(huge.into_parts().len(), 3);
}

proptest! {
    #[test]
    fn rubbish_changes_nothing(
        members in 1..=9_u32,
        choice in any::<prop::sample::Index>(),
        rubbish in prop::collection::vec((0..10_u32, 0..200_u32, 0..6_usize), 1..200),
    ) {
        let all = fitting(members);
        let schedule = schedule(all[choice.index(all.len())], members);
        let lens = vec![2; schedule.parts() as usize];
        let mut member = Reduction::<Shared>::new(Arc::clone(&schedule), 0, lens.clone());
        let mut out = Vec::new();
        for (place, (from, number, len)) in rubbish.into_iter().enumerate() {
            if place == 20 {
                // It may have to be refused when empty messages came before.
                let _ = member.own(Shared::from(vec![1.0; 2 * lens.len()]), &mut out);
            }
            let before = member.expects(from, number);
            let taken = member.arrived(from, number, vec![1.0; len], &mut out);
            prop_assert!(taken.is_err() || before.is_some());
            prop_assert!(taken.is_ok() || member.expects(from, number) == before);
            prop_assert!(taken.is_err() || member.expects(from, number).is_none());
        }
        prop_assert!(out.iter().all(|sent| schedule.transfers()[sent.number as usize].from == 0));
        prop_assert_eq!(member.into_parts().len(), lens.len());
    }
}
