//! Servers that say nothing: which of them are lost, and which are only quiet.

use slackline_core::wire::Evaluated;

use super::*;
use crate::Notice;

fn silent(server: u32, seconds: u64) -> [Effect; 3] {
    let silent = Duration::from_secs(seconds);
    let notice = Notice::Silent { server: ServerId(server), silent };
    [Effect::Notice(notice), disconnect(server), connect(server)]
}

fn renew(server: u32) -> Effect {
    send(server, ToServer::Renew)
}

/// A worker that has been given a batch and hears nothing more.
fn pulling() -> Rig {
    let mut rig = Rig::registered(Settings { wait_report: Duration::from_secs(1000), ..settings(2) });
    rig.hear(0, batch(0));
    rig
}

#[test]
fn a_thawed_worker_gives_up_its_connections_with_the_first_tick() {
    let mut rig = pulling();
    assert_eq!(rig.tick_after(Duration::from_secs(20)), [silent(0, 20), silent(1, 20)].concat());
    // It is the same worker still, and what had no answer is sent again.
    let welcome = ToPeer::Welcome { protocol: PROTOCOL, server: ServerId(1), boot: 71 };
    rig.on(Event::Connected { server: ServerId(1) });
    assert_eq!(rig.hear(1, welcome), [send(1, register(0, 0))]);
    let resumed = rig.hear(1, ToPeer::Registered { has_values: true });
    assert_eq!(resumed[1..], pull(1, 3, 0, 0));
}

#[test]
fn a_server_that_answers_renewals_is_quiet_and_not_lost() {
    let mut rig = pulling();
    for _ in 0..5 {
        assert_eq!(rig.tick_after(Duration::from_secs(3)), [renew(0), renew(1)]);
        assert_eq!(rig.hear(0, ToPeer::Renewed), []);
        assert_eq!(rig.hear(1, ToPeer::Renewed), []);
    }
    // One of them stops.
    for _ in 0..2 {
        assert_eq!(rig.tick_after(Duration::from_secs(3)), [renew(0), renew(1)]);
        rig.hear(0, ToPeer::Renewed);
    }
    assert_eq!(rig.worker.next_deadline(), Some(rig.now.after(Duration::from_secs(3))));
    assert_eq!(rig.tick_after(Duration::from_secs(3)), [&[renew(0)][..], &silent(1, 9)].concat());
}

#[test]
fn a_worker_that_speaks_and_hears_nothing_still_asks_for_a_sign_of_life() {
    let mut rig = pulling();
    rig.values(0, 1, 0);
    rig.values(1, 2, 0);
    rig.after_us(2_000_000);
    // The ask goes out here.
    assert_eq!(rig.on(Event::BatchLoaded { batch: BatchIndex(0) }).len(), 2);
    assert_eq!(rig.worker.next_deadline(), Some(Moment(3_000_000_000)));
    assert_eq!(rig.tick_after(Duration::from_secs(1)), [renew(0), renew(1)]);
    assert_eq!(rig.worker.next_deadline(), Some(Moment(6_000_000_000)));
}

#[test]
fn values_are_a_sign_of_life() {
    let mut rig = pulling();
    rig.tick_after(Duration::from_secs(8));
    rig.values(0, 1, 0);
    assert_eq!(rig.tick_after(Duration::from_secs(1)), silent(1, 9));
}

#[test]
fn a_registration_without_an_answer_is_tried_again() {
    let mut rig = Rig::new(Settings { wait_report: Duration::from_secs(1000), ..settings(1) });
    rig.tick_after(Duration::ZERO);
    rig.greet(0, 70);
    assert_eq!(rig.worker.next_deadline(), Some(Moment(9_000_000_000)));
    assert_eq!(rig.tick_after(Duration::from_secs(9)), silent(0, 9));
}

#[test]
fn an_answered_renewal_shows_what_was_heard_before_it() {
    let mut rig = Rig::computing(settings(2), work(1));
    let ready = {
        rig.worker.begin_evaluation(40, false, &mut Vec::new());
        rig.values(0, 3, 0);
        rig.values(1, 4, 0);
        rig.on(Event::EvaluationReady { at_samples: 40, loss: 0.5, accuracy: 0.5 })
    };
    let [Effect::Send { message: ToServer::Evaluated(Evaluated { report: Some(report), .. }), .. }] =
        &ready[..]
    else {
        panic!("{ready:?}")
    };
    assert_eq!(report.pulls_served, 2);
    let mut unheard = rig.worker.clone();
    unheard.recover_reports();
    assert_eq!(unheard.record.counts().pulls_served, 2);
    rig.tick_after(Duration::from_secs(3));
    rig.hear(0, ToPeer::Renewed);
    rig.worker.recover_reports();
    assert_eq!(rig.worker.record.counts().pulls_served, 0, "it was counted");
}
