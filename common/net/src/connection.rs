//! One connection: who is at the other end, its control stream, its end.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use quinn::{RecvStream, SendStream, VarInt};
use rustls::pki_types::CertificateDer;
use slackline_core::role::Role;
use slackline_core::wire::{self, PeerMessage, ToPeer, ToServer, WireError};

use crate::error::ConnectionError;
use crate::keys::Certificate;

/// Control messages go before values: a lease must not run out behind a long push.
const CONTROL_PRIORITY: i32 = 10;

/// Bytes of a frame's length prefix.
const PREFIX_BYTES: usize = 4;

/// Why one side closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CloseCode {
    /// The process dropped the connection without a word. QUIC sends this by itself; nobody chooses it.
    Vanished,
    /// All was said.
    Done,
    /// The other side's bytes were not of the protocol.
    Malformed,
    /// The other side may not do what it did, or is not wanted.
    Refused,
    /// The process is ending before its work is done.
    Stopped,
    /// This candidate for the coordinator does not lead: another one has the answer.
    StandsBy,
    /// A code that this version does not know.
    Unknown,
}

impl CloseCode {
    pub(crate) const fn from_number(number: u64) -> Self {
        match number {
            0 => Self::Vanished,
            1 => Self::Done,
            2 => Self::Malformed,
            3 => Self::Refused,
            4 => Self::Stopped,
            5 => Self::StandsBy,
            _ => Self::Unknown,
        }
    }

    pub(crate) const fn number(self) -> VarInt {
        VarInt::from_u32(match self {
            Self::Vanished => 0,
            Self::Done => 1,
            Self::Malformed => 2,
            Self::Refused => 3,
            Self::Stopped => 4,
            Self::StandsBy => 5,
            Self::Unknown => 6,
        })
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vanished => "vanished",
            Self::Done => "done",
            Self::Malformed => "malformed",
            Self::Refused => "refused",
            Self::Stopped => "stopped",
            Self::StandsBy => "stands by",
            Self::Unknown => "unknown",
        })
    }
}

/// A message of the control stream: [`ToServer`] one way, [`ToPeer`] the other; between workers [`PeerMessage`] both ways.
pub trait Message: Sized {
    /// Its bytes, without the length prefix.
    ///
    /// # Errors
    /// [`WireError::TooLong`].
    fn to_bytes(&self) -> Result<Vec<u8>, WireError>;

    /// The message that fills `bytes`.
    ///
    /// # Errors
    /// The bytes are none.
    fn from_bytes(bytes: &[u8]) -> Result<Self, WireError>;
}

macro_rules! message {
    ($($name:ty),*) => {$(
        impl Message for $name {
            fn to_bytes(&self) -> Result<Vec<u8>, WireError> {
                wire::encode(self)
            }

            fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
                wire::decode(bytes)
            }
        }
    )*};
}

message!(ToServer, ToPeer, PeerMessage);

/// A connection with a peer whose certificate was checked. Clones are the same connection; it closes when the last of them, and
/// of its streams, is dropped.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

/// What the clones of a connection share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) quic: quinn::Connection,
    role: Role,
    pub(crate) remote: SocketAddr,
    pub(crate) certificate: Certificate,
    pub(crate) der: CertificateDer<'static>,
    control: Mutex<Option<(SendStream, RecvStream)>>,
    /// Held by the transfer that is opening its streams.
    opening: tokio::sync::Mutex<()>,
}

/// A peer's certificate with its role, once TLS has checked it.
pub(crate) struct Shown {
    pub(crate) role: Role,
    pub(crate) certificate: Certificate,
    pub(crate) der: CertificateDer<'static>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("role", &self.inner.role)
            .field("remote", &self.inner.remote)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// `control` is the peer's control stream, if it has been accepted already.
    pub(crate) fn new(
        quic: quinn::Connection,
        shown: Shown,
        control: Option<(SendStream, RecvStream)>,
    ) -> Self {
        let remote = canonical(quic.remote_address());
        let Shown { role, certificate, der } = shown;
        let (control, opening) = (Mutex::new(control), tokio::sync::Mutex::default());
        Self { inner: Arc::new(Inner { quic, role, remote, certificate, der, control, opening }) }
    }

    /// The peer's role, from its certificate.
    #[must_use]
    pub fn role(&self) -> Role {
        self.inner.role
    }

    /// The peer's certificate: whose it is, its serial, how long it holds.
    #[must_use]
    pub fn certificate(&self) -> &Certificate {
        &self.inner.certificate
    }

