//! What workers do together.

use slackline_core::collective::Packing;
use slackline_net::SharedValues;
use tokio::task::JoinSet;

use super::*;

/// A gradient of whole numbers, so that every order of adding has the same sum.
fn gradient(position: u32, clock: u64) -> Vec<f32> {
    (0..KEYS).map(|key| (key % 97) as f32 + position as f32 * 100.0 + clock as f32).collect()
}

/// One iteration of a member: its gradient in, its sums out, with the key of the first that is not finite and the bytes it sent and
/// received.
async fn iterate(
    member: &mut Member,
    topology: Topology,
    clock: u64,
    count: u32,
    gradient: &[f32],
) -> (Vec<f32>, Option<u64>, [u64; 2]) {
    let parts = slackline_core::collective::Schedule::new(topology, count).unwrap().parts();
    let packing = Packing::new(parts);
    let (generation, buckets) = (Generation(1), settings().buckets);
    member.peers.begin(generation);
    for bucket in buckets.iter() {
        let mut packed = Vec::new();
        packing.pack(bucket.keys, &gradient[bucket.keys.as_indices()], 1.0, &mut packed);
        member.peers.own(generation, Clock(clock), bucket.index, SharedValues::from(packed));
    }
    assert_eq!(member.event().await, Event::Gathered { generation, clock: Clock(clock) });
    let reduced = member.event().await;
    let Event::Reduced { clock: complete, bad_key, sent, received, .. } = reduced else {
        panic!("{reduced:?}")
    };
    assert_eq!(complete, Clock(clock));
    let sums = member.peers.take_sums(generation, complete).unwrap();
    assert!(member.peers.take_sums(generation, complete).is_none());
    let mut values = vec![0.0; KEYS as usize];
    for (bucket, parts) in buckets.iter().zip(&sums) {
        packing.unpack(bucket.keys, parts, &mut values[bucket.keys.as_indices()]);
    }
    member.peers.reclaim(sums.into_iter().flatten());
    (values, bad_key, [sent, received])
}

#[tokio::test]
async fn workers_have_the_same_sums_over_every_topology() {
    let keys = key_directory();
    let topologies = [
        (Topology::Ring, 1),
        (Topology::Ring, 2),
        (Topology::Ring, 3),
        (Topology::HalvingDoubling, 3),
        (Topology::HalvingDoubling, 4),
        (Topology::Doubling, 3),
        (Topology::Hierarchical { group: 2 }, 4),
        (Topology::Torus { x: 2, y: 2 }, 4),
    ];
    for (topology, count) in topologies {
        let mut running = JoinSet::new();
        for (position, mut member) in (0..).zip(company(&keys, topology, count).await) {
            running.spawn(async move {
                for clock in 0..3 {
                    let own = gradient(position, clock);
                    let (sums, bad_key, _) = iterate(&mut member, topology, clock, count, &own).await;
                    let all = (0..count).map(|position| gradient(position, clock));
                    let expected = all.reduce(|sum, more| sum.iter().zip(more).map(|(a, b)| a + b).collect());
                    assert!(sums == expected.unwrap(), "{topology} of {count} at clock {clock}");
                    assert_eq!(bad_key, None);
                }
                member
            });
        }
        // Nobody goes before all are done.
        let members = running.join_all().await;
        assert_eq!(members.len(), count as usize);
    }
}

#[tokio::test]
async fn the_bytes_of_a_ring_are_as_few_as_can_be() {
    let keys = key_directory();
    let mut running = JoinSet::new();
    for (position, mut member) in (0..).zip(company(&keys, Topology::Ring, 3).await) {
        running.spawn(async move {
            let counts = iterate(&mut member, Topology::Ring, 0, 3, &gradient(position, 0)).await.2;
            (member, counts)
        });
    }
    let counts: Vec<[u64; 2]> = running.join_all().await.into_iter().map(|(_, counts)| counts).collect();
    let total: u64 = counts.iter().map(|[sent, _]| sent).sum();
    // 2 (p - 1) / p of the values for each of p members.
    assert_eq!(total, 2 * 2 * KEYS * 4);
    assert_eq!(counts.iter().map(|[_, received]| received).sum::<u64>(), total);
}

#[tokio::test]
async fn all_name_the_same_key_of_a_sum_that_is_not_finite() {
    let keys = key_directory();
    let mut running = JoinSet::new();
    for (position, mut member) in (0..).zip(company(&keys, Topology::Ring, 2).await) {
        running.spawn(async move {
            let mut own = gradient(position, 0);
            // Each is finite alone; the first of the two bad keys is in the bucket that is reduced last.
            (own[2500], own[700]) = (f32::MAX, f32::MAX);
            let bad_key = iterate(&mut member, Topology::Ring, 0, 2, &own).await.1;
            (member, bad_key)
        });
    }
    let bad_keys: Vec<_> = running.join_all().await.into_iter().map(|(_, bad_key)| bad_key).collect();
    assert_eq!(bad_keys, [Some(700), Some(700)]);
}

