//! Two hosts of one shard, a coordinator, a stream that breaks and servers that die: what was told to anyone is never lost.

mod observers;

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use slackline_core::config::Durability;
use slackline_core::ids::{Generation, Moment, ServerId, ShardId};
use slackline_core::wire::{Backup, Mark, Origin, Place};

use super::*;
use crate::shard::ShardSettings;
use crate::shard::tests::crowd::{Crowd, settings};

/// Whether others hear of an effect.
fn leaves(effect: &ShardEffect) -> bool {
    !matches!(effect, ShardEffect::Recycle(_) | ShardEffect::Notice(_))
}

struct Rig {
    settings: HostSettings,
    hosts: [Host; 2],
    /// The coordinator's word.
    generation: Generation,
    leader: usize,
    backup: Option<bool>,
    /// What moves between the two: of the generation, frames one way and holds the other.
    is_open: bool,
    wants_feed: bool,
    down: VecDeque<(Generation, Frame)>,
    up: VecDeque<(Generation, Index, Option<u64>)>,
    crowd: Crowd,
    now: u64,
    marks: u64,
    /// A value of the backup was altered from outside, and where that was found.
    is_altered: bool,
    differs: Vec<Index>,
}

impl Rig {
    fn new(shard: ShardSettings, durability: Durability, workers: usize) -> Self {
        let keys = shard.keys.len;
        let settings = HostSettings { server: ServerId(0), shard, durability, replicas: 2 };
        let host = |server| Host::new(HostSettings { server: ServerId(server), ..settings.clone() });
        let mut rig = Self {
            hosts: [host(0), host(1)],
            settings: settings.clone(),
            generation: Generation(0),
            leader: 0,
            backup: Some(false),
            is_open: false,
            wants_feed: false,
            down: VecDeque::new(),
            up: VecDeque::new(),
            crowd: Crowd::new(workers, keys),
            now: 0,
            marks: 0,
            is_altered: false,
            differs: Vec::new(),
        };
        rig.place(Origin::Nothing);
        let beginning = rig.crowd.beginning();
        beginning.into_iter().for_each(|event| rig.lead(HostEvent::Shard(event)));
        rig
    }

    /// Tells both hosts how things are to be.
    fn place(&mut self, origin: Origin) {
        let server = ServerId(1 - self.leader as u32);
        let backup = self.backup.map(|in_step| Backup { server, in_step });
        let place = Some(Place {
            shard: self.settings.shard.id,
            generation: self.generation,
            primary: ServerId(self.leader as u32),
            backup,
            origin,
        });
        for host in [self.leader, 1 - self.leader] {
            let members = Vec::new();
            self.event(host, HostEvent::Place { place, members, started: self.generation > Generation(0) });
        }
    }

    fn lead(&mut self, event: HostEvent) {
        self.event(self.leader, event);
    }

    fn event(&mut self, index: usize, event: HostEvent) {
        self.now += 50_000_000;
        let mut effects = Vec::new();
        self.hosts[index].handle(Moment(self.now), event, &mut effects);
        for effect in effects {
            self.perform(index, effect);
        }
        if let Some(shard) = self.hosts[index].shard() {
            shard.check_invariants();
        }
    }

    fn perform(&mut self, index: usize, effect: HostEffect) {
        match effect {
            HostEffect::Shard(effect) => {
                if leaves(&effect) {
                    assert_eq!(index, self.leader, "only the primary speaks");
                }
                self.crowd.hear(&effect);
            }
            HostEffect::OpenFeed { .. } => (self.wants_feed, self.is_open) = (true, false),
            HostEffect::CloseFeed => {
                (self.wants_feed, self.is_open) = (false, false);
                self.down.clear();
                self.up.clear();
            }
            HostEffect::Feed(frame) => {
                assert!(self.is_open, "sent over a stream that is not open");
                self.down.push_back((self.generation, frame));
            }
            HostEffect::Hold { generation, index, hash } => self.up.push_back((generation, index, hash)),
            HostEffect::InStep { generation, .. } => {
                assert_eq!(generation, self.generation);
                self.backup = Some(true);
                self.place(Origin::Memory);
            }
            HostEffect::Differs { shard, index } => {
                assert!(self.is_altered, "the copies differ at {index:?}");
                assert_eq!(shard, self.settings.shard.id);
                self.differs.push(index);
            }
            HostEffect::NotRestored { why, .. } => panic!("{why}"),
            HostEffect::Leads { .. } | HostEffect::Restored { .. } => {}
            HostEffect::Write(_) | HostEffect::Load { .. } => unreachable!("nothing is on disks here"),
        }
    }

    fn break_feed(&mut self) {
        self.down.clear();
        self.up.clear();
        if std::mem::take(&mut self.is_open) {
            let backup = ServerId(1 - self.leader as u32);
            self.lead(HostEvent::FeedLost { backup });
        }
    }

