//! Too few workers, members that come and go, and what is said of it.

use slackline_core::wire::{Here, ServerWord};

use super::*;
use crate::assign::{Repeat, Why};

fn least(workers: u32, min_workers: u32) -> ControlSettings {
    ControlSettings { min_workers: Some(min_workers), ..settings(workers) }
}

fn said(desk: &Desk) -> Vec<String> {
    desk.control.waits(desk.now).iter().map(|waiting| waiting.wait.to_string()).collect()
}

fn leave(desk: &mut Desk, session: u64) -> Vec<ControlEffect> {
    desk.say(session, ToServer::Leave(Leave { outcome: Outcome::Interrupted, report: None }))
}

// Case flower#4678: a hidden minimum of two was waited for in silence.
#[test]
fn the_least_number_of_workers_is_waited_for_with_its_name() {
    let mut desk = Desk::new(least(4, 2));
    assert_eq!(said(&desk), ["waiting for workers: 0 of 2 (min_workers), worker 0, worker 1 missing"]);
    desk.enlist(0);
    assert!(works(&desk.say(0, ask(0, None))).is_empty());
    assert_eq!(said(&desk), ["waiting for workers: 1 of 2 (min_workers), worker 1 missing (here: worker 0)"]);
    assert_eq!(desk.control.status(desk.now).waits[0].text.shown(), said(&desk)[0]);
}

#[test]
fn a_run_begins_with_the_least_number_when_nobody_else_came_for_a_lease() {
    let mut desk = Desk::new(least(4, 2));
    for session in 0..2 {
        desk.enlist(session);
        assert!(works(&desk.say(session, ask(0, None))).is_empty());
    }
    assert_eq!(
        said(&desk),
        ["waiting for workers: 2 of 4 here, enough to begin in 10.0 s if nobody else comes"]
    );
    desk.after(6.0);
    for session in 0..2 {
        desk.say(session, ToServer::Renew);
    }
    // Somebody else comes: the time begins anew.
    desk.enlist(2);
    assert!(works(&desk.after(6.0)).is_empty());
    for session in 0..3 {
        desk.say(session, ToServer::Renew);
    }
    let effects = desk.after(4.0);
    assert_eq!(works(&effects).len(), 2, "the two that have asked have work: {effects:?}");
    assert!(effects.contains(&ControlEffect::Notice(Notice::Started { workers: 3, wanted: 4 })));
}

#[test]
fn a_run_begins_at_once_with_all_its_workers() {
    let mut desk = Desk::new(least(2, 1));
    desk.enlist(0);
    desk.enlist(1);
    assert!(works(&desk.say(0, ask(0, None))).is_empty());
    assert_eq!(works(&desk.say(1, ask(0, None))).len(), 2);
}

// Case horovod#3494: one left politely, the number fell below the least, its replacement came, and all waited for each other.
#[test]
fn a_replacement_of_one_that_left_goes_on_with_those_that_stayed() {
    for polite in [true, false] {
        let mut desk = Desk::new(least(2, 2));
        desk.enlist(0);
        desk.enlist(1);
        desk.say(0, ask(0, None));
        assert_eq!(works(&desk.say(1, ask(0, None))).len(), 2);
        if polite {
            leave(&mut desk, 1);
        } else {
            desk.after(9.0);
            desk.say(0, ToServer::Renew);
            desk.after(1.5);
        }
        // One is too few: what it asks for, it is not given.
        assert!(works(&desk.say(0, ask(1, None))).is_empty(), "polite: {polite}");
        desk.after(3.0);
        assert_eq!(
            said(&desk),
            ["waiting for workers: 1 of 2 (min_workers), worker 1 missing (here: worker 0)"]
        );
        let waited = desk.control.waits(desk.now)[0].since;
        assert!(waited >= Duration::from_secs(3), "{waited:?}");
        // Another comes, on the same way as the first ones did, and work goes on at once: with what the lost one had.
        let (worker, incarnation, _) = desk.join(2, None);
        let given = works(&desk.register(2, worker, incarnation));
        assert!(matches!(given[..], [(0, Work::Batch { .. })]), "polite: {polite}: {given:?}");
        assert!(!works(&desk.say(2, ask(0, None))).is_empty(), "polite: {polite}");
        assert_eq!(said(&desk), [] as [&str; 0]);
    }
}

#[test]
fn with_all_a_run_goes_on_with_whoever_is_left() {
    let mut desk = Desk::new(settings(2));
    desk.enlist(0);
    desk.enlist(1);
    desk.say(0, ask(0, None));
    desk.say(1, ask(0, None));
    leave(&mut desk, 1);
    assert_eq!(works(&desk.say(0, ask(1, None))).len(), 1);
    assert_eq!(said(&desk), [] as [&str; 0]);
}

