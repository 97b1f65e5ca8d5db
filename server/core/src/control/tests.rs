//! Roles, leases, incarnations and the life of a run, seen through messages.

use super::*;
use slackline_core::consistency::PolicySpec;
use slackline_core::ids::{BatchIndex, Generation, Sequence};
use slackline_core::schedule::Cut;
use slackline_core::wire::{
    Ask, BatchResult, Evaluated, Fate, Join, Leave, Origin, Outcome, Place, Pull, PullKind, RefusalCode,
    Register, ServerOrder, ToServer, Work,
};
use std::collections::VecDeque;

const LEASE: Duration = Duration::from_secs(10);

fn settings(workers: u32) -> ControlSettings {
    ControlSettings {
        server: ServerId(0),
        workers,
        lease: LEASE,
        min_workers: None,
        layout_hash: 1,
        layout_text: "7850 values in 2 tensors".to_owned(),
        config_hash: 2,
        boot: 3,
        servers: 1,
        shards: vec![(ShardId(0), ServerId(0))],
        steps: Steps::Parts,
        disk: Vec::new(),
        on_disk: false,
        stop_on_bad_gradient: false,
        coordinator_at: ServerId(0),
        coordinator: Some(CoordinatorSettings {
            policy: PolicySpec::Ssp { staleness: 1 },
            cut: Cut { unit: 10, units: 1, proportional: false },
            blind_loss: 2.3,
            epochs: 1,
            evaluate_every_epochs: 0.0,
            sync: None,
            replicas: 1,
            keeps_map: false,
            checkpoint_every: None,
            resume: None,
        }),
    }
}

/// Control with a clock in seconds and everything it ever said.
struct Desk {
    control: Control,
    now: Moment,
}

impl Desk {
    fn new(settings: ControlSettings) -> Self {
        let is_other = settings.coordinator.is_none();
        let server = settings.server;
        let mut desk = Self { control: Control::new(settings, Moment(0)), now: Moment(0) };
        if is_other {
            let (generation, origin) = (Generation(0), Origin::Nothing);
            let place = Place { shard: ShardId(0), generation, primary: server, backup: None, origin };
            desk.event(ControlEvent::CoordinatorOpened);
            desk.event(ControlEvent::Ordered(ServerOrder::Places {
                number: 1,
                run: 0,
                from: None,
                places: vec![place],
            }));
        }
        desk
    }

    /// Shards lead where they are placed, and maps are stored, at once; what belongs to that is not shown.
    fn event(&mut self, event: ControlEvent) -> Vec<ControlEffect> {
        let (mut events, mut shown) = (VecDeque::from([event]), Vec::new());
        while let Some(event) = events.pop_front() {
            let mut effects = Vec::new();
            self.control.handle(self.now, event, &mut effects);
            self.control.check_invariants();
            for effect in effects {
                match effect {
                    ControlEffect::Place { shard, place: Some(place), .. } => {
                        let (generation, members) = (place.generation, Vec::new());
                        events.push_back(ControlEvent::Leads {
                            shard,
                            generation,
                            has_values: false,
                            members,
                        });
                    }
                    ControlEffect::Persist(record) => {
                        events.push_back(ControlEvent::Persisted { number: record.number });
                    }
                    ControlEffect::Coordinator(_) | ControlEffect::Place { .. } => {}
                    effect => shown.push(effect),
                }
            }
        }
        shown
    }

    fn open(&mut self, session: u64, role: Role) {
        let (session, address) = (SessionId(session), format!("10.0.0.{session}:9"));
        self.event(ControlEvent::Opened { session, role, address });
    }

    fn say(&mut self, session: u64, message: ToServer) -> Vec<ControlEffect> {
        self.event(ControlEvent::Message { session: SessionId(session), message })
    }

    fn after(&mut self, seconds: f64) -> Vec<ControlEffect> {
        self.now = self.now.after(Duration::from_secs_f64(seconds));
        self.event(ControlEvent::Tick)
    }

