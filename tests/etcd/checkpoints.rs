//! Checkpoints of a run whose coordinator is lost while they are made.

use std::collections::BTreeSet;

use nix::sys::signal::{Signal, kill};

use crate::cluster::{Cluster, resolved};
use crate::keeper::Keeper;
use crate::process::{Process, until};
use crate::stage::Stage;
use crate::{Apart, EPOCHS, borrowed, candidate, settings};

/// Numbers of the checkpoints that a candidate has said to be in the store, in its order.
fn stored(candidate: &Process) -> Vec<u64> {
    let said = candidate.transcript();
    let number = |line: &str| {
        let (before, _) = line.split_once(" is in the store")?;
        before.rsplit_once("checkpoint ")?.1.split_whitespace().next()?.parse().ok()
    };
    said.lines().filter_map(number).collect()
}

#[test]
fn checkpoints_go_on_across_a_takeover_under_new_numbers_and_the_run_goes_on_from_the_newest() {
    let Some(keeper) = Keeper::start() else { return };
    let stage = Stage::new();
    let at = stage.text_path("checkpoints");
    let settings = {
        let at = format!("{at:?}");
        // So often that one is always being made.
        settings(&keeper, &[("checkpoint.every_clocks", "4"), ("checkpoint.at", &at)])
    };
    let apart = Apart::start_with(&stage, &settings);
    let leader = apart.leader();
    let [former, other] = [&apart.candidates[leader], &apart.candidates[1 - leader]];
    until("some checkpoints", || (stored(former).len() > 2).then_some(()));
    former.kill();
    until("some checkpoints of another coordinator", || (stored(other).len() > 2).then_some(()));
    let numbers = [stored(former), stored(other)].concat();
    assert!(numbers.is_sorted_by(|one, next| one < next), "none comes twice or goes back: {numbers:?}");
    // All that is left of the run is what lies there; whatever was being made is torn.
    for process in stage.living() {
        let _ = kill(process.pid, Signal::SIGKILL);
    }
    until("the end of all", || stage.living().is_empty().then_some(()));
    let newest = slackline_server::resume(&at, &resolved(&borrowed(&settings))).unwrap();
    assert!(newest.number >= *numbers.last().unwrap(), "{} {numbers:?}", newest.number);
    assert!((1..EPOCHS * 1442).contains(&newest.samples_done), "{}", newest.samples_done);

    let more = ["--fresh", "--resume", &at];
    let Cluster { config, addresses, .. } = apart.cluster;
    let mut cluster = Cluster { stage: &stage, config, servers: Vec::new(), addresses };
    cluster.servers = (0..2).map(|index| cluster.start_server(index, &more)).collect();
    let candidates = [0, 1].map(|index| candidate(&cluster, index, &more));
    let workers = ["c", "d"].map(|name| cluster.worker(name, &[]));
    let again = Apart { cluster, candidates: candidates.to_vec(), workers };
    let leader = again.leader();
    again.end_well(leader);
    again.cluster.end_well();
    let numbers = stored(&again.candidates[leader]);
    assert!(numbers[0] > newest.number, "{} {numbers:?}", newest.number);
    let all: BTreeSet<u64> = numbers.iter().copied().collect();
    assert_eq!(all.len(), numbers.len(), "{numbers:?}");
    let last = slackline_server::resume(&at, &resolved(&borrowed(&settings))).unwrap();
    assert_eq!((last.number, last.samples_done), (numbers[numbers.len() - 1], EPOCHS * 1442));
}
