//! Relative-k: the largest beside their values, as many as a budget holds.

use super::*;
use crate::partition::Partition;

/// Words of a payload with values at these keys, out of so many.
fn words(picked: &[usize], keys: usize) -> usize {
    let bytes_of = |gap: usize| {
        if gap < 128 {
            1
        } else if gap < 16_384 {
            2
        } else {
            3
        }
    };
    let mut next = 0;
    let gaps = picked.iter().map(|key| {
        let gap = key - next;
        next = key + 1;
        bytes_of(gap)
    });
    let gaps = gaps.sum::<usize>().div_ceil(4);
    2 + picked.len() + gaps.min(keys.div_ceil(32)).min(picked.len())
}

/// What a budget of `most` words holds, by sorting and counting.
fn chosen(sums: &[f32], values: &[f32], floor: f32, most: usize) -> Vec<usize> {
    // What is rounded to zero is not zero.
    let magnitude = |key: usize| (sums[key].abs() / values[key].abs().max(floor)).max(f32::from_bits(1));
    let mut order: Vec<usize> = (0..sums.len()).filter(|key| sums[*key] != 0.0).collect();
    order.sort_by(|left, right| magnitude(*right).total_cmp(&magnitude(*left)).then(left.cmp(right)));
    let mut picked: Vec<usize> = Vec::new();
    for key in order {
        let place = picked.partition_point(|other| *other < key);
        picked.insert(place, key);
        // What plain values fit into takes all of them.
        if most < sums.len() && words(&picked, sums.len()) > most {
            picked.remove(place);
            break;
        }
    }
    picked
}

fn picked(sent: &[f32]) -> Vec<usize> {
    (0..sent.len()).filter(|key| sent[*key] != 0.0).collect()
}

fn relative(budget: usize, floor: f32) -> CodecKind {
    CodecKind::RelativeK { budget: budget as u64, floor }
}

/// Values that are zero, many that are alike, and some of any size.
fn parameter() -> impl Strategy<Value = f32> {
    prop_oneof![1 => Just(0.0_f32), 2 => (-2_i8..=2).prop_map(f32::from), 3 => number()]
}

