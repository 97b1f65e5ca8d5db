//! Servers that the coordinator refuses, as they see that themselves, and as the coordinator does.

use super::*;
use slackline_core::wire::{Here, Phase, Refusal, ServerWord, Text};

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

// Found by reading: a coordinator that was killed before it had told the servers that the run is over left them waiting for it for ever.
#[test]
fn a_server_that_hears_late_that_the_run_is_over_ends_well_and_tells_its_workers() {
    for is_going in [false, true] {
        let mut desk = server();
        if is_going {
            desk.event(ControlEvent::Leave { reason: "terminated".to_owned() });
        }
        let effects = refused(&mut desk, RefusalCode::RunOver, "the run is complete");
        let end = End::Stopped("server 0 says: the run is complete".to_owned());
        assert!(effects.contains(&ControlEffect::End(end)), "{effects:?}");
        let told = (RefusalCode::Stopped, "server 1 ends: server 0 says: the run is complete".to_owned());
        assert_eq!(refusals(&effects), [told]);
        assert_eq!(desk.control.phase(desk.now), Phase::Finished);
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

/// The process with this number says over a new session that it is server 1.
fn calls(desk: &mut Desk, session: u64, boot: u64) -> Vec<ControlEffect> {
    desk.open(session, Role::Server);
    says(desk, session, boot)
}

fn says(desk: &mut Desk, session: u64, boot: u64) -> Vec<ControlEffect> {
    let (server, layout_hash, config_hash, holds) = (ServerId(1), 1, 2, Vec::new());
    desk.say(
        session,
        ToServer::Cluster(ServerWord::Here(Here { server, boot, layout_hash, config_hash, holds })),
    )
}

// Case 14: two machines were started as the same server, and each took the other's place again and again.
#[test]
fn of_two_processes_of_one_index_the_newer_stays_and_the_older_is_refused_with_both_addresses() {
    let mut desk = Desk::new(ControlSettings { servers: 2, ..settings(1) });
    assert_eq!(refusals(&calls(&mut desk, 1, 71)), []);
    let effects = calls(&mut desk, 2, 72);
    assert_eq!(refusals(&effects), []);
    assert!(effects.contains(&ControlEffect::Close { session: SessionId(1) }));
    let text = "server 1 is the process that calls from 10.0.0.2:9 now; this one, which calls from 10.0.0.3:9, was replaced; start one \
                process an index";
    let refused = calls(&mut desk, 3, 71);
    assert_eq!(refusals(&refused), [(RefusalCode::Mismatch, text.to_owned())]);
    assert_eq!(notices(&refused), [format!("turned 10.0.0.3:9 away: {text}")]);
    assert!(
        !refused.contains(&ControlEffect::Close { session: SessionId(2) }),
        "the newer one hears nothing of it"
    );
    // One that only lost its session is welcome, and so is one that was started again.
    desk.event(ControlEvent::Closed { session: SessionId(2) });
    assert_eq!(refusals(&calls(&mut desk, 4, 72)), []);
    assert_eq!(refusals(&calls(&mut desk, 5, 73)), []);
    assert_eq!(refusals(&calls(&mut desk, 6, 72)).len(), 1);
    // A coordinator that is restarted knows it too.
    let state = desk.control.state().unwrap();
    let control = Control::take_up_image(ControlSettings { servers: 2, ..settings(1) }, &state).unwrap();
    let mut desk = Desk { control, now: desk.now };
    assert_eq!(refusals(&calls(&mut desk, 7, 71)).len(), 1);
    assert_eq!(refusals(&calls(&mut desk, 8, 73)), []);
}

// Found by reading: the older one lost its session between the newer one's call and its first word, so that its own call was the later one,
// and the newer one was refused for good.
#[test]
fn a_process_is_not_older_because_the_one_before_it_has_called_again() {
    let is_taken = |desk: &mut Desk, older: u64| {
        desk.open(5, Role::Server);
        desk.event(ControlEvent::Closed { session: SessionId(1) });
        assert_eq!(refusals(&calls(desk, 6, older)), []);
        // Its first word.
        let effects = says(desk, 5, 72);
        assert_eq!(refusals(&effects), []);
        assert!(effects.contains(&ControlEffect::Close { session: SessionId(6) }));
        assert_eq!(refusals(&calls(desk, 7, older)).len(), 1, "and the older one is none any more");
        desk.event(ControlEvent::Closed { session: SessionId(5) });
        assert_eq!(refusals(&calls(desk, 8, 72)), []);
    };
    let mut desk = Desk::new(ControlSettings { servers: 2, ..settings(1) });
    assert_eq!(refusals(&calls(&mut desk, 1, 71)), []);
    // So it is after a restart of the coordinator, which counts sessions anew.
    let state = desk.control.state().unwrap();
    let mut effects = Vec::new();
    let settings = ControlSettings { servers: 2, ..settings(1) };
    let control = Control::restore(settings, &state, Vec::new(), desk.now, &mut effects).unwrap();
    let mut again = Desk { control, now: desk.now };
    is_taken(&mut desk, 71);
    is_taken(&mut again, 71);
}

#[test]
fn what_an_older_process_says_late_unseats_nobody() {
    let mut desk = Desk::new(ControlSettings { servers: 2, ..settings(1) });
    desk.open(1, Role::Server);
    assert_eq!(refusals(&calls(&mut desk, 2, 72)), []);
    assert_eq!(refusals(&says(&mut desk, 1, 71)).len(), 1);
    assert_eq!(refusals(&calls(&mut desk, 3, 71)).len(), 1);
    desk.event(ControlEvent::Closed { session: SessionId(2) });
    assert_eq!(refusals(&calls(&mut desk, 4, 72)), []);
    // One that called before the present one was first heard is older also where that one has called again since, or is away.
    desk.open(5, Role::Server);
    assert_eq!(refusals(&calls(&mut desk, 6, 73)), []);
    desk.event(ControlEvent::Closed { session: SessionId(6) });
    assert_eq!(refusals(&says(&mut desk, 5, 70)).len(), 1);
    assert_eq!(refusals(&calls(&mut desk, 7, 73)), []);
}

fn order(number: u64) -> ControlEvent {
    ControlEvent::Ordered(ServerOrder::Places { number, run: 0, from: None, places: Vec::new() })
}

// Found by reading: a server that could not follow an order, or had lost a thread, told its workers that the run ends, and they ended.
#[test]
fn a_server_that_cannot_do_what_it_is_ordered_or_is_broken_ends_no_worker() {
    let why = "the thread of shard 0 has ended";
    for is_broken in [false, true] {
        let mut desk = server();
        desk.event(order(5));
        desk.register(1, WorkerId(0), Incarnation(1));
        let (effects, end) = if is_broken {
            (desk.event(ControlEvent::Broken { why: why.to_owned() }), End::Failed(why.to_owned()))
        } else {
            desk.event(ControlEvent::CoordinatorLost);
            desk.event(ControlEvent::CoordinatorOpened);
            let text = "the coordinator was restarted without its memory (map 1 after map 5): its run is another one; start the run \
                        again, or resume it from a checkpoint";
            (desk.event(order(1)), End::Refused(text.to_owned()))
        };
        assert_eq!(effects, [ControlEffect::End(end.clone())]);
        assert_eq!(desk.control.ended(), Some(&end));
    }
    // With the coordinator's own the run ends, and all workers hear why.
    let mut desk = Desk::new(settings(1));
    desk.enlist(0);
    let effects = desk.event(ControlEvent::Broken { why: why.to_owned() });
    assert_eq!(refusals(&effects), [(RefusalCode::Stopped, format!("server 0 ends: {why}"))]);
    assert_eq!(desk.control.ended(), Some(&End::Failed(why.to_owned())));
}
