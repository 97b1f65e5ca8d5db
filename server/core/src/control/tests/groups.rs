//! The groups of an allreduce while nobody is lost, seen through messages.

use slackline_core::collective::Topology;
use slackline_core::ids::Generation;
use slackline_core::wire::{Group, LinkFigures, Ready, Report, Stepped, Trouble};

use super::*;
use crate::record::{Asked, Figures};

/// Eighteen units of ten samples, the last of five, among so many workers.
pub(super) fn allreduce(workers: u32, topology: Topology, elastic: bool) -> Desk {
    let mut settings = settings(workers);
    settings.shards.clear();
    if let Some(coordinator) = &mut settings.coordinator {
        coordinator.epochs = 4;
        coordinator.cut.unit = 10;
        coordinator.evaluate_every_epochs = 1.0;
        coordinator.sync = Some(AllreduceSettings { topology, elastic, bucket_bytes: 1 << 20 });
    }
    Desk::new(settings)
}

/// So many workers, all at work.
pub(super) fn at_work(workers: u32, elastic: bool) -> Desk {
    let mut desk = allreduce(workers, Topology::Ring, elastic);
    for session in 0..u64::from(workers) {
        desk.arrive(session);
        desk.ready(session, 0, 0, 0);
    }
    assert!(desk.control.is_started());
    desk
}

pub(super) fn joining(peers_at: &str, former: Option<(WorkerId, Incarnation)>) -> ToServer {
    let peers_at = Some(Text::new(peers_at));
    ToServer::Join(Join { layout_hash: 1, config_hash: 2, data_hash: 4, sample_count: 45, former, peers_at })
}

impl Desk {
    /// Joins and registers; the worker's id is that of the session where all come in order.
    pub(super) fn arrive(&mut self, session: u64) -> (WorkerId, Incarnation) {
        self.return_as(session, None)
    }

    pub(super) fn return_as(
        &mut self,
        session: u64,
        former: Option<(WorkerId, Incarnation)>,
    ) -> (WorkerId, Incarnation) {
        self.open(session, Role::Worker);
        let effects = self.say(session, joining(&format!(":{}", 7000 + session), former));
        let joined = effects.iter().find_map(|effect| match effect {
            ControlEffect::Send { message: ToPeer::Joined { worker, incarnation, .. }, .. } => {
                Some((*worker, *incarnation))
            }
            _ => None,
        });
        let (worker, incarnation) = joined.unwrap_or_else(|| panic!("not joined: {effects:?}"));
        self.register(session, worker, incarnation);
        (worker, incarnation)
    }

    /// The same lifetime over a new session; the former one is lost first.
    pub(super) fn reconnect(
        &mut self,
        (former, session): (u64, u64),
        (worker, incarnation): (WorkerId, Incarnation),
    ) -> Vec<ControlEffect> {
        self.event(ControlEvent::Closed { session: SessionId(former) });
        self.open(session, Role::Worker);
        self.register(session, worker, incarnation)
    }

    pub(super) fn ready(
        &mut self,
        session: u64,
        generation: u64,
        clock: u64,
        units: u64,
    ) -> Vec<ControlEffect> {
        self.say(session, ready(generation, clock, units))
    }

    pub(super) fn stepped(
        &mut self,
        session: u64,
        generation: u64,
        clock: u64,
        units: u64,
    ) -> Vec<ControlEffect> {
        self.say(session, stepped(generation, clock, units, None))
    }

    pub(super) fn trouble(&mut self, session: u64, generation: u64, worker: u32) -> Vec<ControlEffect> {
        let (generation, worker) = (Generation(generation), WorkerId(worker));
        let reason = Text::new("the connection was lost");
        self.say(session, ToServer::Trouble(Trouble { generation, worker, reason }))
    }

    pub(super) fn leave(&mut self, session: u64, outcome: Outcome) -> Vec<ControlEffect> {
        self.say(session, ToServer::Leave(Leave { outcome, report: None }))
    }

    pub(super) fn figures(&self) -> Figures {
        let (policy, accuracies) = (PolicySpec::Bsp, &[][..]);
        let asked = Asked { policy, prefetch: 0, workers: 2, accuracies, losses: &[], whole: true };
        self.control.record().unwrap().figures(self.now, &asked)
    }
}

pub(super) fn ready(generation: u64, clock: u64, units: u64) -> ToServer {
    let (generation, clock) = (Generation(generation), Clock(clock));
    ToServer::Ready(Ready { generation, clock, units, measured: None })
}

pub(super) fn stepped(generation: u64, clock: u64, units: u64, report: Option<Report>) -> ToServer {
    let (generation, clock) = (Generation(generation), Clock(clock));
    ToServer::Stepped(Stepped { generation, clock, units, report })
}

