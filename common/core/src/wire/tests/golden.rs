//! The bytes of every message, worked out from the layout and not printed by the encoder: fixed-width little-endian numbers,
//! a `u32` for the variant of an enum, a byte for an option, a `u64` before a text, a list or a map. A space stands between two
//! fields.
//!
//! A change here is a change of the protocol: raise [`PROTOCOL`](super::PROTOCOL) with it.

use crate::consistency::DropReason;
use crate::ids::{BatchIndex, Clock, Incarnation, Sequence, ServerId, ShardId, Version, WorkerId};
use crate::wire::*;

use super::samples::{bare_status, full_status, header, pushed, refused, report};
use super::{cluster, groups};

/// What the message says, the message, its bytes in hexadecimal.
pub(super) type Golden<M> = (&'static str, M, &'static str);

/// Every message to a server.
pub(super) fn to_server() -> Vec<Golden<ToServer>> {
    [sessions(), work(), ends(), groups::to_server(), cluster::to_server()].into_iter().flatten().collect()
}

/// Every message to a peer.
pub(super) fn to_peer() -> Vec<Golden<ToPeer>> {
    [orders(), answers(), phases(), full(), groups::to_peer(), cluster::to_peer()]
        .into_iter()
        .flatten()
        .collect()
}

/// Hexadecimal digits, spaces between them allowed, as bytes.
pub(super) fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        hex.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// A worker comes, lives and idles.
fn sessions() -> Vec<Golden<ToServer>> {
    vec![
        (
            "a newcomer joins",
            ToServer::Join(Join {
                layout_hash: 1,
                config_hash: 2,
                data_hash: 3,
                sample_count: 4,
                former: None,
                peers_at: None,
            }),
            "00000000 0100000000000000 0200000000000000 0300000000000000 0400000000000000 00 00",
        ),
        (
            "a former worker joins",
            ToServer::Join(Join {
                layout_hash: 1,
                config_hash: 2,
                data_hash: 3,
                sample_count: 4,
                former: Some((WorkerId(5), Incarnation(6))),
                peers_at: Some(Text::new(":7")),
            }),
            "00000000 0100000000000000 0200000000000000 0300000000000000 0400000000000000 01 05000000 \
             0600000000000000 01 0200000000000000 3a37",
        ),
        (
            "register",
            ToServer::Register(Register {
                worker: WorkerId(1),
                incarnation: Incarnation(2),
                layout_hash: 3,
                config_hash: 4,
                clock: Clock(5),
                batch_count: 6,
                answered: Sequence(7),
            }),
            "01000000 01000000 0200000000000000 0300000000000000 0400000000000000 0500000000000000 \
             0600000000000000 0700000000000000",
        ),
        ("renew", ToServer::Renew, "02000000"),
        ("enter at clock 7", ToServer::Enter { clock: Clock(7) }, "03000000 0700000000000000"),
        ("finish", ToServer::Finish, "04000000"),
    ]
}

