//! Checkpoints, the last one before the end, and a coordinator that is restarted.

use super::*;
use proptest::prelude::*;
use slackline_core::wire::{Here, Mark, ServerWord};

pub(super) fn with_checkpoints(every: u64) -> ControlSettings {
    let mut settings = settings(1);
    if let Some(coordinator) = &mut settings.coordinator {
        coordinator.checkpoint_every = Some(every);
    }
    settings
}

pub(super) fn marks(effects: &[ControlEffect]) -> Vec<Mark> {
    let mark = |effect: &ControlEffect| match effect {
        ControlEffect::Shards(ShardEvent::Mark(mark)) => Some(mark.clone()),
        _ => None,
    };
    effects.iter().filter_map(mark).collect()
}

pub(super) fn commits(effects: &[ControlEffect]) -> Vec<Commit> {
    let commit = |effect: &ControlEffect| match effect {
        ControlEffect::Commit(commit) => Some((**commit).clone()),
        _ => None,
    };
    effects.iter().filter_map(commit).collect()
}

pub(super) fn saved(number: u64) -> ControlEvent {
    ControlEvent::Saved { number, shard: ShardId(0), entry: b"{}".to_vec() }
}

#[test]
fn a_checkpoint_is_written_when_all_parts_are_saved_and_all_batches_before_the_cut_are_reported() {
    let mut desk = Desk::new(with_checkpoints(1));
    desk.enlist(0);
    desk.say(0, ask(0, None));
    assert_eq!(marks(&desk.say(0, ask(1, None))), [], "no iteration is complete");
    let marked = marks(&desk.say(0, ask(2, Some(0))));
    let Mark { number, cuts, .. } = marked[0].clone();
    // Work was given for clocks 0 to 2; the margin is two.
    assert_eq!((number, cuts), (1, vec![(WorkerId(0), Clock(5))]));
    assert_eq!(commits(&desk.event(saved(1))), [], "batches before the cut are not reported");
    desk.say(0, ask(3, Some(1)));
    desk.say(0, ask(4, Some(2)));
    let effects = [desk.say(0, ask(5, Some(3))), desk.say(0, ask(6, Some(4)))].concat();
    let commit = commits(&effects)[0].clone();
    assert_eq!((commit.number, commit.parts), (1, vec![(ShardId(0), b"{}".to_vec())]));
    assert_eq!((commit.position.clock, commit.position.next), (Clock(5), 5));
    assert!(commit.position.todo.is_empty());
}

#[test]
fn a_cut_that_a_shard_had_passed_is_made_again_further_up() {
    let mut desk = Desk::new(with_checkpoints(1));
    desk.enlist(0);
    (0..2).for_each(|clock| drop(desk.say(0, ask(clock, None))));
    let first = marks(&desk.say(0, ask(2, Some(0))))[0].clone();
    desk.event(ControlEvent::CutMissed { number: first.number, shard: ShardId(0) });
    let second = marks(&desk.after(5.0))[0].clone();
    assert_eq!(second.number, 2);
    assert_eq!(second.cuts[0].1.0, first.cuts[0].1.0 + 2, "twice the margin");
}

// PaddlePaddle/Paddle#44395 (case 10): servers stop when all workers have said goodbye and the final checkpoint is on disk.
#[test]
fn a_run_with_checkpoints_ends_when_its_final_values_are_saved() {
    let mut desk = Desk::new(with_checkpoints(1_000));
    desk.enlist(0);
    desk.say(0, ask(0, None));
    for batch in 0..5 {
        desk.say(0, ask(batch + 1, Some(batch)));
    }
    let evaluated = Evaluated { at_samples: 45, loss: 0.1, accuracy: 0.9, report: None };
    desk.say(0, ToServer::Evaluated(evaluated));
    let effects = desk.say(0, ToServer::Leave(Leave { outcome: Outcome::Done, report: None }));
    assert_eq!(marks(&effects), [Mark { number: 1, cuts: Vec::new(), rest: Some(Clock(u64::MAX)) }]);
    assert_eq!(desk.control.ended(), None);
    let commit = commits(&desk.event(saved(1)))[0].clone();
    assert_eq!((commit.position.next, commit.position.evaluations.len()), (5, 1));
    assert_eq!(desk.control.ended(), None);
    let effects = desk.event(ControlEvent::Committed { number: 1 });
    assert!(effects.contains(&ControlEffect::End(End::Complete)));
}