pub(super) fn evaluated(at_samples: u64) -> ToServer {
    ToServer::Evaluated(Evaluated { at_samples, loss: 0.5, accuracy: 0.9, report: None })
}

/// The groups that were told, with the session that each was told over.
pub(super) fn groups(effects: &[ControlEffect]) -> Vec<(u64, Group)> {
    let group = |effect: &ControlEffect| match effect {
        ControlEffect::Send { session, message: ToPeer::Group(group) } => Some((session.0, group.clone())),
        _ => None,
    };
    effects.iter().filter_map(group).collect()
}

/// The ends of groups that were told.
pub(super) fn regroups(effects: &[ControlEffect]) -> Vec<(u64, u64)> {
    let regroup = |effect: &ControlEffect| match effect {
        ControlEffect::Send { session, message: ToPeer::Regroup { generation } } => {
            Some((session.0, generation.0))
        }
        _ => None,
    };
    effects.iter().filter_map(regroup).collect()
}

/// Clock, units and source of the one group that all of `sessions` were told.
pub(super) fn begun(effects: &[ControlEffect], sessions: &[u64]) -> (u64, u64, u64, Option<u32>) {
    let told = groups(effects);
    let to: Vec<u64> = told.iter().map(|(session, _)| *session).collect();
    assert_eq!(to, sessions, "{effects:?}");
    assert!(told.windows(2).all(|pair| pair[0].1 == pair[1].1));
    let group = &told[0].1;
    (group.generation.0, group.clock.0, group.units, group.source.map(|source| source.0))
}

pub(super) fn failure(effects: &[ControlEffect]) -> Option<&str> {
    effects.iter().find_map(|effect| match effect {
        ControlEffect::End(End::Failed(text)) => Some(text.as_str()),
        _ => None,
    })
}

pub(super) fn notices(effects: &[ControlEffect]) -> Vec<String> {
    let notice = |effect: &ControlEffect| match effect {
        ControlEffect::Notice(notice) => Some(notice.to_string()),
        _ => None,
    };
    effects.iter().filter_map(notice).collect()
}

fn has_goodbye(effects: &[ControlEffect], session: u64) -> bool {
    effects.contains(&ControlEffect::Send { session: SessionId(session), message: ToPeer::Goodbye })
}

#[test]
fn a_group_begins_when_all_are_ready_with_positions_by_id() {
    let mut desk = allreduce(3, Topology::Ring, false);
    for session in 0..3 {
        desk.arrive(session);
    }
    assert!(groups(&desk.ready(2, 0, 0, 0)).is_empty());
    assert!(groups(&desk.ready(0, 0, 0, 0)).is_empty() && !desk.control.is_started());
    let effects = desk.ready(1, 0, 0, 0);
    assert_eq!(begun(&effects, &[0, 1, 2]), (1, 0, 0, None));
    let group = &groups(&effects)[0].1;
    assert_eq!((group.run, group.topology), (3, Topology::Ring));
    let members: Vec<(u32, String)> =
        group.members.iter().map(|member| (member.worker.0, member.address.shown())).collect();
    let at = |worker: u32, text: &str| (worker, text.to_owned());
    assert_eq!(members, [at(0, "10.0.0.0:7000"), at(1, "10.0.0.1:7001"), at(2, "10.0.0.2:7002")]);
    assert!(desk.control.is_started());
}

#[test]
fn a_word_that_was_lost_with_its_connection_comes_again_with_the_next() {
    let mut desk = allreduce(2, Topology::Ring, false);
    let (first, _) = (desk.arrive(0), desk.arrive(1));
    desk.ready(0, 0, 0, 0);
    desk.event(ControlEvent::Closed { session: SessionId(0) });
    // Only one is there to be told.
    assert_eq!(begun(&desk.ready(1, 0, 0, 0), &[1]).0, 1);
    let effects = desk.reconnect((0, 8), first);
    let sent: Vec<&ControlEffect> =
        effects.iter().filter(|effect| matches!(effect, ControlEffect::Send { .. })).collect();
    // Registered first: before that a worker expects nothing.
    assert!(matches!(sent[0], ControlEffect::Send { message: ToPeer::Registered { .. }, .. }));
    assert_eq!(begun(&effects, &[8]).0, 1);
    // The worker says its last word again, and is not told the same twice.
    assert!(desk.ready(8, 0, 0, 0).is_empty());
    // That it was told cannot be known after another loss.
    assert_eq!(begun(&desk.reconnect((8, 9), first), &[9]).0, 1);
}