    fn join(
        &mut self,
        session: u64,
        former: Option<(WorkerId, Incarnation)>,
    ) -> (WorkerId, Incarnation, Clock) {
        self.open(session, Role::Worker);
        let join =
            Join { layout_hash: 1, config_hash: 2, data_hash: 4, sample_count: 45, former, peers_at: None };
        let effects = self.say(session, ToServer::Join(join));
        let joined = effects.iter().find_map(|effect| match effect {
            ControlEffect::Send { message: ToPeer::Joined { worker, incarnation, clock }, .. } => {
                Some((*worker, *incarnation, *clock))
            }
            _ => None,
        });
        joined.unwrap_or_else(|| panic!("not joined: {effects:?}"))
    }

    fn register(&mut self, session: u64, worker: WorkerId, incarnation: Incarnation) -> Vec<ControlEffect> {
        let (layout_hash, config_hash, clock, batch_count) = (1, 2, Clock(0), 5);
        let answered = Sequence(0);
        let register =
            Register { worker, incarnation, layout_hash, config_hash, clock, batch_count, answered };
        self.say(session, ToServer::Register(register))
    }

    fn enlist(&mut self, session: u64) -> (WorkerId, Incarnation) {
        let (worker, incarnation, _) = self.join(session, None);
        self.register(session, worker, incarnation);
        (worker, incarnation)
    }
}

fn refusals(effects: &[ControlEffect]) -> Vec<(RefusalCode, String)> {
    let refusal = |effect: &ControlEffect| match effect {
        ControlEffect::Send { message: ToPeer::Refused(refusal), .. } => {
            Some((refusal.code, refusal.text.shown()))
        }
        _ => None,
    };
    effects.iter().filter_map(refusal).collect()
}

fn works(effects: &[ControlEffect]) -> Vec<(u64, Work)> {
    let work = |effect: &ControlEffect| match effect {
        ControlEffect::Send { session, message: ToPeer::Work(work) } => Some((session.0, *work)),
        _ => None,
    };
    effects.iter().filter_map(work).collect()
}

/// Batch 0 is the first result, and so on, of whoever does it.
fn done_at(number: u64, batch: u64, clock: u64) -> BatchResult {
    BatchResult { number, batch: BatchIndex(batch), clock: Clock(clock), fate: Fate::Done { compute_us: 0 } }
}

fn ask(clock: u64, done: Option<u64>) -> ToServer {
    ToServer::Ask(Ask {
        clock: Clock(clock),
        results: done.into_iter().map(|batch| done_at(batch + 1, batch, clock.saturating_sub(2))).collect(),
        report: None,
    })
}

// Case 66: anyone on the network could write weights or shut a server down.
#[test]
fn each_role_can_do_only_its_own_part() {
    let stop = || ToServer::Stop { reason: Text::new("x") };
    let pull = |kind| ToServer::Pull(Pull { shard: ShardId(0), request: 1, have: 0, kind });
    let gated = PullKind::Gated { clock: Clock(0), after: Sequence(0), ahead: 0 };
    let table = [
        (Role::Worker, stop(), false),
        (Role::Observer, stop(), false),
        (
            Role::Observer,
            ToServer::Join(Join {
                layout_hash: 1,
                config_hash: 2,
                data_hash: 4,
                sample_count: 5,
                former: None,
                peers_at: None,
            }),
            false,
        ),
        (Role::Observer, pull(gated), false),
        (Role::Server, ToServer::Finish, false),
        (Role::Admin, ToServer::Renew, false),
        (Role::Observer, ToServer::Status, true),
        (Role::Worker, ToServer::Status, true),
        (Role::Observer, pull(PullKind::Snapshot), true),
        (Role::Admin, stop(), true),
        (Role::Server, stop(), true),
    ];
    for (index, (role, message, may)) in table.into_iter().enumerate() {
        let mut desk = Desk::new(settings(1));
        desk.open(index as u64, role);
        let effects = desk.say(index as u64, message.clone());
        let refused = refusals(&effects).iter().any(|(code, _)| *code == RefusalCode::Role);
        assert_eq!(refused, !may, "{role} {message:?} {effects:?}");
        assert_eq!(desk.control.refused().role, u64::from(!may));
    }
}

