//! Steps, messages and bytes are those of the papers, exactly.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Runs a schedule with so many values in each part; the messages and values that each member sent.
fn sent(topology: Topology, members: u32, part_len: u64) -> (Arc<Schedule>, Vec<(u64, u64)>) {
    let schedule = schedule(topology, members);
    let lens = vec![part_len; schedule.parts() as usize];
    let packed = vec![vec![1.0; lens.iter().sum::<u64>() as usize]; members as usize];
    let outcomes = run(&schedule, packed, &lens, &mut ChaCha8Rng::seed_from_u64(5));
    let sent = outcomes.iter().map(|outcome| (outcome.messages, outcome.values_sent)).collect();
    (schedule, sent)
}

/// `count * 2(p - 1)/p`, which is whole.
fn twice_all_but_one(count: u64, members: u64) -> u64 {
    assert!(count.is_multiple_of(members));
    2 * (members - 1) * (count / members)
}

#[test]
fn a_ring_takes_twice_p_less_one_steps_and_sends_the_least() {
    for p in 1..=17 {
        let (schedule, sent) = sent(Topology::Ring, p, 3);
        assert_eq!(schedule.steps(), 2 * (p - 1));
        let (messages, values) = (u64::from(2 * (p - 1)), twice_all_but_one(u64::from(p) * 3, u64::from(p)));
        assert!(sent.iter().all(|sent| *sent == (messages, values)), "{p}: {sent:?}");
    }
}

#[test]
fn a_ring_only_joins_neighbours() {
    let schedule = schedule(Topology::Ring, 7);
    assert_eq!(schedule.neighbours(0), BTreeSet::from([1, 6]));
    assert_eq!(schedule.neighbours(6), BTreeSet::from([0, 5]));
    assert_eq!(schedule.neighbours(7), BTreeSet::new());
}

#[test]
fn halving_doubling_takes_twice_log_p_steps_and_sends_the_least() {
    for p in [1, 2, 4, 8, 16_u32] {
        let (schedule, sent) = sent(Topology::HalvingDoubling, p, 3);
        assert_eq!(schedule.steps(), 2 * p.ilog2());
        let (messages, values) =
            (u64::from(2 * p.ilog2()), twice_all_but_one(u64::from(p) * 3, u64::from(p)));
        assert!(sent.iter().all(|sent| *sent == (messages, values)), "{p}: {sent:?}");
    }
}

#[test]
fn folding_costs_two_steps_and_the_gradient_once_more() {
    for p in (1..=17_u32).filter(|p| !p.is_power_of_two()) {
        let left = 1 << p.ilog2();
        let (schedule, sent) = sent(Topology::HalvingDoubling, p, 3);
        assert_eq!(schedule.steps(), 2 * p.ilog2() + 2);
        let all = u64::from(left) * 3;
        let core = twice_all_but_one(all, u64::from(left));
        for (position, (_, values)) in (0..p).zip(&sent) {
            let expected = match position {
                _ if position >= 2 * (p - left) => core,
                _ if position.is_multiple_of(2) => core + all,
                _ => all,
            };
            assert_eq!(*values, expected, "position {position} of {p}");
        }
    }
}

#[test]
fn doubling_takes_log_p_steps_of_the_whole_gradient() {
    for p in 1..=17_u32 {
        let (schedule, sent) = sent(Topology::Doubling, p, 10);
        let rounds = p.ilog2();
        assert_eq!(schedule.steps(), if p.is_power_of_two() { rounds } else { rounds + 2 });
        if p.is_power_of_two() {
            assert!(sent.iter().all(|sent| *sent == (u64::from(rounds), 10 * u64::from(rounds))), "{sent:?}");
        }
    }
}

#[test]
fn groups_take_four_times_k_less_one_steps_and_a_ring_of_leaders() {
    for p in 1..=17 {
        for group in divisors(p) {
            let (schedule, sent) = sent(Topology::Hierarchical { group }, p, 3);
            let leaders = p / group;
            assert_eq!(schedule.steps(), 4 * (group - 1) + 2 * (leaders - 1));
            let all = u64::from(p) * 3;
            for (position, (_, values)) in (0..p).zip(&sent) {
                let leads = position % group == 0;
                let ends = position % group == group - 1;
                // Down the chain all but the leader send everything, up all but the last.
                let chain = all * (u64::from(!leads) + u64::from(!ends));
                let ring = if leads { twice_all_but_one(all, u64::from(leaders)) } else { 0 };
                assert_eq!(*values, chain + ring, "position {position} of {p}, groups of {group}");
            }
        }
    }
}