/// A worker works.
fn work() -> Vec<Golden<ToServer>> {
    vec![
        (
            "ask for the first work",
            ToServer::Ask(Ask { clock: Clock(0), results: Vec::new(), report: None }),
            "05000000 0000000000000000 0000000000000000 00",
        ),
        (
            "ask with all there is to say",
            ToServer::Ask(Ask {
                clock: Clock(1),
                results: vec![
                    BatchResult {
                        number: 2,
                        batch: BatchIndex(3),
                        clock: Clock(4),
                        fate: Fate::Done { compute_us: 5 },
                    },
                    BatchResult { number: 6, batch: BatchIndex(7), clock: Clock(8), fate: Fate::Returned },
                ],
                report: Some(report()),
            }),
            "05000000 0100000000000000 0200000000000000 0200000000000000 0300000000000000 0400000000000000 \
             00000000 0500000000000000 0600000000000000 0700000000000000 0800000000000000 01000000 01 \
             0100000000000000 \
             0200000000000000 000000000000e03f 0300000000000000 0400000000000000 0500000000000000 \
             1900000000000000 0600000000000000 0700000000000000 0800000000000000 0900000000000000 0a00000000000000 \
             0b00000000000000 0c00000000000000 0d00000000000000 0e00000000000000 0f00000000000000 \
             1000000000000000 1100000000000000 1400000000000000 1500000000000000 1600000000000000 \
             1700000000000000 1800000000000000 1a00000000000000 1200000000000000 1300000000000000 0200000000000000 \
             00000000 0200000000000000 03000000 0100000000000000 0300000000000000 0300000000000000 \
             0200000000000000 01000000 0100000000000000 1f010000 0100000000000000 e903000000000000 \
             e803000000000000",
        ),
        (
            "a gated pull",
            ToServer::Pull(Pull {
                shard: ShardId(1),
                request: 2,
                have: 6,
                kind: PullKind::Gated { clock: Clock(3), after: Sequence(4), ahead: 5 },
            }),
            "06000000 01000000 0200000000000000 0600000000000000 00000000 0300000000000000 0400000000000000 0500000000000000",
        ),
        (
            "a pull of a snapshot",
            ToServer::Pull(Pull { shard: ShardId(1), request: 2, have: 6, kind: PullKind::Snapshot }),
            "06000000 01000000 0200000000000000 0600000000000000 01000000",
        ),
        (
            "a pull for fresher values",
            ToServer::Pull(Pull {
                shard: ShardId(1),
                request: 2,
                have: 6,
                kind: PullKind::Fresher { clock: Clock(3), after: Sequence(4), seen: Clock(5) },
            }),
            "06000000 01000000 0200000000000000 0600000000000000 02000000 0300000000000000 0400000000000000 0500000000000000",
        ),
        (
            "a push of nothing",
            ToServer::PushNothing {
                shard: ShardId(1),
                sequence: Sequence(2),
                clock: Clock(3),
                reply: 4,
                have: 5,
            },
            "07000000 01000000 0200000000000000 0300000000000000 0400000000000000 0500000000000000",
        ),
        (
            "the result of an evaluation",
            ToServer::Evaluated(Evaluated { at_samples: 1, loss: 0.25, accuracy: 0.875, report: None }),
            "08000000 0100000000000000 000000000000d03f 000000000000ec3f 00",
        ),
    ]
}

/// Somebody goes, looks or stops.
fn ends() -> Vec<Golden<ToServer>> {
    vec![
        (
            "leave: done",
            ToServer::Leave(Leave { outcome: Outcome::Done, report: None }),
            "09000000 00000000 00",
        ),
        (
            "leave: interrupted",
            ToServer::Leave(Leave { outcome: Outcome::Interrupted, report: None }),
            "09000000 01000000 00",
        ),
        (
            "leave: bad gradient",
            ToServer::Leave(Leave { outcome: Outcome::BadGradient(Text::new("NaN")), report: None }),
            "09000000 02000000 0300000000000000 4e614e 00",
        ),
        (
            "leave: failed",
            ToServer::Leave(Leave { outcome: Outcome::Failed(Text::new("\u{e9}")), report: None }),
            "09000000 03000000 0200000000000000 c3a9 00",
        ),
        ("status, please", ToServer::Status, "0a000000"),
        ("stop", ToServer::Stop { reason: Text::new("over") }, "0b000000 0400000000000000 6f766572"),
        ("stop without a reason", ToServer::Stop { reason: Text::default() }, "0b000000 0000000000000000"),
    ]
}

/// What a worker is told to do.
fn orders() -> Vec<Golden<ToPeer>> {
    vec![
        (
            "welcome",
            ToPeer::Welcome { protocol: 1, server: ServerId(2), boot: 3 },
            "00000000 01000000 02000000 0300000000000000",
        ),
        (
            "joined",
            ToPeer::Joined { worker: WorkerId(1), incarnation: Incarnation(2), clock: Clock(3) },
            "01000000 01000000 0200000000000000 0300000000000000",
        ),
        ("registered, values wanted", ToPeer::Registered { has_values: false }, "02000000 00"),
        ("registered", ToPeer::Registered { has_values: true }, "02000000 01"),
        (
            "a batch",
            ToPeer::Work(Work::Batch { batch: BatchIndex(1), units: 4, evaluate: None, enter: None }),
            "03000000 00000000 0100000000000000 04000000 00 00",
        ),
        (
            "a batch and an evaluation",
            ToPeer::Work(Work::Batch {
                batch: BatchIndex(1),
                units: 4,
                evaluate: Some(2),
                enter: Some(Clock(3)),
            }),
            "03000000 00000000 0100000000000000 04000000 01 0200000000000000 01 0300000000000000",
        ),
        ("no work now", ToPeer::Work(Work::Idle), "03000000 01000000"),
        (
            "evaluate the final values",
            ToPeer::Work(Work::Evaluate { at_samples: 1 }),
            "03000000 02000000 0100000000000000",
        ),
        ("all work is done", ToPeer::Work(Work::Done), "03000000 03000000"),
    ]
}