/// A run that goes on from a checkpoint in the middle of its data.
fn resumed() -> ControlSettings {
    let mut settings = settings(1);
    if let Some(coordinator) = &mut settings.coordinator {
        coordinator.resume = Some(crate::assign::Position {
            number: 3,
            clock: Clock(7),
            epoch_samples: 45,
            sample_total: 45,
            next: 3,
            todo: vec![(1, 1)],
            batches_done: 2,
            samples_done: 20,
            incarnation: Incarnation(9),
            ..crate::assign::Position::default()
        });
    }
    settings
}

// Found by reading: another candidate that led a resumed run began its data anew.
#[test]
fn whoever_goes_on_with_a_resumed_run_knows_where_it_began_without_being_told() {
    let mut whole = Control::new(resumed(), Moment(0));
    let state = whole.state().unwrap();
    let mut copy = Control::take_up_image(settings(1), &state).unwrap();
    for step in [(0, 0, 0), (0, 1, 0), (0, 3, 0)] {
        whole.handle(Moment(1), event_of(step), &mut Vec::new());
        copy.take(Moment(1), event_of(step), &mut Vec::new());
    }
    assert!(whole.record().is_some());
    assert_eq!(copy.state().unwrap(), whole.state().unwrap());
}

#[test]
fn a_resumed_run_enters_at_the_marker_clock_and_fences_the_incarnations_of_before() {
    let mut desk = Desk::new(resumed());
    desk.event(ControlEvent::Restored {
        shard: ShardId(0),
        generation: Generation(0),
        version: slackline_core::ids::Version(1),
        clock: Clock(7),
    });
    let (worker, incarnation, clock) = desk.join(0, None);
    assert_eq!((incarnation, clock), (Incarnation(10), Clock(7)));
    desk.register(0, worker, incarnation);
    let given: Vec<u64> = (7..10)
        .flat_map(|clock| works(&desk.say(0, ask(clock, None))))
        .filter_map(|(_, work)| if let Work::Batch { batch, .. } = work { Some(batch.0) } else { None })
        .collect();
    assert_eq!(given, [1, 3], "what is not in the checkpoint, in order; and two ahead at most");
}

#[test]
fn a_server_that_cannot_be_one_of_the_run_is_refused() {
    let mut desk = Desk::new(ControlSettings { servers: 2, ..settings(1) });
    let here = |server, layout_hash, holds| {
        let here = Here { server: ServerId(server), boot: 1, layout_hash, config_hash: 2, holds };
        ToServer::Cluster(ServerWord::Here(here))
    };
    let holding = Holding { shard: ShardId(0), generation: Generation(4), is_whole: true, on_disk: false };
    let table = [
        (Role::Server, here(0, 1, Vec::new()), RefusalCode::Mismatch),
        (Role::Server, here(2, 1, Vec::new()), RefusalCode::Mismatch),
        (Role::Server, here(1, 9, Vec::new()), RefusalCode::Mismatch),
        (Role::Server, here(1, 1, vec![holding]), RefusalCode::Mismatch),
        // A coordinator that has lost its memory would have the journals written over.
        (Role::Server, here(1, 1, vec![Holding { on_disk: true, ..holding }]), RefusalCode::Mismatch),
        (Role::Worker, here(1, 1, Vec::new()), RefusalCode::Role),
    ];
    for (session, (role, message, code)) in (1..).zip(table) {
        desk.open(session, role);
        assert_eq!(refusals(&desk.say(session, message))[0].0, code);
    }
    desk.open(9, Role::Server);
    assert_eq!(refusals(&desk.say(9, here(1, 1, Vec::new()))), []);
}

// Found by the simulated world (seed 15088, with servers that die just after they took over): a worker repeated its ask while a server was
// away that had no values yet, the run began, and ended by name when the server was back: its shard had no state.
#[test]
fn a_run_does_not_begin_while_a_server_that_has_shards_is_away() {
    let shards = (0..2).map(|server| (ShardId(server), ServerId(server))).collect();
    let mut desk = Desk::new(ControlSettings { servers: 2, shards, ..settings(1) });
    let told = |effects: &[ControlEffect]| {
        effects.iter().find_map(|effect| match effect {
            ControlEffect::Send { message: ToPeer::Cluster(ServerOrder::Places { number, .. }), .. } => {
                Some(ToServer::Cluster(ServerWord::Took { number: *number }))
            }
            _ => None,
        })
    };
    let here = |boot| {
        let (server, layout_hash, config_hash, holds) = (ServerId(1), 1, 2, Vec::new());
        ToServer::Cluster(ServerWord::Here(Here { server, boot, layout_hash, config_hash, holds }))
    };
    desk.open(8, Role::Server);
    let took = told(&desk.say(8, here(1))).unwrap();
    desk.say(8, took);
    desk.enlist(0);
    desk.event(ControlEvent::Closed { session: SessionId(8) });
    assert_eq!(works(&desk.say(0, ask(0, None))), []);
    assert!(!desk.control.is_started());
    // It is another process, and begins like the first.
    desk.open(9, Role::Server);
    let took = told(&desk.say(9, here(2))).unwrap();
    assert!(!desk.control.is_started(), "it would be told to go on with what it never had");
    let effects = desk.say(9, took);
    assert!(desk.control.is_started() && works(&effects).len() == 1, "{effects:?}");
    assert!(!effects.iter().any(|effect| matches!(effect, ControlEffect::End(_))));
}

