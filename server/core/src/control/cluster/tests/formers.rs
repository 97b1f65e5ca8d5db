//! Where disks count: a server that took over and had nothing on its disk yet has acknowledged nothing, and the one before it has all.

use super::*;

/// Disks count, there are two copies, and server 2 leads shard 1 in the place of server 1, which is away.
fn taken_over() -> Table {
    let mut table = Table::new(ClusterSettings { on_disk: true, ..settings(2) });
    table.cluster.trained();
    table.settle();
    (0..3).for_each(|shard| table.in_step(shard));
    // It takes no orders either.
    table.cluster.disconnected(ServerId(1));
    table.pass(5, &[2]);
    assert_eq!(table.place(1).primary, ServerId(2));
    table
}

fn restored(table: &mut Table, shard: u32) {
    let Place { shard, generation, primary, .. } = table.place(shard);
    let word = ServerWord::Restored { shard, generation, version: Version(4), clock: Clock(4) };
    table.word(primary.0, word);
}

// Found by the simulated world (seed 1316): such a run ended with "no state".
#[test]
fn a_shard_goes_back_to_the_disk_of_its_former_primary_where_the_next_had_nothing_yet() {
    let mut table = taken_over();
    let led = table.place(2).generation;
    table.here(2, 2, &[on_disk(2, led)]);
    assert_eq!(
        (table.place(1).primary, table.cluster.kept.map.slots[&ShardId(1)].standing),
        (ServerId(1), Standing::WaitsToLoad)
    );
    assert!(table.notices.iter().any(|notice| matches!(notice, ClusterNotice::GoesBack { .. })));
    assert_eq!(table.cluster.lacks().iter().filter(|lack| lack.place.shard == ShardId(1)).count(), 1);
    table.here(1, 2, &[on_disk(1, Generation(0))]);
    let Place { primary, origin, .. } = table.place(1);
    assert_eq!((primary, origin, table.failures.len()), (ServerId(1), Origin::Disk, 0));
    restored(&mut table, 1);
    assert!(table.placed.iter().any(|placed| placed.shard == ShardId(1) && placed.server == ServerId(1)));
    // From here on its disk is the one that counts, whatever was written of which generation.
    table.here(1, 3, &[on_disk(1, Generation(0))]);
    assert_eq!((table.place(1).origin, table.failures.len()), (Origin::Disk, 0));
}

#[test]
fn a_former_primary_that_was_only_cut_off_loads_what_it_had() {
    let mut table = taken_over();
    table.here(1, 1, &[]);
    let led = table.place(2).generation;
    table.here(2, 2, &[on_disk(2, led)]);
    let Place { primary, origin, backup, .. } = table.place(1);
    // It may be a backup in step by now, and then it has all in its memory.
    assert_eq!((primary, origin, backup), (ServerId(1), Origin::Disk, None));
    assert_eq!(table.cluster.kept.map.slots[&ShardId(1)].standing, Standing::Loads);
}

#[test]
fn a_disk_that_a_later_primary_wrote_is_waited_for_and_counts_alone() {
    let mut table = taken_over();
    let (led, since) = (table.place(2).generation, table.place(1).generation);
    // Server 2 had its state on its disk, so what server 1 has is old.
    table.here(2, 2, &[on_disk(1, since), on_disk(2, led)]);
    assert_eq!((table.place(1).primary, table.place(1).origin), (ServerId(2), Origin::Disk));
    restored(&mut table, 1);
    // If that disk is lost later, the older one is no state of the run any more.
    table.here(1, 2, &[on_disk(1, Generation(0))]);
    table.here(2, 3, &[]);
    assert!(table.failures.iter().any(|text| text.contains("shard 1 has no state")), "{:?}", table.failures);
}

#[test]
fn without_disks_a_former_primary_has_nothing() {
    let mut table = Table::at_work(2);
    table.pass(5, &[2]);
    let led = table.place(1).generation;
    table.here(2, 2, &[]);
    assert!(table.failures.iter().any(|text| text.contains("has no state")), "{led}");
}
