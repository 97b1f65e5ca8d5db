//! Copies that are away: what a primary lost that was started again is not lost while its copy may come back.

use super::*;
use slackline_core::wire::Lack;

/// The copy of shard 1, which server 1 leads, is at server 2 and lacks nothing.
fn at_work(from: Option<(u64, Clock)>) -> Table {
    let mut table = Table::new(ClusterSettings { from, every: from.map(|_| 50), ..settings(2) });
    for shard in (0..3).filter(|_| from.is_some()) {
        restored(&mut table, shard);
    }
    table.cluster.trained();
    table.settle();
    (0..3).for_each(|shard| table.in_step(shard));
    table
}

/// The same, and servers 1 and 2 are lost.
fn both_away(from: Option<(u64, Clock)>) -> Table {
    let mut table = at_work(from);
    table.silent = vec![1, 2];
    table.pass(5, &[]);
    table
}

fn restored(table: &mut Table, shard: u32) {
    let Place { shard, generation, primary, .. } = table.place(shard);
    let clock = Clock(900);
    table.word(primary.0, ServerWord::Restored { shard, generation, version: Version(1), clock });
}

fn lack(table: &Table, shard: u32) -> Option<Lack> {
    let lacks = table.cluster.lacks();
    lacks.iter().find(|lack| lack.place.shard == ShardId(shard)).map(|lack| lack.lack)
}

fn lines(table: &Table) -> Vec<String> {
    table.notices.iter().map(ToString::to_string).collect()
}

// Found by reading: the run ended with "no state", though the copy was only frozen.
#[test]
fn a_primary_that_is_started_again_waits_for_its_copy_by_name_and_that_answers_when_it_is_back() {
    let mut table = both_away(None);
    let before = table.place(1);
    table.here(1, 2, &[]);
    assert_eq!(table.failures, [""; 0]);
    let place = table.place(1);
    assert_eq!((place.primary, place.backup, place.origin), (ServerId(2), None, Origin::Memory));
    assert!(place.generation > before.generation);
    assert_eq!(lack(&table, 1), Some(Lack::Copy { former: ServerId(1) }));
    let line = "server 1 was restarted without shard 1; server 2, which has an equal copy, is away: it is waited for, since \
                nothing else has it";
    assert!(lines(&table).contains(&line.to_owned()), "{:?}", lines(&table));
    assert!(table.told(1).unwrap().iter().all(|place| place.shard != ShardId(1)), "it has nothing of it");
    // However long it takes.
    table.pass(60, &[1]);
    assert_eq!((table.place(1), table.failures.len()), (place, 0));
    table.here(2, 1, &[]);
    assert_eq!((table.place(1).primary, table.place(1).generation), (place.primary, place.generation));
    assert!(table.told(2).unwrap().contains(&table.place(1)));
    assert!(lack(&table, 1).is_none_or(|lack| matches!(lack, Lack::Step { .. })), "{:?}", lack(&table, 1));
    assert!(table.placed.iter().any(|placed| (placed.shard, placed.server) == (ShardId(1), ServerId(2))));
}

#[test]
fn where_the_copy_is_lost_too_the_run_ends_with_both_names() {
    let mut table = both_away(None);
    table.here(1, 2, &[]);
    table.pass(1, &[1]);
    table.here(2, 2, &[]);
    let text = "shard 1 has no state: server 1 was restarted, and server 2, which had the copy, too; give the run \
                cluster.durability = \"disk\" or checkpoints";
    assert_eq!(table.failures, [text]);
}

#[test]
fn a_copy_that_is_started_again_first_is_none_and_the_primary_goes_on_when_it_is_back() {
    let mut table = both_away(None);
    let before = table.place(1);
    table.here(2, 2, &[]);
    assert_eq!((table.place(1).primary, table.failures.len()), (ServerId(1), 0));
    assert_eq!(lack(&table, 1), Some(Lack::Primary));
    assert!(!lines(&table).iter().any(|line| line.contains("is back, with all that it had")));
    table.here(1, 1, &[]);
    let after = table.place(1);
    assert_eq!((after.primary, after.origin), (before.primary, before.origin));
    assert!(lack(&table, 1).is_none_or(|lack| matches!(lack, Lack::Step { .. })));
}

// The lease of a frozen copy is over before that of a primary that was killed after it: nobody must count on an order to a dead process.
#[test]
fn a_primary_that_is_silent_itself_goes_on_without_its_copy_only_when_it_is_heard() {
    let mut table = Table::at_work(2);
    table.pass(1, &[1]);
    // Now server 1 is killed, or cut off.
    (table.silent, table.orders) = (vec![1, 2], Vec::new());
    table.pass(3, &[]);
    assert!(table.told(1).is_some(), "it is asked for a word");
    assert!(lines(&table).iter().any(|line| line.starts_with("server 2 was not heard")));
    assert!(!lines(&table).iter().any(|line| line.starts_with("server 1 was not heard")), "not yet");
    let backup = table.place(1).backup.unwrap();
    assert_eq!((backup.server, backup.in_step), (ServerId(2), true));
    // It was only cut off: from here on it acknowledges what the copy does not have.
    table.word(1, ServerWord::Alive);
    assert!(table.place(1).backup.is_none_or(|backup| backup.server != ServerId(2)));
    assert_eq!(table.place(1).primary, ServerId(1));
}