    /// The peer's address when the connection was made.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.inner.remote
    }

    /// Opens the control stream: for the listening side, once. The peer sees it with the first message, [`ToPeer::Welcome`] or
    /// [`PeerMessage::Hello`].
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn open_control(&self) -> Result<(ControlSender, ControlReceiver), ConnectionError> {
        let streams = self.inner.quic.open_bi().await?;
        Ok(control(streams))
    }

    /// Takes the control stream that the peer opened: for the connecting side, once.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn accept_control(&self) -> Result<(ControlSender, ControlReceiver), ConnectionError> {
        let accepted = self.inner.control.lock().unwrap_or_else(PoisonError::into_inner).take();
        let streams = match accepted {
            Some(streams) => streams,
            None => self.inner.quic.accept_bi().await?,
        };
        Ok(control(streams))
    }

    /// Bytes of datagrams (sent, received) so far, headers of IP and UDP left out.
    #[must_use]
    pub fn wire_bytes(&self) -> (u64, u64) {
        let stats = self.inner.quic.stats();
        (stats.udp_tx.bytes, stats.udp_rx.bytes)
    }

    /// Bytes of the datagrams that the path is used with now.
    #[must_use]
    pub fn datagram_bytes(&self) -> u16 {
        self.inner.quic.stats().path.current_mtu
    }

    /// The present estimate of the time to the peer and back.
    #[must_use]
    pub fn round_trip(&self) -> std::time::Duration {
        self.inner.quic.rtt()
    }

    /// Ends the connection at once; what was not acknowledged may be lost. A no-op on one that has ended.
    pub fn close(&self, code: CloseCode, reason: &str) {
        self.inner.quic.close(code.number(), reason.as_bytes());
    }

    /// Waits for the connection's end, and says why it ended.
    pub async fn closed(&self) -> ConnectionError {
        self.inner.quic.closed().await.into()
    }

    /// Whether the connection has not ended, as far as is known.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.inner.quic.close_reason().is_none()
    }

    pub(crate) fn quic(&self) -> &quinn::Connection {
        &self.inner.quic
    }

    /// The turn to open the streams of a transfer, in the order of asking.
    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.inner.opening.lock().await
    }

    pub(crate) const fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

fn control((send, receive): (SendStream, RecvStream)) -> (ControlSender, ControlReceiver) {
    // It fails only on a stream that has ended, and then the first message fails too.
    let _ = send.set_priority(CONTROL_PRIORITY);
    (
        ControlSender { stream: send, torn: false },
        ControlReceiver { stream: receive, frame: Vec::new(), filled: 0 },
    )
}

/// An IPv4 peer of a socket for both families comes with an IPv6 address: it is shown as what it is.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Sends control messages.
#[derive(Debug)]
pub struct ControlSender {
    stream: SendStream,
    torn: bool,
}

impl ControlSender {
    /// Sends one message; waits while the peer takes no more. A send that is dropped half-way leaves a torn message, and every
    /// later one is refused: give the sender to a task of its own.
    ///
    /// # Errors
    /// The message is over the limit (nothing is sent then), or the connection has ended.
    pub async fn send<M: Message>(&mut self, message: &M) -> Result<(), ConnectionError> {
        let bytes = message.to_bytes()?;
        if self.torn {
            return Err(ConnectionError::Torn);
        }
        let mut frame = Vec::with_capacity(PREFIX_BYTES + bytes.len());
        frame.extend_from_slice(&wire::frame_prefix(&bytes));
        frame.extend_from_slice(&bytes);
        self.torn = true;
        self.stream.write_all(&frame).await?;
        self.torn = false;
        Ok(())
    }

    /// Says that no message follows, and waits until the peer has everything. A peer that has gone by then had reason to.
    pub async fn finish(mut self) {
        if self.stream.finish().is_ok() {
            // Its answer is that it was heard or that the connection has ended: nothing is left to do in either case.
            let _ = self.stream.stopped().await;
        }
    }
}

/// Receives control messages.
#[derive(Debug)]
pub struct ControlReceiver {
    stream: RecvStream,
    /// The frame that is arriving; at most a prefix and [`slackline_core::limits::CONTROL_BYTES_MAX`] bytes.
    frame: Vec<u8>,
    filled: usize,
}

impl ControlReceiver {
    /// The next message; none when the peer has said all and closed. May be dropped and called again without loss. After an
    /// error the stream has no meaning any more.
    ///
    /// # Errors
    /// The bytes are no message (the limit is checked before they are read), or the connection has ended otherwise.
    pub async fn receive<M: Message>(&mut self) -> Result<Option<M>, ConnectionError> {
        loop {
            let wanted = self.wanted()?;
            if self.filled >= PREFIX_BYTES && self.filled == wanted {
                self.filled = 0;
                return Ok(Some(M::from_bytes(&self.frame[PREFIX_BYTES..wanted])?));
            }
            if self.frame.len() < wanted {
                self.frame.resize(wanted, 0);
            }
            let read = self.stream.read(&mut self.frame[self.filled..wanted]).await;
            match read.map_err(ConnectionError::from) {
                Ok(Some(count)) => self.filled += count,
                Ok(None) | Err(ConnectionError::Closed { code: CloseCode::Done, .. }) if self.filled == 0 => {
                    return Ok(None);
                }
                Ok(None) => return Err(ConnectionError::Torn),
                Err(error) => return Err(error),
            }
        }
    }

    /// Bytes of the frame as far as it is known: its prefix, then all of it.
    fn wanted(&self) -> Result<usize, WireError> {
        if self.filled < PREFIX_BYTES {
            return Ok(PREFIX_BYTES);
        }
        let mut prefix = [0; PREFIX_BYTES];
        prefix.copy_from_slice(&self.frame[..PREFIX_BYTES]);
        Ok(PREFIX_BYTES + wire::frame_length(prefix)?)
    }
}
