//! What can go wrong between two processes, and who can do something about it.

use std::net::SocketAddr;
use std::time::Duration;
use std::{fmt, io};

use quinn_proto::TransportErrorCode;
use rustls::AlertDescription;
use slackline_core::codec::CodecError;
use slackline_core::role::Role;
use slackline_core::wire::{Stripe, Text, WireError};

use crate::connection::CloseCode;
use crate::keys::{Certificate, date};
use crate::tls::Refusal;

/// Why an address cannot be listened on or sent from.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another socket has it.
    #[error("{address} is taken: another process listens there; stop it, or choose another port")]
    Taken {
        /// The address.
        address: SocketAddr,
    },
    /// The machine has no such address.
    #[error("{address} is not an address of this machine: choose one that is, or 0.0.0.0 for all")]
    NotOurs {
        /// The address.
        address: SocketAddr,
    },
    /// The port is reserved.
    #[error("{address} may not be listened on by this user: choose a port of 1024 or above")]
    Forbidden {
        /// The address.
        address: SocketAddr,
    },
    /// Something else.
    #[error("{address} cannot be opened: {source}")]
    Other {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The keys do not serve.
    #[error(transparent)]
    Keys(#[from] crate::keys::KeysError),
}

/// What became of a handshake that a listener could not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HandshakeFailure {
    /// The peer showed no certificate.
    NoCertificate,
    /// Its certificate is of another authority.
    OtherAuthority,
    /// Its certificate has expired, or does not hold yet.
    Expired,
    /// Its certificate was revoked.
    Revoked,
    /// Its certificate has no role's name.
    NoRole,
    /// Its role may not connect here.
    OtherRole,
    /// It does not speak this protocol.
    OtherProtocol,
    /// It did not accept this side's certificate.
    RefusedByPeer,
    /// It began and fell silent.
    TimedOut,
    /// Anything else, such as a peer that gave up.
    Other,
}

impl fmt::Display for HandshakeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoCertificate => "it shows no certificate",
            Self::OtherAuthority => "its certificate is of another authority",
            Self::Expired => "its certificate has expired or does not hold yet",
            Self::Revoked => "its certificate was revoked",
            Self::NoRole => "its certificate has no role's name",
            Self::OtherRole => "its role may not connect here",
            Self::OtherProtocol => "it does not speak this protocol",
            Self::RefusedByPeer => "it does not accept this side's certificate",
            Self::TimedOut => "it fell silent in the handshake",
            Self::Other => "its handshake broke off",
        })
    }
}

/// A handshake that a listener could not complete. The listener goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the handshake with {remote} failed: {reason}")]
pub struct HandshakeError {
    /// Who tried.
    pub remote: SocketAddr,
    /// What kind of failure.
    pub failure: HandshakeFailure,
    /// In words.
    pub reason: String,
}

impl HandshakeError {
    pub(crate) fn of(remote: SocketAddr, error: &quinn::ConnectionError, refusal: &Refusal) -> Self {
        let failure = match (alert(error), error) {
            (Some((Side::Here, AlertDescription::CertificateExpired)), _) => HandshakeFailure::Expired,
            (Some((Side::Here, AlertDescription::CertificateRevoked)), _) => HandshakeFailure::Revoked,
            (Some((Side::Here, AlertDescription::CertificateRequired)), _) => HandshakeFailure::NoCertificate,
            (Some((_, AlertDescription::NoApplicationProtocol)), _) => HandshakeFailure::OtherProtocol,
            (Some((Side::Here, alert)), _) if is_about_a_certificate(alert) => {
                HandshakeFailure::OtherAuthority
            }
            (Some((Side::There, alert)), _) if is_about_a_certificate(alert) => {
                HandshakeFailure::RefusedByPeer
            }
            (None, quinn::ConnectionError::TimedOut) => HandshakeFailure::TimedOut,
            (None, quinn::ConnectionError::VersionMismatch) => HandshakeFailure::OtherProtocol,
            _ => HandshakeFailure::Other,
        };
        let reason = refusal.text().map_or_else(|| shown(&error.to_string()), str::to_owned);
        Self { remote, failure, reason }
    }
}

