//! Early data (0-RTT) and replay: nothing that a peer says counts before its handshake is complete, and nothing counts twice.
//!
//! Case 66: a replayed 0-RTT push must not be applied.
#![allow(clippy::unwrap_used)]

mod pair;

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pair::{connector, dial, key_directory, listener, push, serve_one, settings};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use slackline_core::ids::KeyRange;
use slackline_core::wire::ALPN;
use slackline_net::{Listener, Role, transfer};

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn pair_of(keys: &Path, role: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let certificate = CertificateDer::from_pem_file(keys.join(format!("{role}.pem"))).unwrap();
    (vec![certificate], PrivateKeyDer::from_pem_file(keys.join(format!("{role}.key"))).unwrap())
}

/// A worker's certificate in a hand that takes tickets and sends early data.
fn eager(keys: &Path) -> quinn::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(keys.join("ca.pem")).unwrap()).unwrap();
    let (chain, key) = pair_of(keys, "worker");
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.enable_early_data = true;
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
}

/// A server with the cluster's own certificate that gives tickets for early data, as a careless version of ours would.
fn generous(keys: &Path) -> quinn::Endpoint {
    let (chain, key) = pair_of(keys, "server");
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.max_early_data_size = u32::MAX;
    let config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
    quinn::Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap()
}

/// A push as its bytes go over a stream.
fn push_bytes() -> Vec<u8> {
    let mut bytes = push(KeyRange::new(0, 4)).to_bytes().to_vec();
    bytes.extend_from_slice(&[0x3f; 16]);
    bytes
}

#[tokio::test]
async fn a_listener_gives_nothing_that_early_data_could_begin_with() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = eager(keys.path());
    for _ in 0..2 {
        let connecting =
            endpoint.connect_with(config.clone(), listener.local_address(), "server.slackline").unwrap();
        let Err(connecting) = connecting.into_0rtt() else {
            panic!("a ticket was kept: early data could be sent")
        };
        let (server, connection) = tokio::join!(serve_one(&listener), connecting);
        let connection = connection.unwrap();
        // Whatever tickets there were would have come before the control stream's first bytes.
        connection.accept_bi().await.unwrap();
        connection.close(1u32.into(), b"");
        server.connection.closed().await;
    }
}

#[tokio::test]
async fn early_data_with_a_ticket_from_elsewhere_is_not_taken() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = eager(keys.path());
    // The ticket: from a server of the same name and certificate.
    let elsewhere = generous(keys.path());
    let there = elsewhere.local_addr().unwrap();
    let (_kept, first) = tokio::join!(
        async {
            let connection = elsewhere.accept().await.unwrap().await.unwrap();
            connection.open_uni().await.unwrap().write_all(b"hello").await.unwrap();
            connection
        },
        async {
            let connection =
                endpoint.connect_with(config.clone(), there, "server.slackline").unwrap().await.unwrap();
            connection.accept_uni().await.unwrap();
            connection
        }
    );
    first.close(1u32.into(), b"");

    let connecting = endpoint.connect_with(config, listener.local_address(), "server.slackline").unwrap();
    let Ok((early, accepted)) = connecting.into_0rtt() else { panic!("the ticket was to be used") };
    let mut stream = early.open_uni().await.unwrap();
    stream.write_all(&push_bytes()).await.unwrap();
    let _ = stream.finish();
    let (server, was_accepted) = tokio::join!(serve_one(&listener), accepted);
    assert!(!was_accepted, "the listener took early data");
    // The connection itself is good; of what was pushed early nothing has come.
    let nothing =
        tokio::time::timeout(Duration::from_millis(300), transfer::accept(&server.connection)).await;
    assert!(nothing.is_err(), "a push came before the handshake was complete: {nothing:?}");
}

/// A wire between a worker and a server that keeps every datagram of the worker's.
struct Tap {
    address: SocketAddr,
    kept: Arc<Mutex<VecDeque<Vec<u8>>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Tap {
    fn to(server: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let (kept, is_over) = (Arc::new(Mutex::new(VecDeque::new())), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let (kept, is_over) = (kept.clone(), is_over.clone());
            move || {
                let (mut bytes, mut worker) = (vec![0; 65_536], None);
                while !is_over.load(Ordering::Relaxed) {
                    let Ok((length, from)) = socket.recv_from(&mut bytes) else { continue };
                    if from == server {
                        let Some(worker) = worker else { continue };
                        let _ = socket.send_to(&bytes[..length], worker);
                    } else {
                        worker = Some(from);
                        kept.lock().unwrap().push_back(bytes[..length].to_vec());
                        let _ = socket.send_to(&bytes[..length], server);
                    }
                }
            }
        });
        Self { address, kept, is_over, thread: Some(thread) }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Takes in whoever comes, until a peer of its own says that all has been said; counts handshakes that became connections.
async fn completed(listener: &Listener) -> usize {
    let mut tasks = tokio::task::JoinSet::new();
    let mut completed = 0;
    loop {
        tokio::select! {
            handshake = listener.accept() => {
                let handshake = handshake.unwrap();
                tasks.spawn(async move { handshake.complete().await });
            }
            Some(done) = tasks.join_next() => {
                let Ok(connection) = done.unwrap() else { continue };
                if connection.role() == Role::Admin {
                    return completed;
                }
                completed += 1;
            }
        }
    }
}

#[tokio::test]
async fn a_recorded_session_that_is_sent_again_is_no_session() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    let server = listener.local_address();
    let tap = Tap::to(server);
    let worker = connector(&keys, Role::Worker, &settings());
    let (at_server, at_worker) = tokio::join!(serve_one(&listener), dial(&worker, tap.address));
    let header = push(KeyRange::new(0, 4));
    let values = slackline_net::SharedValues::from(vec![1.0; 4]);
    let network = settings();
    let (sent, taken) =
        tokio::join!(transfer::send(&at_worker.connection, header, &values, &network), async {
            transfer::accept(&at_server.connection)
                .await
                .unwrap()
                .header()
                .await
                .map(|arriving| *arriving.header())
        });
    sent.unwrap();
    assert_eq!(taken.unwrap(), header);

    // The whole of the session again: from another address, and from that of the worker's wire.
    let again = UdpSocket::bind("127.0.0.1:0").unwrap();
    let kept: Vec<_> = tap.kept.lock().unwrap().iter().cloned().collect();
    assert!(kept.len() >= 3, "{}", kept.len());
    let admin = connector(&keys, Role::Admin, &settings());
    for _ in 0..3 {
        for datagram in &kept {
            again.send_to(datagram, server).unwrap();
            // By the wire, they come from the worker's own address.
            again.send_to(datagram, tap.address).unwrap();
        }
    }
    let address = server.to_string();
    let (completed, _) = tokio::join!(completed(&listener), admin.connect(&address, Duration::from_secs(2)));
    assert_eq!(completed, 0, "a recorded handshake was completed");
    let second =
        tokio::time::timeout(Duration::from_millis(300), transfer::accept(&at_server.connection)).await;
    assert!(second.is_err(), "a push came twice: {second:?}");
    assert!(at_server.connection.is_open());
}
