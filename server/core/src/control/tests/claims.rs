//! What a worker of an allreduce says of itself is refused where it cannot be.

use slackline_core::collective::Topology;

use super::groups::{allreduce, at_work, begun, evaluated, failure, joining, ready, stepped};
use super::*;

#[test]
fn the_address_for_other_workers_is_what_was_said_at_the_host_that_is_seen() {
    let long = format!("{}:1", "h".repeat(63));
    let cases = [
        ("192.0.2.7:50000", ":4000", Ok("192.0.2.7:4000")),
        ("[2001:db8::7]:50000", ":4000", Ok("[2001:db8::7]:4000")),
        ("[::ffff:192.0.2.7]:50000", ":4000", Ok("192.0.2.7:4000")),
        ("process 3", ":4000", Ok("process 3:4000")),
        ("192.0.2.7:50000", "gpu-7.lab:4000", Ok("gpu-7.lab:4000")),
        ("192.0.2.7:50000", ":0", Err("sync.advertise")),
        ("192.0.2.7:50000", ":99999", Err("sync.advertise")),
        ("192.0.2.7:50000", "gpu-7", Err("sync.advertise")),
        ("192.0.2.7:50000", long.as_str(), Err("65 bytes")),
    ];
    for (seen_at, said, expected) in cases {
        let mut desk = allreduce(1, Topology::Ring, false);
        let (session, address) = (SessionId(1), seen_at.to_owned());
        desk.event(ControlEvent::Opened { session, role: Role::Worker, address });
        let refused = refusals(&desk.say(1, joining(said, None)));
        match expected {
            Ok(address) => {
                desk.register(1, WorkerId(0), Incarnation(1));
                let effects = desk.ready(1, 0, 0, 0);
                let told = groups::groups(&effects);
                assert_eq!(told[0].1.members[0].address.shown(), address);
            }
            Err(words) => {
                assert!(refused[0].0 == RefusalCode::Mismatch && refused[0].1.contains(words), "{refused:?}");
            }
        }
    }
    let mut desk = allreduce(1, Topology::Ring, false);
    desk.open(1, Role::Worker);
    let peers_at = None;
    let join =
        Join { layout_hash: 1, config_hash: 2, data_hash: 4, sample_count: 45, former: None, peers_at };
    assert!(refusals(&desk.say(1, ToServer::Join(join)))[0].1.contains("sync.listen"));
}

#[test]
fn clocks_and_units_that_cannot_be_are_refused_and_their_worker_is_removed() {
    let impossible = [
        // Beyond the run.
        stepped(1, 10, 20, None),
        stepped(1, 10, 18, None),
        stepped(1, u64::MAX, 18, None),
        ready(1, 3, u64::MAX),
        // Not the units of so many iterations of two workers.
        stepped(1, 3, 5, None),
        ready(1, 3, 7),
        ready(1, 0, 2),
        stepped(1, 3, 2, None),
        // A group that there was not.
        stepped(2, 1, 2, None),
        ready(2, 1, 2),
        // Evaluations that nobody can have made.
        evaluated(181),
        evaluated(0),
    ];
    for message in impossible {
        for elastic in [false, true] {
            let mut desk = at_work(2, elastic);
            let effects = desk.say(1, message.clone());
            let refused = refusals(&effects);
            let is_fatal = matches!(refused[0].0, RefusalCode::Mismatch | RefusalCode::OutOfPlace);
            assert!(is_fatal && refused[0].1.contains("worker 1"), "{message:?} {refused:?}");
            assert_eq!(failure(&effects).is_some(), !elastic, "{message:?}");
            assert_eq!(desk.figures().iterations, 0);
        }
    }
    // The last iteration has fewer units than members.
    let mut desk = at_work(4, false);
    assert_eq!(desk.stepped(1, 1, 5, 18), []);
    assert_eq!(desk.figures().samples, 180);
}

#[test]
fn trouble_with_a_stranger_and_iterations_of_no_group_are_refused() {
    let mut desk = at_work(2, true);
    for (stranger, group) in [(7, 1), (1, 1), (0, 9)] {
        let mut desk = at_work(2, true);
        assert!(!refusals(&desk.trouble(1, group, stranger)).is_empty(), "{stranger}");
    }
    desk.stepped(0, 1, 2, 4);
    desk.arrive(4);
    let effects = desk.ready(4, 0, 2, 4);
    assert!(refusals(&effects)[0].1.contains("was in no group"), "{effects:?}");
    // It was not in a group yet: nobody misses it.
    assert!(failure(&effects).is_none() && desk.figures().recoveries == Some(Vec::new()));
    assert_eq!(desk.stepped(0, 1, 3, 6), []);
}

#[test]
fn a_word_of_a_former_group_changes_only_the_figures() {
    let mut desk = at_work(2, true);
    desk.stepped(0, 1, 2, 4);
    desk.trouble(0, 1, 1);
    desk.ready(0, 1, 2, 4);
    assert_eq!(begun(&desk.ready(1, 1, 1, 2), &[0, 1]), (2, 2, 4, Some(0)));
    let report = slackline_core::wire::Report { pushes_sent: 2, ..Default::default() };
    desk.say(1, stepped(1, 1, 2, Some(report)));
    // While it lacks the values it says so with the group's number.
    desk.stepped(1, 2, 1, 2);
    assert_eq!((desk.figures().iterations, desk.figures().pushes.sent), (4, 2));
    assert_eq!(desk.control.status(desk.now).members[1].clock, Some(Clock(1)));
}
