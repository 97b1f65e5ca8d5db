//! Servers that are told to go, as they see it themselves.

use super::*;
use slackline_core::wire::{Backup, ServerWord};

/// Another server than the coordinator's, with a shard, its copy and a worker.
fn server(in_step: bool, on_disk: bool) -> Desk {
    let other =
        ControlSettings { server: ServerId(1), coordinator: None, servers: 2, on_disk, ..settings(1) };
    let other = ControlSettings { shards: vec![(ShardId(0), ServerId(1))], ..other };
    let mut desk = Desk { control: Control::new(other, Moment(0)), now: Moment(0) };
    let (generation, origin) = (Generation(2), Origin::Memory);
    let backup = Some(Backup { server: ServerId(0), in_step });
    let place = Place { shard: ShardId(0), generation, primary: ServerId(1), backup, origin };
    desk.event(ControlEvent::CoordinatorOpened);
    desk.event(ControlEvent::Ordered(ServerOrder::Places {
        number: 1,
        run: 0,
        from: None,
        places: vec![place],
    }));
    desk.open(1, Role::Worker);
    desk.register(1, WorkerId(0), Incarnation(1));
    desk
}

fn leave(desk: &mut Desk) -> Vec<ControlEffect> {
    let mut effects = Vec::new();
    let reason = "terminated".to_owned();
    desk.control.handle(desk.now, ControlEvent::Leave { reason }, &mut effects);
    effects
}

fn ends(effects: &[ControlEffect]) -> bool {
    effects.contains(&ControlEffect::End(End::Stopped("terminated".to_owned())))
}

// Case 13 (elasticdl#390, dlrover#360): a server that was taken away on purpose ended the run.
#[test]
fn a_server_that_is_told_to_go_asks_the_coordinator_and_ends_without_a_word_to_its_workers() {
    let mut desk = server(true, false);
    let unasked = desk.event(ControlEvent::Ordered(ServerOrder::Go { is_missed: false }));
    assert_eq!(unasked, []);
    assert_eq!(leave(&mut desk), [ControlEffect::Coordinator(ServerWord::Going)]);
    assert!(desk.control.is_going());
    desk.open(2, Role::Worker);
    assert_eq!(refusals(&desk.register(2, WorkerId(1), Incarnation(2))), [], "it goes on until then");
    let effects = desk.event(ControlEvent::Ordered(ServerOrder::Go { is_missed: false }));
    assert!(ends(&effects) && effects.len() == 1, "{effects:?}");
    assert!(!desk.control.is_going());
}

#[test]
fn workers_of_a_server_that_is_missed_are_told_that_it_ends() {
    let mut desk = server(true, false);
    leave(&mut desk);
    let effects = desk.event(ControlEvent::Ordered(ServerOrder::Go { is_missed: true }));
    assert!(ends(&effects));
    assert_eq!(refusals(&effects), [(RefusalCode::Stopped, "server 1 ends: terminated".to_owned())]);
}

#[test]
fn without_an_answer_what_was_last_known_of_the_copies_decides() {
    for (in_step, on_disk, is_missed) in
        [(true, false, false), (false, true, false), (false, false, true), (true, true, false)]
    {
        for way in 0..4 {
            let mut desk = server(in_step, on_disk);
            let effects = match way {
                // It is told again.
                0 => {
                    leave(&mut desk);
                    leave(&mut desk)
                }
                1 => {
                    leave(&mut desk);
                    desk.event(ControlEvent::CoordinatorLost)
                }
                2 => {
                    leave(&mut desk);
                    desk.after(2.1 * LEASE.as_secs_f64())
                }
                _ => {
                    desk.event(ControlEvent::CoordinatorLost);
                    leave(&mut desk)
                }
            };
            assert!(ends(&effects), "{way}: {effects:?}");
            let refused = refusals(&effects).iter().any(|(code, _)| *code == RefusalCode::Stopped);
            assert_eq!(refused, is_missed, "{in_step} {on_disk} {way}");
        }
    }
}

// Found by seeds 6672, 7613 and 8799 of the simulated world.
#[test]
fn a_server_that_was_never_told_anything_is_not_missed() {
    let other = ControlSettings { server: ServerId(1), coordinator: None, servers: 2, ..settings(1) };
    let mut desk = Desk { control: Control::new(other, Moment(0)), now: Moment(0) };
    desk.open(1, Role::Worker);
    let effects = leave(&mut desk);
    assert!(ends(&effects) && effects.len() == 1, "{effects:?}");
}

#[test]
fn the_coordinator_ends_at_once_and_all_workers_hear_it() {
    let mut desk = Desk::new(settings(1));
    desk.enlist(0);
    let effects = leave(&mut desk);
    assert!(ends(&effects));
    assert_eq!(refusals(&effects).len(), 1);
}
