//! Every topology sums, with the same bits everywhere.

use proptest::prelude::*;

use super::*;
use crate::aggregate;

/// Every member has the plain sum, up to the rounding of `members - 1` additions in another order, and all have the same bits.
fn assert_sums(gradients: &[Vec<f32>], sums: &[Vec<f32>], what: impl std::fmt::Display) {
    for sum in sums {
        assert_eq!(bits(sum), bits(&sums[0]), "{what}: members differ");
    }
    for (place, sum) in sums[0].iter().enumerate() {
        let exact: f64 = gradients.iter().map(|gradient| f64::from(gradient[place])).sum();
        let size: f64 = gradients.iter().map(|gradient| f64::from(gradient[place]).abs()).sum();
        // Each of p - 1 additions rounds by at most half an epsilon of a partial sum, which is at most the sum of sizes.
        let tolerance = gradients.len() as f64 * f64::from(f32::EPSILON) / 2.0 * size;
        assert!((f64::from(*sum) - exact).abs() <= tolerance, "{what}: {sum} for {exact} at {place}");
    }
}

#[test]
fn every_topology_sums_exactly_for_1_to_17_members() {
    for members in 1..=17 {
        let layout = layout_of(&[700, 3, 9000]);
        let gradients = integers(members, layout.len(), 7);
        let sum = |place| gradients.iter().map(|gradient| gradient[place]).sum::<f32>();
        let plain: Vec<f32> = (0..layout.len() as usize).map(sum).collect();
        for topology in fitting(members) {
            let schedule = schedule(topology, members);
            for sums in reduce(&schedule, &layout, (0, Order::Backward), &gradients, 1) {
                assert_eq!(sums, plain, "{topology} with {members} members");
            }
        }
    }
}

#[test]
fn every_topology_sums_floats_within_rounding_for_1_to_17_members() {
    for members in 1..=17 {
        let layout = layout_of(&[5000]);
        let gradients = floats(members, layout.len(), 8);
        for topology in fitting(members) {
            let sums = reduce(&schedule(topology, members), &layout, (0, Order::Backward), &gradients, 2);
            assert_sums(&gradients, &sums, format!("{topology} with {members} members"));
        }
    }
}

#[test]
fn recursive_topologies_have_the_bits_of_a_bsp_server_for_powers_of_two_and_some_others() {
    for members in 1..=17_u32 {
        let layout = layout_of(&[4500, 90]);
        let gradients = floats(members, layout.len(), 9);
        let mut tree = gradients.clone();
        aggregate::pairwise_sum(&mut tree);
        let is_same_tree = members.is_power_of_two() || [3, 6, 7, 12, 14, 15].contains(&members);
        for topology in [Topology::HalvingDoubling, Topology::Doubling] {
            let sums = reduce(&schedule(topology, members), &layout, (0, Order::Backward), &gradients, 3);
            assert_eq!(bits(&sums[0]) == bits(&tree[0]), is_same_tree, "{topology} with {members} members");
        }
    }
}

#[test]
fn two_members_have_the_bits_of_a_bsp_server_in_every_topology() {
    let layout = layout_of(&[4500, 90]);
    let gradients = floats(2, layout.len(), 9);
    let mut tree = gradients.clone();
    aggregate::pairwise_sum(&mut tree);
    for topology in fitting(2) {
        let sums = reduce(&schedule(topology, 2), &layout, (1, Order::Forward), &gradients, 3);
        assert_eq!(bits(&sums[1]), bits(&tree[0]), "{topology}");
    }
}

/// A topology that fits some members.
fn any_topology() -> impl Strategy<Value = (u32, Topology)> {
    (1..=17_u32).prop_flat_map(|members| (Just(members), prop::sample::select(fitting(members))))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn the_order_of_arrival_and_the_buckets_change_no_bit(
        (members, topology) in any_topology(),
        lens in prop::collection::vec(prop_oneof![0..20_u64, 200..900_u64], 1..7),
        bucket_bytes in prop_oneof![Just(0), Just(1), 1..8000_u64],
        seeds in any::<[u64; 3]>(),
    ) {
        let (layout, schedule) = (layout_of(&lens), schedule(topology, members));
        let gradients = floats(members, layout.len(), seeds[0]);
        let whole = reduce(&schedule, &layout, (0, Order::Backward), &gradients, seeds[1]);
        assert_sums(&gradients, &whole, topology);
        for (bytes, order) in [
            (0, Order::Backward), (1, Order::Backward), (1, Order::Forward), (bucket_bytes, Order::Backward),
            (bucket_bytes, Order::Forward),
        ] {
            let cut = reduce(&schedule, &layout, (bytes, order), &gradients, seeds[2]);
            for (one, other) in whole.iter().zip(&cut) {
                prop_assert_eq!(bits(one), bits(other), "{} with buckets of {} bytes, {:?}", topology, bytes, order);
            }
        }
    }
}
