//! A store that hangs: what is waited for has a name, and says where.

use super::keeping::{commits, marks, saved, with_checkpoints};
use super::*;
use slackline_core::config::timers::quiet;
use slackline_core::wire::{Here, ServerWord};

fn said(desk: &Desk) -> Vec<String> {
    desk.control.waits(desk.now).iter().map(|waiting| waiting.wait.to_string()).collect()
}

/// Time passes in which the worker is not silent.
fn pass(desk: &mut Desk, seconds: u32) {
    for _ in 0..seconds {
        desk.say(0, ToServer::Renew);
        desk.after(1.0);
    }
}

#[test]
fn the_end_of_a_run_says_at_once_who_has_not_written_its_part_and_then_that_the_manifest_is_not() {
    let mut desk = Desk::new(with_checkpoints(1_000));
    desk.enlist(0);
    desk.say(0, ask(0, None));
    (0..5).for_each(|batch| drop(desk.say(0, ask(batch + 1, Some(batch)))));
    let evaluated = Evaluated { at_samples: 45, loss: 0.1, accuracy: 0.9, report: None };
    desk.say(0, ToServer::Evaluated(evaluated));
    assert_eq!(said(&desk), [] as [&str; 0]);
    desk.say(0, ToServer::Leave(Leave { outcome: Outcome::Done, report: None }));
    let part =
        "checkpoint 1, the last of the run, waits for server 0 to write its part to the store (shard 0)";
    assert_eq!(said(&desk), [part]);
    desk.after(7.0);
    assert_eq!(desk.control.waits(desk.now)[0].since, Duration::from_secs(7));
    assert_eq!(desk.control.status(desk.now).waits[0].text.shown(), part);
    desk.event(saved(1));
    let manifest = "checkpoint 1, the last of the run, waits for its manifest to be written to the store";
    assert_eq!(said(&desk), [manifest]);
    // A store that fails is tried again after a while.
    desk.event(ControlEvent::NotCommitted { number: 1, why: "no route".to_owned() });
    assert_eq!(
        said(&desk),
        ["checkpoint 2, the last of the run, cannot be begun yet: not all shards can be told of it"]
    );
    desk.after(5.0);
    assert_eq!(said(&desk), [part.replace('1', "2")]);
    desk.event(saved(2));
    desk.event(ControlEvent::Committed { number: 2 });
    assert_eq!((said(&desk), desk.control.ended()), (Vec::new(), Some(&End::Complete)));
}

#[test]
fn a_checkpoint_of_a_run_that_goes_on_is_told_when_it_takes_too_long() {
    let mut desk = Desk::new(with_checkpoints(1));
    desk.enlist(0);
    (0..2).for_each(|clock| drop(desk.say(0, ask(clock, None))));
    assert_eq!(marks(&desk.say(0, ask(2, Some(0))))[0].cuts, [(WorkerId(0), Clock(5))]);
    let least = quiet(LEASE).as_secs() as u32;
    pass(&mut desk, least - 1);
    assert_eq!(said(&desk), [] as [&str; 0]);
    pass(&mut desk, 2);
    let cut = "checkpoint 1 waits for worker 0 at clock 1 to reach clock 5, where it is cut";
    assert_eq!(said(&desk), [cut]);
    // The worker is past its cut, or has no work below it, so only the store is left.
    (3..7).for_each(|clock| drop(desk.say(0, ask(clock, Some(clock - 2)))));
    assert_eq!(said(&desk), ["checkpoint 1 waits for server 0 to write its part to the store (shard 0)"]);
    assert!(!commits(&desk.event(saved(1))).is_empty());
    assert_eq!(said(&desk), ["checkpoint 1 waits for its manifest to be written to the store"]);
    desk.event(ControlEvent::Committed { number: 1 });
    assert_eq!(said(&desk), [] as [&str; 0]);
}

#[test]
fn of_several_servers_those_are_named_that_have_parts_to_write_and_each_wait_is_logged_once() {
    let mut settings = with_checkpoints(1_000);
    settings.servers = 2;
    settings.shards = (0..4).map(|shard| (ShardId(shard), ServerId(shard % 2))).collect();
    let mut desk = Desk::new(settings);
    desk.open(7, Role::Server);
    let here = Here { server: ServerId(1), boot: 1, layout_hash: 1, config_hash: 2, holds: Vec::new() };
    desk.say(7, ToServer::Cluster(ServerWord::Here(here)));
    desk.say(7, ToServer::Cluster(ServerWord::Took { number: 1 }));
    desk.enlist(0);
    desk.say(0, ask(0, None));
    (0..5).for_each(|batch| drop(desk.say(0, ask(batch + 1, Some(batch)))));
    let evaluated = Evaluated { at_samples: 45, loss: 0.1, accuracy: 0.9, report: None };
    desk.say(0, ToServer::Evaluated(evaluated));
    desk.say(0, ToServer::Leave(Leave { outcome: Outcome::Done, report: None }));
    desk.event(saved(1));
    let mut journal = crate::waits::Journal::default();
    let mut news = |desk: &Desk| journal.news(&desk.control.waits(desk.now));
    let line = |server: u32, parts: &str| {
        format!("checkpoint 1, the last of the run, waits for server {server} to write its {parts} (0.0 s)")
    };
    assert_eq!(
        news(&desk),
        [line(0, "part to the store (shard 2)"), line(1, "parts to the store (shard 1, shard 3)")]
    );
    let entry = |shard| ServerWord::Saved { number: 1, shard: ShardId(shard), entry: b"{}".to_vec() };
    desk.say(7, ToServer::Cluster(entry(1)));
    let still = format!("still {}, and 1 more", line(0, "part to the store (shard 2)"));
    assert_eq!(news(&desk), [still]);
}
