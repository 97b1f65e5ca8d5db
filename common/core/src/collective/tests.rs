//! A group in one thread, whose messages arrive in any order.

mod costs;
mod counts;
mod fusion;
mod names;
mod refusals;
mod sums;

use std::ops::Range;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::topology::divisors;
use super::*;
use crate::layout::Layout;

/// Values that are shared and cut without a copy, as on the wire.
#[derive(Clone, Debug)]
struct Shared {
    values: Arc<Vec<f32>>,
    range: Range<usize>,
}

impl AsRef<[f32]> for Shared {
    fn as_ref(&self) -> &[f32] {
        &self.values[self.range.clone()]
    }
}

impl From<Vec<f32>> for Shared {
    fn from(values: Vec<f32>) -> Self {
        Self { range: 0..values.len(), values: Arc::new(values) }
    }
}

impl Values for Shared {
    fn part(&self, range: Range<usize>) -> Self {
        let len = self.range.len();
        let (start, end) = (range.start.min(len), range.end.min(len));
        Self { values: Arc::clone(&self.values), range: self.range.start + start..self.range.start + end }
    }
}

/// All topologies that fit so many members.
fn fitting(members: u32) -> Vec<Topology> {
    let mut all = vec![Topology::Ring, Topology::HalvingDoubling, Topology::Doubling];
    all.extend(divisors(members).map(|group| Topology::Hierarchical { group }));
    all.extend(divisors(members).map(|x| Topology::Torus { x, y: members / x }));
    all
}

fn schedule(topology: Topology, members: u32) -> Arc<Schedule> {
    Arc::new(Schedule::new(topology, members).unwrap())
}

/// What can happen next in a group.
enum Pending {
    Own { position: u32 },
    Message { from: u32, outgoing: Outgoing<Shared> },
}

/// What one member had at the end.
#[derive(Debug)]
struct Outcome {
    parts: Vec<Shared>,
    messages: u64,
    values_sent: u64,
}

/// One bucket's allreduce of a whole group; whatever is pending happens in an order that `rng` draws.
fn run(
    schedule: &Arc<Schedule>,
    packed: Vec<Vec<f32>>,
    part_lens: &[u64],
    rng: &mut ChaCha8Rng,
) -> Vec<Outcome> {
    let begin = |position| Reduction::<Shared>::new(Arc::clone(schedule), position, part_lens.to_vec());
    let mut group: Vec<Reduction<Shared>> = (0..schedule.members()).map(begin).collect();
    let mut sent = vec![(0, 0); group.len()];
    let mut packed: Vec<Option<Vec<f32>>> = packed.into_iter().map(Some).collect();
    let mut pending: Vec<Pending> =
        (0..schedule.members()).map(|position| Pending::Own { position }).collect();
    let mut out = Vec::new();
    while !pending.is_empty() {
        let next = pending.swap_remove(rng.random_range(0..pending.len()));
        let position = match next {
            Pending::Own { position } => {
                let own = packed[position as usize].take().unwrap();
                group[position as usize].own(Shared::from(own), &mut out).unwrap();
                position
            }
            Pending::Message { from, outgoing } => {
                let member = &mut group[outgoing.to as usize];
                assert_eq!(member.expects(from, outgoing.number), Some(outgoing.len));
                assert!(!member.is_complete());
                let values = outgoing.pieces.iter().flat_map(|piece| piece.as_ref()).copied().collect();
                member.arrived(from, outgoing.number, values, &mut out).unwrap();
                assert_eq!(member.expects(from, outgoing.number), None);
                outgoing.to
            }
        };
        for outgoing in out.drain(..) {
            let (messages, values) = &mut sent[position as usize];
            (*messages, *values) = (*messages + 1, *values + outgoing.len);
            pending.push(Pending::Message { from: position, outgoing });
        }
    }
    let end = |(member, (messages, values_sent)): (Reduction<Shared>, (u64, u64))| {
        assert!(member.is_gathered() && member.is_complete());
        Outcome { parts: member.into_parts(), messages, values_sent }
    };
    group.into_iter().zip(sent).map(end).collect()
}

/// The allreduce of a whole model, bucket by bucket: what every member has in the end.
fn reduce(
    schedule: &Arc<Schedule>,
    layout: &Layout,
    cut: (u64, Order),
    gradients: &[Vec<f32>],
    seed: u64,
) -> Vec<Vec<f32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let packing = Packing::new(schedule.parts());
    let mut sums = vec![vec![f32::NAN; layout.len() as usize]; gradients.len()];
    for bucket in buckets(layout, cut.0, cut.1) {
        let pack = |gradient: &Vec<f32>| {
            let mut packed = Vec::new();
            packing.pack(bucket.keys, &gradient[bucket.keys.as_indices()], 1.0, &mut packed);
            packed
        };
        let packed = gradients.iter().map(pack).collect();
        let outcomes = run(schedule, packed, &packing.part_lens(bucket.keys), &mut rng);
        for (sum, outcome) in sums.iter_mut().zip(&outcomes) {
            packing.unpack(bucket.keys, &outcome.parts, &mut sum[bucket.keys.as_indices()]);
        }
    }
    sums
}

/// A model of such tensors.
fn layout_of(lens: &[u64]) -> Layout {
    let mut layout = Layout::new();
    for (index, len) in lens.iter().enumerate() {
        layout.parameter(format!("tensor{index}"), &[*len], true);
    }
    layout
}

fn integers(members: u32, len: u64, seed: u64) -> Vec<Vec<f32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut gradient = || (0..len).map(|_| rng.random_range(-9999..=9999_i32) as f32).collect();
    (0..members).map(|_| gradient()).collect()
}

/// Values of different sizes, so that nearly every addition rounds.
fn floats(members: u32, len: u64, seed: u64) -> Vec<Vec<f32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut value = || rng.random_range(-1.0..1.0_f32) * rng.random_range(0.001..1.0_f32);
    let mut gradient = || (0..len).map(|_| value()).collect();
    (0..members).map(|_| gradient()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
