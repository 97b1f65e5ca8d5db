//! The side that waits for connections.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::{Endpoint, EndpointConfig, Incoming, Runtime, ServerConfig, TokioRuntime, TransportConfig};

use crate::batching::Batching;
use crate::connection::{CloseCode, Connection, Shown, canonical};
use crate::error::{BindError, HandshakeError, HandshakeFailure};
use crate::keys::{Certificate, Identity, accepted};
use crate::peers::{Watch, objection};
use crate::settings::{Path, Settings, Side};
use crate::sparing::Sparing;
use crate::tls::Refusal;
use crate::{reset, socket, tls};

/// How long a peer may take for the handshake. A worker on the slowest link needs a second.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Handshakes that may wait to be accepted at once.
const HANDSHAKES_WAITING_MAX: usize = 1024;

/// Bytes that handshakes which wait to be accepted may hold: each, and all together.
const HANDSHAKE_BYTES_MAX: u64 = 64 << 10;
const HANDSHAKE_BYTES_TOTAL_MAX: u64 = 16 << 20;

/// What the handshakes of a listener need to know.
#[derive(Clone, Copy)]
struct Terms {
    settings: Settings,
    side: Side,
}

/// A UDP socket that takes connections of peers with a certificate of the same authority: a server's those of all roles, a worker's
/// those of workers.
pub struct Listener {
    endpoint: Endpoint,
    local: SocketAddr,
    terms: Terms,
    identity: Identity,
    /// Follows the files of the identity for as long as this listens.
    _watch: Watch,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local", &self.local).finish_non_exhaustive()
    }
}

impl Listener {
    /// Listens on `address` as the role of `identity`; port 0 for any free one, `[::]` for both families where the system can. Must be called within the
    /// runtime of the network thread.
    ///
    /// # Errors
    /// The address cannot be had, or the keys do not serve: nobody connects to observers and admins.
    pub fn bind(address: SocketAddr, identity: &Identity, settings: &Settings) -> Result<Self, BindError> {
        identity.can_listen()?;
        // Its certificate is never shown: each handshake has a configuration of its own, with what is in force by then.
        let crypto = tls::listening(&identity.present(), &Refusal::default())?;
        let mut config = ServerConfig::with_crypto(crypto);
        config
            .max_incoming(HANDSHAKES_WAITING_MAX)
            .incoming_buffer_size(HANDSHAKE_BYTES_MAX)
            .incoming_buffer_size_total(HANDSHAKE_BYTES_TOTAL_MAX);
        let other = |source| BindError::Other { address, source };

        let (socket, buffer_bytes) = socket::bind(address, settings)?;
        let local = socket.local_addr().map_err(other)?;
        let socket = TokioRuntime.wrap_udp_socket(socket).map_err(other)?;
        let endpoint = Endpoint::new_with_abstract_socket(
            endpoint_config(identity, local, settings),
            Some(config),
            Sparing::of(Batching::of(socket), settings.receive_bytes(true)),
            Arc::new(TokioRuntime),
        )
        .map_err(other)?;
        let streams = settings.uni_streams(identity.role());
        let terms = Terms { settings: *settings, side: Side { streams, buffer_bytes, connects: false } };
        let _watch = Watch::start(identity.clone());
        Ok(Self { endpoint, local, terms, identity: identity.clone(), _watch })
    }

    /// The address, with the port that was given.
    #[must_use]
    pub const fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// The next peer that wants in; none once the listener is closed. The handshake is completed by [`Handshake::complete`], in
    /// a task of its own, so that a slow peer holds up no other. May be dropped and called again without loss.
    pub async fn accept(&self) -> Option<Handshake> {
        let incoming = self.endpoint.accept().await?;
        Some(Handshake { incoming, terms: self.terms, identity: self.identity.clone() })
    }

    /// Closes all connections and takes no more; waits until the peers were told, or cannot be.
    pub async fn close(&self, code: CloseCode, reason: &str) {
        self.endpoint.close(code.number(), reason.as_bytes());
        self.endpoint.wait_idle().await;
    }
}

