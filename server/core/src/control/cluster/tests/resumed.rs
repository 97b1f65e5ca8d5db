//! Runs that went on from a checkpoint, and lose servers like any other.

use super::*;

/// At work since checkpoint 7; the copy of shard 1 at server 2 lacks something.
fn resumed() -> Table {
    let from = Some((7, Clock(900)));
    let mut table = Table::new(ClusterSettings { from, every: Some(50), ..settings(2) });
    for shard in 0..3 {
        let Place { shard: id, generation, primary, .. } = table.place(shard);
        let (version, clock) = (Version(1), Clock(900));
        table.word(primary.0, ServerWord::Restored { shard: id, generation, version, clock });
    }
    table.cluster.trained();
    table.settle();
    [0, 2].into_iter().for_each(|shard| table.in_step(shard));
    table
}

// Found by reading: the primary was told to load the checkpoint that the run began from, and did, over all that it had acknowledged since.
#[test]
fn a_primary_that_is_waited_for_keeps_what_it_has_though_its_backup_is_another_process_meanwhile() {
    let mut table = resumed();
    table.pass(5, &[0]);
    table.here(2, 2, &[]);
    table.here(1, 1, &[]);
    let place = table.place(1);
    assert_eq!((place.primary, place.origin), (ServerId(1), Origin::Memory));
    assert!(table.told(1).unwrap().contains(&place));
}

// Found by reading: with one checkpoint kept, the one that a shard was to load was removed as its successor was committed, and the run ended.
#[test]
fn where_the_checkpoint_is_gone_that_was_to_be_loaded_a_newer_one_is() {
    let mut map = Map::new(&[(ShardId(0), ServerId(0))], 1, 1, Some(7));
    let (at, mut notices) = ((ShardId(0), Generation(0)), Vec::new());
    assert!(map.clone().not_restored(at, "it is damaged", Some(7), &mut notices).is_err());
    map.not_restored(at, "it is not there", Some(8), &mut notices).unwrap();
    let slot = &map.slots[&ShardId(0)];
    assert_eq!((slot.place.origin, slot.standing), (Origin::Checkpoint { number: 8 }, Standing::Loads));
    assert!(slot.place.generation > Generation(0));
}

// Found by reading: a former primary that nobody could reach had removed all workers, and was believed when it came back.
#[test]
fn only_the_primary_of_a_shard_has_doubts_about_a_worker() {
    let mut table = Table::at_work(2);
    table.pass(5, &[0, 2]);
    assert_eq!(table.place(1).primary, ServerId(2));
    let (worker, incarnation) = (WorkerId(3), Incarnation(1));
    let (applied, waiting) = (Sequence(5), vec![Sequence(6)]);
    let doubt = Doubt { shard: ShardId(1), worker, incarnation, applied, waiting };
    table.here(1, 1, &[]);
    table.word(1, ServerWord::Doubt(doubt.clone()));
    assert_eq!(table.cluster.take_gone(), []);
    table.word(2, ServerWord::Doubt(doubt));
    assert_eq!(table.cluster.take_gone(), [(worker, incarnation)]);
}

// Found by reading: whoever loaded a checkpoint in a run that had been resumed took the newest one for that which it had begun from.
#[test]
fn servers_hear_from_which_checkpoint_the_run_began_whichever_is_the_newest() {
    let mut table = resumed();
    let kept: Kept =
        slackline_core::wire::decode_state(&slackline_core::wire::encode_state(&table.cluster.kept).unwrap())
            .unwrap();
    let from = Some((9, Clock(1200)));
    let mut again = Cluster::new(ClusterSettings { from, every: Some(50), ..settings(2) });
    again.take_up(kept);
    table.cluster = again;
    table.cluster.restart(table.now);
    table.orders.clear();
    (0..3).for_each(|server| table.here(server, 1, &[]));
    let told: Vec<_> = table
        .orders
        .iter()
        .filter_map(|(_, order)| match order {
            ServerOrder::Places { from, .. } => Some(*from),
            _ => None,
        })
        .collect();
    assert!(!told.is_empty() && told.iter().all(|from| *from == Some(7)), "{told:?}");
}
