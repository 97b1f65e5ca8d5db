//! A server that the coordinator refuses, as it sees that itself.

use super::*;
use slackline_core::wire::{Refusal, Text};

/// Another server than the coordinator's, with a worker and an open session with the coordinator.
fn server() -> Desk {
    let other = ControlSettings { server: ServerId(1), coordinator: None, servers: 2, ..settings(1) };
    let mut desk = Desk { control: Control::new(other, Moment(0)), now: Moment(0) };
    desk.event(ControlEvent::CoordinatorOpened);
    desk.open(1, Role::Worker);
    desk
}

fn refused(desk: &mut Desk, code: RefusalCode, text: &str) -> Vec<ControlEffect> {
    let effects = desk.event(ControlEvent::CoordinatorRefused(Refusal { code, text: Text::new(text) }));
    desk.event(ControlEvent::CoordinatorLost);
    desk.event(ControlEvent::CoordinatorOpened);
    effects
}

fn notices(effects: &[ControlEffect]) -> Vec<String> {
    let notice = |effect: &ControlEffect| match effect {
        ControlEffect::Notice(notice) => Some(notice.to_string()),
        _ => None,
    };
    effects.iter().filter_map(notice).collect()
}

// Case 57, for servers: one with another configuration was refused without end, and so was its log.
#[test]
fn a_server_that_cannot_be_one_of_the_run_ends_with_the_reason_and_tells_no_worker_that_the_run_is_over() {
    for code in [RefusalCode::Mismatch, RefusalCode::Role, RefusalCode::OutOfPlace] {
        for is_going in [false, true] {
            let mut desk = server();
            if is_going {
                desk.event(ControlEvent::Leave { reason: "terminated".to_owned() });
            }
            let end = End::Refused("server 0 refuses this process: not you".to_owned());
            assert_eq!(refused(&mut desk, code, "not you"), [ControlEffect::End(end.clone())]);
            assert_eq!((desk.control.ended(), desk.control.is_going()), (Some(&end), false));
            assert!(matches!(desk.control.phase(desk.now), Phase::Failed(_)));
        }
    }
}

#[test]
fn a_server_that_may_come_again_says_why_it_must_once_for_each_reason() {
    let mut desk = server();
    for (code, text, is_said) in [
        (RefusalCode::Full, "no room", true),
        (RefusalCode::Full, "no room", false),
        (RefusalCode::NotReady, "not yet", true),
        (RefusalCode::NotReady, "not yet", false),
        (RefusalCode::Full, "no room", true),
    ] {
        let effects = refused(&mut desk, code, text);
        let line = format!("server 0 refuses this process: {text}; it is tried again");
        assert_eq!(notices(&effects), if is_said { vec![line] } else { Vec::new() });
        assert_eq!(desk.control.ended(), None);
    }
    // Once it was taken in, a refusal is news.
    desk.event(ControlEvent::Ordered(ServerOrder::Heard));
    assert_eq!(notices(&refused(&mut desk, RefusalCode::Full, "no room")).len(), 1);
}
