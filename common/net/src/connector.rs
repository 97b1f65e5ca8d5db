//! The side that connects.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use quinn::{ClientConfig, Endpoint, EndpointConfig, Runtime, TokioRuntime};
use slackline_core::role::Role;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use crate::batching::Batching;
use crate::connection::{CloseCode, Connection, Shown, canonical};
use crate::error::{BindError, ConnectError};
use crate::keys::{Certificate, Identity, KeysError, subject};
use crate::peers::{Watch, objection};
use crate::settings::{Path, Settings, Side, UNI_STREAMS};
use crate::socket::route_to;
use crate::sparing::Sparing;
use crate::tls::Refusal;
use crate::{socket, tls};

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

/// The head start that one address has of the next. The least that RFC 8305 recommends.
const HEAD_START: Duration = Duration::from_millis(100);

/// Makes connections to servers, or to workers. One socket for each family and kind of path is opened when it is first needed, then shared.
pub struct Connector {
    expected: Role,
    identity: Identity,
    settings: Settings,
    endpoints: Mutex<BTreeMap<Socket, Opened>>,
    /// Follows the files of the identity, from the first connection on: before it there may be no runtime.
    watch: OnceLock<Watch>,
}

/// An endpoint, and the bytes that the system keeps for its socket.
type Opened = (Endpoint, u64);

