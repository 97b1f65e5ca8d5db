//! What workers are told of shards that move.

use super::*;

fn of_shard(placed: &[Placed], shard: u32) -> Vec<(u32, u64)> {
    let of_it = placed.iter().filter(|placed| placed.shard == ShardId(shard));
    of_it.map(|placed| (placed.server.0, placed.generation.0)).collect()
}

/// Server 2 can reach its backup of shard 1 at the coordinator no more, so that server 1 is given it, and then server 2 is lost.
fn come_back(table: &mut Table) {
    table.here(1, 1, &[]);
    table.pass(1, &[1, 2]);
    let Place { shard, generation, backup, .. } = table.place(1);
    assert_eq!(backup.unwrap().server, ServerId(0));
    table.word(2, ServerWord::OutOfReach { shard, generation, backup: ServerId(0) });
    assert_eq!(table.place(1).backup.unwrap().server, ServerId(1));
    table.in_step(1);
    table.pass(5, &[1]);
    assert_eq!(table.place(1).primary, ServerId(1));
}

// Found by the simulated world: a worker that joined between a new map and its announcement was told the old server with the new
// generation, so that the announcement was no news to it; and one that had been fenced was not told that a shard was back where it began.
#[test]
fn a_worker_that_registers_is_told_what_the_others_were_also_of_a_shard_that_is_back() {
    let mut table = Table::at_work(2);
    table.takes = false;
    table.pass(5, &[2]);
    assert_eq!(table.cluster.moved(), [], "what nobody was told yet is news to whoever registers now, too");
    let number = table.cluster.kept.stored.number;
    table.word(2, ServerWord::Took { number });
    let away = of_shard(&table.placed, 1);
    assert_eq!(of_shard(&table.cluster.moved(), 1), away);
    assert_eq!((away.len(), away[0].0), (1, 2));
    table.takes = true;
    come_back(&mut table);
    let back = of_shard(&table.cluster.moved(), 1);
    assert_eq!((back[0].0, of_shard(&table.placed, 1).last()), (1, back.first()));
    assert!(back[0].1 > away[0].1);
}

#[test]
fn a_shard_that_was_away_and_is_back_before_anybody_was_told_is_news() {
    let mut table = Table::at_work(2);
    table.stores = false;
    table.pass(5, &[2]);
    come_back(&mut table);
    table.stores = true;
    let number = table.persists.last().unwrap().number;
    table.cluster.persisted(number);
    table.settle();
    let told = of_shard(&table.placed, 1);
    assert_eq!(told.last().map(|told| told.0), Some(1), "{told:?}");
    // A primary that goes on without its backup has all that it had: workers need not hear of it.
    let before = table.placed.len();
    let Place { shard, generation, backup, .. } = table.place(0);
    if let Some(backup) = backup {
        table.word(0, ServerWord::OutOfReach { shard, generation, backup: backup.server });
    }
    assert_eq!(table.placed.len(), before);
}

#[test]
fn the_run_does_not_end_before_the_last_steps_of_all_that_are_gone_are_decided() {
    let mut table = Table::at_work(1);
    assert!(table.cluster.finish());
    table.cluster.fence(WorkerId(4), Incarnation(9));
    table.settle();
    assert!(!table.cluster.finish());
    (0..3).for_each(|shard| table.word(shard, doubt(shard, 6, &[])));
    assert!(table.cluster.finish());
}

#[test]
fn a_promoted_copy_without_values_ends_the_run_by_name_or_goes_back_to_the_checkpoint() {
    for from in [None, Some((7, Clock(900)))] {
        let mut table = Table::new(ClusterSettings { from, every: from.map(|_| 50), ..settings(2) });
        table.cluster.trained();
        (0..3).for_each(|shard| {
            let Place { shard, generation, primary, .. } = table.place(shard);
            let clock = Clock(900);
            table.word(primary.0, ServerWord::Restored { shard, generation, version: Version(1), clock });
        });
        table.settle();
        (0..3).for_each(|shard| table.in_step(shard));
        table.pass(5, &[2]);
        let Place { shard, generation, primary, origin, .. } = table.place(1);
        assert_eq!((primary, origin), (ServerId(2), Origin::Memory));
        table.word(2, ServerWord::NotRestored { shard, generation, why: Text::new("it has no values") });
        match from {
            None => assert_eq!(table.failures, ["shard 1 has no state: it has no values"]),
            Some((number, _)) => assert_eq!(table.place(1).origin, Origin::Checkpoint { number }),
        }
    }
}
