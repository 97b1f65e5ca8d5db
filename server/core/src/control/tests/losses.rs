//! What becomes of an allreduce whose members have trouble, are lost, or come later.

use slackline_core::collective::Topology;

use super::groups::{allreduce, at_work, begun, evaluated, failure, groups, notices, regroups};
use super::*;

/// Every session but some sends a sign of life now and `seconds` later.
fn alone_silent(desk: &mut Desk, sessions: &[u64], seconds: f64) -> Vec<ControlEffect> {
    desk.now = desk.now.after(Duration::from_secs_f64(seconds / 2.0));
    for session in sessions {
        desk.say(*session, ToServer::Renew);
    }
    desk.after(seconds / 2.0)
}

#[test]
fn a_lost_worker_ends_a_run_that_is_not_elastic_with_its_name_the_last_clock_and_its_silence() {
    let mut desk = at_work(3, false);
    desk.stepped(0, 1, 4, 12);
    desk.stepped(2, 1, 3, 9);
    let effects = alone_silent(&mut desk, &[0, 1], 12.0);
    assert_eq!(
        failure(&effects),
        Some(
            // It has had its part in all that another has told of.
            "worker 2 was lost after clock 4, as last reported (no word for 12.0 s): an allreduce cannot go on without it; \
             sync.elastic = true lets the others go on"
        )
    );
    // The others are told why, and no group follows.
    let told: Vec<String> = refusals(&effects).into_iter().map(|(_, text)| text).collect();
    assert_eq!(told.iter().filter(|text| text.contains("worker 2 was lost after clock 4")).count(), 3);
    assert!(groups(&desk.ready(0, 1, 4, 12)).is_empty());
}

#[test]
fn a_worker_that_leaves_early_ends_it_with_what_it_said() {
    let error = || Outcome::Failed(Text::new("the disk is gone"));
    for (outcome, words) in [(Outcome::Interrupted, "it was told to go"), (error(), "the disk is gone")] {
        let mut desk = at_work(2, false);
        desk.stepped(1, 1, 2, 4);
        let effects = desk.leave(1, outcome);
        let text = failure(&effects).unwrap();
        assert!(
            text.starts_with("worker 1 left after clock 2, as last reported (") && text.contains(words),
            "{text}"
        );
        assert!(text.contains("sync.elastic = true"));
    }
    // Done is what only a worker can say that has done everything.
    let mut desk = at_work(2, false);
    assert!(failure(&desk.leave(1, Outcome::Done)).is_some());
    // Before the run has begun nobody needs anybody.
    let mut desk = allreduce(2, Topology::Ring, false);
    desk.arrive(0);
    desk.ready(0, 0, 0, 0);
    assert!(failure(&desk.leave(0, Outcome::Interrupted)).is_none());
    desk.arrive(1);
    desk.ready(1, 0, 0, 0);
    desk.arrive(2);
    assert_eq!(begun(&desk.ready(2, 0, 0, 0), &[1, 2]).0, 1);
}

#[test]
fn the_others_go_on_from_the_last_iteration_that_anybody_left_has() {
    let mut desk = at_work(3, true);
    desk.stepped(0, 1, 3, 9);
    desk.now = desk.now.after(Duration::from_secs(1));
    desk.stepped(1, 1, 3, 9);
    // Worker 1 is killed: the others notice long before its lease is over.
    assert_eq!(regroups(&desk.trouble(0, 1, 1)), [(0, 1), (1, 1), (2, 1)]);
    assert!(groups(&desk.ready(0, 1, 3, 9)).is_empty());
    assert!(groups(&desk.ready(2, 1, 4, 12)).is_empty());
    let effects = alone_silent(&mut desk, &[0, 2], 10.5);
    assert!(failure(&effects).is_none());
    // Worker 2 has one iteration more: it is the source.
    assert_eq!(begun(&effects, &[0, 2]), (2, 4, 12, Some(2)));
    assert_eq!(desk.figures().recoveries, Some(Vec::new()));
    desk.stepped(2, 2, 4, 12);
    desk.now = desk.now.after(Duration::from_millis(500));
    let effects = desk.stepped(0, 2, 5, 14);
    let said = "at work again without worker 1, which was lost at clock 4: 11.00 s after its last word";
    assert!(notices(&effects).contains(&said.to_owned()), "{effects:?}");
    let recoveries = desk.figures().recoveries.unwrap();
    // From there the next group has gone on, whatever the lost one said last.
    assert_eq!((recoveries.len(), recoveries[0].worker, recoveries[0].clock), (1, 1, 4));
    assert!((recoveries[0].seconds - 11.0).abs() < 1e-9);
    assert_eq!(desk.figures().samples, 140);
}

