//! The side that waits for connections.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::{Endpoint, EndpointConfig, Incoming, Runtime, ServerConfig, TokioRuntime, TransportConfig};

use crate::connection::{CloseCode, Connection, Shown, canonical};
use crate::error::{BindError, HandshakeError, HandshakeFailure};
use crate::keys::{Certificate, Identity, accepted};
use crate::peers::{Watch, objection};
use crate::settings::{Path, Settings};
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

/// The settings of the paths; they differ in the size of a datagram.
struct ByPath {
    near_v4: Arc<TransportConfig>,
    near_v6: Arc<TransportConfig>,
    far: Arc<TransportConfig>,
}

/// A UDP socket that takes connections of peers with a certificate of the same authority: a server's those of all roles, a worker's
/// those of workers.
pub struct Listener {
    endpoint: Endpoint,
    local: SocketAddr,
    transports: ByPath,
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
        let streams = settings.uni_streams(identity.role());
        config
            .transport_config(settings.transport(Path::Far, streams))
            .max_incoming(HANDSHAKES_WAITING_MAX)
            .incoming_buffer_size(HANDSHAKE_BYTES_MAX)
            .incoming_buffer_size_total(HANDSHAKE_BYTES_TOTAL_MAX);
        let other = |source| BindError::Other { address, source };

        let socket = socket::bind(address, settings)?;
        let local = socket.local_addr().map_err(other)?;
        let socket = TokioRuntime.wrap_udp_socket(socket).map_err(other)?;
        let endpoint = Endpoint::new_with_abstract_socket(
            endpoint_config(identity, local, settings),
            Some(config),
            Sparing::of(socket, settings.receive_bytes(true)),
            Arc::new(TokioRuntime),
        )
        .map_err(other)?;
        let transports = ByPath {
            near_v4: settings.transport(Path::NearV4, streams),
            near_v6: settings.transport(Path::NearV6, streams),
            far: settings.transport(Path::Far, streams),
        };
        let _watch = Watch::start(identity.clone());
        Ok(Self { endpoint, local, transports, identity: identity.clone(), _watch })
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
        let path = Path::to(incoming.remote_address().ip(), incoming.local_ip());
        let transport = match path {
            Path::NearV4 => &self.transports.near_v4,
            Path::NearV6 => &self.transports.near_v6,
            Path::Far => &self.transports.far,
        };
        Some(Handshake { incoming, transport: transport.clone(), identity: self.identity.clone() })
    }

    /// Closes all connections and takes no more; waits until the peers were told, or cannot be.
    pub async fn close(&self, code: CloseCode, reason: &str) {
        self.endpoint.close(code.number(), reason.as_bytes());
        self.endpoint.wait_idle().await;
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
    transport: Arc<TransportConfig>,
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
        config.transport_config(self.transport);
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