#[test]
fn groups_of_16_make_186_steps_of_2046() {
    let steps = |topology| {
        let draft = topologies::draft(topology, 1024).unwrap();
        draft.transfers.iter().map(|transfer| transfer.step + 1).max().unwrap()
    };
    assert_eq!(steps(Topology::Ring), 2046);
    assert_eq!(steps(Topology::Hierarchical { group: 16 }), 186);
}

#[test]
fn a_torus_takes_the_steps_of_its_sides_and_sends_the_least() {
    for p in 1..=17 {
        for x in divisors(p) {
            let y = p / x;
            let (schedule, sent) = sent(Topology::Torus { x, y }, p, 3);
            assert_eq!(schedule.steps(), 2 * (x - 1) + 2 * (y - 1));
            let values = twice_all_but_one(2 * u64::from(p) * 3, u64::from(p));
            assert!(sent.iter().all(|sent| sent.1 == values), "torus({x}, {y}): {sent:?}");
        }
    }
}

/// In every step every member sends one message of each colour and receives one: the first to the next in its row or column, the second
/// to the one before. And in a square grid one goes along a row while the other goes along a column.
#[test]
fn both_directions_of_a_torus_are_busy_in_every_step() {
    for (x, y) in [(2, 2), (4, 2), (2, 4), (3, 3), (5, 3), (1, 6), (6, 1), (4, 4), (2, 8)] {
        let p = x * y;
        let schedule = schedule(Topology::Torus { x, y }, p);
        let mut busy: BTreeMap<(u32, u32), Vec<(bool, u32)>> = BTreeMap::new();
        let mut received: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for transfer in schedule.transfers() {
            let second = transfer.parts.start >= p;
            let at = |position: u32| (position % x, position / x);
            let (from, to) = (at(transfer.from), at(transfer.to));
            let (from, to) = if second { (to, from) } else { (from, to) };
            let in_row = from.1 == to.1;
            let next = if in_row { ((from.0 + 1) % x, from.1) } else { (from.0, (from.1 + 1) % y) };
            assert_eq!(to, next, "torus({x}, {y}): {transfer:?}");
            busy.entry((transfer.step, transfer.from)).or_default().push((in_row, u32::from(second)));
            *received.entry((transfer.step, transfer.to)).or_default() += 1;
        }
        for step in 0..schedule.steps() {
            for member in 0..p {
                let mut sends = busy[&(step, member)].clone();
                sends.sort_by_key(|(_, colour)| *colour);
                assert_eq!([sends[0].1, sends[1].1], [0, 1]);
                assert_eq!((sends.len(), received[&(step, member)]), (2, 2));
                assert!(x != y || sends[0].0 != sends[1].0, "torus({x}, {y}) in step {step}");
            }
        }
    }
}

#[test]
fn a_transfer_has_its_number_its_step_and_two_ends() {
    for p in 1..=17 {
        for topology in fitting(p) {
            let schedule = schedule(topology, p);
            let mut last = 0;
            for (place, transfer) in schedule.transfers().iter().enumerate() {
                assert_eq!(transfer.number as usize, place);
                assert!(transfer.step >= last && transfer.step < schedule.steps());
                assert!(transfer.from < p && transfer.to < p && transfer.from != transfer.to);
                assert!(!transfer.parts.is_empty() && transfer.parts.end <= schedule.parts());
                last = transfer.step;
            }
            let ends: usize = (0..p).map(|position| schedule.of(position).count()).sum();
            assert_eq!(ends, 2 * schedule.transfers().len());
        }
    }
}

#[test]
fn a_member_alone_is_complete_with_its_own() {
    for topology in fitting(1) {
        let (schedule, sent) = sent(topology, 1, 4);
        assert_eq!((schedule.steps(), sent), (0, vec![(0, 0)]));
    }
}

#[test]
fn empty_parts_are_not_sent() {
    // One value for five members: four of five parts are empty.
    let schedule = schedule(Topology::Ring, 5);
    let outcomes = run(&schedule, vec![vec![1.0]; 5], &[0, 0, 1, 0, 0], &mut ChaCha8Rng::seed_from_u64(6));
    assert_eq!(outcomes.iter().map(|outcome| outcome.messages).sum::<u64>(), 8);
    for outcome in outcomes {
        assert_eq!(outcome.parts[2].as_ref(), [5.0]);
        assert!(outcome.parts[3].as_ref().is_empty());
    }
}