/// Why no connection to a peer came about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The text is not HOST:PORT, or the name is not known.
    #[error("{address} cannot be resolved: {reason}; write HOST:PORT, such as 10.0.0.1:4400 or [::1]:4400")]
    Unresolved {
        /// The text.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// Nobody answered.
    #[error(
        "no answer from {remote} in {:.1} s: is the {expected} running, and is UDP let through to it?",
        waited.as_secs_f64()
    )]
    NoAnswer {
        /// The address tried.
        remote: SocketAddr,
        /// Who was to answer.
        expected: Role,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A peer let this side in and said nothing: it is at a loss, or at its end.
    #[error("{remote} accepted the connection but sent no welcome in {:.1} s", waited.as_secs_f64())]
    Silent {
        /// The address tried.
        remote: SocketAddr,
        /// How long it was waited for.
        waited: Duration,
    },
    /// They do not accept this side's certificate.
    #[error(
        "{remote} does not accept this process's certificate ({reason}): both need keys of one authority; check the key directory"
    )]
    RefusedByPeer {
        /// The address tried.
        remote: SocketAddr,
        /// What they said.
        reason: String,
    },
    /// Their certificate is of another authority.
    #[error("{remote} shows a certificate of another authority ({reason}): check the key directory")]
    OtherAuthority {
        /// The address tried.
        remote: SocketAddr,
        /// What is wrong with it.
        reason: String,
    },
    /// Their certificate has expired, or does not hold yet.
    #[error("{remote}: {reason}")]
    Expired {
        /// The address tried.
        remote: SocketAddr,
        /// Whose it is, and since when or until when.
        reason: String,
    },
    /// Their certificate was revoked.
    #[error("{remote}: {reason}")]
    Revoked {
        /// The address tried.
        remote: SocketAddr,
        /// Whose it is.
        reason: String,
    },
    /// This process's certificate holds no more, or not yet, or was revoked, by what they say.
    #[error(
        "{remote} does not accept the certificate of {own} {fault}; `slackline keys renew DIR {name}` where the authority is makes a new one"
    )]
    OwnRefused {
        /// The address tried.
        remote: SocketAddr,
        /// Whose it is.
        own: String,
        /// What `keys renew` calls its owner.
        name: String,
        /// What they hold against it.
        fault: String,
    },
    /// Their certificate is of another role.
    #[error(
        "{remote} shows a certificate that is not a {expected}'s ({reason}): start it with the role {expected}'s keys"
    )]
    OtherRole {
        /// The address tried.
        remote: SocketAddr,
        /// The role it was to have.
        expected: Role,
        /// What is wrong with it.
        reason: String,
    },
    /// They do not speak this protocol.
    #[error(
        "{remote} does not speak this version of the protocol: run one version of slackline on all machines"
    )]
    OtherProtocol {
        /// The address tried.
        remote: SocketAddr,
    },
    /// The connection broke while it was being made.
    #[error("the connection to {remote} broke at once: {error}")]
    Broke {
        /// The address tried.
        remote: SocketAddr,
        /// How.
        error: ConnectionError,
    },
    /// This machine cannot send there.
    #[error("{remote} cannot be reached from this machine: {reason}")]
    Unreachable {
        /// The address tried.
        remote: SocketAddr,
        /// What the system said.
        reason: String,
    },
}

impl ConnectError {
    /// Whether trying again later can help, with nothing changed by hand.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unresolved { .. }
            | Self::NoAnswer { .. }
            | Self::Silent { .. }
            | Self::Unreachable { .. } => true,
            Self::Broke { error, .. } => error.is_lost(),
            Self::RefusedByPeer { .. }
            | Self::OtherAuthority { .. }
            | Self::Expired { .. }
            | Self::Revoked { .. }
            | Self::OwnRefused { .. }
            | Self::OtherRole { .. }
            | Self::OtherProtocol { .. } => false,
        }
    }

    /// Whether the peer holds it against this side's own certificate.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        matches!(self, Self::OwnRefused { .. } | Self::RefusedByPeer { .. })
    }

    pub(crate) fn of(
        remote: SocketAddr,
        expected: Role,
        waited: Duration,
        error: &quinn::ConnectionError,
        refused: Option<&str>,
        own: &Certificate,
    ) -> Self {
        let reason = refused.map_or_else(|| shown(&error.to_string()), str::to_owned);
        let own_fault =
            |fault: String| Self::OwnRefused { remote, own: own.to_string(), name: own.name.clone(), fault };
        match (alert(error), error) {
            (Some((Side::Here, AlertDescription::CertificateExpired)), _) => Self::Expired { remote, reason },
            (Some((Side::Here, AlertDescription::CertificateRevoked)), _) => Self::Revoked { remote, reason },
            (Some((Side::There, AlertDescription::CertificateExpired)), _) => {
                own_fault(format!("by its clock: it holds from {} to {}", date(own.from), date(own.until)))
            }
            (Some((Side::There, AlertDescription::CertificateRevoked)), _) => {
                own_fault("any more: it was revoked".to_owned())
            }
            (Some((_, AlertDescription::NoApplicationProtocol)), _) => Self::OtherProtocol { remote },
            (
                Some((
                    Side::Here,
                    AlertDescription::BadCertificate | AlertDescription::UnsupportedCertificate,
                )),
                _,
            ) => Self::OtherRole { remote, expected, reason },
            (Some((Side::Here, alert)), _) if is_about_a_certificate(alert) => {
                Self::OtherAuthority { remote, reason }
            }
            (Some((Side::There, alert)), _) if is_about_a_certificate(alert) => {
                Self::RefusedByPeer { remote, reason }
            }
            (None, quinn::ConnectionError::VersionMismatch) => Self::OtherProtocol { remote },
            (None, quinn::ConnectionError::TimedOut) => Self::NoAnswer { remote, expected, waited },
            _ => Self::Broke { remote, error: error.clone().into() },
        }
    }
}

