//! A log between two servers: frames in order over one stream, and the other way how far they are held.
//!
//! A frame has a small head, whose meaning is its sender's and receiver's affair, and a payload of raw little-endian bytes (values, or
//! anything large), which goes out of shared buffers without a copy. What the receiver is ready to set aside it says itself, before a
//! byte is read. A receiver that reads no further slows the sender down, as QUIC grants it no more bytes.

use bytes::Bytes;
use quinn::{ReadExactError, RecvStream, SendStream};
use slackline_core::ids::Generation;

use crate::connection::{CloseCode, Connection};
use crate::error::ConnectionError;

/// Bytes of the two lengths before a frame: those of the head (4) and of the payload (8).
const LENGTHS_BYTES: usize = 12;

/// Bytes of one [`Hold`]: generation, index, whether there is a hash, the hash.
const HOLD_BYTES: usize = 25;

/// Values of shards go first to whoever trains; copies follow.
const LOG_PRIORITY: i32 = -1;

/// Bytes that are read over at once.
const SKIPPED_AT_ONCE: usize = 64 * 1024;

/// Why a log ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The connection or the stream ended.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// A head is over the receiver's limit.
    #[error("a frame of a log announces a head of {announced} bytes, over the {limit} that are allowed")]
    HeadTooLong {
        /// Bytes announced.
        announced: u64,
        /// Bytes allowed.
        limit: usize,
    },
    /// A payload is over the receiver's limit.
    #[error("a frame of a log announces a payload of {announced} bytes, over the {limit} that are allowed")]
    PayloadTooLong {
        /// Bytes announced.
        announced: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The stream ended within a frame.
    #[error("a log ended within a frame")]
    Torn,
    /// The buffer that is to be filled is larger than what is left of the payload. A fault of the caller.
    #[error("a payload of which {left} bytes are left does not fill {wanted}")]
    PastTheEnd {
        /// Bytes that are left.
        left: u64,
        /// Bytes wanted.
        wanted: usize,
    },
}

/// What a receiver is ready to set aside for one frame.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a head.
    pub head_bytes: usize,
    /// Bytes of a payload.
    pub payload_bytes: u64,
}

/// Bytes that follow a head, kept alive by whoever shares them.
#[derive(Clone, Debug, Default)]
pub struct Payload(Bytes);

impl Payload {
    /// The values of `owner`, without a copy.
    pub fn values<T: AsRef<[f32]> + Send + 'static>(owner: T) -> Self {
        struct AsBytes<T>(T);
        impl<T: AsRef<[f32]>> AsRef<[u8]> for AsBytes<T> {
            fn as_ref(&self) -> &[u8] {
                bytemuck::cast_slice(self.0.as_ref())
            }
        }
        Self(Bytes::from_owner(AsBytes(owner)))
    }

    /// The bytes of `owner`, without a copy.
    pub fn bytes<T: AsRef<[u8]> + Send + 'static>(owner: T) -> Self {
        Self(Bytes::from_owner(owner))
    }

    /// How many bytes there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// How far the receiver of a log holds it; each covers all before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The generation of the sender of the log.
    pub generation: Generation,
    /// Number of the last entry that is held.
    pub index: u64,
    /// Hash of the receiver's state after that entry, where the entry asks for one.
    pub hash: Option<u64>,
}

impl Hold {
    fn to_bytes(self) -> [u8; HOLD_BYTES] {
        let mut bytes = [0; HOLD_BYTES];
        bytes[..8].copy_from_slice(&self.generation.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.index.to_le_bytes());
        bytes[16] = u8::from(self.hash.is_some());
        bytes[17..].copy_from_slice(&self.hash.unwrap_or_default().to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; HOLD_BYTES]) -> Self {
        let number = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let hash = (bytes[16] != 0).then(|| number(17));
        Self { generation: Generation(number(0)), index: number(8), hash }
    }
}

/// Begins a log to the other side, which sees it with the first frame.
///
/// # Errors
/// The connection has ended.
pub async fn open(connection: &Connection) -> Result<(LogSender, HoldReceiver), LogError> {
    let (send, receive) = connection.quic().open_bi().await.map_err(ConnectionError::from)?;
    // It fails only on a stream that has ended, and then the first frame fails too.
    let _ = send.set_priority(LOG_PRIORITY);
    Ok((LogSender { stream: send }, HoldReceiver { stream: receive }))
}

/// Takes the next log that the other side begins. May be dropped and called again without loss.
///
/// # Errors
/// The connection has ended.
pub async fn accept(connection: &Connection, limits: Limits) -> Result<(LogReceiver, HoldSender), LogError> {
    let (send, receive) = connection.quic().accept_bi().await.map_err(ConnectionError::from)?;
    Ok((LogReceiver { stream: receive, limits, left: 0 }, HoldSender { stream: send }))
}

/// Sends frames.
#[derive(Debug)]
pub struct LogSender {
    stream: SendStream,
}

impl LogSender {
    /// Sends one frame; waits while the other side takes no more. After a send that failed or was dropped half-way, the log has no
    /// meaning any more.
    ///
    /// # Errors
    /// The connection or the log has ended.
    pub async fn send(&mut self, head: &[u8], payload: &Payload) -> Result<(), LogError> {
        let mut front = Vec::with_capacity(LENGTHS_BYTES + head.len());
        // A head of 4 GiB is over every receiver's limit, so that the cast loses nothing that would be read.
        front.extend_from_slice(&(head.len() as u32).to_le_bytes());
        front.extend_from_slice(&(payload.len() as u64).to_le_bytes());
        front.extend_from_slice(head);
        let mut chunks = [Bytes::from(front), payload.0.clone()];
        let count = if payload.is_empty() { 1 } else { 2 };
        self.stream.write_all_chunks(&mut chunks[..count]).await.map_err(ConnectionError::from)?;
        Ok(())
    }

