//! What servers say to each other, and what workers hear of it: bytes, any message at all, and the largest ones.

use proptest::option::of;
use proptest::prelude::*;

use super::golden::Golden;
use super::strategies::{clock, incarnation, text, worker};
use crate::ids::{Clock, Generation, Incarnation, Sequence, ServerId, ShardId, Version, WorkerId};
use crate::limits::*;
use crate::wire::*;

const SHARD: ShardId = ShardId(1);
const GENERATION: Generation = Generation(2);

pub(super) fn to_server() -> Vec<Golden<ToServer>> {
    let mut all = vec![("commit", ToServer::Commit { sequence: Sequence(7) }, "0f000000 0700000000000000")];
    let word = |(what, word, bytes)| (what, ToServer::Cluster(word), bytes);
    all.extend(words_of_state().into_iter().chain(words_of_events()).map(word));
    all
}

fn words_of_state() -> Vec<Golden<ServerWord>> {
    let here = Here {
        server: ServerId(1),
        boot: 2,
        layout_hash: 3,
        config_hash: 4,
        holds: vec![Holding { shard: ShardId(5), generation: Generation(6), is_whole: true, on_disk: false }],
    };
    vec![
        (
            "here",
            ServerWord::Here(here),
            "10000000 00000000 01000000 0200000000000000 0300000000000000 0400000000000000 0100000000000000 \
             05000000 0600000000000000 01 00",
        ),
        ("alive", ServerWord::Alive, "10000000 01000000"),
        ("took", ServerWord::Took { number: 3 }, "10000000 02000000 0300000000000000"),
        (
            "in step",
            ServerWord::InStep { shard: SHARD, generation: GENERATION, backup: ServerId(3) },
            "10000000 03000000 01000000 0200000000000000 03000000",
        ),
        (
            "out of reach",
            ServerWord::OutOfReach { shard: SHARD, generation: GENERATION, backup: ServerId(3) },
            "10000000 04000000 01000000 0200000000000000 03000000",
        ),
        (
            "restored",
            ServerWord::Restored {
                shard: SHARD,
                generation: GENERATION,
                version: Version(3),
                clock: Clock(4),
            },
            "10000000 05000000 01000000 0200000000000000 0300000000000000 0400000000000000",
        ),
        (
            "not restored",
            ServerWord::NotRestored { shard: SHARD, generation: GENERATION, why: Text::new("no") },
            "10000000 06000000 01000000 0200000000000000 0200000000000000 6e6f",
        ),
    ]
}

fn words_of_events() -> Vec<Golden<ServerWord>> {
    vec![
        (
            "saved",
            ServerWord::Saved { number: 3, shard: SHARD, entry: vec![0x7b, 0x7d] },
            "10000000 07000000 0300000000000000 01000000 0200000000000000 7b7d",
        ),
        (
            "not saved",
            ServerWord::NotSaved { number: 3, shard: SHARD, why: Text::new("no") },
            "10000000 08000000 0300000000000000 01000000 0200000000000000 6e6f",
        ),
        (
            "a doubt",
            ServerWord::Doubt(Doubt {
                shard: SHARD,
                worker: WorkerId(2),
                incarnation: Incarnation(3),
                applied: Sequence(4),
                waiting: vec![Sequence(5), Sequence(6)],
            }),
            "10000000 09000000 01000000 02000000 0300000000000000 0400000000000000 0200000000000000 \
             0500000000000000 0600000000000000",
        ),
        ("trouble", ServerWord::Trouble(Some(Text::new("no"))), "10000000 0a000000 01 0200000000000000 6e6f"),
        ("no trouble any more", ServerWord::Trouble(None), "10000000 0a000000 00"),
        ("going", ServerWord::Going, "10000000 0b000000"),
    ]
}