#[test]
fn trouble_regroups_the_same_workers_and_old_trouble_does_not() {
    let mut desk = at_work(2, false);
    desk.stepped(0, 1, 2, 4);
    assert_eq!(regroups(&desk.trouble(1, 1, 0)), [(0, 1), (1, 1)]);
    // The other side of the same connection says it too.
    assert!(regroups(&desk.trouble(0, 1, 1)).is_empty());
    desk.ready(0, 1, 2, 4);
    assert_eq!(begun(&desk.ready(1, 1, 2, 4), &[0, 1]), (2, 2, 4, None));
    assert!(desk.trouble(1, 1, 0).is_empty());
    assert_eq!(desk.stepped(1, 2, 3, 6), []);
}

#[test]
fn an_answer_that_was_lost_is_asked_for_again() {
    let mut desk = at_work(2, false);
    let members = [(WorkerId(0), Incarnation(1)), (WorkerId(1), Incarnation(2))];
    desk.trouble(0, 1, 1);
    desk.ready(0, 1, 0, 0);
    let effects = desk.reconnect((1, 9), members[1]);
    // It may have missed the group as well as its end.
    assert_eq!((begun(&effects, &[9]).0, regroups(&effects)), (1, vec![(9, 1)]));
    // What it says again of the time before the group is no answer.
    assert!(groups(&desk.ready(9, 0, 0, 0)).is_empty());
    assert_eq!(begun(&desk.ready(9, 1, 0, 0), &[0, 9]).0, 2);
}

#[test]
fn two_workers_lost_at_once_are_two_recoveries_of_one_group() {
    let mut desk = at_work(4, true);
    for session in 0..4 {
        desk.stepped(session, 1, 2, 8);
    }
    let effects = alone_silent(&mut desk, &[1, 3], 12.0);
    assert_eq!(regroups(&effects), [(1, 1), (3, 1)]);
    desk.ready(1, 1, 2, 8);
    assert_eq!(begun(&desk.ready(3, 1, 2, 8), &[1, 3]), (2, 2, 8, None));
    desk.stepped(3, 2, 3, 10);
    let lost: Vec<u32> = desk.figures().recoveries.unwrap().iter().map(|row| row.worker).collect();
    assert_eq!(lost, [0, 2]);
}

#[test]
fn a_worker_lost_while_the_others_regroup_is_not_waited_for() {
    let mut desk = at_work(3, true);
    desk.stepped(2, 1, 1, 3);
    desk.trouble(0, 1, 1);
    desk.ready(0, 1, 1, 3);
    // Both that have not answered, and one that has.
    desk.leave(1, Outcome::Interrupted);
    desk.ready(2, 1, 2, 6);
    let effects = desk.leave(2, Outcome::Interrupted);
    assert!(failure(&effects).is_none());
    // Worker 2 was in this group already: it ends with it.
    assert_eq!(regroups(&effects), [(0, 2)]);
    assert_eq!(begun(&desk.ready(0, 2, 1, 3), &[0]), (3, 1, 3, None));
    // What only the lost one had is done again.
    assert_eq!((desk.figures().iterations, desk.control.batches_repeated()), (3, 3));
}

