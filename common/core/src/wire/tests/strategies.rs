//! Any message at all, for round trips.

use proptest::num::f64::{INFINITE, NORMAL, ZERO};
use proptest::option::of;
use proptest::prelude::*;

use super::samples::histogram;
use super::{cluster, groups};
use crate::consistency::{DropReason, HoldReason};
use crate::histogram::Histogram;
use crate::ids::{
    BatchIndex, Clock, Generation, Incarnation, KeyRange, Sequence, ServerId, ShardId, Version, WorkerId,
};
use crate::limits::ASK_RESULTS_MAX;
use crate::wire::*;

pub(super) fn clock() -> impl Strategy<Value = Clock> {
    any::<u64>().prop_map(Clock)
}

fn sequence() -> impl Strategy<Value = Sequence> {
    any::<u64>().prop_map(Sequence)
}

pub(super) fn worker() -> impl Strategy<Value = WorkerId> {
    any::<u32>().prop_map(WorkerId)
}

fn shard() -> impl Strategy<Value = ShardId> {
    any::<u32>().prop_map(ShardId)
}

pub(super) fn incarnation() -> impl Strategy<Value = Incarnation> {
    any::<u64>().prop_map(Incarnation)
}

fn batch() -> impl Strategy<Value = BatchIndex> {
    any::<u64>().prop_map(BatchIndex)
}

/// Not NaN, which does not equal itself.
pub(super) fn float() -> impl Strategy<Value = f64> {
    NORMAL | ZERO | INFINITE
}

/// Any characters, up to `most`.
pub(super) fn string(most: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(any::<char>(), 0..=most).prop_map(|letters| letters.into_iter().collect())
}

pub(super) fn text() -> impl Strategy<Value = Text> {
    string(20).prop_map(Text::new)
}

fn histograms() -> impl Strategy<Value = Histogram> {
    prop::collection::vec(prop_oneof![0..300_u64, any::<u64>()], 0..20).prop_map(|values| histogram(&values))
}

fn report() -> impl Strategy<Value = Report> {
    (any::<[u64; 26]>(), float(), histograms(), histograms()).prop_map(
        |(numbers, loss_sum, clock_lead, version_staleness)| Report {
            iterations: numbers[0],
            samples: numbers[1],
            loss_sum,
            times: Times {
                compute_us: numbers[2],
                wait_for_clock_us: numbers[3],
                push_us: numbers[4],
                busy_us: numbers[24],
                pull_us: numbers[5],
                data_us: numbers[6],
                evaluate_us: numbers[7],
                total_us: numbers[8],
            },
            bytes_pushed: numbers[9],
            bytes_pulled: numbers[10],
            wire_sent: numbers[11],
            wire_received: numbers[12],
            pushes_sent: numbers[13],
            pushes_applied: numbers[14],
            pushes_duplicate: numbers[15],
            pushes_dropped: numbers[16],
            pushes_down_weighted: numbers[19],
            dropped_late: numbers[20],
            dropped_stale: numbers[21],
            dropped_not_finite: numbers[22],
            dropped_abandoned: numbers[23],
            dropped_guarded: numbers[25],
            pulls_served: numbers[17],
            pulls_held: numbers[18],
            clock_lead,
            version_staleness,
        },
    )
}

fn joining() -> impl Strategy<Value = ToServer> {
    let join = (any::<[u64; 4]>(), of((worker(), incarnation())), of(text())).prop_map(
        |(numbers, former, peers_at)| {
            let [layout_hash, config_hash, data_hash, sample_count] = numbers;
            ToServer::Join(Join { layout_hash, config_hash, data_hash, sample_count, former, peers_at })
        },
    );
    let register = (worker(), incarnation(), any::<[u64; 3]>(), clock(), sequence());
    prop_oneof![
        join,
        register.prop_map(
            |(worker, incarnation, [layout_hash, config_hash, batch_count], clock, answered)| {
                ToServer::Register(Register {
                    worker,
                    incarnation,
                    layout_hash,
                    config_hash,
                    clock,
                    batch_count,
                    answered,
                })
            }
        ),
        clock().prop_map(|clock| ToServer::Enter { clock }),
    ]
}

fn result() -> impl Strategy<Value = BatchResult> {
    let fate =
        prop_oneof![any::<u64>().prop_map(|compute_us| Fate::Done { compute_us }), Just(Fate::Returned)];
    (any::<u64>(), batch(), clock(), fate).prop_map(|(number, batch, clock, fate)| BatchResult {
        number,
        batch,
        clock,
        fate,
    })
}

