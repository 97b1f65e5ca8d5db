//! Two clusters in one etcd.

use nix::sys::signal::Signal;

use crate::cluster::{Cluster, free_address, resolved};
use crate::keeper::Keeper;
use crate::process::until;
use crate::stage::Stage;
use crate::{Apart, borrowed, candidate, settings};

#[test]
fn two_clusters_of_different_configurations_share_a_prefix_and_nothing_else() {
    let Some(keeper) = Keeper::start() else { return };
    let stages = [Stage::new(), Stage::new()];
    let clusters = ["0.03", "0.02"].map(|rate| settings(&keeper, &[("optimizer.rate", rate)]));
    let runs: Vec<_> = clusters.iter().map(|settings| resolved(&borrowed(settings)).hash()).collect();
    assert_ne!(runs[0], runs[1], "so each has rows of its own");
    let clusters = [0, 1].map(|index: usize| {
        let apart = Apart::start_with(&stages[index], &clusters[index]);
        (apart, resolved(&borrowed(&clusters[index])).config.cluster.coordinators)
    });
    // Each loses its leader, and goes on with its own run under the candidate that stood by for it.
    let followers = clusters.iter().map(|(apart, coordinators)| {
        let leader = apart.leader();
        let line = apart.candidates[1 - leader].line("stands by: ");
        assert!(line.contains(&coordinators[leader]), "{line}");
        apart.candidates[leader].kill();
        1 - leader
    });
    let followers: Vec<_> = followers.collect();
    for ((apart, _), follower) in clusters.iter().zip(followers) {
        apart.candidates[follower].line("leads, and goes on");
        apart.end_well(follower);
        apart.cluster.end_well();
    }
}

#[test]
fn a_second_cluster_of_the_same_configuration_is_refused_by_name_whether_or_not_the_first_one_leads() {
    let Some(keeper) = Keeper::start() else { return };
    let (stage, elsewhere) = (Stage::new(), Stage::new());
    let first = settings(&keeper, &[]);
    let mut apart = Apart::start_with(&stage, &first);
    let leader = apart.leader();
    let second = {
        let coordinators = format!("{:?}", [free_address(), free_address()]);
        settings(&keeper, &[("cluster.coordinators", &coordinators)])
    };
    let hash = |settings: &[(String, String)]| resolved(&borrowed(settings)).hash();
    assert_eq!(hash(&first), hash(&second), "only the addresses tell them apart");
    let other = Cluster::start(&elsewhere, &borrowed(&second));
    let coordinators = resolved(&borrowed(&first)).config.cluster.coordinators;
    let is_refused = |at: &str| {
        let refused = candidate(&other, 0, &[]).end();
        let words =
            format!("another cluster of the same configuration keeps its run at test/{:016x}/", hash(&first));
        assert!(refused.code == 2 && refused.error.contains(&words), "{}", refused.error);
        assert!(refused.error.contains(&format!("its coordinator is at {at}, which")), "{}", refused.error);
    };
    is_refused(&coordinators.join(" or "));
    // Nobody leads, and what was kept is to be gone on with.
    for index in [1 - leader, leader] {
        apart.candidates[index].signal(Signal::SIGTERM);
        apart.candidates[index].end_well();
    }
    is_refused(&coordinators.join(" or "));
    apart.candidates = [0, 1].map(|index| candidate(&apart.cluster, index, &[])).to_vec();
    let leads = |index: &usize| apart.candidates[*index].has_said("leads, and goes on");
    let leader = until("a leader", || [0, 1].into_iter().find(leads));
    apart.end_well(leader);
    apart.cluster.end_well();
}