#[test]
fn units_are_counted_once_each_and_a_report_that_comes_again_once() {
    let mut desk = at_work(2, false);
    let report = Report { pushes_sent: 3, samples: 20, loss_sum: 20.0, ..Report::default() };
    for _ in 0..2 {
        desk.say(0, stepped(1, 3, 6, Some(report.clone())));
    }
    desk.stepped(1, 1, 2, 4);
    let figures = desk.figures();
    assert_eq!((figures.iterations, figures.samples, figures.pushes.sent), (6, 60, 3));
    // The same figures once more, one iteration later.
    desk.say(0, stepped(1, 4, 8, Some(report)));
    let figures = desk.figures();
    assert_eq!((figures.iterations, figures.samples, figures.pushes.sent), (8, 80, 6));
    let clocks: Vec<_> =
        desk.control.status(desk.now).members.iter().map(|row| row.clock.map(|clock| clock.0)).collect();
    assert_eq!(clocks, [Some(4), Some(2)]);
}

#[test]
fn a_run_ends_when_all_is_done_evaluated_and_everyone_has_left() {
    let mut desk = at_work(2, false);
    desk.say(0, evaluated(40));
    // Another that comes by the same place evaluates for nothing.
    desk.say(1, evaluated(40));
    desk.now = desk.now.after(Duration::from_secs(5));
    desk.stepped(1, 1, 9, 18);
    assert_eq!(desk.figures().samples, 180);
    desk.now = desk.now.after(Duration::from_secs(3));
    // Worker 0 still lacks what worker 1 has sent: worker 1 is kept.
    assert!(!has_goodbye(&desk.leave(1, Outcome::Done), 1));
    let effects = desk.stepped(0, 1, 9, 18);
    assert!(has_goodbye(&effects, 1) && failure(&effects).is_none(), "{effects:?}");
    let effects = desk.say(0, evaluated(180));
    assert!(effects.contains(&ControlEffect::Evaluated));
    // Worker 1 has left already.
    assert_eq!(works(&effects), [(0, Work::Done)]);
    let effects = desk.leave(0, Outcome::Done);
    assert!(has_goodbye(&effects, 0) && effects.contains(&ControlEffect::End(End::Complete)));
    let record = desk.control.record().unwrap();
    let at: Vec<u64> = record.evaluations().iter().map(|evaluation| evaluation.samples).collect();
    assert_eq!(at, [40, 180]);
    let figures = desk.figures();
    // The time ends with the last unit, not with the evaluation.
    assert_eq!((figures.iterations, figures.samples, figures.wall_s), (18, 180, 5.0));
    assert_eq!((figures.recoveries, figures.topology_chosen), (Some(Vec::new()), None));
    desk.open(7, Role::Worker);
    assert_eq!(refusals(&desk.say(7, joining(":1", None)))[0].0, RefusalCode::RunOver);
}

#[test]
fn the_end_is_told_when_nobody_needs_anybody_and_again_when_that_was_lost() {
    let mut desk = at_work(2, false);
    desk.stepped(0, 1, 9, 18);
    assert!(works(&desk.say(0, evaluated(180))).is_empty());
    let effects = desk.stepped(1, 1, 9, 18);
    assert_eq!(works(&effects), [(0, Work::Done), (1, Work::Done)]);
    let effects = desk.reconnect((1, 6), (WorkerId(1), Incarnation(2)));
    assert_eq!((begun(&effects, &[6]).0, works(&effects)), (1, vec![(6, Work::Done)]));
    desk.leave(6, Outcome::Done);
    assert!(desk.leave(0, Outcome::Done).contains(&ControlEffect::End(End::Complete)));
}

#[test]
fn a_worker_that_leaves_and_closes_is_not_waited_for() {
    let mut desk = at_work(2, false);
    desk.stepped(1, 1, 9, 18);
    desk.leave(1, Outcome::Done);
    let effects = desk.event(ControlEvent::Closed { session: SessionId(1) });
    assert!(failure(&effects).is_none());
    assert!(notices(&effects).contains(&"worker 1 left: its work is done".to_owned()), "{effects:?}");
    // The other had not heard all of it: it goes on alone, from where it is.
    desk.stepped(0, 1, 8, 16);
    assert_eq!(regroups(&desk.trouble(0, 1, 1)), [(0, 1)]);
    assert_eq!(begun(&desk.ready(0, 1, 8, 16), &[0]), (2, 8, 16, None));
    desk.stepped(0, 2, 10, 18);
    desk.say(0, evaluated(180));
    assert!(desk.leave(0, Outcome::Done).contains(&ControlEffect::End(End::Complete)));
}