fn working() -> impl Strategy<Value = ToServer> {
    let ask = (clock(), prop::collection::vec(result(), 0..=ASK_RESULTS_MAX), of(report()));
    let kind = prop_oneof![
        (clock(), sequence(), any::<u64>()).prop_map(|(clock, after, ahead)| PullKind::Gated {
            clock,
            after,
            ahead
        }),
        Just(PullKind::Snapshot),
        (clock(), sequence(), clock()).prop_map(|(clock, after, seen)| PullKind::Fresher {
            clock,
            after,
            seen
        }),
    ];
    prop_oneof![
        ask.prop_map(|(clock, results, report)| ToServer::Ask(Ask { clock, results, report })),
        (shard(), any::<[u64; 2]>(), kind).prop_map(|(shard, [request, have], kind)| ToServer::Pull(Pull {
            shard,
            request,
            have,
            kind
        })),
        (shard(), sequence(), clock(), any::<[u64; 2]>()).prop_map(
            |(shard, sequence, clock, [reply, have])| {
                ToServer::PushNothing { shard, sequence, clock, reply, have }
            }
        ),
        (any::<u64>(), float(), float(), of(report())).prop_map(|(at_samples, loss, accuracy, report)| {
            ToServer::Evaluated(Evaluated { at_samples, loss, accuracy, report })
        }),
    ]
}

/// Any message to a server.
pub(super) fn to_server() -> impl Strategy<Value = ToServer> {
    let outcome = prop_oneof![
        Just(Outcome::Done),
        Just(Outcome::Interrupted),
        text().prop_map(Outcome::BadGradient),
        text().prop_map(Outcome::Failed),
        any::<u64>().prop_map(|batch| Outcome::Unfinished { batch: BatchIndex(batch) }),
    ];
    prop_oneof![
        3 => joining(),
        4 => working(),
        1 => (outcome, of(report())).prop_map(|(outcome, report)| ToServer::Leave(Leave { outcome, report })),
        2 => groups::any_to_server(of(report()).boxed()),
        2 => cluster::any_to_server(),
        1 => text().prop_map(|reason| ToServer::Stop { reason }),
        1 => prop::sample::select(vec![ToServer::Renew, ToServer::Finish, ToServer::Status]),
    ]
}

fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        (batch(), any::<u32>(), of(any::<u64>()), of(clock()))
            .prop_map(|(batch, units, evaluate, enter)| Work::Batch { batch, units, evaluate, enter }),
        any::<u64>().prop_map(|at_samples| Work::Evaluate { at_samples }),
        prop::sample::select(vec![Work::Idle, Work::Done]),
    ]
}

fn pushed() -> impl Strategy<Value = Pushed> {
    let outcome = prop_oneof![
        (any::<[u64; 2]>(), any::<bool>()).prop_map(|([version, staleness], down_weighted)| {
            PushOutcome::Applied { version: Version(version), staleness, down_weighted }
        }),
        (any::<u64>(), any::<bool>())
            .prop_map(|(staleness, down_weighted)| PushOutcome::Gathered { staleness, down_weighted }),
        any::<u64>().prop_map(|staleness| PushOutcome::Dropped(DropReason::TooStale { staleness })),
        clock().prop_map(|open| PushOutcome::Dropped(DropReason::LateClock { open })),
        any::<u64>().prop_map(|key| PushOutcome::NotFinite { key }),
        prop::sample::select(vec![
            PushOutcome::Nothing,
            PushOutcome::Fenced,
            PushOutcome::OutOfWindow,
            PushOutcome::WrongKeys,
            PushOutcome::Guarded(Guarded::Norm),
            PushOutcome::Guarded(Guarded::Rate),
        ]),
    ];
    (shard(), sequence(), any::<bool>(), clock(), outcome, any::<[u64; 2]>()).prop_map(
        |(shard, sequence, duplicate, clock, outcome, [held_us, busy_us])| Pushed {
            shard,
            sequence,
            duplicate,
            clock,
            outcome,
            held_us,
            busy_us,
        },
    )
}

fn held_row() -> impl Strategy<Value = HeldRow> {
    let reason = prop_oneof![
        (worker(), clock(), clock()).prop_map(|(slowest, at, needs)| HoldReason::Clock {
            slowest,
            at,
            needs
        }),
        sequence().prop_map(|needs| HoldReason::OwnPush { needs }),
        prop::sample::select(vec![HoldReason::NotStarted, HoldReason::NoValues]),
    ];
    (worker(), shard(), clock(), any::<u64>(), reason).prop_map(|(worker, shard, clock, since_ms, reason)| {
        HeldRow { worker, shard, clock, since_ms, reason }
    })
}

