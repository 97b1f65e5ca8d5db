//! What a stranger sends: nothing of it panics a reader, and none of it makes a reader allocate much.
//!
//! Counted by an allocator that notes the largest request of each thread.

#![allow(clippy::unwrap_used, missing_docs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use slackline_core::collective::Topology;
use slackline_core::histogram::Histogram;
use slackline_core::ids::{
    BatchIndex, Clock, Generation, Incarnation, KeyRange, Sequence, ServerId, ShardId, Version, WorkerId,
};
use slackline_core::limits::{CONTROL_BYTES_MAX, VALUE_COUNT_MAX};
use slackline_core::schedule::random_stream;
use slackline_core::wire::*;

const FRAMES: usize = 1_000_000;

/// Bytes of one allocation that no message may exceed.
const ALLOCATION_MAX: usize = 2 * CONTROL_BYTES_MAX;

/// Lengths that no message can keep.
const ABSURD: [u64; 8] =
    [1 << 16, 1 << 20, 1 << 32, (1 << 32) + 1, 1 << 60, i64::MAX as u64, 1 << 63, u64::MAX];

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct Noting;

// SAFETY: every call goes to the system's allocator unchanged; the note is a plain number of the thread, without a destructor.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static NOTING: Noting = Noting;

/// What `run` returns, and the largest allocation it asked for.
fn largest_allocation<T>(run: impl FnOnce() -> T) -> (T, usize) {
    LARGEST.with(|largest| largest.set(0));
    let result = run();
    (result, LARGEST.with(Cell::get))
}

fn histogram(values: &[u64]) -> Histogram {
    let mut histogram = Histogram::default();
    values.iter().for_each(|value| histogram.record(*value));
    histogram
}

fn to_server() -> Vec<ToServer> {
    let report =
        Report { clock_lead: histogram(&[0, 1, 1]), version_staleness: histogram(&[7]), ..Report::default() };
    let (shard, clock, text) = (ShardId(1), Clock(2), Text::new("a text"));
    vec![
        ToServer::Join(Join {
            layout_hash: 1,
            config_hash: 2,
            data_hash: 3,
            sample_count: 4,
            former: Some((WorkerId(5), Incarnation(6))),
            peers_at: Some(text.clone()),
        }),
        ToServer::Renew,
        ToServer::Enter { clock },
        ToServer::Ask(Ask {
            clock,
            results: vec![
                BatchResult {
                    number: 1,
                    batch: BatchIndex(1),
                    clock,
                    fate: Fate::Done { compute_us: 1 },
                };
                2
            ],
            report: Some(report),
        }),
        ToServer::Pull(Pull {
            shard,
            request: 2,
            have: 1,
            kind: PullKind::Gated { clock, after: Sequence(3), ahead: 0 },
        }),
        ToServer::PushNothing { shard, sequence: Sequence(2), clock, reply: 3, have: 2 },
        ToServer::Leave(Leave { outcome: Outcome::Failed(text.clone()), report: None }),
        ToServer::Ready(Ready { generation: Generation(1), clock, units: 2, measured: None }),
        ToServer::Trouble(Trouble { generation: Generation(1), worker: WorkerId(2), reason: text.clone() }),
        ToServer::Stepped(Stepped {
            generation: Generation(1),
            clock,
            units: 2,
            report: Some(Report::default()),
        }),
        ToServer::Commit { sequence: Sequence(1) },
        ToServer::Cluster(ServerWord::Here(Here {
            server: ServerId(1),
            boot: 2,
            layout_hash: 3,
            config_hash: 4,
            holds: vec![Holding { shard, generation: Generation(1), is_whole: true, on_disk: true }; 2],
        })),
        ToServer::Cluster(ServerWord::Saved { number: 1, shard, entry: vec![1, 2, 3] }),
        ToServer::Cluster(ServerWord::Doubt(Doubt {
            shard,
            worker: WorkerId(1),
            incarnation: Incarnation(2),
            applied: Sequence(3),
            waiting: vec![Sequence(4)],
        })),
        ToServer::Cluster(ServerWord::Trouble(Some(text.clone()))),
        ToServer::Stop { reason: text },
    ]
}

fn bare_status() -> Status {
    Status {
        server: ServerId(1),
        phase: Phase::Running,
        progress: None,
        members: Vec::new(),
        members_hidden: 0,
        held: Vec::new(),
        shards: Vec::new(),
        refused: RefusedCounts::default(),
        servers: Vec::new(),
        servers_hidden: 0,
        places: Vec::new(),
        waits: Vec::new(),
    }
}

