//! Some values with their indices; all others are zero. Written by [`super::top_k`], [`super::relative_k`] and [`super::significance`].
//!
//! ```text
//! count u32 | form u32 | indices, padded to whole words | count values f32
//! form 0: a list, u32 an index    1: a bitmap, one bit a key    2: gaps, 7 bits a byte, lower ones first, the top bit says that more follow
//! ```
//! A gap is how many keys lie between an index and the one before. Of the forms the shortest is taken, and of equal ones the first.

use bytemuck::{cast_slice, cast_slice_mut};

use super::random_k::Strata;

/// Words before the indices.
pub(super) const HEAD: usize = 2;

/// Bytes of the longest gap.
const GAP_BYTES_MAX: usize = 5;

/// How indices are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    List,
    Bitmap,
    Gaps,
}

impl Form {
    const ALL: [Self; 3] = [Self::List, Self::Bitmap, Self::Gaps];

    /// Words that indices take.
    fn words(self, indices: &[u32], keys: usize) -> usize {
        match self {
            Self::List => indices.len(),
            Self::Bitmap => keys.div_ceil(32),
            Self::Gaps => gaps(indices).map(gap_bytes).sum::<usize>().div_ceil(4),
        }
    }
}

fn gaps(indices: &[u32]) -> impl Iterator<Item = u32> {
    let mut next = 0;
    indices.iter().map(move |index| {
        let gap = index - next;
        next = index.wrapping_add(1);
        gap
    })
}

const fn gap_bytes(gap: u32) -> usize {
    1 + (gap > 0x7f) as usize
        + (gap > 0x3fff) as usize
        + (gap > 0x1f_ffff) as usize
        + (gap > 0x0fff_ffff) as usize
}

/// The shortest form of indices, which rise, and its words; of equal ones the first.
fn shortest(indices: &[u32], keys: usize) -> (Form, usize) {
    let sizes = Form::ALL.map(|form| (form, form.words(indices, keys)));
    sizes.into_iter().min_by_key(|(_, words)| *words).unwrap_or((Form::List, indices.len()))
}

/// Words of a payload with values at `indices`, which rise. They grow with every index: the two halves of a gap
/// take no fewer bytes than the whole.
pub(super) fn words(indices: &[u32], keys: usize) -> usize {
    HEAD + shortest(indices, keys).1 + indices.len()
}

/// Writes the values of `sum` at `indices`, which rise; false, and nothing written, where plain values would not be longer.
pub(super) fn write(indices: &[u32], sum: &[f32], words: &mut Vec<f32>) -> bool {
    let keys = sum.len();
    if HEAD + indices.len() >= keys {
        return false;
    }
    let (form, index_words) = shortest(indices, keys);
    if HEAD + index_words + indices.len() >= keys {
        return false;
    }
    words.resize(HEAD + index_words + indices.len(), 0.0);
    let (head, values) = words.split_at_mut(HEAD + index_words);
    let head: &mut [u32] = cast_slice_mut(head);
    (head[0], head[1]) = (indices.len() as u32, form as u32);
    let coded = &mut head[HEAD..];
    match form {
        Form::List => coded.copy_from_slice(indices),
        Form::Bitmap => {
            coded.fill(0);
            for index in indices {
                coded[*index as usize / 32] |= 1 << (index % 32);
            }
        }
        Form::Gaps => write_gaps(indices, cast_slice_mut(coded)),
    }
    for (value, index) in values.iter_mut().zip(indices) {
        *value = sum[*index as usize];
    }
    true
}

fn write_gaps(indices: &[u32], bytes: &mut [u8]) {
    let mut at = 0;
    for mut gap in gaps(indices) {
        while gap > 0x7f {
            bytes[at] = gap as u8 | 0x80;
            (at, gap) = (at + 1, gap >> 7);
        }
        bytes[at] = gap as u8;
        at += 1;
    }
    bytes[at..].fill(0);
}

/// A payload in its parts: indices not read yet, and values.
fn parts(words: &[u32]) -> Option<(Form, &[u32], &[u32])> {
    let ([count, form], rest) = words.split_first_chunk()?;
    let form = *Form::ALL.get(*form as usize)?;
    let (indices, values) = rest.split_at_checked(rest.len().checked_sub(*count as usize)?)?;
    Some((form, indices, values))
}

/// What is wrong with a foreign payload.
pub(super) fn fault(words: &[u32], keys: usize) -> Option<&'static str> {
    let Some((form, coded, values)) = parts(words) else { return Some("its head does not fit its length") };
    match form {
        Form::List => list_fault(coded, values.len(), keys),
        Form::Bitmap => bitmap_fault(coded, values.len(), keys),
        Form::Gaps => gaps_fault(cast_slice(coded), values.len(), keys),
    }
}

fn list_fault(list: &[u32], count: usize, keys: usize) -> Option<&'static str> {
    if list.len() != count {
        return Some("it has not as many indices as values");
    }
    let rises = list.is_sorted_by(|left, right| left < right);
    let ends = list.last().is_none_or(|last| (*last as usize) < keys);
    (!rises || !ends).then_some("its indices do not rise within its keys")
}

