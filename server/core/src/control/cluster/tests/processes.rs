//! Processes of one server, of which the newest counts.

use slackline_core::wire::{decode_state, encode_state};

use super::*;

fn replaced(cluster: &Cluster, server: u32) -> Vec<u64> {
    let here =
        |boot| Here { server: ServerId(server), boot, layout_hash: 1, config_hash: 2, holds: Vec::new() };
    (0..30).filter(|boot| cluster.is_replaced(&here(*boot))).collect()
}

#[test]
fn the_last_processes_that_were_replaced_are_remembered_and_so_after_a_restart_of_the_coordinator() {
    let mut table = Table::at_work(2);
    assert_eq!(replaced(&table.cluster, 1), []);
    (2..=20).for_each(|boot| table.here(1, boot, &[]));
    let last: Vec<u64> = (4..20).collect();
    let kept: Kept = decode_state(&encode_state(&table.cluster.kept).unwrap()).unwrap();
    let mut again = Cluster::new(settings(2));
    again.take_up(kept);
    again.restart(table.now);
    for cluster in [&table.cluster, &again] {
        assert_eq!((replaced(cluster, 1), replaced(cluster, 2)), (last.clone(), Vec::new()));
    }
}

#[test]
fn a_process_that_lost_its_session_is_not_replaced_by_itself() {
    let mut table = Table::at_work(2);
    for _ in 0..3 {
        table.cluster.disconnected(ServerId(1));
        table.pass(5, &[2]);
        table.here(1, 1, &[]);
    }
    assert_eq!(replaced(&table.cluster, 1), []);
}