fn to_peer() -> Vec<ToPeer> {
    let (worker, incarnation, shard, clock) = (WorkerId(1), Incarnation(2), ShardId(3), Clock(4));
    let member =
        MemberRow { worker, incarnation, address: Text::new("[::1]:9"), clock: Some(clock), heard_ms: 5 };
    let row =
        ShardRow { shard, keys: KeyRange::new(1, 2), version: Version(3), minimum: None, has_values: true };
    let outcome = PushOutcome::Applied { version: Version(1), staleness: 2, down_weighted: true };
    vec![
        ToPeer::Welcome { protocol: PROTOCOL, server: ServerId(1), boot: 2 },
        ToPeer::Joined { worker, incarnation, clock },
        ToPeer::Registered { has_values: true },
        ToPeer::Work(Work::Batch { batch: BatchIndex(1), units: 1, evaluate: Some(2), enter: Some(clock) }),
        ToPeer::Pushed(Pushed {
            shard,
            sequence: Sequence(1),
            duplicate: false,
            clock,
            outcome,
            held_us: 2,
            busy_us: 3,
        }),
        ToPeer::Status(Box::new(Status { members: vec![member; 2], shards: vec![row], ..bare_status() })),
        ToPeer::Group(Group {
            run: 1,
            generation: Generation(2),
            topology: Topology::Torus { x: 1, y: 2 },
            members: vec![GroupMember { worker, incarnation, address: Text::new("a:1") }; 2],
            clock,
            units: 3,
            source: Some(worker),
        }),
        ToPeer::Regroup { generation: Generation(1) },
        ToPeer::Staged { shard, sequence: Sequence(1) },
        ToPeer::Placed(vec![Placed { shard, generation: Generation(1), server: ServerId(2) }; 2]),
        ToPeer::Cluster(ServerOrder::Places {
            number: 1,
            run: 2,
            from: Some(3),
            places: vec![
                Place {
                    shard,
                    generation: Generation(1),
                    primary: ServerId(1),
                    backup: Some(Backup { server: ServerId(2), in_step: true }),
                    origin: Origin::Checkpoint { number: 3 },
                };
                2
            ],
        }),
        ToPeer::Cluster(ServerOrder::Mark(Mark {
            number: 1,
            cuts: vec![(worker, clock); 2],
            rest: Some(clock),
        })),
        ToPeer::Refused(Refusal { code: RefusalCode::Full, text: Text::new("no") }),
    ]
}

fn headers() -> impl Iterator<Item = TransferHeader> {
    let kinds = [
        TransferKind::Push,
        TransferKind::Initial,
        TransferKind::Values,
        TransferKind::Part,
        TransferKind::State,
        TransferKind::Probe,
    ];
    kinds.into_iter().map(|kind| TransferHeader {
        worker: WorkerId(2),
        incarnation: Incarnation(3),
        sequence: Sequence(4),
        clock: Clock(5),
        version: Version(6),
        batch: BatchIndex(7),
        lead: 8,
        samples: 9,
        stripe_count: 2,
        stripe: Stripe::new(10, 20),
        held_us: 10,
        reply: 11,
        have: 12,
        ..TransferHeader::plain(kind, ShardId(1), KeyRange::new(100, 50))
    })
}

/// Valid bytes to begin from.
fn valid() -> Vec<Vec<u8>> {
    let server = to_server().into_iter().map(|message| encode(&message).unwrap());
    let peer = to_peer().into_iter().map(|message| encode(&message).unwrap());
    let hello = Hello {
        protocol: PROTOCOL,
        run: 1,
        generation: Generation(2),
        layout_hash: 3,
        config_hash: 4,
        worker: WorkerId(5),
        incarnation: Incarnation(6),
    };
    let between =
        [PeerMessage::Hello(hello), PeerMessage::WantState { clock: Clock(1) }, PeerMessage::Ping(2)];
    let between = between.map(|message| encode(&message).unwrap());
    server.chain(peer).chain(between).chain(headers().map(|header| header.to_bytes().to_vec())).collect()
}

fn below(random: &mut ChaCha8Rng, bound: usize) -> usize {
    random.next_u64() as usize % bound.max(1)
}

/// Writes noise of 0 to 255 bytes into `frame`.
fn noise(random: &mut ChaCha8Rng, frame: &mut Vec<u8>) {
    frame.resize(below(random, 256), 0);
    random.fill_bytes(frame);
}

/// Writes something that was valid once into `frame`.
fn mutation(random: &mut ChaCha8Rng, valid: &[Vec<u8>], frame: &mut Vec<u8>) {
    frame.clear();
    frame.extend_from_slice(&valid[below(random, valid.len())]);
    match below(random, 4) {
        0 => {
            for _ in 0..=below(random, 8) {
                let bit = below(random, 8 * frame.len());
                frame[bit / 8] ^= 1 << (bit % 8);
            }
        }
        1 => frame.truncate(below(random, frame.len())),
        2 => {
            let other = &valid[below(random, valid.len())];
            frame.truncate(below(random, frame.len() + 1));
            frame.extend_from_slice(&other[below(random, other.len())..]);
        }
        _ => {
            let lie = ABSURD[below(random, ABSURD.len())].to_le_bytes();
            let at = below(random, frame.len());
            let end = frame.len().min(at + 8);
            frame[at..end].copy_from_slice(&lie[..end - at]);
        }
    }
}