#[test]
fn auto_measures_first_and_says_what_it_chose_and_why() {
    let mut desk = allreduce(4, Topology::Auto, false);
    let mut effects = Vec::new();
    for session in 0..4 {
        desk.arrive(session);
        effects = desk.ready(session, 0, 0, 0);
    }
    assert!(groups(&effects).iter().all(|(_, group)| group.topology == Topology::Auto));
    assert_eq!(begun(&effects, &[0, 1, 2, 3]), (1, 0, 0, None));
    desk.now = desk.now.after(Duration::from_secs(2));
    let figures = [(0.001, 1e6), (0.002, 2e6), (f64::NAN, 3e6), (0.5, 0.0)];
    for (session, (latency_s, bytes_per_s)) in figures.into_iter().enumerate() {
        let (generation, clock, units) = (Generation(1), Clock(0), 0);
        let measured = Some(LinkFigures { latency_s, bytes_per_s });
        effects = desk.say(session as u64, ToServer::Ready(Ready { generation, clock, units, measured }));
        // A group that measures ends by itself.
        assert!(regroups(&effects).is_empty());
    }
    assert_eq!(begun(&effects, &[0, 1, 2, 3]), (2, 0, 0, None));
    let topology = groups(&effects)[0].1.topology;
    assert!(topology != Topology::Auto && topology.fits(4).is_ok());
    let why = desk.figures().topology_chosen.unwrap();
    assert!(notices(&effects).contains(&why), "{why} {effects:?}");
    // The time of the run begins with work.
    assert_eq!(desk.figures().wall_s, 0.0);
}

#[test]
fn where_nothing_can_be_measured_ring_is_used_in_the_end() {
    let mut desk = allreduce(2, Topology::Auto, false);
    desk.arrive(0);
    desk.arrive(1);
    let mut topologies = Vec::new();
    for generation in 0..4 {
        desk.ready(0, generation, 0, 0);
        let effects = desk.ready(1, generation, 0, 0);
        topologies.push(groups(&effects)[0].1.topology);
    }
    assert_eq!(topologies, [Topology::Auto, Topology::Auto, Topology::Auto, Topology::Ring]);
    assert!(desk.figures().topology_chosen.unwrap().contains("ring"));
}

#[test]
fn a_run_that_is_not_elastic_has_all_its_workers_once_it_has_begun() {
    let mut desk = allreduce(2, Topology::Ring, false);
    for session in 0..3 {
        desk.arrive(session);
    }
    desk.ready(0, 0, 0, 0);
    let effects = desk.ready(2, 0, 0, 0);
    assert_eq!(begun(&effects, &[0, 2]).0, 1);
    // One that was slower than those that it began with.
    let refused = refusals(&effects);
    assert!(refused.len() == 1 && refused[0].0 == RefusalCode::Full, "{refused:?}");
    assert!(refused[0].1.contains("has all its workers") && refused[0].1.contains("sync.elastic"));
    assert!(failure(&effects).is_none());
    desk.open(5, Role::Worker);
    assert_eq!(refusals(&desk.say(5, joining(":1", None)))[0].0, RefusalCode::Full);
    assert_eq!(desk.stepped(0, 1, 1, 2), []);
}

#[test]
fn messages_of_the_other_method_are_refused_by_name() {
    let pull = |kind| ToServer::Pull(Pull { shard: ShardId(0), request: 1, have: 0, kind });
    let gated = PullKind::Gated { clock: Clock(0), after: Sequence(0), ahead: 0 };
    let (shard, sequence, clock) = (ShardId(0), Sequence(1), Clock(0));
    let of_servers = [
        (ask(0, None), "ask for work"),
        (pull(gated), "pull"),
        (pull(PullKind::Snapshot), "pull a snapshot"),
        (ToServer::PushNothing { shard, sequence, clock, reply: 0, have: 0 }, "push"),
        (ToServer::Enter { clock }, "enter"),
        (ToServer::Finish, "finish"),
    ];
    for (message, name) in of_servers {
        let refused = refusals(&at_work(1, false).say(0, message));
        assert_eq!(refused[0].0, RefusalCode::OutOfPlace);
        assert!(refused[0].1.contains(name) && refused[0].1.contains("\"allreduce\""), "{refused:?}");
    }
    let trouble = Trouble { generation: Generation(1), worker: WorkerId(1), reason: Text::default() };
    for message in [ready(0, 0, 0), stepped(1, 1, 1, None), ToServer::Trouble(trouble)] {
        for coordinator in [true, false] {
            let mut settings = settings(2);
            if !coordinator {
                settings.coordinator = None;
            }
            let mut desk = Desk::new(settings);
            desk.open(0, Role::Worker);
            if coordinator {
                desk.say(0, joining(":1", None));
            }
            desk.register(0, WorkerId(0), Incarnation(1));
            let refused = refusals(&desk.say(0, message.clone()));
            assert_eq!(refused[0].0, RefusalCode::OutOfPlace);
            assert!(refused[0].1.contains("group") && refused[0].1.contains("\"server\""), "{refused:?}");
        }
    }
}
