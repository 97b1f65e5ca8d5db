//! Whoever only looks on changes nothing, and makes a primary keep little.

use std::time::Duration;

use slackline_core::config::Steps;
use slackline_core::consistency::{PolicySpec, Standing};
use slackline_core::ids::{BatchIndex, Sequence, SessionId};
use slackline_core::wire::PullKind;

use super::*;
use crate::shard::Push;

/// A primary with its backup and its disk, all of which hear of every entry; neither says that it has something unless it is told to.
struct Trio {
    settings: HostSettings,
    primary: Host,
    backup: Host,
    disk: Vec<Frame>,
    heard: Vec<ShardEffect>,
}

impl Trio {
    fn new(policy: PolicySpec, workers: u32) -> Self {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let mut shard = settings().new_tree(&mut runner).unwrap().current();
        (shard.policy, shard.steps, shard.guard.norm_max) = (policy, Steps::Parts, None);
        let settings = HostSettings { server: ServerId(0), shard, durability: Durability::Disk, replicas: 2 };
        let backup = Host::new(HostSettings { server: ServerId(1), ..settings.clone() });
        let primary = Host::new(settings.clone());
        let mut trio = Self { settings, primary, backup, disk: Vec::new(), heard: Vec::new() };
        trio.take(0, trio.place(0, Origin::Nothing));
        trio.take(0, HostEvent::FeedOpen { backup: ServerId(1) });
        for worker in 0..workers {
            let enter = ShardEvent::Enter {
                worker: WorkerId(worker),
                incarnation: Incarnation(u64::from(worker)),
                clock: Clock(0),
                standing: Standing::Active,
                batch_count: 50,
                answered: Sequence(0),
            };
            trio.shard(0, enter);
        }
        trio.shard(0, ShardEvent::Initialize(vec![1.0; 5]));
        trio.shard(0, ShardEvent::Start);
        trio
    }

    fn place(&self, generation: u64, origin: Origin) -> HostEvent {
        let place = Place {
            shard: self.settings.shard.id,
            generation: Generation(generation),
            primary: ServerId(0),
            backup: (generation == 0).then_some(Backup { server: ServerId(1), in_step: false }),
            origin,
        };
        HostEvent::Place { place: Some(place), members: Vec::new(), started: generation > 0 }
    }

    /// The primary takes an event so many milliseconds after the beginning.
    fn take(&mut self, at: u64, event: HostEvent) {
        let at = Moment(at * 1_000_000);
        let mut effects = Vec::new();
        self.primary.handle(at, event, &mut effects);
        for effect in effects {
            match effect {
                HostEffect::Feed(frame) => {
                    let generation = Generation(0);
                    self.backup.handle(at, HostEvent::Frame { generation, frame }, &mut Vec::new());
                }
                HostEffect::Write(frame) => {
                    if matches!(frame, Frame::State { .. }) {
                        self.disk.clear();
                    }
                    self.disk.push(frame);
                }
                HostEffect::Shard(effect) => self.heard.push(effect),
                _ => {}
            }
        }
    }

    fn shard(&mut self, at: u64, event: ShardEvent) {
        self.take(at, HostEvent::Shard(event));
    }

    fn push(&mut self, at: u64, worker: u32, sequence: u64) {
        let push = Push {
            session: SessionId(u64::from(worker)),
            worker: WorkerId(worker),
            incarnation: Incarnation(u64::from(worker)),
            sequence: Sequence(sequence),
            clock: Clock(sequence - 1),
            pulled: Version(0),
            batch: BatchIndex(u64::from(worker)),
            samples: 4,
            reply: 0,
            have: 0,
            gradient: Some(vec![f32::from(worker as u8) + 1.0; 5].into()),
        };
        self.shard(at, ShardEvent::Push(push));
    }

    fn look(&mut self, at: u64, session: u64, request: u64) {
        let (session, kind) = (SessionId(session), PullKind::Snapshot);
        self.shard(at, ShardEvent::Pull { session, reader: None, request, have: 0, kind });
    }

    /// The disk has everything.
    fn write(&mut self, at: u64) {
        let index = self.primary.journal.index();
        self.take(at, HostEvent::Written { index });
    }

    /// What was served to observers: session, request and version.
    fn served(&self) -> Vec<(u64, u64, u64)> {
        let served = |effect: &ShardEffect| match effect {
            ShardEffect::Serve { session, reader: None, request, served, .. } => {
                Some((session.0, *request, served.version.0))
            }
            _ => None,
        };
        self.heard.iter().filter_map(served).collect()
    }

    /// The state that a process which begins anew makes of the disk.
    fn replayed(&self) -> ShardState {
        let mut host = Host::new(self.settings.clone());
        host.handle(Moment(0), self.place(1, Origin::Disk), &mut Vec::new());
        let Frame::State { index, at, state } = &self.disk[0] else { panic!("a state is first") };
        let entries = self.disk[1..].iter().map(|frame| match frame {
            Frame::Entry(entry) => Entry::clone(entry),
            Frame::State { .. } => panic!("one state only"),
        });
        let (index, at, state) = (*index, *at, ShardState::clone(state));
        let loaded = Ok(Kept { index, at, state, entries: entries.collect() });
        host.handle(Moment(0), HostEvent::Loaded { generation: Generation(1), loaded }, &mut Vec::new());
        host.shard().unwrap().state()
    }

    fn states(&self) -> [u64; 3] {
        let of = |host: &Host| host.shard().unwrap().state().hash();
        [of(&self.primary), of(&self.backup), self.replayed().hash()]
    }
}

const GRACE: Duration = Duration::from_millis(10);