#[test]
fn a_newcomer_is_taken_in_by_a_regroup_and_gets_the_values() {
    let mut desk = at_work(2, true);
    desk.stepped(1, 1, 3, 6);
    desk.arrive(5);
    assert_eq!(regroups(&desk.ready(5, 0, 0, 0)), [(0, 1), (1, 1)]);
    desk.ready(0, 1, 3, 6);
    // Another one in the middle of it needs no regroup of its own.
    desk.arrive(6);
    assert!(regroups(&desk.ready(6, 0, 0, 0)).is_empty());
    assert_eq!(begun(&desk.ready(1, 1, 3, 6), &[0, 1, 5, 6]), (2, 3, 6, Some(0)));
    // It had no time to get them: it lacks them again, and cannot stand for the run.
    desk.trouble(0, 2, 3);
    desk.ready(5, 2, 0, 0);
    desk.ready(6, 2, 3, 6);
    desk.leave(0, Outcome::Interrupted);
    assert_eq!(begun(&desk.ready(1, 2, 3, 6), &[1, 5, 6]), (3, 3, 6, Some(1)));
}

#[test]
fn a_lost_worker_that_comes_back_is_not_believed_to_have_the_right_values() {
    let mut desk = at_work(2, true);
    desk.stepped(0, 1, 3, 6);
    // Worker 1 has completed an iteration that worker 0 has not, when it is lost.
    desk.stepped(1, 1, 4, 8);
    assert_eq!(desk.figures().iterations, 8);
    let effects = alone_silent(&mut desk, &[0], 12.0);
    assert_eq!(regroups(&effects), [(0, 1)]);
    assert_eq!(begun(&desk.ready(0, 1, 3, 6), &[0]), (2, 3, 6, None));
    assert_eq!((desk.figures().iterations, desk.control.batches_repeated()), (6, 2));
    desk.stepped(0, 2, 4, 7);
    desk.return_as(7, Some((WorkerId(1), Incarnation(2))));
    assert_eq!(regroups(&desk.ready(7, 1, 4, 8)), [(0, 2)]);
    assert_eq!(begun(&desk.ready(0, 2, 4, 7), &[0, 7]), (3, 4, 7, Some(0)));
    // Not before it has gone on with the others: worker 0 is lost, and the values with it.
    let text = "all workers that have the values after clock 4 are lost, the last was worker 0 at clock 4";
    desk.leave(0, Outcome::Interrupted);
    let effects = desk.ready(7, 3, 4, 7);
    assert!(failure(&effects).unwrap().starts_with(text), "{effects:?}");
}

#[test]
fn doubt_stays_until_a_worker_has_told_of_its_groups_values() {
    let mut desk = at_work(2, true);
    desk.stepped(1, 1, 1, 2);
    alone_silent(&mut desk, &[0], 12.0);
    // Without worker 1 its iteration is done again.
    desk.ready(0, 1, 0, 0);
    desk.stepped(0, 2, 1, 1);
    desk.return_as(7, Some((WorkerId(1), Incarnation(2))));
    desk.ready(7, 1, 1, 2);
    assert_eq!(begun(&desk.ready(0, 2, 1, 1), &[0, 7]), (3, 1, 1, Some(0)));
    // It says where that group began without having got there, and then of the next one, which begins later.
    desk.trouble(7, 3, 0);
    desk.ready(7, 3, 1, 1);
    desk.stepped(0, 3, 2, 3);
    assert_eq!(begun(&desk.ready(0, 3, 2, 3), &[0, 7]), (4, 2, 3, Some(0)));
    desk.trouble(7, 4, 0);
    desk.ready(7, 4, 2, 3);
    assert_eq!(begun(&desk.ready(0, 4, 2, 3), &[0, 7]), (5, 2, 3, Some(0)));
    // Once it tells of iterations it has what the others have.
    desk.stepped(7, 5, 3, 5);
    desk.trouble(7, 5, 0);
    desk.ready(7, 5, 3, 5);
    assert_eq!(begun(&desk.ready(0, 5, 3, 5), &[0, 7]), (6, 3, 5, None));
}