pub(super) fn to_peer() -> Vec<Golden<ToPeer>> {
    let (worker, incarnation) = (WorkerId(2), Incarnation(3));
    let place =
        |backup, origin| Place { shard: SHARD, generation: GENERATION, primary: ServerId(3), backup, origin };
    let backup = Some(Backup { server: ServerId(4), in_step: true });
    let order = |(what, order, bytes)| (what, ToPeer::Cluster(order), bytes);
    let orders = [
        (
            "places",
            ServerOrder::Places {
                number: 9,
                run: 10,
                from: Some(11),
                places: vec![
                    place(backup, Origin::Checkpoint { number: 5 }),
                    place(None, Origin::Nothing),
                    place(None, Origin::Memory),
                    place(None, Origin::Disk),
                ],
            },
            "0e000000 00000000 0900000000000000 0a00000000000000 01 0b00000000000000 0400000000000000 \
             01000000 0200000000000000 03000000 01 04000000 01 03000000 0500000000000000 \
             01000000 0200000000000000 03000000 00 00000000 01000000 0200000000000000 03000000 00 01000000 \
             01000000 0200000000000000 03000000 00 02000000",
        ),
        (
            "mark",
            ServerOrder::Mark(Mark { number: 1, cuts: vec![(worker, Clock(4))], rest: Some(Clock(5)) }),
            "0e000000 01000000 0100000000000000 0100000000000000 02000000 0400000000000000 01 0500000000000000",
        ),
        ("fence", ServerOrder::Fence { worker, incarnation }, "0e000000 02000000 02000000 0300000000000000"),
        (
            "resolve",
            ServerOrder::Resolve { worker, incarnation, through: Sequence(4) },
            "0e000000 03000000 02000000 0300000000000000 0400000000000000",
        ),
        ("heard", ServerOrder::Heard, "0e000000 04000000"),
        ("go", ServerOrder::Go { is_missed: true }, "0e000000 05000000 01"),
    ];
    let mut all: Vec<Golden<ToPeer>> = orders.into_iter().map(order).collect();
    all.push((
        "staged",
        ToPeer::Staged { shard: SHARD, sequence: Sequence(2) },
        "0c000000 01000000 0200000000000000",
    ));
    all.push((
        "placed",
        ToPeer::Placed(vec![Placed { shard: SHARD, generation: GENERATION, server: ServerId(3) }]),
        "0d000000 0100000000000000 01000000 0200000000000000 03000000",
    ));
    all
}

fn shard() -> impl Strategy<Value = ShardId> {
    any::<u32>().prop_map(ShardId)
}

fn server() -> impl Strategy<Value = ServerId> {
    any::<u32>().prop_map(ServerId)
}

fn generation() -> impl Strategy<Value = Generation> {
    any::<u64>().prop_map(Generation)
}

fn sequence() -> impl Strategy<Value = Sequence> {
    any::<u64>().prop_map(Sequence)
}

fn word() -> impl Strategy<Value = ServerWord> {
    let holding =
        (shard(), generation(), any::<[bool; 2]>()).prop_map(|(shard, generation, [is_whole, on_disk])| {
            Holding { shard, generation, is_whole, on_disk }
        });
    let here = (server(), any::<[u64; 3]>(), prop::collection::vec(holding, 0..4));
    let doubt = (shard(), worker(), incarnation(), sequence(), prop::collection::vec(sequence(), 0..5));
    prop_oneof![
        here.prop_map(|(server, [boot, layout_hash, config_hash], holds)| {
            ServerWord::Here(Here { server, boot, layout_hash, config_hash, holds })
        }),
        Just(ServerWord::Alive),
        any::<u64>().prop_map(|number| ServerWord::Took { number }),
        (shard(), generation(), server()).prop_map(|(shard, generation, backup)| ServerWord::InStep {
            shard,
            generation,
            backup
        }),
        (shard(), generation(), server()).prop_map(|(shard, generation, backup)| ServerWord::OutOfReach {
            shard,
            generation,
            backup
        }),
        (shard(), generation(), any::<u64>(), clock()).prop_map(|(shard, generation, version, clock)| {
            ServerWord::Restored { shard, generation, version: Version(version), clock }
        }),
        (shard(), generation(), text()).prop_map(|(shard, generation, why)| ServerWord::NotRestored {
            shard,
            generation,
            why
        }),
        (any::<u64>(), shard(), prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(number, shard, entry)| ServerWord::Saved { number, shard, entry }),
        (any::<u64>(), shard(), text()).prop_map(|(number, shard, why)| ServerWord::NotSaved {
            number,
            shard,
            why
        }),
        doubt.prop_map(|(shard, worker, incarnation, applied, waiting)| {
            ServerWord::Doubt(Doubt { shard, worker, incarnation, applied, waiting })
        }),
        of(text()).prop_map(ServerWord::Trouble),
        Just(ServerWord::Going),
    ]
}

