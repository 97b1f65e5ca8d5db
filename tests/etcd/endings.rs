//! The end of a run whose coordinator does not live to tell it.

use std::time::Instant;

use crate::cluster::resolved;
use crate::keeper::Keeper;
use crate::process::Process;
use crate::stage::Stage;
use crate::{Apart, TAKEOVER, borrowed, candidate, settings};

// Found by reading: a leader that was killed after it had written that the run is over, and before it told anybody, left servers that
// waited for a coordinator for ever, while the candidates that stood by ended.
#[test]
fn a_leader_that_dies_before_it_has_told_the_servers_of_the_end_leaves_that_to_another() {
    let Some(keeper) = Keeper::start() else { return };
    let stage = Stage::new();
    let settings = settings(&keeper, &[]);
    let apart = Apart::start_with(&stage, &settings);
    let leader = apart.leader();
    let other = &apart.candidates[1 - leader];
    // As the leader writes it when its run is complete. It does not know of it here, so that it can be killed in the very moment.
    keeper.put(resolved(&borrowed(&settings)).hash(), "over", "the run is complete");
    other.line(&format!("stands by: the run is complete, and candidate {leader} at "));
    let killed = Instant::now();
    apart.candidates[leader].kill();
    // One that comes now finds nobody who leads, and then hears it too.
    let late = apart.cluster.worker("late", &[]);
    other.line("whoever led it was lost before the servers were told: it tells them");
    for server in &apart.cluster.servers {
        let said = server.end_well().error;
        assert!(!said.contains("refuses this process"), "{said}");
    }
    let took = killed.elapsed();
    for (worker, words) in
        apart.workers.iter().map(|worker| (worker, "the run is ")).chain([(&late, "the run is complete")])
    {
        let ended = worker.end();
        assert!(ended.error.contains(words), "{}", ended.error);
    }
    assert!(other.end_well().error.contains("ends: the run is complete"));
    println!("the servers were told {:.2} s after the leader's death", took.as_secs_f64());
    assert!(took < TAKEOVER, "{took:?}");
}

#[test]
fn a_candidate_that_is_started_when_all_are_lost_tells_the_servers_of_the_end_before_anything_else() {
    let Some(keeper) = Keeper::start() else { return };
    let stage = Stage::new();
    let settings = settings(&keeper, &[]);
    let apart = Apart::start_with(&stage, &settings);
    apart.leader();
    keeper.put(resolved(&borrowed(&settings)).hash(), "over", "the run failed: a disk was lost");
    apart.candidates.iter().for_each(Process::kill);
    let again = candidate(&apart.cluster, 0, &[]);
    again.line("it tells them");
    apart.cluster.end_well();
    // It ends as the run did.
    let ended = again.end();
    assert!(
        ended.code == 1 && ended.error.contains("error: the run failed: a disk was lost"),
        "{}",
        ended.error
    );
    for worker in &apart.workers {
        assert!(worker.end().error.contains("the run "));
    }
}