#[tokio::test]
async fn a_measured_way_has_a_latency_and_a_rate() {
    let keys = key_directory();
    let mut members = company(&keys, Topology::Auto, 3).await;
    members.iter_mut().for_each(|member| member.peers.probe(Generation(1)));
    for member in &mut members {
        let event = member.event().await;
        let Event::Measured { figures, .. } = event else { panic!("{event:?}") };
        assert!(figures.latency_s > 0.0 && figures.latency_s < 1.0, "{figures:?}");
        assert!(figures.bytes_per_s > 1e5 && figures.bytes_per_s.is_finite(), "{figures:?}");
    }
}

#[tokio::test]
async fn values_and_optimizer_state_go_over_to_whoever_lacks_them() {
    let keys = key_directory();
    let mut members: Vec<Member> = (0..3).map(|_| Member::new(&keys, settings())).collect();
    let addresses: Vec<String> = members.iter().map(Member::address).collect();
    let late = Group { clock: Clock(9), source: Some(WorkerId(1)), ..group(Topology::Ring, &addresses) };
    for (position, member) in (0..).zip(&mut members) {
        member.peers.form(late.clone(), position).unwrap();
    }
    for member in &mut members {
        member.met().await;
    }
    for lacking in [0, 2] {
        members[lacking].peers.fetch(Generation(1), WorkerId(1), Clock(9));
        let Told::WantState { generation, worker, clock } = members[1].next().await else { panic!() };
        assert_eq!((worker, clock), (WorkerId(lacking as u32), Clock(9)));
        let state = [gradient(5, 0), gradient(6, 0)];
        members[1].peers.send_state(generation, worker, clock, Some(state));
        let Told::State { clock, values, slots, .. } = members[lacking].next().await else { panic!() };
        assert_eq!(clock, Clock(9));
        assert!(values == gradient(5, 0) && slots == gradient(6, 0));
    }
}

#[tokio::test]
async fn a_source_without_the_values_says_so() {
    let keys = key_directory();
    let mut members = company(&keys, Topology::Ring, 2).await;
    members[0].peers.fetch(Generation(1), WorkerId(1), Clock(9));
    assert!(matches!(members[1].next().await, Told::WantState { .. }));
    members[1].peers.send_state(Generation(1), WorkerId(0), Clock(9), None);
    let (worker, reason) = members[0].trouble().await;
    assert_eq!(worker, WorkerId(1));
    assert!(reason.contains("worker 1 has not the values after 9 iterations"), "{reason}");
}

#[tokio::test]
async fn a_worker_that_is_done_leaves_without_harm_and_is_missed_only_when_it_is_needed() {
    let keys = key_directory();
    let mut members = company(&keys, Topology::Ring, 2).await;
    let mut other = members.pop().unwrap();
    let mut member = members.pop().unwrap();
    let leaving = tokio::spawn(async move {
        other.peers.begin(Generation(1));
        iterate(&mut other, Topology::Ring, 0, 2, &gradient(1, 0)).await;
        other.peers.close(true).await;
    });
    iterate(&mut member, Topology::Ring, 0, 2, &gradient(0, 0)).await;
    // One that stays for a lease at most; this one needs nothing more, and says so by leaving too.
    member.peers.begin(Generation(1));
    leaving.abort();
    let _ = leaving.await;
    let (worker, reason) = member.trouble().await;
    assert_eq!(worker, WorkerId(1));
    assert!(reason.contains("worker 1 at 127.0.0.1"), "{reason}");
}

#[tokio::test]
async fn two_that_are_done_wait_for_each_other_and_no_longer() {
    let keys = key_directory();
    let members = company(&keys, Topology::Ring, 2).await;
    let closing: Vec<_> = members.into_iter().map(|member| tokio::spawn(member.peers.close(true))).collect();
    for one in closing {
        // Far less than a lease.
        timeout(super::super::STAY_MAX / 2, one).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_group_replaces_its_forerunner_and_nothing_of_that_is_told() {
    let keys = key_directory();
    let mut members = company(&keys, Topology::Ring, 2).await;
    let addresses: Vec<String> = members.iter().map(Member::address).collect();
    let next = Group { generation: Generation(2), clock: Clock(4), ..group(Topology::Ring, &addresses) };
    // Position 1 calls for a group that position 0 has not heard of yet, and is let on when it has.
    members[1].peers.form(next.clone(), 1).unwrap();
    members[0].peers.begin(Generation(1));
    let packed = vec![1.0; settings().buckets[0].keys.len as usize];
    members[0].peers.own(Generation(1), Clock(0), 0, packed.into());
    let (worker, reason) = members[0].trouble().await;
    assert!(worker == WorkerId(1) && reason.contains("has left the group"), "{reason}");
    // What it still waits for does not come, and that is said.
    let awaited = members[0].peers.awaited().unwrap();
    assert!(
        awaited.starts_with("worker 1 at ") && awaited.ends_with(", which has left the group"),
        "{awaited}"
    );
    members[0].peers.form(next, 0).unwrap();
    for member in &mut members {
        assert_eq!(member.event().await, Event::Met { generation: Generation(2) });
    }
}
