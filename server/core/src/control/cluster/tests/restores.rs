//! Runs that go back to a checkpoint as a whole, and shards that do so alone.

use super::*;

/// Checkpoint 7 is the newest, and ten batches of a run that was resumed from it are done; workers have four more.
fn at_work() -> Table {
    let mut table =
        Table::new(ClusterSettings { from: Some((7, Clock(900))), every: Some(50), ..settings(1) });
    // One of them says so only when the work has begun.
    (0..2).for_each(|shard| restored(&mut table, shard));
    table.cluster.trained();
    table.settle();
    restored(&mut table, 2);
    assert_eq!(table.went_back, [0; 0], "that is where the run began");
    table.work = (10, 4);
    table
}

fn restored(table: &mut Table, shard: u32) {
    let Place { shard, generation, primary, .. } = table.place(shard);
    let clock = Clock(900);
    table.word(primary.0, ServerWord::Restored { shard, generation, version: Version(1), clock });
}

/// A server is started again, and has loaded its shard.
fn restart(table: &mut Table, server: u32, boot: u64) {
    table.now = table.now.after(Duration::from_millis(100));
    table.here(server, boot, &[]);
    assert_eq!(table.place(server).origin, Origin::Checkpoint { number: 7 });
    restored(table, server);
}

// Found by reading: after the loss of all servers the data went on where the coordinator had them, and the shards at the checkpoint.
#[test]
fn when_all_shards_are_back_at_one_checkpoint_the_data_are_to_go_back_to_it() {
    let mut table = at_work();
    (0..2).for_each(|server| restart(&mut table, server, 2));
    assert_eq!(table.went_back, [0; 0]);
    // What was pushed before, and is reported only now.
    table.work = (14, 0);
    table.here(2, 2, &[]);
    assert_eq!(table.went_back, [0; 0], "it is not loaded yet");
    restored(&mut table, 2);
    assert_eq!(table.went_back, [7]);
    // Once.
    table.pass(3, &[1, 2]);
    assert_eq!(table.went_back, [7]);
}

#[test]
fn a_shard_that_goes_back_alone_or_long_before_the_others_leaves_the_data_where_they_are() {
    let mut table = at_work();
    restart(&mut table, 1, 2);
    // It went on with the others: what they did since is there still.
    table.work = (15, 4);
    restart(&mut table, 0, 2);
    restart(&mut table, 2, 2);
    assert_eq!(table.went_back, [0; 0]);
    // Now that is gone too.
    restart(&mut table, 1, 3);
    assert_eq!(table.went_back, [7]);
}

#[test]
fn what_one_disk_has_is_newer_than_the_checkpoint() {
    let mut table = at_work();
    restart(&mut table, 0, 2);
    restart(&mut table, 1, 2);
    let led = table.place(2).generation;
    table.here(2, 2, &[on_disk(2, led)]);
    assert_eq!(table.place(2).origin, Origin::Disk);
    restored(&mut table, 2);
    assert_eq!(table.went_back, [0; 0]);
}
