//! The messages of an allreduce: their bytes, and any of them.

use proptest::option::of;
use proptest::prelude::*;

use super::golden::Golden;
use super::strategies::{clock, float, incarnation, text, worker};
use crate::collective::Topology;
use crate::ids::{Clock, Generation, Incarnation, WorkerId};
use crate::wire::*;

/// A worker of a group to the coordinator.
pub(super) fn to_server() -> Vec<Golden<ToServer>> {
    let ready = |measured| Ready { generation: Generation(1), clock: Clock(2), units: 3, measured };
    let figures = LinkFigures { latency_s: 0.5, bytes_per_s: 2.0 };
    vec![
        (
            "ready",
            ToServer::Ready(ready(None)),
            "0c000000 0100000000000000 0200000000000000 0300000000000000 00",
        ),
        (
            "ready and measured",
            ToServer::Ready(ready(Some(figures))),
            "0c000000 0100000000000000 0200000000000000 0300000000000000 01 000000000000e03f 0000000000000040",
        ),
        (
            "trouble",
            ToServer::Trouble(Trouble {
                generation: Generation(1),
                worker: WorkerId(2),
                reason: Text::new("no"),
            }),
            "0d000000 0100000000000000 02000000 0200000000000000 6e6f",
        ),
        (
            "stepped",
            ToServer::Stepped(Stepped { generation: Generation(1), clock: Clock(2), units: 3, report: None }),
            "0e000000 0100000000000000 0200000000000000 0300000000000000 00",
        ),
    ]
}

/// The coordinator to a worker of a group.
pub(super) fn to_peer() -> Vec<Golden<ToPeer>> {
    let member = GroupMember { worker: WorkerId(5), incarnation: Incarnation(6), address: Text::new("a:7") };
    let group = |topology, members, source| {
        let (run, generation, clock, units) = (1, Generation(2), Clock(3), 4);
        ToPeer::Group(Group { run, generation, topology, members, clock, units, source })
    };
    vec![
        (
            "a group with a ring",
            group(Topology::Ring, vec![member], None),
            "0a000000 0100000000000000 0200000000000000 00000000 0100000000000000 05000000 0600000000000000 \
             0300000000000000 613a37 0300000000000000 0400000000000000 00",
        ),
        (
            "a group with a torus and a source",
            group(Topology::Torus { x: 8, y: 9 }, vec![], Some(WorkerId(5))),
            "0a000000 0100000000000000 0200000000000000 04000000 08000000 09000000 0000000000000000 \
             0300000000000000 0400000000000000 01 05000000",
        ),
        ("regroup", ToPeer::Regroup { generation: Generation(1) }, "0b000000 0100000000000000"),
    ]
}

/// A worker to another one.
pub(super) fn between_workers() -> Vec<Golden<PeerMessage>> {
    let hello = Hello {
        protocol: 1,
        run: 2,
        generation: Generation(3),
        layout_hash: 4,
        config_hash: 5,
        worker: WorkerId(6),
        incarnation: Incarnation(7),
    };
    vec![
        (
            "hello",
            PeerMessage::Hello(hello),
            "00000000 01000000 0200000000000000 0300000000000000 0400000000000000 0500000000000000 06000000 \
             0700000000000000",
        ),
        ("refused", PeerMessage::Refused(Text::new("no")), "01000000 0200000000000000 6e6f"),
        ("want state", PeerMessage::WantState { clock: Clock(1) }, "02000000 0100000000000000"),
        ("ping", PeerMessage::Ping(1), "03000000 0100000000000000"),
        ("pong", PeerMessage::Pong(1), "04000000 0100000000000000"),
    ]
}

fn generation() -> impl Strategy<Value = Generation> {
    any::<u64>().prop_map(Generation)
}

fn topology() -> impl Strategy<Value = Topology> {
    prop_oneof![
        prop::sample::select(vec![
            Topology::Ring,
            Topology::HalvingDoubling,
            Topology::Doubling,
            Topology::Auto
        ]),
        any::<u32>().prop_map(|group| Topology::Hierarchical { group }),
        any::<[u32; 2]>().prop_map(|[x, y]| Topology::Torus { x, y }),
    ]
}