/// What became of a push; refusals.
fn answers() -> Vec<Golden<ToPeer>> {
    vec![
        (
            "pushed: applied",
            pushed(PushOutcome::Applied { version: Version(4), staleness: 5, down_weighted: true }),
            "04000000 01000000 0200000000000000 01 0300000000000000 00000000 0400000000000000 \
             0500000000000000 01 0800000000000000 0900000000000000",
        ),
        (
            "pushed: dropped",
            pushed(PushOutcome::Dropped(DropReason::LateClock { open: Clock(6) })),
            "04000000 01000000 0200000000000000 01 0300000000000000 01000000 00000000 \
             0600000000000000 0800000000000000 0900000000000000",
        ),
        (
            "pushed: too stale",
            pushed(PushOutcome::Dropped(DropReason::TooStale { staleness: 6 })),
            "04000000 01000000 0200000000000000 01 0300000000000000 01000000 01000000 \
             0600000000000000 0800000000000000 0900000000000000",
        ),
        (
            "pushed: gathered",
            pushed(PushOutcome::Gathered { staleness: 5, down_weighted: false }),
            "04000000 01000000 0200000000000000 01 0300000000000000 08000000 0500000000000000 00 \
             0800000000000000 0900000000000000",
        ),
        (
            "pushed: nothing",
            pushed(PushOutcome::Nothing),
            "04000000 01000000 0200000000000000 01 0300000000000000 02000000 0800000000000000 0900000000000000",
        ),
        (
            "pushed: not finite",
            pushed(PushOutcome::NotFinite { key: 7 }),
            "04000000 01000000 0200000000000000 01 0300000000000000 03000000 0700000000000000 \
             0800000000000000 0900000000000000",
        ),
        (
            "pushed: fenced",
            pushed(PushOutcome::Fenced),
            "04000000 01000000 0200000000000000 01 0300000000000000 04000000 0800000000000000 0900000000000000",
        ),
        (
            "pushed: out of window",
            pushed(PushOutcome::OutOfWindow),
            "04000000 01000000 0200000000000000 01 0300000000000000 05000000 0800000000000000 0900000000000000",
        ),
        (
            "pushed: wrong keys",
            pushed(PushOutcome::WrongKeys),
            "04000000 01000000 0200000000000000 01 0300000000000000 06000000 0800000000000000 0900000000000000",
        ),
        (
            "pushed: beyond the norm",
            pushed(PushOutcome::Guarded(Guarded::Norm)),
            "04000000 01000000 0200000000000000 01 0300000000000000 07000000 00000000 0800000000000000 \
             0900000000000000",
        ),
        (
            "pushed: too often",
            pushed(PushOutcome::Guarded(Guarded::Rate)),
            "04000000 01000000 0200000000000000 01 0300000000000000 07000000 01000000 0800000000000000 \
             0900000000000000",
        ),
        ("refused: Role", refused(RefusalCode::Role), "06000000 00000000 0200000000000000 6e6f"),
        ("refused: Mismatch", refused(RefusalCode::Mismatch), "06000000 01000000 0200000000000000 6e6f"),
        ("refused: Fenced", refused(RefusalCode::Fenced), "06000000 02000000 0200000000000000 6e6f"),
        ("refused: OutOfPlace", refused(RefusalCode::OutOfPlace), "06000000 03000000 0200000000000000 6e6f"),
        ("refused: Full", refused(RefusalCode::Full), "06000000 04000000 0200000000000000 6e6f"),
        ("refused: Malformed", refused(RefusalCode::Malformed), "06000000 05000000 0200000000000000 6e6f"),
        ("refused: RunOver", refused(RefusalCode::RunOver), "06000000 06000000 0200000000000000 6e6f"),
        ("refused: Stopped", refused(RefusalCode::Stopped), "06000000 07000000 0200000000000000 6e6f"),
        ("refused: NotReady", refused(RefusalCode::NotReady), "06000000 08000000 0200000000000000 6e6f"),
        ("goodbye", ToPeer::Goodbye, "07000000"),
        ("renewed", ToPeer::Renewed, "08000000"),
        ("overtaken", ToPeer::Overtaken { open: Clock(5) }, "09000000 0500000000000000"),
    ]
}

