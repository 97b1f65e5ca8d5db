//! Servers that were told to go: what the coordinator makes of their shards, and when it lets them.

use super::*;

/// What a server was answered.
fn answers(table: &Table, server: u32) -> Vec<bool> {
    let answer = |(to, order): &(ServerId, ServerOrder)| match order {
        ServerOrder::Go { is_missed } if to.0 == server => Some(*is_missed),
        _ => None,
    };
    table.orders.iter().filter_map(answer).collect()
}

// Case 13 (elasticdl#390, dlrover#360): a server that was taken away on purpose ended the run.
#[test]
fn the_copies_of_a_server_that_goes_answer_at_once_and_it_stays_away() {
    let mut table = Table::at_work(2);
    let before = table.place(1);
    table.word(1, ServerWord::Going);
    let after = table.place(1);
    assert_eq!((after.primary, after.origin), (ServerId(2), Origin::Memory), "no lease was waited for");
    assert!(after.generation > before.generation);
    assert_eq!((answers(&table, 1), table.told(1)), (vec![false], Some(Vec::new())));
    // What it still says does not bring it back.
    table.word(1, ServerWord::Alive);
    table.word(1, ServerWord::Going);
    table.pass(10, &[1, 2]);
    assert!(!table.cluster.live().contains(&ServerId(1)));
    assert_eq!(answers(&table, 1), [false]);
    let is_loss = |notice: &ClusterNotice| matches!(notice, ClusterNotice::Lost { .. });
    assert!(!table.notices.iter().any(is_loss));
    // The next process is one that was never told so.
    table.here(1, 2, &[]);
    assert!(table.cluster.staying().contains(&ServerId(1)));
    assert_eq!(table.place(1).primary, ServerId(2));
    assert_eq!(table.failures, [""; 0]);
}

#[test]
fn nobody_goes_before_the_map_without_it_is_stored() {
    let mut table = Table::at_work(2);
    table.stores = false;
    table.word(1, ServerWord::Going);
    assert_eq!((table.place(1).primary, answers(&table, 1)), (ServerId(2), Vec::new()));
    let number = table.persists.last().unwrap().number;
    table.stores = true;
    table.cluster.persisted(number);
    table.settle();
    assert_eq!(answers(&table, 1), [false]);
}

#[test]
fn copies_that_are_not_equal_yet_are_waited_for_for_a_lease() {
    let mut table = Table::new(settings(2));
    table.cluster.trained();
    table.settle();
    table.word(1, ServerWord::Going);
    table.pass(2, &[1, 2]);
    assert_eq!((answers(&table, 1), table.place(1).primary), (Vec::new(), ServerId(1)));
    table.in_step(1);
    assert_eq!((answers(&table, 1), table.place(1).primary), (vec![false], ServerId(2)));
    // Nobody is given a copy who goes as well.
    table.word(2, ServerWord::Going);
    table.pass(2, &[2]);
    assert_eq!(table.place(1).backup.map(|backup| backup.server), Some(ServerId(0)));
    table.pass(2, &[2]);
    assert_eq!(answers(&table, 2), [true], "there is no equal copy, and nothing else");
    assert_eq!(table.place(1).primary, ServerId(2));
}

#[test]
fn without_copies_a_server_is_missed_unless_a_disk_has_what_it_has() {
    let mut table = Table::at_work(1);
    let before = table.place(1);
    table.word(1, ServerWord::Going);
    assert_eq!((answers(&table, 1), table.place(1)), (vec![true], before));

    let mut table = Table::new(ClusterSettings { on_disk: true, ..settings(1) });
    table.cluster.trained();
    table.settle();
    table.word(1, ServerWord::Going);
    assert_eq!(answers(&table, 1), [false]);
    let lacks: Vec<_> = table.cluster.lacks().iter().map(|lack| lack.place.shard).collect();
    assert_eq!(lacks, [ShardId(1)], "it is waited for by name");
    assert!(table.notices.contains(&ClusterNotice::Goes { server: ServerId(1), waiting: 1 }));
    table.pass(60, &[2]);
    table.here(1, 2, &[on_disk(1, Generation(0))]);
    assert_eq!((table.place(1).origin, table.failures.len()), (Origin::Disk, 0));
}

#[test]
fn one_server_after_the_other_can_be_started_again() {
    let mut table = Table::at_work(2);
    for (round, server) in [1, 2, 1, 2].into_iter().enumerate() {
        table.word(server, ServerWord::Going);
        assert_eq!(answers(&table, server).last(), Some(&false));
        table.here(server, 2 + round as u64, &[]);
        (0..3).for_each(|shard| table.in_step(shard));
        table.pass(2, &[1, 2]);
    }
    assert_eq!((table.failures.len(), table.cluster.lacks().len()), (0, 0));
}
