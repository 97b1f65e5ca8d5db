//! How two processes meet, or fail to: addresses, certificates, strangers, restarts.
#![allow(clippy::unwrap_used)]

mod pair;

use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use pair::{WITHIN, connector, dial, identity, key_directory, listener, serve_one, settings};
use slackline_core::wire::ToPeer;
use slackline_net::{
    BindError, CloseCode, ConnectError, ConnectionError, Connector, HandshakeFailure, KeysError, Listener,
    NetworkThread, Role, Settings,
};

/// Takes every handshake until one fails, and says how.
async fn failed_handshake(listener: &Listener) -> HandshakeFailure {
    loop {
        let handshake = listener.accept().await.unwrap();
        if let Err(error) = handshake.complete().await {
            return error.failure;
        }
    }
}

#[tokio::test]
async fn port_zero_gives_a_port_that_can_be_dialled() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    assert_ne!(listener.local_address().port(), 0);
    let connector = connector(&keys, Role::Observer, &settings());
    let (server, observer) = tokio::join!(serve_one(&listener), dial(&connector, listener.local_address()));
    assert_eq!(server.connection.role(), Role::Observer);
    assert_eq!(observer.connection.remote(), listener.local_address());
}

#[tokio::test]
async fn every_role_is_seen_by_the_server() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    for role in Role::ALL {
        let connector = connector(&keys, role, &settings());
        let (server, _peer) = tokio::join!(serve_one(&listener), dial(&connector, listener.local_address()));
        assert_eq!(server.connection.role(), role);
    }
}

#[tokio::test]
async fn a_taken_port_is_said_to_be_taken() {
    let keys = key_directory();
    let first = listener(&keys, "127.0.0.1:0", &settings());
    let address = first.local_address();
    let second = Listener::bind(address, &identity(&keys, Role::Server), &settings());
    let error = second.unwrap_err();
    assert!(matches!(error, BindError::Taken { .. }));
    assert!(error.to_string().contains(&address.to_string()));
}

#[tokio::test]
async fn an_address_of_another_machine_is_told_apart() {
    let keys = key_directory();
    let address = "192.0.2.1:0".parse().unwrap();
    let error = Listener::bind(address, &identity(&keys, Role::Server), &settings()).unwrap_err();
    assert!(matches!(error, BindError::NotOurs { .. }));
}

#[tokio::test]
async fn ipv6_and_both_families_work_where_they_exist() {
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return;
    }
    let keys = key_directory();
    let both = listener(&keys, "[::]:0", &settings());
    let port = both.local_address().port();
    let connector = connector(&keys, Role::Worker, &settings());
    for host in ["[::1]", "127.0.0.1", "localhost"] {
        let address = format!("{host}:{port}");
        let (server, worker) =
            tokio::join!(serve_one(&both), async { connector.connect(&address, WITHIN).await.unwrap() });
        assert_eq!(server.connection.role(), Role::Worker);
        assert_eq!(server.connection.remote().is_ipv4(), worker.remote().is_ipv4());
        assert!(worker.datagram_bytes() > 60_000, "{address}");
    }
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_named() {
    let keys = key_directory();
    let connector = connector(&keys, Role::Worker, &settings());
    for address in ["no-such-host.invalid:4400", "127.0.0.1", "127.0.0.1:port", ""] {
        let error = connector.connect(address, WITHIN).await.unwrap_err();
        assert!(matches!(&error, ConnectError::Unresolved { .. }), "{error}");
        assert!(error.to_string().contains(address));
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_named() {
    let keys = key_directory();
    // A socket that is there and says nothing.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let connector = connector(&keys, Role::Worker, &settings());
    let error = connector.connect(&address.to_string(), Duration::from_millis(200)).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoAnswer { .. }));
    assert!(error.is_retryable());
    assert!(error.to_string().contains(&address.to_string()));
}

#[tokio::test]
async fn a_silence_that_ends_early_is_said_as_long_as_it_was() {
    let keys = key_directory();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let idle = Duration::from_millis(300);
    let connector = connector(&keys, Role::Worker, &Settings { idle_timeout: idle, ..settings() });
    let error = connector.connect(&silent.local_addr().unwrap().to_string(), WITHIN).await.unwrap_err();
    let ConnectError::NoAnswer { waited, .. } = error else { panic!("{error}") };
    assert!(waited >= idle && waited < WITHIN, "{waited:?}");
}

#[tokio::test]
async fn a_peer_that_is_asked_to_prove_its_address_gets_in_with_the_proof() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    let connector = connector(&keys, Role::Worker, &settings());
    let proves = async {
        let first = listener.accept().await.unwrap();
        assert!(!first.address_is_proven());
        first.ask_for_proof();
        let second = listener.accept().await.unwrap();
        assert!(second.address_is_proven());
        let connection = second.complete().await.unwrap();
        let (mut sender, _receiver) = connection.open_control().await.unwrap();
        sender.send(&pair::welcome()).await.unwrap();
        connection
    };
    let (server, worker) = tokio::join!(proves, dial(&connector, listener.local_address()));
    assert!(server.is_open() && worker.connection.is_open());
}

