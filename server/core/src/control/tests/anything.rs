//! Any peer, any message, any order: control refuses what makes no sense and stays whole.

use std::collections::BTreeMap;

use proptest::option::of;
use proptest::prelude::*;
use slackline_core::collective::Topology;
use slackline_core::ids::Version;
use slackline_core::wire::{Doubt, Here, Holding, LinkFigures, Ready, Report, ServerWord, Stepped, Trouble};

use super::*;

/// Peers that come and go; a peer that comes again has another session.
const PEERS: usize = 5;

/// One thing that happens to control.
#[expect(clippy::large_enum_variant, reason = "a test has sixty of them")]
#[derive(Clone, Debug)]
enum Deed {
    Open(usize, Role),
    /// A worker that does all that it should before its first ask.
    Enlist(usize),
    Say(usize, ToServer),
    Close(usize),
    After(Duration),
    Late(Duration),
    Break,
}

/// Mostly small numbers, which can be meant, and the edges, which nobody can mean.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..7_u64, 1 => any::<u64>(), 1 => (0..3_u64).prop_map(|less| u64::MAX - less)]
}

fn small() -> impl Strategy<Value = u32> {
    number().prop_map(|number| u32::try_from(number).unwrap_or(u32::MAX - (number & 1) as u32))
}

fn float() -> impl Strategy<Value = f64> {
    prop_oneof![4 => 0.0..3.0, 1 => any::<f64>()]
}

fn words() -> impl Strategy<Value = Text> {
    prop::collection::vec(any::<char>(), 0..12)
        .prop_map(|letters| Text::new(letters.into_iter().collect::<String>()))
}

fn report() -> impl Strategy<Value = Option<Report>> {
    let told = (number(), number(), float()).prop_map(|(iterations, samples, loss_sum)| Report {
        iterations,
        samples,
        loss_sum,
        ..Report::default()
    });
    of(told)
}

/// The right fingerprints most of the time.
fn hashes() -> impl Strategy<Value = (u64, u64, u64, u64)> {
    let right = Just((1_u64, 2_u64, 4_u64, 45_u64));
    prop_oneof![6 => right, 1 => (number(), number(), number(), number())]
}

fn joining() -> impl Strategy<Value = ToServer> {
    let former = of((small(), number()));
    let peers_at = of(prop_oneof![Just(Text::new(":7000")), words()]);
    let join = (hashes(), former, peers_at).prop_map(|(hashes, former, peers_at)| {
        let (layout_hash, config_hash, data_hash, sample_count) = hashes;
        let former = former.map(|(worker, incarnation)| (WorkerId(worker), Incarnation(incarnation)));
        ToServer::Join(Join { layout_hash, config_hash, data_hash, sample_count, former, peers_at })
    });
    let register =
        (hashes(), small(), number(), number(), prop_oneof![6 => Just(5_u64), 1 => number()], number())
            .prop_map(
                |((layout_hash, config_hash, ..), worker, incarnation, clock, batch_count, answered)| {
                    let (worker, incarnation) = (WorkerId(worker), Incarnation(incarnation));
                    let (clock, answered) = (Clock(clock), Sequence(answered));
                    ToServer::Register(Register {
                        worker,
                        incarnation,
                        layout_hash,
                        config_hash,
                        clock,
                        batch_count,
                        answered,
                    })
                },
            );
    prop_oneof![join, register]
}

fn results() -> impl Strategy<Value = Vec<BatchResult>> {
    let fate = prop_oneof![number().prop_map(|compute_us| Fate::Done { compute_us }), Just(Fate::Returned)];
    let result = (number(), number(), number(), fate).prop_map(|(number, batch, clock, fate)| BatchResult {
        number,
        batch: BatchIndex(batch),
        clock: Clock(clock),
        fate,
    });
    prop::collection::vec(result, 0..3)
}

