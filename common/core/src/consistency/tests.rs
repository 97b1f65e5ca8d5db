//! The clock table against a plain model, and the rules at their borders.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

proptest! {
    #[test]
    fn the_minimum_is_that_of_the_active_rows(steps in prop::collection::vec((0..6_u32, 0..5_u8, 0..20_u64), 0..100)) {
        let mut table = ClockTable::default();
        let mut model: BTreeMap<WorkerId, (u64, bool)> = BTreeMap::new();
        for (worker, action, clock) in steps {
            let worker = WorkerId(worker);
            let minimum = model.values().filter(|row| row.1).map(|row| row.0).min();
            match action {
                0 => { table.enter(worker, Clock(clock), Standing::Active); model.insert(worker, (clock, true)); }
                1 => { table.enter(worker, Clock(clock), Standing::Joining); model.insert(worker, (clock, false)); }
                2 => { table.leave(worker); model.remove(&worker); }
                _ => {
                    let now = table.advance(worker, Clock(clock)).map(|clock| clock.0);
                    if let Some(row) = model.get_mut(&worker) {
                        let entry = if row.1 { 0 } else { minimum.unwrap_or(0) };
                        *row = (row.0.max(clock).max(entry), true);
                        prop_assert_eq!(now, Some(row.0));
                    } else {
                        prop_assert_eq!(now, None);
                    }
                }
            }
            prop_assert_eq!(table.minimum().map(|clock| clock.0), model.values().filter(|row| row.1).map(|row| row.0).min());
            prop_assert_eq!(table.slowest().map(|row| row.1), table.minimum());
            prop_assert_eq!(table.rows().count(), model.len());
        }
    }
}

fn table(clocks: &[u64]) -> ClockTable {
    let mut table = ClockTable::default();
    for (worker, clock) in (0..).zip(clocks) {
        table.enter(WorkerId(worker), Clock(*clock), Standing::Active);
    }
    table
}

fn room(table: &ClockTable, open: u64, gathered: u32) -> Room<'_> {
    Room { table, open: Clock(open), gathered, gathered_at: Moment(1_000), last: None }
}

fn reader(worker: u32, clock: u64) -> Reader {
    Reader { worker: WorkerId(worker), clock: Clock(clock), settled: true }
}

const NOW: Moment = Moment(2_000);

proptest! {
    #[test]
    fn the_minimum_without_the_slowest_is_the_next_in_order(clocks in prop::collection::vec(0..9_u64, 1..12), late in 0..14_u32) {
        let mut sorted = clocks.clone();
        sorted.sort_unstable();
        let expected = sorted[(late as usize).min(sorted.len() - 1)];
        let table = table(&clocks);
        prop_assert_eq!(table.minimum_without(late), Some(Clock(expected)));
        prop_assert_eq!(table.active_count() as usize, clocks.len());
    }

    #[test]
    fn dssp_lies_between_ssp_at_its_two_bounds(
        low in 0..4_u64, more in 0..5_u64,
        steps in prop::collection::vec((0..4_usize, 1..50_u64), 1..200),
    ) {
        let (high, mut now) = (low + more, 0);
        let mut policy = PolicySpec::Dssp { low, high }.policy();
        let mut clocks = [0_u64; 4];
        for (worker, wait) in steps {
            now += wait;
            let seen = table(&clocks);
            let room = room(&seen, 0, 0);
            let reader = reader(worker as u32, clocks[worker]);
            let verdict = policy.pull(Moment(now), &room, reader);
            let fixed = |staleness| PolicySpec::Ssp { staleness }.policy().pull(Moment(now), &room, reader);
            if fixed(low) == PullVerdict::Serve {
                prop_assert_eq!(verdict, PullVerdict::Serve);
            }
            if fixed(high) != PullVerdict::Serve || low == high {
                prop_assert_eq!(verdict, fixed(high));
            }
            if verdict == PullVerdict::Serve {
                policy.push(Moment(now), &room, reader.worker, reader.clock);
                clocks[worker] += 1;
            }
        }
    }
}

// Case 38 (snuspl/cruise#697): does the bound really hold fast workers up, and where?
#[test]
fn ssp_holds_exactly_above_its_bound_and_names_the_slowest() {
    let mut table = table(&[9, 4]);
    table.enter(WorkerId(2), Clock(0), Standing::Joining);
    let mut policy = PolicySpec::Ssp { staleness: 3 }.policy();
    assert_eq!(policy.pull(NOW, &room(&table, 0, 0), reader(0, 7)), PullVerdict::Serve);
    assert_eq!(
        policy.pull(NOW, &room(&table, 0, 0), reader(0, 8)),
        PullVerdict::Hold(Needs::Minimum(Clock(5)))
    );
    let reason = table.hold_reason(Clock(5)).unwrap();
    assert_eq!(reason.to_string(), "waits for worker 1 at clock 4 to reach clock 5");
    table.leave(WorkerId(1));
    assert_eq!(policy.pull(NOW, &room(&table, 0, 0), reader(0, 8)), PullVerdict::Serve);
}

#[test]
fn dssp_grants_more_when_that_is_foreseen_to_shorten_the_wait() {
    // Worker 0 pushes every 10, worker 1 every 35: at 40 a wait of 30 lies before it; after three more iterations there is none.
    let mut policy = PolicySpec::Dssp { low: 0, high: 8 }.policy();
    let seen = table(&[4, 1]);
    for (moment, worker) in [(0, 1), (20, 0), (30, 0), (35, 1), (40, 0)] {
        policy.push(Moment(moment), &room(&seen, 0, 0), WorkerId(worker), Clock(0));
    }
    for clock in [4, 5, 6] {
        assert_eq!(
            policy.pull(Moment(40), &room(&seen, 0, 0), reader(0, clock)),
            PullVerdict::Serve,
            "{clock}"
        );
    }
    assert_eq!(
        policy.pull(Moment(70), &room(&seen, 0, 0), reader(0, 7)),
        PullVerdict::Hold(Needs::Minimum(Clock(2))),
        "until it is known how the slowest goes on"
    );
}