    fn move_feed(&mut self, frames: usize) {
        if self.wants_feed && !self.is_open && self.backup.is_some() {
            self.is_open = true;
            self.lead(HostEvent::FeedOpen { backup: ServerId(1 - self.leader as u32) });
        }
        for _ in 0..frames {
            if let Some((generation, frame)) = self.down.pop_front() {
                self.event(1 - self.leader, HostEvent::Frame { generation, frame });
            }
            if let Some((generation, index, hash)) = self.up.pop_front() {
                let backup = ServerId(1 - self.leader as u32);
                self.lead(HostEvent::Held { backup, generation, index, hash });
            }
        }
    }

    fn fresh(&self, index: usize) -> Host {
        Host::new(HostSettings { server: ServerId(index as u32), ..self.settings.clone() })
    }

    /// The primary freezes, and its backup takes over if it counts.
    fn promote(&mut self) {
        if self.backup != Some(true) {
            return;
        }
        self.down.clear();
        self.up.clear();
        (self.is_open, self.wants_feed) = (false, false);
        let before = self.hosts[1 - self.leader].shard().unwrap().state();
        let fresh = self.fresh(self.leader);
        let mut frozen = std::mem::replace(&mut self.hosts[self.leader], fresh);
        self.leader = 1 - self.leader;
        self.generation = self.generation.next();
        self.backup = None;
        self.place(Origin::Memory);
        assert!(self.hosts[self.leader].shard().unwrap().version() >= before.version);
        // The former one thaws and does not know yet.
        let mut effects = Vec::new();
        for event in self.crowd.clone().move_over() {
            frozen.handle(Moment(self.now), HostEvent::Shard(event), &mut effects);
        }
        let spoken =
            effects.iter().any(|effect| matches!(effect, HostEffect::Shard(effect) if leaves(effect)));
        assert!(!spoken || self.settings.durability == Durability::Memory, "a fenced primary speaks");
        let again = self.crowd.move_over();
        again.into_iter().for_each(|event| self.lead(HostEvent::Shard(event)));
    }

    /// The backup dies: the primary goes on without it, by the coordinator's word.
    fn lose_backup(&mut self) {
        if self.backup.is_none() {
            return;
        }
        self.break_feed();
        self.hosts[1 - self.leader] = self.fresh(1 - self.leader);
        self.generation = self.generation.next();
        self.backup = None;
        self.place(Origin::Memory);
        assert_eq!(self.hosts[self.leader].row().unconfirmed_since, None);
    }