// Case 57: a worker retried for ever against a server that refused it.
#[test]
fn another_layout_configuration_or_data_set_is_refused_with_both_sides_named() {
    let mut desk = Desk::new(settings(2));
    desk.join(1, None);
    let wrong = |layout_hash, config_hash, sample_count| {
        ToServer::Join(Join {
            layout_hash,
            config_hash,
            data_hash: 4,
            sample_count,
            former: None,
            peers_at: None,
        })
    };
    for (message, words) in
        [(wrong(9, 2, 45), "[model]"), (wrong(1, 9, 45), "config show"), (wrong(1, 2, 44), "44 samples")]
    {
        desk.open(2, Role::Worker);
        let refused = refusals(&desk.say(2, message));
        assert_eq!(refused.len(), 1);
        assert!(refused[0].0 == RefusalCode::Mismatch && refused[0].1.contains(words), "{refused:?}");
        assert!(!refused[0].0.is_retryable());
    }
}

// Case 49: nothing happened at the start and nobody said who was missing.
#[test]
fn the_missing_worker_is_named_until_it_comes() {
    let mut desk = Desk::new(settings(4));
    for session in 0..3 {
        desk.enlist(session);
    }
    desk.after(5.0);
    let [waiting] = desk.control.waits(desk.now).try_into().unwrap();
    let here = "(here: worker 0, worker 1, worker 2)";
    let text = format!("waiting for workers: 3 of 4 here, worker 3 missing {here}");
    assert_eq!((waiting.wait.to_string(), waiting.since), (text, Duration::from_secs(5)));
    for session in 0..3 {
        assert!(works(&desk.say(session, ask(0, None))).is_empty());
    }
    desk.join(9, None);
    desk.register(9, WorkerId(3), Incarnation(4));
    // It begins when all have asked: by then all are registered everywhere.
    let effects = desk.say(9, ask(0, None));
    assert!(effects.contains(&ControlEffect::Shards(ShardEvent::Start)));
    assert_eq!(works(&effects).len(), 4);
}

// Case 4: one node rebooted and everyone else stalled.
#[test]
fn a_silent_worker_is_removed_after_one_lease_and_its_batch_given_to_another() {
    let mut desk = Desk::new(settings(2));
    let (first, second) = (desk.enlist(0), desk.enlist(1));
    let given = works(&[desk.say(0, ask(0, None)), desk.say(1, ask(0, None))].concat());
    let Work::Batch { batch: lost, .. } = given[1].1 else { panic!("{given:?}") };
    desk.after(9.0);
    desk.say(0, ToServer::Renew);
    let effects = desk.after(1.5);
    assert!(effects.contains(&ControlEffect::Shards(ShardEvent::Remove { worker: second.0 })));
    assert_eq!(refusals(&effects)[0].0, RefusalCode::Fenced);
    let next = works(&desk.say(0, ask(1, None)));
    assert!(matches!(next[0].1, Work::Batch { batch, .. } if batch == lost), "{next:?}");
    // The fenced one is refused, and comes back under its id with a new incarnation.
    assert_eq!(refusals(&desk.say(1, ToServer::Renew))[0].0, RefusalCode::Fenced);
    assert_eq!(refusals(&desk.register(1, second.0, second.1))[0].0, RefusalCode::Fenced);
    let (again, incarnation, _) = desk.join(7, Some(second));
    assert!(again == second.0 && incarnation > first.1 && incarnation > second.1);
}

// A server that had stood still took the silence for its members' own, and removed all of them.
#[test]
fn a_lease_does_not_run_while_the_server_stands_still() {
    let mut desk = Desk::new(settings(1));
    let (worker, _) = desk.enlist(0);
    desk.after(4.0);
    desk.now = desk.now.after(Duration::from_secs(60));
    desk.event(ControlEvent::Late { by: Duration::from_secs(60) });
    let removal = ControlEffect::Shards(ShardEvent::Remove { worker });
    assert!(!desk.after(5.5).contains(&removal));
    // Four seconds before the standstill and seven after it are more than a lease.
    assert!(desk.after(1.5).contains(&removal));
    // One that was heard meanwhile gets one lease from now, not more.
    let (worker, _) = desk.enlist(1);
    desk.event(ControlEvent::Late { by: Duration::from_secs(60) });
    assert!(desk.after(10.5).contains(&ControlEffect::Shards(ShardEvent::Remove { worker })));
}

