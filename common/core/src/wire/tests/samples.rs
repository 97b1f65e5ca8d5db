//! Messages with another number in every field, so that two fields that change places are noticed.

use crate::codec::Encoding;
use crate::consistency::HoldReason;
use crate::histogram::Histogram;
use crate::ids::{
    BatchIndex, Clock, Generation, Incarnation, KeyRange, Sequence, ServerId, ShardId, Version, WorkerId,
};
use crate::wire::*;

pub(super) fn histogram(values: &[u64]) -> Histogram {
    let mut histogram = Histogram::default();
    values.iter().for_each(|value| histogram.record(*value));
    histogram
}

pub(super) fn report() -> Report {
    Report {
        iterations: 1,
        samples: 2,
        loss_sum: 0.5,
        times: Times {
            compute_us: 3,
            wait_for_clock_us: 4,
            push_us: 5,
            busy_us: 25,
            pull_us: 6,
            data_us: 7,
            evaluate_us: 8,
            total_us: 9,
        },
        bytes_pushed: 10,
        bytes_pulled: 11,
        wire_sent: 12,
        wire_received: 13,
        pushes_sent: 14,
        pushes_applied: 15,
        pushes_duplicate: 16,
        pushes_dropped: 17,
        pushes_down_weighted: 20,
        dropped_late: 21,
        dropped_stale: 22,
        dropped_not_finite: 23,
        dropped_abandoned: 24,
        dropped_guarded: 26,
        pulls_served: 18,
        pulls_held: 19,
        clock_lead: histogram(&[3, 0, 0]),
        version_staleness: histogram(&[1, 1000]),
    }
}

pub(super) const fn pushed(outcome: PushOutcome) -> ToPeer {
    ToPeer::Pushed(Pushed {
        shard: ShardId(1),
        sequence: Sequence(2),
        duplicate: true,
        clock: Clock(3),
        outcome,
        held_us: 8,
        busy_us: 9,
    })
}

pub(super) fn refused(code: RefusalCode) -> ToPeer {
    ToPeer::Refused(Refusal { code, text: Text::new("no") })
}

pub(super) fn bare_status(phase: Phase) -> Status {
    Status {
        server: ServerId(9),
        phase,
        progress: None,
        members: Vec::new(),
        members_hidden: 0,
        held: Vec::new(),
        shards: Vec::new(),
        refused: RefusedCounts { handshake: 1, role: 2, malformed: 3, fenced: 4 },
        servers: Vec::new(),
        servers_hidden: 0,
        places: Vec::new(),
        waits: Vec::new(),
    }
}

pub(super) fn member(worker: u32, address: &str) -> MemberRow {
    MemberRow {
        worker: WorkerId(worker),
        incarnation: Incarnation(2),
        address: Text::new(address),
        clock: Some(Clock(3)),
        heard_ms: 4,
    }
}

pub(super) fn full_status() -> Status {
    let held =
        |reason| HeldRow { worker: WorkerId(1), shard: ShardId(2), clock: Clock(3), since_ms: 4, reason };
    let shard = |shard, keys, version, minimum, has_values| ShardRow {
        shard: ShardId(shard),
        keys,
        version: Version(version),
        minimum,
        has_values,
    };
    Status {
        progress: Some(Progress {
            samples: 1,
            samples_total: 2,
            wall_ms: 3,
            samples_per_s: 4.0,
            loss: 0.5,
            clock_lead: 0.25,
            waiting: 0.125,
            accuracy: -1.0,
        }),
        members: vec![member(1, "[::1]:9"), MemberRow { clock: None, heard_ms: 7, ..member(5, "") }],
        members_hidden: 10,
        held: vec![
            held(HoldReason::Clock { slowest: WorkerId(5), at: Clock(6), needs: Clock(7) }),
            held(HoldReason::OwnPush { needs: Sequence(8) }),
            held(HoldReason::NotStarted),
            held(HoldReason::NoValues),
        ],
        shards: vec![
            shard(1, KeyRange::new(2, 3), 4, Some(Clock(5)), true),
            shard(6, KeyRange::new(7, 8), 9, None, false),
        ],
        servers: vec![
            ServerRow {
                server: ServerId(1),
                address: Text::new("a:1"),
                boot: Some(2),
                heard_ms: Some(3),
                is_alive: true,
                primaries: 4,
                backups: 5,
                trouble: Text::new("x"),
            },
            ServerRow {
                server: ServerId(6),
                address: Text::default(),
                boot: None,
                heard_ms: None,
                is_alive: false,
                primaries: 0,
                backups: 0,
                trouble: Text::default(),
            },
        ],
        servers_hidden: 7,
        places: [
            Lack::Primary,
            Lack::State,
            Lack::Backup,
            Lack::Step { backup: ServerId(8) },
            Lack::Copy { former: ServerId(9) },
            Lack::Room,
        ]
        .map(|lack| PlaceRow {
            shard: ShardId(1),
            generation: Generation(2),
            primary: ServerId(3),
            lack,
            since_ms: 4,
        })
        .to_vec(),
        waits: vec![WaitRow { since_ms: 1, text: Text::new("w") }],
        ..bare_status(Phase::Running)
    }
}

/// A header of `kind` with another number in every field.
pub(super) const fn header(kind: TransferKind) -> TransferHeader {
    TransferHeader {
        kind,
        encoding: Encoding::F32,
        shard: ShardId(1),
        worker: WorkerId(2),
        incarnation: Incarnation(3),
        sequence: Sequence(4),
        clock: Clock(5),
        version: Version(6),
        batch: BatchIndex(7),
        lead: 8,
        samples: 9,
        stripe_count: 10,
        keys: KeyRange::new(100, 50),
        words: 50,
        stripe: Stripe::new(10, 20),
        held_us: 11,
        reply: 12,
        have: 13,
    }
}