impl Terms {
    /// The settings for the path to a peer; paths differ in the size of a datagram.
    fn transport(&self, incoming: &Incoming) -> Arc<TransportConfig> {
        let remote = incoming.remote_address();
        let path = Path::to(remote.ip(), incoming.local_ip(), socket::route_to(remote).mtu);
        self.settings.transport(path, self.side)
    }
}

fn endpoint_config(identity: &Identity, local: SocketAddr, settings: &Settings) -> EndpointConfig {
    let mut config = reset::endpoint_config(identity, local).unwrap_or_default();
    // The size is one that QUIC allows (1200 at least), so this cannot fail; with quinn's own, only speed would be lost.
    let _ = config.max_udp_payload_size(settings.receive_bytes(true));
    config
}

/// A peer that wants in.
pub struct Handshake {
    incoming: Incoming,
    terms: Terms,
    identity: Identity,
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").field("remote", &self.remote()).finish_non_exhaustive()
    }
}

impl Handshake {
    /// The peer's address; it has not proven it yet.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        canonical(self.incoming.remote_address())
    }

    /// Completes the handshake and learns the peer's role.
    ///
    /// # Errors
    /// [`HandshakeError`]: who tried, and what kind of failure it was.
    pub async fn complete(self) -> Result<Connection, HandshakeError> {
        let remote = self.remote();
        let refusal = Refusal::default();
        let failed = |error: &quinn::ConnectionError| HandshakeError::of(remote, error, &refusal);
        let broken = |error: &dyn fmt::Display| HandshakeError {
            remote,
            failure: HandshakeFailure::Other,
            reason: error.to_string(),
        };
        let crypto = tls::listening(&self.identity.present(), &refusal).map_err(|error| broken(&error))?;
        let mut config = ServerConfig::with_crypto(crypto);
        config.transport_config(self.terms.transport(&self.incoming));
        let connecting = self.incoming.accept_with(Arc::new(config)).map_err(|error| failed(&error))?;
        let quic = tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting)
            .await
            .map_err(|_| failed(&quinn::ConnectionError::TimedOut))?
            .map_err(|error| failed(&error))?;
        take_in(quic, remote, &self.identity)
    }

    /// Whether the peer has shown that it receives what is sent to its address.
    #[must_use]
    pub fn address_is_proven(&self) -> bool {
        self.incoming.remote_address_validated()
    }

    /// Asks the peer to come again with a proof of its address (RFC 9000, section 8.1.2): one datagram, and nothing is kept. A peer
    /// that has proven it already is refused.
    pub fn ask_for_proof(self) {
        if let Err(error) = self.incoming.retry() {
            error.into_incoming().refuse();
        }
    }

    /// Turns the peer away without a look at its certificate; it may try again later.
    pub fn refuse(self) {
        self.incoming.refuse();
    }
}

/// A connection whose peer TLS has let in: it needs a role that may come here, and no word against it since.
fn take_in(
    quic: quinn::Connection,
    remote: SocketAddr,
    identity: &Identity,
) -> Result<Connection, HandshakeError> {
    let refused = |quic: &quinn::Connection, failure, reason: String| {
        quic.close(CloseCode::Refused.number(), reason.as_bytes());
        Err(HandshakeError { remote, failure, reason })
    };
    let der = tls::peer_certificate(&quic);
    let shown = der.and_then(|der| {
        let certificate = Certificate::read(&der)?;
        Some(Shown { role: certificate.role?, certificate, der })
    });
    let Some(shown) = shown else {
        let reason = "the certificate has no role's name".to_owned();
        return refused(&quic, HandshakeFailure::NoRole, reason);
    };
    if !accepted(identity.role()).contains(&shown.role) {
        let reason = format!("a {} has no business here", shown.role);
        return refused(&quic, HandshakeFailure::OtherRole, reason);
    }
    let connection = Connection::new(quic, shown, None);
    identity.peers().add(connection.inner());
    // The keys can have changed while the handshake was under way, before the connection was among those that are closed then.
    if let Some(reason) = objection(connection.inner(), &identity.present().trust) {
        return refused(connection.quic(), HandshakeFailure::Revoked, reason);
    }
    Ok(connection)
}