/// A header from the first bytes, zeros behind them when there are too few.
fn decode_header(frame: &[u8]) -> Result<TransferHeader, WireError> {
    let mut bytes = [0; HEADER_BYTES];
    let length = frame.len().min(HEADER_BYTES);
    bytes[..length].copy_from_slice(&frame[..length]);
    TransferHeader::from_bytes(&bytes)
}

#[test]
fn a_million_frames_of_noise_and_damage_neither_panic_nor_allocate_much() {
    let valid = valid();
    let mut random = random_stream(20_261, 0);
    let mut frame = Vec::with_capacity(1024);
    let mut accepted = [0; 4];
    for index in 0..FRAMES {
        if index % 2 == 0 {
            noise(&mut random, &mut frame);
        } else {
            mutation(&mut random, &valid, &mut frame);
        }
        let (read, largest) = largest_allocation(|| {
            let server = decode::<ToServer>(&frame).is_ok();
            let peer = decode::<ToPeer>(&frame).is_ok();
            let between = decode::<PeerMessage>(&frame).is_ok();
            (server, peer, between, decode_header(&frame))
        });
        assert!(largest <= ALLOCATION_MAX, "frame {index} made its reader allocate {largest} bytes at once");
        accepted[0] += usize::from(read.0);
        accepted[1] += usize::from(read.1);
        accepted[2] += usize::from(read.2);
        if let Ok(header) = read.3 {
            accepted[3] += 1;
            let end = header.stripe.start.checked_add(header.stripe.len).unwrap();
            assert!(
                end <= header.words && header.keys.start + header.keys.len <= VALUE_COUNT_MAX,
                "frame {index}"
            );
        }
    }
    // Otherwise the damage was so great that the readers gave up at the first byte and nothing was tested.
    assert!(accepted.iter().all(|count| *count > FRAMES / 1000), "{accepted:?}");
}

/// That a length at each of these places, and there alone, is refused however absurd it is.
fn lies_are_refused<M: bincode::Decode<()> + bincode::Encode>(message: &M, places: &[usize]) {
    let bytes = encode(message).unwrap();
    for place in places {
        for lie in ABSURD.into_iter().chain([1, 100, 4096]) {
            let mut bytes = bytes.clone();
            assert_eq!(bytes[*place..place + 8], [0; 8], "a length is at {place}");
            bytes[*place..place + 8].copy_from_slice(&lie.to_le_bytes());
            let (error, largest) = largest_allocation(|| decode::<M>(&bytes).err());
            assert_eq!(error, Some(WireError::Malformed), "{lie} rows at {place}");
            assert!(largest <= CONTROL_BYTES_MAX, "{lie} rows at {place}: {largest} bytes");
        }
    }
}

#[test]
fn a_text_a_list_or_a_map_that_lies_about_its_length_is_malformed() {
    lies_are_refused(&ToServer::Stop { reason: Text::default() }, &[4]);
    lies_are_refused(&Histogram::default(), &[0]);
    lies_are_refused(&ToPeer::Refused(Refusal { code: RefusalCode::Role, text: Text::default() }), &[8]);
    let report = Some(Report::default());
    let ask = ToServer::Ask(Ask { clock: Clock(0), results: Vec::new(), report });
    let end = encode(&ask).unwrap().len();
    lies_are_refused(&ask, &[end - 48, end - 24]);
    let group = Group {
        run: 1,
        generation: Generation(2),
        topology: Topology::Ring,
        members: Vec::new(),
        clock: Clock(3),
        units: 4,
        source: None,
    };
    lies_are_refused(&ToPeer::Group(group), &[24]);
    lies_are_refused(&PeerMessage::Refused(Text::default()), &[4]);
    // Behind variant, server, phase and no progress: members, hidden members, held pulls, shards.
    lies_are_refused(&ToPeer::Status(Box::new(bare_status())), &[13, 25, 33]);
}

#[test]
fn a_map_with_as_many_rows_as_a_message_holds_stays_small() {
    // 12 bytes a row on the wire, 16 in memory: what fits into a message by its bytes alone is refused by its rows.
    let map = |rows: u32| {
        let mut bytes = u64::from(rows).to_le_bytes().to_vec();
        for row in 0..rows {
            bytes.extend(row.to_le_bytes());
            bytes.extend(1_u64.to_le_bytes());
        }
        bytes.extend([0; 16]);
        bytes
    };
    for (rows, is_ok) in [(4095, true), (4096, false), (5459, false)] {
        let bytes = map(rows);
        assert!(bytes.len() <= CONTROL_BYTES_MAX);
        let (read, largest) = largest_allocation(|| decode::<Histogram>(&bytes));
        assert_eq!(read.is_ok(), is_ok, "{rows} rows");
        assert!(largest < 1024, "{rows} rows: {largest} bytes at once");
    }
    // The same row again and again is one row.
    let mut repeated = 1000_u64.to_le_bytes().to_vec();
    repeated.extend([7; 12].repeat(1000));
    repeated.extend([0; 16]);
    assert_eq!(decode::<Histogram>(&repeated).unwrap().count(), u64::from_le_bytes([7; 8]));
}