// Case horovod's elastic example: whoever left politely had the rest of its samples counted as done again.
#[test]
fn what_a_polite_leaver_had_not_pushed_is_handed_out_and_nothing_is_repeated() {
    let mut desk = Desk::new(settings(2));
    desk.enlist(0);
    desk.enlist(1);
    desk.say(0, ask(0, None));
    let before = works(&desk.say(1, ask(0, None)));
    let effects = leave(&mut desk, 1);
    assert!(!effects.iter().any(|effect| matches!(effect, ControlEffect::Notice(Notice::Repeated(_)))));
    assert_eq!((desk.control.batches_repeated(), desk.control.repeats().unwrap().samples()), (0, 0));
    // The other one gets it, before all that was never given out.
    let left = before.iter().find(|(session, _)| *session == 1).map(|(_, work)| *work);
    let given = works(&desk.say(0, ask(1, None)));
    let batch = |work| if let Work::Batch { batch, .. } = work { Some(batch) } else { None };
    assert_eq!(given.first().and_then(|(_, work)| batch(*work)), left.and_then(batch));
}

// Case Paddle#19600: what a dead trainer had was never trained on. Here it is done again, and the range is told.
#[test]
fn samples_of_a_lost_worker_are_told_with_its_name_and_of_one_that_left_too() {
    for polite in [true, false] {
        let mut desk = Desk::new(settings(2));
        desk.enlist(0);
        let (worker, incarnation) = desk.enlist(1);
        desk.say(0, ask(0, None));
        let given = works(&desk.say(1, ask(0, None)));
        let Some((_, Work::Batch { batch, .. })) = given.into_iter().find(|(session, _)| *session == 1)
        else {
            panic!("worker 1 has no work")
        };
        let (from, to) = (10 * batch.0, 10 * batch.0 + 10);
        let (effects, why) = if polite {
            let leave = Leave { outcome: Outcome::Unfinished { batch }, report: None };
            (desk.say(1, ToServer::Leave(leave)), Why::Left { worker, incarnation })
        } else {
            desk.after(9.0);
            desk.say(0, ToServer::Renew);
            (desk.after(1.5), Why::Lost { worker, incarnation })
        };
        let repeat = Repeat { from, to, why };
        assert!(effects.contains(&ControlEffect::Notice(Notice::Repeated(repeat))), "{effects:?}");
        let repeats = desk.control.repeats().unwrap();
        assert_eq!(repeats.ranges().collect::<Vec<_>>(), [repeat]);
        assert_eq!(repeats.samples(), 10);
    }
}

/// The coordinator of two servers with copies, which has heard of the other one that it is here and has its places.
fn with_copies() -> Desk {
    let mut both = ControlSettings {
        servers: 2,
        shards: vec![(ShardId(0), ServerId(0)), (ShardId(1), ServerId(1))],
        ..settings(1)
    };
    both.coordinator.iter_mut().for_each(|coordinator| coordinator.replicas = 2);
    let mut desk = Desk::new(both);
    desk.open(9, Role::Server);
    let here = Here { server: ServerId(1), boot: 7, layout_hash: 1, config_hash: 2, holds: Vec::new() };
    desk.say(9, ToServer::Cluster(ServerWord::Here(here)));
    desk.say(9, ToServer::Cluster(ServerWord::Took { number: 100 }));
    desk
}

// Found by reading: work was given out before the copies were equal, and whoever lost a server in between lost the run.
#[test]
fn a_run_with_copies_begins_when_they_are_equal() {
    let mut desk = with_copies();
    desk.enlist(0);
    assert!(works(&desk.say(0, ask(0, None))).is_empty());
    assert_eq!(
        said(&desk),
        ["shard 0: server 1 is being given a copy", "shard 1: server 0 is being given a copy"]
    );
    let generation = Generation(0);
    let first = ControlEvent::InStep { shard: ShardId(0), generation, backup: ServerId(1) };
    assert!(works(&desk.event(first)).is_empty());
    let second = ServerWord::InStep { shard: ShardId(1), generation, backup: ServerId(0) };
    assert_eq!(works(&desk.say(9, ToServer::Cluster(second))).len(), 1);
    // What dies from now on has a successor.
    let here = Here { server: ServerId(1), boot: 8, layout_hash: 1, config_hash: 2, holds: Vec::new() };
    desk.open(10, Role::Server);
    let effects = desk.say(10, ToServer::Cluster(ServerWord::Here(here)));
    assert!(!effects.iter().any(|effect| matches!(effect, ControlEffect::End(_))), "{effects:?}");
}