fn bitmap_fault(bitmap: &[u32], count: usize, keys: usize) -> Option<&'static str> {
    if bitmap.len() != keys.div_ceil(32) {
        return Some("its bitmap has not a bit a key");
    }
    let beyond = bitmap.last().is_some_and(|last| !keys.is_multiple_of(32) && last >> (keys % 32) != 0);
    let set: usize = bitmap.iter().map(|word| word.count_ones() as usize).sum();
    (beyond || set != count).then_some("it has not as many indices as values")
}

fn gaps_fault(bytes: &[u8], count: usize, keys: usize) -> Option<&'static str> {
    let mut rest = bytes;
    let mut next = 0_u64;
    for _ in 0..count {
        let Some(length) = rest.iter().take(GAP_BYTES_MAX).position(|byte| *byte < 0x80) else {
            return Some("a gap does not end");
        };
        let (gap, after) = rest.split_at(length + 1);
        rest = after;
        let gap = gap.iter().rev().fold(0_u64, |gap, byte| gap << 7 | u64::from(byte & 0x7f));
        next += gap + 1;
        if next > keys as u64 || next > 1 << 32 {
            return Some("its indices do not rise within its keys");
        }
    }
    (rest.len() > 3 || rest.iter().any(|byte| *byte != 0)).then_some("its padding is not zero")
}

/// Indices in order.
#[derive(Clone, Debug)]
enum Indices<'p> {
    List(std::slice::Iter<'p, u32>),
    Bitmap { rest: std::slice::Iter<'p, u32>, word: u32, base: u32 },
    Gaps { rest: std::slice::Iter<'p, u8>, next: u32 },
    Strata(Box<Strata>),
}

impl Iterator for Indices<'_> {
    type Item = u32;

    /// The next one. What was not checked may end or repeat itself, but nothing else.
    fn next(&mut self) -> Option<u32> {
        match self {
            Self::List(list) => list.next().copied(),
            Self::Bitmap { rest, word, base } => {
                while *word == 0 {
                    *word = *rest.next()?;
                    *base = base.wrapping_add(32);
                }
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                Some(base.wrapping_add(bit))
            }
            Self::Gaps { rest, next } => {
                let mut byte = *rest.next()?;
                let mut gap = u32::from(byte & 0x7f);
                let mut shift = 7;
                while byte >= 0x80 {
                    byte = *rest.next()?;
                    gap |= u32::from(byte & 0x7f).unbounded_shl(shift);
                    shift += 7;
                }
                let index = next.wrapping_add(gap);
                *next = index.wrapping_add(1);
                Some(index)
            }
            Self::Strata(strata) => strata.next(),
        }
    }
}

/// Reads the keys of a payload in order: zeros, and its values at their indices.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'p> {
    indices: Indices<'p>,
    values: &'p [u32],
    /// Index of the first of `values`, where there is one.
    index: usize,
    /// Keys that were read.
    at: usize,
}

impl<'p> Cursor<'p> {
    /// A payload with indices.
    pub(super) fn new(words: &'p [u32]) -> Self {
        let (form, coded, values) = parts(words).unwrap_or((Form::List, &[], &[]));
        let indices = match form {
            Form::List => Indices::List(coded.iter()),
            Form::Bitmap => Indices::Bitmap { rest: coded.iter(), word: 0, base: 32_u32.wrapping_neg() },
            Form::Gaps => Indices::Gaps { rest: cast_slice(coded).iter(), next: 0 },
        };
        Self::begin(indices, values)
    }

    /// Values at places that were drawn.
    pub(super) fn drawn(strata: Strata, values: &'p [u32]) -> Self {
        Self::begin(Indices::Strata(Box::new(strata)), values)
    }

    fn begin(indices: Indices<'p>, values: &'p [u32]) -> Self {
        let mut cursor = Self { indices, values, index: 0, at: 0 };
        cursor.find();
        cursor
    }

    /// Finds the index of the first value.
    fn find(&mut self) {
        self.index = match self.values.is_empty() {
            true => usize::MAX,
            false => self.indices.next().map_or(usize::MAX, |index| index as usize),
        };
    }

    /// The next value below key `end`, with its key.
    fn take_below(&mut self, end: usize) -> Option<(usize, f32)> {
        if self.index >= end {
            return None;
        }
        let (value, rest) = self.values.split_first()?;
        let taken = (self.index, f32::from_bits(*value));
        self.values = rest;
        self.find();
        Some(taken)
    }

    /// Writes the next values to all of `out`.
    pub(super) fn read(&mut self, out: &mut [f32]) {
        out.fill(0.0);
        let begin = self.at;
        self.at += out.len();
        while let Some((key, value)) = self.take_below(self.at) {
            if let Some(place) = out.get_mut(key.wrapping_sub(begin)) {
                *place = value;
            }
        }
    }

    /// Leaves out the next `len` values.
    pub(super) fn skip(&mut self, len: usize) {
        self.at += len;
        while self.take_below(self.at).is_some() {}
    }

    /// The first key that is not finite.
    pub(super) fn first_not_finite(mut self) -> Option<usize> {
        let is_bad = |value: &u32| value & 0x7f80_0000 == 0x7f80_0000;
        if !self.values.iter().fold(false, |bad, value| bad | is_bad(value)) {
            return None;
        }
        while let Some((key, value)) = self.take_below(usize::MAX) {
            if !value.is_finite() {
                return Some(key);
            }
        }
        None
    }
}