// A round whose time was over closed at the primary when somebody looked, and at its copies with the next entry, which was one more push.
#[test]
fn an_observer_s_pull_closes_no_round_that_is_due() {
    let policy = PolicySpec::Quorum { count: Some(2), grace: GRACE, holds: true };
    let mut trio = Trio::new(policy, 3);
    trio.push(1, 0, 1);
    trio.push(2, 1, 1);
    let before = trio.primary.shard().unwrap().state();
    // The alarm at 12 ms is late, and somebody looks.
    trio.look(13, 9, 1);
    assert_eq!(trio.primary.shard().unwrap().state(), before, "a look changes nothing");
    trio.push(14, 2, 1);
    let [primary, backup, replayed] = trio.states();
    assert_eq!((primary, primary), (backup, replayed));
    assert_eq!(trio.primary.shard().unwrap().version(), Version(1), "the round has all three");
    trio.write(15);
    assert_eq!(trio.served(), [(9, 1, 0)]);
}

proptest! {
    #[test]
    fn copies_are_equal_whenever_somebody_looks(
        count in prop::option::of(1..4_u32), grace in 0..12_u64,
        acts in prop::collection::vec((0..5_u32, 0..9_u64), 1..60),
    ) {
        let grace = Duration::from_millis(grace);
        let mut trio = Trio::new(PolicySpec::Quorum { count, grace, holds: true }, 3);
        let (mut now, mut sequences) = (1, [0; 3]);
        for (who, pause) in acts {
            now += pause;
            match sequences.get_mut(who as usize) {
                Some(sequence) => {
                    *sequence += 1;
                    let sequence = *sequence;
                    trio.push(now, who, sequence);
                }
                None if who == 3 => trio.look(now, 9, now),
                // The alarm, late.
                None => trio.take(now, HostEvent::Tick),
            }
            let [primary, backup, replayed] = trio.states();
            prop_assert_eq!((primary, primary), (backup, replayed));
        }
    }
}

#[test]
fn of_what_a_session_pulls_while_copies_lag_the_last_waits() {
    let mut trio = Trio::new(PolicySpec::Asp, 2);
    for request in 0..1000 {
        trio.look(request, 9, request);
        if request % 100 == 0 {
            trio.push(request, 0, request / 100 + 1);
        }
    }
    trio.look(1000, 8, 7);
    let row = trio.primary.row();
    assert_eq!(row.withheld, 1 + 10 + 2, "that it has values, ten answers, and one snapshot a session");
    assert_eq!(row.unconfirmed_since, Some(Moment(0)));
    assert_eq!(trio.served(), []);
    trio.write(1001);
    assert_eq!(trio.served(), [(8, 7, 10), (9, 999, 10)]);
    assert_eq!((trio.primary.row().withheld, trio.primary.row().unconfirmed_since), (0, None));
}

#[test]
fn sessions_without_end_that_pull_while_copies_lag_are_bounded_and_stop_nobody() {
    let most = crate::shard::SNAPSHOTS_MAX as u64;
    let mut trio = Trio::new(PolicySpec::Asp, 2);
    trio.write(0);
    trio.push(1, 0, 1);
    for session in 0..most + 9 {
        trio.look(2 + session, session, session);
    }
    assert_eq!(trio.primary.row().withheld as u64, most + 1);
    assert_eq!(trio.primary.row().unconfirmed_since, Some(Moment(1_000_000)));
    assert!(trio.primary.takes_events());
    trio.write(20_000);
    let served = trio.served();
    assert_eq!((served.len() as u64, served[0].0, served[served.len() - 1].0), (most, 9, most + 8));
}

// A snapshot that is asked for over and over waits since it was first asked for, so that the wait has its name.
#[test]
fn a_snapshot_that_replaces_another_waits_as_long_as_that_one() {
    let mut trio = Trio::new(PolicySpec::Asp, 2);
    trio.write(0);
    // Its effects are the shard's own: nothing of it leaves.
    trio.shard(1, ShardEvent::Finish { worker: WorkerId(1) });
    (2..50).for_each(|at| trio.look(at, 9, at));
    assert_eq!(trio.primary.row().withheld, 1);
    assert_eq!(trio.primary.row().unconfirmed_since, Some(Moment(2_000_000)));
}

// A backup that counts and must be given its state first has no entries: what waits for it is bounded by itself.
#[test]
fn effects_that_wait_for_a_backup_without_entries_fill_the_host_too() {
    let mut trio = Trio::new(PolicySpec::Asp, 2);
    trio.settings.durability = Durability::Replicated;
    let mut host = Host::new(trio.settings.clone());
    let mut take = |event| {
        let mut effects = Vec::new();
        host.handle(Moment(0), event, &mut effects);
        (host.takes_events(), host.row().withheld)
    };
    let mut place = trio.place(0, Origin::Nothing);
    if let HostEvent::Place { place: Some(place), .. } = &mut place {
        place.backup = Some(Backup { server: ServerId(1), in_step: true });
    }
    take(place);
    take(HostEvent::Shard(ShardEvent::Initialize(vec![1.0; 5])));
    let (session, kind) = (SessionId(1), PullKind::Snapshot);
    let reader = Some((WorkerId(0), Incarnation(0)));
    let mut taken = 0_u64;
    while take(HostEvent::Tick).0 {
        taken += 1;
        assert!(taken < 10_000, "it takes things without end");
        take(HostEvent::Shard(ShardEvent::Pull { session, reader, request: taken, have: 0, kind }));
    }
    assert_eq!(take(HostEvent::Tick).1, 4096);
}