fn status() -> impl Strategy<Value = Status> {
    let phase = prop_oneof![
        (any::<[u32; 2]>(), any::<u64>()).prop_map(|([here, wanted], since_ms)| Phase::Waiting {
            here,
            wanted,
            since_ms
        }),
        prop::sample::select(vec![
            Phase::Running,
            Phase::Finished,
            Phase::Left(FinalValues::Unkept),
            Phase::Left(FinalValues::Keeping),
        ]),
        any::<u64>().prop_map(|number| Phase::Left(FinalValues::Kept { number })),
        text().prop_map(Phase::Failed),
    ];
    let progress = (any::<[u64; 3]>(), [float(), float(), float(), float(), float()]).prop_map(
        |([samples, samples_total, wall_ms], [samples_per_s, loss, clock_lead, waiting, accuracy])| {
            Progress { samples, samples_total, wall_ms, samples_per_s, loss, clock_lead, waiting, accuracy }
        },
    );
    let member = (worker(), incarnation(), text(), of(clock()), any::<u64>()).prop_map(
        |(worker, incarnation, address, clock, heard_ms)| MemberRow {
            worker,
            incarnation,
            address,
            clock,
            heard_ms,
        },
    );
    let row = (shard(), any::<[u64; 3]>(), of(clock()), any::<bool>()).prop_map(
        |(shard, [start, len, version], minimum, has_values)| ShardRow {
            shard,
            keys: KeyRange::new(start, len),
            version: Version(version),
            minimum,
            has_values,
        },
    );
    let lists = (
        prop::collection::vec(member, 0..4),
        prop::collection::vec(held_row(), 0..4),
        prop::collection::vec(row, 0..4),
    );
    let waits = (any::<u64>(), text()).prop_map(|(since_ms, text)| WaitRow { since_ms, text });
    let lacking = (
        prop::collection::vec(server_row(), 0..4),
        prop::collection::vec(place_row(), 0..4),
        prop::collection::vec(waits, 0..4),
    );
    (any::<[u32; 3]>(), phase, of(progress), lists, lacking, any::<[u64; 4]>()).prop_map(
        |(
            [server, members_hidden, servers_hidden],
            phase,
            progress,
            (members, held, shards),
            (servers, places, waits),
            refused,
        )| Status {
            server: ServerId(server),
            phase,
            progress,
            members,
            members_hidden,
            held,
            shards,
            refused: RefusedCounts {
                handshake: refused[0],
                role: refused[1],
                malformed: refused[2],
                fenced: refused[3],
            },
            servers,
            servers_hidden,
            places,
            waits,
        },
    )
}

fn server_row() -> impl Strategy<Value = ServerRow> {
    (any::<[u32; 3]>(), text(), of(any::<u64>()), of(any::<u64>()), any::<bool>(), text()).prop_map(
        |([server, primaries, backups], address, boot, heard_ms, is_alive, trouble)| ServerRow {
            server: ServerId(server),
            address,
            boot,
            heard_ms,
            is_alive,
            primaries,
            backups,
            trouble,
        },
    )
}

fn place_row() -> impl Strategy<Value = PlaceRow> {
    let step = any::<u32>().prop_map(|backup| Lack::Step { backup: ServerId(backup) });
    let copy = any::<u32>().prop_map(|former| Lack::Copy { former: ServerId(former) });
    let plain = prop::sample::select(vec![Lack::Primary, Lack::State, Lack::Backup, Lack::Room]);
    let lack = prop_oneof![plain, step, copy];
    (shard(), any::<[u64; 2]>(), any::<u32>(), lack).prop_map(
        |(shard, [generation, since_ms], primary, lack)| PlaceRow {
            shard,
            generation: Generation(generation),
            primary: ServerId(primary),
            lack,
            since_ms,
        },
    )
}

/// All codes of a refusal.
pub(super) const CODES: [RefusalCode; 9] = [
    RefusalCode::Role,
    RefusalCode::Mismatch,
    RefusalCode::Fenced,
    RefusalCode::OutOfPlace,
    RefusalCode::Full,
    RefusalCode::Malformed,
    RefusalCode::RunOver,
    RefusalCode::Stopped,
    RefusalCode::NotReady,
];

/// Any message to a peer.
pub(super) fn to_peer() -> impl Strategy<Value = ToPeer> {
    prop_oneof![
        (any::<[u32; 2]>(), any::<u64>()).prop_map(|([protocol, server], boot)| ToPeer::Welcome {
            protocol,
            server: ServerId(server),
            boot
        }),
        (worker(), incarnation(), clock()).prop_map(|(worker, incarnation, clock)| ToPeer::Joined {
            worker,
            incarnation,
            clock
        }),
        any::<bool>().prop_map(|has_values| ToPeer::Registered { has_values }),
        work().prop_map(ToPeer::Work),
        pushed().prop_map(ToPeer::Pushed),
        status().prop_map(|status| ToPeer::Status(Box::new(status))),
        (prop::sample::select(CODES.to_vec()), text())
            .prop_map(|(code, text)| ToPeer::Refused(Refusal { code, text })),
        Just(ToPeer::Goodbye),
        Just(ToPeer::Renewed),
        clock().prop_map(|open| ToPeer::Overtaken { open }),
        groups::any_to_peer(),
        cluster::any_to_peer(),
    ]
}
