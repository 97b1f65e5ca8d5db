//! Payloads over QUIC: a header, then raw words, a stream for each stripe, no copy on the way out and one on the way in.

use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, iter};

use bytes::Bytes;
use quinn::{ReadExactError, RecvStream, SendStream, VarInt};
use slackline_core::collective::Values;
use slackline_core::wire::{HEADER_BYTES, Stripe, TransferHeader, WireError, stripes};
use tokio::task::JoinSet;

use crate::connection::Connection;
use crate::count;
use crate::error::{ConnectionError, TransferError};
use crate::settings::Settings;

/// The code of a stream that its sender gives up.
const ABANDONED: VarInt = VarInt::from_u32(1);

/// Pieces of a stream that are taken at once. Each is one datagram's worth.
const PIECES: usize = 32;

/// Values that are never changed again, shared without copying: by the streams that send them, and by all who read a version.
#[derive(Clone)]
pub struct SharedValues {
    values: Arc<Vec<f32>>,
    part: Range<usize>,
    /// Dropped when nothing has a part of these values any more, after them.
    end: Option<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for SharedValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedValues").field(&self.part).finish()
    }
}

impl From<Vec<f32>> for SharedValues {
    fn from(values: Vec<f32>) -> Self {
        let part = 0..values.len();
        Self { values: Arc::new(values), part, end: None }
    }
}

impl From<Arc<Vec<f32>>> for SharedValues {
    fn from(values: Arc<Vec<f32>>) -> Self {
        let part = 0..values.len();
        Self { values, part, end: None }
    }
}

impl AsRef<[f32]> for SharedValues {
    fn as_ref(&self) -> &[f32] {
        &self.values[self.part.clone()]
    }
}

impl Values for SharedValues {
    fn part(&self, range: Range<usize>) -> Self {
        self.slice(range)
    }
}

impl SharedValues {
    /// Number of values.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.part.end - self.part.start
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same, with something that is dropped once these values and all parts of them are: when they were sent, that is when the
    /// peer has acknowledged all of them, for QUIC needs them until then.
    #[must_use]
    pub fn with_end(self, end: impl Send + Sync + 'static) -> Self {
        Self { end: Some(Arc::new(end)), ..self }
    }

    /// A part of these values, cut to those that exist.
    #[must_use]
    pub fn slice(&self, part: Range<usize>) -> Self {
        let start = part.start.min(self.len());
        let end = part.end.clamp(start, self.len());
        let part = self.part.start + start..self.part.start + end;
        Self { values: self.values.clone(), part, end: self.end.clone() }
    }

    /// Whether both are parts of one buffer.
    #[must_use]
    pub fn shares_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.values, &other.values)
    }

    /// The whole buffer, to be written again, if nothing shares it any more. QUIC does until the peer has acknowledged it.
    ///
    /// # Errors
    /// The values themselves, when they are still shared.
    pub fn try_reclaim(self) -> Result<Vec<f32>, Self> {
        let Self { values, part, end } = self;
        Arc::try_unwrap(values).map_err(|values| Self { values, part, end })
    }

    fn to_bytes(&self) -> Bytes {
        struct Owner(SharedValues);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                bytemuck::cast_slice(self.0.as_ref())
            }
        }
        Bytes::from_owner(Owner(self.clone()))
    }
}

/// Sends `values` as the payload of `header`, cut into stripes; the header's own stripe fields are filled in. Returns once QUIC has
/// taken all: whether they arrived is for the peer to say in a message. Dropped or failed half-way, its streams are abandoned.
///
/// # Errors
/// The connection ended, the peer refused a stream, or there are not as many values as words of the payload.
pub async fn send(
    connection: &Connection,
    header: TransferHeader,
    values: &SharedValues,
    settings: &Settings,
) -> Result<(), TransferError> {
    send_pieces(connection, header, std::slice::from_ref(values), settings).await
}

/// As [`send`], for values that lie in several places: one piece after another, without a copy. Stripes are cut across pieces.
///
/// # Errors
/// As for [`send`].
pub async fn send_pieces(
    connection: &Connection,
    header: TransferHeader,
    pieces: &[SharedValues],
    settings: &Settings,
) -> Result<(), TransferError> {
    send_until(connection, header, pieces, settings, Until::Taken).await
}

/// As [`send_pieces`], but returns only when the peer has acknowledged all or has said that it does not want it: until then it is under way.
///
/// # Errors
/// As for [`send`].
pub async fn carry_pieces(
    connection: &Connection,
    header: TransferHeader,
    pieces: &[SharedValues],
    settings: &Settings,
) -> Result<(), TransferError> {
    send_until(connection, header, pieces, settings, Until::Acknowledged).await
}