fn order() -> impl Strategy<Value = ServerOrder> {
    let origin = prop_oneof![
        prop::sample::select(vec![Origin::Nothing, Origin::Memory, Origin::Disk]),
        any::<u64>().prop_map(|number| Origin::Checkpoint { number }),
    ];
    let backup = (server(), any::<bool>()).prop_map(|(server, in_step)| Backup { server, in_step });
    let place = (shard(), generation(), server(), of(backup), origin).prop_map(
        |(shard, generation, primary, backup, origin)| Place { shard, generation, primary, backup, origin },
    );
    let cuts = prop::collection::vec((worker(), clock()), 0..4);
    prop_oneof![
        (any::<u64>(), any::<u64>(), of(any::<u64>()), prop::collection::vec(place, 0..4))
            .prop_map(|(number, run, from, places)| ServerOrder::Places { number, run, from, places }),
        (any::<u64>(), cuts, of(clock())).prop_map(|(number, cuts, rest)| ServerOrder::Mark(Mark {
            number,
            cuts,
            rest
        })),
        (worker(), incarnation())
            .prop_map(|(worker, incarnation)| ServerOrder::Fence { worker, incarnation }),
        (worker(), incarnation(), sequence()).prop_map(|(worker, incarnation, through)| {
            ServerOrder::Resolve { worker, incarnation, through }
        }),
        Just(ServerOrder::Heard),
        any::<bool>().prop_map(|is_missed| ServerOrder::Go { is_missed }),
    ]
}

pub(super) fn any_to_server() -> impl Strategy<Value = ToServer> {
    prop_oneof![
        1 => sequence().prop_map(|sequence| ToServer::Commit { sequence }),
        3 => word().prop_map(ToServer::Cluster),
    ]
}

pub(super) fn any_to_peer() -> impl Strategy<Value = ToPeer> {
    let placed = (shard(), generation(), server()).prop_map(|(shard, generation, server)| Placed {
        shard,
        generation,
        server,
    });
    prop_oneof![
        1 => (shard(), sequence()).prop_map(|(shard, sequence)| ToPeer::Staged { shard, sequence }),
        1 => prop::collection::vec(placed, 0..4).prop_map(ToPeer::Placed),
        3 => order().prop_map(ToPeer::Cluster),
    ]
}

fn fits<M: Encode + Decode<()> + PartialEq + std::fmt::Debug>(message: &M) {
    let bytes = encode(message).unwrap();
    assert_eq!(decode::<M>(&bytes).as_ref(), Ok(message));
}

#[test]
fn the_largest_words_and_orders_fit_into_a_message() {
    let (shard, generation, clock) = (ShardId(u32::MAX), Generation(u64::MAX), Clock(u64::MAX));
    let backup = Some(Backup { server: ServerId(u32::MAX), in_step: true });
    let origin = Origin::Checkpoint { number: u64::MAX };
    let place = Place { shard, generation, primary: ServerId(u32::MAX), backup, origin };
    fits(&ToPeer::Cluster(ServerOrder::Places {
        number: u64::MAX,
        run: u64::MAX,
        from: Some(u64::MAX),
        places: vec![place; PLACES_MAX],
    }));
    let cuts = vec![(WorkerId(u32::MAX), clock); CUTS_MAX];
    fits(&ToPeer::Cluster(ServerOrder::Mark(Mark { number: u64::MAX, cuts, rest: Some(clock) })));
    let placed = Placed { shard, generation, server: ServerId(u32::MAX) };
    fits(&ToPeer::Placed(vec![placed; PLACED_MAX]));
    let holding = Holding { shard, generation, is_whole: true, on_disk: true };
    let holds = vec![holding; PLACES_MAX];
    let here = Here { server: ServerId(1), boot: 1, layout_hash: 1, config_hash: 1, holds };
    fits(&ToServer::Cluster(ServerWord::Here(here)));
    let entry = vec![0x20; PART_ENTRY_BYTES_MAX];
    fits(&ToServer::Cluster(ServerWord::Saved { number: 1, shard, entry }));
}