#[test]
fn copies_that_do_not_become_equal_are_waited_for_by_name_for_a_lease() {
    let mut desk = with_copies();
    desk.enlist(0);
    desk.say(0, ask(0, None));
    for _ in 0..3 {
        assert!(works(&desk.after(3.0)).is_empty());
        desk.say(0, ToServer::Renew);
        desk.say(9, ToServer::Cluster(ServerWord::Alive));
    }
    assert_eq!(said(&desk).len(), 2);
    assert_eq!(works(&desk.after(1.5)).len(), 1);
}

#[test]
fn a_coordinator_that_says_nothing_is_named_by_the_other_servers() {
    let other = ControlSettings { server: ServerId(1), coordinator: None, servers: 2, ..settings(1) };
    let mut desk = Desk::new(other);
    desk.control.set_addresses(vec!["10.0.0.0:4400".to_owned()]);
    desk.after(6.0);
    desk.event(ControlEvent::Ordered(ServerOrder::Heard));
    desk.after(6.0);
    assert_eq!(said(&desk), [] as [&str; 0]);
    desk.after(1.0);
    let line =
        "server 0, the coordinator, is silent for 7.0 s (its process may be stopped); it is at 10.0.0.0:4400";
    assert_eq!(said(&desk), [line]);
    // What this server did not hear while it stood still itself is nobody's silence.
    desk.event(ControlEvent::Late { by: Duration::from_secs(3) });
    assert_eq!(said(&desk), [] as [&str; 0]);
}

/// A server and the coordinator, with a way between them that takes its time.
struct Pair {
    coordinator: Control,
    server: Control,
    now: Moment,
    under_way: VecDeque<(Moment, ServerWord)>,
}

impl Pair {
    fn new() -> Self {
        let both = ControlSettings {
            servers: 2,
            shards: vec![(ShardId(0), ServerId(0)), (ShardId(1), ServerId(1))],
            ..settings(1)
        };
        let other = ControlSettings { server: ServerId(1), coordinator: None, ..both.clone() };
        let now = Moment(0);
        let (coordinator, server) = (Control::new(both, now), Control::new(other, now));
        let mut pair = Self { coordinator, server, now, under_way: VecDeque::new() };
        let (role, address) = (Role::Server, "here".to_owned());
        let opened = ControlEvent::Opened { session: SessionId(1), role, address };
        pair.coordinator.handle(now, opened, &mut Vec::new());
        pair.server(ControlEvent::CoordinatorOpened, Duration::ZERO);
        pair
    }

    /// The server takes an event; what it says of it arrives so much later, in order.
    fn server(&mut self, event: ControlEvent, delay: Duration) {
        let mut effects = Vec::new();
        self.server.handle(self.now, event, &mut effects);
        let last = self.under_way.back().map_or(Moment(0), |(when, _)| *when);
        let words = effects.into_iter().filter_map(|effect| match effect {
            ControlEffect::Coordinator(word) => Some(word),
            _ => None,
        });
        let when = self.now.after(delay).max(last);
        self.under_way.extend(words.map(|word| (when, word)));
    }

    /// So much time passes until both look at their clocks; how long the server is said to be silent then.
    fn tick(&mut self, after: Duration) -> Option<Duration> {
        self.now = self.now.after(after);
        let now = self.now;
        while let Some((_, word)) = self.under_way.pop_front_if(|(when, _)| *when <= now) {
            let event = ControlEvent::Message { session: SessionId(1), message: ToServer::Cluster(word) };
            self.coordinator.handle(self.now, event, &mut Vec::new());
        }
        self.coordinator.handle(self.now, ControlEvent::Tick, &mut Vec::new());
        self.coordinator.waits(self.now).into_iter().find_map(|waiting| match waiting.wait {
            crate::waits::Wait::Silent { silent, .. } => Some(silent),
            _ => None,
        })
    }
}

// A run with a lease of a second, in which nothing was wrong, warned of silent servers every two seconds: they were called so after a third
// of a lease, which is when they speak.
#[test]
fn a_server_that_renews_its_lease_is_never_called_silent_and_one_that_stops_is_before_it_is_over() {
    let mut pair = Pair::new();
    let tick = LEASE / slackline_core::config::timers::TICKS;
    for step in 0..2000_u32 {
        // A busy machine: words take up to a quarter of a lease.
        let delay = LEASE / 4 * (step * 7919 % 101) / 100;
        pair.server(ControlEvent::Tick, delay);
        assert_eq!(pair.tick(tick), None, "step {step}");
    }
    let named = std::iter::repeat_with(|| pair.tick(tick)).take(40).flatten().next().unwrap();
    assert!(named >= slackline_core::config::timers::quiet(LEASE) && named < LEASE, "{named:?}");
}