#[tokio::test]
async fn a_server_that_never_welcomes_is_told_apart() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    let connector = connector(&keys, Role::Worker, &settings());
    let address = listener.local_address().to_string();
    let (error, _held) = tokio::join!(
        async { connector.connect(&address, Duration::from_millis(500)).await.unwrap_err() },
        async { listener.accept().await.unwrap().complete().await.unwrap() }
    );
    assert!(matches!(error, ConnectError::Silent { .. }));
}

#[tokio::test]
async fn keys_of_another_authority_are_refused_by_the_connecting_side() {
    let (keys, others) = (key_directory(), key_directory());
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    let stranger = connector(&others, Role::Worker, &settings());
    let address = listener.local_address().to_string();
    let (error, failure) = tokio::join!(
        async { stranger.connect(&address, WITHIN).await.unwrap_err() },
        failed_handshake(&listener)
    );
    assert!(matches!(error, ConnectError::OtherAuthority { .. }), "{error}");
    assert!(error.to_string().contains("key directory"));
    assert!(!error.is_retryable());
    assert_eq!(failure, HandshakeFailure::RefusedByPeer);
}

#[tokio::test]
async fn a_worker_of_another_authority_is_refused_by_the_server() {
    let (keys, others) = (key_directory(), key_directory());
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    // It trusts the server's authority, but has a certificate of its own one: no key directory that `load` accepts.
    let stranger = stranger::config(&keys, Some(&others), b"slackline/1");
    let (error, failure) =
        tokio::join!(stranger::closed(stranger, listener.local_address()), failed_handshake(&listener));
    assert!(matches!(error, quinn::ConnectionError::ConnectionClosed(_)));
    assert_eq!(failure, HandshakeFailure::OtherAuthority);
}

#[tokio::test]
async fn a_peer_without_a_certificate_is_refused() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    let stranger = stranger::config(&keys, None, b"slackline/1");
    let (_, failure) =
        tokio::join!(stranger::closed(stranger, listener.local_address()), failed_handshake(&listener));
    assert_eq!(failure, HandshakeFailure::NoCertificate);
}

// Case 56: a peer of another protocol is told that it is one, and is counted.
#[tokio::test]
async fn a_peer_of_another_protocol_is_refused() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    let stranger = stranger::config(&keys, Some(&keys), b"h3");
    let (_, failure) =
        tokio::join!(stranger::closed(stranger, listener.local_address()), failed_handshake(&listener));
    assert_eq!(failure, HandshakeFailure::OtherProtocol);
}

#[tokio::test]
async fn a_worker_cannot_pass_for_a_server() {
    let keys = key_directory();
    let address = "127.0.0.1:0".parse().unwrap();
    let impostor = Listener::bind(address, &identity(&keys, Role::Worker), &settings()).unwrap();
    let connector = connector(&keys, Role::Worker, &settings());
    let address = impostor.local_address().to_string();
    let (error, failure) = tokio::join!(
        async { connector.connect(&address, WITHIN).await.unwrap_err() },
        failed_handshake(&impostor)
    );
    assert!(matches!(error, ConnectError::OtherRole { expected: Role::Server, .. }), "{error}");
    assert_eq!(failure, HandshakeFailure::RefusedByPeer);
}

#[tokio::test]
async fn workers_meet_as_workers() {
    let keys = key_directory();
    let worker = identity(&keys, Role::Worker);
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), &worker, &settings()).unwrap();
    let connector = Connector::to(&worker, Role::Worker, &settings()).unwrap();
    let (listening, dialling) =
        tokio::join!(serve_one(&listener), dial(&connector, listener.local_address()));
    assert_eq!((listening.connection.role(), dialling.connection.role()), (Role::Worker, Role::Worker));
}

#[tokio::test]
async fn a_server_cannot_pass_for_a_worker() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    let connector = Connector::to(&identity(&keys, Role::Worker), Role::Worker, &settings()).unwrap();
    let address = listener.local_address().to_string();
    let (error, failure) = tokio::join!(
        async { connector.connect(&address, WITHIN).await.unwrap_err() },
        failed_handshake(&listener)
    );
    assert!(matches!(error, ConnectError::OtherRole { expected: Role::Worker, .. }), "{error}");
    assert_eq!(failure, HandshakeFailure::RefusedByPeer);
}