/// Any message of a group to the coordinator; `report` makes the reports.
pub(super) fn any_to_server(report: BoxedStrategy<Option<Report>>) -> impl Strategy<Value = ToServer> {
    let figures =
        (float(), float()).prop_map(|(latency_s, bytes_per_s)| LinkFigures { latency_s, bytes_per_s });
    prop_oneof![
        (generation(), clock(), any::<u64>(), of(figures)).prop_map(
            |(generation, clock, units, measured)| {
                ToServer::Ready(Ready { generation, clock, units, measured })
            }
        ),
        (generation(), worker(), text()).prop_map(|(generation, worker, reason)| {
            ToServer::Trouble(Trouble { generation, worker, reason })
        }),
        (generation(), clock(), any::<u64>(), report).prop_map(|(generation, clock, units, report)| {
            ToServer::Stepped(Stepped { generation, clock, units, report })
        }),
    ]
}

/// Any message of the coordinator to a group.
pub(super) fn any_to_peer() -> impl Strategy<Value = ToPeer> {
    let member = (worker(), incarnation(), text()).prop_map(|(worker, incarnation, address)| GroupMember {
        worker,
        incarnation,
        address,
    });
    let members = prop::collection::vec(member, 0..5);
    prop_oneof![
        (any::<[u64; 2]>(), generation(), topology(), members, clock(), of(worker())).prop_map(
            |([run, units], generation, topology, members, clock, source)| {
                ToPeer::Group(Group { run, generation, topology, members, clock, units, source })
            }
        ),
        generation().prop_map(|generation| ToPeer::Regroup { generation }),
    ]
}

/// Any message between workers.
pub(super) fn any_between_workers() -> impl Strategy<Value = PeerMessage> {
    let hello = (any::<u32>(), any::<[u64; 3]>(), generation(), worker(), incarnation()).prop_map(
        |(protocol, [run, layout_hash, config_hash], generation, worker, incarnation)| Hello {
            protocol,
            run,
            generation,
            layout_hash,
            config_hash,
            worker,
            incarnation,
        },
    );
    prop_oneof![
        hello.prop_map(PeerMessage::Hello),
        text().prop_map(PeerMessage::Refused),
        clock().prop_map(|clock| PeerMessage::WantState { clock }),
        any::<u64>().prop_map(PeerMessage::Ping),
        any::<u64>().prop_map(PeerMessage::Pong),
    ]
}

/// What this worker says of itself, and what the right other one says.
fn two() -> (Hello, Hello) {
    let ours = Hello {
        protocol: PROTOCOL,
        run: 1,
        generation: Generation(2),
        layout_hash: 3,
        config_hash: 4,
        worker: WorkerId(5),
        incarnation: Incarnation(6),
    };
    (ours, Hello { worker: WorkerId(7), incarnation: Incarnation(8), ..ours })
}

#[test]
fn two_of_one_group_agree_and_whoever_differs_is_refused_by_name() {
    let (ours, right) = two();
    let check = |theirs: Hello| ours.check(&theirs, WorkerId(7), Incarnation(8));
    assert_eq!(check(right), Ok(()));
    let wrong = [
        (Hello { protocol: 9, ..right }, "worker 7 speaks protocol 9", false),
        (Hello { run: 9, ..right }, "worker 7 belongs to another run", false),
        (Hello { layout_hash: 9, ..right }, "worker 7 has another model", false),
        (Hello { config_hash: 9, ..right }, "worker 7 has another configuration", false),
        (Hello { worker: WorkerId(9), ..right }, "worker 7 was called and worker 9 answered", false),
        (Hello { generation: Generation(9), ..right }, "worker 7 is in group generation 9", true),
        (Hello { incarnation: Incarnation(9), ..right }, "worker 7 answered in another lifetime", true),
    ];
    for (theirs, text, is_passing) in wrong {
        let stranger = check(theirs).unwrap_err();
        assert!(stranger.to_string().contains(text), "{stranger}");
        assert_eq!(stranger.is_passing(), is_passing, "{stranger}");
    }
}

#[test]
fn the_positions_of_a_group_take_its_units_in_order() {
    let member = |worker| GroupMember {
        worker: WorkerId(worker),
        incarnation: Incarnation(1),
        address: Text::default(),
    };
    let group = Group {
        run: 1,
        generation: Generation(2),
        topology: Topology::Ring,
        members: vec![member(3), member(5), member(9)],
        clock: Clock(10),
        units: 40,
        source: None,
    };
    assert_eq!((group.position_of(WorkerId(5)), group.position_of(WorkerId(4))), (Some(1), None));
    assert_eq!(group.unit_of(Clock(10), 0), Some(40));
    assert_eq!(group.unit_of(Clock(12), 2), Some(48));
    assert_eq!(group.unit_of(Clock(9), 0), None, "before the group");
    assert_eq!(group.unit_of(Clock(u64::MAX), 0), None, "a number that overflows");
}