#[test]
fn one_that_was_killed_after_its_copy_was_frozen_waits_for_that_copy() {
    let mut table = Table::at_work(2);
    table.pass(1, &[1]);
    table.silent = vec![1, 2];
    table.pass(3, &[]);
    table.here(1, 2, &[]);
    assert_eq!((table.place(1).primary, table.failures.len()), (ServerId(2), 0));
    assert_eq!(lack(&table, 1), Some(Lack::Copy { former: ServerId(1) }));
    table.here(2, 1, &[]);
    assert!(lack(&table, 1).is_none_or(|lack| matches!(lack, Lack::Step { .. })));
}

#[test]
fn with_a_checkpoint_the_copy_is_waited_for_for_two_leases() {
    let mut table = both_away(Some((7, Clock(900))));
    table.progress = Clock(1000);
    table.here(1, 2, &[]);
    let line = "server 1 was restarted without shard 1; server 2, which has an equal copy, is away: it is waited for for 6.0 s, \
                then checkpoint 7 is loaded";
    assert!(lines(&table).contains(&line.to_owned()), "{:?}", lines(&table));
    table.pass(5, &[1]);
    assert_eq!(lack(&table, 1), Some(Lack::Copy { former: ServerId(1) }));
    table.pass(1, &[1]);
    let place = table.place(1);
    assert_eq!((place.primary, place.origin), (ServerId(1), Origin::Checkpoint { number: 7 }));
    let line = "server 2, which has the copy of shard 1, has not come back for 6.0 s";
    assert!(lines(&table).contains(&line.to_owned()), "{:?}", lines(&table));
    restored(&mut table, 1);
    // What comes back too late is a copy of before.
    table.here(2, 1, &[]);
    assert_eq!(table.place(1).primary, ServerId(1));
    assert!(table.place(1).backup.is_none_or(|backup| !backup.in_step));
    assert_eq!(table.failures, [""; 0]);
}

#[test]
fn with_a_checkpoint_a_copy_that_is_back_in_time_loses_nothing() {
    let mut table = both_away(Some((7, Clock(900))));
    table.here(1, 2, &[]);
    table.pass(5, &[1]);
    table.here(2, 1, &[]);
    table.pass(30, &[1, 2]);
    assert_eq!((table.place(1).primary, table.place(1).origin), (ServerId(2), Origin::Memory));
}

// The lease of a frozen copy is not over yet when its primary is started again: it is promoted, and then found to be away.
#[test]
fn a_copy_that_was_promoted_and_never_heard_since_is_waited_for_as_long() {
    for from in [None, Some((7, Clock(900)))] {
        let mut table = at_work(from);
        table.silent = vec![2];
        table.now = table.now.after(Duration::from_secs(1));
        table.here(1, 2, &[]);
        assert_eq!(table.place(1).primary, ServerId(2), "it is within its lease");
        table.pass(4, &[1]);
        assert_eq!(lack(&table, 1), Some(Lack::Copy { former: ServerId(1) }));
        table.pass(10, &[1]);
        let expected = from.map_or(Origin::Memory, |(number, _)| Origin::Checkpoint { number });
        assert_eq!((table.place(1).origin, table.failures.len()), (expected, 0));
    }
}

// Found by reading: what lay whole on the disk of the server that was started again was given up for a checkpoint, and without one nobody
// looked at it at all.
#[test]
fn a_copy_that_stays_away_is_no_reason_to_give_up_what_the_disk_of_the_former_primary_has() {
    for from in [None, Some((7, Clock(900)))] {
        let every = from.map(|_| 50);
        let mut table = Table::new(ClusterSettings { on_disk: true, from, every, ..settings(2) });
        for shard in (0..3).filter(|_| from.is_some()) {
            restored(&mut table, shard);
        }
        table.cluster.trained();
        table.settle();
        (0..3).for_each(|shard| table.in_step(shard));
        table.silent = vec![2];
        table.now = table.now.after(Duration::from_secs(1));
        let led = table.place(1).generation;
        table.here(1, 2, &[on_disk(1, led)]);
        assert_eq!(table.place(1).primary, ServerId(2), "it is within its lease");
        table.pass(4, &[1]);
        assert_eq!(lack(&table, 1), Some(Lack::Copy { former: ServerId(1) }));
        table.pass(10, &[1]);
        let place = table.place(1);
        assert_eq!((place.primary, place.origin, table.failures.len()), (ServerId(1), Origin::Disk, 0));
    }
}

#[test]
fn what_a_coordinator_that_is_restarted_has_kept_waits_two_leases_from_then_on() {
    let mut table = both_away(Some((7, Clock(900))));
    table.here(1, 2, &[]);
    table.pass(5, &[1]);
    table.cluster.restart(table.now);
    table.here(0, 1, &[]);
    table.here(1, 2, &[]);
    table.pass(5, &[1]);
    assert_eq!(lack(&table, 1), Some(Lack::Copy { former: ServerId(1) }));
    table.pass(2, &[1]);
    assert_eq!(table.place(1).origin, Origin::Checkpoint { number: 7 });
}