/// Sums of which many are alike.
fn sum() -> impl Strategy<Value = f32> {
    prop_oneof![1 => (-3_i8..=3).prop_map(f32::from), 1 => usual()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_largest_that_the_budget_holds_are_sent_and_no_others(
        pairs in prop::collection::vec((sum(), parameter()), 1..1200),
        share in 0.0_f64..1.1,
        floor in prop_oneof![Just(1e-3_f32), Just(1.0_f32)],
        rounds in 1_usize..4,
    ) {
        let keys = pairs.len();
        let (gradient, values): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        let budget = ((4 * keys) as f64 * share) as usize;
        let budget = budget.max(least_budget(keys as u64, keys as u64) as usize);
        let mut encoder = encoder(relative(budget, floor), true, keys);
        for _ in 0..rounds {
            let sums: Vec<f32> = encoder.kept().iter().zip(&gradient).map(|(kept, gradient)| kept + gradient).collect();
            let payload = received(&encoder.encode(&gradient, Some(&values), Vec::new()));
            prop_assert!(payload.bytes().len() <= budget, "{} bytes of {}", payload.bytes().len(), budget);
            let sent = decoded(&payload);
            let expected = chosen(&sums, &values, floor, budget / 4);
            prop_assert!(!expected.is_empty() || sums.iter().all(|sum| *sum == 0.0), "a value at least");
            prop_assert_eq!(picked(&sent), expected);
            for key in 0..keys {
                let (sent, kept) = (sent[key], encoder.kept()[key]);
                prop_assert!(sent == 0.0 || kept == 0.0, "whole entries only");
                prop_assert_eq!(sent + kept, sums[key]);
            }
        }
    }

    #[test]
    fn the_parts_of_all_shards_together_keep_to_the_budget(
        keys in 60_usize..4000,
        servers in 1_u32..4,
        per_server in 1_u32..6,
        more in 0_usize..8000,
        seed in any::<u64>(),
    ) {
        let partition = Partition::new(keys as u64, servers, per_server);
        let least = partition.shards().map(|(_, range)| least_budget(range.len, keys as u64)).max().unwrap();
        let budget = least as usize + more;
        let (gradient, values) = (normal(seed, keys), normal(!seed, keys));
        let mut bytes = 0;
        for (_, range) in partition.shards() {
            let spec = CodecSpec { kind: relative(budget, 1e-3), error_feedback: true };
            let at = range.as_indices();
            let mut encoder = Encoder::new(spec, &layout(keys), range, 1);
            let payload = encoder.encode(&gradient[at.clone()], Some(&values[at.clone()]), Vec::new());
            prop_assert!(!picked(&decoded(&payload)).is_empty(), "a value a shard");
            let part = budget as u64 * range.len / keys as u64;
            prop_assert!(payload.bytes().len() as u64 <= part, "a part by its keys");
            // One value more takes a word, and at most one of its index.
            prop_assert!(payload.bytes().len() as u64 + 8 + 4 > part.min(4 * range.len), "as many as fit");
            bytes += payload.bytes().len();
        }
        prop_assert!(bytes <= budget, "{} bytes of {}", bytes, budget);
    }
}

#[test]
fn a_value_at_zero_counts_as_the_floor() {
    let keys = 100;
    let mut values = vec![1.0; keys];
    let mut gradient = vec![0.02; keys];
    // 0.005 / 0.1 is more than 0.02 / 1, and less than 0.06 / 1.
    (values[40], gradient[40]) = (0.0, 0.005);
    gradient[50] = 0.06;
    let first = |budget: usize, values: Option<&[f32]>| {
        let payload = encoder(relative(budget, 0.1), true, keys).encode(&gradient, values, Vec::new());
        picked(&decoded(&payload))
    };
    assert_eq!(first(16, Some(&values)), [50]);
    assert_eq!(first(19, Some(&values)), [50], "a part of an entry is none");
    // Gaps of a byte each share a word.
    assert_eq!(first(20, Some(&values)), [40, 50]);
    assert_eq!(first(24, Some(&values)), [0, 40, 50], "of those that are alike the first");
    // Without values, by themselves.
    assert_eq!(first(20, None), [0, 50]);
}

#[test]
fn above_all_values_the_floor_makes_it_top_k() {
    let keys = 5000;
    let (gradient, values) = (normal(1, keys), normal(2, keys));
    let top = encoder(CodecKind::TopK { share: 0.03 }, true, keys).encode(&gradient, None, Vec::new());
    // A power of two, so that no quotients become alike.
    let kind = relative(top.bytes().len(), 128.0);
    let payload = encoder(kind, true, keys).encode(&gradient, Some(&values), Vec::new());
    assert_eq!(picked(&decoded(&payload)), picked(&decoded(&top)));
}

#[test]
fn quotients_that_are_none_are_in_order_all_the_same() {
    // Beyond the largest number, below the smallest, and beside what is no number.
    let keys = 40;
    let mut gradient = vec![0.0; keys];
    let mut values = vec![1.0; keys];
    (gradient[7], values[7]) = (f32::MAX, 1e-30);
    (gradient[8], values[8]) = (1e-40, f32::MAX);
    (gradient[9], values[9]) = (1e-40, f32::INFINITY);
    (gradient[10], values[10]) = (0.5, f32::NAN);
    let sent = |budget: usize| {
        let payload =
            encoder(relative(budget, 1e-3), true, keys).encode(&gradient, Some(&values), Vec::new());
        picked(&decoded(&payload))
    };
    assert_eq!(sent(16), [7]);
    assert_eq!(sent(20), [7, 10]);
    assert_eq!(sent(24), [7, 8, 10]);
    assert_eq!(sent(28), [7, 8, 9, 10]);
}