#[test]
fn a_server_takes_no_worker_before_it_has_its_shards() {
    let mut control =
        Control::new(ControlSettings { server: ServerId(1), coordinator: None, ..settings(1) }, Moment(0));
    let mut effects = Vec::new();
    let (session, address) = (SessionId(0), "a:1".to_owned());
    control.handle(Moment(0), ControlEvent::Opened { session, role: Role::Worker, address }, &mut effects);
    let register = Register {
        worker: WorkerId(0),
        incarnation: Incarnation(1),
        layout_hash: 1,
        config_hash: 2,
        clock: Clock(0),
        batch_count: 5,
        answered: Sequence(0),
    };
    let message = ToServer::Register(register);
    control.handle(Moment(0), ControlEvent::Message { session, message }, &mut effects);
    assert_eq!(refusals(&effects)[0].0, RefusalCode::NotReady);
    assert!(RefusalCode::NotReady.is_retryable());
}

// Found by the simulated world (seed 13924), as is told at the host's test of it.
#[test]
fn a_server_has_taken_an_order_in_when_the_shards_that_begin_there_are_led() {
    let other = ControlSettings { server: ServerId(1), coordinator: None, ..settings(1) };
    let mut control = Control::new(other, Moment(0));
    let mut said = |event| {
        let mut effects = Vec::new();
        control.handle(Moment(0), event, &mut effects);
        let took = |effect: &ControlEffect| match effect {
            ControlEffect::Coordinator(ServerWord::Took { number }) => Some(*number),
            _ => None,
        };
        effects.iter().filter_map(took).collect::<Vec<u64>>()
    };
    let (shard, generation, primary) = (ShardId(0), Generation(1), ServerId(1));
    let place = Place { shard, generation, primary, backup: None, origin: Origin::Nothing };
    let order = |number| {
        ControlEvent::Ordered(ServerOrder::Places { number, run: 0, from: None, places: vec![place] })
    };
    said(ControlEvent::CoordinatorOpened);
    assert_eq!(said(order(4)), []);
    let leads = ControlEvent::Leads { shard, generation, has_values: false, members: Vec::new() };
    assert_eq!(said(leads), [4]);
    assert_eq!(said(order(5)), [5]);
}

#[test]
fn a_restarted_coordinator_goes_on_with_its_members_and_repeats_the_work_that_was_lost() {
    let mut desk = Desk::new(settings(1));
    let (worker, incarnation) = desk.enlist(0);
    let given = works(&desk.say(0, ask(0, None)));
    let state = desk.control.state().unwrap();
    let disk = vec![Holding { shard: ShardId(0), generation: Generation(0), is_whole: true, on_disk: true }];
    let again = ControlSettings { boot: 99, disk, ..settings(1) };
    // It was away for longer than any lease.
    let mut effects = Vec::new();
    let control = Control::restore(again, &state, Vec::new(), Moment(5), &mut effects).unwrap();
    desk = Desk { control, now: Moment(5) };
    let place = effects.iter().find_map(|effect| match effect {
        ControlEffect::Place { place: Some(place), .. } => Some(*place),
        _ => None,
    });
    let Place { shard, generation, origin, .. } = place.unwrap();
    assert_eq!(origin, Origin::Disk);
    desk.event(ControlEvent::Leads { shard, generation, has_values: true, members: Vec::new() });
    desk.open(7, Role::Worker);
    let effects = desk.register(7, worker, incarnation);
    assert_eq!(refusals(&effects), []);
    assert!(effects.iter().any(|effect| matches!(effect, ControlEffect::Shards(ShardEvent::Enter { .. }))));
    assert!(effects.contains(&ControlEffect::Shards(ShardEvent::Start)), "all members are here");
    assert_eq!(works(&desk.say(7, ask(0, None))), [(7, given[0].1)]);
}

