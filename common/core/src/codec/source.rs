//! Values in order, a block at a time.

use super::blocks::{self, Form};
use super::encoding::Encoding;
use super::payload::Payload;
use super::{low_rank, random_k, rows, sparse};

/// A run of values that is taken in order, in blocks of the taker's choice: small enough to stay in cache from the decoding to the use.
pub trait Source {
    /// The next `len` values, where `len` is at most that of `scratch`, which they may be written to; fewer where the run ends.
    fn next<'a>(&'a mut self, len: usize, scratch: &'a mut [f32]) -> &'a [f32];

    /// Leaves out the next `len` values.
    fn skip(&mut self, len: usize);
}

/// Values that are there already: a block is a part of them, without a copy.
#[derive(Clone, Debug)]
pub struct PlainSource<'v>(&'v [f32]);

impl<'v> From<&'v [f32]> for PlainSource<'v> {
    fn from(values: &'v [f32]) -> Self {
        Self(values)
    }
}

impl<'v> PlainSource<'v> {
    fn take(&mut self, len: usize) -> &'v [f32] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

impl Source for PlainSource<'_> {
    fn next<'a>(&'a mut self, len: usize, _: &'a mut [f32]) -> &'a [f32] {
        self.take(len)
    }

    fn skip(&mut self, len: usize) {
        self.take(len);
    }
}

/// The values of a payload, decoded as they are taken.
#[derive(Clone, Debug)]
pub struct Reader<'p> {
    /// Keys that are left.
    left: usize,
    place: Place<'p>,
}

/// What is left of a payload.
#[derive(Clone, Debug)]
enum Place<'p> {
    Plain(PlainSource<'p>),
    Blocks(blocks::Cursor<'p>),
    Sparse(sparse::Cursor<'p>),
    LowRank(low_rank::Cursor<'p>),
    Rows(rows::Cursor<'p>),
}

impl<'p> Reader<'p> {
    pub(super) fn new(payload: &'p Payload) -> Self {
        let (bits, keys) = (payload.bits(), payload.keys());
        let place = match payload.encoding() {
            Encoding::Sparse => Place::Sparse(sparse::Cursor::new(bits)),
            Encoding::RandomK => Place::Sparse(random_k::cursor(bits, keys)),
            Encoding::LowRank => Place::LowRank(low_rank::Cursor::new(bits)),
            Encoding::Rows => Place::Rows(rows::Cursor::new(bits)),
            encoding => match Form::of(encoding, bits) {
                Some(form) => Place::Blocks(blocks::Cursor::new(form, bits, keys)),
                None => Place::Plain(payload.words().into()),
            },
        };
        Self { left: keys, place }
    }

    /// Writes the next values to `out`, or so many as are left.
    pub fn read(&mut self, out: &mut [f32]) {
        let len = out.len().min(self.left);
        let out = &mut out[..len];
        self.left -= len;
        match &mut self.place {
            Place::Plain(plain) => out.copy_from_slice(plain.take(len)),
            Place::Blocks(blocks) => blocks.read(out),
            Place::Sparse(sparse) => sparse.read(out),
            Place::LowRank(low_rank) => low_rank.read(out),
            Place::Rows(rows) => rows.read(out),
        }
    }
}

impl Source for Reader<'_> {
    fn next<'a>(&'a mut self, len: usize, scratch: &'a mut [f32]) -> &'a [f32] {
        let len = len.min(self.left).min(scratch.len());
        if let Place::Plain(plain) = &mut self.place {
            self.left -= len;
            return plain.take(len);
        }
        let out = &mut scratch[..len];
        self.read(out);
        out
    }

    fn skip(&mut self, len: usize) {
        let len = len.min(self.left);
        self.left -= len;
        match &mut self.place {
            Place::Plain(plain) => plain.skip(len),
            Place::Blocks(blocks) => blocks.skip(len),
            Place::Sparse(sparse) => sparse.skip(len),
            Place::LowRank(low_rank) => low_rank.skip(len),
            Place::Rows(rows) => rows.skip(len),
        }
    }
}
