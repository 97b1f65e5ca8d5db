//! The values that one member has of a bucket, in as few pieces as they came in.

use std::ops::Range;

use super::reduction::Values;

/// Consecutive parts whose values lie together.
#[derive(Clone, Debug)]
struct Segment<V> {
    parts: Range<u32>,
    values: V,
}

/// The values of all parts of a bucket.
#[derive(Clone, Debug)]
pub(super) struct Segments<V> {
    /// Where each part begins in the packed bucket, and where the last ends.
    starts: Vec<usize>,
    /// Adjacent and in order; empty before there are values.
    segments: Vec<Segment<V>>,
}

impl<V: Values> Segments<V> {
    /// No values yet; so many in each of the schedule's parts. Lengths that are not given are zero.
    pub(super) fn new(parts: u32, part_lens: &[u64]) -> Self {
        let mut starts = Vec::with_capacity(parts as usize + 1);
        let mut end = 0_usize;
        starts.push(end);
        for part in 0..parts as usize {
            end = end.saturating_add(part_lens.get(part).copied().unwrap_or(0) as usize);
            starts.push(end);
        }
        Self { starts, segments: Vec::new() }
    }

    const fn parts(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    /// Number of values in those parts.
    pub(super) fn len(&self, parts: &Range<u32>) -> usize {
        self.starts[parts.end as usize] - self.starts[parts.start as usize]
    }

    /// Number of values in all parts.
    pub(super) fn total(&self) -> usize {
        self.len(&(0..self.parts()))
    }

    /// Takes the values of the whole bucket.
    pub(super) fn fill(&mut self, values: V) {
        self.segments = vec![Segment { parts: 0..self.parts(), values }];
    }

    /// The segments that touch those parts.
    fn touched(&self, parts: &Range<u32>) -> Range<usize> {
        let first = self.segments.partition_point(|segment| segment.parts.end <= parts.start);
        let end = self.segments.partition_point(|segment| segment.parts.start < parts.end);
        first..end.max(first)
    }

    /// The values of those parts, piece by piece, uncut where a segment lies within them.
    pub(super) fn pieces(&self, parts: &Range<u32>) -> Vec<V> {
        let cut = self.segments[self.touched(parts)].iter().map(|segment| self.cut(segment, parts));
        cut.filter(|piece| self.len(&piece.parts) > 0).map(|piece| piece.values).collect()
    }

    /// What those parts have of a segment that touches them.
    fn cut(&self, segment: &Segment<V>, parts: &Range<u32>) -> Segment<V> {
        let common = segment.parts.start.max(parts.start)..segment.parts.end.min(parts.end);
        if common == segment.parts {
            return segment.clone();
        }
        let origin = self.starts[segment.parts.start as usize];
        let range = self.starts[common.start as usize] - origin..self.starts[common.end as usize] - origin;
        Segment { parts: common, values: segment.values.part(range) }
    }

    /// Adds the values of those parts to `values`.
    pub(super) fn add_to(&self, parts: &Range<u32>, values: &mut [f32]) {
        let mut rest = values;
        for piece in self.pieces(parts) {
            let (here, after) = rest.split_at_mut(piece.as_ref().len().min(rest.len()));
            crate::aggregate::add(here, piece.as_ref());
            rest = after;
        }
    }

    /// Puts values in place of those that these parts have.
    pub(super) fn replace(&mut self, parts: Range<u32>, values: V) {
        let touched = self.touched(&parts);
        let outside = |segment: Option<&Segment<V>>, outside: Range<u32>| {
            segment.filter(|_| !outside.is_empty()).map(|segment| self.cut(segment, &outside))
        };
        let (first, last) =
            (self.segments.get(touched.start), self.segments.get(touched.end.wrapping_sub(1)));
        let before = outside(first, first.map_or(0, |segment| segment.parts.start)..parts.start);
        let after = outside(last, parts.end..last.map_or(0, |segment| segment.parts.end));
        let new = [before, Some(Segment { parts, values }), after];
        self.segments.splice(touched, new.into_iter().flatten());
    }

    /// The values of each part.
    pub(super) fn into_parts(self) -> Vec<V> {
        let one = |part: u32| self.pieces(&(part..part + 1)).pop().unwrap_or_else(|| V::from(Vec::new()));
        (0..self.parts()).map(one).collect()
    }
}