#[test]
fn a_lost_connection_keeps_its_membership_within_the_lease() {
    let mut desk = Desk::new(settings(1));
    let (worker, incarnation) = desk.enlist(0);
    desk.say(0, ask(0, None));
    desk.event(ControlEvent::Closed { session: SessionId(0) });
    desk.after(5.0);
    desk.open(1, Role::Worker);
    let effects = desk.register(1, worker, incarnation);
    // The shards keep what they know of it, and it is no news to anybody else.
    let (shards, others): (Vec<_>, Vec<_>) =
        effects.iter().partition(|effect| matches!(effect, ControlEffect::Shards(ShardEvent::Enter { .. })));
    assert_eq!(shards.len(), 1);
    assert!(matches!(others[..], [ControlEffect::Send { message: ToPeer::Registered { .. }, .. }]));
    assert!(desk.after(9.0).is_empty());
}

#[test]
fn another_server_takes_only_later_incarnations() {
    let mut desk = Desk::new(ControlSettings { server: ServerId(1), coordinator: None, ..settings(1) });
    let entered = |effects: &[ControlEffect]| {
        effects.iter().any(|effect| matches!(effect, ControlEffect::Shards(ShardEvent::Enter { .. })))
    };
    desk.open(0, Role::Worker);
    assert!(entered(&desk.register(0, WorkerId(3), Incarnation(5))));
    desk.open(1, Role::Worker);
    let effects = desk.register(1, WorkerId(3), Incarnation(8));
    assert!(
        entered(&effects)
            && effects.contains(&ControlEffect::Shards(ShardEvent::Remove { worker: WorkerId(3) }))
    );
    desk.open(2, Role::Worker);
    assert_eq!(refusals(&desk.register(2, WorkerId(3), Incarnation(5)))[0].0, RefusalCode::Fenced);
    assert_eq!(refusals(&desk.say(0, ToServer::Renew))[0].0, RefusalCode::Fenced);
}

// Case 33148 (PyTorch): ranks with fewer batches left, the rest hung.
#[test]
fn a_run_ends_with_one_final_evaluation_and_everyone_told() {
    let mut desk = Desk::new(settings(2));
    desk.enlist(0);
    desk.enlist(1);
    // Five batches of ten over 45 samples.
    let mut done = 0;
    let mut hands: [Option<u64>; 2] = [None, None];
    let mut clocks = [0, 0];
    let mut evaluator = None;
    for round in 0..8 {
        let session = round % 2;
        let effects = desk.say(session as u64, ask(clocks[session], hands[session].take()));
        clocks[session] += 1;
        for (who, work) in works(&effects) {
            match work {
                Work::Batch { batch, .. } => {
                    hands[who as usize] = Some(batch.0);
                    done += 1;
                }
                Work::Evaluate { at_samples } => evaluator = Some((who, at_samples)),
                Work::Idle => {}
                Work::Done => panic!("over before the evaluation"),
            }
        }
    }
    assert_eq!((done, evaluator.map(|pair| pair.1)), (5, Some(45)));
    let evaluated = Evaluated { at_samples: 45, loss: 0.5, accuracy: 0.9, report: None };
    let effects = desk.say(evaluator.unwrap().0, ToServer::Evaluated(evaluated));
    assert_eq!(works(&effects).iter().filter(|(_, work)| *work == Work::Done).count(), 2);
    for session in 0..2 {
        let leave = Leave { outcome: Outcome::Done, report: None };
        let effects = desk.say(session, ToServer::Leave(leave));
        assert_eq!(effects.contains(&ControlEffect::End(End::Complete)), session == 1);
    }
    assert_eq!(desk.control.record().unwrap().evaluations().len(), 1);
}