fn working() -> impl Strategy<Value = ToServer> {
    let kind = (number(), number(), number(), number()).prop_flat_map(|(clock, after, seen, ahead)| {
        let (clock, after, seen) = (Clock(clock), Sequence(after), Clock(seen));
        prop::sample::select(vec![
            PullKind::Gated { clock, after, ahead },
            PullKind::Snapshot,
            PullKind::Fresher { clock, after, seen },
        ])
    });
    let outcome = prop_oneof![
        Just(Outcome::Done),
        Just(Outcome::Interrupted),
        words().prop_map(Outcome::BadGradient),
        words().prop_map(Outcome::Failed),
        number().prop_map(|batch| Outcome::Unfinished { batch: BatchIndex(batch) }),
    ];
    prop_oneof![
        4 => (number(), results(), report())
            .prop_map(|(clock, results, report)| ToServer::Ask(Ask { clock: Clock(clock), results, report })),
        1 => number().prop_map(|clock| ToServer::Enter { clock: Clock(clock) }),
        2 => prop::sample::select(vec![ToServer::Renew, ToServer::Finish, ToServer::Status]),
        2 => (small(), number(), small(), kind).prop_map(|(shard, request, have, kind)| {
            ToServer::Pull(Pull { shard: ShardId(shard), request, have: u64::from(have), kind })
        }),
        1 => (small(), number(), number(), number()).prop_map(|(shard, sequence, clock, reply)| {
            let (shard, sequence, clock) = (ShardId(shard), Sequence(sequence), Clock(clock));
            ToServer::PushNothing { shard, sequence, clock, reply, have: 1 }
        }),
        1 => number().prop_map(|sequence| ToServer::Commit { sequence: Sequence(sequence) }),
        1 => (prop_oneof![Just(45_u64), number()], float(), float(), report()).prop_map(
            |(at_samples, loss, accuracy, report)| ToServer::Evaluated(Evaluated {
                at_samples,
                loss,
                accuracy,
                report
            })
        ),
        2 => (outcome, report()).prop_map(|(outcome, report)| ToServer::Leave(Leave { outcome, report })),
    ]
}

fn grouped() -> impl Strategy<Value = ToServer> {
    let figures =
        of((float(), float()).prop_map(|(latency_s, bytes_per_s)| LinkFigures { latency_s, bytes_per_s }));
    prop_oneof![
        3 => (number(), number(), number(), figures).prop_map(|(generation, clock, units, measured)| {
            ToServer::Ready(Ready { generation: Generation(generation), clock: Clock(clock), units, measured })
        }),
        1 => (number(), small(), words()).prop_map(|(generation, worker, reason)| {
            ToServer::Trouble(Trouble { generation: Generation(generation), worker: WorkerId(worker), reason })
        }),
        2 => (number(), number(), number(), report()).prop_map(|(generation, clock, units, report)| {
            ToServer::Stepped(Stepped { generation: Generation(generation), clock: Clock(clock), units, report })
        }),
    ]
}

fn holding() -> impl Strategy<Value = Holding> {
    (small(), number(), any::<[bool; 2]>()).prop_map(|(shard, generation, [is_whole, on_disk])| Holding {
        shard: ShardId(shard),
        generation: Generation(generation),
        is_whole,
        on_disk,
    })
}

fn between_servers() -> impl Strategy<Value = ToServer> {
    let here = (hashes(), small(), number(), prop::collection::vec(holding(), 0..3)).prop_map(
        |((layout_hash, config_hash, ..), server, boot, holds)| {
            ServerWord::Here(Here { server: ServerId(server), boot, layout_hash, config_hash, holds })
        },
    );
    let of_shard = (small(), number(), small(), number(), number(), words()).prop_flat_map(
        |(shard, generation, backup, version, clock, why)| {
            let (shard, generation) = (ShardId(shard), Generation(generation));
            let (backup, number) = (ServerId(backup), version);
            prop::sample::select(vec![
                ServerWord::InStep { shard, generation, backup },
                ServerWord::OutOfReach { shard, generation, backup },
                ServerWord::Restored { shard, generation, version: Version(version), clock: Clock(clock) },
                ServerWord::NotRestored { shard, generation, why: why.clone() },
                ServerWord::Saved { number, shard, entry: why.shown().into_bytes() },
                ServerWord::NotSaved { number, shard, why },
            ])
        },
    );
    let doubt = (small(), small(), number(), number(), prop::collection::vec(number(), 0..3)).prop_map(
        |(shard, worker, incarnation, applied, waiting)| {
            ServerWord::Doubt(Doubt {
                shard: ShardId(shard),
                worker: WorkerId(worker),
                incarnation: Incarnation(incarnation),
                applied: Sequence(applied),
                waiting: waiting.into_iter().map(Sequence).collect(),
            })
        },
    );
    let word = prop_oneof![
        3 => here,
        1 => Just(ServerWord::Alive),
        2 => number().prop_map(|number| ServerWord::Took { number }),
        4 => of_shard,
        1 => doubt,
        1 => of(words()).prop_map(ServerWord::Trouble),
    ];
    word.prop_map(ToServer::Cluster)
}