#[test]
fn bsp_collects_what_is_on_time_and_drops_what_is_late() {
    let mut policy = PolicySpec::Bsp.policy();
    let table = table(&[3, 3]);
    let push =
        |policy: &mut dyn Policy, clock| policy.push(NOW, &room(&table, 3, 0), WorkerId(0), Clock(clock));
    assert_eq!(push(policy.as_mut(), 3), PushVerdict::Collect { at: Clock(3) });
    assert_eq!(push(policy.as_mut(), 2), PushVerdict::Drop(DropReason::LateClock { open: Clock(3) }));
}

#[test]
fn backup_closes_a_clock_without_its_slowest_and_lets_nobody_read_before() {
    let mut policy = PolicySpec::Backup { late: 1 }.policy();
    assert_eq!(policy.border(NOW, &room(&table(&[5, 5, 4, 2]), 4, 2)), Clock(4));
    assert_eq!(policy.border(NOW, &room(&table(&[5, 5, 5, 2]), 4, 3)), Clock(5));
    let table = table(&[5, 5, 4, 2]);
    assert_eq!(policy.pull(NOW, &room(&table, 4, 2), reader(0, 5)), PullVerdict::Hold(Needs::Open(Clock(5))));
    assert_eq!(policy.pull(NOW, &room(&table, 5, 0), reader(0, 5)), PullVerdict::Serve);
    assert_eq!(policy.pull(NOW, &room(&table, 5, 0), reader(3, 2)), PullVerdict::Serve);
    // It never waits for more than there are: the last worker alone closes its clocks.
    assert_eq!(policy.border(NOW, &room(&self::table(&[7]), 6, 1)), Clock(7));
}

// A round must not close by the number of workers that there were (field case: a dead machine stops everyone).
#[test]
fn a_quorum_needs_no_more_than_there_are_and_waits_its_grace() {
    let grace = std::time::Duration::from_nanos(500);
    let policy = PolicySpec::Quorum { count: Some(3), grace, holds: true }.policy();
    let four = table(&[1, 1, 1, 1]);
    assert_eq!(policy.border(NOW, &room(&four, 6, 2)), Clock(6), "no quorum");
    assert_eq!(policy.border(Moment(1_499), &room(&four, 6, 3)), Clock(6), "within the grace");
    assert_eq!(policy.deadline(&room(&four, 6, 3)), Some(Moment(1_500)));
    assert_eq!(policy.border(Moment(1_500), &room(&four, 6, 3)), Clock(7));
    assert_eq!(policy.border(Moment(1_001), &room(&four, 6, 4)), Clock(7), "all are in");
    assert_eq!(policy.border(Moment(1_001), &room(&table(&[1, 1]), 6, 2)), Clock(7), "two are left");
    assert_eq!(policy.border(NOW, &room(&four, 6, 0)), Clock(6), "nothing is in");
}

// Found by the simulated world: each round that was waited for in vain made the next one wait seven times as long.
#[test]
fn a_round_that_was_disturbed_hardly_changes_how_long_rounds_usually_take() {
    let grace = std::time::Duration::ZERO;
    let mut policy = PolicySpec::Quorum { count: None, grace, holds: true }.policy();
    let table = table(&[1, 1]);
    for (open, at) in [(0, 0), (1, 100_000), (2, 90_000_000)] {
        policy.push(Moment(at), &room(&table, open, 0), WorkerId(0), Clock(open));
    }
    let Memory::Rounds { usual_ns, .. } = policy.memory() else { panic!("it remembers rounds") };
    assert_eq!(usual_ns, Some(160_000));
}

#[test]
fn a_quorum_holds_a_reader_until_its_push_is_in_the_values_and_a_buffer_does_not() {
    let table = table(&[1, 1]);
    let waiting = Reader { settled: false, ..reader(0, 1) };
    let pull = |spec: PolicySpec| spec.policy().pull(NOW, &room(&table, 0, 1), waiting);
    let grace = std::time::Duration::ZERO;
    assert_eq!(
        pull(PolicySpec::Quorum { count: None, grace, holds: true }),
        PullVerdict::Hold(Needs::Settled)
    );
    assert_eq!(pull(PolicySpec::Buffer { count: None }), PullVerdict::Serve);
}

#[test]
fn every_policy_has_its_name() {
    let grace = std::time::Duration::from_millis(500);
    for (spec, name) in [
        (PolicySpec::Bsp, "bsp"),
        (PolicySpec::Ssp { staleness: 2 }, "ssp(2)"),
        (PolicySpec::Essp { staleness: 2 }, "essp(2)"),
        (PolicySpec::Dssp { low: 1, high: 8 }, "dssp(1, 8)"),
        (PolicySpec::Asp, "asp"),
        (PolicySpec::Backup { late: 1 }, "backup(1)"),
        (PolicySpec::Quorum { count: Some(3), grace, holds: true }, "quorum(3, 0.5 s)"),
        (PolicySpec::Buffer { count: None }, "buffer(all)"),
    ] {
        assert_eq!(spec.to_string(), name);
    }
}
