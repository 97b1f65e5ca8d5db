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

#[test]
fn ssp_holds_exactly_above_its_bound_and_names_the_slowest() {
    let mut table = ClockTable::default();
    table.enter(WorkerId(0), Clock(9), Standing::Active);
    table.enter(WorkerId(1), Clock(4), Standing::Active);
    table.enter(WorkerId(2), Clock(0), Standing::Joining);
    let policy = PolicySpec::Ssp { staleness: 3 }.policy();
    assert_eq!(policy.pull(&table, Clock(7)), PullVerdict::Serve);
    assert_eq!(policy.pull(&table, Clock(8)), PullVerdict::Hold { needs: Clock(5) });
    let reason = table.hold_reason(Clock(5)).unwrap();
    assert_eq!(reason.to_string(), "waits for worker 1 at clock 4 to reach clock 5");
    table.leave(WorkerId(1));
    assert_eq!(policy.pull(&table, Clock(8)), PullVerdict::Serve);
}

#[test]
fn bsp_collects_what_is_on_time_and_drops_what_is_late() {
    let policy = PolicySpec::Bsp.policy();
    assert_eq!(policy.push(Clock(3), Clock(3)), PushVerdict::Collect);
    assert_eq!(policy.push(Clock(3), Clock(2)), PushVerdict::Drop(DropReason::LateClock { open: Clock(3) }));
}
