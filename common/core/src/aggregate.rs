//! Sums of gradients in one fixed order.
//!
//! Float addition is not associative, so the order is part of the result. Ours is a binary tree over the parts in
//! their given order: neighbours are added, then neighbours of those sums. With part counts and sizes that are powers of
//! two, a batch cut over one, two or four workers goes through the same tree and gives the same bits.

/// `target[i] += part[i]`.
pub fn add(target: &mut [f32], part: &[f32]) {
    for (sum, value) in target.iter_mut().zip(part) {
        *sum += value;
    }
}

/// `values[i] *= factor`; a factor of one changes no bit.
pub fn scale(values: &mut [f32], factor: f32) {
    for value in values {
        *value *= factor;
    }
}

/// The place of the first value that is not finite. Whole blocks are looked at at once, since a search that may stop at every value
/// cannot be vectorised: a gradient is nearly always all finite.
#[must_use]
pub fn first_not_finite(values: &[f32]) -> Option<usize> {
    const BLOCK: usize = 1024;
    let bad = |block: &[f32]| block.iter().fold(false, |bad, value| bad | !value.is_finite());
    let block = values.chunks(BLOCK).position(bad)?;
    let start = block * BLOCK;
    values[start..].iter().position(|value| !value.is_finite()).map(|place| start + place)
}

/// Sums `parts` pairwise, in order, into `parts[0]`; the other parts are overwritten with partial sums.
pub fn pairwise_sum<T: AsMut<[f32]>>(parts: &mut [T]) {
    let mut stride = 1;
    while stride < parts.len() {
        for left in (0..parts.len() - stride).step_by(2 * stride) {
            let (head, tail) = parts.split_at_mut(left + stride);
            add(head[left].as_mut(), tail[0].as_mut());
        }
        stride *= 2;
    }
}

/// The mean of gradients that stand for different numbers of samples: `sum(samples_i * part_i) / sum(samples_i)`, into
/// `parts[0]`. Each part is first scaled by its share, which is exact when the shares are powers of two.
pub fn weighted_mean<T: AsMut<[f32]>>(parts: &mut [T], samples: &[u32]) {
    let total: u64 = samples.iter().map(|count| u64::from(*count)).sum();
    for (part, count) in parts.iter_mut().zip(samples) {
        scale(part.as_mut(), (f64::from(*count) / total.max(1) as f64) as f32);
    }
    pairwise_sum(parts);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_value_that_is_not_finite_is_found(len in 0..5000_usize, bad in prop::collection::vec((0..5000_usize, 0..3_usize), 0..3)) {
            let mut values = vec![1.0_f32; len];
            for (place, kind) in bad {
                if place < len { values[place] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][kind]; }
            }
            prop_assert_eq!(first_not_finite(&values), values.iter().position(|value| !value.is_finite()));
        }

        #[test]
        fn two_levels_of_the_tree_are_one_tree(values in prop::collection::vec(prop::collection::vec(-1e3_f32..1e3, 3), 8)) {
            let mut whole = values.clone();
            pairwise_sum(&mut whole);
            for group in [2, 4] {
                let mut sums: Vec<Vec<f32>> = values.chunks(group).map(|chunk| {
                    let mut chunk = chunk.to_vec();
                    pairwise_sum(&mut chunk);
                    chunk.swap_remove(0)
                }).collect();
                pairwise_sum(&mut sums);
                prop_assert_eq!(&sums[0], &whole[0]);
            }
        }

        #[test]
        fn the_mean_weighs_by_samples(parts in prop::collection::vec((-1e2_f32..1e2, 1..50_u32), 1..9)) {
            let exact: f64 = parts.iter().map(|(value, count)| f64::from(*value) * f64::from(*count)).sum::<f64>()
                / parts.iter().map(|(_, count)| f64::from(*count)).sum::<f64>();
            let samples: Vec<u32> = parts.iter().map(|part| part.1).collect();
            let mut values: Vec<Vec<f32>> = parts.iter().map(|part| vec![part.0]).collect();
            weighted_mean(&mut values, &samples);
            prop_assert!((f64::from(values[0][0]) - exact).abs() < 1e-3);
        }
    }
}