/// Any message, more often one that the role may send.
fn message() -> impl Strategy<Value = ToServer> {
    prop_oneof![
        3 => joining(),
        6 => working(),
        3 => grouped(),
        3 => between_servers(),
        1 => words().prop_map(|reason| ToServer::Stop { reason }),
    ]
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![3 => Just(Role::Worker), 2 => prop::sample::select(Role::ALL.to_vec())]
}

fn deed() -> impl Strategy<Value = Deed> {
    let time = || (0..12_000_u64).prop_map(Duration::from_millis);
    prop_oneof![
        3 => (0..PEERS, role()).prop_map(|(peer, role)| Deed::Open(peer, role)),
        4 => (0..PEERS).prop_map(Deed::Enlist),
        20 => (0..PEERS, message()).prop_map(|(peer, message)| Deed::Say(peer, message)),
        2 => (0..PEERS).prop_map(Deed::Close),
        3 => time().prop_map(Deed::After),
        1 => time().prop_map(Deed::Late),
        // A run that has ended takes little more, so it ends seldom.
        1 => prop::bool::weighted(0.1).prop_map(|ends| if ends { Deed::Break } else { Deed::After(Duration::ZERO) }),
    ]
}

/// Runs of every kind, at the coordinator and at another server.
fn any_run() -> impl Strategy<Value = ControlSettings> {
    let least = of(1..3_u32);
    (any::<[bool; 5]>(), least).prop_map(
        |([is_group, is_other, elastic, is_whole, is_copied], min_workers)| {
            let mut run = ControlSettings { min_workers, ..settings(2) };
            if is_whole {
                run.steps = Steps::Whole;
            }
            if is_copied {
                run.servers = 3;
                run.shards.push((ShardId(1), ServerId(1)));
            }
            if let Some(coordinator) = &mut run.coordinator {
                coordinator.evaluate_every_epochs = 0.5;
                if is_copied {
                    (coordinator.replicas, coordinator.keeps_map, coordinator.checkpoint_every) =
                        (2, true, Some(2));
                }
                if is_group {
                    coordinator.sync =
                        Some(AllreduceSettings { topology: Topology::Ring, elastic, bucket_bytes: 1 << 20 });
                }
            }
            if is_group {
                run.shards.clear();
            } else if is_other {
                (run.server, run.coordinator) = (ServerId(1), None);
            }
            run
        },
    )
}

/// A desk with what must be so whatever its peers do.
struct Watch {
    desk: Desk,
    next: u64,
    /// The open session of each peer.
    sessions: [Option<u64>; PEERS],
    /// The last incarnation that was given, and that shards were told of, by worker.
    given: Option<Incarnation>,
    entered: BTreeMap<WorkerId, Incarnation>,
}

impl Watch {
    fn new(settings: ControlSettings) -> Self {
        let (sessions, entered) = ([None; PEERS], BTreeMap::new());
        Self { desk: Desk::new(settings), next: 0, sessions, given: None, entered }
    }

    fn session(&mut self, peer: usize, role: Role) -> u64 {
        if let Some(session) = self.sessions[peer] {
            return session;
        }
        self.next += 1;
        self.sessions[peer] = Some(self.next);
        let (session, address) = (SessionId(self.next), format!("192.0.2.{peer}:9"));
        let effects = self.desk.event(ControlEvent::Opened { session, role, address });
        self.see(&effects);
        self.next
    }

    fn happen(&mut self, deed: Deed) {
        let effects = match deed {
            Deed::Open(peer, role) => {
                self.session(peer, role);
                return;
            }
            Deed::Enlist(peer) => {
                self.enlist(peer);
                return;
            }
            Deed::Say(peer, message) => {
                let Some(session) = self.sessions[peer] else { return };
                self.desk.say(session, message)
            }
            Deed::Close(peer) => {
                let Some(session) = self.sessions[peer].take() else { return };
                self.desk.event(ControlEvent::Closed { session: SessionId(session) })
            }
            Deed::After(time) => self.desk.after(time.as_secs_f64()),
            Deed::Late(by) => {
                self.desk.now = self.desk.now.after(by);
                self.desk.event(ControlEvent::Late { by })
            }
            Deed::Break => self.desk.event(ControlEvent::Broken { why: "no thread".to_owned() }),
        };
        self.see(&effects);
    }

