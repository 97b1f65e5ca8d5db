//! Buckets and packing.

use proptest::prelude::*;

use super::*;
use crate::ids::KeyRange;

fn ranges(lens: &[u64], bytes: u64, order: Order) -> Vec<(u64, u64)> {
    buckets(&layout_of(lens), bytes, order)
        .iter()
        .map(|bucket| (bucket.keys.start, bucket.keys.len))
        .collect()
}

#[test]
fn small_tensors_travel_together_and_a_large_one_alone() {
    let lens = [100, 10, 10, 10, 10];
    assert_eq!(ranges(&lens, 80, Order::Backward), [(120, 20), (100, 20), (0, 100)]);
    assert_eq!(ranges(&lens, 100, Order::Backward), [(110, 30), (100, 10), (0, 100)]);
    assert_eq!(ranges(&lens, 100, Order::Forward), [(0, 100), (100, 30), (130, 10)]);
    assert_eq!(ranges(&lens, 0, Order::Backward), [(0, 140)]);
    assert_eq!(ranges(&lens, 1, Order::Backward), [(130, 10), (120, 10), (110, 10), (100, 10), (0, 100)]);
    assert_eq!(ranges(&[], 1, Order::Forward), []);
    assert_eq!(ranges(&[0, 0], 0, Order::Forward), []);
}

/// A range of keys of no border in particular.
fn any_keys() -> impl Strategy<Value = KeyRange> {
    (0..5000_u64, 0..9000_u64).prop_map(|(start, len)| KeyRange::new(start, len))
}

proptest! {
    #[test]
    fn buckets_are_whole_tensors_and_cover_everything_once(
        lens in prop::collection::vec(prop_oneof![0..4_u64, 0..500_u64], 0..20),
        bytes in 0..2000_u64,
        is_backward in any::<bool>(),
    ) {
        let layout = layout_of(&lens);
        let order = if is_backward { Order::Backward } else { Order::Forward };
        let mut all = buckets(&layout, bytes, order);
        prop_assert!(all.iter().zip(0..).all(|(bucket, index)| bucket.index == index));
        if is_backward {
            all.reverse();
        }
        let mut end = 0;
        for bucket in &all {
            prop_assert_eq!(bucket.keys.start, end);
            prop_assert!(!bucket.keys.is_empty());
            prop_assert!(layout.tensors().iter().any(|tensor| tensor.offset == bucket.keys.start));
            let tensors = layout.tensors().iter().filter(|tensor| bucket.keys.contains(tensor.offset) && !tensor.is_empty());
            // The last tensor may have brought it above the limit, unless it is larger than that itself.
            let large = tensors.clone().any(|tensor| bytes > 0 && 4 * tensor.len() > bytes);
            prop_assert!(!large || tensors.count() == 1);
            prop_assert!(bytes == 0 || large || 4 * bucket.keys.len < 2 * bytes.max(1));
            end = bucket.keys.end();
        }
        prop_assert_eq!(end, layout.len());
        prop_assert!(bytes > 0 || all.len() <= 1);
    }

    #[test]
    fn what_is_packed_is_unpacked_and_scaled(keys in any_keys(), parts in 1..35_u32, share in -2.0..2.0_f32) {
        let packing = Packing::new(parts);
        let gradient: Vec<f32> = (0..keys.len).map(|key| key as f32 + 0.25).collect();
        let lens = packing.part_lens(keys);
        prop_assert_eq!(lens.iter().sum::<u64>(), keys.len);
        let counts = (keys.start..keys.end()).fold(vec![0; parts as usize], |mut counts, key| {
            counts[packing.part_of(key) as usize] += 1;
            counts
        });
        prop_assert_eq!(&counts, &lens);
        let (most, least) = (lens.iter().max().unwrap(), lens.iter().min().unwrap());
        // Of a range that begins and ends within blocks, one part may get both ends.
        prop_assert!(most - least <= 2 * Packing::BLOCK);
        prop_assert!(!keys.start.is_multiple_of(Packing::BLOCK) || most - least <= Packing::BLOCK);
        let mut packed = vec![9.0; 3];
        packing.pack(keys, &gradient, share, &mut packed);
        let mut rest = &packed[..];
        let mut cut = Vec::new();
        for len in &lens {
            let (part, after) = rest.split_at(*len as usize);
            cut.push(part);
            rest = after;
        }
        prop_assert!(rest.is_empty());
        let mut back = vec![f32::NAN; gradient.len()];
        packing.unpack(keys, &cut, &mut back);
        let scaled: Vec<f32> = gradient.iter().map(|value| value * share).collect();
        prop_assert_eq!(back, scaled);
    }

    #[test]
    fn a_key_is_in_the_same_place_of_its_part_in_every_bucket(keys in any_keys(), at in any::<prop::sample::Index>(), parts in 1..35_u32) {
        let packing = Packing::new(parts);
        let middle = keys.start + at.index(keys.len as usize + 1) as u64;
        let halves = [KeyRange::new(keys.start, middle - keys.start), KeyRange::new(middle, keys.end() - middle)];
        let lens = halves.map(|half| packing.part_lens(half));
        let sums: Vec<u64> = lens[0].iter().zip(&lens[1]).map(|(one, other)| one + other).collect();
        prop_assert_eq!(sums, packing.part_lens(keys));
    }
}

#[test]
fn parts_of_the_smallest_model_are_balanced() {
    for (values, parts, more) in [(7850, 16, 1.05), (7850, 8, 1.05), (535_818, 16, 1.01), (535_818, 32, 1.01)]
    {
        let lens = Packing::new(parts).part_lens(KeyRange::new(0, values));
        let mean = values as f64 / f64::from(parts);
        assert!(*lens.iter().max().unwrap() as f64 <= mean * more, "{values} in {parts}: {lens:?}");
    }
}

#[test]
fn packing_takes_what_does_not_match_without_harm() {
    let packing = Packing::new(0);
    assert_eq!(packing, Packing::new(1));
    let keys = KeyRange::new(u64::MAX - 10, 1000);
    assert_eq!(packing.part_lens(keys), [10]);
    let mut out = Vec::new();
    Packing::new(3).pack(KeyRange::new(5, u64::MAX), &[1.0; 4], 2.0, &mut out);
    assert_eq!(out, [2.0; 4]);
    let mut back = [0.0; 6];
    Packing::new(3).unpack(KeyRange::new(5, 6), &[vec![1.0; 2]], &mut back);
    assert_eq!(back, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    Packing::new(3).unpack::<Vec<f32>>(KeyRange::new(u64::MAX, 6), &[], &mut back);
    Packing::new(3).unpack(KeyRange::new(0, 6), &[vec![], vec![], vec![], vec![7.0; 9]], &mut back);
    assert_eq!(back, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
}
