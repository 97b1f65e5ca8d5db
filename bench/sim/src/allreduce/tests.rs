//! What cannot be seen from outside: that sharing changes nothing, and what links in both directions give.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use slackline_core::collective::{Outgoing, Reduction, Schedule, Topology};
use slackline_core::config::{Config, Layer, Resolved, Value};
use slackline_core::ids::Moment;
use slackline_server::parts;

use super::parcels::Piece;
use super::replica::Sharing;
use crate::links::{LinkCosts, Links};
use crate::results::Results;
use crate::timeline::Timeline;
use crate::world::{Over, World};

fn resolved(more: &[(&str, &str)]) -> Resolved {
    let base = [
        ("sync.method", "\"allreduce\""),
        ("data.dataset", "\"digits\""),
        ("model.kind", "\"mlp\""),
        ("model.widths", "[24]"),
        ("train.epochs", "2"),
        ("train.batch", "32"),
        ("optimizer.kind", "\"momentum\""),
        ("optimizer.rate", "0.05"),
        ("stragglers.kind", "\"exp\""),
    ];
    let values = base.iter().chain(more);
    let values =
        values.map(|(key, value)| ((*key).to_owned(), Value::from_literal(value).unwrap())).collect();
    Config::resolve(&[Layer { name: "test".to_owned(), values }]).unwrap()
}

#[test]
fn workers_that_each_keep_their_own_values_all_have_the_same_bits() {
    for more in [
        &[("workers", "4"), ("sync.topology", "\"ring\"")][..],
        &[("workers", "5"), ("sync.topology", "\"halving-doubling\""), ("sync.bucket_kib", "1")],
        &[("workers", "6"), ("sync.topology", "\"torus(3, 2)\""), ("sync.bucket_kib", "1")],
        &[("workers", "6"), ("sync.topology", "\"hierarchical(2)\"")],
        &[
            ("workers", "4"),
            ("sync.elastic", "true"),
            ("cluster.lease_s", "0.5"),
            ("simulation.incidents", "[\"worker 1 crash at 0.2 for 0.6\"]"),
        ],
    ] {
        let resolved = resolved(more);
        let summary_of = |sharing| {
            let (plan, engine) = crate::plan::plan(resolved.clone(), false, 1).unwrap();
            let results = Results::new(None, parts::heading(&resolved), Duration::from_secs(1));
            let mut world = World::new(plan, engine, Timeline::new(0), results);
            world.commons.sharing = sharing;
            assert_eq!(world.run(&mut |_| ()).unwrap(), Over::Complete);
            let commons = &world.commons;
            assert_eq!(commons.differing, 0, "of {} compared, {more:?}", commons.compared);
            assert_eq!(commons.compared > 0, sharing == Sharing::Verified);
            world.summary(Duration::ZERO, None)
        };
        assert_eq!(summary_of(Sharing::Verified), summary_of(Sharing::Shared), "{more:?}");
    }
}

/// Seconds of an allreduce on a grid where each machine has a wire of its own to each neighbour, in each direction.
fn on_a_grid((x, y): (u32, u32), part_lens: &[u64]) -> f64 {
    let members = x * y;
    let schedule = Arc::new(Schedule::new(Topology::Torus { x, y }, members).unwrap());
    let costs = LinkCosts { bandwidth: Some(1e6), latency: Duration::from_micros(1), loss: 0.0 };
    let mut links = Links::new(costs, (members * members) as usize, 1);
    let begin = |position| Reduction::<Piece>::new(Arc::clone(&schedule), position, part_lens.to_vec());
    let mut reductions: Vec<_> = (0..members).map(begin).collect();
    let (mut heap, mut arrivals, mut now) = (BinaryHeap::new(), BTreeMap::new(), Moment(0));
    let mut post = |now: Moment,
                    from: u32,
                    out: &mut Vec<Outgoing<Piece>>,
                    heap: &mut BinaryHeap<_>,
                    arrivals: &mut BTreeMap<_, _>| {
        for Outgoing { to, number, len, .. } in out.drain(..) {
            // The wire is a link that nobody else uses.
            let wire = (from * members + to) as usize;
            let passage = links.leave(now, wire, 4 * len);
            let ends = links.arrive(passage.reaches, wire, &passage);
            heap.push(Reverse((ends, number)));
            arrivals.insert(number, (from, to));
        }
    };
    let mut out = Vec::new();
    for (position, reduction) in reductions.iter_mut().enumerate() {
        reduction.own(Piece::from(Vec::new()), &mut out).unwrap();
        post(now, position as u32, &mut out, &mut heap, &mut arrivals);
    }
    while let Some(Reverse((when, number))) = heap.pop() {
        now = when;
        let (from, to) = arrivals[&number];
        reductions[to as usize].arrived(from, number, Vec::new(), &mut out).unwrap();
        post(now, to, &mut out, &mut heap, &mut arrivals);
    }
    assert!(reductions.iter().all(Reduction::is_complete));
    now.0 as f64 / 1e9
}

// Ying et al. 2018: with one half going rows first and the other columns first, no wire is idle.
#[test]
fn two_colours_of_a_torus_use_both_directions_of_its_wires() {
    for (x, y) in [(2, 2), (3, 3), (4, 4)] {
        let members = x * y;
        let parts = Schedule::new(Topology::Torus { x, y }, members).unwrap().parts();
        assert_eq!(parts, 2 * members, "each colour has parts of its own");
        let both = vec![10_000; parts as usize];
        let one: Vec<u64> = (0..parts).map(|part| if part < members { 20_000 } else { 0 }).collect();
        let (both, one) = (on_a_grid((x, y), &both), on_a_grid((x, y), &one));
        assert!((one / both - 2.0).abs() < 0.1, "{x} by {y}: {one} s in one colour, {both} s in two");
    }
}