/// When a transfer counts as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// QUIC has all of it.
    Taken,
    /// The peer has.
    Acknowledged,
}

async fn send_until(
    connection: &Connection,
    header: TransferHeader,
    pieces: &[SharedValues],
    settings: &Settings,
    until: Until,
) -> Result<(), TransferError> {
    let count: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
    if count != header.words {
        return Err(TransferError::OtherLength { words: header.words, values: count });
    }
    let rank = settings.rank(&header);
    let cuts = stripes(header.words, settings.stripe_bytes / 4, settings.streams);
    let header = TransferHeader { stripe_count: cuts.len() as u32, ..header };
    if let [stripe] = cuts[..] {
        let chunks = chunks(header.with_stripe(stripe), pieces);
        let turn = connection.turn().await;
        let stream = open(connection, rank).await?;
        drop(turn);
        return send_stripe(stream, chunks, until).await;
    }
    let mut sending = JoinSet::new();
    {
        // One transfer has all its streams before the next has any: a peer that lets only so many be open could otherwise have parts
        // of many transfers, and of none that it has room for all that is missing.
        let _turn = connection.turn().await;
        for stripe in cuts {
            let cut = cut(pieces, stripe.start as usize..stripe.end() as usize);
            let stream = open(connection, rank).await?;
            sending.spawn(send_stripe(stream, chunks(header.with_stripe(stripe), &cut), until));
        }
    }
    while let Some(ended) = sending.join_next().await {
        // On the first error the other streams are dropped with the set, and so abandoned.
        ended.map_err(|_| TransferError::Stopped)??;
    }
    Ok(())
}

/// The values in `range` of all pieces together.
fn cut(pieces: &[SharedValues], range: Range<usize>) -> Vec<SharedValues> {
    let mut before = 0;
    let part = |piece: &SharedValues| {
        let here = range.start.saturating_sub(before)..range.end.saturating_sub(before);
        before += piece.len();
        piece.slice(here)
    };
    pieces.iter().map(part).collect()
}

/// What a stream carries: the header, then the values.
fn chunks(header: TransferHeader, pieces: &[SharedValues]) -> Vec<Bytes> {
    let header = Bytes::copy_from_slice(&header.to_bytes());
    let pieces = pieces.iter().filter(|piece| !piece.is_empty());
    iter::once(header).chain(pieces.map(SharedValues::to_bytes)).collect()
}

/// Waits while the peer lets no more streams be open.
async fn open(connection: &Connection, rank: u32) -> Result<Sending, TransferError> {
    let stream = connection.quic().open_uni().await.map_err(ConnectionError::from)?;
    // It fails only on a stream that has ended. QUIC's highest goes first, and that is for messages.
    let _ = stream.set_priority(-i32::try_from(rank).unwrap_or(i32::MAX));
    Ok(Sending { stream, complete: false })
}

async fn send_stripe(
    mut sending: Sending,
    mut chunks: Vec<Bytes>,
    until: Until,
) -> Result<(), TransferError> {
    sending.stream.write_all_chunks(&mut chunks).await.map_err(ConnectionError::from)?;
    sending.complete = true;
    // An error would mean that the stream has ended before, which `write_all_chunks` has just disproved.
    let _ = sending.stream.finish();
    if until == Until::Acknowledged {
        // What ends the connection is told by those who read from it.
        let _ = sending.stream.stopped().await;
    }
    Ok(())
}

/// A stream that is abandoned unless all was written: quinn alone would finish it, and a part would look like the whole.
struct Sending {
    stream: SendStream,
    complete: bool,
}

impl Drop for Sending {
    fn drop(&mut self) {
        if !self.complete {
            // It fails only on a stream that the peer has stopped already.
            let _ = self.stream.reset(ABANDONED);
        }
    }
}

/// Waits for the next stripe. May be dropped and called again without loss; reading the header is a step of its own
/// ([`Opening::header`], best in a task of its own), so that a header which is late holds up no other stripe.
///
/// # Errors
/// The connection has ended.
pub async fn accept(connection: &Connection) -> Result<Opening, ConnectionError> {
    let stream = connection.quic().accept_uni().await?;
    Ok(Opening { stream })
}

/// A stripe that is beginning.
#[derive(Debug)]
pub struct Opening {
    stream: RecvStream,
}