#[test]
fn a_run_whose_values_are_lost_fails_and_one_that_had_none_begins_anew() {
    let mut desk = at_work(1, true);
    desk.stepped(0, 1, 1, 1);
    assert!(failure(&desk.leave(0, Outcome::Interrupted)).unwrap().contains("are lost"));
    let mut desk = at_work(2, true);
    desk.leave(0, Outcome::Interrupted);
    assert!(failure(&desk.leave(1, Outcome::Interrupted)).is_none());
    desk.arrive(4);
    assert!(groups(&desk.ready(4, 0, 0, 0)).is_empty());
    desk.arrive(5);
    assert_eq!(begun(&desk.ready(5, 0, 0, 0), &[4, 5]), (2, 0, 0, None));
}

#[test]
fn a_topology_that_no_longer_fits_becomes_a_ring_and_says_so() {
    let mut desk = allreduce(4, Topology::Torus { x: 2, y: 2 }, true);
    for session in 0..4 {
        desk.arrive(session);
        desk.ready(session, 0, 0, 0);
    }
    desk.leave(3, Outcome::Interrupted);
    desk.ready(0, 1, 0, 0);
    desk.ready(1, 1, 0, 0);
    let effects = desk.ready(2, 1, 0, 0);
    assert_eq!(groups(&effects)[0].1.topology, Topology::Ring);
    let said = notices(&effects);
    assert!(said.iter().any(|text| text.starts_with("torus(2, 2) is not used, ring is")), "{said:?}");
}

#[test]
fn another_member_evaluates_when_the_first_is_lost_at_the_end() {
    let mut desk = at_work(2, true);
    desk.stepped(0, 1, 9, 18);
    desk.stepped(1, 1, 9, 18);
    let effects = alone_silent(&mut desk, &[1], 12.0);
    assert_eq!(regroups(&effects), [(1, 1)]);
    assert_eq!(begun(&desk.ready(1, 1, 9, 18), &[1]), (2, 9, 18, None));
    assert_eq!(desk.figures().recoveries.map(|rows| rows.len()), Some(1));
    desk.say(1, evaluated(180));
    assert!(desk.leave(1, Outcome::Done).contains(&ControlEffect::End(End::Complete)));
    // Without that there is no result.
    let mut desk = at_work(2, false);
    desk.stepped(0, 1, 9, 18);
    desk.stepped(1, 1, 9, 18);
    assert!(failure(&desk.leave(0, Outcome::Done)).is_some());
}

#[test]
fn groups_that_never_complete_anything_end_the_run() {
    let mut desk = at_work(2, true);
    for generation in 1..8 {
        assert!(failure(&desk.trouble(0, generation, 1)).is_none());
        desk.ready(0, generation, 0, 0);
        desk.ready(1, generation, 0, 0);
    }
    let effects = desk.trouble(0, 8, 1);
    let text = failure(&effects).unwrap();
    let named =
        "worker 0 at 10.0.0.0:7000 had trouble with worker 1 at 10.0.0.1:7001: the connection was lost";
    assert!(text.contains(named), "{text}");
}

#[test]
fn a_member_that_does_not_answer_is_named() {
    let mut desk = at_work(3, true);
    desk.trouble(0, 1, 1);
    desk.ready(0, 1, 0, 0);
    desk.after(5.0);
    let now = desk.now;
    let [waiting] = desk.control.waits(now).try_into().unwrap();
    assert_eq!(waiting.wait.to_string(), "generation 1 is dissolved and waits for worker 1, worker 2");
    assert_eq!(waiting.since, Duration::from_secs(5));
}
