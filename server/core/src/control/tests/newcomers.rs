//! Newcomers that reach the coordinator and not the others.

use super::groups::{at_work, begun, failure, notices, regroups};
use super::*;

/// Two workers at clock 3, with two more in session 5 and so on that have just come, in the second group.
fn joined_by(newcomers: &[u64]) -> Desk {
    let mut desk = at_work(2, true);
    desk.stepped(0, 1, 3, 6);
    for session in newcomers {
        desk.arrive(*session);
        desk.ready(*session, 0, 0, 0);
    }
    desk.ready(0, 1, 3, 6);
    let all: Vec<u64> = [&[0, 1], newcomers].concat();
    assert_eq!(begun(&desk.ready(1, 1, 3, 6), &all), (2, 3, 6, Some(0)));
    desk
}

#[test]
fn a_newcomer_whom_nobody_meets_is_turned_away_by_name_and_the_others_go_on() {
    let mut desk = joined_by(&[5]);
    assert_eq!(regroups(&desk.trouble(1, 2, 2)), [(0, 2), (1, 2), (5, 2)]);
    desk.ready(0, 2, 3, 6);
    desk.ready(5, 2, 0, 0);
    assert_eq!(begun(&desk.ready(1, 2, 3, 6), &[0, 1]), (3, 3, 6, None));
    // It waits until they are at work again, and has another chance.
    assert!(regroups(&desk.say(5, ToServer::Renew)).is_empty());
    assert_eq!(regroups(&desk.stepped(0, 3, 4, 8)), [(0, 3), (1, 3)]);
    desk.ready(0, 3, 4, 8);
    assert_eq!(begun(&desk.ready(1, 3, 4, 8), &[0, 1, 5]), (4, 4, 8, Some(0)));
    let effects = desk.trouble(1, 4, 2);
    let text = "worker 2 cannot be reached by worker 1 at 10.0.0.5:7005: the connection was lost; look at sync.advertise and the \
                firewall of both";
    assert!(refusals(&effects).contains(&(RefusalCode::Mismatch, text.to_owned())), "{effects:?}");
    assert!(notices(&effects).iter().any(|said| said.contains(text)), "{effects:?}");
    desk.ready(0, 4, 4, 8);
    assert_eq!(begun(&desk.ready(1, 4, 4, 8), &[0, 1]), (5, 4, 8, None));
    // Nobody misses it, and others may come.
    desk.stepped(1, 5, 5, 10);
    assert_eq!(desk.figures().recoveries, Some(Vec::new()));
    desk.arrive(6);
    assert_eq!(regroups(&desk.ready(6, 0, 0, 0)), [(0, 5), (1, 5)]);
}

#[test]
fn a_newcomer_that_reaches_nobody_is_told_whom_it_did_not_reach() {
    let mut desk = joined_by(&[5]);
    desk.trouble(5, 2, 0);
    for session in [0, 1] {
        desk.ready(session, 2, 3, 6);
    }
    desk.ready(5, 2, 0, 0);
    desk.stepped(1, 3, 4, 8);
    desk.ready(0, 3, 4, 8);
    desk.ready(1, 3, 4, 8);
    let refused = refusals(&desk.trouble(5, 4, 1));
    let text = "worker 2 cannot reach worker 1 at 10.0.0.1:7001: the connection was lost";
    assert!(refused.len() == 1 && refused[0].1.starts_with(text), "{refused:?}");
}

#[test]
fn a_newcomer_that_has_stepped_with_the_others_is_one_of_them() {
    let mut desk = joined_by(&[5]);
    desk.trouble(1, 2, 2);
    // The step was complete before that, and its word on its way.
    desk.ready(0, 2, 4, 9);
    desk.ready(1, 2, 3, 6);
    assert_eq!(begun(&desk.ready(5, 2, 3, 6), &[0, 1, 5]), (3, 4, 9, Some(0)));
    for generation in 3..10 {
        assert!(failure(&desk.trouble(1, generation, 2)).is_none());
        for session in [0, 1, 5] {
            desk.ready(session, generation, 4, 9);
        }
    }
    assert!(failure(&desk.trouble(1, 10, 2)).unwrap().contains("worker 1 at 10.0.0.1:7001 had trouble with"));
}

#[test]
fn of_two_newcomers_the_right_one_is_found() {
    // Worker 2, in session 5, is the one that nobody meets; it complains of worker 3 first.
    let mut desk = joined_by(&[5, 6]);
    desk.trouble(5, 2, 3);
    for (session, clock, units) in [(0, 3, 6), (1, 3, 6), (5, 0, 0)] {
        desk.ready(session, 2, clock, units);
    }
    assert_eq!(begun(&desk.ready(6, 2, 0, 0), &[0, 1, 5]).0, 3);
    desk.trouble(1, 3, 2);
    for (session, clock, units) in [(0, 3, 6), (5, 0, 0)] {
        desk.ready(session, 3, clock, units);
    }
    assert_eq!(begun(&desk.ready(1, 3, 3, 6), &[0, 1]).0, 4);
    // One at a time: worker 2 once more.
    desk.stepped(0, 4, 4, 8);
    desk.ready(0, 4, 4, 8);
    assert_eq!(begun(&desk.ready(1, 4, 4, 8), &[0, 1, 5]).0, 5);
    let refused = refusals(&desk.trouble(5, 5, 0));
    assert!(refused.len() == 1 && refused[0].1.starts_with("worker 2 cannot reach worker 0"), "{refused:?}");
    // It was the other one's only accuser.
    desk.ready(0, 5, 4, 8);
    assert_eq!(begun(&desk.ready(1, 5, 4, 8), &[0, 1, 6]), (6, 4, 8, Some(0)));
    assert!(regroups(&desk.stepped(1, 6, 5, 11)).is_empty());
}

#[test]
fn a_newcomer_is_not_blamed_for_one_that_was_lost_meanwhile() {
    let mut desk = joined_by(&[5]);
    desk.trouble(5, 2, 1);
    for (session, clock, units) in [(0, 3, 6), (5, 0, 0), (1, 3, 6)] {
        desk.ready(session, 2, clock, units);
    }
    desk.stepped(1, 3, 4, 8);
    desk.leave(1, Outcome::Interrupted);
    assert_eq!(begun(&desk.ready(0, 3, 4, 8), &[0, 5]), (4, 4, 8, Some(0)));
    // The first time that it and another do not come together.
    assert!(refusals(&desk.trouble(5, 4, 0)).is_empty());
}

#[test]
fn where_nobody_else_is_left_those_who_were_left_out_are_taken() {
    let mut desk = joined_by(&[5]);
    // It had got the values before.
    desk.trouble(5, 2, 1);
    desk.ready(5, 2, 3, 6);
    desk.leave(0, Outcome::Interrupted);
    let effects = desk.leave(1, Outcome::Interrupted);
    assert!(failure(&effects).is_none(), "{effects:?}");
    assert_eq!(begun(&effects, &[5]), (3, 3, 6, None));
}