/// Which socket a path needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Socket {
    v6: bool,
    near: bool,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Connector {
    /// A connector to servers that shows `identity`.
    ///
    /// # Errors
    /// The keys do not serve.
    pub fn new(identity: &Identity, settings: &Settings) -> Result<Self, KeysError> {
        Self::to(identity, Role::Server, settings)
    }

    /// A connector that shows `identity`, and takes only peers whose certificate is of the role `expected`.
    ///
    /// # Errors
    /// The keys do not serve.
    pub fn to(identity: &Identity, expected: Role, settings: &Settings) -> Result<Self, KeysError> {
        // Made to see that it can be.
        tls::connecting(&identity.present(), &Refusal::default())?;
        let (endpoints, watch) = (Mutex::default(), OnceLock::new());
        Ok(Self { expected, identity: identity.clone(), settings: *settings, endpoints, watch })
    }

    /// Connects to the peer at `address`, which is HOST:PORT with a name, an IPv4 or an \[IPv6\] address; all addresses of a
    /// name are tried, each a moment after the one before. It returns once the peer has opened the control stream: by then
    /// it has accepted this side's certificate. Must be called within the runtime of the network thread.
    ///
    /// # Errors
    /// [`ConnectError`]: of all addresses tried, the one that says most.
    pub async fn connect(&self, address: &str, within: Duration) -> Result<Connection, ConnectError> {
        self.watch.get_or_init(|| Watch::start(self.identity.clone()));
        let deadline = Instant::now() + within;
        let mut attempts = JoinSet::new();
        let mut failed = None;
        for (index, remote) in resolve(address, deadline).await?.into_iter().enumerate() {
            match self.prepare(remote) {
                Ok((endpoint, config, refusal)) => {
                    let head_start = HEAD_START * u32::try_from(index).unwrap_or(u32::MAX);
                    let (expected, identity) = (self.expected, self.identity.clone());
                    let attempt = Attempt { endpoint, config, refusal, identity, remote, expected, deadline };
                    attempts.spawn(async move {
                        sleep(head_start).await;
                        attempt.run().await
                    });
                }
                Err(error) => {
                    failed = telling(failed, ConnectError::Unreachable { remote, reason: error.to_string() });
                }
            }
        }
        while let Some(ended) = attempts.join_next().await {
            match ended {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => failed = telling(failed, error),
                Err(error) => tracing::error!(%error, "an attempt to connect broke off"),
            }
        }
        Err(failed.unwrap_or_else(|| ConnectError::Unresolved {
            address: address.to_owned(),
            reason: "it has no address".to_owned(),
        }))
    }

    fn prepare(&self, remote: SocketAddr) -> Result<(Endpoint, ClientConfig, Refusal), BindError> {
        let route = route_to(remote);
        let path = Path::to(remote.ip(), route.source, route.mtu);
        let key = Socket { v6: remote.is_ipv6(), near: path.is_near() };
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let (endpoint, buffer_bytes) = match endpoints.get(&key) {
            Some(opened) => opened.clone(),
            None => {
                let opened = self.open(key)?;
                endpoints.insert(key, opened.clone());
                opened
            }
        };
        let refusal = Refusal::default();
        let mut config = ClientConfig::new(tls::connecting(&self.identity.present(), &refusal)?);
        let side = Side { streams: UNI_STREAMS, buffer_bytes, connects: true };
        config.transport_config(self.settings.transport(path, side));
        Ok((endpoint, config, refusal))
    }

    fn open(&self, key: Socket) -> Result<Opened, BindError> {
        let any: IpAddr = if key.v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let address = SocketAddr::new(any, 0);
        let (socket, buffer_bytes) = socket::bind(address, &self.settings)?;
        let mut config = EndpointConfig::default();
        // The size is one that QUIC allows (1200 at least), so this cannot fail; with quinn's own, only speed would be lost.
        let _ = config.max_udp_payload_size(self.settings.receive_bytes(key.near));
        let other = |source| BindError::Other { address, source };
        let inner = TokioRuntime.wrap_udp_socket(socket).map_err(other)?;
        let socket = Sparing::of(Batching::of(inner), self.settings.receive_bytes(key.near));
        let endpoint = Endpoint::new_with_abstract_socket(config, None, socket, Arc::new(TokioRuntime));
        Ok((endpoint.map_err(other)?, buffer_bytes))
    }

    /// Closes all connections, and waits until the peers were told, or cannot be.
    pub async fn close(&self, code: CloseCode, reason: &str) {
        let endpoints: Vec<_> = {
            let endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
            endpoints.values().map(|(endpoint, _)| endpoint.clone()).collect()
        };
        for endpoint in &endpoints {
            endpoint.close(code.number(), reason.as_bytes());
        }
        for endpoint in &endpoints {
            endpoint.wait_idle().await;
        }
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

async fn resolve(address: &str, deadline: Instant) -> Result<Vec<SocketAddr>, ConnectError> {
    let unresolved = |reason: String| ConnectError::Unresolved { address: address.to_owned(), reason };
    let found = timeout_at(deadline, tokio::net::lookup_host(address))
        .await
        .map_err(|_| unresolved("the name service does not answer".to_owned()))?
        .map_err(|error| unresolved(error.to_string()))?;
    Ok(found.take(ADDRESSES_MAX).map(canonical).collect())
}

struct Attempt {
    endpoint: Endpoint,
    config: ClientConfig,
    refusal: Refusal,
    identity: Identity,
    remote: SocketAddr,
    expected: Role,
    deadline: Instant,
}

impl Attempt {
    async fn run(self) -> Result<Connection, ConnectError> {
        let Self { endpoint, config, refusal, identity, remote, expected, deadline } = self;
        // What really passed: QUIC gives up by itself after its idle timeout, which can be before the deadline.
        let began = Instant::now();
        let failed = |error: quinn::ConnectionError| {
            let (own, refused) = (identity.certificate(), refusal.text());
            ConnectError::of(remote, expected, began.elapsed(), &error, refused, &own)
        };
        // Whatever host is dialled, the certificate must be of the expected role and the same authority.
        let connecting = endpoint
            .connect_with(config, remote, subject(expected))
            .map_err(|error| ConnectError::Unreachable { remote, reason: error.to_string() })?;
        let quic = timeout_at(deadline, connecting)
            .await
            .map_err(|_| ConnectError::NoAnswer { remote, expected, waited: began.elapsed() })?
            .map_err(failed)?;
        // In TLS 1.3 the connecting side is done before the other has looked at its certificate; the other's first stream
        // is the first sign that it was accepted.
        let silent = || ConnectError::Silent { remote, waited: began.elapsed() };
        let control = timeout_at(deadline, quic.accept_bi()).await.map_err(|_| silent())?.map_err(
            |error| match error {
                quinn::ConnectionError::TimedOut => silent(),
                error => failed(error),
            },
        )?;
        let der = tls::peer_certificate(&quic);
        let shown =
            der.and_then(|der| Some(Shown { role: expected, certificate: Certificate::read(&der)?, der }));
        let Some(shown) = shown else {
            // TLS has read it, so this cannot be; a connection that nobody could revoke is none to keep.
            return Err(ConnectError::Unreachable {
                remote,
                reason: "its certificate cannot be read".to_owned(),
            });
        };
        let connection = Connection::new(quic, shown, Some(control));
        identity.peers().add(connection.inner());
        if let Some(reason) = objection(connection.inner(), &identity.present().trust) {
            connection.close(CloseCode::Refused, &reason);
            return Err(ConnectError::Revoked { remote, reason });
        }
        Ok(connection)
    }
}

/// Of two failures the one that says more: a decision of the other side before silence.
fn telling(before: Option<ConnectError>, now: ConnectError) -> Option<ConnectError> {
    let weight = |error: &ConnectError| match error {
        ConnectError::Unresolved { .. } | ConnectError::Unreachable { .. } => 0,
        ConnectError::NoAnswer { .. } => 1,
        ConnectError::Broke { .. } | ConnectError::Silent { .. } => 2,
        _ => 3,
    };
    match before {
        Some(before) if weight(&before) >= weight(&now) => Some(before),
        _ => Some(now),
    }
}
