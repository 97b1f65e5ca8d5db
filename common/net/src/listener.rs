//! The side that waits for connections.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::{Endpoint, EndpointConfig, Incoming, Runtime, ServerConfig, TokioRuntime};
use slackline_core::role::Role;

use crate::connection::{CloseCode, Connection, canonical};
use crate::error::{BindError, HandshakeError, HandshakeFailure};
use crate::keys::{Identity, accepted};
use crate::settings::{Path, Settings};
use crate::sparing::Sparing;
use crate::{reset, socket, tls};

/// How long a peer may take for the handshake. A worker on the slowest link needs a second.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Handshakes that may wait to be accepted at once.
const HANDSHAKES_WAITING_MAX: usize = 1024;

/// Bytes that handshakes which wait to be accepted may hold: each, and all together.
const HANDSHAKE_BYTES_MAX: u64 = 64 << 10;
const HANDSHAKE_BYTES_TOTAL_MAX: u64 = 16 << 20;

/// The configurations of the paths; they differ in the size of a datagram.
struct ByPath {
    near_v4: Arc<ServerConfig>,
    near_v6: Arc<ServerConfig>,
    far: Arc<ServerConfig>,
}

/// A UDP socket that takes connections of peers with a certificate of the same authority: a server's those of all roles, a worker's
/// those of workers.
pub struct Listener {
    endpoint: Endpoint,
    local: SocketAddr,
    configs: ByPath,
    accepted: &'static [Role],
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
        let crypto = tls::listening(identity)?;
        let config = |path| {
            let mut config = ServerConfig::with_crypto(crypto.clone());
            config
                .transport_config(settings.transport(path))
                .max_incoming(HANDSHAKES_WAITING_MAX)
                .incoming_buffer_size(HANDSHAKE_BYTES_MAX)
                .incoming_buffer_size_total(HANDSHAKE_BYTES_TOTAL_MAX);
            config
        };
        let other = |source| BindError::Other { address, source };

        let socket = socket::bind(address, settings)?;
        let local = socket.local_addr().map_err(other)?;
        let socket = TokioRuntime.wrap_udp_socket(socket).map_err(other)?;
        let endpoint = Endpoint::new_with_abstract_socket(
            endpoint_config(identity, local, settings),
            Some(config(Path::Far)),
            Sparing::of(socket, settings.receive_bytes(true)),
            Arc::new(TokioRuntime),
        )
        .map_err(other)?;
        let configs = ByPath {
            near_v4: Arc::new(config(Path::NearV4)),
            near_v6: Arc::new(config(Path::NearV6)),
            far: Arc::new(config(Path::Far)),
        };
        Ok(Self { endpoint, local, configs, accepted: accepted(identity.role()) })
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
        let config = match path {
            Path::NearV4 => &self.configs.near_v4,
            Path::NearV6 => &self.configs.near_v6,
            Path::Far => &self.configs.far,
        };
        Some(Handshake { incoming, config: config.clone(), accepted: self.accepted })
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
    config: Arc<ServerConfig>,
    accepted: &'static [Role],
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
        let failed = |error: &quinn::ConnectionError| HandshakeError::of(remote, error);
        let connecting = self.incoming.accept_with(self.config).map_err(|error| failed(&error))?;
        let quic = tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting)
            .await
            .map_err(|_| failed(&quinn::ConnectionError::TimedOut))?
            .map_err(|error| failed(&error))?;
        let refused = |failure, reason: &str| {
            quic.close(CloseCode::Refused.number(), reason.as_bytes());
            HandshakeError { remote, failure, reason: reason.to_owned() }
        };
        match tls::peer_role(&quic) {
            Some(role) if self.accepted.contains(&role) => Ok(Connection::new(quic, role, None)),
            Some(role) => {
                Err(refused(HandshakeFailure::OtherRole, &format!("a {role} has no business here")))
            }
            None => Err(refused(HandshakeFailure::NoRole, "the certificate has no role's name")),
        }
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