    fn act(&mut self, index: usize, action: u8) {
        match action {
            40..=55 => self.move_feed(index + 1),
            56..=57 => self.break_feed(),
            58 => self.promote(),
            59 => self.lose_backup(),
            60..=61 if self.backup.is_none() => {
                self.backup = Some(false);
                self.place(Origin::Memory);
            }
            62 => {
                self.marks += 1;
                let mark = Mark { number: self.marks, ..Mark::default() };
                self.lead(HostEvent::Shard(ShardEvent::Mark(mark)));
            }
            63 => self.lead(HostEvent::Tick),
            _ if self.hosts[self.leader].takes_events() => {
                for event in self.crowd.next(index, action) {
                    self.lead(HostEvent::Shard(event));
                }
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_was_answered_survives_the_primary_and_the_copies_are_equal(settings in settings(), workers in 1..5_usize, acts in prop::collection::vec((0..5_usize, 0..64_u8), 0..400)) {
        let mut rig = Rig::new(settings, Durability::Replicated, workers);
        for (index, action) in acts {
            // The crowd asserts that a retry gets the first answer, whoever gives it.
            rig.act(index, action);
        }
        if rig.backup.is_none() {
            rig.backup = Some(false);
            rig.place(Origin::Memory);
        }
        for _ in 0..200 {
            rig.move_feed(10);
        }
        let [first, second] = [0, 1].map(|index: usize| rig.hosts[index].shard().unwrap().state());
        prop_assert_eq!(first.hash(), second.hash());
        prop_assert_eq!(rig.backup, Some(true));
        let row = rig.hosts[rig.leader].row();
        prop_assert_eq!((row.unconfirmed_since, row.role), (None, Role::Leading));
        prop_assert_eq!(rig.hosts[rig.leader].journal.entry_count(), 0);
    }
}

#[test]
fn one_altered_value_of_a_copy_is_found_within_one_round_of_slices_and_mended() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let shard = settings().new_tree(&mut runner).unwrap().current();
    for key in [0, shard.keys.len as usize - 1] {
        let mut rig = Rig::new(shard.clone(), Durability::Replicated, 2);
        (0..20).for_each(|_| rig.move_feed(10));
        assert_eq!(rig.backup, Some(true));
        let mut state = rig.hosts[1].shard().unwrap().state();
        Arc::make_mut(&mut state.arrays[0].values)[key] += 1000.0;
        rig.hosts[1].shard = Some(crate::shard::Shard::restore(shard.clone(), state).unwrap());
        rig.is_altered = true;
        let before = rig.hosts[0].journal.index().0;
        let round = host::COMPARED_EVERY * crate::shard::SLICE_COUNT;
        let mut step = 0;
        while rig.differs.is_empty() && rig.hosts[0].journal.index().0 <= before + round + 100 {
            step += 1;
            rig.act(step % 2, if step % 7 == 0 { 63 } else { 10 });
            rig.move_feed(10);
            assert!(step < 100_000, "nothing happens any more");
        }
        (0..20).for_each(|_| rig.move_feed(10));
        assert_eq!(rig.differs.len(), 1, "{key}");
        assert!(rig.differs[0].0 <= before + round, "{key}: found at {:?}", rig.differs[0]);
        let [first, second] = [0, 1].map(|index: usize| rig.hosts[index].shard().unwrap().state());
        assert_eq!(first, second, "the state was given anew");
    }
}

/// A host with its disk: what was written, and what of that is safe.
struct Desk {
    host: Host,
    disk: Vec<Frame>,
    written: Index,
    crowd: Crowd,
    now: u64,
}

impl Desk {
    fn event(&mut self, event: HostEvent) -> Vec<HostEffect> {
        self.now += 1000;
        let mut effects = Vec::new();
        self.host.handle(Moment(self.now), event, &mut effects);
        for effect in &effects {
            match effect {
                HostEffect::Write(frame) => {
                    if matches!(frame, Frame::State { .. }) {
                        self.disk.clear();
                    }
                    self.disk.push(frame.clone());
                }
                HostEffect::Shard(effect) => self.crowd.hear(effect),
                _ => {}
            }
        }
        effects
    }

    fn last(&self) -> Index {
        match self.disk.last().unwrap() {
            Frame::State { index, .. } => *index,
            Frame::Entry(entry) => entry.index,
        }
    }
}

fn place(generation: u64, origin: Origin) -> HostEvent {
    let place = Place {
        shard: ShardId(3),
        generation: Generation(generation),
        primary: ServerId(0),
        backup: None,
        origin,
    };
    HostEvent::Place { place: Some(place), members: Vec::new(), started: generation > 0 }
}

proptest! {
    #[test]
    fn what_was_answered_is_on_the_disk_and_comes_back_from_it(settings in settings(), workers in 1..4_usize, acts in prop::collection::vec((0..4_usize, 0..30_u8), 0..200)) {
        let settings = HostSettings { server: ServerId(0), shard: settings, durability: Durability::Disk, replicas: 1 };
        let crowd = Crowd::new(workers, 5);
        let mut desk = Desk { host: Host::new(settings.clone()), disk: Vec::new(), written: Index(0), crowd, now: 0 };
        desk.event(place(0, Origin::Nothing));
        for event in desk.crowd.beginning() {
            desk.event(HostEvent::Shard(event));
        }
        let mut generation = 0;
        for (index, action) in acts {
            match action {
                24..=28 => {
                    desk.written = desk.last();
                    desk.event(HostEvent::Written { index: desk.written });
                }
                29 => {
                    // The process dies and comes back with what it wrote.
                    generation += 1;
                    desk.host = Host::new(settings.clone());
                    let asked = desk.event(place(generation, Origin::Disk));
                    let is_asked = matches!(asked[..], [HostEffect::Load { .. }]);
                    prop_assert!(is_asked);
                    prop_assert!(!desk.host.takes_events());
                    let mut frames = std::mem::take(&mut desk.disk).into_iter();
                    let Some(Frame::State { index, at, state }) = frames.next() else { panic!("a state is first") };
                    let entries = frames.map(|frame| match frame {
                        Frame::Entry(entry) => Arc::unwrap_or_clone(entry),
                        Frame::State { .. } => panic!("one state only"),
                    });
                    // What was not safe yet is torn off.
                    let entries = entries.take_while(|entry| entry.index <= desk.written);
                    let (state, entries) = (Arc::unwrap_or_clone(state), entries.collect());
                    let loaded = Ok(Kept { index, at, state, entries });
                    desk.event(HostEvent::Loaded { generation: Generation(generation), loaded });
                    prop_assert_eq!(desk.host.role(), Role::Leading);
                    for event in desk.crowd.move_over() {
                        desk.event(HostEvent::Shard(event));
                    }
                }
                _ => {
                    let before = desk.crowd.answers.len();
                    for event in desk.crowd.next(index, action) {
                        desk.event(HostEvent::Shard(event));
                    }
                    prop_assert_eq!(desk.crowd.answers.len(), before, "an answer leaves only once it is written");
                }
            }
        }
    }
}

#[test]
fn a_host_without_copies_keeps_no_entries_and_speaks_at_once() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let shard = settings().new_tree(&mut runner).unwrap().current();
    let settings = HostSettings { server: ServerId(0), shard, durability: Durability::Memory, replicas: 1 };
    let mut desk = Desk {
        host: Host::new(settings),
        disk: Vec::new(),
        written: Index(0),
        crowd: Crowd::new(1, 5),
        now: 0,
    };
    desk.event(place(0, Origin::Nothing));
    let beginning = desk.crowd.beginning();
    let has_values = |effect: &HostEffect| matches!(effect, HostEffect::Shard(ShardEffect::HasValues));
    let said: Vec<_> = beginning.into_iter().flat_map(|event| desk.event(HostEvent::Shard(event))).collect();
    assert!(said.iter().any(has_values));
    assert_eq!(desk.host.journal.entry_count(), 0);
    assert_eq!(desk.host.row().unconfirmed_since, None);
}

// Found by the simulated world (seed 13924): a run began while what a shard began with was not on its disk, the server died, and the run ended
// since the shard had no state, though nothing of it had been acknowledged.
#[test]
fn a_shard_that_begins_leads_for_the_coordinator_when_its_disk_has_what_it_begins_with() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let shard = settings().new_tree(&mut runner).unwrap().current();
    let settings = HostSettings { server: ServerId(0), shard, durability: Durability::Disk, replicas: 1 };
    let mut desk = Desk {
        host: Host::new(settings),
        disk: Vec::new(),
        written: Index(0),
        crowd: Crowd::new(1, 5),
        now: 0,
    };
    let mut leads = |event| {
        let effects = desk.event(event);
        effects.iter().filter(|effect| matches!(effect, HostEffect::Leads { .. })).count()
    };
    assert_eq!(leads(place(0, Origin::Nothing)), 0);
    assert_eq!(leads(HostEvent::Written { index: Index(1) }), 1);
    assert_eq!(leads(HostEvent::Written { index: Index(1) }), 0);
}