impl Opening {
    /// Reads the header: a fixed number of bytes, whatever they say.
    ///
    /// # Errors
    /// The bytes are no header, or the stream ended.
    pub async fn header(mut self) -> Result<Arriving, TransferError> {
        let mut bytes = [0; HEADER_BYTES];
        match self.stream.read_exact(&mut bytes).await {
            Ok(()) => Ok(Arriving { header: TransferHeader::from_bytes(&bytes)?, stream: self.stream }),
            Err(ReadExactError::FinishedEarly(_)) => Err(WireError::NotATransfer.into()),
            Err(ReadExactError::ReadError(error)) => Err(ConnectionError::from(error).into()),
        }
    }
}

/// A stripe whose header is known. Dropped unread, its stream is stopped.
#[derive(Debug)]
pub struct Arriving {
    header: TransferHeader,
    stream: RecvStream,
}

impl Arriving {
    /// What arrives.
    #[must_use]
    pub const fn header(&self) -> &TransferHeader {
        &self.header
    }

    /// Reads the stripe to its place in `destination`. What the header says is believed only as far as the destination reaches.
    ///
    /// # Errors
    /// The stripe lies outside of the destination, has fewer or more bytes than its header says, or the stream ended.
    pub async fn read_into(mut self, destination: &Destination) -> Result<(), TransferError> {
        let mut at = destination.place(self.header.stripe)?;
        let announced = self.header.stripe_bytes();
        let mut left = announced;
        // In order: quinn then bounds how many gaps it remembers, which it does not for unordered reads.
        let mut pieces = [const { Bytes::new() }; PIECES];
        while let Some(count) = self.stream.read_chunks(&mut pieces).await.map_err(ConnectionError::from)? {
            let arrived = &mut pieces[..count];
            let length: u64 = arrived.iter().map(|piece| piece.len() as u64).sum();
            left = left.checked_sub(length).ok_or(TransferError::TooMany { announced })?;
            destination.copy(at, arrived);
            at += length as usize;
            // The pieces hold whole datagrams in memory: they go back before the next wait.
            arrived.fill(Bytes::new());
        }
        if left > 0 {
            return Err(TransferError::TooFew { announced, received: announced - left });
        }
        Ok(())
    }
}

/// The buffer that stripes are read into, or a part of it. Clones are the same.
///
/// It exists by its owner's decision alone: no header makes one. It is behind a lock, since several streams write to parts of it
/// that only their headers tell apart; they run on the one network thread, so nobody ever waits for it.
#[derive(Clone)]
pub struct Destination {
    values: Arc<Mutex<Vec<f32>>>,
    /// Where the words of a payload go.
    place: Range<usize>,
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Destination").field(&self.place).finish()
    }
}

impl From<Vec<f32>> for Destination {
    /// All of `values`, whose contents are overwritten.
    fn from(values: Vec<f32>) -> Self {
        let place = 0..values.len();
        Self { values: Arc::new(Mutex::new(values)), place }
    }
}

impl Destination {
    /// A part of this buffer. None when it does not reach so far.
    #[must_use]
    pub fn part(&self, part: Range<usize>) -> Option<Self> {
        let place = self.place.start.checked_add(part.start)?..self.place.start.checked_add(part.end)?;
        let is_within = place.start <= place.end && place.end <= self.place.end;
        is_within.then(|| Self { values: self.values.clone(), place })
    }

    /// How many words it takes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.place.end - self.place.start
    }

    /// Whether it takes none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the whole buffer out; stripes that are still being read then go nowhere.
    #[must_use]
    pub fn take(&self) -> Vec<f32> {
        std::mem::take(&mut self.values.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes what `write` makes of it over this part, unless the buffer is taken.
    pub fn fill(&self, write: impl FnOnce(&mut [f32])) {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = values.get_mut(self.place.clone()) {
            write(place);
        }
    }

    /// The byte of the buffer at which a stripe begins.
    fn place(&self, stripe: Stripe) -> Result<usize, TransferError> {
        let words = self.len();
        if stripe.end() > words as u64 {
            return Err(TransferError::Outside { stripe, words: words as u64 });
        }
        Ok((self.place.start + stripe.start as usize) * 4)
    }

    fn copy(&self, mut at: usize, pieces: &[Bytes]) {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        for piece in pieces {
            // There is no place when the owner has taken the buffer: then nobody wants the values.
            if let Some(place) = bytes.get_mut(at..at + piece.len()) {
                place.copy_from_slice(piece);
                count::add_copied(piece.len());
            }
            at += piece.len();
        }
    }
}