#[tokio::test]
async fn only_workers_may_connect_to_a_worker() {
    let keys = key_directory();
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(address, &identity(&keys, Role::Worker), &settings()).unwrap();
    let address = listener.local_address().to_string();
    for role in [Role::Server, Role::Observer, Role::Admin] {
        let connector = Connector::to(&identity(&keys, role), Role::Worker, &settings()).unwrap();
        let (error, failure) = tokio::join!(
            async { connector.connect(&address, WITHIN).await.unwrap_err() },
            failed_handshake(&listener)
        );
        let ConnectError::Broke { error: ConnectionError::Closed { code, reason }, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!((*code, failure), (CloseCode::Refused, HandshakeFailure::OtherRole));
        assert!(reason.contains(role.name()) && !error.is_retryable(), "{error}");
    }
}

#[tokio::test]
async fn nobody_connects_to_an_observer() {
    let keys = key_directory();
    let address = "127.0.0.1:0".parse().unwrap();
    let error = Listener::bind(address, &identity(&keys, Role::Observer), &settings()).unwrap_err();
    assert!(matches!(error, BindError::Keys(KeysError::CannotListen { role: Role::Observer, .. })));
}

#[tokio::test]
async fn garbage_datagrams_disturb_nobody() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    let address = listener.local_address();
    let noise = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut byte = 1u8;
    for length in [1, 20, 100, 1200, 1400, 9000] {
        let junk: Vec<u8> = (0..length)
            .map(|_| {
                byte = byte.wrapping_mul(197).wrapping_add(91);
                byte
            })
            .collect();
        noise.send_to(&junk, address).unwrap();
        noise.send_to(&vec![0xc0; length], address).unwrap();
    }
    noise.send_to(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", address).unwrap();
    let connector = connector(&keys, Role::Worker, &settings());
    let (server, worker) = tokio::join!(serve_one(&listener), dial(&connector, address));
    noise.send_to(&[0x40; 1200], address).unwrap();
    assert!(server.connection.is_open());
    assert!(worker.connection.is_open());
}

#[tokio::test]
async fn a_slow_handshake_holds_up_no_other() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    let address = listener.local_address();
    let connector = connector(&keys, Role::Worker, &settings());
    // The first peer's handshake is accepted and not completed while the second one goes through.
    let first = {
        let (connector, address) = (self::connector(&keys, Role::Admin, &settings()), address.to_string());
        tokio::spawn(async move { connector.connect(&address, WITHIN).await.map(|_| ()) })
    };
    let waiting = listener.accept().await.unwrap();
    let (server, _worker) = tokio::join!(serve_one(&listener), dial(&connector, address));
    assert_eq!(server.connection.role(), Role::Worker);
    waiting.refuse();
    assert!(first.await.unwrap().is_err());
}

#[tokio::test]
async fn closing_a_listener_ends_its_sessions_and_its_accepting() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    let connector = connector(&keys, Role::Worker, &settings());
    let (_server, worker) = tokio::join!(serve_one(&listener), dial(&connector, listener.local_address()));
    listener.close(CloseCode::Stopped, "the server stops").await;
    let reason = "the server stops".to_owned();
    assert_eq!(
        worker.connection.closed().await,
        ConnectionError::Closed { code: CloseCode::Stopped, reason }
    );
    assert!(listener.accept().await.is_none());
    connector.close(CloseCode::Done, "").await;
}

#[test]
fn a_worker_learns_of_a_restarted_server_long_before_the_lease_ends() {
    let keys = key_directory();
    let settings = Settings {
        idle_timeout: Duration::from_secs(3600),
        keep_alive: Duration::from_millis(50),
        ..settings()
    };
    let before = NetworkThread::start("before").unwrap();
    let here = NetworkThread::start("here").unwrap();
    let listener = {
        let _inside = before.handle().enter();
        listener(&keys, "127.0.0.1:0", &settings)
    };
    let address: SocketAddr = listener.local_address();
    before.handle().spawn(async move {
        let _session = serve_one(&listener).await;
        std::future::pending::<()>().await;
    });
    let connector = Connector::new(&identity(&keys, Role::Worker), &settings).unwrap();
    let mut worker = here
        .block_on(async move {
            let end = dial(&connector, address).await;
            (end, connector)
        })
        .unwrap();
    // The thread ends as a killed process does: nothing is said to the worker.
    before.stop();
    let after = NetworkThread::start("after").unwrap();
    let _listener = {
        let _inside = after.handle().enter();
        self::listener(&keys, &address.to_string(), &settings)
    };
    let ended = here.block_on(async move { worker.0.receiver.receive::<ToPeer>().await }).unwrap();
    assert_eq!(ended.unwrap_err(), ConnectionError::Restarted);
}

/// Peers that are no Slackline process.
mod stranger {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use quinn::crypto::rustls::QuicClientConfig;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tempfile::TempDir;

    /// Trusts the authority of `trusted`, and shows the worker's certificate of `shown`, if any.
    pub(crate) fn config(trusted: &TempDir, shown: Option<&TempDir>, alpn: &[u8]) -> quinn::ClientConfig {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(trusted.path().join("ca.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let mut tls = match shown {
            Some(keys) => {
                let chain = vec![CertificateDer::from_pem_file(keys.path().join("worker.pem")).unwrap()];
                let key = PrivateKeyDer::from_pem_file(keys.path().join("worker.key")).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        tls.alpn_protocols = vec![alpn.to_vec()];
        quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
    }

    /// Connects and waits for the end.
    pub(crate) async fn closed(config: quinn::ClientConfig, address: SocketAddr) -> quinn::ConnectionError {
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        match endpoint.connect_with(config, address, "server.slackline").unwrap().await {
            Ok(connection) => connection.closed().await,
            Err(error) => error,
        }
    }
}