/// A status in every phase.
fn phases() -> Vec<Golden<ToPeer>> {
    vec![
        (
            "status: waiting",
            ToPeer::Status(Box::new(bare_status(Phase::Waiting { here: 5, wanted: 6, since_ms: 7 }))),
            "05000000 09000000 00000000 05000000 06000000 0700000000000000 00 0000000000000000 \
             00000000 0000000000000000 0000000000000000 0100000000000000 0200000000000000 \
             0300000000000000 0400000000000000 0000000000000000 \
             00000000 0000000000000000 0000000000000000",
        ),
        (
            "status: running",
            ToPeer::Status(Box::new(bare_status(Phase::Running))),
            "05000000 09000000 01000000 00 0000000000000000 00000000 0000000000000000 \
             0000000000000000 0100000000000000 0200000000000000 0300000000000000 0400000000000000 0000000000000000 \
             00000000 0000000000000000 0000000000000000",
        ),
        (
            "status: finished",
            ToPeer::Status(Box::new(bare_status(Phase::Finished))),
            "05000000 09000000 02000000 00 0000000000000000 00000000 0000000000000000 \
             0000000000000000 0100000000000000 0200000000000000 0300000000000000 0400000000000000 0000000000000000 \
             00000000 0000000000000000 0000000000000000",
        ),
        (
            "status: failed",
            ToPeer::Status(Box::new(bare_status(Phase::Failed(Text::new("why"))))),
            "05000000 09000000 03000000 0300000000000000 776879 00 0000000000000000 00000000 \
             0000000000000000 0000000000000000 0100000000000000 0200000000000000 0300000000000000 \
             0400000000000000 0000000000000000 \
             00000000 0000000000000000 0000000000000000",
        ),
        (
            "status: left, unkept",
            ToPeer::Status(Box::new(bare_status(Phase::Left(FinalValues::Unkept)))),
            "05000000 09000000 04000000 00000000 00 0000000000000000 00000000 \
             0000000000000000 0000000000000000 0100000000000000 0200000000000000 0300000000000000 \
             0400000000000000 0000000000000000 \
             00000000 0000000000000000 0000000000000000",
        ),
        (
            "status: left, keeping",
            ToPeer::Status(Box::new(bare_status(Phase::Left(FinalValues::Keeping)))),
            "05000000 09000000 04000000 01000000 00 0000000000000000 00000000 \
             0000000000000000 0000000000000000 0100000000000000 0200000000000000 0300000000000000 \
             0400000000000000 0000000000000000 \
             00000000 0000000000000000 0000000000000000",
        ),
        (
            "status: left, kept",
            ToPeer::Status(Box::new(bare_status(Phase::Left(FinalValues::Kept { number: 5 })))),
            "05000000 09000000 04000000 02000000 0500000000000000 00 0000000000000000 00000000 \
             0000000000000000 0000000000000000 0100000000000000 0200000000000000 0300000000000000 \
             0400000000000000 0000000000000000 \
             00000000 0000000000000000 0000000000000000",
        ),
    ]
}