/// Why a connection, or something on it, ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// The peer closed the connection.
    #[error("the peer closed the connection ({code}): {reason}")]
    Closed {
        /// Its code.
        code: CloseCode,
        /// Its words.
        reason: String,
    },
    /// This side closed the connection.
    #[error("this side closed the connection")]
    ClosedHere,
    /// Nothing was heard from the peer for the idle timeout.
    #[error("nothing more was heard from the peer")]
    TimedOut,
    /// The peer's process is another one than the one the connection was made with.
    #[error("the peer was restarted")]
    Restarted,
    /// QUIC itself failed.
    #[error("the connection failed: {reason}")]
    Transport {
        /// What QUIC said.
        reason: String,
    },
    /// The peer gave up one stream.
    #[error("the peer abandoned a stream")]
    StreamAbandoned,
    /// The control stream ended within a message.
    #[error("the control stream ended within a message")]
    Torn,
    /// The peer's bytes are not of this protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
}

impl ConnectionError {
    /// Whether only the path or the peer's process was lost, so that a new connection can go on; anything else is a decision or
    /// a fault that a new connection would repeat.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        match self {
            Self::TimedOut | Self::Restarted | Self::Transport { .. } => true,
            Self::Closed { code, .. } => matches!(code, CloseCode::Vanished | CloseCode::StandsBy),
            Self::ClosedHere | Self::StreamAbandoned | Self::Torn | Self::Wire(_) => false,
        }
    }
}

impl From<quinn::ConnectionError> for ConnectionError {
    fn from(error: quinn::ConnectionError) -> Self {
        match error {
            quinn::ConnectionError::ApplicationClosed(close) => Self::Closed {
                code: CloseCode::from_number(close.error_code.into_inner()),
                reason: shown(&String::from_utf8_lossy(&close.reason)),
            },
            quinn::ConnectionError::LocallyClosed => Self::ClosedHere,
            quinn::ConnectionError::TimedOut => Self::TimedOut,
            quinn::ConnectionError::Reset => Self::Restarted,
            other => Self::Transport { reason: shown(&other.to_string()) },
        }
    }
}

impl From<quinn::ReadError> for ConnectionError {
    fn from(error: quinn::ReadError) -> Self {
        match error {
            quinn::ReadError::ConnectionLost(error) => error.into(),
            _ => Self::StreamAbandoned,
        }
    }
}

impl From<quinn::WriteError> for ConnectionError {
    fn from(error: quinn::WriteError) -> Self {
        match error {
            quinn::WriteError::ConnectionLost(error) => error.into(),
            _ => Self::StreamAbandoned,
        }
    }
}

/// Why a transfer did not arrive or could not be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The connection or the stream ended.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The header is none.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The payload is none.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The stripe lies outside of the payload that is expected.
    #[error("words {} to {} are no part of {words} words", stripe.start, stripe.end())]
    Outside {
        /// The stripe.
        stripe: Stripe,
        /// The words expected.
        words: u64,
    },
    /// Two stripes of one transfer disagree on what it is.
    #[error("the stripes of one transfer have different headers")]
    OtherHeader,
    /// A stripe has words that another one of the transfer has, or there are more stripes than announced.
    #[error("words {} to {} of a transfer came twice", stripe.start, stripe.end())]
    Repeated {
        /// The stripe.
        stripe: Stripe,
    },
    /// All stripes are there, and words are missing.
    #[error("{missing} words are in none of the transfer's stripes")]
    Incomplete {
        /// How many.
        missing: u64,
    },
    /// The stream ended early.
    #[error("a stripe of {announced} bytes ended after {received}")]
    TooFew {
        /// Bytes announced.
        announced: u64,
        /// Bytes received.
        received: u64,
    },
    /// The stream goes on after the stripe.
    #[error("a stripe of {announced} bytes has more")]
    TooMany {
        /// Bytes announced.
        announced: u64,
    },
    /// The buffer is not of the transfer's length. A fault of the caller.
    #[error("a payload of {words} words does not fit a buffer of {values}")]
    OtherLength {
        /// Words of the transfer.
        words: u64,
        /// What the buffer takes.
        values: u64,
    },
    /// The network thread is ending.
    #[error("the network thread is ending")]
    Stopped,
}

/// Which side raised a TLS alert.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Here,
    There,
}

/// The TLS alert that ended a connection, if that is what did. QUIC carries it in an error code (RFC 9001, section 4.8).
fn alert(error: &quinn::ConnectionError) -> Option<(Side, AlertDescription)> {
    let (side, code) = match error {
        quinn::ConnectionError::TransportError(error) => (Side::Here, error.code),
        quinn::ConnectionError::ConnectionClosed(close) => (Side::There, close.error_code),
        _ => return None,
    };
    let first = u64::from(TransportErrorCode::crypto(0));
    let alert = u64::from(code).checked_sub(first).and_then(|alert| u8::try_from(alert).ok())?;
    Some((side, AlertDescription::from(alert)))
}

const fn is_about_a_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied
    )
}

/// Words that may have come from a peer: bounded, and without control characters, since they go to a terminal.
fn shown(text: &str) -> String {
    Text::new(text).shown()
}