    /// Says that no frame follows, and waits until the other side has everything or has gone.
    pub async fn finish(mut self) {
        if self.stream.finish().is_ok() {
            // Its answer is that it was heard or that the connection has ended: nothing is left to do in either case.
            let _ = self.stream.stopped().await;
        }
    }
}

/// A frame of which the head is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogHead {
    /// The head.
    pub bytes: Vec<u8>,
    /// Bytes of the payload, to be read with [`LogReceiver::fill`].
    pub payload_bytes: u64,
}

/// Receives frames.
#[derive(Debug)]
pub struct LogReceiver {
    stream: RecvStream,
    limits: Limits,
    /// Bytes of the present frame's payload that were not read.
    left: u64,
}

impl LogReceiver {
    /// The head of the next frame; none when the sender has said all. What was not read of the payload before is read over. Not to
    /// be dropped half-way.
    ///
    /// # Errors
    /// A length is over the limits (nothing was set aside for it), or the log has ended otherwise.
    pub async fn receive(&mut self) -> Result<Option<LogHead>, LogError> {
        self.skip().await?;
        let mut lengths = [0; LENGTHS_BYTES];
        match self.stream.read_exact(&mut lengths).await {
            Ok(()) => {}
            Err(ReadExactError::FinishedEarly(0)) => return Ok(None),
            Err(error) => match torn(error) {
                LogError::Connection(ConnectionError::Closed { code: CloseCode::Done, .. }) => {
                    return Ok(None);
                }
                error => return Err(error),
            },
        }
        let [h0, h1, h2, h3, p0, p1, p2, p3, p4, p5, p6, p7] = lengths;
        let head_bytes = u32::from_le_bytes([h0, h1, h2, h3]);
        let payload_bytes = u64::from_le_bytes([p0, p1, p2, p3, p4, p5, p6, p7]);
        let Limits { head_bytes: head_most, payload_bytes: payload_most } = self.limits;
        if head_bytes as usize > head_most {
            return Err(LogError::HeadTooLong { announced: head_bytes.into(), limit: head_most });
        }
        if payload_bytes > payload_most {
            return Err(LogError::PayloadTooLong { announced: payload_bytes, limit: payload_most });
        }
        let mut bytes = vec![0; head_bytes as usize];
        self.stream.read_exact(&mut bytes).await.map_err(torn)?;
        self.left = payload_bytes;
        Ok(Some(LogHead { bytes, payload_bytes }))
    }

    /// Fills `place` with the next bytes of the present frame's payload. Not to be dropped half-way.
    ///
    /// # Errors
    /// The payload has not so many bytes left, or the log has ended.
    pub async fn fill(&mut self, place: &mut [u8]) -> Result<(), LogError> {
        let wanted = place.len();
        let Some(left) = self.left.checked_sub(wanted as u64) else {
            return Err(LogError::PastTheEnd { left: self.left, wanted });
        };
        self.stream.read_exact(place).await.map_err(torn)?;
        self.left = left;
        Ok(())
    }

    /// The same for values.
    ///
    /// # Errors
    /// As for [`LogReceiver::fill`].
    pub async fn fill_values(&mut self, place: &mut [f32]) -> Result<(), LogError> {
        self.fill(bytemuck::cast_slice_mut(place)).await
    }

    async fn skip(&mut self) -> Result<(), LogError> {
        while self.left > 0 {
            let most = usize::try_from(self.left).map_or(SKIPPED_AT_ONCE, |left| left.min(SKIPPED_AT_ONCE));
            let read = self.stream.read_chunk(most, true).await.map_err(ConnectionError::from)?;
            self.left -= read.ok_or(LogError::Torn)?.bytes.len() as u64;
        }
        Ok(())
    }
}

fn torn(error: ReadExactError) -> LogError {
    match error {
        ReadExactError::FinishedEarly(_) => LogError::Torn,
        ReadExactError::ReadError(error) => ConnectionError::from(error).into(),
    }
}

/// Says how far a log is held.
#[derive(Debug)]
pub struct HoldSender {
    stream: SendStream,
}

impl HoldSender {
    /// Sends one.
    ///
    /// # Errors
    /// The connection or the log has ended.
    pub async fn send(&mut self, hold: Hold) -> Result<(), LogError> {
        self.stream.write_all(&hold.to_bytes()).await.map_err(ConnectionError::from)?;
        Ok(())
    }
}

/// Hears how far a log is held.
#[derive(Debug)]
pub struct HoldReceiver {
    stream: RecvStream,
}

impl HoldReceiver {
    /// The next one; none when the other side says no more. Not to be dropped half-way.
    ///
    /// # Errors
    /// The connection or the log has ended otherwise.
    pub async fn receive(&mut self) -> Result<Option<Hold>, LogError> {
        let mut bytes = [0; HOLD_BYTES];
        match self.stream.read_exact(&mut bytes).await {
            Ok(()) => Ok(Some(Hold::from_bytes(bytes))),
            Err(ReadExactError::FinishedEarly(0)) => Ok(None),
            Err(error) => Err(torn(error)),
        }
    }
}