/// A status in which every row and reason occurs.
fn full() -> Vec<Golden<ToPeer>> {
    vec![(
        "status with rows of every kind",
        ToPeer::Status(Box::new(full_status())),
        "05000000 09000000 01000000 01 0100000000000000 0200000000000000 0300000000000000 \
             0000000000001040 000000000000e03f 000000000000d03f 000000000000c03f 000000000000f0bf \
             0200000000000000 01000000 0200000000000000 0700000000000000 5b3a3a315d3a39 01 \
             0300000000000000 0400000000000000 05000000 0200000000000000 0000000000000000 00 \
             0700000000000000 0a000000 0400000000000000 01000000 02000000 0300000000000000 \
             0400000000000000 00000000 05000000 0600000000000000 0700000000000000 01000000 02000000 \
             0300000000000000 0400000000000000 01000000 0800000000000000 01000000 02000000 \
             0300000000000000 0400000000000000 02000000 01000000 02000000 0300000000000000 \
             0400000000000000 03000000 0200000000000000 01000000 0200000000000000 0300000000000000 \
             0400000000000000 01 0500000000000000 01 06000000 0700000000000000 0800000000000000 \
             0900000000000000 00 00 0100000000000000 0200000000000000 0300000000000000 \
             0400000000000000 \
             0200000000000000 01000000 0300000000000000 613a31 01 0200000000000000 01 0300000000000000 01 \
             04000000 05000000 0100000000000000 78 06000000 0000000000000000 00 00 00 00000000 00000000 \
             0000000000000000 07000000 0600000000000000 \
             01000000 0200000000000000 03000000 00000000 0400000000000000 \
             01000000 0200000000000000 03000000 01000000 0400000000000000 \
             01000000 0200000000000000 03000000 02000000 0400000000000000 \
             01000000 0200000000000000 03000000 03000000 08000000 0400000000000000 \
             01000000 0200000000000000 03000000 04000000 09000000 0400000000000000 \
             01000000 0200000000000000 03000000 05000000 0400000000000000 \
             0100000000000000 0100000000000000 0100000000000000 77",
    )]
}

/// A header of every kind.
pub(super) fn headers() -> Vec<Golden<TransferHeader>> {
    vec![
        (
            "Push",
            header(TransferKind::Push),
            "534c4b54 0800 01 01 01000000 02000000 0300000000000000 0400000000000000 3200000000000000 \
             0500000000000000 0600000000000000 0700000000000000 0800000000000000 09000000 0a000000 \
             6400000000000000 3200000000000000 0a00000000000000 1400000000000000 0b00000000000000 \
             0c00000000000000 0d00000000000000",
        ),
        (
            "Initial",
            header(TransferKind::Initial),
            "534c4b54 0800 02 01 01000000 02000000 0300000000000000 0400000000000000 3200000000000000 \
             0500000000000000 0600000000000000 0700000000000000 0800000000000000 09000000 0a000000 \
             6400000000000000 3200000000000000 0a00000000000000 1400000000000000 0b00000000000000 \
             0c00000000000000 0d00000000000000",
        ),
        (
            "Values",
            header(TransferKind::Values),
            "534c4b54 0800 03 01 01000000 02000000 0300000000000000 0400000000000000 3200000000000000 \
             0500000000000000 0600000000000000 0700000000000000 0800000000000000 09000000 0a000000 \
             6400000000000000 3200000000000000 0a00000000000000 1400000000000000 0b00000000000000 \
             0c00000000000000 0d00000000000000",
        ),
        (
            "Part",
            header(TransferKind::Part),
            "534c4b54 0800 04 01 01000000 02000000 0300000000000000 0400000000000000 3200000000000000 \
             0500000000000000 0600000000000000 0700000000000000 0800000000000000 09000000 0a000000 \
             6400000000000000 3200000000000000 0a00000000000000 1400000000000000 0b00000000000000 \
             0c00000000000000 0d00000000000000",
        ),
        (
            "State",
            header(TransferKind::State),
            "534c4b54 0800 05 01 01000000 02000000 0300000000000000 0400000000000000 3200000000000000 \
             0500000000000000 0600000000000000 0700000000000000 0800000000000000 09000000 0a000000 \
             6400000000000000 3200000000000000 0a00000000000000 1400000000000000 0b00000000000000 \
             0c00000000000000 0d00000000000000",
        ),
        (
            "Probe",
            header(TransferKind::Probe),
            "534c4b54 0800 06 01 01000000 02000000 0300000000000000 0400000000000000 3200000000000000 \
             0500000000000000 0600000000000000 0700000000000000 0800000000000000 09000000 0a000000 \
             6400000000000000 3200000000000000 0a00000000000000 1400000000000000 0b00000000000000 \
             0c00000000000000 0d00000000000000",
        ),
    ]
}