    fn enlist(&mut self, peer: usize) {
        let session = self.session(peer, Role::Worker);
        let peers_at = Some(Text::new(":7000"));
        let join =
            Join { layout_hash: 1, config_hash: 2, data_hash: 4, sample_count: 45, former: None, peers_at };
        let effects = self.desk.say(session, ToServer::Join(join));
        self.see(&effects);
        let joined = effects.iter().find_map(|effect| match effect {
            ControlEffect::Send { message: ToPeer::Joined { worker, incarnation, .. }, .. } => {
                Some((*worker, *incarnation))
            }
            _ => None,
        });
        if let Some((worker, incarnation)) = joined {
            let effects = self.desk.register(session, worker, incarnation);
            self.see(&effects);
        }
    }

    fn see(&mut self, effects: &[ControlEffect]) {
        for effect in effects {
            match effect {
                ControlEffect::Send { session, message } => {
                    let is_open = self.sessions.contains(&Some(session.0));
                    assert!(is_open, "{session} has gone and is told {message:?}");
                    if let ToPeer::Joined { incarnation, .. } = message {
                        assert!(Some(*incarnation) > self.given, "{incarnation} after {:?}", self.given);
                        self.given = Some(*incarnation);
                    }
                }
                ControlEffect::Shards(ShardEvent::Enter { worker, incarnation, .. }) => {
                    let former = self.entered.insert(*worker, *incarnation);
                    assert!(former <= Some(*incarnation), "{worker}: {incarnation} after {former:?}");
                }
                _ => {}
            }
        }
        let Control { members, coordinator, sessions, .. } = &self.desk.control;
        if let Some(coordinator) = coordinator {
            assert!(members.len() <= coordinator.workers_max() as usize, "more members than there may be");
        }
        assert!(members.len() <= members.ever(), "a member that nothing fences");
        assert_eq!(sessions.len(), self.sessions.iter().flatten().count(), "sessions that nobody has");
        // What people are told is made without a fault too.
        let now = self.desk.now;
        let _ = (self.desk.control.phase(now), self.desk.control.waits(now), self.desk.control.repeats());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    // Case 7: a stale token ended the coordinator. Cases 7 and 17 of the allreduce list: what one peer sent crashed the healthy ones.
    #[test]
    fn no_peer_and_no_order_of_messages_breaks_control(
        run in any_run(),
        deeds in prop::collection::vec(deed(), 0..60),
    ) {
        let mut watch = Watch::new(run);
        for deed in deeds {
            watch.happen(deed);
        }
        // Whatever is left can be kept and gone on from, as a coordinator that is restarted does; an allreduce keeps nothing.
        if watch.desk.control.coordinator.is_some() {
            let state = watch.desk.control.state();
            prop_assert!(matches!(state, Ok(_) | Err(StateError::Allreduce)), "{state:?}");
        }
    }
}

// Case 7: a stale token ended the coordinator. The two orders that were reported, in words.
#[test]
fn a_stale_leave_and_an_enter_after_finish_do_no_harm() {
    let mut desk = Desk::new(settings(2));
    let (worker, incarnation) = desk.enlist(0);
    let other = desk.enlist(1);
    desk.open(2, Role::Worker);
    desk.register(2, worker, incarnation);
    // Its former session: what still comes over it counts for nothing.
    let leave = |outcome| ToServer::Leave(Leave { outcome, report: None });
    assert!(desk.say(0, leave(Outcome::Interrupted)).is_empty());
    assert!(desk.control.members.is_member(worker, incarnation));
    // A worker that left is no member, and is told so.
    desk.say(2, leave(Outcome::Interrupted));
    for message in [leave(Outcome::Done), ToServer::Enter { clock: Clock(3) }] {
        assert_eq!(refusals(&desk.say(2, message))[0].0, RefusalCode::Fenced);
    }
    assert_eq!(desk.control.refused().fenced, 2, "late words are counted");
    // One that has no work comes back into the clock table as often as it likes.
    let finished = ControlEffect::Shards(ShardEvent::Finish { worker: other.0 });
    let entered = ControlEffect::Shards(ShardEvent::Reenter { worker: other.0, clock: Clock(4) });
    for _ in 0..2 {
        assert!(desk.say(1, ToServer::Finish).contains(&finished));
        assert!(desk.say(1, ToServer::Enter { clock: Clock(4) }).contains(&entered));
    }
    assert!(desk.control.members.is_member(other.0, other.1));
}