#[test]
fn a_state_that_is_not_there_is_said_once_and_an_older_place_is_old_news() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let shard = settings().new_tree(&mut runner).unwrap().current();
    let settings = HostSettings { server: ServerId(0), shard, durability: Durability::Memory, replicas: 1 };
    let mut desk = Desk {
        host: Host::new(settings),
        disk: Vec::new(),
        written: Index(0),
        crowd: Crowd::new(1, 5),
        now: 0,
    };
    assert!(matches!(desk.event(place(4, Origin::Memory))[..], [HostEffect::NotRestored { .. }]));
    assert!(desk.event(place(4, Origin::Memory)).is_empty());
    assert!(desk.event(place(3, Origin::Nothing)).is_empty());
    assert!(matches!(desk.event(place(5, Origin::Disk))[..], [HostEffect::Load { .. }]));
    let loaded = Err("the disk is empty".to_owned());
    let effects = desk.event(HostEvent::Loaded { generation: Generation(5), loaded });
    assert!(matches!(&effects[..], [HostEffect::NotRestored { why, .. }] if why == "the disk is empty"));
    assert_eq!(desk.host.role(), Role::Idle);
}

#[test]
fn a_primary_that_did_not_hear_that_it_was_replaced_is_given_its_disk_s_state_anew() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let shard = settings().new_tree(&mut runner).unwrap().current();
    let settings = HostSettings { server: ServerId(0), shard, durability: Durability::Disk, replicas: 1 };
    let crowd = Crowd::new(1, 5);
    let mut desk = Desk { host: Host::new(settings), disk: Vec::new(), written: Index(0), crowd, now: 0 };
    desk.event(place(0, Origin::Nothing));
    assert!(desk.event(place(1, Origin::Memory)).is_empty(), "it goes on");
    assert_eq!(desk.host.role(), Role::Leading);
    let asked = desk.event(place(3, Origin::Disk));
    assert!(matches!(asked[..], [HostEffect::Load { .. }]), "{asked:?}");
    assert!(desk.event(place(3, Origin::Disk)).is_empty());
    let Some(Frame::State { index, at, state }) = desk.disk.first().cloned() else {
        panic!("it wrote its state")
    };
    let loaded = Ok(Kept { index, at, state: Arc::unwrap_or_clone(state), entries: Vec::new() });
    let effects = desk.event(HostEvent::Loaded { generation: Generation(3), loaded });
    let is_restored =
        |effect: &HostEffect| matches!(effect, HostEffect::Restored { generation: Generation(3), .. });
    assert!(effects.iter().any(is_restored), "{effects:?}");
}