// Found by the simulated world: a worker died between two registrations, and one server waited for it for ever.
#[test]
fn another_server_begins_with_the_first_gated_pull() {
    let kind = PullKind::Gated { clock: Clock(0), after: Sequence(0), ahead: 0 };
    let pull = ToServer::Pull(Pull { shard: ShardId(0), request: 1, have: 0, kind });
    for workers in [1, 2] {
        let other = ControlSettings { server: ServerId(1), coordinator: None, ..settings(workers) };
        let mut desk = Desk::new(other);
        desk.open(0, Role::Worker);
        desk.register(0, WorkerId(0), Incarnation(1));
        assert!(!desk.control.is_started());
        let effects = desk.say(0, pull.clone());
        let place = |of: &dyn Fn(&ControlEffect) -> bool| effects.iter().position(of).unwrap();
        let start = place(&|effect| *effect == ControlEffect::Shards(ShardEvent::Start));
        let pull = place(&|effect| matches!(effect, ControlEffect::Shard { .. }));
        assert!(desk.control.is_started() && start < pull);
    }
}

// Found by the simulated world: what was sent over a lost session came after what was sent over the new one.
#[test]
fn a_former_session_is_not_heard_any_more() {
    let mut desk = Desk::new(settings(1));
    let (worker, incarnation) = desk.enlist(0);
    desk.open(1, Role::Worker);
    desk.register(1, worker, incarnation);
    assert!(desk.say(0, ToServer::Finish).is_empty());
    assert!(desk.register(0, worker, incarnation).is_empty());
    assert!(desk.say(1, ToServer::Finish).contains(&ControlEffect::Shards(ShardEvent::Finish { worker })));
}

// Found by the simulated world: a fenced worker whose id another had got was turned away for good.
#[test]
fn a_fenced_worker_whose_id_was_given_away_gets_another() {
    let mut desk = Desk::new(settings(3));
    let first = desk.enlist(0);
    desk.after(11.0);
    let second = desk.enlist(1);
    assert_eq!(second.0, first.0);
    let (again, incarnation, _) = desk.join(2, Some(first));
    assert!(again != first.0 && incarnation > second.1);
}

#[test]
fn the_data_of_a_worker_that_died_before_the_start_bind_nobody() {
    let mut desk = Desk::new(settings(2));
    desk.open(1, Role::Worker);
    let wrong =
        Join { layout_hash: 1, config_hash: 2, data_hash: 9, sample_count: 45, former: None, peers_at: None };
    desk.say(1, ToServer::Join(wrong));
    desk.after(11.0);
    // The next one speaks for its own data, and so do all after it.
    desk.enlist(2);
    desk.enlist(3);
}

#[test]
fn a_run_without_workers_says_so() {
    let mut desk = Desk::new(settings(1));
    desk.enlist(0);
    desk.say(0, ask(0, None));
    desk.after(11.0);
    desk.after(5.0);
    let waits = desk.control.waits(desk.now);
    assert_eq!(waits[0].wait, crate::waits::Wait::NobodyLeft { batches: 5 });
}

#[test]
fn one_worker_cannot_change_how_many_batches_there_are() {
    let mut desk = Desk::new(settings(2));
    desk.enlist(0);
    let (worker, incarnation, _) = desk.join(1, None);
    let (layout_hash, config_hash, clock, batch_count) = (1, 2, Clock(0), 6);
    let answered = Sequence(0);
    let register = Register { worker, incarnation, layout_hash, config_hash, clock, batch_count, answered };
    assert_eq!(refusals(&desk.say(1, ToServer::Register(register)))[0].0, RefusalCode::Mismatch);
}

#[test]
fn a_renewal_is_answered() {
    let mut desk = Desk::new(settings(2));
    desk.enlist(0);
    let effects = desk.say(0, ToServer::Renew);
    assert!(effects.contains(&ControlEffect::Send { session: SessionId(0), message: ToPeer::Renewed }));
}

mod anything;
mod back;
mod claims;
mod cuts;
mod going;
mod groups;
mod keeping;
mod left;
mod losses;
mod newcomers;
mod refusals;
mod returns;
mod saving;
mod waiting;
