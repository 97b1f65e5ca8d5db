//! Sums of gradients in one fixed order.
//!
//! Float addition is not associative, so the order is part of the result. Ours is a binary tree over the parts in
//! their given order: neighbours are added, then neighbours of those sums. With part counts and sizes that are powers of
//! two, a batch cut over one, two or four workers goes through the same tree and gives the same bits.

use crate::codec::Source;
use crate::wide::wide;

/// Values of each part that are summed at once. A tree over whole arrays passes over memory once a level; over blocks of several kilobytes
/// the processor reads one array after the other and cannot read ahead in all of them.
const BLOCK: usize = 256;

type Block = [f32; BLOCK];

/// `target[i] += part[i]`.
pub fn add(target: &mut [f32], part: &[f32]) {
    wide(|| {
        for (sum, value) in target.iter_mut().zip(part) {
            *sum += value;
        }
    });
}

/// `values[i] *= factor`; a factor of one changes no bit.
pub fn scale(values: &mut [f32], factor: f32) {
    wide(|| {
        for value in values {
            *value *= factor;
        }
    });
}

/// The place of the first value that is not finite. Whole blocks are looked at at once, since a search that may stop at every value
/// cannot be vectorised: a gradient is nearly always all finite.
#[must_use]
pub fn first_not_finite(values: &[f32]) -> Option<usize> {
    const LOOKED_AT: usize = 1024;
    const EXPONENT_ONE: u32 = 1 << 23;
    // All ones in the exponent, and nothing else, become the sign by one more.
    let sum = |value: &f32| (value.to_bits() & 0x7fff_ffff) + EXPONENT_ONE;
    let is_bad = |block: &[f32]| wide(|| block.iter().fold(0, |bits, value| bits | sum(value))) >> 31 == 1;
    let start = values.chunks(LOOKED_AT).position(is_bad)? * LOOKED_AT;
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

/// What each part counts for in a mean over so many samples.
fn shares(samples: &[u32]) -> impl Iterator<Item = f32> {
    let total = samples.iter().map(|count| u64::from(*count)).sum::<u64>().max(1);
    samples.iter().map(move |count| (f64::from(*count) / total as f64) as f32)
}

/// The mean of gradients of equal length that stand for different numbers of samples: `sum(samples_i * part_i) / sum(samples_i)`,
/// into `parts[0]`; the others are overwritten. Each part is first scaled by its share, which is exact when the shares are powers of two.
pub fn weighted_mean<T: AsMut<[f32]>>(parts: &mut [T], samples: &[u32]) {
    let shares: Vec<f32> = shares(samples).collect();
    let mut blocks: Vec<_> = parts.iter_mut().map(|part| part.as_mut().chunks_mut(BLOCK)).collect();
    loop {
        let mut block: Vec<&mut [f32]> = blocks.iter_mut().filter_map(Iterator::next).collect();
        if block.is_empty() {
            return;
        }
        for (part, share) in block.iter_mut().zip(&shares) {
            scale(part, *share);
        }
        pairwise_sum(&mut block);
    }
}

/// The mean of gradients of equal length as a source of its own: what [`weighted_mean`] makes, bit for bit, a block at a time, while
/// the parts are left as they are.
#[derive(Clone, Debug)]
pub struct Mean<S> {
    parts: Vec<Part<S>>,
    /// Where the values of a part go that are not there plainly.
    decoded: Box<Block>,
    /// A sum for each level of the tree.
    sums: Vec<Block>,
}

/// One of the gradients.
#[derive(Clone, Debug)]
struct Part<S> {
    source: S,
    /// It is multiplied by both, one after the other.
    weight: f32,
    share: f32,
}

impl<S: Source> Mean<S> {
    /// Of these gradients, in this order; each with what it is multiplied by before, and the samples it stands for.
    pub fn new(parts: impl IntoIterator<Item = (S, f32, u32)>) -> Self {
        let (parts, samples): (Vec<_>, Vec<_>) =
            parts.into_iter().map(|(source, weight, samples)| ((source, weight), samples)).unzip();
        let parts = parts.into_iter().zip(shares(&samples));
        let parts: Vec<_> =
            parts.map(|((source, weight), share)| Part { source, weight, share }).collect();
        let levels = parts.len().next_power_of_two().ilog2() as usize;
        Self { parts, decoded: Box::new([0.0; BLOCK]), sums: vec![[0.0; BLOCK]; levels] }
    }
}

impl<S: Source> Part<S> {
    /// Its next values, scaled, where `put` puts them; how many there were.
    fn take(&mut self, out: &mut [f32], decoded: &mut Block, put: impl Fn(&mut f32, f32)) -> usize {
        let Self { source, weight, share } = self;
        let (weight, share) = (*weight, *share);
        let values = source.next(out.len(), decoded);
        wide(|| {
            for (out, value) in out.iter_mut().zip(values) {
                put(out, value * weight * share);
            }
        });
        values.len()
    }
}

/// Sums the next values of `parts`, of one block at most, into `out`; how many there were. The tree is that of [`pairwise_sum`]: on the
/// left as many as make a full one. `sums` has a place for each level.
fn sum<S: Source>(parts: &mut [Part<S>], out: &mut [f32], decoded: &mut Block, sums: &mut [Block]) -> usize {
    if let [part] = parts {
        return part.take(out, decoded, |out, value| *out = value);
    }
    let (left, right) = parts.split_at_mut(parts.len().next_power_of_two() / 2);
    let len = sum(left, out, decoded, sums);
    let out = &mut out[..len];
    if let [part] = right {
        part.take(out, decoded, |out, value| *out += value);
    } else if let [first, others @ ..] = sums {
        let first = &mut first[..len];
        sum(right, first, decoded, others);
        add(out, first);
    }
    len
}

impl<S: Source> Source for Mean<S> {
    fn next<'a>(&'a mut self, len: usize, scratch: &'a mut [f32]) -> &'a [f32] {
        match self.parts.as_mut_slice() {
            [] => &[],
            [Part { source, weight: 1.0, share: 1.0 }] => source.next(len, scratch),
            parts => {
                let mut done = 0;
                for block in scratch[..len].chunks_mut(BLOCK) {
                    done += sum(parts, block, &mut self.decoded, &mut self.sums);
                }
                &scratch[..done]
            }
        }
    }

    fn skip(&mut self, len: usize) {
        self.parts.iter_mut().for_each(|part| part.source.skip(len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Encoding, Payload};
    use proptest::prelude::*;

    fn payload(values: &[f32], is_half: bool) -> Payload {
        if !is_half {
            return Payload::plain(values.to_vec());
        }
        let half = |pair: &[f32], of: usize| pair.get(of).map_or(0, |value| value.to_bits() >> 16);
        let words = values.chunks(2).map(|pair| f32::from_bits(half(pair, 0) | half(pair, 1) << 16));
        Payload::new(Encoding::Bf16, values.len(), words.collect()).unwrap()
    }

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

        // The definition: whole arrays, level by level.
        #[test]
        fn a_mean_in_blocks_has_the_bits_of_one_over_whole_arrays(
            len in 0..1200_usize,
            parts in prop::collection::vec((any::<u32>(), 1..50_u32, prop_oneof![Just(1.0_f32), 0.1_f32..1.0]), 1..20),
            halves in any::<u32>(),
        ) {
            let value = |seed: u32, key: usize| (f64::from(seed) + key as f64).sin() as f32;
            let samples: Vec<u32> = parts.iter().map(|part| part.1).collect();
            let values: Vec<Vec<f32>> =
                parts.iter().map(|part| (0..len).map(|key| value(part.0, key)).collect()).collect();
            // Some of them come encoded.
            let payloads: Vec<Payload> = values
                .iter()
                .enumerate()
                .map(|(part, values)| payload(values, halves >> (part % 32) & 1 == 1))
                .collect();
            let mut whole: Vec<Vec<f32>> = payloads.iter().map(|payload| {
                let mut values = vec![0.0; len];
                payload.decode_into(&mut values);
                values
            }).collect();
            let mut plain = whole.clone();
            let total: u32 = samples.iter().sum();
            for (values, (_, count, weight)) in whole.iter_mut().zip(&parts) {
                let share = (f64::from(*count) / f64::from(total)) as f32;
                values.iter_mut().for_each(|value| *value = *value * weight * share);
            }
            pairwise_sum(&mut whole);
            for (values, part) in plain.iter_mut().zip(&parts) {
                scale(values, part.2);
            }
            weighted_mean(&mut plain, &samples);
            prop_assert_eq!(&plain[0], &whole[0]);
            let sources = payloads.iter().zip(&parts).map(|(payload, part)| (payload.reader(), part.2, part.1));
            let (mut mean, mut taken, mut scratch) = (Mean::new(sources), Vec::new(), [0.0; 700]);
            // A run that is left out is only left out.
            let left_out = len / 3;
            mean.skip(left_out);
            loop {
                let block = mean.next(scratch.len(), &mut scratch);
                if block.is_empty() { break; }
                taken.extend_from_slice(block);
            }
            prop_assert_eq!(&taken[..], &whole[0][left_out..]);
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