#[test]
fn a_run_that_failed_or_was_stopped_goes_on_when_it_is_started_again() {
    let mut desk = Desk::new(settings(1));
    let (worker, incarnation) = desk.enlist(0);
    desk.event(ControlEvent::Leave { reason: "terminated".to_owned() });
    assert!(matches!(desk.control.ended(), Some(End::Stopped(_))));
    let state = desk.control.state().unwrap();
    let mut effects = Vec::new();
    let control = Control::restore(settings(1), &state, Vec::new(), Moment(5), &mut effects).unwrap();
    assert!(!effects.iter().any(|effect| matches!(effect, ControlEffect::End(_))));
    desk = Desk { control, now: Moment(5) };
    desk.event(ControlEvent::Leads {
        shard: ShardId(0),
        generation: Generation(0),
        has_values: true,
        members: Vec::new(),
    });
    desk.open(7, Role::Worker);
    assert_eq!(refusals(&desk.register(7, worker, incarnation)), []);
}

#[test]
fn a_state_of_another_run_or_form_is_refused() {
    let desk = Desk::new(settings(1));
    let state = desk.control.state().unwrap();
    let restore = |settings: ControlSettings, bytes: &[u8]| {
        Control::restore(settings, bytes, Vec::new(), Moment(0), &mut Vec::new()).map(|_| ()).unwrap_err()
    };
    assert_eq!(restore(ControlSettings { config_hash: 5, ..settings(1) }, &state), StateError::OtherRun);
    let mut other = state.clone();
    other[0] = 9;
    assert_eq!(restore(settings(1), &other), StateError::Form { found: 9 });
    for end in 0..state.len() {
        assert!(matches!(restore(settings(1), &state[..end]), StateError::Unreadable(_)), "cut to {end}");
    }
}

/// A session of a worker that joins, registers, asks, is cut off or leaves, one of an observer that comes, looks and goes, and time that
/// passes.
fn script() -> impl Strategy<Value = Vec<(u64, u8, u64)>> {
    prop::collection::vec((0..3_u64, 0..15_u8, 0..4_u64), 0..80)
}

fn opened(session: u64, role: Role) -> ControlEvent {
    ControlEvent::Opened { session: SessionId(session), role, address: "a:1".to_owned() }
}

fn event_of((session, action, number): (u64, u8, u64)) -> ControlEvent {
    let id = SessionId(session);
    let say = |message| ControlEvent::Message { session: id, message };
    let worker = WorkerId(session as u32);
    match action {
        0 => opened(session, Role::Worker),
        1 => say(ToServer::Join(Join {
            layout_hash: 1,
            config_hash: 2,
            data_hash: 4,
            sample_count: 45,
            former: None,
            peers_at: None,
        })),
        2 => say(ToServer::Register(Register {
            worker,
            incarnation: Incarnation(number + 1),
            layout_hash: 1,
            config_hash: 2,
            clock: Clock(0),
            batch_count: 5,
            answered: Sequence(0),
        })),
        3 => say(ask(number, number.checked_sub(1))),
        4 => ControlEvent::Closed { session: id },
        5 => say(ToServer::Leave(Leave { outcome: Outcome::Interrupted, report: None })),
        6 => saved(number),
        7 => ControlEvent::Leads {
            shard: ShardId(0),
            generation: Generation(0),
            has_values: true,
            members: Vec::new(),
        },
        8 | 9 => say(ToServer::Commit { sequence: Sequence(number) }),
        10 => say(ToServer::Renew),
        11 => opened(session + 3, Role::Observer),
        12 => ControlEvent::Closed { session: SessionId(session + 3) },
        13 => ControlEvent::Message { session: SessionId(session + 3), message: ToServer::Status },
        _ => ControlEvent::Tick,
    }
}

// Found by reading: an observer that came or went was written to the coordinator's memory, and what was due happened then instead of at the
// next tick. Case 14 of the allreduce list: whoever only looked on was counted.
#[test]
fn an_observer_that_comes_and_goes_is_not_kept_and_makes_nothing_happen_that_is_due() {
    let mut desk = Desk::new(ControlSettings { min_workers: Some(1), ..settings(2) });
    desk.enlist(0);
    desk.say(0, ask(0, None));
    // The run gathers for a lease, and the worker stays.
    desk.now = desk.now.after(LEASE / 2);
    desk.say(0, ToServer::Renew);
    desk.now = desk.now.after(LEASE / 2);
    let state = desk.control.state().unwrap();
    let pull = Pull { shard: ShardId(0), request: 1, have: 0, kind: PullKind::Snapshot };
    let say = |message| ControlEvent::Message { session: SessionId(5), message };
    let (opened, closed) = (opened(5, Role::Observer), ControlEvent::Closed { session: SessionId(5) });
    for event in [opened, say(ToServer::Status), say(ToServer::Pull(pull)), closed] {
        assert!(!desk.control.is_kept(desk.now, &event), "{event:?}");
        desk.event(event);
        assert!(!desk.control.is_started());
        assert_eq!(desk.control.state().unwrap(), state);
    }
    desk.event(ControlEvent::Tick);
    assert!(desk.control.is_started());
}

proptest! {
    // The coordinator can be lost: what it decides after a restart is what it would have decided.
    #[test]
    fn a_state_and_the_events_after_it_make_the_same_decisions(script in script(), cut in 0..80_usize) {
        let mut whole = Control::new(with_checkpoints(1), Moment(0));
        let mut kept = None;
        let mut journal = Vec::new();
        for (index, step) in script.iter().enumerate() {
            if index == cut {
                kept = Some(whole.state().unwrap());
            }
            let (at, event) = (Moment(1_500_000_000 * index as u64), event_of(*step));
            if kept.is_some() && whole.is_kept(at, &event) {
                // As a shell keeps them.
                let bytes = slackline_core::wire::encode_state(&event).unwrap();
                journal.push((whole.moment(at), slackline_core::wire::decode_state(&bytes).unwrap()));
            }
            whole.handle(at, event, &mut Vec::new());
        }
        let Some(kept) = kept else { return Ok(()) };
        let last = Moment(1_500_000_000 * script.len() as u64);
        journal.push((whole.moment(last), ControlEvent::Tick));
        whole.handle(last, ControlEvent::Tick, &mut Vec::new());
        let mut copy = Control::take_up_image(with_checkpoints(1), &kept).unwrap();
        for (at, event) in journal {
            copy.take(at, event, &mut Vec::new());
        }
        copy.check_invariants();
        // Those who were refused are counted for people.
        copy.refused = whole.refused;
        prop_assert_eq!(copy.state().unwrap(), whole.state().unwrap());
    }
}

// With its memory in etcd the coordinator is none of the servers with shards.
#[test]
fn a_coordinator_without_shards_takes_in_workers_and_every_server() {
    let at = ServerId(1);
    let mut control =
        Control::new(ControlSettings { server: at, coordinator_at: at, ..settings(1) }, Moment(0));
    let mut effects = Vec::new();
    for (session, role) in [(0, Role::Server), (1, Role::Worker)] {
        let opened = ControlEvent::Opened { session: SessionId(session), role, address: "a:1".to_owned() };
        control.handle(Moment(0), opened, &mut effects);
    }
    let welcome = |effect: &ControlEffect| matches!(effect, ControlEffect::Send { message: ToPeer::Welcome { server, .. }, .. } if *server == at);
    assert_eq!(effects.iter().filter(|effect| welcome(effect)).count(), 2);
    let here = Here { server: ServerId(0), boot: 1, layout_hash: 1, config_hash: 2, holds: Vec::new() };
    let own = Here { server: at, ..here.clone() };
    let mut say = |session: u64, message: ToServer| {
        let (mut effects, session) = (Vec::new(), SessionId(session));
        control.handle(Moment(0), ControlEvent::Message { session, message }, &mut effects);
        control.check_invariants();
        effects
    };
    // Server 0 is a server like any other, and nobody but this process is the coordinator.
    assert_eq!(refusals(&say(0, ToServer::Cluster(ServerWord::Here(own))))[0].0, RefusalCode::Mismatch);
    assert_eq!(refusals(&say(0, ToServer::Cluster(ServerWord::Here(here)))), []);
    let join =
        Join { layout_hash: 1, config_hash: 2, data_hash: 4, sample_count: 45, former: None, peers_at: None };
    assert!(
        say(1, ToServer::Join(join))
            .iter()
            .any(|effect| matches!(effect, ControlEffect::Send { message: ToPeer::Joined { .. }, .. }))
    );
    let register = Register {
        worker: WorkerId(0),
        incarnation: Incarnation(1),
        layout_hash: 1,
        config_hash: 2,
        clock: Clock(0),
        batch_count: 5,
        answered: Sequence(0),
    };
    let registered = say(1, ToServer::Register(register));
    assert!(registered.iter().any(|effect| matches!(
        effect,
        ControlEffect::Send { message: ToPeer::Registered { has_values: true }, .. }
    )));
}
